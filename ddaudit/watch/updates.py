"""One update of the recorded optimizer: what is seen when it is done, and the event that it becomes.

Seeing is separate from putting into numbers: updates between two recorded ones may be put into numbers together, which
costs a fraction of doing it in the middle of each.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddaudit.jsonio import encode
from ddaudit.watch import random_state
from ddaudit.watch.kernel import Kernel
from ddaudit.watch.loaders import Batch
from ddaudit.watch.windows import Back, Window

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["Update", "ask_kernel", "event", "rate", "seen"]

MAX_SAMPLES = 8192


@dataclass(slots=True)
class Update:
    """``window`` is as it was when the update was done; times in seconds, NaN for what is not known."""

    window: Window
    at: float
    """Wall clock."""
    lr: float
    scheduled: bool
    """Whether the script has a scheduler."""
    step_s: float
    optimizer_s: float
    input_s: float
    cpu_s: float
    graphs_alive: int
    rng_after: float
    spent: dict[str, float]
    moved: dict[str, float]
    draws: dict[str, float]
    runqueue_s: float = math.nan
    rss_bytes: float = math.nan
    more: dict[str, float] = field(default_factory=dict)
    lists: dict[str, Any] = field(default_factory=dict)


def seen(recorder: Recorder, window: Window, since: float) -> Update:
    """Takes down an update that is just done; the one before was done at ``since`` (``perf_counter``)."""
    now = time.perf_counter()
    return Update(
        window=window.copy(),
        at=time.time(),
        lr=rate(window.optimizer.param_groups),
        scheduled="schedulers" in recorder.reporter.notes,
        step_s=now - since,
        optimizer_s=max(0.0, now - window.entered - window.inside_s),
        input_s=recorder.input_seconds(),
        cpu_s=recorder.reporter.kernel.cpu_seconds(),
        graphs_alive=sum(r() is not None for r in recorder.alive),
        rng_after=float(random_state.torch_stream()) if recorder.attentive else math.nan,
        spent=recorder.spent,
        moved=recorder.moved,
        draws=recorder.draws,
    )


def rate(groups: list[dict[str, Any]]) -> float:
    """Learning rate of the first group, unless that one stands still (a multiplier of 0) while others move."""
    rates = [float(g.get("lr", math.nan)) for g in groups]
    return next((x for x in rates if x), 0.0) if rates else math.nan


def ask_kernel(updates: list[Update], kernel: Kernel) -> None:
    """Completes updates that are written together: they share the time waited for a core and have one memory."""
    waited, resident = kernel.runqueue_seconds() / len(updates), kernel.resident_bytes()
    for update in updates:
        update.runqueue_s, update.rss_bytes = waited, resident


def event(update: Update) -> dict[str, Any]:
    """The ``step`` event. Numbers that are not known and lists that would tell nothing are left out."""
    window = update.window
    batches = window.batches()
    values = {
        "lr": update.lr,
        **_passes(window.backs),
        "micro_batches": window.micro_batches(len(batches)),
        "samples": window.samples(batches),
        **_counted(window),
        "scheduler_ticks": float(window.ticks) if update.scheduled else math.nan,
        "step_s": update.step_s,
        "input_s": update.input_s,
        **update.spent,
        "optimizer_s": update.optimizer_s,
        "cpu_s": update.cpu_s,
        "runqueue_s": update.runqueue_s,
        "rss_bytes": update.rss_bytes,
        "graphs_alive": float(update.graphs_alive),
        "rng_digest": update.draws["before"],
        "rng_fetch_digest": update.draws["fetch"],
        "rng_forward_draws": update.draws["forward"],
        "rng_after": update.rng_after,
        **update.moved,
        **update.more,
    }
    lists = {**_samples(window, batches), "loss_terms": encode(window.loss_table()), **update.lists}
    return {
        "event": "step",
        "t": update.at,
        "step": window.updates,
        "values": {k: v for k, v in values.items() if v == v},
        "lists": {k: v for k, v in lists.items() if v},
    }


def _counted(window: Window) -> dict[str, float]:
    return {
        # Without a backward pass nobody looked: the update does nothing, or the script sets gradients by hand.
        "zero_grads": float(window.cleared or window.updates == 0) if window.backs else math.nan,
        "unscaled": float(window.unscaled),
        "clips": float(window.clips),
        "early_clips": float(window.early_clips),
        "local_clips": float(window.local_clips),
        "clip_norm": window.clip_norm,
        "clip_limit": window.clip_limit,
    }


def _passes(backs: list[Back]) -> dict[str, float]:
    """What the backward passes of an update amount to."""
    raw = [math.nan if b.micro.value is None else b.micro.value / b.scale for b in backs]
    synced = [b.synced for b in backs]
    return {
        "loss_raw": sum(raw) / len(raw) if raw else math.nan,
        "loss_bad": float(any(b.micro.value is not None and not math.isfinite(b.micro.value) for b in backs)),
        "passes": float(len(backs)),
        "synced_passes": math.nan if all(s is None for s in synced) else float(synced.count(True)),
        "last_synced": math.nan if not synced or synced[-1] is None else float(synced[-1]),
        "bypassed": float(sum(b.bypass for b in backs)),
        "scale": backs[-1].scale if backs else math.nan,
    }


def _samples(window: Window, batches: list[Batch]) -> dict[str, list[int]]:
    """Samples of the window, slot by slot."""
    known = any(b.prints for b in batches)
    prints = [p for b in batches for p in (b.prints or [-1] * b.size)] if known else []
    prints = prints or [p for back in window.backs for p in back.prints]
    indices = [i for b in batches for i in (b.indices or [-1] * b.size)] if any(b.indices for b in batches) else []
    epochs: list[int] = []
    for batch in batches:
        epochs += [batch.loader * 100_000 + batch.epoch] * max(len(batch.prints), len(batch.indices), 1)
    found = {"sample_ids": prints, "sample_index": indices, "sample_epoch": epochs}
    return {name: slots[:MAX_SAMPLES] for name, slots in found.items()}
