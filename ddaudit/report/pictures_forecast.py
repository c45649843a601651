"""Pictures of a forecast: the step's terms and the efficiency by number of devices, and memory against capacity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ddaudit.evidence.forecast import ForecastFacts, Prediction
from ddaudit.record import Record
from ddaudit.report.numbers import duration, quantity
from ddaudit.report.pictures import COLOURS, Picture, figure, svg
from ddaudit.report.safe import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["forecast"]

#: Sizes that a picture shows at most, and terms beside "other".
MAX_SIZES, MAX_TERMS = 12, 6
FILLS = ("blue", "orange", "green", "red", "purple", "sky", "grey")
#: Straight lines only: a hatch of dots is 250 circles for each colour, 40 kB a picture.
HATCHES = ("", "//", "||", "xx", "--", "\\\\", "")


def forecast(record: Record) -> Iterator[Picture]:
    """The pictures of the last forecast in a record that predicts two sizes or more."""
    facts = _facts(record)
    if facts is None:
        return
    sizes = {p.devices: p for p in (*facts.predictions, facts.base)}
    shown = [sizes[n] for n in sorted(sizes)][:MAX_SIZES]
    if len(shown) < 2:
        return
    yield _steps(facts, shown)
    yield _memory(facts, shown)


def _facts(record: Record) -> ForecastFacts | None:
    for step in reversed(record.steps):
        if told := step.evidence.get(ForecastFacts.kind):
            try:
                return ForecastFacts.model_validate(told)
            except ValidationError:  # of another version; its findings are on the page all the same
                return None
    return None


def _steps(facts: ForecastFacts, shown: Sequence[Prediction]) -> Picture:
    """Stacked seconds of a step by term, and the efficiency as a line."""
    last = shown[-1]
    title = f"Forecast step time by term: {visible(facts.model, 60)}"
    finding = (
        f"{last.devices} devices: {last.verdict}, {last.speedup.low:.2f}x to {last.speedup.high:.2f}x of"
        f" {facts.base.devices}; {visible(last.reason, 200)}."
    )
    names = _terms(shown)
    with figure(height_in=3.0) as (fig, axes):
        _stack(axes, shown, names)
        axes.set_ylabel("seconds of a step")
        right = axes.twinx()
        right.plot(range(len(shown)), [p.efficiency for p in shown], color=COLOURS["ink"], marker="o", markersize=3)
        right.set_ylim(0, max(1.05, *(p.efficiency for p in shown)))
        right.set_ylabel("share of the ideal speedup (line)")
        drawing = svg(fig, id="forecast-step", title=title, finding=finding)
    heads = ("devices", "step", "speedup", "of ideal", "limiter", *names)
    rows = [
        (
            str(p.devices), f"{duration(p.step_s.low)} to {duration(p.step_s.high)}", f"{p.speedup.mid:.2f}x",
            f"{p.efficiency:.0%}", visible(p.limiter, 40), *(duration(_seconds(p, n, names)) for n in names),
        )
        for p in shown
    ]  # fmt: skip
    return Picture("forecast-step", "forecast", title, finding, drawing, heads, rows)


def _terms(shown: Sequence[Prediction]) -> list[str]:
    """The terms that matter most in any size, and what is left."""
    largest: dict[str, float] = {}
    for one in shown:
        for name, seconds in one.terms.items():
            largest[name] = max(largest.get(name, 0.0), seconds / one.step_s.mid)
    ordered = sorted(largest, key=lambda name: -largest[name])
    return [visible(name, 40) for name in ordered[:MAX_TERMS]] + (["other"] if len(ordered) > MAX_TERMS else [])


def _seconds(one: Prediction, name: str, names: Sequence[str]) -> float:
    if name != "other":
        return one.terms.get(name, 0.0)
    return sum(seconds for term, seconds in one.terms.items() if term not in names)


def _stack(axes: Axes, shown: Sequence[Prediction], names: Sequence[str]) -> None:
    below = [0.0] * len(shown)
    for name, fill, hatch in zip(names, FILLS, HATCHES, strict=False):
        heights = [_seconds(p, name, names) for p in shown]
        axes.bar(range(len(shown)), heights, bottom=below, color=COLOURS[fill], hatch=hatch, width=0.6, label=name)
        below = [b + h for b, h in zip(below, heights, strict=True)]
    low = [max(0.0, p.step_s.mid - p.step_s.low) for p in shown]
    high = [max(0.0, p.step_s.high - p.step_s.mid) for p in shown]
    axes.errorbar(range(len(shown)), below, yerr=[low, high], fmt="none", ecolor=COLOURS["quiet"], capsize=3)
    axes.set_xticks(range(len(shown)), [str(p.devices) for p in shown])
    axes.set_xlabel("devices")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def _memory(facts: ForecastFacts, shown: Sequence[Prediction]) -> Picture:
    """Bytes of the fullest rank by kind, and the device's capacity as a line."""
    limit = facts.memory_limit_bytes
    most = max(shown, key=lambda p: p.memory_bytes)
    room = f" of {quantity(limit, 'byte')}" if limit else ""
    title = "Forecast memory of the fullest rank by kind"
    finding = f"At most {quantity(most.memory_bytes, 'byte')}{room}, on {most.devices} devices."
    kinds = [name for name in shown[0].memory if any(p.memory.get(name, 0) > 0 for p in shown)][: len(FILLS)]
    unit, size = ("GiB", 2**30) if most.memory_bytes >= 2**30 else ("MiB", 2**20)
    with figure(height_in=3.0) as (fig, axes):
        below = [0.0] * len(shown)
        for name, fill, hatch in zip(kinds, FILLS, HATCHES, strict=False):
            heights = [p.memory.get(name, 0.0) / size for p in shown]
            axes.bar(range(len(shown)), heights, bottom=below, color=COLOURS[fill], hatch=hatch, width=0.6, label=name)
            below = [b + h for b, h in zip(below, heights, strict=True)]
        if limit and limit < 20 * most.memory_bytes:
            axes.axhline(limit / size, color=COLOURS["ink"], linestyle="--", label="capacity")
        axes.set_xticks(range(len(shown)), [str(p.devices) for p in shown])
        axes.set_xlabel("devices")
        axes.set_ylabel(unit)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
        drawing = svg(fig, id="forecast-memory", title=title, finding=finding)
    heads = ("devices", "layout", "total", *kinds)
    rows = [
        (str(p.devices), visible(p.layout, 120), quantity(p.memory_bytes, "byte"),
         *(quantity(p.memory.get(name, 0.0), "byte") for name in kinds))
        for p in shown
    ]  # fmt: skip
    return Picture("forecast-memory", "forecast", title, finding, drawing, heads, rows)
