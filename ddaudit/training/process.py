"""A process group for a rank that has none: every kind of parallelism also runs at degree one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from ddaudit.context import ProbeContext
from ddaudit.device import backend, device_of

__all__ = ["process_group"]


@contextmanager
def process_group(context: ProbeContext, *, needed: bool) -> Iterator[None]:
    """Makes a group of one for the block where it is needed and none exists; leaves an existing group alone."""
    import torch.distributed as dist

    if not needed or dist.is_initialized():
        yield
        return
    assert context.world_size == 1, "several ranks come with a process group"
    device_of(context.device, context.local_rank)
    timeout = timedelta(seconds=max(1.0, context.remaining_s()))
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend(context.device), store=store, rank=0, world_size=1, timeout=timeout)
    try:
        yield
    finally:
        dist.destroy_process_group()
