"""``ddaudit baseline``: what good runs measured, kept in a file, and held against new runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.common import check_folder, emit_json, envelope, json_option
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.engine.baselines import Compared
    from ddaudit.record import Record

__all__ = ["command"]


@click.group("baseline")
def command() -> None:
    """Learn what good runs measure, and tell a regression from noise.

    A baseline is one portable JSON file: median and spread of every metric on every device type, without outliers.
    """


def _records(runs: tuple[str, ...]) -> list[Record]:
    from ddaudit.record import load_record

    return [load_record(check_folder(run)) for run in runs]


@command.command("save")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--name", help="What findings call it.  [default: FILE without its endings]")
@click.option("--force", is_flag=True, help="Replace FILE.")
@json_option
def save(file: str, runs: tuple[str, ...], name: str | None, force: bool, as_json: bool) -> int:
    """Learn from at least three good runs and write FILE (such as h200.baseline.json)."""
    from ddaudit.engine.baselines import learn, save_baseline

    path = Path(file)
    if path.exists() and not force:
        raise UsageProblem("exists already", where=file, fix="choose another name, or --force")
    baseline = learn(name or path.name.partition(".")[0], _records(runs), time.time())
    try:
        save_baseline(baseline, path)
    except OSError as error:
        raise UsageProblem(f"cannot be written ({error.strerror})", where=file) from None
    counts = {device: len(metrics) for device, metrics in baseline.devices.items()}
    removed = sum(k.removed for metrics in baseline.devices.values() for k in metrics.values())
    if as_json:
        emit_json(envelope("baseline save", "PASS", 0, file=str(path), metrics=counts, outliers_removed=removed))
        return 0
    for device, count in counts.items():
        click.echo(printable(f"{path}: {count} metrics of {device} from {len(runs)} runs, {removed} outliers removed"))
    return 0


@command.command("list")
@click.argument("folder", default=".", metavar="[DIR]")
@json_option
def list_(folder: str, as_json: bool) -> int:
    """List the baselines (*.baseline.json) of DIR."""
    from ddaudit.engine.baselines import load_baseline, names

    found: list[dict[str, Any]] = []
    for path in names(check_folder(folder)):
        try:
            one = load_baseline(path)
        except UsageProblem as problem:
            found.append({"file": str(path), "problem": problem.what})
            continue
        devices = {device: len(metrics) for device, metrics in one.devices.items()}
        found.append({"file": str(path), "name": one.name, "created": one.created, "runs": len(one.runs),
                      "devices": devices, "problem": None})  # fmt: skip
    if as_json:
        emit_json(envelope("baseline list", "PASS", 0, baselines=found))
        return 0
    for row in found:
        when = time.strftime("%Y-%m-%d", time.gmtime(row["created"])) if not row["problem"] else ""
        told = row["problem"] or f"{row['name']}, {row['runs']} runs, {when}, {', '.join(row['devices'])}"
        click.echo(printable(f"{row['file']}: {told}"))
    if not found:
        click.echo(f"no *.baseline.json in {folder}", err=True)
    return 0


@command.command("compare")
@click.argument("file", type=click.Path(dir_okay=False))
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@json_option
def compare(file: str, runs: tuple[str, ...], as_json: bool) -> int:
    """Hold runs against a baseline; several are repeats of one measurement, and their median speaks.

    Exit 0: nothing is worse than noise. 1: something is. 3: nothing could be compared.
    """
    from ddaudit.engine.baselines import compare as compared
    from ddaudit.engine.baselines import load_baseline

    baseline = load_baseline(Path(file))
    rows = sorted(compared(_records(runs), baseline), key=lambda r: (not r.worse, not r.better, -abs(r.change)))
    bad = [r for r in rows if r.worse]
    code = Exit.FAIL if bad else Exit.PASS if rows else Exit.INCONCLUSIVE
    verdict = {Exit.FAIL: "FAIL", Exit.PASS: "PASS", Exit.INCONCLUSIVE: "INCONCLUSIVE"}[code]
    if as_json:
        metrics = [r.model_dump(mode="json") for r in rows]
        emit_json(envelope("baseline compare", verdict, code, baseline=baseline.name, metrics=metrics))
        return int(code)
    _tell(rows)
    better = sum(r.better for r in rows)
    summary = f"{len(bad)} worse, {better} better, {len(rows) - len(bad) - better} within noise of {baseline.name}"
    click.echo(printable(summary if rows else f"{baseline.name} knows no metric of these runs' devices"))
    return int(code)


def _tell(rows: list[Compared]) -> None:
    from ddaudit.report.numbers import quantity

    for row in rows:
        if row.worse or row.better:
            numbers = f"{quantity(row.value, row.unit)}, baseline {quantity(row.baseline, row.unit)}"
            limit = f"limit {quantity(row.limit, row.unit)}"
            click.echo(
                printable(f"{'worse ' if row.worse else 'better'} {row.metric} {row.change:+.1%}: {numbers}, {limit}")
            )
