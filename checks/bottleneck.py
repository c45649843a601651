"""Question 7: where does the step time go? Closed books per rank, the largest term, and who makes the others wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ddaudit.api import Finding, Limit, Plant, Remedy, TrainingTrace, check, ok, skip, warn

from ._arrays import carriers, place, recorded
from ._bottleneck import BottleneckLimits
from ._ledger import Ledger, ledger
from ._overhead import overhead

NEEDS = "not measured: needs phase timers over at least 3 steps"


@check(
    "bottleneck.ledger",
    question="bottleneck",
    asks="Do the timed lines of a step add up to the step?",
    plant=Plant(
        "work that no timer covers",
        "perf.step-unexplained",
        params={"steps": 10},
        planted={"plant": "untimed-work"},
        types="single",
    ),
)
def closed_ledger(trace: TrainingTrace, limits: BottleneckLimits) -> Iterator[Finding]:
    """Compute, communication, waiting for peers and stages, input, host and waiting for a core must add up to the
    measured step; a verdict on open books would be a guess. States what the timers and the recorder cost themselves.
    """
    books = ledger(trace)
    if books is None:
        yield skip(NEEDS)
        return
    shares = books.unexplained_share
    row = int(np.argmax(shares))
    limit = limits.unexplained_share
    kept: dict[str, Any] = {
        "where": place(trace, row),
        "measured": shares[row],
        "unit": "share of the step",
        "limit": limit.bound(shares[row]),
        "limit_source": limit.source,
    }
    text = f"the lines leave {shares[row]:.1%} of the {_ms(books.step_s(row))} step open{_own_cost(trace)}"
    if limit.judge(shares[row]).value == "PASS":
        yield ok(text, **kept)
        return
    remedy = Remedy(text="Put a timer around what runs between the phases: callbacks, logging, evaluation.")
    yield warn("perf.step-unexplained", text, remedy=remedy, **kept)


def _own_cost(trace: TrainingTrace) -> str:
    """What measuring cost, in words."""
    cost, outside = overhead(trace), recorded(trace, "overhead_s")
    said = ""
    if cost.cpu_share is not None:
        said += f"; the timers took {cost.cpu_share:.2%} of its CPU time"
    if outside is not None:
        said += f"; recording took {_ms(float(np.nanmedian(outside[:, 1:])))} a step outside it"
    if cost.shorter is not None:
        low, middle, high = (100 * share for share in cost.shorter)
        said += f"; steps without timers are {middle:.1f} % shorter (95 %: {low:.1f} to {high:.1f} %)"
    return said + "; memory stalls are not measured apart"


@check(
    "bottleneck.split",
    question="bottleneck",
    asks="Which term of the step time is the largest: compute, communication, input or the host?",
    plant=(
        Plant(
            "the loader is slow",
            "perf.input-bound",
            params={"steps": 10},
            planted={"plant": "slow-input"},
            types="single",
        ),
        Plant(
            "the host launches late",
            "perf.host-bound",
            params={"steps": 10},
            planted={"plant": "late-launch", "plant_ms": 80.0},
            types="single",
        ),
        Plant(
            "collectives are slow",
            "perf.communication-bound",
            ranks=2,
            params={"parallel": "data", "steps": 7},
            planted={"plant": "slow-collective", "plant_ms": 600.0},
            types="data",
        ),
    ),
)
def bottleneck(trace: TrainingTrace, limits: BottleneckLimits) -> Iterator[Finding]:
    """Names the largest term of the rank that the others wait for, and prints both bounds of the step model
    ``T_step ~ max(T_compute, T_comm) + T_input + T_sync``: the optimistic maximum and the pessimistic sum.
    Communication is what was exposed: on the wire while the rank had nothing to compute.
    """
    books = ledger(trace)
    if books is None:
        yield skip(NEEDS)
        return
    row = books.critical
    text, quiet = _text(books, row), True
    for term, limit, id, advice in (
        ("input", limits.input_share, "perf.input-bound", INPUT),
        ("communication", limits.communication_share, "perf.communication-bound", COMMUNICATION),
        ("host", limits.host_share, "perf.host-bound", HOST),
    ):
        share = _share(books, term, row)
        if (term == "communication" and not books.split) or limit.judge(share).value == "PASS":
            continue  # what holds waiting for peers too says nothing about the wire
        quiet = False
        told = text + (carriers(trace) if term == "communication" else "")
        yield warn(id, told, where=place(trace, row), remedy=Remedy(text=advice), **_kept(share, limit))
    if quiet:
        share = _share(books, "input", row)
        yield ok(text, where=place(trace, row), **_kept(share, limits.input_share))


INPUT = "Time the loader alone; add workers, prefetch, or move the data nearer."
COMMUNICATION = "Measure the link alone; then send less often (accumulate), send less (precision), or overlap more."
HOST = "Look for Python work and forced waits between launches; then compile, or capture the step as a graph."


def _share(books: Ledger, term: str, row: int) -> float:
    """A term's share of the step without waiting for a core; of the whole step for communication, since the backend's
    own threads wait for cores too, and that looks like the wire."""
    whole = books.step_s(row) if term == "communication" else books.active_s(row)
    return books.line_s(term, row) / whole if whole > 0 else 0.0


def _kept(share: float, limit: Limit) -> dict[str, Any]:
    return {"measured": share, "unit": "share of the step", "limit": limit.bound(share), "limit_source": limit.source}


def _text(books: Ledger, row: int) -> str:
    """The largest term, all shares, the bounds, and what removing each would save at most."""
    terms = {name: books.line_s(name, row) for name in books.lines}
    step = books.step_s(row)
    candidates = {name: terms[name] for name in terms if name != "unexplained"}
    largest = max(candidates, key=lambda name: candidates[name])
    shown = [name for name in terms if terms[name] or name in ("compute", "communication", "input", "unexplained")]
    shares = ", ".join(f"{name} {terms[name] / step:.0%}" for name in shown)
    waits = terms["input"] + terms["peer wait"] + terms["stage wait"]
    hidden = books.hidden_s(row)
    exchanged = terms["communication"] + (hidden or 0.0)
    low, high = max(terms["compute"], exchanged) + waits, terms["compute"] + exchanged + waits
    overlap = f", {hidden / exchanged:.0%} of communication overlapped" if hidden is not None and exchanged else ""
    savings = {n: v for n, v in candidates.items() if n not in ("compute", "peer wait") and v > 0}
    savings["lateness of this rank"] = float(np.nanmedian(books.charged[row]))
    ordered = sorted(((v, n) for n, v in savings.items() if v > 0), reverse=True)
    saved = "; removing it would save at most: " + ", ".join(f"{n} {_ms(v)}" for v, n in ordered) if ordered else ""
    mixed = "" if books.split or not terms["communication"] else "; communication holds waiting for peers too"
    return (
        f"{largest} is the largest term of the {_ms(step)} step with {_ms(terms[largest])}: {shares}; bounds"
        f" {low * 1e3:.1f} to {high * 1e3:.1f} ms{overlap}{mixed}{saved}. Not proven by an A/B probe"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@check(
    "bottleneck.straggler",
    question="bottleneck",
    asks="Does one rank make the others wait, and by which of its own lines?",
    plant=(
        Plant(
            "one rank computes longer",
            "perf.straggler-rank",
            ranks=2,
            params={"parallel": "data", "steps": 10},
            planted={"plant": "slow-rank", "plant_ms": 100.0},
            types="data",
        ),
        Plant(
            "one rank's loader is slow",
            "perf.straggler-rank",
            ranks=2,
            params={"parallel": "data", "steps": 10},
            planted={"plant": "slow-input-rank", "plant_ms": 150.0},
            types="data",
        ),
    ),
)
def straggler(trace: TrainingTrace, limits: BottleneckLimits) -> Iterator[Finding]:
    """Charges waiting for peers to the rank that came last, and warns only where one of that rank's own lines is longer
    than the others' by what they waited, in the same steps: coming last is no proof of being slow.
    """
    books = ledger(trace)
    if books is None or not books.split:
        yield skip("not measured: needs arrival stamps of two ranks or more over at least 3 steps")
        return
    lost = books.lost
    row = int(np.argmax(lost))
    share = float(lost[row]) / books.step_s(row)
    limit = limits.straggler_share
    kept = {"where": place(trace, row), **_kept(share, limit)}
    name, cost = f"rank {trace.ranks[row].rank}", f"{_ms(float(lost[row]))} of the {_ms(books.step_s(row))} step"
    steps = float(np.mean(books.charged.argmax(axis=0) == row))
    judged = books.charged.shape[1]
    if judged < LEAST_JUDGED and limit.judge(share).value != "PASS":
        yield ok(
            f"{name} costs the others {cost}, but {judged} steps are too few to call it persistent; next probe:"
            " `ddaudit run bottleneck`, which runs each rank on its own",
            **kept,
        )
        return
    if limit.judge(share).value == "PASS" or steps < PERSISTENT:
        roaming = _ms(float(np.nanmedian(books.charged.sum(axis=0))))
        yield ok(
            f"no rank is late persistently: {name} costs the others {cost}; lateness that roams costs {roaming}",
            **kept,
        )
        return
    late = f"{name} comes last ({_label(trace, row)} in {steps:.0%} of steps) and costs the others {cost}"
    cause, excess, core = _cause(books, row)
    if _explains(excess, core, float(lost[row]), books.active_s(row)):
        also = f", and it waits {_ms(core)} longer for a core" if core > excess else ""
        text = f"{late}; its own {cause} is {_ms(excess)} longer than theirs in the same steps{also}"
        yield warn("perf.straggler-rank", text, remedy=Remedy(text=REMEDIES[cause]), **kept)
        return
    longer = [f"its {n} is {_ms(v)} longer" for n, v in ((cause, excess), ("waiting for a core", core)) if v > 0]
    why = " and ".join(longer) or "none of its own lines is longer"
    yield ok(f"{late}, but that is not proven to be its fault: {why}; next probe: swap its host or its data", **kept)


PERSISTENT = 0.7
"""Share of steps in which the same rank must come last; lateness that roams is the price of meeting, nobody's fault."""
LEAST_JUDGED = 7
"""Steps below which nobody is accused: one hiccup of the host covers most of five short steps (seen on a quiet machine
in one of six runs)."""
EVIDENCE = 0.7
"""Share of the lateness that lines of the late rank must explain."""
STARVED = 0.25
"""Share of the rank's step, waiting for a core left out, that its own excess must be where a part of the lateness was
waiting for a core: more work waits longer for a core too, but waiting alone is the neighbours' doing."""
OWN = ("compute", "input", "host")
"""Lines that are a rank's own doing; a rank without a core is late through its neighbours."""
REMEDIES = {
    "compute": "Give the rank's data to another device: if the delay stays, look at clocks, neighbours and placement.",
    "input": "Time that rank's loader alone; compare its storage path, workers and cache with another rank's.",
    "host": "Look for work that only this rank does: logging, evaluation, checkpoints, garbage collection.",
}


def _cause(books: Ledger, row: int) -> tuple[str, float, float]:
    """The own line in which a rank exceeds the median of the others most, by how many seconds, and by how many it
    exceeds them in waiting for a core (medians over steps)."""
    others = [r for r in range(len(books.step)) if r != row]

    def excess(name: str) -> float:
        return float(np.nanmedian(books.lines[name][row] - np.nanmedian(books.lines[name][others], axis=0)))

    cause = max(OWN, key=excess)
    return cause, excess(cause), excess("waiting for a core")


def _explains(excess: float, core: float, lost: float, active: float) -> bool:
    """Whether a rank's own excess is direct evidence for what its lateness cost."""
    if excess >= EVIDENCE * lost:
        return True
    return excess >= STARVED * active and excess + max(core, 0.0) >= EVIDENCE * lost


def _label(trace: TrainingTrace, row: int) -> str:
    """Positional where the rank's place in the model gives it other work than the rest, else persistent."""
    axes = trace.ranks[row].coords
    positional = [axis for axis in ("pp", "ep", "cp") if axis in axes]
    return f"positional, {positional[0]} {axes[positional[0]]}," if positional else "persistent,"
