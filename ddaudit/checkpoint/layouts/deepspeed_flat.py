"""Flat ZeRO partitions, cut back into parameters.

ZeRO 1/2: parameters of a group lie one behind the other in one flat run that the ranks cut into equal partitions, with
padding at the end. ZeRO 3: every parameter is cut into ``ceil(numel / ranks)`` pieces; piece ``r`` lies on rank ``r``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ddaudit.checkpoint.layouts.dcp import check_cover
from ddaudit.checkpoint.model import Checkpoint, Chunk, Span, Tensor
from ddaudit.evidence.checkpoint import StepValue
from ddaudit.inert import Record, Source, TensorRef, TorchFile

MAX_PARAMETERS = 1_000_000
_PADS_MAX, _PAD_ITEMS = 256, 4096


@dataclass(slots=True)
class Shard:
    """One optimizer file: data- and model-parallel rank, ZeRO stage, torch optimizer state, flat fp32 groups."""

    dp: int
    mp: int
    file: str
    stage: int
    base: dict[Any, Any]
    flat: Any
    slices: Any
    readable: bool = True
    found: TorchFile | None = None
    source: Source | None = None
    pieces: dict[str, list[TensorRef]] = field(default_factory=dict)

    def groups(self) -> dict[str, dict[int, TensorRef]]:
        """State name ("fp32", "exp_avg", ...) -> group number -> flat tensor."""
        found: dict[str, dict[int, TensorRef]] = {"fp32": {}}
        flat = self.flat if isinstance(self.flat, (list, tuple)) else [self.flat]
        for number, ref in enumerate(flat):
            if isinstance(ref, TensorRef):
                found["fp32"][number] = ref
        state = self.base.get("state")
        for number, entry in state.items() if isinstance(state, dict) else ():
            if isinstance(entry, dict) and type(number) is int:
                for word, ref in entry.items():
                    if isinstance(ref, TensorRef) and ref.shape and isinstance(word, str):
                        found.setdefault(word, {})[number] = ref
        return found

    def steps(self) -> Iterator[tuple[int, Any]]:
        state = self.base.get("state")
        for number, entry in state.items() if isinstance(state, dict) else ():
            if isinstance(entry, dict) and "step" in entry:
                yield number, entry["step"]


def state_name(tag: str, parameter: str, word: str) -> str:
    return f"{tag}optimizer.state.{parameter}.{word}"


def piece(shard: Shard, ref: TensorRef, start: int, length: int, at: int) -> Chunk | None:
    """Elements ``start .. start+length`` of a flat tensor, as the chunk that begins at element ``at`` of the
    parameter."""
    if ref.storage is None or shard.found is None or not ref.item_bytes:
        return None
    place = shard.found.storages.get(ref.storage.key)
    if place is None or (ref.offset + start + length) * ref.item_bytes > place.length:
        return None
    shift = shard.source.base[1] if shard.source is not None else 0
    offset = shift + place.offset + (ref.offset + start) * ref.item_bytes
    return Chunk((at,), (length,), shard.file, Span(shard.file, offset), shard.dp)


def note_flat(made: Checkpoint, shard: Shard, tag: str) -> None:
    """The flat tensors themselves: their checksums, and the steps of each rank and group."""
    from ddaudit.checkpoint.model import Checksum

    assert shard.found is not None
    for number, ref in shard.steps():
        value = read_scalar(shard, ref)
        if value is not None:
            name = f"{tag}optimizer.state.{number}.step"
            made.steps.append(
                StepValue(
                    name=name, value=value, unit="update", file=shard.file, rank=shard.dp, tensor_of=f"group {number}"
                )
            )
    for place in shard.found.storages.values():
        if place.crc is not None and place.length:
            made.checksums.append(Checksum(shard.file, place.offset, place.length, place.crc, place.member))


def read_scalar(shard: Shard, ref: Any) -> float | None:
    from ddaudit.checkpoint.scalars import decode

    if isinstance(ref, (int, float)) and not isinstance(ref, bool):
        return float(ref)
    if (
        not isinstance(ref, TensorRef)
        or ref.numel != 1
        or shard.found is None
        or shard.source is None
        or ref.storage is None
    ):
        return None
    place = shard.found.storages.get(ref.storage.key)
    if place is None or ref.extent * ref.item_bytes > place.length:
        return None
    return decode(shard.source.read(place.offset + ref.offset * ref.item_bytes, ref.item_bytes), ref.dtype)


def _check_equal(made: Checkpoint, shards: list[Shard], words: dict[int, dict[str, dict[int, TensorRef]]]) -> None:
    """All states of one group and rank are equally long and of the fp32 groups' dtype."""
    for shard in shards:
        groups = words[shard.dp]
        for word, by_group in groups.items():
            for number, ref in by_group.items():
                base = groups["fp32"].get(number)
                where = {"file": shard.file, "rank": shard.dp, "key": f"{word}[{number}]"}
                if base is not None and ref.numel != base.numel:
                    text = (
                        f"{shard.file}: {word} of group {number} has "
                        f"{ref.numel:,} elements, the weights have {base.numel:,}"
                    )
                    made.fault("optimizer.shape", text, measured=ref.numel, limit=base.numel, **where)
                elif base is not None and ref.dtype != base.dtype:
                    text = f"{shard.file}: {word} of group {number} is {ref.dtype}, the master weights are {base.dtype}"
                    made.fault("optimizer.dtype", text, measured=ref.dtype, limit=base.dtype, **where)


def _start(made: Checkpoint, tag: str, shards: list[Shard]) -> dict[int, dict[str, dict[int, TensorRef]]]:
    for shard in shards:
        note_flat(made, shard, tag)
    words = {shard.dp: shard.groups() for shard in shards}
    everything = {word for groups in words.values() for word in groups}
    for shard in shards:
        for word in sorted(everything - {w for w, g in words[shard.dp].items() if g}):
            text = f"{shard.file} has no {word}, other ranks have it"
            made.fault("optimizer.state-missing", text, file=shard.file, rank=shard.dp, key=word)
    _check_equal(made, shards, words)
    return words


def add_zero12(made: Checkpoint, tag: str, shards: list[Shard], groups: list[dict[str, Any]]) -> None:
    """Cuts ZeRO-1/2 partitions."""
    words = _start(made, tag, shards)
    order = sorted(shards, key=lambda s: s.dp)
    for word in sorted({w for g in words.values() for w in g}):
        for number, shapes in enumerate(groups):
            sliced = all(isinstance(s.slices, list) and len(s.slices) > number and s.slices[number] for s in order)
            cut = _by_slices(order, words, word, number) if sliced else _by_order(order, words, word, number, shapes)
            for parameter, shape in list(shapes.items())[:MAX_PARAMETERS]:
                _add(made, tag, parameter, word, shape, cut.get(parameter, []), words)


def _by_slices(
    order: list[Shard], words: Any, word: str, number: int
) -> dict[str, list[tuple[Shard, TensorRef, int, int, int]]]:
    """param_slice_mappings: on each rank, where in its partition a parameter's fragment lies. Ranks come in order."""
    cut: dict[str, list[tuple[Shard, TensorRef, int, int, int]]] = {}
    for shard in order:
        ref = words[shard.dp].get(word, {}).get(number)
        table = shard.slices[number]
        for parameter, address in table.items() if isinstance(table, dict) else ():
            fields = address.fields if isinstance(address, Record) else {}
            numel, start = fields.get("numel"), fields.get("start")
            if ref is None or type(numel) is not int or type(start) is not int or min(numel, start) < 0:
                continue
            parts = cut.setdefault(str(parameter), [])
            at = sum(p[3] for p in parts)
            parts.append((shard, ref, start, numel, at))
    return cut


def _by_order(order: list[Shard], words: Any, word: str, number: int, shapes: dict[str, Any]) -> dict[str, Any]:
    """The order of param_shapes over the concatenated partitions."""
    refs = [(s, words[s.dp].get(word, {}).get(number)) for s in order]
    cut: dict[str, Any] = {}
    rank, used, at = 0, 0, 0
    for parameter, shape in shapes.items():
        need, at = prod(shape) if isinstance(shape, tuple) else 0, 0
        while need and rank < len(refs):
            shard, ref = refs[rank]
            room = (ref.numel if ref is not None else 0) - used
            if room <= 0:
                rank, used = rank + 1, 0
                continue
            take = min(room, need)
            cut.setdefault(parameter, []).append((shard, ref, used, take, at))
            used, at, need = used + take, at + take, need - take
    return cut


def add_zero3(made: Checkpoint, tag: str, shards: list[Shard], groups: list[dict[str, Any]]) -> None:
    """Cuts ZeRO-3 partitions: flat groups of a rank are read one behind the other."""
    words = _start(made, tag, shards)
    order = sorted(shards, key=lambda s: s.dp)
    ranks = max([made.world.get("dp", (len(order), ""))[0], 1])
    shapes = {p: s for group in groups for p, s in group.items() if isinstance(s, tuple)}
    pads: list[tuple[int, int, int]] = []
    for word in sorted({w for g in words.values() for w in g}):
        cursor = {s.dp: [0, 0] for s in order}  # group number, elements used of it
        for parameter, shape in list(shapes.items())[:MAX_PARAMETERS]:
            numel = prod(shape)
            each = -(-numel // ranks)
            parts = []
            for shard in order:
                by_group = words[shard.dp].get(word, {})
                spot = cursor[shard.dp]
                while spot[0] in by_group and spot[1] + each > by_group[spot[0]].numel and spot[1]:
                    spot[0], spot[1] = spot[0] + 1, 0
                ref = by_group.get(spot[0])
                at = shard.dp * each
                length = max(0, min(each, numel - at))
                if ref is not None and length:
                    parts.append((shard, ref, spot[1], length, at))
                if word == "exp_avg_sq" and shard.dp == ranks - 1 and length < each:
                    pads.append((spot[0], spot[1] + length, each - length))
                spot[1] += each
            _add(made, tag, parameter, word, shape, parts, words)
    if len(order) == ranks:
        check_padding(made, order, {dp: groups.get("exp_avg_sq", {}) for dp, groups in words.items()}, pads)


def check_padding(
    made: Checkpoint, order: list[Shard], squares: dict[int, dict[int, TensorRef]], pads: list[tuple[int, int, int]]
) -> None:
    """ZeRO 3 pads the last rank's pieces. Padding has no gradient, so its second moment stays zero: where it does not,
    and another rank's file has zeros there, the files are exchanged.

    ``pads`` are (group, first element, elements) in the last rank's flat tensors.
    """

    def blank(shard: Shard) -> bool | None:
        raw = [_read_flat(shard, squares[shard.dp].get(group), at, n) for group, at, n in pads[:_PADS_MAX]]
        return None if None in raw or not raw else not any(r.strip(b"\0") for r in raw if r is not None)

    if len(order) < 2 or blank(order[-1]) is not False:
        return
    other = next((s for s in order[:-1] if blank(s)), None)
    if other is not None:
        text = f"{other.file} has the padding that rank {order[-1].dp} should have: the ranks' files are exchanged"
        made.fault("shard.exchanged", text, file=other.file, rank=other.dp, measured=order[-1].dp, limit=other.dp)


def _read_flat(shard: Shard, ref: TensorRef | None, start: int, count: int) -> bytes | None:
    """Up to ``_PAD_ITEMS`` elements of a flat tensor."""
    chunk = piece(shard, ref, start, min(count, _PAD_ITEMS), 0) if ref is not None else None
    span = chunk.span() if chunk is not None else None
    if ref is None or chunk is None or span is None or shard.source is None:
        return None
    outer, _ = shard.source.base
    return outer.read(span.offset, chunk.numel * ref.item_bytes)


def _add(made: Checkpoint, tag: str, parameter: str, word: str, shape: Any, parts: list[Any], words: Any) -> None:
    """The logical tensor of one parameter's state, and whether the fragments make it whole."""
    if not isinstance(shape, tuple):
        return
    numel = prod(shape)
    if not parts and not any(word in g for g in words.values()):
        return
    dtype = parts[0][1].dtype if parts else "float32"
    name = state_name(tag, parameter, word)
    tensor = Tensor(name, dtype, (numel,), file=parts[0][0].file if parts else "", view=shape)
    chunks = [piece(shard, ref, start, length, at) for shard, ref, start, length, at in parts]
    lost = [p for p, c in zip(parts, chunks, strict=True) if c is None]
    for shard, _, start, length, _ in lost[:1]:
        text = f"{name}: {length:,} elements at {start:,} lie beyond the end of the shard's buffer"
        made.fault("shard.out-of-bounds", text, file=shard.file, rank=shard.dp, tensor=name)
    tensor.chunks = [c for c in chunks if c is not None]
    if not lost:
        check_cover(made, tensor, [(c.offsets, c.shape) for c in tensor.chunks])
    made.add_tensor(tensor)
