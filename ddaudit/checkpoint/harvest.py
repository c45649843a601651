"""From names and values to facts: which areas are there, every step-like number with its unit, every data position."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from ddaudit.checkpoint.model import Checkpoint, Value
from ddaudit.checkpoint.roles import area_of, rng_rank
from ddaudit.evidence.checkpoint import AREAS, Area, Position, StepValue

#: Names of the number from which a loader continues, best first.
MAIN = (
    "global_step", "global_steps", "iteration", "train_step", "trainer_step", "num_updates", "completed_steps",
    "step", "steps",
    "current_step", "current_iteration", "update", "updates", "iter", "total_steps_done", "batch",
)  # fmt: skip
_SAMPLES = (
    "samples_seen",
    "consumed_train_samples",
    "global_samples",
    "consumed_samples",
    "num_samples_seen",
    "train_samples",
)

#: Last word of a name -> fact about the job's layout.
_WORLD = {
    "world_size": "ranks", "dp_world_size": "dp", "data_parallel_size": "dp", "num_replicas": "dp",
    "tensor_model_parallel_size": "tp", "mp_world_size": "mp", "pipeline_model_parallel_size": "pp",
    "expert_model_parallel_size": "ep", "micro_batch_size": "micro_batch", "train_micro_batch_size_per_gpu":
    "micro_batch",
    "per_device_train_batch_size": "micro_batch", "batch_size": "micro_batch", "grad_accum_steps": "accumulation",
    "gradient_accumulation_steps": "accumulation", "accumulate_grad_batches": "accumulation", "grad_accum":
    "accumulation",
    "global_batch_size": "global_batch", "dataset_size": "dataset", "dataset_length": "dataset", "num_samples":
    "dataset",
}  # fmt: skip
_SAMPLE_KEYS = (
    "samples_yielded",
    "next_index",
    "yielded",
    "start_index",
    "sample_in_epoch",
    "position",
    "index",
    "offset",
    "samples",
)
_BATCH_KEYS = (
    "_num_yielded",
    "_sampler_iter_yielded",
    "batch_idx",
    "batches_yielded",
    "batch_index",
    "batches_seen",
    "num_yielded",
)
_GLOBAL_KEYS = ("consumed_samples", "consumed_train_samples", "global_index", "global_samples")


def harvest(made: Checkpoint) -> tuple[Area, ...]:
    """Fills steps, positions and world facts that the layout did not set itself, and returns the areas."""
    values = dict(made.values)
    for tensor in made.tensors.values():
        if tensor.value is not None:
            values.setdefault(tensor.name, Value(tensor.name, tensor.value, tensor.file, tensor.rank))
    if any(v.value is True and n.rsplit(".", 1)[-1] in ("fp16", "use_fp16") for n, v in values.items()):
        made.facts.setdefault("fp16", True)
    words = {n.rsplit(".", 1)[-1] for n in values if area_of(n) == "scaler"}
    if {"scale", "growth_factor"} <= words and "_growth_tracker" not in words:
        made.fault("scaler.keys", "the loss scaler was saved without its growth tracker", key="_growth_tracker")
    epoch = values["epoch"].value if "epoch" in values else None
    if type(epoch) is int and made.layout in ("torch-files", "dcp"):
        made.facts["epoch"] = epoch
    _find_world(made, values)
    _find_steps(made, values)
    _find_positions(made, values)
    return _areas(made)


def _areas(made: Checkpoint) -> tuple[Area, ...]:
    keys: dict[str, list[str]] = defaultdict(list)
    files: dict[str, set[str]] = defaultdict(set)
    for tensor in made.tensors.values():
        area = area_of(tensor.name, True) or ""
        keys[area].append(tensor.name)
        files[area].add(tensor.file)
    for value in made.values.values():
        area = area_of(value.name) or ""
        if value.value is None or value.value in ({}, []):
            continue
        keys[area].append(value.name)
        files[area].add(value.file)
    for area, names in made.extra_areas.items():
        keys[area] += names
        files[area].update(names)
    keys["step"] = [s.name for s in made.steps if s.main]
    files["step"] = {s.file or "" for s in made.steps if s.main}
    homes = made.facts.get("homes", {})
    everywhere = {t.file for t in made.tensors.values()} | {v.file for v in made.values.values()}
    common = next(iter(everywhere)) if len(everywhere) == 1 else None
    return tuple(
        Area(
            name=area,
            promise=made.promises.get(area, "expected"),
            count=len(keys[area]),
            keys=tuple(sorted(keys[area])[:5]),
            files=tuple(sorted(files[area])[:5]),
            note=made.promise_notes.get(area),
            home=homes.get(area, common),
        )
        for area in AREAS
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _find_world(made: Checkpoint, values: dict[str, Value]) -> None:
    for value in values.values():
        word = value.name.rsplit(".", 1)[-1]
        fact = _WORLD.get(word)
        number = _number(value.value)
        if fact is None or number is None or number != int(number) or number < 1:
            continue
        if area_of(value.name) in ("optimizer", "schedule", "rng", "scaler"):
            continue
        if word in ("batch_size", "num_samples") and value.name.count(".") > 1:
            continue
        made.know(fact, int(number), f"{value.name} in {value.file}")


def _find_steps(made: Checkpoint, values: dict[str, Value]) -> None:
    set_by_layout = any(s.main for s in made.steps)
    found: dict[str, list[StepValue]] = defaultdict(list)
    for value in values.values():
        number = _number(value.value)
        if number is None:
            continue
        parts = value.name.split(".")
        area = area_of(value.name)
        step = _step_value(made, value, parts, number, area)
        if step is not None:
            made.steps.append(step)
        elif area is None and parts[-1] in MAIN and len(parts) <= 3 and "args" not in parts and not set_by_layout:
            found[parts[-1]].append(
                StepValue(name=value.name, value=number, unit="update", file=value.file, rank=value.rank, main=True)
            )
    for word in MAIN:
        if found.get(word):
            made.steps += found.pop(word)
            break
    for rest in found.values():
        made.steps += [s.model_copy(update={"main": False, "unit": "update", "lag": (-(2**60), 2**60)}) for s in rest]


def _step_value(made: Checkpoint, value: Value, parts: list[str], number: float, area: str | None) -> StepValue | None:
    """Step-like numbers whose place says what they count."""
    where = {"name": value.name, "value": number, "file": value.file, "rank": value.rank}
    if area == "optimizer" and (parts[-1] in ("step", "iter", "iterations") or "step" in parts[1:3]):
        owner = ".".join(p for p in parts if p not in ("step", "optimizer", "optim", "state"))
        return StepValue(**where, unit="update", tensor_of=owner or "?")
    if area == "schedule" and parts[-1] == "last_epoch":
        if ".".join((*parts[:-1], "num_bad_epochs")) in made.values:  # on a plateau: once for each evaluation
            return StepValue(**where, unit="update", lag=(-(2**60), 2**60))
        return StepValue(
            **where, unit=made.facts.get("schedule_unit", "update"), lag=made.facts.get("schedule_lag", (0, 0))
        )
    if area == "schedule" and parts[-1] == "last_batch_iteration":
        return StepValue(**where, unit="update", lag=(-1, 0))
    if area == "schedule" and parts[-1] == "num_steps":
        return StepValue(**where, unit="sample", lag=(-(2**60), 2**60))
    if area is None and parts[-1] in _SAMPLES:
        return StepValue(**where, unit="sample")
    return None


def _find_positions(made: Checkpoint, values: dict[str, Value]) -> None:
    groups: dict[str, dict[str, Value]] = defaultdict(dict)
    for value in values.values():
        if area_of(value.name) == "sampler":
            head = _position_group(value.name)
            groups[head][value.name[len(head) :].lstrip(".")] = value
    for head, members in groups.items():
        _check_workers(made, head, members)
        position = _position(head, members)
        if position is not None:
            made.positions.append(position)


def _check_workers(made: Checkpoint, head: str, members: dict[str, Value]) -> None:
    """A loader with N workers has N snapshots; the loader refuses another number."""
    count = next((v.value for k, v in members.items() if k.endswith("_num_workers")), None)
    seen = {m[1] for k in members if (m := re.search(r"_worker_snapshots\.worker_(\d+)", k))}
    if type(count) is int and seen and len(seen) != count:
        text = f"{head}: {len(seen)} of {count} workers have a snapshot"
        file = next(iter(members.values())).file
        made.fault("sampler.workers", text, file=file, key=head, measured=len(seen), limit=count, unit="worker")


def _position_group(name: str) -> str:
    """One group for each loader: up to ``dp_rank_N``, or the whole top-level word."""
    match = re.match(r"^(.*?(?:dp_)?rank_?\d+)(?:\.|$)", name)
    if match:
        return match[1]
    match = re.match(r"^(.*?combined_loader\.\d+)\.", name) or re.match(r"^(dataloader\.[^.]+)\._", name)
    return match[1] if match else name.split(".", 1)[0]


def _position(head: str, members: dict[str, Value]) -> Position | None:
    numbers = {key: _number(v.value) for key, v in members.items()}
    last = {key.rsplit(".", 1)[-1]: n for key, n in numbers.items() if n is not None}

    def first(keys: tuple[str, ...]) -> int | None:
        return next((int(last[k]) for k in keys if k in last), None)

    batches = first(_BATCH_KEYS)
    if "_snapshot_step" in last:
        batches = int(last["_snapshot_step"] + last.get("_steps_since_snapshot", 0))
    whole = first(_GLOBAL_KEYS)
    samples = whole if whole is not None else first(_SAMPLE_KEYS)
    epoch = first(("epoch", "_epoch", "cur_epoch"))
    if samples is None and batches is None and epoch is None:
        return None
    any_value = next(iter(members.values()))
    match = re.search(r"rank_?(\d+)", head)
    return Position(
        name=head,
        scope="global"
        if whole is not None
        else "unknown"
        if samples is not None and "samples_yielded" not in last
        else "rank",
        samples=samples,
        batches=batches,
        epoch=epoch,
        rank=int(match[1]) if match else any_value.rank,
        seed=any(k in last for k in ("seed", "shuffle_seed", "_base_seed")) or any("generator" in k for k in members),
        replicas=first(("num_replicas", "world_size")),
        length=first(("dataset_length", "dataset_size", "total_size", "length")),
        file=any_value.file,
        kind="loader" if any(k in last for k in ("_num_yielded", "_snapshot_step", "samples_yielded")) else "sampler",
    )


def rng_ranks(made: Checkpoint) -> set[int]:
    """Ranks whose RNG state is there, by key names and by the rank of the file."""
    found: set[int] = set()
    for name in (*made.tensors, *made.values):
        if area_of(name) != "rng" and rng_rank(name) is None:
            continue
        rank = rng_rank(name)
        item = made.tensors.get(name) or made.values.get(name)
        rank = rank if rank is not None else item.rank if item is not None else None
        if rank is not None:
            found.add(rank)
    return found
