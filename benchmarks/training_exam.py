"""Watches pairs of training scripts, one with a planted bug and one without, and prints what was found.

    python benchmarks/training_exam.py FOLDER [--only PREFIX] [--ddaudit PROGRAM]

``FOLDER`` holds ``labels.jsonl``: one pair a line with ``id``, ``script`` (a path whose folder the commands run in),
``commands`` and ``twin_commands`` (several legs where one resumes another; ``$CK`` is an empty folder),
``expected_finding``, ``also_acceptable`` and ``expected_severity`` (fail or warn). A bug counts as found when a finding
has the expected or an acceptable id at that status or worse; a twin counts as quiet when it ran and has no WARN and no
FAIL. The exit code is 0 when every bug was found and every twin was quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LEG_TIMEOUT_S = 600


@dataclass(frozen=True)
class Outcome:
    """What all legs of one side of a pair gave. ``findings`` is None when a leg gave no JSON object."""

    findings: list[dict[str, Any]] | None
    codes: list[int]
    seconds: float

    @property
    def alarms(self) -> list[str]:
        """``id:STATUS`` of every WARN and FAIL."""
        return sorted({f"{f['id']}:{f['status']}" for f in self.findings or ()})


def watch(program: str, commands: Sequence[str], cwd: Path, options: Sequence[str] = ()) -> Outcome:
    """Runs the legs one after the other with one ``--out``, so that a resumed leg finds the one before."""
    began, root = time.monotonic(), Path(tempfile.mkdtemp(prefix="training-exam-"))
    found: list[dict[str, Any]] = []
    codes: list[int] = []
    try:
        (root / "ck").mkdir()
        for command in commands:
            words = shlex.split(command.replace("$CK", str(root / "ck")))
            own = ["watch", "--json", "--out", str(root / "runs"), *options]
            argv = [*shlex.split(program), *own, "--", *words]
            env = {**os.environ, "CK": str(root / "ck")}
            done = subprocess.run(
                argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=LEG_TIMEOUT_S, check=False
            )
            codes.append(done.returncode)
            found += [f for f in json.loads(done.stdout)["findings"] if f["status"] in ("WARN", "FAIL")]
    except (ValueError, KeyError, subprocess.TimeoutExpired):
        return Outcome(None, codes, time.monotonic() - began)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return Outcome(found, codes, time.monotonic() - began)


def named(pair: dict[str, Any], outcome: Outcome) -> bool:
    """Whether the bug was found under an id that counts, at its status or worse."""
    wanted = {pair["expected_finding"], *pair.get("also_acceptable", ())}
    enough = {"FAIL"} if pair["expected_severity"] == "fail" else {"WARN", "FAIL"}
    return any(f["id"] in wanted and f["status"] in enough for f in outcome.findings or ())


def main() -> int:
    """Runs every pair and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="pairs whose id starts so")
    parser.add_argument("--ddaudit", default=f"{sys.executable} -m ddaudit", help="the command line to run")
    args = parser.parse_args()
    lines = (args.folder / "labels.jsonl").read_text("utf-8").splitlines()
    pairs = [p for p in map(json.loads, lines) if p["id"].startswith(args.only)]
    table = Table("pair", "expected", "bug", "found", "twin", "seconds", box=None)
    good = 0
    for pair in pairs:
        cwd = (args.folder / pair["script"]).parent
        bug, twin = (watch(args.ddaudit, pair[k], cwd) for k in ("commands", "twin_commands"))
        quiet = twin.findings is not None and not twin.findings
        good += named(pair, bug) and quiet
        verdict = "named" if named(pair, bug) else "did not run" if bug.findings is None else "missed"
        shown = "quiet" if quiet else "did not run" if twin.findings is None else ", ".join(twin.alarms)
        seconds = f"{bug.seconds + twin.seconds:.0f}"
        table.add_row(pair["id"], pair["expected_finding"], verdict, ", ".join(bug.alarms), shown, seconds)
        print(f"{pair['id']}: {verdict}; twin {shown}", file=sys.stderr, flush=True)
    Console(width=200).print(table)
    print(f"{good} of {len(pairs)} pairs right (bug named, twin quiet)")
    return 0 if pairs and good == len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
