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
from ddaudit.redact import redact_text
from ddaudit.watch.checkpoints import optimizer_steps
from ddaudit.watch.claims import Claims
from ddaudit.watch.kernel import Kernel
from ddaudit.watch.loaders import Batch
from ddaudit.watch.placement import parallelism, place
from ddaudit.watch.source import guarded
from ddaudit.watch.updates import Update, ask_kernel, event, seen
from ddaudit.watch.windows import Window

if TYPE_CHECKING:
    from ddaudit.watch.recorder import Recorder

__all__ = ["Reporter"]

MAX_EVALUATED = 2048
#: Updates after which an optimizer that was made later, and works alone since then, is another training.
ANOTHER = 8
#: How long an update between two recorded ones may wait to be written with others, where the user asked for a period.
PATIENCE_S = 0.5
#: Updates after which a summary is written, and the time after which another one is.
SUMMARIES = frozenset({0, 3, 15, 63, 255})
SUMMARY_S = 10.0


class Reporter:
    """Event file of one process. Opened at the first update, or at exit where there is something to tell."""

    def __init__(self, folder: Path, writer: EventWriter | None = None) -> None:
        self.folder = folder
        self.writer = writer
        self.claims = Claims()
        self.saves: list[dict[str, Any]] = []
        self.notes: dict[str, Any] = {}
        self.kernel = Kernel()
        self.norms = math.nan
        self.sums: dict[str, list[float]] = {}
        self._digests: list[int] = []
        self._start: list[int] = []
        self._grads: tuple[list[int], float] = ([], math.nan)
        self._names: tuple[int, list[str]] | None = None
        """Names of the parameters, as found among so many models."""
        self._evaluated: dict[int, dict[str, list[int]]] = {}
        self._waiting: list[Update] = []
        self._last = self._told = time.perf_counter()
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
        if recorder.attentive:
            self.claims.count(sys._getframe(2), window.updates, self._passes)
        self._passes += len(window.backs)
        update = seen(recorder, window, self._last)
        if recorder.whole:
            self._digest(update)
        if window.parameters.sampling:
            update.more["lost_grads"] = float(window.lost)
            update.lists["grad_slices"] = window.parameters.table()
        update.more["norm_digest"], self.norms = self.norms, math.nan
        self._grads = ([], math.nan)
        self._waiting.append(update)
        if recorder.attentive or recorder.sampling.every == 1 or update.at - self._waiting[0].at > PATIENCE_S:
            self.flush()
        self._last = time.perf_counter()
        if window.updates == 0:
            self.notes["first_optimizer_step"] = optimizer_steps(window.optimizer)
        if window.updates in SUMMARIES or self._last - self._told > SUMMARY_S:
            self.summary(recorder)

    def _digest(self, update: Update) -> None:
        parameters = update.window.parameters
        before, self._digests = self._digests, parameters.digests()
        update.more["changed"] = float(before != self._digests)
        if not any(hasattr(p, "_local_tensor") for p in parameters.items[:1]):
            update.more["param_digest"] = float(hash(tuple(self._digests)) & ((1 << 53) - 1))
        update.more["grad_norm"] = self._grads[1]
        update.lists |= {"param_digests": self._digests, "grad_digests": self._grads[0]}

    def flush(self) -> None:
        """Writes the updates that are not written yet."""
        waiting, self._waiting = self._waiting, []
        if waiting and self.writer is not None:
            ask_kernel(waiting, self.kernel)
            self.writer.emit_all([event(update) for update in waiting])

    def summary(self, recorder: Recorder) -> None:
        """Writes everything that is not per update; the last one counts."""
        if self.writer is None:
            return
        self.flush()
        self._told = time.perf_counter()
        rank, world = recorder.distributed
        primary = recorder.primary
        self.writer.emit(
            "watched",
            rank=int(self.notes.setdefault("rank", rank)),
            world_size=int(self.notes.setdefault("world_size", world)),
            frameworks=recorder.frameworks,
            loaders=[x.report() for x in {x.number: x for x in recorder.loaders.known.values()}.values()],
            wrapped=recorder.models.wrapped,
            optimizers=_optimizers(recorder),
            primary=None if primary is None else primary.number,
            **self._parameters(recorder),
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

    def _parameters(self, recorder: Recorder) -> dict[str, Any]:
        """Names of the recorded optimizer's parameters, which are those at the first update; whether each is whole;
        and which of them their wrapper does not reduce."""
        primary = recorder.primary
        if primary is None:
            return {"parameters": [], "replicated": [], "unreduced": []}
        missing = _unreduced(recorder, primary)
        if self._names is None or self._names[0] != len(recorder.models.roots) or missing:
            names = recorder.models.names()
            self._names = len(recorder.models.roots), primary.parameters.names(names)
            missing = [names.get(id(p), "?") for p in missing]
        return {"parameters": self._names[1], "replicated": primary.parameters.replicated(), "unreduced": missing}

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
        self.flush()
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


def _optimizers(recorder: Recorder) -> list[dict[str, Any]]:
    trainable = recorder.models.trainable()
    held = {id(p) for w in recorder.windows.values() for g in w.optimizer.param_groups for p in g["params"]}
    return [_optimizer(window, trainable, held) for window in recorder.windows.values()]


def _optimizer(window: Window, trainable: dict[int, Any], held: set[int]) -> dict[str, Any]:
    mine = {id(p) for p in window.parameters.items}
    now = {id(p) for g in window.optimizer.param_groups for p in g["params"]}
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


def _unreduced(recorder: Recorder, window: Window) -> list[Any]:
    """Trainable parameters of a wrapped model that its wrapper does not know."""
    known = recorder.models.registered
    return [p for p in window.parameters.items if p.requires_grad and id(p) not in known][:64] if known else []
