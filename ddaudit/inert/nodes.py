"""What an untrusted pickle is turned into: plain data, and inert nodes for everything that is code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Malformed(ValueError):
    """Bytes that do not follow their format; `offset` is where in the stream this was noticed."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason if offset is None else f"{reason} (at byte {offset:,})")
        self.reason = reason
        self.offset = offset


class Global:
    """The name of a Python object. Never imported, never resolved; equal names compare equal."""

    __slots__ = ("module", "name", "path")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name
        self.path = f"{module}.{name}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Global) and (self.module, self.name) == (other.module, other.name)

    def __hash__(self) -> int:
        return hash((self.module, self.name))

    def __repr__(self) -> str:
        return f"<global {self.path[:200]}>"


class Call:
    """A call that a real unpickler would have made: recorded, not made.

    `state` is what BUILD would have handed to the object, `items` what APPEND(S) and `pairs` what SETITEM(S) would
    have added.
    """

    __slots__ = ("args", "func", "items", "kwargs", "pairs", "state")

    def __init__(self, func: object, args: tuple[Any, ...], kwargs: dict[Any, Any] | None = None) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}

    @property
    def path(self) -> str:
        """Dotted name of what would have been called, or "?" when that is itself a computed value."""
        return self.func.path if isinstance(self.func, Global) else "?"

    def __repr__(self) -> str:
        return f"<call {self.path[:200]}>"


class Opaque:
    """A value kept out on purpose (too large, unhashable as a key, an extension code); `what` says which."""

    __slots__ = ("value", "what")

    def __init__(self, what: str, value: object = None) -> None:
        self.what = what
        self.value = value

    def __repr__(self) -> str:
        return f"<opaque {self.what[:200]}>"


class Persistent:
    """A persistent id that no reader gave a meaning to."""

    __slots__ = ("pid",)

    def __init__(self, pid: object) -> None:
        self.pid = pid

    def __repr__(self) -> str:
        return "<persistent id>"


class InertSet:
    """A set or frozenset, kept as the list of its members in stream order (members may be unhashable nodes)."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __repr__(self) -> str:
        return f"<set of {len(self.items)}>"


@dataclass(slots=True)
class PickleLimits:
    """Bounds on one pickle. A container (dict, list, tuple, call) costs up to 250 bytes of memory for one byte of
    file."""

    max_bytes: int = 1 << 30
    max_containers: int = 8_000_000
    bytes_per_container: int = 4  # real streams: 7 bytes and more for each container
    max_stack: int = 4_000_000
    max_seconds: float = 60.0

    def containers_for(self, length: int) -> int:
        return min(self.max_containers, 100_000 + length // self.bytes_per_container)


@dataclass(slots=True)
class PickleResult:
    """One pickle, read. `error` is None only when the stream was whole; `value` is meaningless otherwise.

    `globals` maps each dotted name that occurs to the offset of its first occurrence, also for a broken stream: a
    loader
    would already have run what stands before the break. `calls` are the names that would have been *called*.
    """

    value: Any = None
    end: int = 0
    error: Malformed | None = None
    globals: dict[str, int] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
