"""``ddaudit bundle``: one redacted archive for a colleague or a vendor case."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ddaudit.cli.common import emit_json, envelope, json_option
from ddaudit.cli.terminal import printable
from ddaudit.errors import UsageProblem

__all__ = ["command"]


@click.command("bundle")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Archive to write (default: <folder>.bundle.tar.gz)."
)
@json_option
def command(paths: tuple[Path, ...], output: Path | None, as_json: bool) -> int:
    """Pack a run folder or logs into one redacted archive with hashes, which `triage` reads back."""
    from ddaudit.triage.archive import write_archive

    if not paths:
        raise UsageProblem("nothing to pack", expected="a run folder, or a folder or files with logs")
    target = output or Path(f"{paths[0].resolve().name}.bundle.tar.gz")
    manifest = write_archive(list(paths), target)
    files = manifest["files"]
    if as_json:
        emit_json(envelope("bundle", "PASS", 0, archive=str(target), **manifest))
        return 0
    redacted = sum(1 for f in files if f["redacted"])
    binary = sum(1 for f in files if f["binary"])
    click.echo(printable(f"{target}: {len(files)} files, {redacted} redacted, {binary} binary copied as they are"))
    for note in manifest["notes"]:
        click.echo(printable(f"note: {note}"), err=True)
    return 0


if __name__ == "__main__":
    sys.exit(command.main(standalone_mode=False))
