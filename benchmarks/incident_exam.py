"""Scores ``ddaudit triage`` on a folder of labelled incidents.

    python benchmarks/incident_exam.py FOLDER

``FOLDER/labels.jsonl`` holds a row a bundle: ``bundle, kind, cause, accept, guilty, evidence[{file, regex}]``.
Ten points a bundle: cause 4 (an accepted id in full, the right family 1), rank and host 3, a cited line that the
label's expressions match 2, a first action 1. A wrong culprit, or an incident in a healthy bundle, is 0. Exit 1 below
95 % or on any wrong
culprit.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddaudit.triage.answer import investigate

PASS_SHARE = 0.95


def same(want: object, got: object) -> bool:
    """True when the name wanted stands in the answer as a whole word (a short host name in a long one counts)."""
    word = re.escape(str(want).split(" ")[0].lower())
    return re.search(rf"(?<![\w.-]){word}(?![\w-])", str(got).lower()) is not None


def score(row: Mapping[str, Any], incident: Mapping[str, Any]) -> tuple[int, bool]:
    """(points, whether somebody was wrongly accused)."""
    cause, mine = incident["cause"], incident["guilty"]
    guilty = {k: v for k, v in (row.get("guilty") or {}).items() if v is not None and k in ("rank", "host")}
    if row["cause"] == "none":
        return (10, False) if cause == "none" and not mine else (0, bool(mine))
    nobody = not row.get("guilty")
    if any(k in mine and not same(v, mine[k]) for k, v in guilty.items()) or (
        nobody and {"rank", "host", "gpu"} & set(mine)
    ):
        return 0, True
    family = cause.split(".")[0] == row["cause"].split(".")[0]
    points = 4 if cause in (row["cause"], *row.get("accept", [])) else int(family)
    points += 3 if all(k in mine for k in guilty) else 0
    points += 2 if _cites(row, incident) else 0
    if row.get("kind") == "undetermined" and not incident["missing_evidence"]:
        points -= 3
    return max(points + bool(incident["first_action"]), 0), False


def _cites(row: Mapping[str, Any], incident: Mapping[str, Any]) -> bool:
    wanted = [(Path(e["file"]).name, re.compile(e["regex"])) for e in row.get("evidence", [])]
    cited = [(e["file"], e["text"]) for e in incident["evidence"]]
    return not wanted or any(name in file and regex.search(text) for name, regex in wanted for file, text in cited)


def main(folder: Path) -> int:
    rows = [json.loads(line) for line in (folder / "labels.jsonl").read_text("utf-8").splitlines() if line.strip()]
    total = accused = 0
    slowest_s = 0.0
    for row in rows:
        start = time.perf_counter()
        incident = investigate([folder / Path(row["bundle"]).name]).to_json()
        slowest_s = max(slowest_s, time.perf_counter() - start)
        points, wrong = score(row, incident)
        total, accused = total + points, accused + wrong
        if points < 10:
            wanted, got = f"{row['cause']} {row.get('guilty')}", f"{incident['cause']} {incident['guilty']}"
            print(f"{row['bundle']}: {points}/10, want {wanted}, got {got}")
    print(f"{total} of {10 * len(rows)} points, {accused} wrongly accused, slowest {slowest_s:.2f} s without start-up")
    return 0 if total >= PASS_SHARE * 10 * len(rows) and not accused else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
