"""``ddaudit triage``: who broke, what proves it, what to do first."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddaudit.cli.common import emit_json, envelope, json_option, pack_folders, pack_options
from ddaudit.cli.reports import ReportTarget, Target, write_asked
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.triage.answer import Answer

__all__ = ["command"]


@click.command("triage")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", help="Judge this job id; lines of other jobs are set aside.")
@click.option("--since", metavar="TIME", help="Leave out what is older (2026-01-31T04:00, the hosts' clock).")
@click.option("--report", "reports", multiple=True, type=ReportTarget(bare=False, words=("text", "incident")),
              help="text: ten lines for the terminal (default); incident: a Markdown post for the channel; "
              "FORMAT:PATH: also write a report there. Repeatable.")  # fmt: skip
@click.option("--live", is_flag=True, help="Look at running ranks of this host, read-only.")
@click.option("--pid", "pids", multiple=True, type=int, help="With --live: a rank (repeatable); default: all of yours.")
@click.option(
    "--signal", "ask", metavar="NAME", help="With --live: a signal that the ranks have given to faulthandler."
)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="With --live: keep what was collected in this new folder."
)
@json_option
@pack_options
def command(
    paths: tuple[Path, ...],
    job: str | None,
    since: str | None,
    reports: tuple[Target, ...],
    live: bool,
    pids: tuple[int, ...],
    ask: str | None,
    keep: Path | None,
    as_json: bool,
    pack: tuple[str, ...],
    packs: str,
) -> int:
    """Read the logs of a broken job and say who and what broke it, with the lines that prove it."""
    if not paths and not live:
        raise UsageProblem(
            "nothing to read", expected="a folder or files with the job's logs", fix="ddaudit triage DIR"
        )
    if not live and (pids or ask or keep):
        raise UsageProblem("--pid, --signal and --keep belong to --live")
    start = time.perf_counter()
    extra = pack_folders(pack, packs)
    if live:
        answer = _live(list(paths), pids, (job, since), ask, keep, extra)
        source = "running ranks"
    else:
        answer = _read(list(paths), job, since, extra)
        source = ", ".join(str(p) for p in paths)
    seconds = time.perf_counter() - start
    written = [(format, path) for format, path in reports if path is not None]
    if written:
        from ddaudit.cli.triage_record import record_of

        write_asked(record_of(answer, source, seconds), None, written, [p / "templates" for p in extra])
    told = [format for format, path in reports if path is None]
    return _tell(answer, source, seconds, told[-1] if told else "text", as_json, extra)


def _read(paths: list[Path], job: str | None, since: str | None, extra: list[Path]) -> Answer:
    from ddaudit.triage.answer import investigate

    return investigate(paths, job=job, since_s=_since(since), extra=extra)


def _live(
    paths: list[Path],
    pids: tuple[int, ...],
    which: tuple[str | None, str | None],
    ask: str | None,
    keep: Path | None,
    extra: list[Path],
) -> Answer:
    from ddaudit.triage.live import collect

    with tempfile.TemporaryDirectory(prefix="ddaudit-live-") as name:
        folder = keep or Path(name)
        if keep is not None:
            if keep.exists():
                raise UsageProblem("folder exists", where=str(keep), fix="choose another name")
            keep.mkdir(parents=True)
        notes = collect(folder, pids, which[0], ask)
        return replace(_read([folder, *paths], *which, extra), gaps=tuple(notes))


def _tell(answer: Answer, source: str, seconds: float, report: str, as_json: bool, extra: list[Path]) -> int:
    code = Exit.PASS if answer.healthy else Exit.INCONCLUSIVE if answer.undetermined else Exit.FAIL
    verdict = {Exit.PASS: "PASS", Exit.INCONCLUSIVE: "INCONCLUSIVE", Exit.FAIL: "FAIL"}[code]
    if as_json:
        emit_json(envelope("triage", verdict, code, incident=answer.to_json()))
    elif report == "incident":
        from ddaudit.triage.post import render_post

        click.echo(printable(render_post(answer, source, [p / "templates" for p in extra]), keep="\n"), nl=False)
    else:
        for line in answer.lines(source, seconds):
            click.echo(printable(line))
    return int(code)


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    from ddaudit.triage.readers.stamps import find_stamp

    stamp = find_stamp(text if len(text) > 16 else text + ":00")
    if stamp is None:
        raise UsageProblem(f"--since {text!r} is no time", expected="2026-01-31T04:00:00")
    return stamp.time_s


if __name__ == "__main__":
    sys.exit(command.main(standalone_mode=False))
