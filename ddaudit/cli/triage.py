"""``ddaudit triage``: who broke, what proves it, what to do first."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from ddaudit.cli.common import emit_json, envelope, json_option, pack_options
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

__all__ = ["command"]


@click.command("triage")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--job", help="Judge this job id; lines of other jobs are set aside.")
@click.option("--since", metavar="TIME", help="Leave out what is older (2026-01-31T04:00, read as the hosts' clock).")
@json_option
@pack_options
def command(
    paths: tuple[Path, ...], job: str | None, since: str | None, as_json: bool, pack: tuple[str, ...], packs: str
) -> int:
    """Read the logs of a broken job and say who and what broke it, with the lines that prove it."""
    from ddaudit.triage.answer import investigate

    if not paths:
        raise UsageProblem(
            "nothing to read", expected="a folder or files with the job's logs", fix="ddaudit triage DIR"
        )
    start = time.perf_counter()
    answer = investigate(paths, job=job, since_s=_since(since), extra=[Path(p) for p in pack])
    seconds = time.perf_counter() - start
    code = Exit.PASS if answer.healthy else Exit.INCONCLUSIVE if answer.undetermined else Exit.FAIL
    verdict = {Exit.PASS: "PASS", Exit.INCONCLUSIVE: "INCONCLUSIVE", Exit.FAIL: "FAIL"}[code]
    if as_json:
        emit_json(envelope("triage", verdict, code, incident=answer.to_json()))
        return int(code)
    for line in answer.lines(", ".join(str(p) for p in paths), seconds):
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
