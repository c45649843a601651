"""The argument namespace that Megatron stores in every checkpoint: layout, batch, and samples consumed."""

from __future__ import annotations

from typing import Any

from ddaudit.checkpoint.model import Checkpoint
from ddaudit.evidence.checkpoint import Position
from ddaudit.inert import Record

_FACTS = {
    "world_size": "ranks", "data_parallel_size": "dp", "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp", "expert_model_parallel_size": "ep", "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
}  # fmt: skip


def note_args(made: Checkpoint, args: Any, file: str) -> tuple[int, int, int]:
    """Records world facts and the data position. Returns (tp, pp, ep), 1 where unknown."""
    fields = args.fields if isinstance(args, Record) else args if isinstance(args, dict) else {}
    if isinstance(fields.get("optimizer"), str):
        made.facts["megatron_optimizer"] = fields["optimizer"]
    for key, fact in _FACTS.items():
        made.know(fact, fields.get(key), f"args.{key} in {file}")
    consumed = fields.get("consumed_train_samples")
    known = next((p for p in made.positions if p.name == "args.consumed_train_samples"), None)
    if type(consumed) is int and known is not None and known.samples != consumed:
        text = f"{file}: {consumed:,} samples were consumed, {known.file} says {known.samples:,}"
        made.fault("sampler.ranks-differ", text, file=file, measured=consumed, limit=known.samples, unit="sample")
    if type(consumed) is int and known is None:
        made.positions.append(
            Position(
                name="args.consumed_train_samples",
                scope="global",
                samples=consumed,
                seed="seed" in fields,
                file=file,
                kind="consumed",
            )
        )
        made.extra_areas.setdefault("sampler", []).append("args.consumed_train_samples")
    ep = fields.get("expert_model_parallel_size")
    numbers = [fields.get("tensor_model_parallel_size"), fields.get("pipeline_model_parallel_size"), ep]
    tp, pp, ep_size = (n if type(n) is int and 0 < n < 100_000 else 1 for n in numbers)
    made.facts["megatron_ep"] = ep_size
    return tp, pp, ep_size
