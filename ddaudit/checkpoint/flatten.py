"""From nested objects to dotted names: an iterative walk with bounds on nodes, depth and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ddaudit.checkpoint.model import Tensor, Value
from ddaudit.checkpoint.reader import Reader
from ddaudit.inert import Call, InertSet, Malformed, NumpyArray, Opaque, Record, Source, TensorRef, TorchFile
from ddaudit.inert.source import BytesSource
from ddaudit.inert.torch_file import looks_like_torch
from ddaudit.inert.torch_objects import Generator

MAX_NODES = 2_000_000
MAX_DEPTH = 64
MAX_VISITS = 10_000  # of one shared container: doubling objects would take for ever
MAX_NAME = 1024
MAX_NESTED = 4
BEYOND = "larger or deeper than the limits of the walk"
_SCALARS = (int, float, str, bool, type(None), complex)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, leaf). Records and objects count as mappings of their attributes; shared parts are walked
    again,
    up to ``MAX_NODES`` in all, and a cycle ends at ``MAX_DEPTH``."""
    todo: list[tuple[str, Any, int]] = [(prefix, value, 0)]
    seen = 0
    visits: Counter[int] = Counter()
    while todo:
        name, node, depth = todo.pop()
        seen += 1
        if seen > MAX_NODES or depth > MAX_DEPTH or len(name) > MAX_NAME:
            yield name[:MAX_NAME], Opaque(BEYOND)
            if seen > MAX_NODES:
                return
            continue
        children = _children(node)
        if children is None:
            yield name, node
        else:
            visits[id(node)] += 1
            if visits[id(node)] > MAX_VISITS:
                yield name, Opaque(BEYOND)
                return
            todo += [(f"{name}.{key}" if name else str(key), child, depth + 1) for key, child in reversed(children)]


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    """Parts of a container, or None for a leaf. Lists of plain numbers or words are leaves."""
    if isinstance(node, dict):
        return [(_key(k), v) for k, v in node.items()] or None
    if isinstance(node, (list, tuple)):
        if all(isinstance(x, _SCALARS) for x in node[:100_000]):
            return None
        return list(enumerate(node))
    if isinstance(node, Record):
        return [(_key(k), v) for k, v in node.fields.items()] or None
    if isinstance(node, Call):
        state = node.state
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] if isinstance(state[0], dict) else {}), **state[1]}
        if isinstance(state, dict) and state:
            return [(_key(k), v) for k, v in state.items()]
        return [(_key(k), v) for k, v in node.pairs.items()] or None
    if isinstance(node, Generator):
        return [("state", node.state)]
    if isinstance(node, InertSet):
        return list(enumerate(node.items)) if any(not isinstance(x, _SCALARS) for x in node.items) else None
    return None


def _key(key: Any) -> str:
    return key if isinstance(key, str) else getattr(key, "path", None) or f"{key!r:.100}"


def add_tree(reader: Reader, value: Any, found: TorchFile | None, source: Source, prefix: str, file: str,
             rank: int | None = None, nested: int = 0) -> None:  # fmt: skip
    """Adds every leaf below ``value`` to the model under ``prefix``. Bytes that are pickles or archives are opened."""
    for name, leaf in leaves(value, prefix):
        if isinstance(leaf, TensorRef) and found is not None:
            reader.made.add_tensor(reader.tensor_of(leaf, found, source, name, file, rank))
        elif isinstance(leaf, bytes) and nested < MAX_NESTED and _packed(leaf):
            _add_packed(reader, leaf, name, file, rank, nested + 1)
        else:
            if isinstance(leaf, Opaque) and leaf.what == BEYOND:
                reader.made.fault("container.too-large", f"{file}: the object is {BEYOND}", file=file, key=name[:200])
            reader.made.values[name] = Value(name, _plain(leaf), file, rank)


def _packed(leaf: bytes) -> bool:
    return leaf[:4] == b"PK\x03\x04" or (
        leaf[:1] == b"\x80" and 2 <= leaf[1:2].ljust(1, b"\0")[0] <= 5 and leaf[-1:] == b"."
    )


def _add_packed(reader: Reader, leaf: bytes, name: str, file: str, rank: int | None, nested: int) -> None:
    source = BytesSource(leaf, file)
    try:
        if looks_like_torch(source):
            found = reader.torch_in(source, file, name)
            if found is not None:
                for inner, part in leaves(found.value, name):
                    _add_inner(reader, inner, part, found, leaf, file, rank, nested)
            return
        result = reader.pickle_in(leaf, file)
        if result is not None:
            add_tree(reader, result.value, None, source, name, file, rank, nested)
    except Malformed as error:
        reader.made.fault("container.pickle", f"{file} ({name}): {error}", file=file, key=name)


def _add_inner(
    reader: Reader, name: str, part: Any, found: TorchFile, raw: bytes, file: str, rank: int | None, nested: int
) -> None:
    """A leaf of an archive that itself lay in bytes: tensors have no place of their own in the file, so keep the raw
    bytes."""
    if isinstance(part, bytes) and _packed(part) and nested < MAX_NESTED:
        _add_packed(reader, part, name, file, rank, nested + 1)
    elif isinstance(part, TensorRef):
        place = found.storages.get(part.storage.key) if part.storage is not None else None
        data = raw[place.offset : place.offset + place.length] if place is not None else b""
        reader.made.values[name] = Value(name, data, file, rank)
    else:
        reader.made.values[name] = Value(name, _plain(part), file, rank)


def _plain(leaf: Any) -> Any:
    """A leaf in comparable form: numbers and words as they are, arrays as bytes, objects by name."""
    if isinstance(leaf, NumpyArray):
        data = leaf.data.encode("latin-1", "replace") if isinstance(leaf.data, str) else leaf.data
        return data if isinstance(data, bytes) else f"<{leaf.dtype} array>"
    if isinstance(leaf, InertSet):
        return sorted(map(str, leaf.items))
    if isinstance(leaf, Call):
        if len(leaf.args) == 1 and isinstance(leaf.args[0], _SCALARS):
            return leaf.args[0]  # an enum: its value
        return f"<{leaf.path}>"
    if isinstance(leaf, tuple):
        return list(leaf)
    return leaf if isinstance(leaf, (*_SCALARS, list, dict, bytes)) else repr(leaf)


__all__ = ["Tensor", "add_tree", "leaves"]
