"""``ddaudit diff``: what changed between two runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddaudit.cli.common import check_folder, emit_json, envelope, json_option
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit

if TYPE_CHECKING:
    from ddaudit.engine.differences import Difference

__all__ = ["command"]

MAX_ROWS = 40


@click.command("diff")
@click.argument("a", metavar="RUN")
@click.argument("b", metavar="RUN")
@click.option("--baseline", "file", type=click.Path(dir_okay=False), help="Take the noise of metrics from this file.")
@json_option
def command(a: str, b: str, file: str | None, as_json: bool) -> int:
    """Say what changed from one run to the next: measures beyond noise, environment, outcomes.

    Exit 0: nothing is worse. 1: a measure or an outcome is. 3: the runs have nothing in common.
    """
    from ddaudit.engine.baselines import load_baseline
    from ddaudit.engine.differences import diff_runs
    from ddaudit.record import load_record

    known = load_baseline(Path(file)) if file else None
    found = diff_runs(load_record(check_folder(a)), load_record(check_folder(b)), known)
    code = Exit.INCONCLUSIVE if not found.comparable else Exit.FAIL if found.worse else Exit.PASS
    verdict = {Exit.FAIL: "FAIL", Exit.PASS: "PASS", Exit.INCONCLUSIVE: "INCONCLUSIVE"}[code]
    if as_json:
        emit_json(envelope("diff", verdict, code, a=a, b=b, **found.model_dump(mode="json")))
        return int(code)
    for line in _lines(found):
        click.echo(printable(line))
    return int(code)


def _lines(found: Difference) -> Iterator[str]:
    from ddaudit.report.numbers import quantity

    if found.reason:
        yield found.reason
    yield f"Measures ({len(found.measures)} beyond noise, {found.within_noise} within)"
    for c in found.measures[:MAX_ROWS]:
        word = "worse" if c.worse else "other"
        numbers = f"{quantity(c.a, c.unit)} -> {quantity(c.b, c.unit)}"
        yield f"  {word}  {c.metric}  {numbers}  {c.change:+.1%} (noise {c.noise:.1%}: {c.noise_source})"
    yield f"Environment ({len(found.environment)} differ)"
    yield from (f"  {name}: {one} -> {other}" for name, one, other in found.environment[:MAX_ROWS])
    yield f"Outcomes ({len(found.outcomes)} differ)"
    for step, check, place, before, after in found.outcomes[:MAX_ROWS]:
        yield f"  {step} {check}{f' ({place})' if place else ''}: {before} -> {after}"
    for name, keys in (("first", found.only_in_a), ("second", found.only_in_b)):
        if keys:
            yield f"Only in the {name} run: {', '.join(keys[:8])}{' ...' if len(keys) > 8 else ''}"
