"""Random faults at random moments of runs over several hosts: is every report readable, the right one named, and
nothing left running or lost?

``python -m benchmarks.chaos [--faults 100] [--seed 1] [--only FAULT ...] [--moments MOMENT ...] [--pairs 0.25]
[--at-once 3] [--number N ...]``. Hosts are processes of this machine with names of their own, and network namespaces
where the network is what breaks. A run has two steps; a fault, or two, strikes at any moment of it: while agents join,
within a step, between steps, while ranks start and meet, in the probe, while the step is judged, while the report is
written, at shutdown. After it ``ddaudit report RUN`` reads the folder and ``ddaudit run --resume RUN`` goes on, each in
processes of their own. Prints a line per run, a table by fault and one by moment; ends with 1 when one was named
wrongly, a report could not be read, a process or a temporary folder stayed, or a finished step was lost. Each run has a
seed of its own, so ``--number N`` repeats the N-th alone. Needs root (mounts, namespaces).
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch.distributed  # noqa: F401 - imported once, for all processes that are forked from this one

from benchmarks._chaos_faults import FAULTS, MOMENTS, Strike, draw
from benchmarks._chaos_run import Result, Run

__all__ = ["main", "strike"]


def strike(
    chance: random.Random,
    root: Path,
    *,
    only: Sequence[str] = tuple(FAULTS),
    moments: Sequence[str] = tuple(MOMENTS),
    pairs: float = 0.0,
) -> Result:
    """One run of two to four hosts with one fault, or two by the chance ``pairs``."""
    count = chance.choice((2, 2, 3, 4))
    strikes = draw(chance, count, only=only, moments=moments, pair=chance.random() < pairs)
    try:
        return Run(root, count, strikes, chance).go()
    except (AssertionError, OSError, ValueError, subprocess.CalledProcessError) as error:
        return Result(strikes, wrong=[f"{type(error).__name__}: {error}"[:900]])


def _numbered(told: tuple[int, argparse.Namespace]) -> tuple[int, Result, float]:
    number, options = told
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        chance = random.Random(f"{options.seed}-{number}")
        result = strike(chance, Path(root), only=options.only, moments=options.moments, pairs=options.pairs)
    return number, result, time.monotonic() - began


def _name(strikes: Sequence[Strike]) -> str:
    return " + ".join(f"{s.fault} at {s.moment} ({s.after_s:.2f} s, node{s.victim})" for s in strikes)


def _line(number: int, result: Result, seconds: float) -> str:
    words = [
        f"{number:>4} {'ok' if result.good else 'WRONG':<6} {result.named:<11} {_name(result.strikes)}: {result.told}"
    ]
    words += [f"all gone in {result.left_s:.0f} s"]
    words += [f"left running {result.orphans}"] if result.orphans else []
    words += [f"folders left {result.folders}"] if result.folders else []
    words += [] if result.kept else ["lost"]
    words += [] if result.resumed else ["not resumed"]
    return "; ".join([*words, *result.wrong]) + f"  ({seconds:.0f} s)"


def _table(results: list[Result], title: str, names: Sequence[str], key: Callable[[Strike], str]) -> str:
    """Results by what ``key`` says of a strike; a run with two faults counts for both, and once in the last line."""
    lines = [f"{title:<18}{'runs':>5}{'readable':>9}{'right':>6}{'not proven':>11}{'wrong':>6}{'orphans':>8}"
             f"{'folders':>8}{'lost':>5}{'resumed':>8}"]  # fmt: skip
    groups = {name: [r for r in results if name in map(key, r.strikes)] for name in names}
    for name, group in [*groups.items(), ("two faults", [r for r in results if len(r.strikes) > 1]), ("all", results)]:
        if group:
            named = Counter(r.named for r in group)
            lines.append(
                f"{name:<18}{len(group):>5}{sum(r.readable for r in group):>9}{named['right']:>6}"
                f"{named['not proven']:>11}{named['wrong']:>6}{sum(r.orphans for r in group):>8}"
                f"{sum(r.folders for r in group):>8}{sum(not r.kept for r in group):>5}"
                f"{sum(r.resumed for r in group):>8}"
            )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(FAULTS), default=list(FAULTS), help="faults to draw from")
    parser.add_argument("--moments", nargs="*", choices=list(MOMENTS), default=list(MOMENTS))
    parser.add_argument("--pairs", type=float, default=0.25, help="share of runs with two faults")
    parser.add_argument("--at-once", type=int, default=3, help="runs at a time")
    parser.add_argument("--number", type=int, nargs="*", help="only these")
    return parser.parse_args()


def main() -> int:
    options = _options()
    numbers = options.number or range(1, options.faults + 1)
    results = []
    with multiprocessing.get_context("fork").Pool(options.at_once, maxtasksperchild=1) as pool:
        for number, result, seconds in pool.imap(_numbered, [(n, options) for n in numbers], chunksize=1):
            results.append(result)
            print(_line(number, result, seconds), flush=True)
    print(_table(results, "fault", list(FAULTS), lambda s: s.fault))
    print(_table(results, "moment", list(MOMENTS), lambda s: s.moment))
    return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
