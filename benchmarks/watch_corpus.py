"""Watches the programs of ``watch_corpus/`` as they are and with one planted bug each, and prints what was found.

    python benchmarks/watch_corpus.py [--only NAME] [--ddaudit PROGRAM] [--keep FOLDER]

``cases.toml`` lists programs with the commands that run them (``$CK`` is an empty folder; several legs where one
resumes another) and bugs: text of a program that is replaced, the ids that name the fault and its status. A bug counts
as found when a finding has one of the ids at that status or worse; a program as it is must give no WARN and no FAIL.
Programs of ``tests/watch/programs`` are run as healthy ones too. The exit code is 0 when all is as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from training_exam import Outcome, watch

HERE = Path(__file__).parent / "watch_corpus"
PROGRAMS = Path(__file__).parents[1] / "tests" / "watch" / "programs"
TORCHRUN = "torchrun --standalone --nproc-per-node 2"


def planted(program: Path, bug: dict[str, Any], folder: Path) -> Path:
    """The program with the bug, written into a folder. Text that is not there is an error of the corpus."""
    text = program.read_text("utf-8")
    for old, new in bug.get("replace", ()):
        if text.count(old) == 0:
            raise SystemExit(f"{bug['name']}: {program.name} does not contain {old!r}")
        text = text.replace(old, new)
    path = folder / program.name
    path.write_text(text, encoding="utf-8")
    return path


def run(program: str, case: dict[str, Any], bug: dict[str, Any] | None, keep: Path | None) -> Outcome:
    """Runs all legs of a program, with its bug where there is one."""
    folder = Path(tempfile.mkdtemp(prefix="watch-corpus-"))
    try:
        source = HERE / case["program"] if "program" in case else PROGRAMS / case["test"]
        if source.parent == PROGRAMS:
            shutil.copytree(PROGRAMS, folder, dirs_exist_ok=True)
        script = planted(source, bug or {"name": case["name"]}, folder)
        legs = (bug or {}).get("legs") or case.get("legs") or [""]
        commands = [leg if leg.startswith("torchrun") else f"{TORCHRUN} {script.name} {leg}" for leg in legs]
        options = (bug or {}).get("options", [])
        outcome = watch(" ".join([program]), commands, folder, options)
        if keep is not None:
            target = keep / f"{(bug or case)['name']}.json"
            target.write_text(json.dumps(outcome.findings, indent=1), encoding="utf-8")
        return outcome
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def named(bug: dict[str, Any], outcome: Outcome) -> bool:
    """Whether one of the wanted ids was given at the wanted status or worse."""
    enough = {"FAIL"} if bug.get("status", "FAIL") == "FAIL" else {"WARN", "FAIL"}
    return any(f["id"] in bug["ids"] and f["status"] in enough for f in outcome.findings or ())


def main() -> int:
    """Runs everything chosen and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs or bugs whose name begins so")
    parser.add_argument("--ddaudit", default=f"{sys.executable} -m ddaudit", help="the command line to run")
    parser.add_argument("--keep", type=Path, help="write each run's findings into this folder")
    parser.add_argument("--skip-healthy", action="store_true", help="planted bugs only")
    args = parser.parse_args()
    corpus = tomllib.loads((HERE / "cases.toml").read_text("utf-8"))
    if args.keep:
        args.keep.mkdir(parents=True, exist_ok=True)
    table = Table("program", "bug", "expected", "found", "right", "seconds", box=None)
    right = total = 0
    for case in corpus["case"]:
        bugs = [b for b in corpus.get("bug", ()) if b["in"] == case["name"]]
        for bug in [None, *bugs]:
            name = case["name"] if bug is None else bug["name"]
            if not (name.startswith(args.only) or case["name"] == args.only) or (bug is None and args.skip_healthy):
                continue
            outcome = run(args.ddaudit, case, bug, args.keep)
            good = outcome.findings == [] if bug is None else named(bug, outcome)
            if bug is None and case.get("exit") is None:
                good = good and not any(outcome.codes)
            right, total = right + good, total + 1
            shown = ", ".join(outcome.alarms) or ("-" if outcome.findings is not None else "did not run")
            expected = "nothing" if bug is None else " or ".join(bug["ids"])
            words = "yes" if good else "NO"
            table.add_row(case["name"], "" if bug is None else bug["name"], expected, shown, words,
                          f"{outcome.seconds:.0f}")  # fmt: skip
            print(f"{name}: {words}; {shown} {outcome.codes}", file=sys.stderr, flush=True)
    Console(width=200).print(table)
    print(f"{right} of {total} right")
    return 0 if total and right == total else 1


if __name__ == "__main__":
    sys.exit(main())
