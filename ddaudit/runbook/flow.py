"""Rules on how steps follow each other: needs, edges, start, cycles, reach and budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddaudit.errors import RunbookProblem
from ddaudit.registry import suggest
from ddaudit.runbook import graph
from ddaudit.runbook.model import Runbook, Step
from ddaudit.runbook.subject import Subject

__all__ = ["edges", "header", "longest_s", "needs", "unreachable"]

OUTCOMES = {"pass": "passed", "warn": "warn", "fail": "fail", "error": "error", "skip": "skip"}


def header(subject: Subject) -> Iterator[RunbookProblem]:
    """Rules on the page as a whole."""
    runbook = subject.runbook
    ids = [step.id for step in runbook.steps]
    if runbook.start is not None and runbook.mode == "sweep":
        yield subject.problem(None, ["start"], "a sweep has no start", 'mode = "triage"', "remove start")
    elif runbook.start is not None and runbook.start not in ids:
        yield subject.problem(
            None, ["start"], f"start names no step: {runbook.start!r}", fix=suggest(runbook.start, ids)
        )
    yield from _cycle(subject, graph.needs_of(runbook), "needs")
    if runbook.mode == "triage":
        yield from _cycle(subject, graph.walks_of(runbook), "on")


def _cycle(subject: Subject, arcs: graph.Arcs, key: str) -> Iterator[RunbookProblem]:
    cycle = graph.find_cycle(arcs)
    if cycle is not None:
        step = subject.runbook.step(cycle[0])
        what = f"`{key}` goes round in a circle: {' -> '.join(cycle)}"
        yield subject.problem(step, [key], what, "an order that ends", f"remove one of these from `{key}`")


def needs(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """Every step in ``needs`` exists."""
    ids = [other.id for other in subject.runbook.steps]
    for need in step.needs:
        if need not in ids:
            yield subject.problem(step, ["needs"], f"needs names no step: {need!r}", fix=suggest(need, ids))


def edges(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """Every edge leads somewhere, and in a sweep only to ``next`` or ``stop``."""
    ids = [other.id for other in subject.runbook.steps]
    for spelled, name in OUTCOMES.items():
        target: str = getattr(step.on, name)
        keys = ["on", spelled]
        if target in ("next", "stop"):
            continue
        if subject.runbook.mode == "sweep":
            what = f"on.{spelled} leads to {target!r}, but a sweep does not walk edges"
            yield subject.problem(step, keys, what, "next or stop", 'set mode = "triage" in the header to walk them')
        elif target.startswith("runbook:"):
            other = target.removeprefix("runbook:")
            if other not in subject.packs.runbooks:
                what = f"on.{spelled} names no runbook: {other!r}"
                yield subject.problem(step, keys, what, fix=suggest(other, subject.packs.runbooks))
        elif target not in ids:
            hint = suggest(target, [*ids, "next", "stop"])
            yield subject.problem(step, keys, f"on.{spelled} names no step: {target!r}", fix=hint)


def unreachable(runbook: Runbook) -> Sequence[Step]:
    """Steps of a triage that no walk from its start enters."""
    if runbook.mode != "triage" or not runbook.steps:
        return ()
    ids = [step.id for step in runbook.steps]
    start = runbook.start if runbook.start in ids else ids[0]
    reached = graph.reachable(graph.walks_of(runbook), start)
    return [step for step in runbook.steps if step.id not in reached and not step.always]


def longest_s(runbook: Runbook) -> float:
    """Seconds until every deadline has passed: the sum of a sweep's steps, the longest walk of a triage."""
    cost = {s.id: s.timeout * (s.retries + 1) * s.repeat for s in runbook.steps}
    if runbook.mode == "sweep":
        return sum(cost.values())
    arcs = graph.walks_of(runbook)
    if graph.find_cycle(arcs):
        return 0.0
    cleanup = sum(cost[s.id] for s in runbook.steps if s.always)
    return cleanup + max((graph.longest(arcs, id, cost.__getitem__) for id in arcs), default=0.0)
