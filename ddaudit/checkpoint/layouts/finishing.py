"""What can be said only after a layout has read everything: dialects of DCP, and per-rank files joined."""

from __future__ import annotations

from ddaudit.checkpoint.layouts import dcp, lightning, megatron_dist, torch_files
from ddaudit.checkpoint.layouts.sharded_ranks import merge_copies, merge_ranks
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader


def finish(reader: Reader, made: Checkpoint) -> None:
    """Recognises torchtitan and Megatron by their keys, and joins ranks' files of distributed tensors."""
    if made.layout == dcp.NAME:
        _dialect(reader, made)
    if made.layout in (torch_files.NAME, "accelerate") and (made.facts.get("placed") or made.facts.get("shard_dims")):
        made.facts.setdefault("merge", []).append("")
    for prefix in made.facts.get("merge", ()):
        merge_ranks(made, prefix)
        merge_copies(made, prefix)


def _dialect(reader: Reader, made: Checkpoint) -> None:
    names = (*made.tensors, *made.values)
    if any(n.startswith("train_state.") for n in names) or any(n.startswith("dataloader.dp_rank_") for n in names):
        made.layout = "torchtitan"
        made.promises.update({"rng": "unsaved", "sampler": "required"})
        made.promise_notes["rng"] = "torchtitan saves no RNG state"
        _loader_ranks(made)
    elif megatron_dist.is_megatron(made):
        made.layout = megatron_dist.NAME
        megatron_dist.finish(reader)
    elif any(n.startswith("state_dict.") for n in made.tensors):
        made.layout = lightning.NAME
        full = reader.folder.full(lightning.META)
        text = (
            f"{lightning.META} is missing: Lightning does not recognise "
            "the folder, and loops, schedule and step are lost"
        )
        made.fault("complete.file-missing", text, file=full)


def _loader_ranks(made: Checkpoint) -> None:
    """dataloader.dp_rank_0 ... dp_rank_{n-1} must all be there."""
    ranks = set()
    for name in (*made.values, *made.tensors):
        if name.startswith("dataloader.dp_rank_"):
            number = name.split(".")[1].removeprefix("dp_rank_")
            ranks |= {int(number)} if number.isdigit() and len(number) < 9 else set()
    size = next(
        (v.value for n, v in made.values.items() if n in ("dataloader.world_size", "dataloader.dp_world_size")), None
    )
    if type(size) is int and 0 < size < 1_000_000:
        made.know("dp", size, "dataloader.world_size")
    count = size if type(size) is int and 0 < size < 1_000_000 else max(ranks, default=-1) + 1
    lost = sorted(set(range(count)) - ranks)
    if lost and ranks:
        text = f"loader state of dp rank {lost[0]} is missing ({len(ranks)} of {count} ranks are there)"
        made.fault(
            "sampler.rank-missing",
            text,
            key=f"dataloader.dp_rank_{lost[0]}",
            rank=lost[0],
            measured=len(ranks),
            limit=count,
        )
    extra = sorted(r for r in ranks if r >= count)
    if extra:
        text = f"loader state of dp rank {extra[0]} is left from a larger world than {count}"
        made.fault("sampler.rank-extra", text, key=f"dataloader.dp_rank_{extra[0]}", rank=extra[0])
