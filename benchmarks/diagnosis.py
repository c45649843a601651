"""The scoreboard of the step-time verdict: planted causes and healthy runs, and what the verdict called them.

``python -m benchmarks.diagnosis [--only NAME ...] [--strength weak|strong] [--quick] [--busy] [--keep FILE] [--write]``
from the repository root, on a quiet machine with 2 cores or more; all of it takes about half an hour there. Every cell
trains two gloo ranks with A/B windows and asks the check ``bottleneck.verdict`` (growth of memory: ``memory.growth``).
The price of a plant is known where it sleeps or computes for a known time. Elsewhere it rests in some windows of the
run that is judged, which the verdict does not look at; where it acts outside the rank or cannot rest, steps with it are
compared with steps without it, in short runs that alternate. ``--busy`` leaves plants and verdicts out that others on
the cores decide; ``--keep`` appends each cell to a file, and skips those that it holds already; ``--write`` writes
``docs/scoreboard.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._diagnosis_cells import CELLS, HEALTHY, Cell, Result
from benchmarks._diagnosis_page import page, table
from checks._bottleneck import BottleneckLimits
from checks._windows import View
from checks.bottleneck_verdict import verdict
from checks.memory import growth
from ddaudit.api import Limit, TrainingTrace
from ddaudit.findings import Finding
from ddaudit.training.faults import params_for
from tests.training.ranks import trained_all

PAIRS, PAIR_STEPS = 2, 24
PAGE = Path("docs/scoreboard.md")


def runs_of(cell: Cell, strength: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Parameters of a cell's runs: the judged one, and pairs to learn the price from where it is not known."""
    plain: dict[str, Any] = {"parallel": "data", **cell.params}
    if cell.plant:
        plain |= {k: v for k, v in params_for(cell.plant, str(plain["parallel"])).items() if k not in cell.params}
    fault = {"plant": cell.plant, "plant_ms": cell.ms(strength)} if cell.plant else {}
    runs = {"judged": {**plain, **fault, "steps": 4, "rounds": rounds, "windows": cell.windows(plain)}}
    if cell.price == "pairs":
        for pair in range(PAIRS):
            runs[f"without/{pair}"] = {**plain, **cell.twin, "steps": PAIR_STEPS}
            runs[f"with/{pair}"] = {**plain, **fault, "steps": PAIR_STEPS}
    return runs


def limits(busy: bool) -> BottleneckLimits:
    """The defaults; on a busy machine, those of waiting for cores out of reach."""
    return BottleneckLimits(core_share=Limit(warn_above=1e9)) if busy else BottleneckLimits()


def judged(trace: TrainingTrace, busy: bool) -> Finding:
    """The verdict, or growth of memory where no cause of time was named."""
    (named,) = verdict(trace, limits(busy))
    if named.bad:
        return named
    grown = [f for f in growth(trace) if f.bad]
    return grown[0] if grown else named


def step_ms(trace: TrainingTrace) -> float:
    """Mean over the steps after warm-up of the longest rank."""
    step = trace.series("step_s")
    assert step is not None
    return float(np.sort(np.nanmax(step[:, 4:], axis=0))[:-1].mean() * 1e3)


def truth(cell: Cell, strength: str, traces: Mapping[str, TrainingTrace]) -> float | None:
    """What the plant costs, in ms a step (MB a step for memory that grows)."""
    if not cell.plant:
        return None
    if isinstance(cell.price, float):
        return cell.price * cell.ms(strength)
    if cell.price == "rest":
        view = View.of(traces["judged"])
        saved = None if view is None else view.saving("no-plant", rare=True, length="whole")
        return None if saved is None else saved.seconds * 1e3
    gaps = [step_ms(traces[f"with/{p}"]) - step_ms(traces[f"without/{p}"]) for p in range(PAIRS)]
    return statistics.median(gaps)


def measure(cell: Cell, strength: str, rounds: int, busy: bool) -> Result:
    """Runs one cell."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        traces = trained_all(Path(folder), 2, runs_of(cell, strength, rounds))
    found = judged(traces["judged"], busy)
    return Result(
        cell=cell,
        strength=strength,
        named=found.id if found.bad else "unproven" if found.text.startswith("not proven") else "healthy",
        rank=found.where.rank if found.bad else None,
        told=float(found.measured) if found.bad and isinstance(found.measured, float | int) else None,
        planted=truth(cell, strength, traces),
        seconds=time.perf_counter() - begin,
        text=found.text,
    )


def chosen(options: argparse.Namespace) -> list[tuple[Cell, str]]:
    """Cells and strengths to run."""
    strengths = [options.strength] if options.strength else ["weak", "strong"]
    cells = [(cell, strength) for cell in CELLS for strength in strengths]
    cells += [(cell, "healthy") for cell in HEALTHY]
    if options.quick:
        cells = cells[::6]
    if options.only:
        cells = [(c, s) for c, s in cells if any(word in c.name for word in options.only)]
    return [(c, s) for c, s in cells if not (options.busy and c.cores)]


def run(cells: Sequence[tuple[Cell, str]], options: argparse.Namespace) -> list[Result]:
    """Measures each cell, or takes it from the file that ``--keep`` names."""
    known = kept(options.keep)
    results = []
    for number, (cell, strength) in enumerate(cells, start=1):
        result = known.get((cell.name, strength))
        if result is None:
            result = measure(cell, strength, options.rounds, options.busy)
            if options.keep is not None:
                with options.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**vars(result), "cell": cell.name}) + "\n")
        results.append(result)
        mark = "ok " if result.right else "BAD"
        print(f"{number:3}/{len(cells)} {mark} {result.line}", flush=True)
        if not result.right:
            print(f"        {result.text}", flush=True)
    return results


def kept(file: Path | None) -> dict[tuple[str, str], Result]:
    """Results of an earlier run that was broken off, by cell and strength."""
    if file is None or not file.exists():
        return {}
    cells = {cell.name: cell for cell in (*CELLS, *HEALTHY)}
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {(r["cell"], r["strength"]): Result(**{**r, "cell": cells[r["cell"]]}) for r in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="cells whose name holds one of these words")
    parser.add_argument("--strength", choices=["weak", "strong"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="every sixth cell")
    parser.add_argument("--busy", action="store_true", help="leave out what others on the cores decide")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="append cells to FILE, and skip those it holds")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE}")
    options = parser.parse_args()
    begin = time.perf_counter()
    results = run(chosen(options), options)
    told = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {time.perf_counter() - begin:.0f} s"
    print("\n" + table(results))
    print(told)
    if options.write:
        command = "python -m benchmarks.diagnosis " + " ".join(a for a in sys.argv[1:])
        PAGE.write_text(page(results, command.strip(), told), "utf-8")


if __name__ == "__main__":
    main()
