"""What tensor values say: NaN, Inf, negative squares, zero blocks, tied and repeated weights, names and dtypes of
weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import area_of, has_wrapper, is_second_moment
from ddaudit.checkpoint.scan import TensorScan

_SHARD_MIN_BYTES = 256


def index_of(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of the ``flat``-th element in C order."""
    found = []
    for size in reversed(shape):
        flat, at = divmod(flat, max(size, 1))
        found.append(at)
    return tuple(reversed(found))


def check_scans(made: Checkpoint, scans: dict[str, TensorScan]) -> None:
    """Turns counts into faults with place and number."""
    for name, scan in scans.items():
        tensor = made.tensors.get(name)
        if tensor is None:
            continue
        area = area_of(name, True)
        where: dict[str, Any] = {"file": tensor.chunks[0].file if tensor.chunks else tensor.file, "tensor": name}
        bad = scan.nan + scan.inf
        if bad and area in ("model", "optimizer"):
            at = list(index_of(scan.first_bad or 0, tensor.view or tensor.shape))
            text = f"{name}: {scan.nan:,} NaN and {scan.inf:,} Inf of {tensor.numel:,} elements, the first at {at}"
            made.fault(f"values.not-finite-{area}", text, measured=bad, limit=0, unit="element", key=str(at), **where)
        if scan.negative and is_second_moment(name):
            text = f"{name}: {scan.negative:,} elements are negative; an average of squares cannot be"
            made.fault("values.negative-square", text, measured=scan.negative, limit=0, unit="element", **where)
        if scan.zero_blocks and area == "model" and len(tensor.shape) > 1:
            text = f"{name}: {scan.zero_blocks} blocks of zeros amid other values"
            made.fault("values.zero-block", text, measured=scan.zero_blocks, limit=0, unit="block", **where)


def check_ties(made: Checkpoint, scans: dict[str, TensorScan]) -> None:
    """A head without moments was taken for the embedding itself; other values mean that its moments are lost."""
    for head, embedding in made.facts.get("tie_assumed", ()):
        one, two = scans.get(head), scans.get(embedding)
        if one is not None and two is not None and one.digest and two.digest and one.digest != two.digest:
            text = f"{head} has no optimizer state, and it is not tied to {embedding}: their values differ"
            made.fault("optimizer.uncovered", text, tensor=head, measured=1, limit=0, unit="parameter")


def check_weights(made: Checkpoint, scans: dict[str, TensorScan]) -> None:
    """Names, dtypes, ties and repeated shards of the weights."""
    weights = [t for t in made.tensors.values() if area_of(t.name, True) == "model"]
    _check_wrappers(made, weights)
    _check_config(made, weights, scans)
    _check_empty(made, weights)
    _check_repeated(made, weights)
    _check_master_kept(made, weights)


def _check_wrappers(made: Checkpoint, weights: list[Tensor]) -> None:
    """A wrapper prefix on some names but not on others: half of them will not be found."""
    groups: dict[str, Counter[str | None]] = defaultdict(Counter)
    for tensor in weights:
        groups[f"{tensor.file}"][has_wrapper(tensor.name)] += 1
    for file, counts in groups.items():
        used = {w for w in counts if w is not None}
        if (
            used
            and None in counts
            and counts[None] < sum(counts.values())
            and min(counts.values()) * 20 < sum(counts.values()) * 10
        ):
            text = f"{file}: {counts[None]} weights have no prefix, the others carry {', '.join(sorted(used))}"
            made.fault("weights.mixed-prefix", text, file=file, measured=counts[None], limit=0, unit="tensor")


def _check_config(made: Checkpoint, weights: list[Tensor], scans: dict[str, TensorScan]) -> None:
    config = made.facts.get("config", {})
    wanted = str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch.")
    floats = Counter(t.dtype for t in weights if t.dtype in ("float32", "bfloat16", "float16"))
    if wanted in ("float32", "bfloat16", "float16") and floats and floats.most_common(1)[0][0] != wanted:
        have = floats.most_common(1)[0][0]
        made.fault(
            "weights.dtype-drift",
            f"config.json says {wanted}, the weights are {have}",
            measured=have,
            limit=wanted,
            file="config.json",
        )
    if config.get("tie_word_embeddings") is True and scans:
        head = next((t for t in weights if t.name.endswith("lm_head.weight")), None)
        embedding = next(
            (t for t in weights if t.name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight"))),
            None,
        )
        if head is not None and embedding is not None:
            one, two = scans.get(head.name), scans.get(embedding.name)
            if one is not None and two is not None and one.digest and one.digest != two.digest:
                text = (
                    f"config.json ties {head.name} to {embedding.name}, "
                    "but their values differ: loading drops one of them"
                )
                made.fault("weights.tie-broken", text, file=head.file, tensor=head.name)


def _check_empty(made: Checkpoint, weights: list[Tensor]) -> None:
    """Size-0 weights in an export are ZeRO-3 placeholders."""
    empty = [t for t in weights if t.shape == (0,)]
    exported = all(t.file.endswith((".safetensors", ".bin")) for t in empty)
    if empty and exported and len(empty) * 4 > len(weights):
        text = (
            f"{len(empty)} of {len(weights)} weights have no elements ({empty[0].name}): ZeRO-3 placeholders were saved"
        )
        made.fault(
            "weights.empty", text, file=empty[0].file, tensor=empty[0].name, measured=len(empty), limit=0, unit="tensor"
        )


def _check_repeated(made: Checkpoint, weights: list[Tensor]) -> None:
    """Two shards of one tensor with the same CRC hold the same bytes: one rank's part was written twice."""
    for tensor in weights:
        if len(tensor.chunks) < 2 or len(tensor.chunks) > 4096 or len(tensor.shape) < 2:
            continue
        seen: dict[tuple[int, int], Any] = {}
        for chunk in tensor.chunks:
            span = chunk.span() if chunk.placed else None
            if (
                span is None
                or span.checksum is None
                or span.checksum.length < _SHARD_MIN_BYTES
                or not span.checksum.crc
            ):
                continue
            key = (span.checksum.crc, span.checksum.length)
            other = seen.setdefault(key, chunk)
            if other is not chunk and made.facts.get("varied", {}).get(tensor.name, True):
                text = (
                    f"{tensor.name}: the shards at {list(other.offsets)} and {list(chunk.offsets)} hold the same bytes"
                )
                made.fault("shard.repeated", text, tensor=tensor.name, file=chunk.file, rank=chunk.rank)
                break


def _check_master_kept(made: Checkpoint, weights: list[Tensor]) -> None:
    """16-bit weights with 32-bit moments, and no 32-bit copy of the weights anywhere."""
    floats = [t for t in weights if t.dtype in ("bfloat16", "float16", "float32") and t.numel > 1]
    low = [t for t in floats if t.dtype != "float32"]
    moments = [t for t in made.tensors.values() if area_of(t.name) == "optimizer" and t.name.endswith("exp_avg")]
    master = any(
        part in t.name.split(".")
        for t in made.tensors.values()
        if area_of(t.name) == "optimizer"
        for part in ("fp32", "param", "master", "fp32_param", "fp32_from_fp16_params", "fp32_from_float16_params")
    )
    if low and len(low) == len(floats) and moments and all(t.dtype == "float32" for t in moments) and not master:
        text = f"weights are {low[0].dtype} and moments float32, but no float32 master weights are stored"
        made.fault("weights.no-master", text, measured=low[0].dtype, limit="float32")
