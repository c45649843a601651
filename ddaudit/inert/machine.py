"""The pickle machine: every opcode of protocols 0 to 5, none of which imports or calls anything.

Each handler takes the machine and the position behind its opcode byte, and returns the position of the next opcode.
Values that would be code become `Global`, `Call` and friends; values share structure exactly as the stream says, so a
doubling "billion laughs" costs its own length and no more.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

from ddaudit.inert.fetched import fetched
from ddaudit.inert.nodes import Call, Global, InertSet, Malformed, Opaque, Persistent, PickleLimits, PickleResult

Handler = Callable[["Machine", int], int]
Meaning = Callable[..., Any]
_U16, _I32, _U32, _U64, _F64 = (struct.Struct(f).unpack_from for f in ("<H", "<i", "<I", "<Q", ">d"))
_STEP = 4096  # opcodes between two looks at the clock and the budgets
_LONG_MAX_BYTES = 256  # int-to-text is quadratic; no framework stores larger numbers
_LINE_MAX = 4096
_KEY_NODES_MAX = 64
GETATTR = ("builtins.getattr", "__builtin__.getattr")


class Stop(Exception):
    """The STOP opcode; `end` is the position behind it."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class Machine:
    """State of one run: the stream, the value stack with its marks, the memo, and what was seen."""

    __slots__ = (
        "data",
        "deadline",
        "kept",
        "limits",
        "marks",
        "meanings",
        "memo",
        "result",
        "room",
        "sparse",
        "stack",
        "storage",
    )

    def __init__(
        self, data: bytes, meanings: Mapping[str, Meaning], limits: PickleLimits, storage: Meaning | None
    ) -> None:
        self.data = data
        self.meanings = meanings
        self.limits = limits
        self.storage = storage
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: list[Any] = []
        self.kept = fetched(data)
        self.sparse: dict[int, Any] = {}
        self.room = limits.containers_for(len(data))
        self.deadline = time.monotonic() + limits.max_seconds
        self.result = PickleResult()

    def run(self, pos: int) -> None:
        """Executes from `pos` to STOP; raises `Malformed` for anything else. The value is `result.value`."""
        data, table = self.data, TABLE
        try:
            while True:
                for _ in range(_STEP):
                    pos = table[data[pos]](self, pos + 1)
                self.check(pos)
        except Stop as stop:
            self.result.end = stop.end
            self.result.value = self.stack.pop() if self.stack else None
        except (IndexError, struct.error):
            what = "the stream ends too early" if pos >= len(data) - 9 else "the stack is empty or the stream is cut"
            raise Malformed(what, pos) from None
        except (UnicodeDecodeError, OverflowError, ValueError, TypeError, AttributeError) as error:
            if isinstance(error, Malformed):
                raise
            raise Malformed(f"an operand is not what its opcode needs: {type(error).__name__}", pos) from None

    def check(self, pos: int) -> None:
        if self.room < 0:
            raise Malformed("more containers than a file of this length can hold", pos)
        if len(self.stack) > self.limits.max_stack or len(self.marks) > self.limits.max_stack:
            raise Malformed("the stack is deeper than the limit", pos)
        if len(self.sparse) > self.limits.max_containers:
            raise Malformed("more memo entries than the limit", pos)
        if time.monotonic() > self.deadline:
            raise Malformed(f"reading took longer than {self.limits.max_seconds:g} s", pos)

    def memorable(self, index: int) -> Any:
        """What the memo keeps at ``index``: the value on top, or nothing where no opcode can read it back."""
        kept = self.kept
        return self.stack[-1] if kept is None or kept[index >> 3] >> (index & 7) & 1 else None

    def take(self, pos: int, length: int) -> bytes:
        """The next `length` bytes, checked against what is there before anything is allocated."""
        if length < 0 or length > len(self.data) - pos:
            raise Malformed(f"a length of {length:,} goes beyond the end", pos)
        return self.data[pos : pos + length]

    def line(self, pos: int) -> tuple[bytes, int]:
        end = self.data.find(b"\n", pos, pos + _LINE_MAX)
        if end < 0:
            raise Malformed("a text operand has no end", pos)
        return self.data[pos:end], end + 1

    def pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def see(self, module: object, name: object, pos: int) -> Global:
        """Records a name; a name that is itself a computed value is kept as "?"."""
        node = Global(module if isinstance(module, str) else "?", name if isinstance(name, str) else "?")
        if len(self.result.globals) < 10_000:
            self.result.globals.setdefault(node.path, pos)
        return node

    def call(self, func: object, args: Any, kwargs: Any = None) -> Any:
        """What `func(*args)` would give, if it has a meaning here; a `Call` otherwise."""
        self.room -= 1
        if not isinstance(args, tuple):
            raise Malformed("a call without an argument tuple")
        path = func.path if isinstance(func, Global) else "?"
        if path not in self.result.calls:
            self.result.calls.add(path)
        if path in GETATTR and len(args) == 2 and isinstance(args[0], Global) and isinstance(args[1], str):
            return self.see(args[0].module, f"{args[0].name}.{args[1]}", 0)  # how nested classes were pickled
        meaning = self.meanings.get(path)
        if meaning is not None and not kwargs:
            try:
                return meaning(*args)
            except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError):
                self.result.notes.append(f"{path} has arguments of an unknown form")
        return Call(func, args, kwargs if isinstance(kwargs, dict) else None)


def as_key(key: Any) -> Any:
    """A dict key that is cheap to hash. Large or strange keys are wrapped, so that they hash by identity.

    Tuples do not cache their hash: a shared, doubling tuple would take exponential time.
    """
    kind = type(key)
    if kind is str or key is None or kind is bool or kind is float or kind is bytes:
        return key
    if kind is int:
        return key if -(1 << 60) < key < (1 << 60) else Opaque("large integer key", key)
    if kind is tuple:
        todo, seen = list(key), 0
        while todo:
            seen += 1
            part = todo.pop()
            if seen > _KEY_NODES_MAX or isinstance(part, (list, dict, bytearray)):
                return Opaque("tuple key", key)
            if type(part) is tuple:
                todo.extend(part[:_KEY_NODES_MAX])
                seen += max(0, len(part) - _KEY_NODES_MAX)
        return key
    by_identity = isinstance(key, (Global, Call, Opaque, Persistent)) or hasattr(kind, "inert_key")
    return key if by_identity else Opaque(f"{kind.__name__} key", key)


def _unknown(m: Machine, pos: int) -> int:
    raise Malformed(f"0x{m.data[pos - 1]:02x} is no pickle opcode", pos - 1)


TABLE: list[Handler] = [_unknown] * 256
LONG_MAX_BYTES = _LONG_MAX_BYTES
U16, I32, U32, U64, F64 = _U16, _I32, _U32, _U64, _F64


def opcode(code: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        TABLE[code[0]] = handler
        return handler

    return register


def add_items(target: Any, items: list[Any], m: Machine, pos: int) -> None:
    """APPEND(S) and ADDITEMS on whatever the stream put there."""
    if isinstance(target, list):
        target.extend(items)
    elif isinstance(target, (Call, InertSet)):
        target.items.extend(items)
    else:
        m.result.notes.append(f"items are appended to {type(target).__name__} at byte {pos:,}")


def set_pairs(target: Any, flat: list[Any], m: Machine, pos: int) -> None:
    """SETITEM(S); a target that is no mapping is what the heap corruption of CVE-2026-24747 started from."""
    if len(flat) % 2:
        raise Malformed("a key without a value", pos)
    table = target if isinstance(target, dict) else target.pairs if isinstance(target, Call) else None
    if table is None:
        raise Malformed(f"a key is set on {type(target).__name__}, which has none", pos)
    for at in range(0, len(flat), 2):
        key = flat[at]
        table[key if type(key) is str else as_key(key)] = flat[at + 1]
        if at & 0x1FFF == 0x1FFE:
            m.check(pos)
