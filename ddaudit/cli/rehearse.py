"""``ddaudit run --dry-run --world-size N``: a plan at a size that is not here; its training steps are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddaudit.cli.common import emit_json, envelope
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit

if TYPE_CHECKING:
    from ddaudit.runbook.model import Plan
    from ddaudit.training.rehearsal import Rehearsal

__all__ = ["show"]


def show(plan: Plan, world_size: int, as_json: bool) -> int:
    """Prints mesh, batch and memory of each step that trains on several ranks, and of every other step on how many
    ranks it runs; 1 when one does not fit. Without a step that trains nothing is imported."""
    steps = [(s.id, s.params) for s in plan.steps if s.probe == "train" and s.nproc > 1]
    rows: list[Rehearsal] = []
    if steps:
        from ddaudit.training.rehearsal import rehearse

        rows = rehearse(steps, world_size)
    tried = {row.step for row in rows}
    others = {s.id: world_size if s.nproc > 1 else 1 for s in plan.steps if s.id not in tried}
    code = int(Exit.FAIL if any(r.problem for r in rows) else Exit.PASS)
    if as_json:
        verdict = "FAIL" if code else "PASS"
        told = {"rehearsal": [{**vars(r), "rank_bytes": r.rank_bytes} for r in rows], "other_steps": others}
        emit_json(envelope("run", verdict, code, dry_run=True, world_size=world_size, **told))
        return code
    by_step = {row.step: row for row in rows}
    click.echo(f"{plan.runbook} at {world_size} ranks (nothing is launched):")
    for step in plan.steps:
        told_of = _trained(by_step[step.id]) if step.id in by_step else _other(step.probe, others[step.id])
        click.echo(printable(f"  {step.id:<22} {told_of}"))
    return code


def _trained(row: Rehearsal) -> str:
    if row.problem:
        return f"does not fit: {row.problem}"
    axes = " x ".join(f"{name} {extent}" for name, extent in row.axes.items())
    batch = f"N={row.replicas} B_local={row.micro_batch} A={row.accumulation} global {row.global_batch}"
    held = row.shard_bytes if row.shard_bytes is not None else row.whole_bytes
    kind = "rank 0's shard of the parameters" if row.shard_bytes is not None else "parameters of the whole model"
    state = f", {row.rank_bytes / 1e6:.3f} MB with gradients and optimizer" if row.rank_bytes is not None else ""
    return f"{axes}: {batch}; {kind} {(held or 0) / 1e6:.3f} MB{state}"


def _other(probe: str | None, ranks: int) -> str:
    """A step that trains nothing, or on one device: its memory does not depend on the number of ranks."""
    return f"{probe or 'manual'} on {ranks} ranks" if ranks > 1 else f"{probe or 'manual'} on 1 rank at any size"
