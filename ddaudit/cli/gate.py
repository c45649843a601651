"""``ddaudit gate``: the shortest honest check of this node, for a prolog, a monitor or an init container."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.exits import coded, exit_map_option
from ddaudit.cli.hosts import Duration, conducting, find, follow, host_options
from ddaudit.cli.run import command as run_command
from ddaudit.cli.run import execute, open_session

if TYPE_CHECKING:
    from ddaudit.engine import Session

__all__ = ["command"]


@click.command("gate")
@click.argument("runbook", default="gate")
@click.option("--budget", type=Duration(), default="60s", show_default=True, help="No step starts after it.")
@click.option("--exclude", is_flag=True, help="Print only Slurm's --exclude= of the hosts at fault, or nothing.")
@click.option("-P", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the runbook.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), default="ddaudit-runs", show_default=True, help="Run folders.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@exit_map_option
@host_options
def command(budget: float, exclude: bool, **given: Any) -> int:
    """Check this node, or the nodes of an allocation, within a budget: fit for work?

    Exits as `run` does unless --exit-map says otherwise. What the budget left no time for is told as not measured.
    """
    options = {**run_command.make_context("run", [given["runbook"]]).params, **given}
    options |= {"quiet": True, "no_progress": True, "silent": exclude}
    place = find(options)
    if place is not None and not place.conducts:
        return follow(place, options)
    with conducting(place, options) as fleet:
        record = execute(_hurried(open_session(options, place), budget), options, fleet)
    if exclude:
        from ddaudit.launch.place import compress_hosts

        hosts = sorted({f.where.host for f in record.findings if f.status.value == "FAIL" and f.where.host})
        if hosts:
            click.echo(f"--exclude={compress_hosts(hosts)}")
    return coded(record.verdict, record.exit_code)


def _hurried(session: Session, budget_s: float) -> Session:
    """The session with the budget over all steps and over each one."""
    steps = tuple(s.model_copy(update={"timeout_s": min(s.timeout_s, budget_s)}) for s in session.plan.steps)
    return replace(session, plan=session.plan.model_copy(update={"budget_s": budget_s, "steps": steps}))
