"""The training trace: one schema for what a training run did, per rank and optimizer step.

The reference trainer and the watcher of a user's script fill the same trace, so the same checks judge both. Whatever a
source cannot know is absent (``None``, NaN, or -1 in id arrays), and a check that needs it says "not measured".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import Array, ArrayEvidence
from ddaudit.evidence.events import StepValues, Stream
from ddaudit.evidence.series import LISTS, SERIES
from ddaudit.evidence.stamps import stamp_arrays

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LISTS", "SERIES", "CheckpointWritten", "Job", "RankPlace", "TensorCapture", "TrainingTrace"]


class Job(BaseModel):
    """What the run was told to do, or claims to do. Sources leave unknown fields out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = "reference"
    parallel: str | None = None
    variant: str | None = None
    implementation: str | None = None
    world_size: int | None = None
    dp: int | None = None
    """Replicas that see different data (N), never the world size."""
    micro_batch: int | None = None
    """Samples of one micro-batch on one data-parallel replica (B_local)."""
    accumulation: int | None = None
    """Micro-batches per update on one replica (A); pipeline micro-batches count."""
    global_batch: int | None = None
    seq_len: int | None = None
    steps: int | None = None
    dataset_samples: int | None = None
    drop_last: bool | None = None
    shuffle: bool | None = None
    optimizer: str | None = None
    lr: float | None = None
    schedule: str | None = None
    warmup_steps: int | None = None
    clip_norm: float | None = None
    dtype: str | None = None
    seed: int | None = None
    vocab: int | None = None
    parameters: int | None = None
    flops_per_token: float | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    experts: int | None = None
    entropy_nats: float | None = None
    """Entropy rate of the data source: no honest loss stays below it."""
    loss_start_nats: float | None = None
    """Loss of the uniform guess, ln(vocab)."""
    grad_syncs_per_step: float | None = None
    """Rounds of gradient synchronisation that this parallelism needs per update; 0 when no replica exists."""
    resumed_from_step: int | None = None
    planted: str | None = None
    """The fault that was planted on purpose, for self-tests and drills."""


class RankPlace(BaseModel):
    """Where a rank ran and which coordinates it has. ``coords`` maps a mesh axis ("dp", "tp", ...) to its index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    host: str
    pid: int | None = None
    device: str = "cpu"
    coords: Mapping[str, int] = {}


class CheckpointWritten(BaseModel):
    """A checkpoint that the run saved or loaded: ``path`` is relative to the run folder where it lies inside it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    rank: int
    update: int
    action: str = "save"
    seconds: float | None = None
    sampler_position: int | None = None


@dataclass(frozen=True)
class TensorCapture:
    """One tensor as one rank saw it. ``role`` is "grad" (before clipping) or "param" (after the last update)."""

    rank: int
    step: int
    role: str
    name: str
    values: np.ndarray[Any, np.dtype[Any]]
    replicated: bool = True
    """False where other ranks hold other parts, so that copies need not be equal."""


@dataclass(frozen=True)
class TrainingTrace(ArrayEvidence):
    """A training run. Arrays: every recorded name of :data:`SERIES` with axes (rank, step), ``sample_ids`` with axes
    (rank, step, slot), and ``tensor/<n>`` captures that :attr:`tensors` decodes.
    """

    kind: ClassVar[str] = "training"

    @cached_property
    def job(self) -> Job:
        return Job.model_validate(self.facts["job"])

    @cached_property
    def ranks(self) -> tuple[RankPlace, ...]:
        """Places of the ranks, in the order of the rank axis."""
        return tuple(RankPlace.model_validate(r) for r in self.facts["ranks"])

    @cached_property
    def checkpoints(self) -> tuple[CheckpointWritten, ...]:
        return tuple(CheckpointWritten.model_validate(c) for c in self.facts.get("checkpoints", ()))

    @property
    def steps(self) -> Sequence[int]:
        """Optimizer-step numbers, in the order of the step axis (a resumed run does not start at 0)."""
        found: Sequence[int] = self.facts["steps"]
        return found

    def series(self, name: str) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Array [rank, step] of a :data:`SERIES` name, or None when no rank recorded it."""
        if name not in SERIES:
            raise KeyError(name)
        found = self.arrays.get(name)
        return None if found is None else found.values

    @property
    def sample_ids(self) -> np.ndarray[Any, np.dtype[Any]] | None:
        """Array [rank, step, slot] of dataset indices in the order read, -1 where unused; None if not recorded."""
        found = self.arrays.get("sample_ids")
        return None if found is None else found.values

    def array(self, name: str) -> np.ndarray[Any, np.dtype[Any]] | None:
        """An array of :data:`LISTS`, or None when no rank recorded it."""
        if name not in LISTS:
            raise KeyError(name)
        found = self.arrays.get(name)
        return None if found is None else found.values

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Global ranks of each group that ``stamp_group`` counts."""
        return tuple(tuple(ranks) for ranks in self.facts.get("groups", ()))

    @cached_property
    def wires(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        """Host -> interface -> bytes (received, sent) while the run trained, whoever caused them; empty if unknown."""
        told = self.facts.get("wires", {})
        return {h: {name: (int(n[0]), int(n[1])) for name, n in wires.items()} for h, wires in told.items()}

    def stamps(self) -> tuple[np.ndarray[Any, np.dtype[Any]], ...] | None:
        """Arrays [rank, step, slot] (group, arrived, left) of collectives in the order in which a rank met them, as
        :func:`~ddaudit.evidence.stamps.stamp_arrays` explains; None when none was stamped."""
        found = [self.arrays.get(name) for name in ("stamp_group", "arrived", "left")]
        return tuple(a.values for a in found if a is not None) if all(found) else None

    @cached_property
    def tensors(self) -> tuple[TensorCapture, ...]:
        """Captured gradients and parameters of every rank."""
        labels = self.facts.get("tensors", ())
        return tuple(
            TensorCapture(**label, values=self.arrays[f"tensor/{index}"].values) for index, label in enumerate(labels)
        )

    def brief(self) -> dict[str, Any]:
        """Facts without the labels of captured tensors, which only ``evidence.h5`` needs."""
        return {name: value for name, value in self.facts.items() if name != "tensors"}

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        mine = _one_a_rank(streams)
        job = next((e["job"] for s in mine for e in s.of("job")), None)
        if job is None:
            return None
        steps = sorted({int(e["step"]) for s in mine for e in s.of("step")})
        groups, stamps = stamp_arrays(mine, steps)
        arrays = _series(mine, steps) | stamps | _lists(mine, steps)
        labels, tensors = _tensors(mine)
        facts = {
            "job": job,
            "ranks": [s.of("rank")[0]["place"] for s in mine],
            "steps": steps,
            "checkpoints": [e["checkpoint"] for s in mine for e in s.of("checkpoint")],
            "tensors": labels,
            "groups": groups,
            "wires": {e["host"]: e["bytes"] for s in mine for e in s.of("wires")},
        }
        return cls(facts=facts, arrays=arrays | tensors)


def _one_a_rank(streams: Sequence[Stream]) -> list[Stream]:
    """Streams of ranks, in rank order. A process that a rank started may claim its number: the one that trained most
    speaks for the rank."""
    best: dict[int, Stream] = {}
    for stream in streams:
        if (head := stream.first("rank")) is not None:
            rank = int(head["place"]["rank"])
            if rank not in best or len(stream.of("step")) > len(best[rank].of("step")):
                best[rank] = stream
    return [best[rank] for rank in sorted(best)]


def _lists(streams: Sequence[Stream], steps: Sequence[int]) -> dict[str, Array]:
    """The :data:`LISTS` arrays, padded to their largest extent."""
    import numpy as np

    column = {step: index for index, step in enumerate(steps)}
    found: dict[str, dict[tuple[int, int], Any]] = {}
    for row, stream in enumerate(streams):
        for event in stream.of("step"):
            for name, values in event.get("lists", {}).items():
                if name in LISTS:
                    whole = LISTS[name][2] < 0
                    part = np.array(values, dtype=np.int64 if whole else np.float64)
                    found.setdefault(name, {})[row, column[int(event["step"])]] = part
    arrays = {}
    for name, parts in found.items():
        unit, axes, missing = LISTS[name]
        extent = [max(p.shape[i] for p in parts.values()) for i in range(len(axes) - 2)]
        kind = np.int64 if missing < 0 else np.float64
        table = np.full((len(streams), len(steps), *extent), missing, dtype=kind)
        for at, part in parts.items():
            place: tuple[Any, ...] = (*at, *(slice(0, n) for n in part.shape))
            table[place] = part
        arrays[name] = Array(table, unit, axes)
    return arrays


def _series(streams: Sequence[Stream], steps: Sequence[int]) -> dict[str, Array]:
    """Tables of every recorded series, NaN where a rank did not record a step; the last record of a step wins."""
    import numpy as np

    column = {step: index for index, step in enumerate(steps)}
    tables: dict[str, np.ndarray[Any, np.dtype[Any]]] = {}
    for row, stream in enumerate(streams):
        for names, at, numbers in _runs(stream, column):
            for name, index in names.items():
                if name in SERIES:
                    if name not in tables:
                        tables[name] = np.full((len(streams), len(steps)), np.nan)
                    tables[name][row, at] = numbers[:, index]
    arrays = {name: Array(table, SERIES[name][0], ("rank", "step")) for name, table in sorted(tables.items())}
    return arrays | _sample_ids(streams, column)


def _runs(
    stream: Stream, column: Mapping[int, int]
) -> Iterator[tuple[Mapping[str, int], list[int], np.ndarray[Any, np.dtype[Any]]]]:
    """Consecutive records of a rank that hold the same names, as (place of each name, columns, numbers [record, name]):
    a job of 4,096 ranks has a million of them. A step that was recorded again begins another run."""
    import numpy as np

    from ddaudit.jsonio import decode_number

    names: Mapping[str, int] = {}
    at: dict[int, None] = {}
    numbers: list[Any] = []
    for event in stream.of("step"):
        values, place = event["values"], column[int(event["step"])]
        row: Sequence[Any]
        if isinstance(values, StepValues):
            own, row = values.packed
        else:
            known = [name for name in values if name in SERIES]
            own, row = {name: i for i, name in enumerate(known)}, [decode_number(values[name]) for name in known]
        if at and (own is not names or place in at):
            yield names, list(at), np.array(numbers, dtype=np.float64)
            at, numbers = {}, []
        names = own
        at[place] = None
        numbers.append(row)
    if at:
        yield names, list(at), np.array(numbers, dtype=np.float64)


def _sample_ids(streams: Sequence[Stream], column: Mapping[int, int]) -> dict[str, Array]:
    """The array of dataset indices, -1 where a rank read fewer than others; empty where none were recorded. What does
    not fit 64 bits is damage and counts as not recorded."""
    import numpy as np

    read = {}
    for row, stream in enumerate(streams):
        for event in stream.of("step"):
            if "sample_ids" in event:
                with suppress(OverflowError):
                    read[row, column[int(event["step"])]] = np.array(event["sample_ids"], dtype=np.int64)
    if not read:
        return {}
    table = np.full((len(streams), len(column), max(len(v) for v in read.values())), -1, dtype=np.int64)
    for at, values in read.items():
        table[at][: len(values)] = values
    return {"sample_ids": Array(table, "sample", ("rank", "step", "slot"))}


def _tensors(streams: Sequence[Stream]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    labels: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    for stream in streams:
        rank = int(stream.of("rank")[0]["place"]["rank"])
        for event in stream.of("tensor"):
            label: dict[str, Any] = {k: event[k] for k in ("step", "role", "name", "replicated") if k in event}
            values = stream.tensor(event)
            arrays[f"tensor/{len(labels)}"] = Array(values, "1", tuple(f"dim{i}" for i in range(values.ndim)))
            labels.append({"rank": rank, **label})
    return labels, arrays
