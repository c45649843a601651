"""The command line's front door: names every command, imports one on use, and alone maps outcomes to exit codes.

click's own mapping is wrong for a gate: a command that *returns* FAIL would exit 0, and Ctrl-C or any exception would
exit 1, our FAIL. So click runs with ``standalone_mode=False`` and :func:`run` decides once.
"""

from __future__ import annotations

import errno
import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from ddaudit import __version__
from ddaudit.cli.streams import Stopped, guard, hush
from ddaudit.errors import EXIT_MEANINGS, Exit, Problem

__all__ = ["COMMANDS", "cli", "main", "run"]

#: Command -> (module with a click command called ``command``, help line). A test compares these with the commands' own
#: help, so that ``ddaudit --help`` stays true without importing anything.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("ddaudit.cli.run", "Run a runbook: train, measure, judge, report."),
    "watch": ("ddaudit.cli.watch", "Audit your own training script, unchanged."),
    "selftest": ("ddaudit.cli.selftest", "Plant each check's fault and show that the check turns red."),
    "checkpoint": ("ddaudit.cli.checkpoint", "Audit, show, compare and verify checkpoints without loading them."),
    "triage": (
        "ddaudit.cli.triage",
        "Read the logs of a broken job and say who and what broke it, with the lines that prove it.",
    ),
    "bundle": (
        "ddaudit.cli.bundle",
        "Pack a run folder or logs into one redacted archive with hashes, which `triage` reads back.",
    ),
    "forecast": ("ddaudit.cli.forecast", "Will more devices help, and what becomes the limit?"),
    "report": ("ddaudit.cli.report", "Render a run again; rebuild what is missing."),
    "diff": (
        "ddaudit.cli.diff",
        "Say what changed from one run to the next: measures beyond noise, environment, outcomes.",
    ),
    "baseline": ("ddaudit.cli.baseline", "Learn what good runs measure, and tell a regression from noise."),
    "list": ("ddaudit.cli.list_", "List checks, probes, runbooks, packs or plants."),
    "show": ("ddaudit.cli.show", "Explain one check, probe, runbook or finding id."),
    "lint": ("ddaudit.cli.lint", "Check runbooks and packs without devices."),
    "env": ("ddaudit.cli.env", "Print this machine's facts, redacted, ready to paste."),
    "new": ("ddaudit.cli.new", "Write a starting point for a check, probe, runbook, pack or job file."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, not when help lists them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[name][0])
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), f"{code.name}: {text}") for code, text in EXIT_MEANINGS.items()])


@click.group(cls=LazyGroup, invoke_without_command=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ddaudit")
def cli() -> None:
    """Diagnoses distributed PyTorch training and audits its checkpoints, by executable runbooks."""


def run() -> NoReturn:
    """Entry point of the ``ddaudit`` script."""
    guard()
    code = main(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        hush(sys.stdout)
        code = _tell(f"cannot write the output: {error.strerror}", code or Exit.INCONCLUSIVE)
    sys.exit(code)


#: The machine refuses, and no line of ddaudit is to blame: full, read-only or failing storage, too few descriptors.
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)


def main(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Every way a command can end is mapped here."""
    try:
        outcome = cli.main(args=list(argv), prog_name="ddaudit", standalone_mode=False)
        return int(outcome) if isinstance(outcome, int) else int(Exit.PASS)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt) as stop:
        cause = stop.__cause__ or stop
        terminated = isinstance(cause, Stopped) and cause.number != signal.SIGINT
        return _tell("interrupted", Exit.TERMINATED if terminated else Exit.INTERRUPTED)
    except click.UsageError as error:
        hint = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        return _fail(argv, f"{error.format_message()}{hint}", Exit.USAGE)
    except click.ClickException as error:
        return _fail(argv, error.format_message(), Exit.USAGE)
    except Problem as problem:
        return _fail(argv, str(problem), problem.exit)
    except OSError as error:
        if error.errno not in MACHINE:
            return _internal(argv, error)
        place = f"{error.filename}: " if error.filename else ""
        return _fail(argv, f"{place}{error.strerror}", Exit.INCONCLUSIVE)
    except Exception as error:
        return _internal(argv, error)


def _tell(text: str, code: int) -> int:
    from ddaudit.cli.terminal import printable

    sys.stderr.write(f"ddaudit: {printable(text)}\n")
    return int(code)


def _fail(argv: Sequence[str], text: str, code: Exit) -> int:
    import os

    from ddaudit.redact import learn, redact_text, secrets_of

    learn(secrets_of(os.environ, argv))
    text = redact_text(text)
    if "--json" in argv:
        from ddaudit.cli.common import problem_envelope

        sys.stdout.write(problem_envelope(_command(argv), text, code) + "\n")
    return _tell(text, code)


def _command(argv: Sequence[str]) -> str:
    return next((word for word in argv if not word.startswith("-")), "")


def _internal(argv: Sequence[str], error: Exception) -> int:
    """A bug: saves the trace where the user can find it and says so in one line."""
    import tempfile
    import traceback
    from pathlib import Path

    from ddaudit.redact import redact_argv, redact_text

    lines = [
        f"ddaudit {__version__}",
        f"argv: {redact_argv(argv)}",
        redact_text("".join(traceback.format_exception(error))),
    ]
    with tempfile.NamedTemporaryFile("w", prefix="ddaudit-bug-", suffix=".txt", delete=False) as file:
        file.write("\n".join(lines))
    text = f"a bug in ddaudit: {type(error).__name__}: {redact_text(str(error))}; the trace is in {Path(file.name)}"
    return _fail(argv, text, Exit.INTERNAL)
