"""``ddaudit submit``: a run as a batch job, written for a scheduler, and followed to its end."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, pack_options, parse_params
from ddaudit.cli.terminal import printable
from ddaudit.errors import UsageProblem

if TYPE_CHECKING:
    from ddaudit.evidence.jobend import JobEnd
    from ddaudit.launch.slurm import Look
    from ddaudit.record import Record

__all__ = ["command"]


@click.group("submit")
def command() -> None:
    """Write a run as a batch job of Slurm or Kubernetes; submit it and follow it to its end."""


def _line(text: str) -> str:
    """One line of a script's head; nothing may end it early."""
    if re.search(r"[\r\n]", text):
        raise UsageProblem(f"{text!r} has more than one line")
    return text


def render(name: str, folders: Sequence[Path], **names: Any) -> str:
    """A batch job's template; a pack may bring its own of the same name."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from ddaudit.packs import builtin

    environment = Environment(
        loader=FileSystemLoader([*folders, builtin() / "templates"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - a shell script and a manifest; every value passes `sh`, `line` or `tojson`
    )
    environment.filters |= {"sh": lambda value: shlex.quote(_line(str(value))), "line": _line}
    return environment.get_template(name).render(**names)


def _command(job: dict[str, Any], runbook: str, options: dict[str, Any]) -> dict[str, Any]:
    """What both schedulers need: the runbook, as the job will find it, and the words behind it."""
    parse_params(options["params"])
    words = [w for pair in options["params"] for w in ("-P", pair)]
    words += [w for folder in options["pack"] for w in ("--pack", str(Path(folder).resolve()))]
    words += ["--device", options["device"]]
    path = Path(runbook)
    named = str(path.resolve()) if path.suffix == ".md" and path.is_file() else runbook
    load_packs(options["pack"], options["packs"]).runbook(named)
    return {**job, "runbook": named, "arguments": words}


def warn_s(limit: str | None) -> int:
    """How long before the time limit Slurm shall send TERM: a minute, but a tenth of a short limit. Slurm may send it
    half a minute early."""
    from ddaudit.launch.slurm import limit_seconds

    seconds = limit_seconds(limit or "")
    return 60 if seconds is None else max(5, min(60, seconds // 10))


@command.command("slurm")
@click.argument("runbook", default="scale-out")
@click.option("--nodes", type=click.IntRange(1, 65_536), default=1, show_default=True)
@click.option("--gpus-per-node", type=click.IntRange(0, 64), default=0, help="Also the ranks on a node, unless told.")
@click.option("--nproc-per-node", type=click.IntRange(1, 1024), help="Ranks on a node; default: its GPUs, or 1.")
@click.option("--partition", metavar="NAME")
@click.option("--account", metavar="NAME")
@click.option("--time", "time_limit", metavar="LIMIT", help="Slurm's time limit, such as 30:00.")
@click.option("--sbatch", "sbatch", multiple=True, metavar="OPTION", help="Another #SBATCH line (--qos=high).")
@click.option("-P", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the runbook.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--out", type=click.Path(file_okay=False), default="ddaudit-runs", show_default=True, help="Run folders.")
@click.option("--python", default=sys.executable, help="Python that has ddaudit on the nodes; default: this one.")
@click.option("--submit", "do_submit", is_flag=True, help="Submit it instead of printing it.")
@click.option("--wait", is_flag=True, help="With --submit: follow it; end with the run's exit code.")
@pack_options
@json_option
def slurm(runbook: str, **options: Any) -> int:
    """Print a Slurm job that runs RUNBOOK; with --submit hand it in.

    One task a node; each starts the node's ranks. A job that is requeued goes on with the steps that are left.
    """
    out = Path(options["out"]).resolve()
    gpus = options["gpus_per_node"]
    job = {
        "name": f"ddaudit-{Path(runbook).stem}",
        "nodes": options["nodes"],
        "gpus_per_node": gpus,
        "ranks_per_node": options["nproc_per_node"] or max(1, gpus),
        "partition": options["partition"],
        "account": options["account"],
        "time": options["time_limit"],
        "warn_s": warn_s(options["time_limit"]),
        "sbatch": options["sbatch"],
        "log": f"{out}/%x-%j.log",
        "out": str(out),
        "command": shlex.join([_line(options["python"]), "-m", "ddaudit"]),
    }
    folders = load_packs(options["pack"], options["packs"]).template_folders
    job = _command(job, runbook, options)
    script = render("job.sbatch.j2", folders, job=job)
    many = next((o for o in options["sbatch"] if re.match(r"--array\b|-a|hetjob\b|packjob\b", o.strip())), None)
    if options["wait"] and many is not None:
        raise UsageProblem(f"--wait follows one job, and {many!r} makes several", fix="drop --wait, or submit each")
    if options["wait"] and not options["do_submit"]:
        raise UsageProblem("--wait follows a job that was submitted", fix="add --submit")
    if not options["do_submit"]:
        if options["as_json"]:
            emit_json(envelope("submit", "PASS", 0, script=script))
        else:
            click.echo(script, nl=False)
        return 0
    return _hand_in(script, out, options)


def _hand_in(script: str, out: Path, options: dict[str, Any]) -> int:
    from ddaudit.launch import slurm as scheduler

    out.mkdir(parents=True, exist_ok=True)
    job = scheduler.submit(script)
    click.echo(f"ddaudit: job {job}, run folder {out / f'slurm-{job}'}", err=True)
    if not options["wait"]:
        if options["as_json"]:
            emit_json(envelope("submit", "PASS", 0, job={"job": job}, run=str(out / f"slurm-{job}")))
        return 0

    def tell(look: Look) -> None:
        click.echo(printable(f"ddaudit: job {job} {look}"), err=True)

    try:
        ended = scheduler.follow(job, tell)
    except KeyboardInterrupt:
        click.echo(f"ddaudit: job {job} goes on; end it with `scancel {job}`", err=True)
        raise
    return _conclude(ended, out / f"slurm-{job}", options)


def _conclude(ended: JobEnd, run_dir: Path, options: dict[str, Any]) -> int:
    """The run's own record where it can be read from here, with what the scheduler knows; else the latter alone."""
    from ddaudit.engine.ending import job_findings, note_end

    record: Record | None = None
    if (run_dir / "plan.json").is_file():
        note_end(run_dir, ended)
        from ddaudit.engine.restore import restore

        record = restore(run_dir, load_packs(options["pack"], options["packs"]))[0]
    findings, verdict, code = job_findings(ended, record)
    if options["as_json"]:
        told = {"job": ended.model_dump(mode="json"), "run": str(run_dir) if record else None}
        emit_json(envelope("submit", verdict, code, findings=[f.model_dump(mode="json") for f in findings], **told))
        return code
    for finding in findings:
        if finding.bad or finding.status.value in ("ERROR", "SKIP") or finding.check == "job":
            click.echo(printable(f"{finding.status.value:<5} {finding.id or finding.check}: {finding.text}"))
    click.echo(printable(f"{verdict}: job {ended.job} {ended.state.lower()}" + (f", run {run_dir}" if record else "")))
    return code


@command.command("k8s")
@click.argument("runbook", default="scale-out")
@click.option("--image", required=True, metavar="IMAGE", help="Image that has ddaudit and the runbook.")
@click.option("--name", default="ddaudit", show_default=True, help="Name of the JobSet and of its headless service.")
@click.option("--namespace", metavar="NAME")
@click.option("--queue", metavar="NAME", help="Kueue's local queue.")
@click.option("--nodes", type=click.IntRange(1, 10_000), default=1, show_default=True)
@click.option("--gpus-per-node", type=click.IntRange(0, 64), default=0)
@click.option("--nproc-per-node", type=click.IntRange(1, 1024), help="Ranks on a node; default: its GPUs, or 1.")
@click.option("--claim", metavar="NAME", help="Volume claim for the run folder; without one it goes with pod 0.")
@click.option("-P", "params", multiple=True, metavar="NAME=VALUE", help="Set a parameter of the runbook.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def k8s(runbook: str, **options: Any) -> int:
    """Print a JobSet manifest that runs RUNBOOK, ready for `kubectl apply -f -`.

    One pod a node; pod 0 conducts and writes the run folder.
    """
    import json

    from ddaudit.launch.kubernetes import PodJob, manifest

    parse_params(options["params"])
    words = [w for pair in options["params"] for w in ("-P", pair)] + ["--device", options["device"]]
    same = ("name", "image", "namespace", "queue", "nodes", "gpus_per_node", "claim")
    ranks = options["nproc_per_node"] or max(1, options["gpus_per_node"])
    job = PodJob(
        runbook=runbook, ranks_per_node=ranks, arguments=tuple(words), **{name: options[name] for name in same}
    )
    click.echo(json.dumps(manifest(job), indent=2))
    return 0
