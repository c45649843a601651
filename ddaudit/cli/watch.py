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
    "--resume-test",
    is_flag=True,
    help="Run through, run until killed after a checkpoint, resume: is the resumed run the same?",
)
@click.option("--save-cmd", metavar="CMD", help="With --resume-test: the command that is killed ({ckpt}: its folder).")
@click.option("--resume-cmd", metavar="CMD", help="With --resume-test: the command that resumes ({ckpt}, {last}).")
@click.option("--compare-single", is_flag=True, help="Also run on one rank with the same global batch; compare losses.")
@click.option("--single-cmd", metavar="CMD", help="With --compare-single: the command for one rank.")
@click.option("--baseline", metavar="RUN", help="A watched run of the code before the change, to compare with.")
@click.option("--job", metavar="FILE", help="Hold the run against the batch and warm-up of this job file (job.toml).")
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
    from ddaudit.engine.watched import Watched

    _consistent(options)
    loaded = load_packs(options["pack"], options["packs"])
    asked = Watched(
        argv=list(words),
        out=Path(options["out"]),
        run_id=f"watch-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}",
        runbook=options["runbook"],
        every=options["every"],
        hang_s=options["hang_timeout"],
        expected=_of_job(options["job"]) | parse_expected(options["expect"]),
        continues=_run_folder(options["continues"], "--continues"),
        baseline=_run_folder(options["baseline"], "--baseline"),
        settings=Settings(
            **{k: options[k] for k in ("fail_on", "strict", "warn_as_fail")},
            waivers=load_waivers(options["waivers"], loaded),
        ),
        to_stderr=options["as_json"],
    )
    record, run_dir = _runs(asked, options, loaded)
    return _tell(record, run_dir, options, loaded.template_folders)


def _consistent(options: dict[str, Any]) -> None:
    if (options["save_cmd"] or options["resume_cmd"]) and not options["resume_test"]:
        raise UsageProblem("--save-cmd and --resume-cmd belong to --resume-test")
    if options["single_cmd"] and not options["compare_single"]:
        raise UsageProblem("--single-cmd belongs to --compare-single")
    if options["resume_test"] and options["compare_single"]:
        raise UsageProblem("--resume-test and --compare-single are two different runs", fix="run one after the other")


def _runs(asked: Any, options: dict[str, Any], packs: Any) -> Any:
    """The run that was asked for, with those that it is compared with."""
    from ddaudit.engine.resumed import resume_test
    from ddaudit.engine.single import compare_single
    from ddaudit.engine.watched import watch_command

    if options["resume_test"]:
        return resume_test(asked, options["save_cmd"], options["resume_cmd"], packs)
    if options["compare_single"]:
        return compare_single(asked, options["single_cmd"], packs)
    return watch_command(asked, packs)


def _of_job(file: str | None) -> dict[str, int]:
    """What a job file plans, as expectations."""
    if file is None:
        return {}
    from ddaudit.job import job_plan, load_job

    plan = job_plan(load_job(Path(file), {})).planned
    found = {
        "global_batch": plan.global_batch_claimed or plan.global_batch,
        "accumulation": plan.accumulation,
        "warmup_updates": plan.warmup_updates,
    }
    return {kind: int(value) for kind, value in found.items() if value}


def _run_folder(given: str | None, option: str) -> Path | None:
    if given is None:
        return None
    folder = Path(given).absolute()
    if not (folder / "events" / "script").is_dir():
        raise UsageProblem(f"{option}: not the folder of a watched run", where=given)
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
