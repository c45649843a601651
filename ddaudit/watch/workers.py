"""Random state inside loader workers, where the hooks of the rank do not reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import fetch

from ddaudit.evidence.events import EventWriter
from ddaudit.watch import random_state
from ddaudit.watch.patching import wrap

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["watch_workers"]

#: Fetches of a worker whose random state is noted.
NOTED = 3


def watch_workers(recorder: Recorder) -> None:
    """Hooks the fetchers, which run in the workers: each notes its generators around its first fetches."""
    seen: dict[int, int] = {}

    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        def fetching(fetcher: Any, index: Any) -> Any:
            worker = torch.utils.data.get_worker_info()
            count = seen.get(os.getpid(), 0)
            if worker is None or count >= NOTED:
                return original(fetcher, index)
            seen[os.getpid()] = count + 1
            before = random_state.worker_streams(fetcher.dataset)
            result = original(fetcher, index)
            _note(recorder, worker.id, count, before, random_state.worker_streams(fetcher.dataset))
            return result

        return fetching

    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        wrap(kind, "fetch", hooked)


def _note(recorder: Recorder, worker: int, fetch_number: int, before: dict[str, int], after: dict[str, int]) -> None:
    rank = int(recorder.reporter.notes.get("rank", os.environ.get("RANK", "0")))
    drawn = {k: v for k, v in before.items() if after.get(k, v) != v}
    path = recorder.reporter.folder / f"worker-{rank}-{worker}-{os.getpid()}.jsonl"
    try:
        with EventWriter(path) as writer:
            writer.emit("worker", rank=rank, worker=worker, fetch=fetch_number, pid=os.getppid(), drawn=drawn)
    except OSError:
        return  # a read-only run folder must not end the loader
