"""Audits a folder of labelled checkpoints and prints every miss. usage: checkpoint_exam.py FOLDER

The folder holds ``labels.jsonl`` (path, fault, expected: fail | warn | ok) and optionally ``pairs.jsonl`` (a, b,
verdict, scope). A fault that must fail wants NOT-RESUMABLE, WRONG, BROKEN or SECURITY; a warning at least DEGRADED;
a clean one OK or DEGRADED. Exit 0 when nothing is missed.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from ddaudit.checkpoint.diff import compare_paths
from ddaudit.cli.checkpoint_audit import audit_path

BAD = {"NOT-RESUMABLE", "WRONG", "BROKEN", "SECURITY"}
ENOUGH = {"fail": BAD, "warn": BAD | {"DEGRADED", "UNKNOWN"}, "ok": {"OK", "DEGRADED"}}


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(folder: Path) -> int:
    tally: Counter[str] = Counter()
    slowest = 0.0
    for row in rows(folder / "labels.jsonl"):
        begin = time.perf_counter()
        result = audit_path(str(folder / row["path"]))
        slowest = max(slowest, time.perf_counter() - begin)
        right = result.word in ENOUGH[row["expected"]]
        tally[f"{'clean' if row['expected'] == 'ok' else 'fault'} {'right' if right else 'missed'}"] += 1
        if not right:
            print(f"miss {row['path']} {row['fault']}: want {row['expected']}, got {result.word}")
    for pair in rows(folder / "pairs.jsonl"):
        if pair.get("scope", "all") == "all":
            found = compare_paths(str(folder / "clean" / pair["a"]), str(folder / "clean" / pair["b"]))
            right = found.identical is (pair["verdict"] == "identical")
            tally[f"pair {'right' if right else 'missed'}"] += 1
            if not right:
                print(f"miss pair {pair['a']} {pair['b']}: want {pair['verdict']}")
    print({**tally, "slowest_s": round(slowest, 2)})
    return int(any("missed" in key for key in tally))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
