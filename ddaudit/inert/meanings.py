"""The names that have a meaning here: an exact list of harmless constructors, each replaced by a function of ours.

Everything that is not on such a list stays a `Call`. The list is about *meaning*, not about danger: what may be
trusted is
judged elsewhere, from the names that a stream mentions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.inert.machine import Meaning, as_key
from ddaudit.inert.nodes import Call, Global, InertSet, Opaque


class Record:
    """An object known to be a plain bag of attributes (argparse.Namespace, dataclasses): `fields` are those
    attributes."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.fields: dict[Any, Any] = {}

    def inert_build(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] if isinstance(state[0], dict) else {}), **state[1]}  # (__dict__, __slots__ values)
        if isinstance(state, dict):
            self.fields.update(state)

    def __repr__(self) -> str:
        return f"<{self.kind} record>"


class NumpyArray:
    """A numpy array of plain dtype inside a pickle: its shape, dtype string ("<f8", "|u1") and raw bytes."""

    __slots__ = ("data", "dtype", "fortran", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype = "?"
        self.fortran = False
        self.data: Any = b""

    def inert_build(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 5 and isinstance(state[1], tuple):
            self.shape, self.fortran, self.data = state[1], bool(state[3]), state[4]
            self.dtype = str(state[2]) if isinstance(state[2], NumpyDtype) else "?"

    def __repr__(self) -> str:
        return f"<numpy {self.dtype} {self.shape!r:.60}>"


class NumpyDtype:
    """numpy.dtype: the code ("f8") and, after BUILD, the byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *_: object) -> None:
        self.code = code if isinstance(code, str) and len(code) < 64 else "?"
        self.order = "|"

    def inert_build(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = state[1]

    def __str__(self) -> str:
        return self.order + self.code


def _ordered_dict(*args: Any) -> dict[Any, Any]:
    if not args:
        return {}
    (pairs,) = args
    if isinstance(pairs, dict):
        return dict(pairs)
    return {as_key(key): value for key, value in pairs}


def _defaultdict(*_: Any) -> dict[Any, Any]:
    return {}


def _members(*args: Any) -> InertSet:
    items = args[0] if args else []
    if not isinstance(items, (list, tuple)):
        raise TypeError
    return InertSet(list(items))


def _list(*args: Any) -> list[Any]:
    items = args[0] if args else []
    if not isinstance(items, (list, tuple)):
        raise TypeError
    return list(items)


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise ValueError
    return text.encode(encoding)


def _bytes(*args: Any) -> bytes:
    if not args:
        return b""
    if isinstance(args[0], bytes):
        return args[0]
    if isinstance(args[0], str):
        return _encode(args[0], args[1])
    if isinstance(args[0], list) and all(isinstance(i, int) and 0 <= i < 256 for i in args[0]):
        return bytes(args[0])
    raise TypeError


def _path(*parts: Any) -> str:
    if not all(isinstance(part, str) for part in parts):
        raise TypeError
    return parts[0].rstrip("/") + "/" + "/".join(parts[1:]) if len(parts) > 1 else "".join(parts)


def _complex(real: float, imaginary: float) -> complex:
    return complex(real, imaginary)


def _numpy_array(*_: Any) -> NumpyArray:
    return NumpyArray()


def _numpy_scalar(dtype: Any, raw: Any = None) -> Any:
    """numpy.core.multiarray.scalar(dtype, bytes): the Python number for plain little-endian dtypes."""
    import struct

    codes = {
        "f8": "d",
        "f4": "f",
        "i8": "q",
        "i4": "i",
        "u8": "Q",
        "u4": "I",
        "i2": "h",
        "u2": "H",
        "b1": "?",
        "u1": "B",
        "i1": "b",
    }
    if isinstance(raw, str):
        raw = raw.encode("latin-1")
    return struct.unpack("<" + codes[dtype.code], raw)[0]


def _int(*args: Any) -> int:
    if args and isinstance(args[0], int):
        return args[0]
    raise TypeError


def _reconstructor(kind: Any, base: Any, _state: Any) -> Any:
    """copyreg._reconstructor(cls, object, None): protocol 0 and 1 instances."""
    if isinstance(kind, Global) and isinstance(base, Global) and base.path in ("builtins.object", "__builtin__.object"):
        return RECORDS[kind.path]() if kind.path in RECORDS else Call(kind, ())
    raise TypeError


def _record(kind: str) -> Meaning:
    def build(*_: Any) -> Record:
        return Record(kind)

    return build


RECORDS: dict[str, Meaning] = {name: _record(name) for name in ("argparse.Namespace", "types.SimpleNamespace")}

PLAIN: Mapping[str, Meaning] = {
    **RECORDS,
    "collections.OrderedDict": _ordered_dict,
    "collections.defaultdict": _defaultdict,
    "collections.Counter": _ordered_dict,
    "collections.deque": _list,
    "copyreg._reconstructor": _reconstructor,
    "copy_reg._reconstructor": _reconstructor,
    "_codecs.encode": _encode,
    **{f"{b}.{n}": f for b in ("builtins", "__builtin__") for n, f in (
        ("set", _members), ("frozenset", _members), ("list", _list), ("bytearray", _bytes), ("bytes", _bytes),
        ("dict", _ordered_dict), ("complex", _complex), ("int", _int))},
    **{f"pathlib.{kind}": _path for kind in (
        "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path")},
    **{f"pathlib._local.{kind}": _path for kind in ("PosixPath", "PurePosixPath", "WindowsPath")},
    **{f"numpy.{core}.multiarray._reconstruct": _numpy_array for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": _numpy_scalar for core in ("core", "_core")},
    "numpy.dtype": NumpyDtype,
}  # fmt: skip

__all__ = ["PLAIN", "RECORDS", "NumpyArray", "NumpyDtype", "Opaque", "Record"]
