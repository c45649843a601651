"""Order, cycles and reach of a runbook's steps. Pure; knows ids and edges only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddaudit.runbook.model import Runbook, Step

__all__ = ["find_cycle", "longest", "needs_of", "reachable", "topological", "walks_of"]

Arcs = Mapping[str, Sequence[str]]


def needs_of(runbook: Runbook) -> dict[str, list[str]]:
    """Step -> the known steps that it needs."""
    known = {step.id for step in runbook.steps}
    return {step.id: [need for need in step.needs if need in known] for step in runbook.steps}


def walks_of(runbook: Runbook) -> dict[str, list[str]]:
    """Step -> the steps that a triage walk may enter next, ``next`` resolved by page order."""
    ids = [step.id for step in runbook.steps]
    arcs: dict[str, list[str]] = {}
    for step, following in zip(runbook.steps, [*ids[1:], None], strict=False):
        targets = [following if target == "next" else target for target in targets_of(step)]
        arcs[step.id] = [target for target in dict.fromkeys(targets) if target in ids]
    return arcs


def targets_of(step: Step) -> list[str]:
    """The targets of all five edges, as written."""
    return [step.on.passed, step.on.warn, step.on.fail, step.on.error, step.on.skip]


def topological(arcs: Arcs) -> list[str]:
    """Every id behind all it points at, otherwise in the order given. Ids on a cycle are left out."""
    done: list[str] = []
    waiting = list(arcs)
    while ready := next((id for id in waiting if all(need in done for need in arcs[id])), None):
        done.append(ready)
        waiting.remove(ready)
    return done


def find_cycle(arcs: Arcs) -> list[str] | None:
    """One cycle as ``[a, b, a]``, or None."""
    state: dict[str, int] = {}
    for root in arcs:
        path: list[tuple[str, int]] = [(root, 0)]
        while path:
            id, at = path[-1]
            state.setdefault(id, 1)
            if at == len(arcs[id]) or state[id] == 2:
                state[id] = 2
                path.pop()
                continue
            path[-1] = (id, at + 1)
            following = arcs[id][at]
            if state.get(following) == 1:
                trail = [p for p, _ in path]
                return [*trail[trail.index(following) :], following]
            if following not in state:
                path.append((following, 0))
    return None


def reachable(arcs: Arcs, start: str) -> set[str]:
    """Everything a walk from ``start`` can enter, itself included."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        id = waiting.pop()
        if id not in seen:
            seen.add(id)
            waiting.extend(arcs.get(id, ()))
    return seen


def longest(arcs: Arcs, start: str, cost: Callable[[str], float]) -> float:
    """Cost of the dearest walk from ``start``. The arcs must hold no cycle."""
    total: dict[str, float] = {}
    for id in topological(arcs):
        total[id] = cost(id) + max((total[following] for following in arcs[id]), default=0.0)
    return total[start]
