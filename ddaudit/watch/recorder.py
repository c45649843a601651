"""Joins what the hooks see into one event per optimizer update."""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from typing import Any

import torch
from torch import Tensor

from ddaudit.watch import checkpoints, fingerprint, losses, random_state
from ddaudit.watch.gradients import Parameters
from ddaudit.watch.loaders import Batch, Loader, Loaders
from ddaudit.watch.models import Call, Models
from ddaudit.watch.patching import Guard
from ddaudit.watch.report import Reporter
from ddaudit.watch.sampling import FIRST, Sampling
from ddaudit.watch.windows import Back, Window

__all__ = ["Recorder"]

SPENT = ("forward_s", "backward_s", "comm_wait_s", "checkpoint_s", "gc_s")
MOVED = ("collective_calls", "collective_bytes", "tiny_calls", "tiny_s", "free_calls")
#: Batches of each loader whose samples are read in any case.
READ_BATCHES = 64


class Recorder:
    """One per process. Nothing is written before the process proves to be a rank that trains."""

    def __init__(self, reporter: Reporter, every: int) -> None:
        self.guard = Guard()
        self.sampling = Sampling(every)
        self.loaders, self.models = Loaders(self.guard), Models(self.guard)
        self.loaders.reads = self._reads
        self.models.on_enter, self.models.on_leave = self._on_enter, self._on_leave
        self._fresh(reporter)

    def _fresh(self, reporter: Reporter) -> None:
        """Everything that belongs to one training."""
        self.reporter = reporter
        self.windows: dict[int, Window] = {}
        self.primary: Window | None = None
        self.calls: list[Call] = []
        self.fresh: list[Batch] = []
        self.prints: list[int] = []
        self.rows = 0
        self.backward_depth = 0
        self.scale = 1.0
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.moved = dict.fromkeys(MOVED, 0.0)
        self.draws = {"fetch": math.nan, "forward": math.nan, "before": math.nan}
        self.alive: list[weakref.ref[Any]] = []
        self.masks: dict[int, list[bool]] = {}
        self._fetching: dict[str, int] = {}
        self._drew = False
        self._last_wait = self.loaders.wait_s
        self.attentive = self.whole = True
        """Whether costly facts of the update under way are recorded, and whether everything is digested in it."""
        self.trained: set[int] = set()
        """Numbers of the loaders whose batches were trained on."""
        self.accumulates = False
        """Whether an update was made of several backward passes: the weight of each may differ then."""
        self.loaders.on_fetch = self._on_fetch

    def begin_again(self, reporter: Reporter) -> None:
        """Ends the recording and begins another, with nothing of the training before kept alive."""
        self.finish("followed by another training")
        self.loaders.forget()
        self.models.forget()
        self._fresh(reporter)

    def finish(self, how: str) -> None:
        """Writes the last summary."""
        self.reporter.finish(self, how)

    # -- optimizers ---------------------------------------------------------------------------------------------

    def window(self, optimizer: Any) -> Window:
        """The window of an optimizer, made when it is first seen."""
        found = self.windows.get(id(optimizer))
        if found is None:
            before = 0 if self.primary is None else self.primary.updates
            found = Window(len(self.windows), optimizer, Parameters(optimizer, self.guard), follows=before)
            self.windows[id(optimizer)] = found
            self.models.adopt(found.parameters.items)
        return found

    def sampled(self, update: int) -> bool:
        """Whether everything of an update is digested; equal on all ranks of equal models."""
        primary = self.primary or next(iter(self.windows.values()), None)
        return self.sampling.digests_due(update, 0 if primary is None else primary.parameters.nbytes)

    def unsampled_digests(self) -> list[int]:
        """Digests of the parameters as they are, where the update just done has none."""
        primary = self.primary
        if primary is None or not primary.updates or self.sampled(primary.updates - 1):
            return []
        return primary.parameters.digests()

    def before_step(self, optimizer: Any, closure: bool) -> None:
        """Before the update: gradients are final unless a closure is yet to compute them."""
        window = self.windows.get(id(optimizer)) or self.window(optimizer)
        if not window.backs and _only_initialises(window, closure):
            return
        if self.primary is None or not self.primary.updates:
            self._elect(window)
        window.entered = time.perf_counter()
        if not closure:
            self._read_stepped(window)

    def _elect(self, window: Window) -> None:
        """Chooses the optimizer whose updates count: the largest one, unless it is never used."""
        idle = self.primary is not None and not self.primary.updates and window.updates > 0
        if self.primary is not None and not idle:
            return
        known = [window] if idle else list(self.windows.values())
        self.primary = max(known, key=lambda w: (w.parameters.numel, w is window, -w.number))
        self._look(self.primary)
        self.reporter.begin(self)
        self.reporter.notes["state_loaded"] = checkpoints.state_digest(window.optimizer, self.models.names())
        self.reporter.start_digests(window.parameters.digests() if window is self.primary else [])

    def _read_stepped(self, window: Window) -> None:
        if window.parameters.sampling:
            window.parameters.read("stepped")
        if window is self.primary and self.whole:
            self.reporter.gradients(window.parameters.grad_digests(), window.parameters.grad_norm())

    def after_step(self, optimizer: Any, closure: bool) -> None:
        """After the update: writes the event of the primary optimizer, counts the others'."""
        window = self.windows.get(id(optimizer)) or self.window(optimizer)
        if not window.backs and _only_initialises(window, closure):
            return
        if closure:
            self._read_stepped(window)
        if window is self.primary:
            self.reporter.step(self, window)
            self._reset_times()
        else:
            self._notice_another(window)
        self.accumulates = self.accumulates or len(window.backs) > 1
        window.stepped()
        if window is self.primary:
            self._look(window)
        window.parameters.sampling = self.sampling.due(window.updates)

    def _look(self, window: Window) -> None:
        """Decides how closely the coming update is looked at."""
        self.attentive = self.sampling.due(window.updates)
        self.whole = self.sampling.digests_due(window.updates, window.parameters.nbytes)
        # Whoever has not drawn in the first updates will hardly begin to: the generators are not looked at any more.
        fetches = self._early() and (window.updates < FIRST or self._drew)
        self.loaders.on_fetch = self._on_fetch if fetches else None

    def _reads(self, loader: Loader) -> bool:
        """Whether samples of a loader are read: where little is asked for, not for ever of those trained on."""
        seldom = self.sampling.every > 1 and not self.attentive and loader.batches > READ_BATCHES
        return not seldom or loader.number not in self.trained

    def _notice_another(self, window: Window) -> None:
        """Tells of a training after the recorded one: an optimizer that was made later and works alone since then has
        made one more update."""
        primary = self.primary
        if primary is None or not window.follows or primary.updates > window.follows:
            return
        self.reporter.another(window.updates + 1, primary.updates)

    def _reset_times(self) -> None:
        self.spent = dict.fromkeys(SPENT, 0.0)
        self.moved = dict.fromkeys(MOVED, 0.0)
        self.draws = {"fetch": math.nan, "forward": math.nan, "before": math.nan}

    def input_seconds(self) -> float:
        """Time waited for loaders since this was last asked."""
        waited, self._last_wait = self.loaders.wait_s - self._last_wait, self.loaders.wait_s
        return waited

    # -- data and models ----------------------------------------------------------------------------------------

    def _early(self) -> bool:
        """Whether draws of random numbers are looked for: at first, and seldom where little is asked for."""
        if self.sampling.every > 1:
            return self.attentive
        return self.primary is None or self.primary.updates < 32

    def _on_fetch(self, when: str) -> None:
        found = random_state.streams()
        if when == "before":
            self._fetching = found
        else:
            drawn = [self._fetching[k] for k in sorted(found) if self._fetching.get(k, found[k]) != found[k]]
            if drawn:
                self._drew = True
                self.draws["fetch"] = float(hash(tuple(drawn)) & fingerprint.MASK)

    def _on_enter(self, call: Call) -> None:
        if call.grad:
            if self.attentive or self.sampling.every == 1:
                self.draws["before"] = float(random_state.torch_stream())
            if self.attentive:
                self.reporter.norms = self.models.norm_digest()
        batch = self.loaders.find(call)
        if batch is not None:
            if call.grad:
                batch.state = "train"
                self.trained.add(batch.loader)
                if all(batch is not other for other in self.fresh):
                    self.fresh.append(batch)
            elif batch.state == "fetched":
                batch.state = "eval"
                self.reporter.evaluated(batch)
        elif call.grad:
            self._unmatched(call)

    def _unmatched(self, call: Call) -> None:
        """Inputs that no loader gave: they stand for the samples where there is no loader."""
        inputs = call.inputs
        first = next((t for t in inputs if t.dim() > 0), None)
        if first is None:
            return
        self.rows += int(first.shape[0])
        if first.device.type == "cpu" and self._early():
            self.prints += fingerprint.rows(inputs)[:4096]

    def _on_leave(self, call: Call) -> None:
        self.moved["free_calls"] += not call.grad
        if call.grad:
            self.calls.append(call)
            self.spent["forward_s"] += call.seconds
            if (self.attentive or self._early()) and self.draws["before"] == self.draws["before"]:
                drew = random_state.torch_stream() != int(self.draws["before"])
                self.draws["forward"] = max(float(drew), self.draws["forward"] if self.calls[1:] else 0.0)

    # -- backward -----------------------------------------------------------------------------------------------

    def before_backward(self, roots: Any) -> Back | None:
        """Sees whether gradients were cleared, and takes the loss's graph apart."""
        for window in self.windows.values():
            if window.parameters.cleared() and not window.unreduced:
                window.mark_cleared()
            self.accumulates = self.accumulates or bool(window.backs)
        root = roots if isinstance(roots, Tensor) else next(iter(roots), None)
        node = root.grad_fn if isinstance(root, Tensor) else None
        micro = losses.Micro(None)
        if isinstance(root, Tensor) and node is not None:
            weigh = self.attentive or self.accumulates
            micro = losses.inspect(root, node, self.guard, self.masks, anew=self.attentive, weigh=weigh)
            self._follow(micro.node or node)
            micro.node = None
        synced = [c.sync for c in self.calls if c.sync is not None]
        batches = self.fresh or self._guess_batches()
        back = Back(
            micro, batches, self.prints, self.rows, synced[-1] if synced else None,
            any(c.bypass for c in self.calls), self.scale,
        )  # fmt: skip
        self.moved["free_calls"] += max(0, len(self.calls) - 1)
        self.calls, self.fresh, self.prints, self.rows = [], [], [], 0
        return back

    def _guess_batches(self) -> list[Batch]:
        """Batches that were fetched and never recognised in a model's input, because the script made new tensors of
        them. The newest one counts, so that skipped and evaluated batches do not."""
        if any(b.state == "train" for b in self.loaders.pending) or not self.loaders.pending:
            return []
        unused = [b for b in self.loaders.pending if b.state == "fetched"]
        if not unused or (self.loaders.pending[-1] is not unused[-1]):
            return []
        chosen = unused[0] if self.loaders.in_order else unused[-1]
        chosen.state = "guessed"
        return [chosen]

    def after_backward(self, back: Back, seconds: float) -> None:
        """Adds the pass to the windows whose gradients it reached."""
        back.seconds = seconds
        self.spent["backward_s"] += seconds
        windows = self.windows.values()
        for window in windows if len(windows) == 1 else [w for w in windows if w.parameters.touched] or windows:
            window.parameters.touched = False
            window.add(back)
            if window.parameters.sampling:
                window.parameters.read("arrived")
                window.parameters.read("ended")
        for window in windows:
            if window.entered:
                window.inside_s += seconds

    def _follow(self, node: Any) -> None:
        """Leaves a mark in the graph that dies with it, to see graphs that the script keeps alive."""
        mark = _Mark()
        node.metadata["ddaudit"] = mark
        if self.alive:
            self.alive = [r for r in self.alive[-400:] if r() is not None]
        self.alive.append(weakref.ref(mark))

    # -- the rest -----------------------------------------------------------------------------------------------

    def clip_begins(self) -> None:
        """Gradients before clipping, and whether a scaler still holds them multiplied."""
        for window in self.windows.values():
            window.parameters.read("unclipped")
            scaled = any(b.scale != 1.0 for b in window.backs)
            window.clips += 1
            window.early_clips += int(scaled and not window.unscaled)
            window.clipped_at = len(window.backs)

    def clip_ended(self, norm: Any, limit: float) -> None:
        """The norm by which this rank clipped."""
        value = getattr(norm, "_local_tensor", norm)
        for window in self.windows.values():
            if not hasattr(norm, "_local_tensor"):
                window.clip_norm = float(value)
            window.clip_limit = float(limit)

    def tick(self, optimizer: Any) -> None:
        """A learning-rate scheduler stepped."""
        for window in self.windows.values():
            mine = window.optimizer.param_groups  # frameworks wrap optimizers; the groups stay the same object
            if optimizer is None or getattr(optimizer, "param_groups", None) is mine:
                window.ticks += 1

    @property
    def frameworks(self) -> list[str]:
        """Training frameworks that this process imported."""
        names = ("accelerate", "transformers", "lightning", "pytorch_lightning", "deepspeed", "torchdata")
        return [n for n in names if n in sys.modules]

    @property
    def distributed(self) -> tuple[int, int]:
        """Rank and world size, from the process group or the launcher's environment."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _only_initialises(window: Window, closure: bool) -> bool:
    """True for the step at learning rate 0 without any backward pass by which ``get_state_dict`` makes an optimizer
    create its state: no update of the training."""
    return not (closure or window.backs or any(float(g.get("lr", 1.0)) for g in window.optimizer.param_groups))


class _Mark:
    """Lives exactly as long as the graph node that it was hung on."""
