"""``ddaudit watch``: the team's own training script, unchanged, audited while it runs."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ddaudit.cli.common import (
    json_option,
    load_packs,
    load_waivers,
    pack_options,
    verbosity,
    verbosity_options,
    waivers_option,
)
from ddaudit.cli.reports import report_option, write_asked
from ddaudit.errors import UsageProblem

__all__ = ["command"]

#: What ``--expect`` may claim: its word -> the kind that checks know.
EXPECTED = {
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "accumulation": "accumulation",
    "updates": "updates",
    "warmup": "warmup_updates",
}


@click.command("watch", context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND [ARG]...", type=click.UNPROCESSED)
@click.option("--runbook", default="pre-merge", show_default=True, help="The page whose checks judge the run.")
@click.option("--expect", "expect", multiple=True, metavar="NAME=N[,NAME=N]", help="Claims to hold the run against.")
@click.option(
    "--every", type=click.IntRange(1), default=1, show_default=True, help="Sample costly facts every N updates."
)
@click.option("--continues", metavar="RUN", help="The watched run that this one resumes, if it cannot be recognised.")
@click.option(
    "--hang-timeout",
    type=click.FloatRange(5.0),
    default=150.0,
    show_default=True,
    help="End the command after so many seconds without any progress.",
)
@click.option(
    "--out", type=click.Path(file_okay=False), default="ddaudit-runs", show_default=True, help="Root of run folders."
)
@report_option()
@click.option("--fail-on", type=click.Choice(["minor", "major", "critical"]), default="major", show_default=True)
@click.option("--strict", is_flag=True, help="Any SKIP or ERROR makes the run inconclusive.")
@waivers_option
@click.option("--warn-as-fail", is_flag=True, help="A WARN fails the run.")
@click.option("--ascii", "ascii_only", is_flag=True, help="No glyphs beyond ASCII.")
@verbosity_options
@pack_options
@json_option
def command(words: tuple[str, ...], **options: Any) -> int:
    """Audit your own training script, unchanged.

    Give the command after --, for example: ddaudit watch -- torchrun --nproc-per-node 2 train.py
    """
    from ddaudit.engine.journal import Settings
    from ddaudit.engine.watched import Watched, watch_command

    loaded = load_packs(options["pack"], options["packs"])
    asked = Watched(
        argv=list(words),
        out=Path(options["out"]),
        run_id=f"watch-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        runbook=options["runbook"],
        every=options["every"],
        hang_s=options["hang_timeout"],
        expected=parse_expected(options["expect"]),
        continues=_run_folder(options["continues"]),
        settings=Settings(
            **{k: options[k] for k in ("fail_on", "strict", "warn_as_fail")},
            waivers=load_waivers(options["waivers"], loaded),
        ),
        to_stderr=options["as_json"],
    )
    record, run_dir = watch_command(asked, loaded)
    return _tell(record, run_dir, options, loaded.template_folders)


def _run_folder(given: str | None) -> Path | None:
    if given is None:
        return None
    folder = Path(given).absolute()
    if not (folder / "events" / "script").is_dir():
        raise UsageProblem("--continues: not the folder of a watched run", where=given)
    return folder


def parse_expected(words: tuple[str, ...]) -> dict[str, int]:
    """``global_batch=64,accumulation=4`` -> kinds and numbers; UsageProblem on anything else."""
    found: dict[str, int] = {}
    for pair in (p for word in words for p in word.split(",") if p):
        name, _, value = pair.partition("=")
        if name not in EXPECTED or not value.isdigit():
            raise UsageProblem(f"--expect {pair!r}", expected=f"NAME=N with NAME one of {', '.join(EXPECTED)}")
        found[EXPECTED[name]] = int(value)
    return found


def _tell(record: Any, run_dir: Path, options: dict[str, Any], folders: Sequence[Path]) -> int:
    """The script had stdout to itself until now: our words go to stderr, and with --json the object to stdout."""
    from ddaudit import report

    write_asked(record, run_dir, [("html", None), ("md", None), *options["reports"]], folders)
    stream = sys.stdout if options["as_json"] else sys.stderr
    width, color, plain = report.Options.terminal(stream, os.environ)
    text = report.render(
        record,
        "json" if options["as_json"] else "text",
        run_dir=run_dir,
        width=width,
        color=color,
        ascii_only=options["ascii_only"] or plain,
        verbosity=verbosity(options),
    )
    stream.write(text.rstrip("\n") + "\n")
    return int(record.exit_code)
