"""Exit codes in the words of those who call us: Slurm's prolog, Nagios, ``git bisect run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ddaudit.errors import Exit

if TYPE_CHECKING:  # every command loads this file, `--help` too
    from ddaudit.findings import Verdict

__all__ = ["EXIT_MAPS", "Warned", "coded", "exit_map_option", "mapped"]

F = TypeVar("F", bound=Callable[..., Any])

#: Outcome -> code, by caller. A prolog that fails drains its node, so only what was measured and is bad does; bisect
#: skips a commit at 125 and stops above 127.
EXIT_MAPS: Mapping[str, Mapping[str, int]] = {
    "slurm": {"PASS": 0, "WARN": 0, "FAIL": 1, "other": 0},
    "nagios": {"PASS": 0, "WARN": 1, "FAIL": 2, "other": 3},
    "bisect": {"PASS": 0, "WARN": 0, "FAIL": 1, "INTERRUPTED": 130, "TERMINATED": 143, "other": 125},
}


class Warned(int):
    """Exit code 0 of a run whose verdict is WARN."""


def exit_map_option(function: F) -> F:
    """``--exit-map``; :func:`mapped` reads it off the command line once the command has ended, however it did."""
    return click.option(
        "--exit-map",
        type=click.Choice(sorted(EXIT_MAPS)),
        expose_value=False,
        help="End with the codes that this caller understands.",
    )(function)


def coded(verdict: Verdict | str, code: int) -> int:
    """The code, marked where it stands for a WARN."""
    return Warned(code) if verdict == "WARN" and code == 0 else code


def mapped(argv: Sequence[str], code: int) -> int:
    """The code that the caller named by ``--exit-map`` expects; the code itself where none was named."""
    own = list(argv[: argv.index("--")] if "--" in argv else argv)
    given = next((w.partition("=")[2] for w in own if w.startswith("--exit-map=")), None)
    if given is None and "--exit-map" in own[:-1]:
        given = own[own.index("--exit-map") + 1]
    table = EXIT_MAPS.get(given or "")
    if table is None:
        return int(code)
    name = "WARN" if isinstance(code, Warned) else Exit(code).name if code in set(Exit) else "other"
    return table.get(name, table["other"])
