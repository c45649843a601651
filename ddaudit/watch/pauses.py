"""Pauses of Python itself: the time of its garbage collections."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["watch_pauses"]


def watch_pauses(recorder: Recorder) -> None:
    """Adds the time of each collection to the update in which it happens."""
    began = [0.0]

    def noted(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            began[0] = time.perf_counter()
        elif recorder.guard.active:
            recorder.spent["gc_s"] += time.perf_counter() - began[0]

    gc.callbacks.append(noted)
