"""State that was zeroed: weights of zeros with moments that are not, and squares of zeros with a mean that is not.

A parameter whose gradients moved its moments was itself moved, and the average of squares of numbers that are not all
zero is not zero. Shards are compared by their recorded CRC32: that of zeros is known without reading them.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.model import Checkpoint, Chunk, Tensor
from ddaudit.checkpoint.roles import area_of, canonical_weight, group_of, is_second_moment, keras_slot, moment_of
from ddaudit.checkpoint.scan import TensorScan
from ddaudit.checkpoint.stream import Unreadable, blocks
from ddaudit.inert import Malformed

_FLOATS = ("float64", "float32", "float16", "bfloat16")
_MIN_ELEMENTS = 8
_RNG_BYTES = 5056  # of torch's CPU generator
_MIN_UPDATES = 2  # warm-up may begin at a rate of 0
_WITNESS_MAX_BYTES = 64 << 20
#: Smaller gradients have squares that float32 cannot hold, and move nothing: a first moment, and a second one.
_FIRST_LEAST, _SECOND_LEAST = 1e-15, 1e-30
_POLYNOMIAL = 0xEDB88320
_ONES = 0xFFFFFFFF
States = dict[tuple[str, str], dict[str, Tensor]]


def check_blank(made: Checkpoint, scans: dict[str, TensorScan], folder: Folder) -> None:
    """Notes every weight, master weight and second moment that is only zeros against the evidence of its moments."""
    for name, witness in witnesses(made).items():
        _compare(made, made.tensors[name], witness, scans, folder)


def strong(raw: Any, dtype: str, *, second: bool) -> bool:
    """True when a moment is large enough to have moved a weight, or to have a square."""
    if dtype == "bfloat16":
        numbers: Any = (np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        numbers = np.frombuffer(raw, dtype={"float32": "<f4", "float64": "<f8", "float16": "<f2"}[dtype])
    return bool((np.abs(numbers) >= (_SECOND_LEAST if second else _FIRST_LEAST)).any())


def _is_strong(witness: Tensor, chunk: Chunk | None, folder: Folder) -> bool:
    """Reads the moment, or its shard, until a number is large enough. Only asked where a tensor is blank."""
    second = is_second_moment(witness.name)
    part = witness
    if chunk is not None:
        alone = Chunk((0,) * len(chunk.shape), chunk.shape, chunk.file, chunk.span(), chunk.rank)
        part = Tensor(witness.name, witness.dtype, chunk.shape, [alone])
    if part.nbytes > _WITNESS_MAX_BYTES:
        return True
    try:
        return any(strong(block, part.dtype, second=second) for block in blocks(part, folder.opened_anew))
    except (Unreadable, Malformed, OSError, ValueError):
        return False


def witnesses(made: Checkpoint) -> dict[str, Tensor]:
    """Tensor -> the moment that cannot be other than zero where the tensor is: its values moved by it, or made of it.

    A first moment has none: it fades to zero long before the second does. Empty before the second update.
    """
    if max((s.value for s in made.steps if s.main), default=0.0) < _MIN_UPDATES:
        return {}
    pairs = [("second", "first")]
    if not _never_moved(made):
        pairs += [("weight", "second"), ("master", "second")]
    found: dict[str, Tensor] = {}
    for kinds in _states(made).values():
        for kind, witness in pairs:
            one, other = kinds.get(kind), kinds.get(witness)
            if one is None or other is None or not one.numel == other.numel >= _MIN_ELEMENTS:
                continue
            if kind == "second" or one.dtype != "float16":  # of small weights float16 makes zeros
                found[one.name] = other
    return found


def check_no_moments(made: Checkpoint, scans: dict[str, TensorScan]) -> None:
    """Second moments of zeros alone, after updates: they were saved before the first one, or were lost. And states of
    a random generator that are zeros, which none ever is."""
    for tensor in made.tensors.values():
        scan = scans.get(tensor.name)
        blank = scan is not None and scan.complete and not scan.nonzero
        if blank and tensor.dtype == "uint8" and tensor.numel >= _RNG_BYTES and area_of(tensor.name, True) == "rng":
            text = f"{tensor.name}: a generator's state of zeros alone"
            made.fault("rng.malformed", text, file=tensor.file, tensor=tensor.name, rank=tensor.rank)
    seconds = [t for t in made.tensors.values() if t.numel >= _MIN_ELEMENTS and is_second_moment(t.name)]
    mine = [scans[t.name] for t in seconds if t.name in scans and t.dtype in _FLOATS]
    counted = [s.value for s in made.steps if s.tensor_of is not None and "param_groups" not in s.name]
    step = max(counted, default=0.0)  # by the parameters' own counters: a group's also counts what never updated
    if len(mine) > 1 and step >= _MIN_UPDATES and all(s.complete and not s.nonzero for s in mine):
        text = f"all {len(mine)} second moments are only zeros at step {step:g}: the moments would start anew"
        file = seconds[0].file
        made.fault("optimizer.no-moments", text, file=file, tensor=seconds[0].name, measured=0, unit="element")


def _never_moved(made: Checkpoint) -> bool:
    """A group whose rate is and was 0 keeps zeros however much its moments move."""
    groups = [n.removesuffix("lr") for n, v in made.values.items() if n.endswith(".lr") and v.value == 0]
    begun = (made.values.get(f"{group}initial_lr") for group in groups if area_of(group) == "optimizer")
    return any(value is None or not value.value for value in begun)


def _states(made: Checkpoint) -> States:
    """(group, parameter) -> its weight, master weight and moments."""
    states: States = defaultdict(dict)
    for tensor in made.tensors.values():
        area = area_of(tensor.name, True)
        if tensor.dtype not in _FLOATS or area not in ("model", "optimizer"):
            continue
        group = group_of(tensor.name, area)
        owner, kind = tensor.name, "weight"
        if area == "optimizer":
            found, keras = moment_of(tensor.name), keras_slot(tensor.name)
            head, _, last = tensor.name.rpartition(".")
            if keras is not None:
                owner, kind = keras[0], "second" if keras[1] == "v" else "first"
            elif found is not None:
                owner, kind = found
            elif last == "fp32":
                owner, kind = head, "master"
            else:
                continue
            owner = ".".join(p for p in owner.split(".") if p not in ("optimizer", "optim", "state"))
        owner = owner.removeprefix(f"{group}.") if group else owner
        head, _, last = owner.rpartition(".")
        key = (f"{group}\0{head}", last) if last.isdigit() else (group, canonical_weight(owner))
        states[key].setdefault(kind, tensor)
    _join_numbered(states)
    return states


def _join_numbered(states: States) -> None:
    """torch.optim numbers its states in the order of the parameters, often matrices (with decay) before vectors:
    trusted where every shape bears it out."""
    for group in {g for g, owner in states if owner.isdigit()}:
        mine = [(int(o), kinds) for (g, o), kinds in states.items() if g == group and o.isdigit()]
        mine.sort(key=lambda item: item[0])
        plain = group.partition("\0")[0]
        weights = [kinds["weight"] for (g, _), kinds in states.items() if g == plain and "weight" in kinds]
        shapes = [next(iter(kinds.values())).shape for _, kinds in mine]
        split = [w for w in weights if len(w.shape) > 1] + [w for w in weights if len(w.shape) < 2]
        order = next((o for o in (weights, split) if [w.shape for w in o] == shapes), [])
        for (_, kinds), weight in zip(mine, order, strict=False):
            kinds["weight"] = weight


def _compare(made: Checkpoint, one: Tensor, other: Tensor, scans: dict[str, TensorScan], folder: Folder) -> None:
    mine, theirs = scans.get(one.name), scans.get(other.name)
    file, rank, where, part = one.file, one.rank, "", None
    if mine is not None and theirs is not None and mine.complete and theirs.complete and not mine.nonzero:
        blank = theirs.nonzero
    else:
        chunk, part = _blank_chunk(one, other)
        blank = chunk is not None
        if chunk is not None:
            file, rank, where = chunk.file, chunk.rank, f" in the shard at {list(chunk.offsets)}"
    if blank and _is_strong(other, part, folder):
        text = f"{one.name} holds only zeros{where}, but {other.name} does not: its values were lost"
        made.fault("values.zeroed", text, file=file, tensor=one.name, rank=rank, measured=0, unit="element")


def _blank_chunk(one: Tensor, other: Tensor) -> tuple[Chunk | None, Chunk | None]:
    """The first shard that is zeros by its checksum while the other tensor's shard of the same box is not, and that."""
    if len(one.chunks) < 2 or len(one.chunks) != len(other.chunks):
        return None, None
    boxes = {c.offsets: c for c in other.chunks}
    for chunk in one.chunks:
        theirs = boxes.get(chunk.offsets)
        if chunk.numel < _MIN_ELEMENTS or theirs is None:
            continue
        if _is_zeros(chunk, one) and _is_zeros(theirs, other) is False:
            return chunk, theirs
    return None, None


def _is_zeros(chunk: Chunk, tensor: Tensor) -> bool | None:
    """None where no checksum of exactly this chunk is recorded."""
    span = chunk.span() if chunk.placed else None
    if span is None or span.checksum is None or span.checksum.length != chunk.numel * tensor.item_bytes:
        return None
    return span.checksum.crc == zeros_crc(span.checksum.length) if span.checksum.length else None


@lru_cache(maxsize=4096)
def zeros_crc(length: int) -> int:
    """CRC32 (ISO 3309) of ``length`` zero bytes, in the time of log2(length) steps."""
    state, power = _ONES, 0
    while length >> power:
        if length >> power & 1:
            state = _apply(_zero_bytes(power), state)
        power += 1
    return state ^ _ONES


@cache
def _zero_bytes(power: int) -> tuple[int, ...]:
    """What 2**power zero bytes do to each bit of the CRC register: a matrix over GF(2), by columns."""
    if power:
        half = _zero_bytes(power - 1)
        return tuple(_apply(half, column) for column in half)
    columns = []
    for bit in range(32):
        state = 1 << bit
        for _ in range(8):
            state = state >> 1 ^ (_POLYNOMIAL if state & 1 else 0)
        columns.append(state)
    return tuple(columns)


def _apply(matrix: tuple[int, ...], state: int) -> int:
    made = 0
    for bit, column in enumerate(matrix):
        if state >> bit & 1:
            made ^= column
    return made
