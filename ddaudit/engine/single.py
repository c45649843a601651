"""One device against N: the user's command once more on one rank, with the same global batch."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ddaudit.engine.resumed import words
from ddaudit.engine.watched import Watched, watch_command
from ddaudit.errors import UsageProblem
from ddaudit.evidence.events import read_streams
from ddaudit.packs import Packs
from ddaudit.record import Record
from ddaudit.watch.companion import other_run
from ddaudit.watch.launch import environment, run_command

__all__ = ["compare_single", "on_one_rank"]

_RANKS = re.compile(r"^(--nproc[-_]per[-_]node|--num[-_]processes|--num_gpus|--devices)(=(?P<value>\d+))?$")
#: Options for the samples that one rank puts into a micro-batch.
_PER_RANK = re.compile(
    r"^--?(per[-_]device[-_](train[-_])?batch[-_]size|micro[-_]batch([-_]size)?|(local[-_])?batch([-_]size)?|bs|"
    r"grad(ient)?[-_]accum(ulation)?([-_]steps)?|accum)$"
)


def compare_single(asked: Watched, command: str | None, packs: Packs) -> tuple[Record, Path]:
    """Runs the command on one rank, then as given, and judges the second beside the first.

    ``command`` is the one-rank command; without it the launcher is told to start one rank, and where the global batch
    then comes out N times smaller, the option for a rank's batch (or its accumulation) is multiplied by N.

    Raises:
        UsageProblem: the launcher's number of ranks cannot be told.
    """
    base = (asked.out / asked.run_id).absolute()
    alone = base.with_name(f"{asked.run_id}-single")
    _run(asked, words(command, "--single-cmd") or on_one_rank(asked.argv), alone)
    return watch_command(dataclasses.replace(asked, single=alone), packs)


def on_one_rank(argv: Sequence[str]) -> list[str]:
    """The command with one rank in place of N, and the first option that sets a rank's batch multiplied by N."""
    found, ranks = list(argv), 0
    for at, word in enumerate(found):
        match = _RANKS.match(word)
        if match is None:
            continue
        value = match["value"] or (found[at + 1] if at + 1 < len(found) else "")
        if not value.isdigit() or int(value) < 2:
            break
        ranks = int(value)
        if match["value"]:
            found[at] = f"{word.partition('=')[0]}=1"
        else:
            found[at + 1] = "1"
        break
    if not ranks:
        what = "--compare-single: the number of ranks is not in the command"
        raise UsageProblem(what, fix="give --single-cmd the command for one rank with the same global batch")
    return _scaled(found, ranks)


def _scaled(argv: list[str], ranks: int) -> list[str]:
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if not _PER_RANK.match(name):
            continue
        if equals and value.isdigit():
            argv[at] = f"{name}={int(value) * ranks}"
            return argv
        if not equals and at + 1 < len(argv) and argv[at + 1].isdigit():
            argv[at + 1] = str(int(argv[at + 1]) * ranks)
            return argv
    return argv


def _run(asked: Watched, argv: Sequence[str], run_dir: Path) -> None:
    folder = run_dir / "events" / "script"
    folder.mkdir(parents=True, exist_ok=True)
    env = environment(folder, asked.every, os.environ)
    run_command(argv, env, folder, to_stderr=asked.to_stderr, hang_s=asked.hang_s)
    if other_run(read_streams(folder), run_dir.name) is None:
        raise UsageProblem("--compare-single: the command trained nothing on one rank", where=" ".join(argv)[:200])
