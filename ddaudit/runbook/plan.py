"""Turns a runbook, parameters and packs into a plan: ordered steps with every value filled in."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from ddaudit.errors import RunbookProblem, UsageProblem
from ddaudit.packs import Packs
from ddaudit.registry import suggest
from ddaudit.runbook import graph
from ddaudit.runbook.limits import flatten
from ddaudit.runbook.lint import errors
from ddaudit.runbook.model import Edges, Plan, PlannedStep, Runbook, Step
from ddaudit.runbook.params import read_params
from ddaudit.runbook.selection import applicable
from ddaudit.runbook.values import fill, finish
from ddaudit.runbook.when import bind

__all__ = ["make_plan", "plan_step"]


def make_plan(
    runbook: Runbook,
    packs: Packs,
    params: Mapping[str, Any] | None = None,
    *,
    run_id: str,
    device: str = "cpu",
    seed: int = 0,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    start: str | None = None,
) -> Plan:
    """Validates everything that can be without devices, then orders and fills in the steps.

    ``params`` are ``-P`` values, as text or typed. ``only`` and ``skip`` are globs of step ids; in a sweep the steps
    that chosen ones need come along. ``start`` is the step at which a triage begins.

    Raises:
        UsageProblem: a parameter, ``only``, ``skip`` or ``start`` does not fit the runbook.
        RunbookProblem: the page itself is wrong; the first mistake, and how many follow.
    """
    values = read_params(runbook, params or {})
    if problems := errors(runbook, packs, values):
        raise _first(problems, runbook.path)
    chosen = _choose(runbook, only, skip)
    steps = [plan_step(runbook, step, packs, values) for step in _ordered(runbook) if step.id in chosen]
    return Plan(
        run_id=run_id,
        runbook=runbook.id,
        title=runbook.title,
        mode=runbook.mode,
        start=_start(runbook, chosen, start),
        budget_s=runbook.budget,
        device=device,
        seed=seed,
        params=values,
        packs=tuple(packs.extra),
        steps=tuple(_bridge(step, chosen) for step in steps),
    )


def _ordered(runbook: Runbook) -> list[Step]:
    """A sweep's steps behind what they need, otherwise as on the page; a triage's as on the page."""
    if runbook.mode == "triage":
        return list(runbook.steps)
    return [runbook.step(id) for id in graph.topological(graph.needs_of(runbook))]


def _first(problems: Sequence[RunbookProblem], path: str) -> RunbookProblem:
    first, more = problems[0], len(problems) - 1
    hint = f"{more} more; see `ddaudit lint {path}`" if more else None
    fix = "; ".join(part for part in (first.fix, hint) if part) or None
    return RunbookProblem(first.what, where=first.where, expected=first.expected, fix=fix)


def plan_step(runbook: Runbook, step: Step, packs: Packs, values: Mapping[str, Any]) -> PlannedStep:
    """One step filled in. The runbook must have passed :func:`ddaudit.runbook.lint.errors`."""
    limits = {
        name: {"source": runbook.source(step.line_of("limits", *name.split("."))), **bounds}
        for name, bounds in flatten(finish(step.limits, values)).items()
    }
    nproc = finish(step.nproc, values) if step.nproc is not None else 1
    same = ("id", "title", "prose", "probe", "needs", "retries", "repeat", "severity", "on", "required", "always")
    return PlannedStep(
        **{name: getattr(step, name) for name in same},
        source=runbook.source(step.line),
        runbook=runbook.id,
        manual=fill(step.manual, values),
        params=fill(step.with_, values),
        checks=tuple(spec.id for spec in applicable(step, packs.registry)),
        when=bind(step.when, values) if step.when else None,
        where=fill(step.where, values),
        nproc=int(nproc),
        timeout_s=step.timeout,
        limits=limits,
        remedy=fill(step.remedy, values),
    )


def _choose(runbook: Runbook, only: Sequence[str], skip: Sequence[str]) -> set[str]:
    ids = [step.id for step in runbook.steps]
    for option, patterns in (("--only", only), ("--skip", skip)):
        for pattern in patterns:
            if not fnmatch.filter(ids, pattern):
                what = f"{option} {pattern}: runbook {runbook.id!r} has no such step"
                raise UsageProblem(what, fix=suggest(pattern, ids))
    chosen = {id for id in ids if not only or any(fnmatch.fnmatchcase(id, p) for p in only)}
    if runbook.mode == "sweep":
        needs = graph.needs_of(runbook)
        chosen = {needed for id in chosen for needed in graph.reachable(needs, id)}
    chosen -= {id for id in ids if any(fnmatch.fnmatchcase(id, p) for p in skip)}
    if not chosen:
        raise UsageProblem("--only and --skip leave no step", expected=f"at least one of {', '.join(ids)}")
    if runbook.mode == "sweep":
        _refuse_orphans(runbook, chosen)
    return chosen


def _refuse_orphans(runbook: Runbook, chosen: set[str]) -> None:
    for step in runbook.steps:
        for need in step.needs:
            if step.id in chosen and need not in chosen:
                what = f"--skip leaves out step {need!r}, which step {step.id!r} needs"
                raise UsageProblem(what, fix=f"add --skip {step.id}")


def _start(runbook: Runbook, chosen: set[str], start: str | None) -> str | None:
    if runbook.mode == "sweep":
        if start is not None:
            what = f"--start {start}: runbook {runbook.id!r} is a sweep, which has no start"
            raise UsageProblem(what, fix=f"use --only {start}")
        return None
    ids = [step.id for step in runbook.steps if step.id in chosen]
    if start is not None and start not in ids:
        raise UsageProblem(f"--start {start}: runbook {runbook.id!r} has no such step", fix=suggest(start, ids))
    first = start or runbook.start
    return first if first in ids else ids[0]


def _bridge(step: PlannedStep, chosen: set[str]) -> PlannedStep:
    """Points edges to steps that were left out at the next step that was not."""
    edges = {
        name: target if target in chosen or target in ("next", "stop") or target.startswith("runbook:") else "next"
        for name, target in step.on
    }
    return step.model_copy(update={"on": Edges(**edges)})
