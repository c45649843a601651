"""Pictures of what a job stands on: bandwidth by message size, how times spread, what a checkpoint holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ddaudit.evidence.collectives import CollectivePoint, CollectiveSweep
from ddaudit.jsonio import decode_number
from ddaudit.record import Record
from ddaudit.report.numbers import duration, number, quantity
from ddaudit.report.pictures import COLOURS, DASHES, Picture, figure, label_ends, svg
from ddaudit.report.safe import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["system"]

MAX_STRIPS = 16
MAX_BARS = 38
MAX_DOTS = 48
#: Launch phases as evidence names them, and as a reader does.
PHASES = {
    "spawn_s": "process starts",
    "load_s": "checks and probes load",
    "import_s": "torch imports",
    "rendezvous_s": "ranks meet",
    "first_collective_s": "first collective",
    "first_step_s": "until the first step ended",
}
Strip = tuple[str, Sequence[float]]


def system(record: Record) -> Iterator[Picture]:
    """Every picture that is not of training steps."""
    yield from _bandwidth(record)
    yield from _spreads(record)
    yield from _launch(record)
    yield from _coverage(record)


def _sweep(record: Record) -> tuple[str, CollectiveSweep] | None:
    """The first sweep of a run, and the step that made it."""
    for step in record.steps:
        if facts := step.evidence.get(CollectiveSweep.kind):
            try:
                return step.id, CollectiveSweep.model_validate(facts)
            except ValidationError:  # of another version; its findings are on the page all the same
                return None
    return None


def _bandwidth(record: Record) -> Iterator[Picture]:
    found = _sweep(record)
    if found is None:
        return
    step, sweep = found
    largest = max((len(p.group) for p in sweep.points), default=0)
    curves = {op: points for (op, group), points in sweep.curves().items() if len(group) == largest and len(points) > 1}
    if not curves:
        return
    title = f"Bus bandwidth of {largest} {visible(sweep.backend, 20)} ranks by size"
    best = {op: max(points, key=lambda p: p.busbw_gbps) for op, points in curves.items()}
    top = max(best, key=lambda op: best[op].busbw_gbps)
    low = min(best, key=lambda op: best[op].busbw_gbps)
    finding = (
        f"{top} reaches {number(best[top].busbw_gbps)} GB/s at {quantity(best[top].bytes, 'byte')}, "
        f"{low} at most {number(best[low].busbw_gbps)} GB/s; small messages pay for latency."
    )
    learned = _learned(record, step, curves)
    if learned:
        below = [op for op, (_, limit) in learned.items() if curves[op][-1].busbw_gbps < limit]
        told = f"{', '.join(below)} below its limit" if below else "none below its limit"
        finding += f" At the largest message a ring is the baseline's median and a bar its limit: {told}."
    with figure() as (fig, axes):
        _curves(axes, curves, learned)
        drawing = svg(fig, id="bandwidth", title=title, finding=finding)
    sizes = sorted({p.bytes for points in curves.values() for p in points})
    rows = [(quantity(size, "byte"), *(_at(points, size) for points in curves.values())) for size in sizes]
    for row, name in enumerate(("baseline", "limit") if learned else ()):
        rows.append((name, *(f"{number(learned[op][row])} GB/s" if op in learned else "–" for op in curves)))
    yield Picture("bandwidth", "communication", title, finding, drawing, ("size", *curves), rows)


def _learned(record: Record, step: str, curves: Mapping[str, object]) -> dict[str, tuple[float, float]]:
    """Median and limit of the baseline, by operation, where the run was compared with one."""
    found = {row.get("metric"): row for row in record.extra.get("compared", ()) if isinstance(row, Mapping)}
    learned = {}
    for op in curves:
        row = found.get(f"{step}.{op.replace('-', '_')}_busbw_gbps", {})
        median, limit = row.get("baseline"), row.get("limit")
        if isinstance(median, float) and isinstance(limit, float) and math.isfinite(median + limit):
            learned[op] = (median, limit)
    return learned


def _curves(
    axes: Axes, curves: Mapping[str, Sequence[CollectivePoint]], learned: Mapping[str, tuple[float, float]]
) -> None:
    names = ("blue", "red", "green", "purple", "orange", "grey")
    ends = []
    for index, (op, points) in enumerate(curves.items()):
        colour, dash = COLOURS[names[index % len(names)]], DASHES[index % len(DASHES)]
        values = [p.busbw_gbps for p in points]
        axes.plot([p.bytes for p in points], values, color=colour, linestyle=dash)
        ends.append((values[-1], op, colour))
        for y, marker in zip(learned.get(op, ()), ("o", "_"), strict=False):
            mark: dict[str, Any] = {"marker": marker, "fillstyle": "none", "markersize": 9}
            axes.plot([points[-1].bytes], [y], color=colour, clip_on=False, **mark)
    sizes = [p.bytes for points in curves.values() for p in points]
    axes.set_xscale("log", base=2)
    ticks = [4**k for k in range(31) if min(sizes) <= 4**k <= max(sizes)] or [min(sizes)]
    ticks = ticks[:: max(1, len(ticks) // 5)]
    axes.set_xticks(ticks, [quantity(t, "byte") for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(min(sizes), max(sizes))
    highest = max(p.busbw_gbps for ps in curves.values() for p in ps)
    axes.set_ylim(0, max(highest, *(y for pair in learned.values() for y in pair), 0.0) * 1.08)
    axes.set_xlabel("message size")
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.grid(axis="y")
    label_ends(axes, ends)


def _at(points: Sequence[CollectivePoint], size: int) -> str:
    return next((f"{number(p.busbw_gbps)} GB/s" for p in points if p.bytes == size), "–")


def _spreads(record: Record) -> Iterator[Picture]:
    """How long steps took and how long they waited for input, one strip for each step of the runbook."""
    named = (
        ("step_s", "compute", "spread-steps", "Jitter of steps", "s, of the slowest rank"),
        ("input_s", "input", "spread-input", "Waiting for input", "s, of the slowest rank"),
    )
    for key, area, id, title, unit in named:
        strips: list[Strip] = []
        for step in record.steps:
            table = step.exhibits.get("step-spread")
            values = table.get(key) if isinstance(table, Mapping) else None
            if values and len(values) >= 4:
                strips.append((visible(step.id, 24), [float(decode_number(v)) for v in values]))
        if strips:
            yield _strip_picture(id, area, title, unit, strips)


def _launch(record: Record) -> Iterator[Picture]:
    values: dict[str, list[float]] = {}
    for step in record.steps:
        for rank in step.evidence.get("launch-ledger", {}).get("ranks", ()):
            for key, name in PHASES.items():
                if isinstance(seconds := rank.get(key), int | float) and seconds > 1e-5:
                    values.setdefault(name, []).append(float(seconds))
    strips = [(name, _thinned(values[name])) for name in PHASES.values() if name in values]
    if strips:
        what = "s, of each rank"
        yield _strip_picture("launch", "scheduler", "Phases of a launch", what, strips)


def _thinned(values: Sequence[float]) -> list[float]:
    """At most 48 values, evenly spaced by rank; least and largest stay."""
    ordered = sorted(values)
    if len(ordered) <= MAX_DOTS:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (MAX_DOTS - 1))] for i in range(MAX_DOTS)]


def _strip_picture(id: str, area: str, title: str, axis: str, strips: Sequence[Strip]) -> Picture:
    known = [(name, sorted(v for v in values if math.isfinite(v) and v > 0)) for name, values in strips]
    known = [(name, values) for name, values in known if values]
    shown = sorted(known, key=lambda s: -_quantile(s[1], 0.95))[:MAX_STRIPS] if len(known) > MAX_STRIPS else known
    worst = max(shown, key=lambda s: _quantile(s[1], 0.95) / _quantile(s[1], 0.5))
    middle, tail = _quantile(worst[1], 0.5), _quantile(worst[1], 0.95)
    finding = (
        f"The longest tail is that of {worst[0]}: half take at most {duration(middle)}, one in twenty "
        f"{duration(tail)} or more ({tail / middle:.1f} times)."
    )
    with figure(height_in=0.75 + 0.21 * len(shown)) as (fig, axes):
        _strips(axes, shown)
        axes.set_xlabel(f"{axis}; tall mark p50, short p95")
        drawing = svg(fig, id=id, title=title, finding=finding)
    quantiles = (0.5, 0.95, 1.0)
    rows = [(name, str(len(v)), *(duration(_quantile(v, q)) for q in quantiles)) for name, v in shown]
    return Picture(id, area, title, finding, drawing, ("what", "values", "p50", "p95", "most"), rows)


def _strips(axes: Axes, strips: Sequence[Strip]) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    # One path of small strokes: a marker for each value would cost five times its bytes.
    strokes = [[(v, len(strips) - 1 - i + h) for h in (-0.13, 0.13)] for i, (_, vs) in enumerate(strips) for v in vs]
    rug = Path.make_compound_path(*(Path(stroke) for stroke in strokes))
    axes.add_patch(PathPatch(rug, fill=False, edgecolor=COLOURS["blue"], linewidth=1.6, alpha=0.6))
    for index, (_, values) in enumerate(strips):
        y = len(strips) - 1 - index
        axes.plot([_quantile(values, 0.5)] * 2, [y - 0.38, y + 0.38], color=COLOURS["ink"], linewidth=1.4)
        axes.plot([_quantile(values, 0.95)] * 2, [y - 0.22, y + 0.22], color=COLOURS["red"], linewidth=1.4)
    axes.set_xscale("log")
    low, high = min(v[0] for _, v in strips) * 0.8, max(v[-1] for _, v in strips) * 1.25
    ticks = _ticks(low, high)
    axes.set_xticks(ticks, [duration(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_yticks([len(strips) - 1 - i for i in range(len(strips))], [name for name, _ in strips])
    axes.set_ylim(-0.6, len(strips) - 0.4)
    axes.grid(axis="x")


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where fewer than three lie in the range, their double and fivefold too; else thirds of it."""
    tens = [10.0**k for k in range(-7, 7)]
    for factors in ((1,), (1, 2, 5)):
        found = [t * m for t in tens for m in factors if low <= t * m <= high]
        if len(found) > 2:
            return found[:: -(-len(found) // 6)]
    return [low + (high - low) * i / 3 for i in range(4)]


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: a value that was measured."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _coverages(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for step in record.steps:
        if isinstance(table := step.exhibits.get("coverage"), Mapping):
            yield step.id, table
    audited = record.extra.get("checkpoint")
    if isinstance(audited, Mapping) and audited.get("coverage"):
        yield str(audited.get("path", "")), {"layout": audited.get("layout"), "rows": audited["coverage"]}


def _coverage(record: Record) -> Iterator[Picture]:
    for index, (where, table) in enumerate(_coverages(record)):
        rows = [(visible(r["name"], 34), float(r["share"]), visible(r["note"], 300)) for r in table["rows"][:MAX_BARS]]
        gaps = [row for row in rows if row[1] < 1]
        finding = f"All {len(rows)} parts of {visible(where, 120)} ({visible(table['layout'], 40)}) are covered."
        if gaps:
            finding = f"{len(gaps)} of {len(rows)} parts have gaps; the first is {gaps[0][0]}: {gaps[0][2]}."
        id = "coverage" if index == 0 else f"coverage-{index + 1}"
        with figure(height_in=0.6 + 0.2 * len(rows)) as (fig, axes):
            _bars(axes, rows)
            drawing = svg(fig, id=id, title="Checkpoint coverage", finding=finding)
        cells = [(name, f"{share:.0%}", note) for name, share, note in rows]
        heads = ("part", "covered", "note")
        yield Picture(id, "checkpoint", "Checkpoint coverage", finding, drawing, heads, cells)


def _bars(axes: Axes, rows: Sequence[tuple[str, float, str]]) -> None:
    for index, (_, share, _) in enumerate(rows):
        y = len(rows) - 1 - index
        axes.barh(y, share * 100, 0.66, color=COLOURS["blue"])
        if share < 1:
            gap = (1 - share) * 100
            axes.barh(y, gap, 0.66, share * 100, facecolor="none", edgecolor=COLOURS["red"], linewidth=1)
            axes.text(101, y, "gap", va="center", color=COLOURS["red"])
    axes.set_yticks([len(rows) - 1 - i for i in range(len(rows))], [name for name, _, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(0, 112)
    axes.set_xticks([0, 25, 50, 75, 100], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("covered")
