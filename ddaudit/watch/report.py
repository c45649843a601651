"""Writes what a rank saw: one ``step`` event per update of the primary optimizer, and a growing ``watched`` summary."""

from __future__ import annotations

import math
import os
import re
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddaudit.evidence.events import EventWriter
from ddaudit.jsonio import encode
from ddaudit.redact import redact_text
from ddaudit.watch import random_state
from ddaudit.watch.checkpoints import optimizer_steps
from ddaudit.watch.claims import Claims
from ddaudit.watch.loaders import Batch
from ddaudit.watch.placement import parallelism, place
from ddaudit.watch.source import guarded
from ddaudit.watch.windows import Window

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["Reporter", "rate"]

MAX_EVALUATED = 2048
#: Updates after which an optimizer that was made later, and works alone since then, is another training.
ANOTHER = 8
#: Updates after which a summary is written; later ones follow at the distance of the last.
SUMMARIES = (0, 1, 3, 7, 15, 31, 64)


class Reporter:
    """Event file of one process. Opened at the first update, or at exit where there is something to tell."""

    def __init__(self, folder: Path, writer: EventWriter | None = None) -> None:
        self.folder = folder
        self.writer = writer
        self.claims = Claims()
        self.saves: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.norms = math.nan
        self.sums: dict[str, list[float]] = {}
        self._digests: list[int] = []
        self._start: list[int] = []
        self._grads: tuple[list[int], float] = ([], math.nan)
        self._evaluated: dict[int, dict[str, list[int]]] = {}
        self._last = time.perf_counter()
        self._passes = 0
        self._began = False

    def begin(self, recorder: Recorder) -> None:
        """Opens the file and says who writes."""
        if self._began:
            return
        self._began = True
        rank, world = recorder.distributed
        if self.writer is None:
            host = re.sub(r"[^A-Za-z0-9_-]", "_", os.environ.get("SLURMD_NODENAME") or socket.gethostname())[:60]
            path = self.folder / f"{host}-{rank}.jsonl"
            path = path if not path.exists() else self.folder / f"{host}-{rank}-{os.getpid()}.jsonl"
            self.writer = EventWriter(path)
        self.writer.emit("rank", place=place(recorder, rank))
        self.writer.emit("job", job=parallelism(recorder, world))
        self.claims.variables(sys._getframe(1))

    def start_digests(self, digests: list[int]) -> None:
        """Digests of the parameters before the first update."""
        self._start = self._digests = digests

    def gradients(self, digests: list[int], norm: float) -> None:
        """Gradients as the optimizer is about to use them."""
        self._grads = (digests, norm)

    def another(self, updates: int, recorded: int) -> None:
        """Another training has begun, of which nothing is recorded; says so once."""
        self.notes["unrecorded_updates"] = updates
        if updates == ANOTHER:
            sys.stderr.write(
                f"ddaudit: another training began after the {recorded} recorded updates and is not recorded;"
                " call ddaudit.watch.auto.begin() before it\n"
            )

    def evaluated(self, batch: Batch) -> None:
        """A loader's batch went into a model without gradients; a later training's may be what this one trained on."""
        if "unrecorded_updates" in self.notes:
            return
        kept = self._evaluated.setdefault(batch.loader, {"prints": [], "indices": []})
        if len(kept["prints"]) + len(kept["indices"]) < MAX_EVALUATED:
            kept["prints"] += batch.prints
            kept["indices"] += batch.indices

    def step(self, recorder: Recorder, window: Window) -> None:
        """Writes an update."""
        due = recorder.sampling.due(window.updates)
        if due:
            self.claims.count(sys._getframe(2), window.updates, self._passes)
        self._passes += len(window.backs)
        now = time.perf_counter()
        terms = window.loss_table()
        values = _values(recorder, window, [row[0] for row in terms]) | {"step_s": now - self._last}
        sampled = recorder.sampled(window.updates)
        arrays = {**_data(window), "loss_terms": encode(terms)}
        if sampled:
            before, self._digests = self._digests, window.parameters.digests()
            values["changed"] = float(before != self._digests)
            if not any(hasattr(p, "_local_tensor") for p in window.parameters.items[:1]):
                values["param_digest"] = float(hash(tuple(self._digests)) & ((1 << 53) - 1))
            arrays["param_digests"], arrays["grad_digests"] = self._digests, self._grads[0]
            values["grad_norm"] = self._grads[1]
        if window.parameters.sampling:
            arrays["grad_slices"] = window.parameters.table()
        values["norm_digest"], self.norms = self.norms, math.nan
        assert self.writer is not None
        self._grads = ([], math.nan)
        known = {k: v for k, v in values.items() if v == v}
        self.writer.emit_numbers(
            "step", step=window.updates, values=known, lists={k: v for k, v in arrays.items() if v}
        )
        self._last = time.perf_counter()
        if window.updates == 0:
            self.notes["first_optimizer_step"] = optimizer_steps(window.optimizer)
        if window.updates in SUMMARIES or window.updates % SUMMARIES[-1] == SUMMARIES[-1] - 1:
            self.summary(recorder)

    def summary(self, recorder: Recorder) -> None:
        """Writes everything that is not per update; the last one counts."""
        if self.writer is None:
            return
        rank, world = recorder.distributed
        primary = recorder.primary
        names = recorder.models.names() if primary is not None else {}
        self.writer.emit(
            "watched",
            rank=int(self.notes.setdefault("rank", rank)),
            world_size=int(self.notes.setdefault("world_size", world)),
            frameworks=recorder.frameworks,
            loaders=[x.report() for x in {x.number: x for x in recorder.loaders.known.values()}.values()],
            wrapped=recorder.models.wrapped,
            optimizers=[_optimizer(w, recorder) for w in recorder.windows.values()],
            primary=None if primary is None else primary.number,
            parameters=[] if primary is None else primary.parameters.names(names),
            replicated=[] if primary is None else primary.parameters.replicated(),
            unreduced=[] if primary is None else _unreduced(recorder, primary, names),
            start_digests=self._start,
            claims=self.claims.found,
            counters=self.claims.counters,
            checkpoints=self.saves,
            evaluated={str(k): v for k, v in self._evaluated.items()},
            graphs_alive=sum(r() is not None for r in recorder.alive),
            collectives=self.sums,
            reductions=recorder.guard.call("reductions", recorder.models.reductions) or [],
            hooks={"calls": recorder.guard.calls, "cpu_s": recorder.guard.cpu_s},
            broken_hooks={k: v[-600:] for k, v in recorder.guard.broken.items()},
            threads=int(recorder_threads()),
            notes={k: v for k, v in self.notes.items() if k not in ("rank", "world_size")},
        )

    def finish(self, recorder: Recorder, how: str) -> None:
        """At exit; also for ranks that made no update but belong to a group."""
        world = recorder.distributed[1]
        if self.writer is None and (
            recorder.windows or (world > 1 and "RANK" in os.environ and recorder.loaders.known)
        ):
            self.begin(recorder)
        if self.writer is not None:
            self.notes["ended"] = how
            self.summary(recorder)

    def failed(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """An exception is about to end the process."""
        frames = traceback.extract_tb(trace)
        self.notes["exception"] = {
            "type": kind.__name__,
            "text": redact_text(str(error))[:400],
            "frames": [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[-6:]],
            "guard": guarded((f.filename, f.lineno or 0) for f in reversed(frames)),
        }


def recorder_threads() -> int:
    """Intra-operation threads of this process."""
    import torch

    return torch.get_num_threads()


def _values(recorder: Recorder, window: Window, losses: list[float]) -> dict[str, float]:
    now = time.perf_counter()
    synced = [b.synced for b in window.backs]
    table = [b.bypass for b in window.backs]
    return {
        "lr": rate(window.optimizer.param_groups),
        "loss_raw": sum(losses) / len(losses) if losses else math.nan,
        "loss_bad": float(any(x is not None and not math.isfinite(x) for x in (b.micro.value for b in window.backs))),
        "passes": float(len(window.backs)),
        "micro_batches": window.micro_batches(),
        "samples": window.samples(),
        # Without a backward pass nobody looked: the update does nothing, or the script sets gradients by hand.
        "zero_grads": float(window.cleared or window.updates == 0) if window.backs else math.nan,
        "scheduler_ticks": float(window.ticks) if "schedulers" in recorder.reporter.notes else math.nan,
        "synced_passes": float(sum(s is True for s in synced)) if any(s is not None for s in synced) else math.nan,
        "last_synced": math.nan if not synced or synced[-1] is None else float(synced[-1]),
        "bypassed": float(sum(table)),
        "clips": float(window.clips),
        "early_clips": float(window.early_clips),
        "local_clips": float(window.local_clips),
        "clip_norm": window.clip_norm,
        "clip_limit": window.clip_limit,
        "input_s": recorder.input_seconds(),
        **recorder.spent,
        "optimizer_s": max(0.0, now - window.entered - window.inside_s),
        "cpu_s": recorder.cpu_seconds(),
        "runqueue_s": recorder.runqueue_seconds(),
        "scale": window.backs[-1].scale if window.backs else math.nan,
        "rss_bytes": recorder.resident_bytes(),
        "graphs_alive": float(sum(r() is not None for r in recorder.alive)),
        "rng_digest": recorder.draws["before"],
        "rng_fetch_digest": recorder.draws["fetch"],
        "rng_forward_draws": recorder.draws["forward"],
        "rng_after": float(random_state.torch_stream()) if recorder.draws["before"] >= 0 else math.nan,
        **_moved(recorder),
        "lost_grads": float(window.lost) if window.parameters.sampling else math.nan,
        "unscaled": float(window.unscaled),
    }


def rate(groups: list[dict[str, Any]]) -> float:
    """Learning rate of the first group, unless that one stands still (a multiplier of 0) while others move."""
    rates = [float(g.get("lr", math.nan)) for g in groups]
    return next((x for x in rates if x), 0.0) if rates else math.nan


def _moved(recorder: Recorder) -> dict[str, float]:
    names = {"calls": "collective_calls", "bytes": "collective_bytes"}
    return {names.get(key, key): value for key, value in recorder.moved.items()}


def _data(window: Window) -> dict[str, Any]:
    """Samples of the window, slot by slot."""
    batches = window.batches()
    prints = [p for b in batches for p in (b.prints or [-1] * b.size)] or [p for x in window.backs for p in x.prints]
    indices = [i for b in batches for i in (b.indices or [-1] * b.size)]
    epochs = [b.loader * 100_000 + b.epoch for b in batches for _ in range(max(len(b.prints), len(b.indices), 1))]
    found = {"sample_ids": prints[:8192], "sample_index": indices[:8192], "sample_epoch": epochs[:8192]}
    return {k: v for k, v in found.items() if any(x != -1 for x in v)}


def _optimizer(window: Window, recorder: Recorder) -> dict[str, Any]:
    trainable = recorder.models.trainable()
    mine = {id(p) for p in window.parameters.items}
    now = {id(p) for g in window.optimizer.param_groups for p in g["params"]}
    held = {id(p) for w in recorder.windows.values() for g in w.optimizer.param_groups for p in g["params"]}
    with_grad = sum(p.grad is not None for p in window.parameters.items)
    return {
        "number": window.number,
        "type": type(window.optimizer).__name__,
        "updates": window.updates,
        "parameters": len(mine),
        "in_models": len(mine & set(trainable)),
        "in_groups": len(now),
        "with_grad": with_grad,
        "orphans": sum(i not in held and p.grad is not None for i, p in trainable.items()),
        "missing": sum(i not in held for i in trainable),
        "momentum": any(g.get("momentum") or "betas" in g for g in window.optimizer.param_groups),
        "state": len(window.optimizer.state),
    }


def _unreduced(recorder: Recorder, window: Window, names: dict[int, str]) -> list[str]:
    """Trainable parameters of a wrapped model that its wrapper does not know."""
    if not recorder.models.registered:
        return []
    missing = [p for p in window.parameters.items if p.requires_grad and id(p) not in recorder.models.registered]
    return [names.get(id(p), "?") for p in missing][:64]
