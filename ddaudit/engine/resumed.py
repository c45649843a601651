"""The resume test: one run to its end, one that is killed after its first checkpoint, one that resumes from there."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddaudit.engine.watched import Watched, watch_command
from ddaudit.errors import LaunchProblem, UsageProblem
from ddaudit.evidence.events import read_streams
from ddaudit.packs import Packs
from ddaudit.record import Record
from ddaudit.watch.launch import environment, run_command
from ddaudit.watch.legs import Legs, legs, saved_path

__all__ = ["resume_test", "words"]


@dataclass(frozen=True)
class _Leg:
    argv: Sequence[str]
    run_dir: Path
    until_saved: bool = False


def resume_test(asked: Watched, save: str | None, resume: str | None, packs: Packs) -> tuple[Record, Path]:
    """Runs the three legs and judges the third against the other two.

    ``save`` and ``resume`` are command lines; without them the command itself saves, and resumes by its own option
    (see :mod:`ddaudit.watch.legs`).

    Raises:
        UsageProblem: it cannot be told where checkpoints go or how to resume.
        LaunchProblem: no checkpoint was saved.
    """
    chosen = legs(asked.argv, words(save, "--save-cmd"), words(resume, "--resume-cmd"))
    base = (asked.out / asked.run_id).absolute()
    whole, saved = (base.with_name(f"{asked.run_id}-{name}") for name in ("whole", "saved"))
    places = {run: run / "checkpoints" for run in (whole, saved)}
    _run(asked, _Leg(chosen.whole(places[whole]), whole))
    _run(asked, _Leg(chosen.saving(places[saved]), saved, until_saved=True))
    last = saved_path(read_streams(saved / "events" / "script"), places[saved])
    if last is None:
        raise LaunchProblem("the run that was to be resumed saved no checkpoint", fix=_hint(chosen))
    third = dataclasses.replace(
        asked, argv=chosen.resuming(places[saved], last), continues=saved, through=whole, tested=True
    )
    found = watch_command(third, packs)
    for place in places.values():
        shutil.rmtree(place, ignore_errors=True)
    return found


def words(line: str | None, option: str) -> list[str] | None:
    """A command line as words; UsageProblem where a quote is left open or nothing is in it."""
    if line is None:
        return None
    try:
        found = shlex.split(line)
    except ValueError as error:
        raise UsageProblem(f"{option}: {error}", where=line) from error
    if not found:
        raise UsageProblem(f"{option} is empty")
    return found


def _hint(chosen: Legs) -> str:
    return f"give --save-cmd a command that saves into {{ckpt}}; this ran: {shlex.join(chosen.saving(Path('CKPT')))}"


def _run(asked: Watched, leg: _Leg) -> None:
    folder = leg.run_dir / "events" / "script"
    for needed in (folder, leg.run_dir / "checkpoints"):
        needed.mkdir(parents=True, exist_ok=True)
    env = environment(folder, asked.every, os.environ)
    run_command(
        leg.argv, env, folder, to_stderr=asked.to_stderr, hang_s=asked.hang_s, until_saved=leg.until_saved
    )  # fmt: skip
