"""How well the books of a step close, and whether a known delay lands in its own line and nowhere else.

``python -m benchmarks.ledger [--repeats 3] [--rounds 12] [--delay-ms 10] [--recoveries 10] [--kinds single data ...]``
from the repository root. For every kind: the unexplained share of a healthy run, and how far each line moves when a
delay is planted in compute, input, communication, launch, or one rank's lateness. The delay acts in every second window
of a run and rests in those between: a line's move is what it is in the ones more than in the others, median over
repeats. So two processes that meet a little earlier or later in one run than in the next do not count. Waiting for a
core is the machine's doing: shown, not held against a plant. Then delays of 10 and 50 ms on the last rank, recovered
from what the others waited for it beyond what they wait while it is not late.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks._ledger import Ledger, ledger
from tests.training.ranks import trained_all

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {}),
    "data": (2, {"parallel": "data"}),
    "data-accumulate": (2, {"parallel": "data", "variant": "accumulate"}),
    "data-zero1": (2, {"parallel": "data", "variant": "zero1"}),
    "data-zero2": (2, {"parallel": "data", "variant": "zero2"}),
    "sharded": (2, {"parallel": "sharded"}),
    "tensor": (2, {"parallel": "tensor"}),
    "tensor-sequence": (2, {"parallel": "tensor", "variant": "sequence-parallel"}),
    "pipeline": (2, {"parallel": "pipeline"}),
    "pipeline-1f1b": (2, {"parallel": "pipeline", "variant": "1f1b"}),
    "pipeline-interleaved": (2, {"parallel": "pipeline", "variant": "interleaved"}),
    "expert": (2, {"parallel": "expert"}),
    "context": (2, {"parallel": "context"}),
}
PLANTS = {
    "compute": "slow-compute",
    "input": "slow-input-rank",
    "communication": "slow-collective",
    "host": "late-launch",
    "peer wait": "slow-rank",
}
"""Line that must move: the plant that moves it."""
SHOWN = ("compute", "input", "communication", "host", "peer wait", "stage wait", "waiting for a core", "unexplained")
TOLERANCE_MS = 1.5
WARM_UP = 3


RESTED = ("no-plant",)
Books = tuple[Ledger, Ledger]
"""Of one run: the books of the steps with the plant, and of those where it rests."""


def books_of(runs: Mapping[str, dict[str, Any]], ranks: int) -> dict[str, Books]:
    """Raises: AssertionError: a run has no books, so that nothing could be said of it."""
    with tempfile.TemporaryDirectory() as folder:
        traces = trained_all(Path(folder), ranks, runs)
    found = {}
    for name, trace in traces.items():
        planted, rested = ledger(trace), ledger(trace, *RESTED)
        assert planted is not None and rested is not None, f"{name}: no timers, or too few steps"
        found[name] = planted, rested
    return found


def moved_ms(healthy: Ledger, planted: Ledger, row: int, staged: bool) -> dict[str, float]:
    """How far each line of a rank moved. In a pipeline (``staged``) a rank waits for a late peer as for a stage."""
    moved = {line: (planted.line_s(line, row) - healthy.line_s(line, row)) * 1e3 for line in SHOWN}
    if staged:
        moved["peer wait"] += moved.pop("stage wait")
    return moved


def measure(kind: str, repeats: int, rounds: int, delay_ms: float) -> tuple[int, int]:
    """Prints a kind's rows; returns (plants that moved their line alone, plants tried)."""
    ranks, params = KINDS[kind]
    plants = {line: plant for line, plant in PLANTS.items() if ranks > 1 or line not in ("communication", "peer wait")}
    base = {**params, "steps": WARM_UP, "windows": RESTED, "rounds": rounds, "plant_ms": delay_ms}
    runs = {f"{line}/{r}": {**base, "plant": plant} for r in range(repeats) for line, plant in plants.items()}
    books = books_of(runs, ranks)
    open_ = statistics.median(max(rested.unexplained_share) for _, rested in books.values())
    step = statistics.median(rested.step_s(0) for _, rested in books.values())
    print(f"\n{kind}: step {step * 1e3:.1f} ms, unexplained {open_:.2%}")
    good = 0
    for line in plants:
        row = ranks - 1 if line == "input" else 0  # the first rank is the one that waits for the last
        pairs = [books[f"{line}/{r}"] for r in range(repeats)]
        moves = [moved_ms(rested, planted, row, kind.startswith("pipeline")) for planted, rested in pairs]
        middle = {name: statistics.median(move[name] for move in moves) for name in moves[0]}
        rest = [abs(value) for name, value in middle.items() if name not in (line, "waiting for a core")]
        alone = abs(middle[line] - delay_ms) <= TOLERANCE_MS and max(rest) < TOLERANCE_MS
        good += alone
        told = "  ".join(f"{name} {value:+.2f}" for name, value in middle.items())
        print(f"  {'ok ' if alone else 'off'} {delay_ms:g} ms in {line:<13} moved (ms): {told}", flush=True)
    return good, len(plants)


def recover(delay_ms: float, runs: int, rounds: int) -> int:
    """Delays the last of two data-parallel ranks; returns how often the wait was recovered and charged to that rank."""
    late = {"parallel": "data", "steps": WARM_UP, "windows": RESTED, "rounds": rounds, "plant_ms": delay_ms}
    right, found = 0, []
    for planted, rested in books_of({str(i): {**late, "plant": "slow-rank"} for i in range(runs)}, 2).values():
        charged = (planted.net_s - rested.net_s) * 1e3
        found.append(float(charged.max()))
        right += bool(charged.argmax() == 1 and abs(charged[1] - delay_ms) <= TOLERANCE_MS)
    shown = ", ".join(f"{ms:.1f}" for ms in sorted(found))
    print(f"{delay_ms:g} ms late: recovered within {TOLERANCE_MS} ms and charged to the rank {right}/{runs} ({shown})")
    return right


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="windows with and without the delay, each of 3 steps")
    parser.add_argument("--delay-ms", type=float, default=10.0)
    parser.add_argument("--recoveries", type=int, default=10)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS), help="none: recoveries only")
    options = parser.parse_args()
    print(load())
    results = [measure(kind, options.repeats, options.rounds, options.delay_ms) for kind in options.kinds]
    print(f"\nplants that moved their own line and no other: {sum(g for g, _ in results)}/{sum(n for _, n in results)}")
    for delay_ms in (10.0, 50.0):
        recover(delay_ms, options.recoveries, options.rounds)
    print(load())


if __name__ == "__main__":
    main()
