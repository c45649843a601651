"""``auto``: the quickest layout that fits, and why the others lost."""

from __future__ import annotations

from dataclasses import replace

from ddaudit.evidence.forecast import Prediction, Rejected
from ddaudit.forecast.layout import Layout
from ddaudit.forecast.layouts import candidates, family
from ddaudit.forecast.predict import Outlook, predict
from ddaudit.forecast.step import TERMS, Terms, step_terms

__all__ = ["best"]

#: Families that the table of losers shows at most.
SHOWN = 8
#: Times closer than this are a tie, which the layout with fewer axes wins: simpler to run, and within the error.
TIE = 0.01


def best(outlook: Outlook, devices: int, batch: int) -> Prediction | str:
    """The layout of ``devices`` devices with the shortest step among those that fit; a sentence where none does."""
    subject, machine = outlook.subject, outlook.calibrated.machine
    limit = outlook.limit_bytes
    timed: list[tuple[float, Layout, Terms]] = []
    full: dict[str, tuple[float, Layout]] = {}
    for layout in candidates(subject.shape, devices, batch, min(machine.network.node_size, 64)):
        used = outlook.memory(layout).total
        name = family(layout)
        if limit is not None and used > limit:
            if name not in full or used < full[name][0]:
                full[name] = (used, layout)
            continue
        terms = step_terms(subject.shape, layout, machine, subject.width, round(subject.states.gradient))
        timed.append((terms.total, layout, terms))
    if not timed:
        return _nowhere(devices, batch, full, limit)
    quickest = min(seconds for seconds, _, _ in timed)
    _, winner, terms = min((t for t in timed if t[0] <= quickest * (1 + TIE)), key=lambda t: (_axes(t[1]), t[0]))
    return predict(outlook, winner, _losers(winner, terms, timed, full, limit))


def _axes(layout: Layout) -> int:
    sizes = (layout.dp, layout.sharded, layout.tp, layout.pp, layout.ep)
    return sum(size > 1 for size in sizes) + (layout.virtual_stages > 1) + (layout.recompute != "none")


def _nowhere(devices: int, batch: int, full: dict[str, tuple[float, Layout]], limit: float | None) -> str:
    if not full or limit is None:
        return (
            f"no layout cuts a batch of {batch} over {devices} devices; use a batch that their number divides,"
            " or fewer devices"
        )
    used, layout = min(full.values(), key=lambda pair: pair[0])
    return (
        f"no layout of {devices} devices fits: the smallest, {layout}, needs {used / 2**30:.1f} GiB of"
        f" {limit / 2**30:.1f}; use more devices, a smaller micro-batch or sequence, or a device with more memory"
    )


def _losers(
    winner: Layout,
    terms: Terms,
    timed: list[tuple[float, Layout, Terms]],
    full: dict[str, tuple[float, Layout]],
    limit: float | None,
) -> tuple[Rejected, ...]:
    """The best layout of every other family, quickest first, then those that do not fit."""
    best_of: dict[str, tuple[float, Layout, Terms]] = {}
    for item in sorted(timed, key=lambda t: t[0]):
        best_of.setdefault(family(item[1]), item)
    own = family(winner)
    lost = [
        Rejected(layout=str(layout), step_s=seconds, why=_why(terms, other))
        for name, (seconds, layout, other) in best_of.items()
        if name != own
    ]
    small = [
        Rejected(
            layout=str(replace(layout)), step_s=None, why=f"needs {used / 2**30:.0f} GiB of {(limit or 0) / 2**30:.0f}"
        )
        for name, (used, layout) in full.items()
        if name not in best_of
    ]
    return tuple(lost[:SHOWN] + small[: max(0, SHOWN - len(lost))])


def _why(winner: Terms, loser: Terms) -> str:
    """The term in which it loses most."""
    if loser.total <= winner.total * (1 + TIE):
        return "as quick within the model's error"
    worst = max(TERMS, key=lambda name: getattr(loser, name) - getattr(winner, name))
    more = getattr(loser, worst) - getattr(winner, worst)
    return f"{loser.total / winner.total:.2f}x the step; {worst} takes {more:.3g} s more"
