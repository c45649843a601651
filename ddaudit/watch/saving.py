"""Hooks on what writes and reads checkpoints: ``torch.save`` and ``torch.load``, and distributed checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ddaudit.watch import checkpoints
from ddaudit.watch.patching import after_import, wrap

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["watch_saving"]

MAX_NOTED = 200


def watch_saving(recorder: Recorder) -> None:
    """Notes every checkpoint with its contents and digest, after it was written or read."""

    def note(action: str, target: Any, item: Any, seconds: float) -> None:
        found = checkpoints.noted(action, target, item, recorder, seconds)
        if found is not None and len(recorder.reporter.saves) < MAX_NOTED:
            held = {"parameters": recorder.unsampled_digests()} if action == "save" else {}
            recorder.reporter.saves.append({**found, **held, "rank": recorder.distributed[0]})
            recorder.spent["checkpoint_s"] += seconds
            recorder.reporter.summary(recorder)  # a rank that is killed now has told of it

    def save(original: Callable[..., Any]) -> Callable[..., Any]:
        def saving(item: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = original(item, f, *args, **kwargs)
            recorder.guard.call("save", note, "save", f, item, time.perf_counter() - began)
            return result

        return saving

    def load(original: Callable[..., Any]) -> Callable[..., Any]:
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = original(f, *args, **kwargs)
            recorder.guard.call("load", note, "load", f, result, time.perf_counter() - began)
            return result

        return loading

    wrap(torch, "save", save)
    wrap(torch, "load", load)
    torch.serialization.save, torch.serialization.load = torch.save, torch.load
    after_import("safetensors.torch", lambda module: _safetensors(module, recorder, note))
    after_import("torch.distributed.checkpoint", lambda module: _distributed(module, recorder, note))


def _safetensors(module: ModuleType, recorder: Recorder, note: Callable[..., None]) -> None:
    """Frameworks write weights with safetensors, and only the rest with ``torch.save``."""

    def saving(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = original(tensors, filename, *args, **kwargs)
            recorder.guard.call("safe-save", note, "save", filename, tensors, time.perf_counter() - began)
            return result

        return save

    def loading(original: Callable[..., Any]) -> Callable[..., Any]:
        def load(filename: Any, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = original(filename, *args, **kwargs)
            recorder.guard.call("safe-load", note, "load", filename, result, time.perf_counter() - began)
            return result

        return load

    wrap(module, "save_file", saving)
    wrap(module, "load_file", loading)


def _distributed(module: ModuleType, recorder: Recorder, note: Callable[..., None]) -> None:
    def hooked(action: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(state: Any, *args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                result = original(state, *args, **kwargs)
                given = kwargs.get("checkpoint_id", next((a for a in args if isinstance(a, str)), None))
                target = given or _place(kwargs.get("storage_writer") or kwargs.get("storage_reader"))
                recorder.guard.call(f"dcp-{action}", note, action, target, state, time.perf_counter() - began)
                return result

            return call

        return make

    for name in ("save", "load"):
        wrap(module, name, hooked(name))


def _place(storage: Any) -> Any:
    return getattr(storage, "path", None)
