"""What the commands share: options, the JSON envelope, and loading packs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.engine.waivers import Waivers
    from ddaudit.packs import Packs

__all__ = [
    "check_folder",
    "emit_json",
    "envelope",
    "json_option",
    "load_packs",
    "load_waivers",
    "pack_folders",
    "pack_options",
    "parse_params",
    "problem_envelope",
    "verbosity",
    "verbosity_options",
    "waivers_option",
]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """``--json``: one object on stdout, everything else on stderr."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(function)


def pack_options(function: F) -> F:
    """``--pack DIR`` (repeatable) and ``--packs builtin``; give both on to :func:`load_packs`."""
    one = click.option(
        "--pack", "pack", multiple=True, metavar="DIR", help="Also load this pack (a folder of code you trust)."
    )
    only = click.option(
        "--packs", "packs", type=click.Choice(["all", "builtin"]), default="all", show_default=True,
        help="builtin: load nothing but ddaudit's own checks.",
    )  # fmt: skip
    return one(only(function))


def verbosity_options(function: F) -> F:
    """``-q`` and ``-v``; :func:`verbosity` makes one number of them."""
    quiet = click.option("-q", "--quiet", is_flag=True, help="Only the verdict's ten lines.")
    verbose = click.option("-v", "--verbose", is_flag=True, help="Also what passed, and the environment.")
    return quiet(verbose(function))


def verbosity(options: Mapping[str, Any]) -> int:
    """-1, 0 or 1; UsageProblem when both were asked for."""
    if options["quiet"] and options["verbose"]:
        raise UsageProblem("-q and -v contradict each other", fix="drop one of them")
    return int(options["verbose"]) - int(options["quiet"])


def waivers_option(function: F) -> F:
    """``--waivers FILE``; give it on to :func:`load_waivers`. No file is read because it lies nearby: what turns a red
    run green is named on the command line."""
    about = "Findings that somebody answers for, until a day (waivers.toml)."
    return click.option("--waivers", type=click.Path(dir_okay=False), metavar="FILE", help=about)(function)


def load_waivers(path: str | None, packs: Packs) -> Waivers:
    """The waivers of a file as of today; none without one. UsageProblem when an entry is not sound."""
    from datetime import date

    from ddaudit.engine import waivers

    return waivers.load_waivers(Path(path), packs.registry, date.today()) if path else waivers.Waivers()


def pack_folders(pack: Sequence[str], packs: str = "all") -> list[Path]:
    """Folders of the packs that the options name, for what reads their tables and templates and runs none of them."""
    from ddaudit import packs as loader

    if packs == "builtin" and pack:
        raise UsageProblem("--packs builtin and --pack contradict each other", fix="drop one of them")
    return loader.named(pack, entries=packs == "all", environment=packs == "all")


def load_packs(pack: Sequence[str], packs: str = "all") -> Packs:
    """Loads packs as the options say; PackProblem when one cannot be."""
    from ddaudit import packs as loader

    if packs == "builtin" and pack:
        raise UsageProblem("--packs builtin and --pack contradict each other", fix="drop one of them")
    everything = packs == "all"
    return loader.load(pack, entries=everything, environment=everything)


def parse_params(pairs: Sequence[str], option: str = "-P") -> dict[str, str]:
    """``-P name=value`` words to a mapping; UsageProblem on a word without ``=`` or a name given twice."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageProblem(f"{option} {pair!r}", expected="name=value")
        if name in found:
            raise UsageProblem(f"{option} {name} is given twice", fix="keep one")
        found[name] = value
    return found


def envelope(command: str, verdict: str, exit_code: int, **more: Any) -> dict[str, Any]:
    """The object that every ``--json`` prints: the keys common to all commands, then the command's own."""
    from ddaudit import __version__
    from ddaudit.findings import QUESTIONS
    from ddaudit.record import answers

    return {
        "schema": "ddaudit/1",
        "command": command,
        "verdict": verdict,
        "exit_code": int(exit_code),
        "run": None,
        "run_id": None,
        "ddaudit_version": __version__,
        "created": time.time(),
        "seconds": None,
        "complete": True,
        "questions": [{**a.model_dump(mode="json"), "question": QUESTIONS[a.id]} for a in answers((), {})],
        "findings": [],
        "steps": [],
        "facts": {},
        **more,
    }


def problem_envelope(command: str, text: str, code: Exit) -> str:
    """The envelope of a call that could not be carried out."""
    from ddaudit.jsonio import dumps

    names = {Exit.USAGE: "USAGE", Exit.INTERNAL: "INTERNAL", Exit.INTERRUPTED: "INTERRUPTED"}
    return dumps(envelope(command, names.get(code, "INCONCLUSIVE"), code, error=text))


def emit_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object and a newline on stdout."""
    from ddaudit.jsonio import dumps

    sys.stdout.write(dumps(value, indent=1) + "\n")


def check_folder(path: str) -> Path:
    """An existing folder, or a UsageProblem."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageProblem("no such folder", where=path)
    return folder
