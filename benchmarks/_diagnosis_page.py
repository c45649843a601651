"""The scoreboard as a table and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks._diagnosis_cells import Result

__all__ = ["page", "table"]

TITLE = "# Scoreboard of the step-time verdict\n"

HONEST = """\
## What two cores cannot tell apart

- Two ranks fill the machine: loader workers, the backend's threads and a neighbour compete with the ranks for the
  same cores. Waiting for a core is counted by the kernel and kept apart, but its price is what the pairs of runs show
  on that day, not a constant.
- A thread storm in loader workers and a loader that is too slow for want of cores look alike from outside: the window
  with stopped workers tells them apart only where the workers run more threads than cores.
- With two ranks "the last to come" and "the slower of two" are the same thing: an outlier among many needs more ranks.
- A slow wire between processes of one host is a delay that was put into the collective. Real interfaces (rate, delay,
  the wrong one) need two hosts or network namespaces.
- There is no device here: a slow device is a rank that sleeps in its forward pass. Clocks, heat, ECC and NVLink are
  covered by `devices.*` on a stub of NVML, not by this table.
- On a CPU `.item()` waits for nothing, so a forced sync is a collective for the loop's own records.
"""


def table(results: Sequence[Result]) -> str:
    """One line a cell, then the totals."""
    return cells(results) + "\n\n" + totals(results)


def cells(results: Sequence[Result]) -> str:
    """One line a cell."""
    lines = ["| cell | strength | planted | named | rank | price told | price planted | error |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for r in results:
        rank = "" if r.cell.rank is None else f"{_or_dash(r.rank)} of {r.cell.rank}"
        error = "" if r.price_error is None else f"{r.price_error:+.0%}"
        mark = "" if r.right else " **wrong**"
        row = (
            r.cell.name,
            r.strength,
            r.cell.cause,
            r.named + mark,
            rank,
            _number(r.told),
            _number(r.planted),
            error,
        )
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def totals(results: Sequence[Result]) -> str:
    """Shares of right causes, ranks and prices, and false alarms."""
    plants = [r for r in results if r.cell.plant and r.cell.cause != "healthy"]
    healthy = [r for r in results if r.cell.cause == "healthy"]
    ranked = [r for r in plants if r.right_rank is not None]
    priced = [r for r in plants if r.planted]
    near = sum(r.price_error is not None and abs(r.price_error) <= 0.25 for r in priced)
    lines = [
        f"- right cause: {_share(sum(r.right for r in plants), len(plants))}",
        f"- right rank, where one is guilty: {_share(sum(bool(r.right_rank) for r in ranked), len(ranked))}",
        f"- price within 25 % of the planted cost: {_share(near, len(priced))}",
        f"- false alarms on healthy runs: {sum(not r.right for r in healthy)} of {len(healthy)}",
        f"- healthy runs with an unproven suspect: {sum(r.named == 'unproven' for r in healthy)} of {len(healthy)}",
    ]
    return "\n".join(lines)


def confusion(results: Sequence[Result]) -> str:
    """Planted causes by row, named ones by column, counts."""
    pairs = Counter((r.cell.cause, r.named) for r in results)
    named = sorted({n for _, n in pairs})
    lines = ["| planted | " + " | ".join(named) + " |", "|---" * (len(named) + 1) + "|"]
    lines += [
        f"| {cause} | " + " | ".join(str(pairs[cause, n] or ".") for n in named) + " |"
        for cause in sorted({c for c, _ in pairs})
    ]
    return "\n".join(lines)


def page(results: Sequence[Result], command: str, told: str) -> str:
    """The page as Markdown."""
    parts = [
        TITLE,
        f"Made by `{command}` ({told}). Prices in ms a step, for growing memory in MB a step.\n",
        "## Confusion matrix\n",
        confusion(results) + "\n",
        totals(results) + "\n",
        "## Cells\n",
        cells(results) + "\n",
        HONEST,
    ]
    return "\n".join(parts)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none tried"
