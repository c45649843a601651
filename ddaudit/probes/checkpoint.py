"""Opens a checkpoint and records what is in it, without running a byte of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.context import ProbeContext
from ddaudit.evidence.checkpoint import CheckpointDiff, CheckpointFacts, World
from ddaudit.registry import probe

__all__ = ["CheckpointParams", "DiffParams", "checkpoint", "checkpoint_diff"]


class CheckpointParams(BaseModel):
    """Which checkpoint, and how far to read it.

    ``path`` may be a file, a folder, a root with many steps, or an fsspec URL. ``level``: "names" lists files,
    "headers"
    reads metadata, "full" also every byte. ``target_ranks`` and ``target_dp`` describe the job that will resume.
    ``sample`` writes a small checkpoint of our own instead, healthy ("none") or with one fault, for self-tests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = ""
    level: Literal["names", "headers", "full"] = "full"
    jobs: int = Field(1, ge=1, le=256)
    target_ranks: int | None = Field(None, ge=1)
    target_dp: int | None = Field(None, ge=1)
    sample: str = ""


class DiffParams(BaseModel):
    """Two checkpoints, or one (``path``) and a manifest (``manifest``).

    Without ``other`` and ``manifest`` there is nothing to compare with, and nothing is recorded. ``sample`` compares a
    healthy sample of our own with the named one, for self-tests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = ""
    other: str = ""
    manifest: str = ""
    jobs: int = Field(1, ge=1, le=256)
    sample: str = ""


@probe("checkpoint", produces=[CheckpointFacts], params=CheckpointParams)
def checkpoint(context: ProbeContext, params: CheckpointParams) -> None:
    """Audits one checkpoint: files, shards, checksums, values, counters, positions."""
    from ddaudit.checkpoint.collect import Options, collect
    from ddaudit.checkpoint.sample import write_sample

    # A checkpoint that an earlier step of this run wrote is named relative to the run folder.
    inside = context.run_dir / params.path
    path = str(inside) if params.path and inside.exists() else params.path
    if params.sample:
        path = str(write_sample(context.scratch / f"sample-{params.sample}", params.sample))
    target = World(ranks=params.target_ranks, dp=params.target_dp) if params.target_ranks or params.target_dp else None
    options = Options(level=params.level, jobs=params.jobs, target=target)
    facts = collect(path, options).facts
    context.events.emit_evidence(facts)
    context.measure("checkpoint.bytes", facts.bytes, "byte", file=facts.path)


@probe("checkpoint-diff", produces=[CheckpointDiff], params=DiffParams)
def checkpoint_diff(context: ProbeContext, params: DiffParams) -> None:
    """Compares two checkpoints logically, or one with a manifest written earlier."""
    from ddaudit.checkpoint.diff import compare_paths
    from ddaudit.checkpoint.manifest import verify
    from ddaudit.checkpoint.sample import write_sample

    path, other = params.path, params.other
    if params.sample:
        path = str(write_sample(context.scratch / "healthy"))
        other = str(write_sample(context.scratch / "other", params.sample))
    if params.manifest:
        context.events.emit_evidence(verify(path, params.manifest, params.jobs))
    elif other:
        context.events.emit_evidence(compare_paths(path, other, params.jobs))
