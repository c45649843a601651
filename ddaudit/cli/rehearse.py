"""``ddaudit run --dry-run --world-size N``: the training steps of a plan, tried at a size that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ddaudit.cli.common import emit_json, envelope
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.runbook.model import Plan

__all__ = ["show"]


def show(plan: Plan, world_size: int, as_json: bool) -> int:
    """Prints mesh, batch and shard of each step that trains on several ranks; 1 when one does not fit."""
    from ddaudit.training.rehearsal import rehearse

    steps = [(s.id, s.params) for s in plan.steps if s.probe == "train" and s.nproc > 1]
    if not steps:
        raise UsageProblem("the plan has no step that trains on several ranks", fix="choose another runbook")
    rows = rehearse(steps, world_size)
    code = int(Exit.FAIL if any(r.problem for r in rows) else Exit.PASS)
    if as_json:
        verdict = "FAIL" if code else "PASS"
        emit_json(
            envelope("run", verdict, code, dry_run=True, world_size=world_size, rehearsal=[vars(r) for r in rows])
        )
        return code
    click.echo(f"{plan.runbook} at {world_size} ranks (nothing is launched):")
    for row in rows:
        if row.problem:
            click.echo(printable(f"  {row.step:<22} does not fit: {row.problem}"))
            continue
        axes = " x ".join(f"{name} {extent}" for name, extent in row.axes.items())
        batch = f"N={row.replicas} B_local={row.micro_batch} A={row.accumulation} global {row.global_batch}"
        held = row.shard_bytes if row.shard_bytes is not None else row.whole_bytes
        kind = "rank 0's shard of the parameters" if row.shard_bytes is not None else "parameters of the whole model"
        click.echo(f"  {row.step:<22} {axes}: {batch}; {kind} {(held or 0) / 1e6:.3f} MB")
    return code
