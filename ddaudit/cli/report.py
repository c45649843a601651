"""``ddaudit report``: the record's faces, drawn again."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ddaudit.cli.common import (
    check_folder,
    json_option,
    load_packs,
    load_waivers,
    pack_options,
    verbosity,
    verbosity_options,
    waivers_option,
)
from ddaudit.cli.reports import ReportTarget, Target, write_asked

__all__ = ["command"]


@click.command("report")
@click.argument("run")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=ReportTarget(),
    help="Write it there, or to PATH; default html, md. Repeatable.",
)
@click.option("--rejudge", is_flag=True, help="Judge the evidence again with today's checks (implied by --waivers).")
@waivers_option
@click.option("--ascii", "ascii_only", is_flag=True, help="No glyphs beyond ASCII.")
@verbosity_options
@pack_options
@json_option
def command(run: str, formats: tuple[Target, ...], rejudge: bool, ascii_only: bool, as_json: bool, **packs: Any) -> int:
    """Render a run again; rebuild what is missing.

    RUN is a run folder, also one that was copied here. A missing or broken record or evidence.h5 is made again from
    the events that every rank wrote; finished steps of an interrupted run are judged.
    """
    from ddaudit import report
    from ddaudit.engine.ending import settle
    from ddaudit.engine.restore import restore

    run_dir = check_folder(run).resolve()
    loaded = load_packs(packs["pack"], packs["packs"])
    given = load_waivers(packs["waivers"], loaded) if packs["waivers"] else None
    settle(run_dir)
    record, notes = restore(run_dir, loaded, rejudge=rejudge, waivers=given)
    for note in notes:
        click.echo(f"ddaudit: {note}", err=True)
    write_asked(record, run_dir, list(formats) or [("html", None), ("md", None)], loaded.template_folders)
    face = "json" if as_json else "text"
    width, color, plain = report.Options.terminal(sys.stdout, os.environ)
    text = report.render(
        record,
        face,
        run_dir=run_dir,
        width=width,
        color=color,
        ascii_only=ascii_only or plain,
        verbosity=verbosity(packs),
    )
    sys.stdout.write(text.rstrip("\n") + "\n")
    return record.exit_code
