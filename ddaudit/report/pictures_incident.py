"""The timeline of an incident: who was doing what when it broke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ddaudit.evidence.incident import IncidentFacts, Moment
from ddaudit.record import Record
from ddaudit.report.numbers import duration
from ddaudit.report.pictures import COLOURS, Picture, figure, svg
from ddaudit.report.safe import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["finding_of", "incident"]

#: Lanes that a picture holds; those without a cause or a sign go first.
MAX_LANES = 14
#: What lies further before the first step or sign than this many times the rest's length is told in the table only.
FAR = 3.0
TITLE = "Timeline of the incident"
_ROWS = TypeAdapter(tuple[Moment, ...])
_LOOK = {
    "cause": ("D", "red", 9.0),
    "sign": ("o", "orange", 6.0),
    "aside": ("x", "grey", 6.0),
    "restart": ("|", "blue", 14.0),
}
_WORDS = {
    "steps": "training",
    "cause": "cause",
    "sign": "evidence",
    "wait": "waiting",
    "aside": "not it",
    "restart": "restart",
}


def incident(record: Record) -> Iterator[Picture]:
    """One picture, when a record's incident has at least two dated rows."""
    rows = _rows(record)
    near = _near(rows)
    if len(near) < 2:
        return
    finding = finding_of(rows)
    lanes = _lanes(near)
    with figure(height_in=1.1 + 0.27 * len(lanes)) as (fig, axes):
        _draw(axes, [m for m in near if m.lane in lanes], lanes)
        drawing = svg(fig, id="incident-timeline", title=TITLE, finding=finding)
    table = [
        (_clock(m.start_s), visible(m.lane, 60), _WORDS[m.what], _long(m), visible(f"{m.file}:{m.line}", 120))
        for m in rows
    ]
    yield Picture(
        "incident-timeline", "incident", TITLE, finding, drawing, ("when", "where", "what", "line", "file"), table
    )


def _rows(record: Record) -> tuple[Moment, ...]:
    """The timeline of the triage, or of the last step that recorded one; nothing from a record of another version."""
    found: Any = record.extra.get("incident")
    rows = found.get("timeline") if isinstance(found, Mapping) else None
    for step in record.steps:
        facts = step.evidence.get(IncidentFacts.kind)
        rows = facts.get("timeline", rows) if isinstance(facts, Mapping) else rows
    try:
        return _ROWS.validate_python(rows or ())
    except ValidationError:
        return ()


def _near(rows: Sequence[Moment]) -> list[Moment]:
    """Rows of the incident itself: an event of last week would press everything else into one point."""
    own = [m for m in rows if m.what != "aside"]
    if not own:
        return []
    start, end = min(m.start_s for m in own), max(m.end_s or m.start_s for m in own)
    reach = FAR * max(end - start, 60.0)
    return [m for m in rows if m.what != "aside" or start - reach <= m.start_s <= end + reach]


def _lanes(rows: Sequence[Moment]) -> list[str]:
    """Names of lanes from top to bottom: the job, then those of the cause, then the rest."""
    weight = {"steps": 0, "restart": 0, "cause": 1, "sign": 2, "wait": 3, "aside": 4}
    best: dict[str, int] = {}
    for moment in rows:
        best[moment.lane] = min(weight[moment.what], best.get(moment.lane, 9))
    return sorted(best, key=lambda lane: (best[lane], len(lane), lane))[:MAX_LANES]


def _draw(axes: Axes, rows: Sequence[Moment], lanes: Sequence[str]) -> None:
    zero = min(m.start_s for m in rows)
    for moment in rows:
        y, x = lanes.index(moment.lane), moment.start_s - zero
        if moment.end_s is not None:
            trained = moment.what == "steps"
            colour, height = (COLOURS["blue"], 0.5) if trained else (COLOURS["sky"], 0.22)
            axes.barh(y, max(moment.end_s - moment.start_s, 0.0), left=x, height=height, color=colour)
        else:
            marker, name, size = _LOOK[moment.what]
            axes.plot([x], [y], marker=marker, markersize=size, color=COLOURS[name], linestyle="none")
    axes.set_yticks(range(len(lanes)), [visible(lane, 30) for lane in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.04 * (high - low))
    axes.xaxis.set_major_formatter(lambda value, _: _clock(zero + value, short=True))
    axes.locator_params(axis="x", nbins=5)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("time of day, the job's clock")


def finding_of(rows: Sequence[Moment]) -> str:
    """What the timeline shows, in a sentence."""
    cause = next((m for m in rows if m.what == "cause"), None)
    waits = [m for m in rows if m.what == "wait"]
    steps = next((m for m in rows if m.what == "steps"), None)
    if cause is None:
        return (
            f"{len(rows)} dated lines, none of them of a cause; {_after(waits)}"
            if waits
            else f"{len(rows)} dated lines, none of them of a cause."
        )
    where, begun, told = (
        visible(cause.lane, 60),
        cause.start_s,
        f"The cause shows on {visible(cause.lane, 60)} at {_clock(cause.start_s)}",
    )
    if waits and (first := min(m.start_s for m in waits)) < cause.start_s:
        begun, told = first, f"{len(waits)} ranks began to wait at {_clock(first)} for what shows on {where}"
    if steps is not None and steps.end_s is not None and begun >= steps.end_s:
        told += f", {duration(begun - steps.end_s)} after the last step"
    if waits and (gave_up := min(m.end_s or m.start_s for m in waits)) > begun:
        told += f"; the first to wait gave up {duration(gave_up - begun)} later"
    return told + "."


def _after(waits: Sequence[Moment]) -> str:
    first = min(waits, key=lambda m: m.start_s)
    return f"{visible(first.lane, 30)} began to wait first, at {_clock(first.start_s)}."


def _long(moment: Moment) -> str:
    span = f" ({duration(moment.end_s - moment.start_s)})" if moment.end_s is not None else ""
    return visible(moment.text, 200) + span


def _clock(moment: float, *, short: bool = False) -> str:
    when = datetime.fromtimestamp(moment, UTC)
    # 2000 is what the reader assumes where no line names a year.
    form = "%H:%M:%S" if short else "%m-%d %H:%M:%S" if when.year == 2000 else "%Y-%m-%d %H:%M:%S"
    return when.strftime(form)
