"""One file per kind of parallelism, all behind :class:`~ddaudit.training.parallel.contract.Parallel`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddaudit.training.parallel.contract import Parallel

__all__ = ["kind_of"]

_CLASSES: dict[str, str] = {
    "single": "single.SingleDevice",
    "data": "data.DataParallel",
    "data/zero1": "data.ZeroOne",
    "data/zero2": "sharded.ZeroTwo",
    "sharded": "sharded.ShardedData",
    "tensor": "tensor.TensorParallel",
    "tensor/sequence-parallel": "tensor.SequenceParallelTensor",
    "pipeline": "pipeline.PipelineParallel",
    "expert": "expert.ExpertParallel",
    "context": "context.ContextParallel",
    "fsdp-tp": "mixed.ShardedTensor",
    "fsdp-tp/sequence-parallel": "mixed.ShardedSequenceTensor",
    "hsdp": "mixed.HybridSharded",
}


def kind_of(parallel: str, variant: str) -> type[Parallel]:
    """The class behind a kind and variant; only its own file is imported."""
    module, _, name = (_CLASSES.get(f"{parallel}/{variant}") or _CLASSES[parallel]).partition(".")
    found: type[Parallel] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found
