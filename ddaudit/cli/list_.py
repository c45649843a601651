"""``ddaudit list``: what is there to run and to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.catalogue import KINDS, rows
from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, pack_options
from ddaudit.cli.terminal import printable

if TYPE_CHECKING:
    from ddaudit.packs import Packs

__all__ = ["command", "tell_failures"]


@click.command("list")
@click.argument("what", type=click.Choice(KINDS))
@pack_options
@json_option
def command(what: str, as_json: bool, **packs: Any) -> int:
    """List checks, probes, runbooks, packs or plants."""
    loaded = load_packs(packs["pack"], packs["packs"])
    items = rows(what, loaded)
    if as_json:
        failures = [f"{f.file}: {f.error}" for f in loaded.failures]
        emit_json(envelope("list", "PASS", 0, what=what, items=items, failures=failures))
        return 0
    cells = [(item["id"], *_cells(what, item)) for item in items]
    width = max((len(first) for first, _ in cells), default=0)
    for first, text in cells:
        click.echo(f"{printable(first):<{width}}  {printable(text)}")
    tell_failures(loaded)
    return 0


def tell_failures(packs: Packs) -> None:
    """Names on stderr the files that did not import: what they hold is missing from any list."""
    for failure in packs.failures:
        click.echo(printable(f"did not import: {failure.file}: {failure.error}"), err=True)


def _cells(what: str, item: dict[str, Any]) -> tuple[str]:
    if what == "checks":
        return (item["asks"],)
    if what == "probes":
        return (f"on {item['where']}; {item['doc'].partition(chr(10))[0]}",)
    if what == "runbooks":
        return (item["title"] if item["problem"] is None else f"cannot be read: {item['problem']}",)
    if what == "plants":
        place = f"{item['probe']}, {item['ranks']} rank(s)"
        return (f"{item['plant']} -> {' or '.join(item['expect'])} ({place})",)
    counts = ", ".join(f"{item[part]} {part}" for part in ("checks", "probes", "runbooks", "templates") if item[part])
    return (f"{item['source']} ({counts or 'empty'})",)
