"""Puts the hooks into torch. Each only listens: the original gets the same arguments, the script its result."""

from __future__ import annotations

import argparse
import atexit
import builtins
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

from ddaudit.evidence.events import EventWriter
from ddaudit.watch.patching import after_import, wrap
from ddaudit.watch.pauses import watch_pauses
from ddaudit.watch.random_state import watch_restored
from ddaudit.watch.recorder import Recorder
from ddaudit.watch.report import Reporter
from ddaudit.watch.saving import watch_saving
from ddaudit.watch.workers import watch_workers

__all__ = ["install"]

_installed: list[Recorder] = []
_stack_files: list[TextIO] = []
"""Kept open for the life of the process: faulthandler writes to the file descriptor alone."""
#: Collectives up to this size carry counters and losses, not gradients.
TINY_BYTES = 1024
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast",
    "all_to_all", "all_to_all_single", "reduce", "barrier",
)  # fmt: skip


def install(folder: Path | None = None, writer: EventWriter | None = None, every: int | None = None) -> Recorder:
    """Hooks this process; a second call returns the recorder of the first.

    ``folder`` (default ``$DDAUDIT_WATCH_DIR``) takes the event file unless a ``writer`` is given.
    """
    if _installed and _installed[0].guard.active:
        return _installed[0]
    target = folder or Path(os.environ["DDAUDIT_WATCH_DIR"])
    target.mkdir(parents=True, exist_ok=True)
    _stacks_on_demand(target)
    recorder = Recorder(Reporter(target, writer), every or int(os.environ.get("DDAUDIT_WATCH_EVERY", "1") or 1))
    _installed[:] = [recorder]
    recorder.models.install()
    recorder.loaders.install(torch.utils.data.dataloader)
    after_import("torchdata.stateful_dataloader.stateful_dataloader", recorder.loaders.install_stateful)
    watch_workers(recorder)
    for hook in (
        _optimizers,
        _schedulers,
        _backward,
        _clipping,
        _scaler,
        _collectives,
        watch_saving,
        watch_pauses,
        watch_restored,
        _talking,
        _ending,
    ):
        hook(recorder)
    return recorder


def _stacks_on_demand(folder: Path) -> None:
    """Lets the launcher ask a stuck rank for its stacks. faulthandler answers in C, so a rank that holds the
    interpreter in a native call answers as well."""
    _stack_files.append((folder / f"stack-{os.getpid()}.txt").open("a", encoding="utf-8"))
    faulthandler.register(signal.SIGUSR2, _stack_files[-1], all_threads=True)
    if not faulthandler.is_enabled():  # an abort in a backend's thread ends the rank without any exception
        faulthandler.enable(_stack_files[-1], all_threads=True)


def _optimizers(recorder: Recorder) -> None:
    from torch.optim import optimizer as module

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            recorder.guard.call("optimizer", recorder.window, optimizer)

        return init

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder.guard.call("before-step", recorder.before_step, optimizer, _has_closure(args, kwargs))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder.guard.call("after-step", recorder.after_step, optimizer, _has_closure(args, kwargs))

    wrap(module.Optimizer, "__init__", made)
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def _has_closure(args: Any, kwargs: Any) -> bool:
    return any(callable(a) and not hasattr(a, "param_groups") for a in (*args, kwargs.get("closure")))


def _schedulers(recorder: Recorder) -> None:
    from torch.optim import lr_scheduler as module

    depth = [0]

    def ticking(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    recorder.reporter.notes["schedulers"] = type(scheduler).__name__
                    recorder.guard.call("tick", recorder.tick, getattr(scheduler, "optimizer", None))

        return step

    def quiet(original: Callable[..., Any]) -> Callable[..., Any]:
        def construct(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            depth[0] += 1
            try:
                original(scheduler, *args, **kwargs)
            finally:
                depth[0] -= 1

        return construct

    for kind in (k for k in vars(module).values() if isinstance(k, type) and "step" in vars(k)):
        if kind.__name__ != "Optimizer":
            wrap(kind, "step", ticking)
            wrap(kind, "__init__", quiet)


def _backward(recorder: Recorder) -> None:
    def hooked(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if recorder.backward_depth or not recorder.guard.active:
                return original(tensors, *args, **kwargs)  # type: ignore[no-any-return]
            back = recorder.guard.call("before-backward", recorder.before_backward, tensors)
            recorder.backward_depth += 1
            began = time.perf_counter()
            try:
                original(tensors, *args, **kwargs)
            finally:
                recorder.backward_depth -= 1
            if back is not None:
                recorder.guard.call("after-backward", recorder.after_backward, back, time.perf_counter() - began)
            return None

        return backward

    wrap(torch.autograd, "backward", hooked)


def _clipping(recorder: Recorder) -> None:
    def clipping(original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.guard.call("clip", recorder.clip_begins)
            norm = original(parameters, limit, *args, **kwargs)
            if norm is not None:
                recorder.guard.call("clipped", recorder.clip_ended, norm, limit)
            return norm

        return clip

    from torch.nn import utils

    wrap(utils.clip_grad, "clip_grad_norm_", clipping)
    utils.clip_grad_norm_ = utils.clip_grad.clip_grad_norm_
    wrap(utils.clip_grad, "clip_grad_value_", clipping)
    utils.clip_grad_value_ = utils.clip_grad.clip_grad_value_


def _scaler(recorder: Recorder) -> None:
    kind = torch.amp.grad_scaler.GradScaler

    def scaling(original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            if scaler.is_enabled():
                recorder.scale = float(scaler.get_scale())
                recorder.reporter.notes["scaler"] = True
            return result

        return scale

    def unscaling(original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale(scaler: Any, optimizer: Any) -> None:
            original(scaler, optimizer)
            window = recorder.windows.get(id(optimizer))
            if window is not None:
                window.unscaled = True

        return unscale

    wrap(kind, "scale", scaling)
    wrap(kind, "unscale_", unscaling)


def _collectives(recorder: Recorder) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as module

    def note(name: str, args: Any, seconds: float) -> None:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        size = float(sum(t.numel() * t.element_size() for t in tensors))
        recorder.moved["collective_calls"] += 1
        recorder.moved["collective_bytes"] += size
        if size <= TINY_BYTES:
            recorder.moved["tiny_calls"] += 1
            recorder.moved["tiny_s"] += seconds
        recorder.spent["comm_wait_s"] += seconds
        total = recorder.reporter.sums.setdefault(name, [0.0, 0.0])
        total[0] += 1
        total[1] += size

    def counting(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                began = time.perf_counter()
                result = original(*args, **kwargs)
                if not torch.compiler.is_compiling():
                    recorder.guard.call("collective", note, name, args, time.perf_counter() - began)
                return result

            return call

        return make

    for name in COLLECTIVES:
        wrap(module, name, counting(name))
        setattr(torch.distributed, name, getattr(module, name))


def _talking(recorder: Recorder) -> None:
    def parsing(original: Callable[..., Any]) -> Callable[..., Any]:
        def parse(parser: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(parser, *args, **kwargs)
            recorder.guard.call("options", recorder.reporter.claims.options, parser, result[0])
            return result

        return parse

    def printing(original: Callable[..., Any]) -> Callable[..., Any]:
        def show(*args: Any, **kwargs: Any) -> None:
            recorder.guard.call("print", recorder.reporter.claims.text, args)
            original(*args, **kwargs)

        return show

    wrap(argparse.ArgumentParser, "parse_known_args", parsing)
    wrap(builtins, "print", printing)


def _ending(recorder: Recorder) -> None:
    previous = sys.excepthook

    def failing(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        recorder.guard.call("exception", recorder.reporter.failed, kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = failing
    if recorder.reporter.writer is None:
        atexit.register(lambda: recorder.guard.call("finish", recorder.finish, "exit"))
