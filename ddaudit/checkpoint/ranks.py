"""Are all ranks' files and RNG states there, and none left over from a larger job?"""

from __future__ import annotations

import re

from ddaudit.checkpoint.harvest import rng_ranks
from ddaudit.checkpoint.model import Checkpoint, Tensor, Value
from ddaudit.checkpoint.roles import area_of

_SHOWN = 20
_CPU_RNG_BYTES, _DEVICE_RNG_BYTES = 5056, 16


def world_size(made: Checkpoint) -> int | None:
    """Processes of the job, when something in the checkpoint says so."""
    if "ranks" in made.world:
        return made.world["ranks"][0]
    parts = [made.world[k][0] for k in ("dp", "tp", "pp", "mp") if k in made.world]
    if "dp" not in made.world:
        return None
    size = 1
    for number in parts:
        size *= number
    return size


def check_families(made: Checkpoint) -> None:
    """Files whose names differ only in a rank number: gaps, and ranks beyond the world size."""
    world = world_size(made)
    for family, have in made.facts.get("rank_families", {}).items():
        if not have or "worker" in family:
            continue
        start = 0 if 0 in have or world is not None else min(have)
        count = world if world is not None else max(have) + 1
        lost = [r for r in range(start, min(count, 1_000_000)) if r not in have]
        for rank in lost[:_SHOWN]:
            name = family.format(rank)
            source = made.world.get("ranks", (0, "other ranks' files"))[1]
            text = f"{name} is missing: {len(have)} of {count} ranks are there ({source})"
            made.fault(
                "complete.rank-file-missing", text, file=name, rank=rank, measured=len(have), limit=count, unit="file"
            )
        for rank in [r for r in have if r >= count][:_SHOWN]:
            name = family.format(rank)
            made.fault(
                "file.stale-rank", f"{name} is left from a save with more than {count} ranks", file=name, rank=rank
            )


def check_parts(made: Checkpoint) -> None:
    """Files of one rank family hold the same areas: what one rank's file lacks, that rank cannot restore."""
    families: dict[str, dict[str, set[str]]] = {}
    items: list[Tensor | Value] = [*made.tensors.values(), *made.values.values()]
    for item in items:
        name = item.file.rsplit("/", 2)
        if not any("rank" in part for part in name[-2:]):
            continue
        area = area_of(item.name, item.name in made.tensors) or _step_area(item.name)
        if area in _PARTS and (item.name in made.tensors or getattr(item, "value", None) not in (None, {}, [])):
            family = re.sub(r"rank_?\d+(_\d+)*", "rank#", item.file)
            families.setdefault(family, {}).setdefault(item.file, set()).add(area)
        else:
            families.setdefault(re.sub(r"rank_?\d+(_\d+)*", "rank#", item.file), {}).setdefault(item.file, set())
    for files in families.values():
        everything = set().union(*files.values())
        for file, areas in files.items():
            for area in sorted(everything - areas):
                text = f"{file} holds no {area} state, other ranks' files do"
                made.fault(f"{area}.rank-lost", text, file=file, key=area)


_PARTS = ("sampler", "schedule", "rng", "step", "optimizer")


def _step_area(name: str) -> str | None:
    return "step" if name.rsplit(".", 1)[-1] in ("global_steps", "global_step", "iteration", "step") else None


def check_rng_sizes(made: Checkpoint) -> None:
    """torch's CPU generator keeps a Mersenne twister in 5,056 bytes, CUDA's 16; what lies between is cut."""
    for tensor in made.tensors.values():
        if tensor.dtype != "uint8" or area_of(tensor.name, True) != "rng":
            continue
        if _DEVICE_RNG_BYTES < tensor.numel < _CPU_RNG_BYTES:
            text = f"{tensor.name} has {tensor.numel:,} bytes, torch's generator needs {_CPU_RNG_BYTES:,}"
            made.fault("rng.malformed", text, file=tensor.file, tensor=tensor.name, rank=tensor.rank,
                       measured=tensor.numel, limit=_CPU_RNG_BYTES, unit="byte")  # fmt: skip


def check_rng(made: Checkpoint) -> None:
    """RNG states are kept for some ranks but not for all."""
    have = rng_ranks(made)
    world = world_size(made)
    if not have or world is None:
        return
    lost = [r for r in range(min(world, 1_000_000)) if r not in have]
    if lost and len(have) < world and (len(have) > 1 or made.facts.get("rng_family") or world == len(have) + len(lost)):
        family = str(made.facts.get("rng_family", "rng of rank {}"))
        source = made.world.get("ranks", made.world.get("dp", (0, "?")))[1]
        if any(f.kind == "complete.rank-file-missing" and "rng" in (f.file or "") for f in made.faults):
            return
        text = f"{family.format(lost[0])} is missing: {len(have)} of {world} ranks have an RNG state ({source})"
        made.fault(
            "rng.incomplete",
            text,
            file=family.format(lost[0]),
            rank=lost[0],
            measured=len(have),
            limit=world,
            unit="rank",
        )
    extra = sorted(r for r in have if r >= world)
    if extra:
        made.fault(
            "file.stale-rank", f"the RNG state of rank {extra[0]} is beyond the world size {world}", rank=extra[0]
        )
