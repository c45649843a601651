"""Two checkpoints, compared logically: whatever the sharding, the world size or the framework's file format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddaudit.checkpoint.collect import Collected, Options, collect
from ddaudit.checkpoint.identity import Identity, TensorId, identify, is_rng
from ddaudit.checkpoint.passes import Progress
from ddaudit.checkpoint.scan import TILE_BYTES
from ddaudit.checkpoint.stream import Unreadable, blocks
from ddaudit.checkpoint.values import index_of
from ddaudit.evidence.checkpoint import CheckpointDiff, Difference
from ddaudit.inert import Malformed

_SHOWN = 1000
_RUIN = (
    "file.truncated",
    "file.empty",
    "file.malformed",
    "file.zeros",
    "file.unreadable",
    "container.pickle",
    "complete.",
    "shard.",
    "tensor.",
    "safetensors.",
)


def compare_paths(a: str, b: str, jobs: int = 1, progress: Progress | None = None) -> CheckpointDiff:
    """Collects both with digests and compares them.

    Raises:
        CheckpointProblem: one of the paths cannot be opened at all.
    """
    options = Options(level="full", jobs=jobs, digest=True, progress=progress)
    first, second = collect(a, options), collect(b, options)
    try:
        return compare(first, second)
    finally:
        first.folder.close()
        second.folder.close()


def compare(a: Collected, b: Collected) -> CheckpointDiff:
    """Compares two collected checkpoints; the first differing element of each tensor is located."""
    one, two = identify(a), identify(b)
    reason = _why_not(a, one) or _why_not(b, two)
    found = compare_identities(one, two)
    located = []
    for difference in found["differences"]:
        if difference.kind == "data":
            difference = _locate(difference, a, b, one.tensors[difference.name], two.tensors[difference.name])
        located.append(difference)
    found["differences"] = tuple(located)
    return CheckpointDiff(a=a.facts.path, b=b.facts.path, comparable=not reason, reason=reason, **found)


def _why_not(collected: Collected, identity: Identity) -> str:
    """Why a checkpoint cannot be compared; "" when it can."""
    path = collected.facts.path
    ruin = next(
        (f for f in collected.facts.faults if f.kind.startswith(_RUIN) and f.kind != "complete.optional-missing"), None
    )
    if not identity.tensors and not identity.values:
        return f"{path}: {ruin.text if ruin is not None else 'nothing in it was understood'}"
    unread = [n for n, t in identity.tensors.items() if t.digest is None and t.dtype != "?"]
    if unread and ruin is not None:
        return f"{path}: {ruin.text}"
    return ""


def compare_identities(one: Identity, two: Identity) -> dict[str, Any]:
    """The fields of a CheckpointDiff that follow from two identities alone."""
    ignored = {f"{n}: {why}" for n, why in (*one.ignored.items(), *two.ignored.items())}
    only_a, only_b = _only(one, two, ignored), _only(two, one, ignored)
    differences = [*_tensors(one, two), *_values(one, two)]
    compared = len(one.tensors.keys() & two.tensors.keys()) + len(one.values.keys() & two.values.keys())
    return {
        "identical": not differences and not only_a and not only_b and compared > 0,
        "compared": compared,
        "differences": tuple(differences[:_SHOWN]),
        "only_in_a": tuple(only_a[:_SHOWN]),
        "only_in_b": tuple(only_b[:_SHOWN]),
        "ignored": tuple(sorted(ignored)[:_SHOWN]),
    }


def _only(mine: Identity, other: Identity, ignored: set[str]) -> list[str]:
    """Names that the other lacks. Random state is each rank's own; an alias of a tensor both have is no loss."""
    held = {t.digest for t in other.tensors.values() if t.digest}
    found = []
    for name in sorted((mine.tensors.keys() | mine.values.keys()) - (other.tensors.keys() | other.values.keys())):
        tensor = mine.tensors.get(name)
        if is_rng(name):
            ignored.add(f"{name}: random state of a rank that only one of them has")
        elif (
            tensor is not None and tensor.digest in held and name.startswith("model.") and _is_alias(name, tensor, mine)
        ):
            ignored.add(f"{name}: a tied alias of a tensor that both have")
        elif tensor is None and mine.values.get(name) in (None, {}, []):
            ignored.add(f"{name}: empty")
        else:
            found.append(name)
    return found


def _is_alias(name: str, tensor: TensorId, mine: Identity) -> bool:
    return any(n != name and t.digest == tensor.digest and t.shape == tensor.shape for n, t in mine.tensors.items())


def _tensors(one: Identity, two: Identity) -> Iterator[Difference]:
    for name in sorted(one.tensors.keys() & two.tensors.keys()):
        a, b = one.tensors[name], two.tensors[name]
        if a.dtype != b.dtype:
            yield Difference(name=name, kind="dtype", text=f"{a.dtype} and {b.dtype}")
        elif a.shape != b.shape and _numel(a) != _numel(b):
            yield Difference(name=name, kind="shape", text=f"{list(a.shape)} and {list(b.shape)}")
        elif a.digest is None or b.digest is None:
            if a.dtype != "?":
                yield Difference(name=name, kind="data", text="could not be read on both sides")
        elif a.digest != b.digest:
            yield Difference(name=name, kind="data", text="values differ")


def _numel(tensor: TensorId) -> int:
    size = 1
    for n in tensor.shape:
        size *= n
    return size


def _values(one: Identity, two: Identity) -> Iterator[Difference]:
    for name in sorted(one.values.keys() & two.values.keys()):
        a, b = one.values[name], two.values[name]
        if type(a) is not type(b) and not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            yield Difference(name=name, kind="type", text=f"{_short(a)} and {_short(b)}")
        elif a != b:
            yield Difference(name=name, kind="value", text=f"{_short(a)} and {_short(b)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _locate(difference: Difference, a: Collected, b: Collected, one: TensorId, two: TensorId) -> Difference:
    """Reads both tensors again from the first differing tile on, to the first differing element."""
    tile = next((i for i, (x, y) in enumerate(zip(one.tiles, two.tiles, strict=False)) if x != y), None)
    left, right = a.made.tensors.get(one.source), b.made.tensors.get(two.source)
    if tile is None or left is None or right is None or not left.item_bytes:
        return difference
    try:
        at = _first_difference(
            _from(blocks(left, a.folder.opened_anew), tile * TILE_BYTES),
            _from(blocks(right, b.folder.opened_anew), tile * TILE_BYTES),
        )
    except (Unreadable, Malformed, OSError):
        return difference
    if at is None:
        return difference
    index = index_of((tile * TILE_BYTES + at) // left.item_bytes, one.shape)
    text = f"values differ, the first at {list(index)}"
    return Difference(name=difference.name, kind="data", text=text, first_index=index)


def _from(stream: Iterator[memoryview], skip: int) -> Iterator[bytes]:
    """The stream without its first ``skip`` bytes, as copies (the stream reuses its buffer)."""
    for block in stream:
        if skip >= len(block):
            skip -= len(block)
            continue
        yield bytes(block[skip:])
        skip = 0


def _first_difference(left: Iterator[bytes], right: Iterator[bytes]) -> int | None:
    """Offset of the first differing byte of two streams with different block sizes."""
    import numpy as np

    at, a, b = 0, b"", b""
    while True:
        a = a or next(left, b"")
        b = b or next(right, b"")
        if not a or not b:
            return None
        size = min(len(a), len(b))
        if a[:size] != b[:size]:
            unequal = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
            return at + int(np.argmax(unequal))
        at, a, b = at + size, a[size:], b[size:]
