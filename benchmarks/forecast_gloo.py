"""Measures 1, 2 and 4 ranks on this host and holds the forecast from the first two against the third.

``python benchmarks/forecast_gloo.py [--repeats 10] [--out DIR] [--keep FILE]``; needs a quiet machine. Each repeat runs
``forecast_gloo.md`` once and is calibrated from its own steps of 1 and 2 ranks only. Printed per kind: the median over
repeats of predicted over measured time at 4 ranks, and whether added ranks help. Other programs' share of the cores is
taken out of both sides, and told. ``--keep`` notes the folder of every finished repeat: a run that was cut short goes
on where it was, and with all repeats noted they are judged again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
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
    """Runs what is missing, reads every repeat; exit code 1 where a kind misses the bar."""
    options = _options()
    folders = [folder for folder in _kept(options.keep) if (folder / "record.json").is_file()][: options.repeats]
    while len(folders) < options.repeats:
        began = time.monotonic()
        done = ddaudit.run(RUNBOOK, out=options.out, device="cpu")
        folders.append(done.folder)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"repeat {len(folders)}: {done.verdict}, {took}, {done.folder}", file=sys.stderr, flush=True)
        if options.keep is not None:
            with options.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"folder": str(done.folder.resolve())}) + "\n")
    runs = [read_facts(folder) for folder in folders]
    cores = int(runs[0].facts.get("cpus") or 1)
    crowds = [statistics.median(m.crowding(cores) for m in run.steps) for run in runs]
    print(f"{len(runs)} repeats on {cores} cores; other programs made steps {statistics.median(crowds):.2f}x longer")
    missed = [kind for kind in KINDS if not _tell(kind, runs, cores)]
    print(f"missed: {', '.join(missed)}" if missed else "all kinds within 20 % on the median")
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("forecast-gloo-runs"))
    parser.add_argument("--keep", type=Path, help="file of finished repeats, one JSON object a line")
    return parser.parse_args()


def _kept(file: Path | None) -> list[Path]:
    """Folders of the repeats that a file notes; none where there is no such file yet."""
    if file is None or not file.is_file():
        return []
    return [Path(json.loads(line)["folder"]) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _tell(kind: str, runs: list[RunFacts], cores: int) -> bool:
    """One line for one kind; True where its median is within the bar."""
    ratios, words, helped = [], [], []
    for run in runs:
        known = replace(run, steps=tuple(m for m in run.steps if m.ranks <= 2))
        truth = next((m for m in run.steps if m.kind == kind and m.ranks == 4), None)
        base = next((m for m in known.steps if m.kind == kind and m.ranks == 2), None)
        if truth is None or base is None:
            continue
        try:
            ratio, word = _forecast(kind, known, base, truth, cores)
        except Problem as problem:
            print(f"  {kind}: {problem}", file=sys.stderr)
            continue
        ratios.append(ratio)
        words.append(word)
        helped.append(base.step_s / base.crowding(cores) / truth.step_s * truth.crowding(cores))
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


def _forecast(kind: str, known: RunFacts, base: Measured, truth: Measured, cores: int) -> tuple[float, str]:
    """(predicted over measured seconds, verdict) of the layout that the third step ran."""
    calibrated = calibrate(known, kind)
    layout = truth.subject.layout
    assert misfit(layout, truth.subject.shape) is None
    found = predict(Outlook(base.subject, calibrated, base.subject.layout), layout)
    return found.step_s.mid / truth.step_s * truth.crowding(cores), found.verdict


if __name__ == "__main__":
    sys.exit(main())
