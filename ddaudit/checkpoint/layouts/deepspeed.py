"""DeepSpeed ZeRO 1, 2, 3, pipeline and MoE: model-state files, one optimizer file for each data- and model-parallel
rank.

Flat fp32 partitions and moments are cut back into parameters: by ``param_slice_mappings`` where a shard has them,
else by the
order of ``param_shapes`` (ZeRO 1/2: one run over all ranks; ZeRO 3: every parameter split evenly over the ranks).
There is no completion marker: ``latest`` is written when rank 0 is done, so only counts can tell.
"""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.deepspeed_checks import check_copies, check_module, check_order, check_zeroed, shapes_of
from ddaudit.checkpoint.layouts.deepspeed_flat import Shard, add_zero3, add_zero12
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import Call, TorchFile

NAME = "deepspeed"
_MODEL = re.compile(r"^mp_rank_(\d+)_model_states\.pt$")
_MODEL3 = re.compile(r"^zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt$")
_OPTIM = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt$")
_LAYER = re.compile(r"^layer_(\d+)-model_(\d+)-model_states\.pt$")
_EXPERT = re.compile(r"^(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt$")
_EXPERT_OPTIM = re.compile(r"^expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt$")
_PATTERNS = (_MODEL, _MODEL3, _OPTIM, _LAYER, _EXPERT, _EXPERT_OPTIM)
_SKIP = (
    "module",
    "param_shapes",
    "optimizer",
    "buffer_names",
    "frozen_param_shapes",
    "shared_params",
    "frozen_param_fragments",
)


def detect(folder: Folder) -> bool:
    return any(p.match(n) for n in folder.here() for p in _PATTERNS) and "zero" not in folder.folders()


def read(reader: Reader, prefix: str = "") -> None:
    """Model states (weights, counters, client state), then optimizer shards, then the counts."""
    folder, made = reader.folder, reader.made
    model_files = [n for n in folder.here() if _MODEL.match(n) or _MODEL3.match(n)]
    first: dict[int, dict[Any, Any]] = {}
    ranks3: set[int] = set()
    for name in sorted(model_files):
        three, plain = _MODEL3.match(name), _MODEL.match(name)
        dp, mp = (int(three[1]), int(three[2])) if three else (0, int(plain[1] if plain else 0))
        ranks3 |= {dp} if three else set()
        state = _read_model(reader, name, prefix, dp if three else None, mp)
        if state is not None:
            first.setdefault(mp, state)
    for name in sorted(n for n in folder.here() if _LAYER.match(n) or _EXPERT.match(n)):
        reader.load(name, f"{prefix}model.{name.removesuffix('_model_states.pt').removesuffix('-model_states.pt')}.")
    shards = _read_optimizers(reader, prefix)
    stage = max((s.stage for s in shards), default=0)
    check_copies(made, shards)
    check_zeroed(made, shards)
    if shards and first and not any(shapes_of(state) for state in first.values()):
        text = "no param_shapes: the optimizer's partitions cannot be held against parameters, nor converted to fp32"
        made.fault("complete.optional-missing", text, file=folder.full(sorted(model_files)[0]), key="param_shapes")
    _cut_flat(made, prefix, shards, first, stage)
    _check_counts(reader, model_files, ranks3, shards, stage)
    _promise(made, next(iter(first.values()), {}))


def _read_model(reader: Reader, name: str, prefix: str, dp: int | None, mp: int) -> dict[Any, Any] | None:
    """Adds one model-state file: weights of each model-parallel rank once, counters of every rank."""
    from ddaudit.checkpoint.flatten import add_tree

    made, full = reader.made, reader.folder.full(name)
    found = reader.torch(name)
    if found is None:
        return None
    state = found.value
    if not isinstance(state, dict) or "module" not in state:
        made.fault("file.malformed", f"{name} holds no DeepSpeed model state", file=full)
        return None
    source = reader.folder.source(name)
    tag = f"{prefix}mp{mp}." if mp else prefix
    first = dp in (None, 0)
    if first:
        weights = state["module"]
        if isinstance(weights, dict) and dp is not None:
            buffers = set(state.get("buffer_names") or [])
            weights = {k: v for k, v in weights.items() if k in buffers or 0 not in getattr(v, "shape", (0,))}
        add_tree(reader, weights, found, source, f"{tag}model", full)
    rest = {k: v for k, v in state.items() if k not in _SKIP}
    add_tree(reader, rest, found, source, tag.rstrip(".") if first else f"{tag}dp{dp}", full, dp)
    _know(made, state, full)
    check_module(made, state, full, whole=dp is None)
    return state


def _know(made: Checkpoint, state: dict[Any, Any], full: str) -> None:
    made.know("dp", state.get("dp_world_size"), f"dp_world_size in {full}")
    made.know("mp", state.get("mp_world_size"), f"mp_world_size in {full}")
    config = state.get("ds_config")
    if isinstance(config, dict):
        made.know("global_batch", config.get("train_batch_size"), f"ds_config in {full}")
        made.know("micro_batch", config.get("train_micro_batch_size_per_gpu"), f"ds_config in {full}")
        made.know("accumulation", config.get("gradient_accumulation_steps"), f"ds_config in {full}")
    if type(state.get("skipped_steps")) is int:
        made.skipped_updates = max(made.skipped_updates, state["skipped_steps"])


def _read_optimizers(reader: Reader, prefix: str) -> list[Shard]:
    from ddaudit.checkpoint.flatten import add_tree

    made, shards = reader.made, []
    for name in sorted(n for n in reader.folder.here() if _OPTIM.match(n)):
        match = _OPTIM.match(name)
        assert match is not None
        dp, mp, full = int(match[1]), int(match[2]), reader.folder.full(name)
        found = reader.torch(name)
        state = found.value.get("optimizer_state_dict") if found is not None and isinstance(found.value, dict) else None
        if found is None or not isinstance(state, dict):
            if found is not None:
                made.fault("file.malformed", f"{name} holds no optimizer state", file=full)
            shards.append(Shard(dp, mp, full, 0, {}, None, None, readable=False))
            continue
        shard = _shard(state, dp, mp, full, found, reader)
        shards.append(shard)
        inner = shard.base
        groups = inner.get("param_groups") if isinstance(inner, dict) else None
        add_tree(
            reader,
            {"param_groups": groups},
            found,
            reader.folder.source(name),
            f"{prefix}optimizer.dp{dp}mp{mp}",
            full,
            dp,
        )
        for key in ("loss_scaler",):
            add_tree(
                reader, state.get(key), found, reader.folder.source(name), f"{prefix}loss_scaler.dp{dp}mp{mp}", full, dp
            )
    for name in sorted(n for n in reader.folder.here() if _EXPERT_OPTIM.match(n)):
        reader.load(name, f"{prefix}optimizer.{name.removesuffix('_optim_states.pt')}")
    return shards


def _shard(state: dict[Any, Any], dp: int, mp: int, full: str, found: TorchFile, reader: Reader) -> Shard:
    """Normalises the three generations of shard dictionaries."""
    stage = state.get("zero_stage")
    if isinstance(stage, Call) and stage.args and type(stage.args[0]) is int:
        stage = stage.args[0]
    if type(stage) is not int:
        stage = 3 if "fp32_flat_groups" in state else 1
    base = state.get("optimizer_state_dict") if stage == 3 else state.get("base_optimizer_state")
    if isinstance(base, dict) and "optimizer_state_dict" in base:
        base = base["optimizer_state_dict"]
    count = state.get("partition_count")
    counts = [c for c in count if type(c) is int] if isinstance(count, list) else [count]
    for number in counts:
        reader.made.know("dp", number, f"partition_count in {full}")
    flat = state.get("fp32_flat_groups") if stage == 3 else state.get("single_partition_of_fp32_groups")
    shard = Shard(dp, mp, full, stage, base if isinstance(base, dict) else {}, flat, state.get("param_slice_mappings"))
    shard.found, shard.source = found, reader.folder.source(full.removeprefix(reader.folder.prefix))
    return shard


def _cut_flat(made: Checkpoint, prefix: str, shards: list[Shard], first: dict[int, dict[Any, Any]], stage: int) -> None:
    for mp in sorted({s.mp for s in shards}):
        mine = [s for s in shards if s.mp == mp]
        shapes = first.get(mp, first.get(0, {})).get("param_shapes")
        groups = [g for g in shapes if isinstance(g, dict)] if isinstance(shapes, list) else []
        tag = f"{prefix}mp{mp}." if mp else prefix
        for group in groups:
            made.param_shapes.update({f"{tag}model.{n}": s for n, s in group.items() if isinstance(s, tuple)})
        if not all(s.readable for s in mine):
            continue
        for number, group in enumerate(groups):
            check_order(made, sorted(mine, key=lambda s: s.dp), number, group)
        (add_zero3 if stage == 3 else add_zero12)(made, tag, mine, groups)


def _check_counts(reader: Reader, models: list[str], ranks3: set[int], shards: list[Shard], stage: int) -> None:
    """One optimizer file for each (dp, mp); under ZeRO 3 as many model files; one model file for each mp."""
    made, folder = reader.made, reader.folder
    have = {(s.dp, s.mp) for s in shards}
    dp_size, mp_size = _sizes(made, have)
    need = dp_size * mp_size
    lost = [(d, m) for m in range(min(mp_size, 4096)) for d in range(min(dp_size, 65536)) if (d, m) not in have]
    counts: dict[str, Any] = {"measured": len(have), "limit": need, "unit": "file"}
    for dp, mp in lost[:20] if shards or stage or ranks3 else ():
        text = f"optimizer shard of dp rank {dp}, mp rank {mp} is missing: {len(have)} of {need} files are there"
        name = f"{folder.prefix}*zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"
        made.fault("complete.shard-missing", text, file=name, rank=dp, **counts)
    for dp in sorted(set(range(dp_size)) - ranks3)[:20] if ranks3 else ():
        text = f"model states of dp rank {dp} are missing: {len(ranks3)} of {dp_size} files are there"
        name = f"{folder.prefix}zero_pp_rank_{dp}_mp_rank_00_model_states.pt"
        made.fault("complete.shard-missing", text, file=name, rank=dp)
    if not models:
        name = f"{folder.prefix}mp_rank_00_model_states.pt"
        made.fault("complete.file-missing", "no model_states file is there", file=name)
    for dp in sorted({d for d, _ in have if d >= dp_size})[:20]:
        text = f"the shard of dp rank {dp} is left from a save with more than {dp_size} ranks"
        made.fault("file.stale-rank", text, rank=dp)
    proof = f"{len(have)} optimizer files = dp {dp_size} x mp {mp_size}, {len(models)} model files"
    made.completion = Completion(proven=not lost and bool(models) if shards else None, proof=proof)


def _sizes(made: Checkpoint, have: set[tuple[int, int]]) -> tuple[int, int]:
    """(dp, mp) that must exist: what the files say, and where they disagree the larger count."""
    mp_size = max([made.world.get("mp", (1, ""))[0], *(mp + 1 for _, mp in have)])
    said = made.world.get("dp", (max((d for d, _ in have), default=0) + 1, ""))[0]
    others = [f.measured for f in made.faults if f.kind == "world.disagrees" and f.key == "dp"]
    return max([said, *(n for n in others if isinstance(n, int))]), mp_size


def _promise(made: Checkpoint, state: dict[Any, Any]) -> None:
    config = state.get("ds_config")
    made.promises.update({"sampler": "required", "rng": "unsaved", "schedule": "required", "scaler": "unsaved"})
    made.promise_notes["rng"] = "DeepSpeed saves no RNG state; only client_state can"
    made.promise_notes["sampler"] = "DeepSpeed saves no data position; it must be in client_state"
    if isinstance(config, dict) and "scheduler" not in config and state.get("lr_scheduler") is None:
        made.promises["schedule"] = "expected"
