"""What can be known about a checkpoint: measured by the readers, judged by ``checks/checkpoint*.py``.

Nothing here is a verdict. A :class:`Fault` is an anomaly that a reader *measured* ("14 of 16 chunks cover the tensor");
what it means for somebody who wants to resume is decided by the checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

__all__ = [
    "AREAS",
    "Area",
    "CheckpointDiff",
    "CheckpointFacts",
    "Completion",
    "Difference",
    "Fault",
    "NameSeen",
    "OptimizerFacts",
    "Pointer",
    "Position",
    "Promise",
    "Sibling",
    "StepValue",
    "World",
]

#: The parts of a resumable training state, in the order in which reports list them.
AREAS = ("model", "optimizer", "step", "schedule", "sampler", "rng", "scaler")

#: What one unit of a step-like value is. ``process-update``: a scheduler that every process steps once per update.
Unit = Literal["update", "micro-batch", "sample", "process-update", "epoch", "token"]

#: How much a layout promises an area: ``required`` (its loader or its users need it), ``expected`` (a rich
#: checkpoint has
#: it), ``recomputed`` (the framework derives it on resume), ``unsaved`` (the framework never saves it).
Promise = Literal["required", "expected", "recomputed", "unsaved"]

MAX_FAULTS = 30
"""Of a coverage table: what a reader looks through; the findings hold them all."""

Purpose = Literal["training", "weights", "loader-state", "unknown"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fault(_Frozen):
    """One measured anomaly. ``kind`` is a stable dotted word (see ``checks/checkpoint.py`` for its meaning)."""

    kind: str
    text: str
    file: str | None = None
    key: str | None = None
    tensor: str | None = None
    rank: int | None = None
    measured: float | int | str | None = None
    limit: float | int | str | None = None
    unit: str | None = None


class Area(_Frozen):
    """Whether one area of :data:`AREAS` is there: ``count`` entries (tensors or values), under which keys, in which
    files."""

    name: str
    promise: Promise
    count: int = 0
    keys: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    note: str | None = None
    home: str | None = None
    """The file that should hold it."""

    @property
    def present(self) -> bool:
        return self.count > 0


class StepValue(_Frozen):
    """One number that counts progress, with the unit it counts in. ``tensor_of`` names the parameter of a per-
    parameter step.

    ``main`` marks the number from which the loader continues. ``lag`` says how many units below or above the main
    step the
    framework's own convention may put it.
    """

    name: str
    value: float
    unit: Unit
    file: str | None = None
    rank: int | None = None
    main: bool = False
    lag: tuple[int, int] = (0, 0)
    tensor_of: str | None = None


class Position(_Frozen):
    """A data position: how far a sampler or loader has read. ``samples`` and ``batches`` count on ``rank`` (None: one
    for all
    ranks, ``scope`` says whether it counts one rank's or all ranks' samples)."""

    name: str
    scope: Literal["rank", "global", "unknown"] = "unknown"
    samples: int | None = None
    batches: int | None = None
    epoch: int | None = None
    rank: int | None = None
    seed: bool = False
    replicas: int | None = None
    length: int | None = None
    file: str | None = None
    kind: str = "sampler"


class World(_Frozen):
    """How the job was laid out, with the source of each number ("args.world_size", "2 rng_state files")."""

    ranks: int | None = None
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    dataset: int | None = None
    sources: Mapping[str, str] = {}


class Completion(_Frozen):
    """Why the checkpoint is believed to be whole, or why nobody can say."""

    proven: bool | None
    proof: str


class OptimizerFacts(_Frozen):
    """Coverage of parameters by optimizer state. Names are parameter names, or shapes where a format keeps only
    numbers."""

    kind: str | None = None
    parameters: int = 0
    covered: int = 0
    declared: int | None = None
    missing: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    master: bool = False
    weight_dtypes: tuple[str, ...] = ()
    moment_dtypes: tuple[str, ...] = ()


class Pointer(_Frozen):
    """A file or link that names the checkpoint to resume from."""

    file: str
    target: str
    exists: bool
    complete: bool | None = None
    step: int | None = None


class Sibling(_Frozen):
    """Another checkpoint of the same root, looked at by names and tails only."""

    name: str
    step: int | None = None
    complete: bool | None = None
    reason: str = ""
    mtime: float | None = None
    areas: tuple[str, ...] = ()


class NameSeen(_Frozen):
    """A Python name that a pickle in the checkpoint mentions. ``known``: the inert reader has a harmless meaning for
    it."""

    path: str
    called: bool
    file: str
    count: int = 1
    known: bool = False


class CheckpointFacts(JsonEvidence):
    """One checkpoint, as far as the chosen level reads it."""

    kind: ClassVar[str] = "checkpoint"

    path: str
    layout: str
    level: Literal["names", "headers", "full"]
    purpose: Purpose = "training"
    rich: bool = False
    """True when the writer saves whole training states (schedule, RNG or data position), so gaps are losses."""
    selected: str | None = None
    world: World = World()
    completion: Completion = Completion(proven=None, proof="nothing was read")
    areas: tuple[Area, ...] = ()
    steps: tuple[StepValue, ...] = ()
    positions: tuple[Position, ...] = ()
    optimizer: OptimizerFacts | None = None
    pointers: tuple[Pointer, ...] = ()
    siblings: tuple[Sibling, ...] = ()
    faults: tuple[Fault, ...] = ()
    faults_left_out: int = 0
    names: tuple[NameSeen, ...] = ()
    skipped_updates: int = 0
    updates_per_epoch: int | None = None
    files: int = 0
    bytes: int = 0
    tensors: int = 0
    bytes_read: int = 0
    crcs_checked: int = 0
    tensors_scanned: int = 0
    target: World | None = None
    """The layout that the next job will have, when the caller said so."""
    facts: Mapping[str, Any] = {}

    def area(self, name: str) -> Area | None:
        return next((a for a in self.areas if a.name == name), None)

    def coverage(self) -> list[dict[str, Any]]:
        """What is there of what should be: rows of ``name``, ``share`` (0 to 1) and ``note``. Areas first (a gradient
        scaler, which most jobs lack, and what a framework recomputes only where they are stored), then up to 30 faults,
        the least covered first."""
        due = [a for a in self.areas if a.promise in ("required", "expected") and a.name != "scaler"]
        rows = [_area_row(a, self.optimizer) for a in self.areas if a.present or a in due]
        faults = sorted((_fault_row(f) for f in self.faults), key=lambda row: float(row["share"]))
        return [*rows, *faults[:MAX_FAULTS]]


def _area_row(area: Area, optimizer: OptimizerFacts | None) -> dict[str, Any]:
    if area.name == "optimizer" and area.present and optimizer is not None and optimizer.parameters:
        note = f"state of {optimizer.covered} of {optimizer.parameters} parameters"
        return {"name": area.name, "share": min(1.0, optimizer.covered / optimizer.parameters), "note": note}
    note = f"{area.count} entries" if area.present else f"nothing stored ({area.promise})"
    return {"name": area.name, "share": float(area.present), "note": note}


def _fault_row(fault: Fault) -> dict[str, Any]:
    name = fault.tensor or fault.key or fault.file or fault.kind
    share = 0.0
    if isinstance(fault.measured, int | float) and isinstance(fault.limit, int | float) and fault.limit > 0:
        share = min(1.0, max(0.0, fault.measured / fault.limit))
    return {"name": name, "share": share, "note": f"{fault.kind}: {fault.text}"}


class Difference(_Frozen):
    """One thing that differs. ``first_index`` locates the first differing element of a tensor."""

    name: str
    kind: Literal["dtype", "shape", "data", "value", "type"]
    text: str
    first_index: tuple[int, ...] | None = None


class CheckpointDiff(JsonEvidence):
    """Two checkpoints (or one and a manifest), compared logically."""

    kind: ClassVar[str] = "checkpoint-diff"

    a: str
    b: str
    comparable: bool = True
    reason: str = ""
    identical: bool = False
    compared: int = 0
    differences: tuple[Difference, ...] = ()
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
