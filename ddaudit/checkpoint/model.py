"""The logical model: what every layout turns its files into.

Names are dotted paths of the nested state (``model.emb.weight``, ``optimizer.state.emb.weight.exp_avg``), whichever
framework wrote it and however it was sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ddaudit.evidence.checkpoint import Completion, Fault, Pointer, Position, Promise, StepValue
from ddaudit.inert import ITEM_BITS

MAX_FAULTS_PER_KIND = 50


@dataclass(slots=True)
class Checksum:
    """A CRC32 that the container recorded for ``length`` bytes at ``offset`` of a file."""

    file: str
    offset: int
    length: int
    crc: int
    member: str = ""


@dataclass(slots=True)
class Span:
    """Where a chunk's first element lies; ``stride`` (in items) is None for C order without gaps."""

    file: str
    offset: int
    stride: tuple[int, ...] | None = None
    checksum: Checksum | None = None
    swapped: bool = False


class Chunk:
    """A box of a tensor. ``span`` is a place in a file, or a function that finds it when the bytes are wanted."""

    __slots__ = ("_span", "file", "offsets", "rank", "shape")

    def __init__(
        self,
        offsets: tuple[int, ...],
        shape: tuple[int, ...],
        file: str,
        span: Span | Callable[[], Span | None] | None,
        rank: int | None = None,
    ) -> None:
        self.offsets = offsets
        self.shape = shape
        self.file = file
        self._span: Span | Callable[[], Span | None] | None = span
        self.rank = rank

    @property
    def placed(self) -> bool:
        """True once the place is known, so that asking for it reads nothing."""
        return not callable(self._span)

    def span(self) -> Span | None:
        """None when the bytes cannot be reached; the reason is then among the checkpoint's faults."""
        if callable(self._span):
            self._span = self._span()
        return self._span

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(slots=True)
class Tensor:
    """A logical tensor and its chunks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: list[Chunk] = field(default_factory=list)
    file: str = ""
    rank: int | None = None
    value: float | None = None  # of a tensor with one element
    alias: str | None = None  # another tensor over the very same bytes
    view: tuple[int, ...] | None = None  # the shape of the parameter, where ``shape`` is its flat length

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BITS.get(self.dtype, 0) // 8

    @property
    def nbytes(self) -> int:
        return self.numel * self.item_bytes


@dataclass(slots=True)
class Value:
    """A leaf that is no tensor: a number, text, bytes, or the name of an opaque object."""

    name: str
    value: Any
    file: str = ""
    rank: int | None = None


@dataclass(slots=True)
class Checkpoint:
    """Everything that reading found. Layouts fill it; nothing in it is judged."""

    layout: str
    purpose: str = "training"
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    steps: list[StepValue] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    pointers: list[Pointer] = field(default_factory=list)
    promises: dict[str, Promise] = field(default_factory=dict)
    promise_notes: dict[str, str] = field(default_factory=dict)
    extra_areas: dict[str, list[str]] = field(
        default_factory=dict
    )  # area -> files that hold it without tensors or values
    completion: Completion = field(default_factory=lambda: Completion(proven=None, proof="the format has no marker"))
    world: dict[str, tuple[int, str]] = field(default_factory=dict)
    names: dict[str, tuple[bool, str, int]] = field(default_factory=dict)
    checksums: list[Checksum] = field(default_factory=list)  # recorded for bytes that belong to no tensor
    directory_step: int | None = None
    skipped_updates: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    parameter_order: list[str] = field(default_factory=list)
    param_shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    archives: dict[str, str] = field(default_factory=dict)  # file -> the name that torch.save wrote into it
    said: dict[str, dict[str, int]] = field(default_factory=dict)  # fact of the layout -> source -> number

    def fault(self, kind: str, text: str, **where: Any) -> None:
        """Adds an anomaly; of each kind only the first ``MAX_FAULTS_PER_KIND`` are kept, the rest are counted."""
        seen = self.left_out.get(kind, 0)
        self.left_out[kind] = seen + 1
        if seen < MAX_FAULTS_PER_KIND:
            self.faults.append(Fault(kind=kind, text=text, **where))

    def know(self, fact: str, number: Any, source: str) -> None:
        """Records a fact about the job's layout; the first source wins, a later different one is an anomaly."""
        if type(number) is not int or number < 0:
            return
        known = self.world.setdefault(fact, (number, source))
        self.said.setdefault(fact, {}).setdefault(source, number)
        if known[0] != number:
            text = f"{fact} is {known[0]} by {known[1]} but {number} by {source}"
            self.fault("world.disagrees", text, key=fact, measured=number, limit=known[0])

    def add_tensor(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            self.fault("name.twice", f"{tensor.name} occurs twice", tensor=tensor.name, file=tensor.file)
            return
        self.tensors[tensor.name] = tensor
