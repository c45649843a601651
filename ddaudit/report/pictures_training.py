"""Pictures of training steps: where a step's time goes, ranks against steps, the loss curve, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddaudit.jsonio import decode_number
from ddaudit.record import Record, StepRecord
from ddaudit.report.numbers import duration, quantity
from ddaudit.report.pictures import COLOURS, DASHES, Picture, figure, label_ends, svg
from ddaudit.report.safe import visible
from ddaudit.report.scene import capacity, parallelism, world_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["training"]

MAX_BARS = 24
MAX_PEAKS = 12
#: Lines of the ledger in the order in which they are stacked, each with its colour.
LINES: dict[str, str] = {
    "compute": "blue",
    "communication": "orange",
    "peer wait": "red",
    "stage wait": "purple",
    "input": "green",
    "host": "sky",
    "waiting for a core": "grey",
    "unexplained": "yellow",
}
LEVELS = 6
"""Shades of a heat map: more than a reader can tell apart only adds bytes."""
SLOW = 1.5
"""A cell this many times the median is marked: it is read without its colour."""


def training(record: Record) -> Iterator[Picture]:
    """Every picture that the exhibits of training steps give."""
    yield from _losses(record)
    yield from _ledgers(record)
    yield from _heat(record)
    yield from _memory(record)


def _having(record: Record, exhibit: str) -> list[tuple[StepRecord, Mapping[str, Any]]]:
    found = [(step, step.exhibits.get(exhibit)) for step in record.steps]
    return [(step, table) for step, table in found if isinstance(table, Mapping)]


def _name(record: Record, step: StepRecord) -> str:
    kind = parallelism(record, step)
    same = kind is None or kind in step.id
    return visible(step.id if same else f"{step.id} ({kind})", 28)


def _ledgers(record: Record) -> Iterator[Picture]:
    found = _having(record, "ledger")
    ranks = {step.id: world_size(step) or 1 for step, _ in found}
    shown = found if len(found) <= MAX_BARS else sorted(found, key=lambda f: -ranks[f[0].id])[:MAX_BARS]
    if not shown:
        return
    names = [_name(record, step) for step, _ in shown]
    books = [{line: max(0.0, float(table["lines"].get(line, 0.0))) for line in LINES} for _, table in shown]
    used = [line for line in LINES if any(book[line] > 0 for book in books)]
    finding = _ledger_finding(names, books)
    with figure(height_in=0.75 + 0.2 * len(shown)) as (fig, axes):
        _stack(axes, names, [[book[line] * 1e3 for book in books] for line in used], used)
        axes.set_xlabel("ms of a typical step, on the rank that the others wait for")
        fig.legend(loc="outside upper center", ncols=min(4, len(used)), columnspacing=1.0)
        drawing = svg(fig, id="ledger", title="Where a step goes", finding=finding)
    rows = [
        (name, str(table["rank"]), duration(table["step_s"]), *(duration(book[line]) for line in used))
        for name, (_, table), book in zip(names, shown, books, strict=True)
    ]
    yield Picture("ledger", "compute", "Where a step goes", finding, drawing, ("step", "rank", "whole", *used), rows)


def _stack(axes: Axes, names: Sequence[str], layers: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """Horizontal stacked bars, first name at the top."""
    at = [len(names) - 1 - i for i in range(len(names))]
    left = [0.0] * len(names)
    for layer, label in zip(layers, labels, strict=True):
        colour = COLOURS[LINES.get(label, "blue")]
        axes.barh(at, layer, 0.72, left, color=colour, label=label, edgecolor=COLOURS["page"], linewidth=0.4)
        left = [a + b for a, b in zip(left, layer, strict=True)]
    axes.set_yticks(at, list(names))
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(0, (max(left) or 1.0) * 1.02)
    axes.grid(axis="x")


def _ledger_finding(names: Sequence[str], books: Sequence[Mapping[str, float]]) -> str:
    """The step with the largest share that is not compute, and that share; else that compute leads everywhere."""
    shares = []
    for name, book in zip(names, books, strict=True):
        whole = sum(book.values()) or 1.0
        line = max((item for item in LINES if item != "compute"), key=lambda item: book[item])
        shares.append((book[line] / whole, name, line))
    share, name, line = max(shares)
    if share < 0.2:
        return (
            f"Compute is the largest part of all {len(names)} steps; nothing else takes more than {share:.0%} of one."
        )
    return f"{line.capitalize()} takes {share:.0%} of a typical step of {name}, the largest share outside compute."


def _heat(record: Record) -> Iterator[Picture]:
    """The step with most ranks, and of those with most columns."""
    found = [f for f in _having(record, "step-times") if len(f[1]["rows"]) > 1]
    if not found:
        return
    step, table = max(found, key=lambda f: (world_size(f[0]) or 0, len(f[1]["steps"])))
    seconds = [[float(decode_number(v)) for v in row] for row in table["seconds"]]
    known = sorted(v for row in seconds for v in row if math.isfinite(v))
    if not known:
        return
    middle = known[len(known) // 2]
    labels = [visible(row, 24) for row in table["rows"]]
    finding = _heat_finding(step, table, seconds, labels, middle)
    with figure(height_in=0.9 + 0.16 * len(labels)) as (fig, axes):
        _cells(axes, seconds, known[-1], middle)
        axes.set_yticks([y + 0.5 for y in range(len(labels))], labels, fontsize=7)
        columns = table["steps"]
        ticks = sorted({round(i * (len(columns) - 1) / 5) for i in range(6)})
        axes.set_xticks([t + 0.5 for t in ticks], [str(columns[t]) for t in ticks])
        axes.set_xlabel(f"training step; darker is longer, up to {duration(known[-1])}; × marks {SLOW} x the median")
        drawing = svg(fig, id="heat", title=_heat_title(step, table), finding=finding)
    heads = (str(table["by"]), "median", "longest", "in step")
    rows = [_heat_row(label, row, table["steps"]) for label, row in zip(labels, seconds, strict=True)]
    yield Picture("heat", "compute", _heat_title(step, table), finding, drawing, heads, rows)


def _heat_title(step: StepRecord, table: Mapping[str, Any]) -> str:
    return f"Step time by {table['by']} in {visible(step.id, 60)}"


def _heat_row(label: str, row: Sequence[float], steps: Sequence[int]) -> tuple[str, ...]:
    known = [(v, s) for v, s in zip(row, steps, strict=True) if math.isfinite(v)]
    if not known:
        return label, "–", "–", "–"
    longest, at = max(known)
    return label, duration(sorted(v for v, _ in known)[len(known) // 2]), duration(longest), str(at)


def _heat_finding(
    step: StepRecord, table: Mapping[str, Any], seconds: Sequence[Sequence[float]], labels: Sequence[str], middle: float
) -> str:
    medians = [sorted(v for v in row if math.isfinite(v)) for row in seconds]
    typical = [row[len(row) // 2] if row else math.nan for row in medians]
    worst = max(range(len(labels)), key=lambda i: -1.0 if math.isnan(typical[i]) else typical[i])
    slow = sum(v >= SLOW * middle for row in seconds for v in row if math.isfinite(v))
    cells = sum(len(row) for row in medians)
    left = f"; the {table['left_out']} fastest are left out" if table.get("left_out") else ""
    if typical[worst] >= 1.1 * middle:
        return (
            f"{table['by'].capitalize()} {labels[worst]} takes {typical[worst] / middle:.2f} times the median "
            f"{duration(middle)} of all in {visible(step.id, 60)}{left}."
        )
    return (
        f"No {table['by']} is slower than the others as a rule; {slow} of {cells} cells are at least {SLOW} times "
        f"the median {duration(middle)}{left}."
    )


def _cells(axes: Axes, seconds: Sequence[Sequence[float]], high: float, middle: float) -> None:
    """One path for each shade, so that a cell costs a few bytes."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    low = min(v for row in seconds for v in row if math.isfinite(v))
    shades: dict[int, list[Any]] = {}
    for y, row in enumerate(seconds):
        for x, value in enumerate(row):
            if math.isfinite(value):
                level = round((value - low) / (high - low or 1.0) * LEVELS)
                box = [(x, y + 0.06), (x + 1, y + 0.06), (x + 1, y + 0.94), (x, y + 0.94), (x, y + 0.06)]
                shades.setdefault(level, []).append(Path(box, closed=True))
                if value >= SLOW * middle:
                    axes.text(x + 0.5, y + 0.5, "×", ha="center", va="center", fontsize=6.5)
    for level, boxes in sorted(shades.items()):
        shade = 0.08 + 0.5 * level / LEVELS
        axes.add_patch(PathPatch(Path.make_compound_path(*boxes), fc=COLOURS["blue"], lw=0, alpha=shade))
    axes.set_xlim(0, max(len(row) for row in seconds))
    axes.set_ylim(len(seconds), 0)
    axes.spines[:].set_visible(False)


def _losses(record: Record) -> Iterator[Picture]:
    """The longest run, between what a guess costs and what no honest loss goes below."""
    found = _having(record, "loss")
    if not found:
        return
    step, table = max(found, key=lambda f: f[1]["steps"][-1] - f[1]["steps"][0])
    job = step.evidence.get("training", {}).get("job", {})
    steps, nats = table["steps"], [float(decode_number(v)) for v in table["nats"]]
    known = [v for v in nats if math.isfinite(v)]
    if not known:
        return
    marks = [("uniform guess", job.get("loss_start_nats")), ("entropy floor", job.get("entropy_nats"))]
    marks = [(name, float(value)) for name, value in marks if isinstance(value, int | float)]
    finding = _loss_finding(step, nats, dict(marks))
    with figure() as (fig, axes):
        axes.plot(steps, nats, color=COLOURS["blue"])
        axes.set_xlim(steps[0], steps[-1])
        axes.set_ylim(min([*known, *(v for _, v in marks)]) * 0.94, max([*known, *(v for _, v in marks)]) * 1.05)
        for (_, value), dash in zip(marks, DASHES[1:], strict=False):
            axes.axhline(value, color=COLOURS["quiet"], linestyle=dash, linewidth=1.0)
        label_ends(axes, [(value, name, COLOURS["quiet"]) for name, value in marks])
        axes.set_xlabel("training step")
        axes.set_ylabel("loss, nat/token")
        axes.grid(axis="y")
        drawing = svg(fig, id="loss", title="Loss curve", finding=finding)
    thin = sorted({round(i * (len(steps) - 1) / 19) for i in range(20)})
    rows = [(str(steps[i]), quantity(nats[i], "nat/token")) for i in thin]
    rows += [(name, quantity(value, "nat/token")) for name, value in marks]
    yield Picture("loss", "loss", "Loss curve", finding, drawing, ("training step", "loss"), rows)


def _loss_finding(step: StepRecord, nats: Sequence[float], marks: Mapping[str, float]) -> str:
    first, last = nats[0], nats[-1]
    told = f"In {visible(step.id, 60)} the loss goes from {first:.4g} to {last:.4g} nat/token"
    start, floor = marks.get("uniform guess"), marks.get("entropy floor")
    if start is None or floor is None or not start > floor or not math.isfinite(last):
        return f"{told}."
    where = "below the floor, which no honest loss reaches" if last < floor else ""
    way = (start - last) / (start - floor)
    span = f"{way:.0%} of the way from a uniform guess ({start:.4g}) to the entropy floor ({floor:.4g})"
    return f"{told}, {where or span}."


def _memory(record: Record) -> Iterator[Picture]:
    found = _having(record, "memory")
    kinds = {table["kind"] for _, table in found}
    if not found:
        return
    kind = "device" if "device" in kinds else "process"
    shown = [(s, t) for s, t in found if t["kind"] == kind]
    shown = sorted(shown, key=lambda f: -f[1]["peak_bytes"])[:MAX_PEAKS]
    limit = capacity(record, kind)
    names = [_name(record, step) for step, _ in shown]
    peaks = [float(table["peak_bytes"]) for _, table in shown]
    finding = _memory_finding(names[0], peaks[0], kind, limit)
    unit, size = ("GiB", 2**30) if peaks[0] >= 2**30 else ("MiB", 2**20)
    with figure(height_in=0.75 + 0.2 * len(shown)) as (fig, axes):
        _stack(axes, names, [[p / size for p in peaks]], ["peak"])
        if limit and limit < 4 * peaks[0]:
            axes.axvline(limit / size, color=COLOURS["red"], linestyle="--", linewidth=1.2)
            axes.set_xlim(0, max(limit, peaks[0]) / size * 1.05)
            axes.text(limit / size, len(names) - 0.45, "capacity", ha="right", va="bottom", color=COLOURS["red"])
        owner = "on the device of" if kind == "device" else "resident in the process of"
        axes.set_xlabel(f"{unit} at most {owner} any rank")
        drawing = svg(fig, id="memory", title="Memory", finding=finding)
    rows = [
        (name, str(len(table["ranks"])), quantity(min(r["bytes"] for r in table["ranks"]), "byte"), quantity(p, "byte"))
        for name, (_, table), p in zip(names, shown, peaks, strict=True)
    ]
    yield Picture("memory", "memory", "Memory", finding, drawing, ("step", "ranks", "least", "most"), rows)


def _memory_finding(name: str, peak: float, kind: str, limit: float | None) -> str:
    where = "device memory" if kind == "device" else "resident memory of a rank"
    told = f"{name} needs most: {quantity(peak, 'byte')} of {where}"
    if limit is None:
        return f"{told}; the capacity was not recorded."
    return f"{told}, {peak / limit:.0%} of the {quantity(limit, 'byte')} there is."
