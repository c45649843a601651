"""``ddaudit run``: the main job."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ddaudit.cli.common import (
    check_folder,
    emit_json,
    envelope,
    json_option,
    load_packs,
    load_waivers,
    pack_options,
    parse_params,
    verbosity,
    verbosity_options,
    waivers_option,
)
from ddaudit.cli.exits import coded, exit_map_option
from ddaudit.cli.hosts import conducting, find, follow, host_options
from ddaudit.cli.reports import report_option, write_asked
from ddaudit.cli.streams import Stopped
from ddaudit.cli.terminal import printable
from ddaudit.errors import UsageProblem
from ddaudit.redact import HIDE_USERS

if TYPE_CHECKING:
    from ddaudit.engine import Session, Walk
    from ddaudit.engine.baselines import Baseline
    from ddaudit.launch import Fleet, Place
    from ddaudit.record import Record

__all__ = ["command", "execute", "open_session"]


@click.command("run")
@click.argument("runbook", default="scale-out")
@click.option("-P", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the runbook.")
@click.option("--job", metavar="FILE", help="Judge this planned job (job.toml) before a device is touched.")
@click.option("--job-set", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file (layout.tp=4).")
@click.option("--only", multiple=True, metavar="GLOB", help="Run these steps and what they need.")
@click.option("--skip", multiple=True, metavar="GLOB", help="Leave these steps out.")
@click.option("--start", metavar="STEP", help="Triage runbooks: begin at this step.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False), default="ddaudit-runs", show_default=True, help="Root of run folders."
)
@click.option("--run-id", metavar="NAME", help="Name of the run folder; default: made from the time.")
@click.option("--resume", metavar="RUN", help="Go on with a run folder that was interrupted.")
@click.option("--dry-run", is_flag=True, help="Show the ordered steps and launch nothing.")
@click.option("--world-size", type=click.IntRange(2), help="With --dry-run: do the training steps fit so many ranks?")
@report_option()
@click.option("--fail-on", type=click.Choice(["minor", "major", "critical"]), default="major", show_default=True)
@click.option("--strict", is_flag=True, help="Any SKIP or ERROR makes the run inconclusive.")
@click.option("--warn-as-fail", is_flag=True, help="A WARN fails the run.")
@waivers_option
@click.option(
    "--baseline", type=click.Path(dir_okay=False), metavar="FILE", help="Hold measures against this baseline."
)
@click.option("--answers", multiple=True, metavar="STEP=pass|warn|fail", help="Answer a manual step.")
@click.option("--ascii", "ascii_only", is_flag=True, help="No glyphs beyond ASCII.")
@click.option("--redact-users", is_flag=True, help="Hide user names in everything that is recorded.")
@click.option("--no-progress", is_flag=True, help="Nothing on stderr while it runs.")
@verbosity_options
@exit_map_option
@host_options
@pack_options
@json_option
def command(**options: Any) -> int:
    """Run a runbook: train, measure, judge, report.

    RUNBOOK is an id (see `ddaudit list runbooks`) or a file; the default is scale-out. On several hosts start it once
    on each, with torchrun's flags, or by srun or torchrun: host 0 conducts, writes the run folder and reports.
    """
    if options["redact_users"]:
        os.environ[HIDE_USERS] = "1"
    if options["world_size"] and not options["dry_run"]:
        raise UsageProblem("--world-size tries a plan", fix="add --dry-run; a run takes its ranks from -P ranks=N")
    place = find(options)
    if place is not None and not place.conducts and not options["dry_run"]:
        return follow(place, options)
    if options["world_size"]:
        from ddaudit.cli.rehearse import show

        return show(open_session(options, None).plan, options["world_size"], options["as_json"])
    if options["dry_run"]:
        return _show_plan(open_session(options, place), options["as_json"])
    with conducting(place, options) as fleet:
        record = execute(open_session(options, place), options, fleet)
    return coded(record.verdict, record.exit_code)


def open_session(options: dict[str, Any], place: Place | None) -> Session:
    """The run that the options of this command ask for, new or resumed, ready to be executed."""
    return _resumed(options) if options["resume"] else _new(options, place)


def _new(options: dict[str, Any], place: Place | None) -> Session:
    from ddaudit.engine.session import new_run_id, prepare

    return prepare(
        load_packs(options["pack"], options["packs"]),
        options["runbook"],
        params=parse_params(options["params"]),
        out=Path(options["out"]),
        run_id=_run_id(options["run_id"]) or new_run_id(),
        device=options["device"],
        seed=options["seed"],
        only=options["only"],
        skip=options["skip"],
        start=options["start"],
        argv=["ddaudit", *sys.argv[1:]],
        job=options["job"],
        job_set=parse_params(options["job_set"], "--job-set"),
        place=place,
    )


def _run_id(asked: str | None) -> str | None:
    if asked is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}", asked):
        raise UsageProblem(f"--run-id {asked!r}", expected="letters, digits, dots, dashes and underscores")
    return asked


#: What the folder of a resumed run rules, as parameters of the command.
RULED = ("runbook", "params", "only", "skip", "start", "device", "seed", "out", "run_id", "fail_on", "strict",
         "warn_as_fail", "waivers", "baseline")  # fmt: skip


def _resumed(options: dict[str, Any]) -> Session:
    """The run of ``--resume RUN``: plan, packs and how to conclude come from its folder."""
    from ddaudit.engine.journal import read_plan
    from ddaudit.engine.session import resume

    if options["job"] or options["job_set"]:
        raise UsageProblem("--resume keeps the plan of its run, job file included", fix="drop --job and --job-set")
    run_dir = check_folder(options["resume"])
    context = click.get_current_context()
    given = [name for name in RULED if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given:
        words = ", ".join(name.replace("_", "-") for name in given)
        click.echo(f"ddaudit: ignored, since the run's own plan rules: {words}", err=True)
    folders = dict.fromkeys([*read_plan(run_dir).packs, *options["pack"]])
    return resume(run_dir, load_packs(list(folders), options["packs"]))


def execute(session: Session, options: dict[str, Any], fleet: Fleet | None) -> Record:
    """Walks the session, writes its reports and prints the run's outcome."""
    from ddaudit.cli.live import LiveView
    from ddaudit.engine import Options, Settings
    from ddaudit.engine.restore import restore

    if session.finished:
        click.echo("ddaudit: this run is finished; its report:", err=True)
        return _tell(restore(session.run_dir, session.packs)[0], session, options)
    settings = Settings(
        **{name: options[name] for name in ("fail_on", "strict", "warn_as_fail")},
        waivers=load_waivers(options["waivers"], session.packs),
        baseline=_baseline(options["baseline"]),
    )
    chosen = Options(settings, parse_params(options["answers"], "--answers"), _ask())
    view = LiveView(enabled=not (options["no_progress"] or options["quiet"]), ascii_only=options["ascii_only"])
    with session.walking(chosen, view, fleet) as walk, _signals(walk):
        if fleet is not None:
            fleet.on_signal = walk.interrupt
        with view:
            record = walk.execute("run")
        return _tell(record, session, options)


def _baseline(path: str | None) -> Baseline | None:
    from ddaudit.engine.baselines import load_baseline

    return load_baseline(Path(path)) if path else None


def _tell(record: Record, session: Session, options: dict[str, Any]) -> Record:
    from ddaudit import report
    from ddaudit.launch.stall import knock

    knock(session.run_dir)
    usual = [("html", None), ("md", None)]
    write_asked(record, session.run_dir, [*usual, *options["reports"]], session.packs.template_folders)
    face = "json" if options["as_json"] else "text"
    width, color, plain = report.Options.terminal(sys.stdout, os.environ)
    text = report.render(
        record,
        face,
        run_dir=session.run_dir,
        width=width,
        color=color,
        ascii_only=options["ascii_only"] or plain,
        verbosity=verbosity(options),
    )
    if not options.get("silent"):
        sys.stdout.write(text.rstrip("\n") + "\n")
    return record


def _ask() -> Any:
    """Asks a person on a terminal; without one, manual steps are skipped unless ``--answers`` has them."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(question: str) -> str | None:
        try:
            choice = click.prompt(question, type=click.Choice(["pass", "warn", "fail", "skip"]), err=True)
        except click.Abort:
            raise KeyboardInterrupt from None
        return None if choice == "skip" else str(choice)

    return ask


#: How far apart the TERMs of one request may come.
TOGETHER_S = 5.0


@contextmanager
def _signals(walk: Walk) -> Iterator[None]:
    """First Ctrl-C, TERM or HUP: end the running step, keep the rest, still write the report. A second one ends at
    once, as does the first while a person is asked. Schedulers send TERM for the step, for the job and to each host, so
    TERMs that come together are one."""
    from ddaudit.launch.process import catching

    since = [float("inf")]

    def first(number: int, frame: FrameType | None) -> None:
        told = int(signal.SIGTERM if number == signal.SIGHUP else number)
        now = time.monotonic()
        since[0] = min(since[0], now)
        again = walk.signal is not None and (number == signal.SIGINT or now - since[0] > TOGETHER_S)
        walk.interrupt(told)
        if again or walk.asking:
            raise Stopped(told)

    with catching(first):
        yield


def _show_plan(session: Session, as_json: bool) -> int:
    from ddaudit.cli.dry_run import effects, lines

    plan = session.plan
    if not plan.steps:
        raise UsageProblem("the plan has no step", fix="loosen --only and --skip")
    if as_json:
        shown = ("id", "probe", "nproc", "timeout_s", "needs", "when", "checks", "params")
        steps = [
            {name: value for name, value in s.model_dump(mode="json").items() if name in shown}
            | {"effects": effects(s)}
            for s in plan.steps
        ]
        emit_json(envelope("run", "PASS", 0, dry_run=True, runbook=plan.runbook, device=plan.device, planned=steps))
        return 0
    for line in lines(plan):
        click.echo(printable(line))
    return 0
