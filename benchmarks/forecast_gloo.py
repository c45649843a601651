"""Measures 1, 2 and 4 ranks on this host and holds the forecast from the first two against the third.

``python benchmarks/forecast_gloo.py [--repeats 10] [--out DIR] [--reuse]``; needs a quiet machine. Each repeat runs
``forecast_gloo.md`` once and is calibrated from its own steps of 1 and 2 ranks only. Printed per kind: the median over
repeats of predicted over measured time at 4 ranks, and whether added ranks help. ``--reuse`` judges DIR again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import ddaudit
from ddaudit.errors import Problem
from ddaudit.forecast.calibrate import calibrate
from ddaudit.forecast.layout import misfit
from ddaudit.forecast.measured import Measured, RunFacts
from ddaudit.forecast.outlook import read_facts
from ddaudit.forecast.predict import Outlook, predict

RUNBOOK = Path(__file__).with_suffix(".md")
KINDS = ("data", "sharded", "tensor", "pipeline", "expert")
BAR = 0.20


def main() -> int:
    """Runs, or reads, every repeat; exit code 1 where a kind misses the bar."""
    options = _options()
    folders = sorted(p for p in options.out.iterdir() if (p / "record.json").is_file()) if options.reuse else []
    for number in range(0 if options.reuse else options.repeats):
        done = ddaudit.run(RUNBOOK, out=options.out, device="cpu")
        print(f"repeat {number + 1}: {done.verdict}, {done.folder}", file=sys.stderr)
        folders.append(done.folder)
    runs = [read_facts(folder) for folder in folders]
    missed = [kind for kind in KINDS if not _tell(kind, runs)]
    print(f"missed: {', '.join(missed)}" if missed else "all kinds within 20 % on the median")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("forecast-gloo-runs"))
    parser.add_argument("--reuse", action="store_true")
    return parser.parse_args()


def _tell(kind: str, runs: list[RunFacts]) -> bool:
    """One line for one kind; True where its median is within the bar."""
    ratios, words, helped = [], [], []
    for run in runs:
        known = replace(run, steps=tuple(m for m in run.steps if m.ranks <= 2))
        truth = next((m for m in run.steps if m.kind == kind and m.ranks == 4), None)
        base = next((m for m in known.steps if m.kind == kind and m.ranks == 2), None)
        if truth is None or base is None:
            continue
        try:
            ratio, word = _forecast(kind, known, base, truth)
        except Problem as problem:
            print(f"  {kind}: {problem}", file=sys.stderr)
            continue
        ratios.append(ratio)
        words.append(word)
        helped.append(base.step_s / truth.step_s)
    if not ratios:
        print(f"{kind:9} not measured")
        return False
    mid = statistics.median(ratios)
    told = max(set(words), key=words.count)
    print(
        f"{kind:9} predicted / measured at 4 ranks: median {mid:.2f} (from {min(ratios):.2f} to {max(ratios):.2f},"
        f" {len(ratios)} repeats); forecast from 2 ranks: {told}; measured speedup {statistics.median(helped):.2f}x"
    )
    return abs(mid - 1) <= BAR


def _forecast(kind: str, known: RunFacts, base: Measured, truth: Measured) -> tuple[float, str]:
    """(predicted over measured seconds, verdict) of the layout that the third step ran."""
    calibrated = calibrate(known, kind)
    layout = truth.subject.layout
    assert misfit(layout, truth.subject.shape) is None
    found = predict(Outlook(base.subject, calibrated, base.subject.layout), layout)
    return found.step_s.mid / truth.step_s, found.verdict


if __name__ == "__main__":
    sys.exit(main())
