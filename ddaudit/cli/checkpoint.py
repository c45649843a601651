"""``ddaudit checkpoint``: audit, show, diff, manifest, verify. Nothing in a checkpoint is executed; torch is not
imported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, load_waivers, waivers_option
from ddaudit.cli.reports import Target, report_option, write_asked
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.evidence.checkpoint import CheckpointDiff

__all__ = ["command"]

_LEVELS = click.Choice(["names", "headers", "full"])
_JOBS = click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Readers at once.")

_RESUME = click.option(
    "--resume", type=click.Path(dir_okay=False), help="Journal of an interrupted run; kept until this one ends."
)


@click.group("checkpoint")
def command() -> None:
    """Audit, show, compare and verify checkpoints without loading them.

    PATH is a file, a folder, a root with many steps, or an fsspec URL (s3://, gs://, ...).
    """


@command.command("audit")
@click.argument("path")
@click.option(
    "--level",
    type=_LEVELS,
    default="full",
    show_default=True,
    help="names: files; headers: metadata; full: every byte.",
)
@click.option(
    "--job", type=click.Path(exists=True, dir_okay=False), help="job.toml with batch, accumulation and data size."
)
@click.option("--target-ranks", type=click.IntRange(1), help="Processes of the job that will resume.")
@click.option("--tp", type=click.IntRange(1), help="Its tensor-parallel size.")
@click.option("--pp", type=click.IntRange(1), help="Its pipeline-parallel size.")
@_RESUME
@_JOBS
@waivers_option
@report_option(bare=False)
@json_option
def audit(path: str, level: str, job: str | None, target_ranks: int | None, tp: int | None, pp: int | None,
          resume: str | None, jobs: int, waivers: str | None, reports: tuple[Target, ...],
          as_json: bool) -> int:  # fmt: skip
    """Is the checkpoint complete, intact and resumable?

    Exit 0: OK or DEGRADED. 1: NOT-RESUMABLE, WRONG, BROKEN or SECURITY. 3: UNKNOWN.
    """
    from ddaudit.cli.checkpoint_audit import audit_path
    from ddaudit.cli.checkpoint_text import print_audit

    known = load_waivers(waivers, load_packs((), "builtin")) if waivers else None
    result = audit_path(path, level=level, job=job, target=(target_ranks, tp, pp), jobs=jobs,
                        progress=_progress(as_json), waivers=known, resume=resume)  # fmt: skip
    write_asked(result.record(), None, reports, ())
    if as_json:
        emit_json(result.as_json())
    else:
        print_audit(result)
    return int(result.exit)


@command.command("show")
@click.argument("path")
@click.option("--limit", type=click.IntRange(1), default=200, show_default=True, help="Rows to print.")
@json_option
def show(path: str, limit: int, as_json: bool) -> int:
    """What is in it: tensors with shape, dtype and shards, and all other values."""
    from ddaudit.checkpoint.collect import Options, collect
    from ddaudit.cli.checkpoint_text import print_show, show_rows

    collected = collect(path, Options(level="headers"))
    tensors, values = show_rows(collected)
    understood = bool(tensors or values)
    code = Exit.PASS if understood else Exit.INCONCLUSIVE
    if as_json:
        facts = collected.facts
        emit_json(envelope("checkpoint show", "PASS" if understood else "INCONCLUSIVE", code, layout=facts.layout,
                           selected=facts.selected, tensors=tensors, values=values))  # fmt: skip
    else:
        print_show(collected, tensors, values, limit)
    return int(code)


@command.command("diff")
@click.argument("a")
@click.argument("b")
@_JOBS
@json_option
def diff(a: str, b: str, jobs: int, as_json: bool) -> int:
    """Are two checkpoints the same, whatever their sharding, world size or format?

    Exit 0: the same. 1: different. 3: not comparable.
    """
    from ddaudit.checkpoint.diff import compare_paths

    return _finish_diff("checkpoint diff", compare_paths(a, b, jobs, _progress(as_json)), as_json)


@command.command("manifest")
@click.argument("path")
@click.option("-o", "--output", required=True, help="File to write; - for stdout.")
@_RESUME
@_JOBS
@json_option
def manifest(path: str, output: str, resume: str | None, jobs: int, as_json: bool) -> int:
    """Write the digests of every tensor and value, to verify a copy later."""
    from ddaudit.checkpoint.manifest import render, write
    from ddaudit.cli.checkpoint_audit import make_manifest

    if as_json and output == "-":
        raise UsageProblem("--json and -o - both want stdout", fix="give a file name to -o")
    made, faults = make_manifest(path, jobs, resume, _progress(as_json))
    if output == "-":
        sys.stdout.write(render(made))
    else:
        write(made, Path(output))
    code = Exit.INCONCLUSIVE if faults or not (made["tensors"] or made["values"]) else Exit.PASS
    word = "PASS" if code is Exit.PASS else "INCONCLUSIVE"
    if as_json:
        more = {
            "manifest": output,
            "tensors": len(made["tensors"]),
            "values": len(made["values"]),
            "unreadable": faults,
        }
        emit_json(envelope("checkpoint manifest", word, code, **more))
    for fault in faults[:10]:
        click.echo(printable(fault), err=True)
    click.echo(f"{len(made['tensors'])} tensors, {len(made['values'])} values -> {printable(output)}", err=True)
    return int(code)


@command.command("verify")
@click.argument("path")
@click.option(
    "--manifest", "manifest_file", required=True, type=click.Path(), help="Manifest to hold the checkpoint against."
)
@_JOBS
@json_option
def verify(path: str, manifest_file: str, jobs: int, as_json: bool) -> int:
    """Is the checkpoint the one that the manifest was written from?

    Exit 0: the same. 1: different. 3: not comparable.
    """
    from ddaudit.checkpoint.manifest import verify as compare

    return _finish_diff("checkpoint verify", compare(path, manifest_file, jobs, _progress(as_json)), as_json)


def _finish_diff(name: str, found: CheckpointDiff, as_json: bool) -> int:
    from ddaudit.cli.checkpoint_text import diff_json, print_diff

    code = Exit.INCONCLUSIVE if not found.comparable else Exit.PASS if found.identical else Exit.FAIL
    word = {Exit.INCONCLUSIVE: "INCONCLUSIVE", Exit.PASS: "PASS", Exit.FAIL: "FAIL"}[code]
    if as_json:
        emit_json(envelope(name, word, code, **diff_json(found)))
    else:
        print_diff(found)
    return int(code)


def _progress(quiet: bool) -> Any:
    """Bytes, rate and time left on stderr, when a person watches."""
    if quiet or not sys.stderr.isatty():
        return None
    from ddaudit.cli.checkpoint_text import progress_line

    return progress_line()


if __name__ == "__main__":
    from ddaudit.cli.checkpoint_audit import main

    sys.exit(main(sys.argv[1:]))
