"""What makes two checkpoints the same: canonical names, canonical digests, and what is left out of the comparison,
with why."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import xxhash

from ddaudit.checkpoint.collect import Collected
from ddaudit.checkpoint.roles import WRAPPERS, area_of, canonical_weight, strip_area

#: Names whose values say where or how, not what: pattern -> reason.
VOLATILE: tuple[tuple[str, str], ...] = (
    (r"(^|\.)(save_id|checkpoint_id|load_id|uuid|run_id)$", "an identifier of the save"),
    (r"(^|\.)(output_dir|dirpath|best_model_path|last_model_path|kth_best_model_path|checkpoint_dir|save_dir|logging_dir|"
     r"resume_from_checkpoint|_name_or_path)$", "a path of the machine that saved"),
    (r"(^|\.)(ds_version|transformers_version|torch_version|pytorch-lightning_version|composer_version)$",
     "a library version"),
    (r"(^|\.)(world_size|dp_world_size|mp_world_size|data_parallel_size|tensor_model_parallel_size|num_replicas|"
     r"pipeline_model_parallel_size|context_parallel_size|expert_model_parallel_size|local_rank|rank|node_rank)$",
     "describes the job's layout"),
    (r"^(optimizer\.dp\d+mp\d+|loss_scaler\.dp\d+mp\d+|mp\d+\.dp\d+|dp\d+|optimizer\.universal)\.", "one rank's copy"),
    (r"(^|\.)(checkpoint_parallel_dimensions|zero_stage|partition_count)(\.|$)", "describes the sharding"),
    (r"^(mp_rank_\d+(_\d+)*\.)?args\.(?!consumed|iteration|lr$|seed$)", "an argument of the run, not its state"),
    (r"^state\.metadata\.", "describes the job"),
)  # fmt: skip
_VOLATILE = [(re.compile(pattern), why) for pattern, why in VOLATILE]


@dataclass(slots=True)
class TensorId:
    """Digest of one tensor. ``source`` is its name in the checkpoint."""

    dtype: str
    shape: tuple[int, ...]
    digest: str | None
    tiles: list[str]
    source: str


@dataclass(slots=True)
class Identity:
    """Everything that is compared, by canonical name; ``ignored`` says what is not, and why."""

    tensors: dict[str, TensorId] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)


def canonical_name(name: str, is_tensor: bool) -> str:
    """``module.model.x`` and ``state_dict.x`` are the weight x of the model; ``optim.`` is ``optimizer.``."""
    area = area_of(name, is_tensor)
    if area == "model":
        return f"model.{canonical_weight(name)}"
    if area == "optimizer":
        parts = [p for p in strip_area(name, "optimizer").split(".") if p not in WRAPPERS]
        return "optimizer." + ".".join(parts)
    if area in ("schedule", "sampler", "scaler"):
        head = {"schedule": "scheduler"}.get(area, area)
        return f"{head}.{strip_area(name, area)}"
    return name


def identify(collected: Collected) -> Identity:
    """The identity of a checkpoint that was collected at level "full" with digests."""
    made, found = collected.made, Identity()
    by_digest: dict[str, str] = {}
    for tensor in made.tensors.values():
        name = canonical_name(tensor.name, True)
        why = _why_ignored(name)
        if why is not None:
            found.ignored[name] = why
            continue
        scan = collected.scans.get(tensor.name)
        digest = scan.digest if scan is not None else None
        if not tensor.numel:
            digest = f"empty:{tensor.dtype}"
        if tensor.item_bytes and tensor.numel == 1 and digest is None and tensor.value is not None:
            digest = f"value:{tensor.value!r}"
        shape = tensor.view or tensor.shape
        found.tensors[name] = TensorId(tensor.dtype, shape, digest, scan.tiles if scan is not None else [], tensor.name)
        if digest is not None:
            by_digest.setdefault(digest, name)
    for value in made.values.values():
        name = canonical_name(value.name, False)
        why = _why_ignored(name)
        if why is not None:
            found.ignored[name] = why
        else:
            found.values[name] = plain(value.value)
    return found


def _why_ignored(name: str) -> str | None:
    return next((why for pattern, why in _VOLATILE if pattern.search(name)), None)


def plain(value: Any) -> Any:
    """A value as JSON can hold it, equal exactly when the value is: bytes become a digest, floats keep all digits."""
    if isinstance(value, bytes):
        return {"bytes": len(value), "xxh3": xxhash.xxh3_128_hexdigest(value)}
    if isinstance(value, complex):
        return repr(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"float": repr(value)}
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 1 << 63:
        return hex(value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return value


def is_rng(name: str) -> bool:
    return area_of(name) == "rng" or name.startswith("rng")
