"""``ddaudit selftest``: the proof that checks can fail."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option, load_packs, pack_options
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit

__all__ = ["command"]


@click.command("selftest")
@click.argument("checks", nargs=-1, metavar="[CHECK]...")
@click.option("--keep", type=click.Path(file_okay=False), help="Keep the runs in this new folder.")
@pack_options
@json_option
def command(checks: tuple[str, ...], keep: str | None, as_json: bool, **packs: Any) -> int:
    """Plant each check's fault and show that the check turns red.

    CHECK is an id or a glob; without one every check is proven. Exit 0 when each planted fault was found and each
    healthy twin stayed quiet.
    """
    from ddaudit.engine.selftest import collect, registered, rows

    loaded = load_packs(packs["pack"], packs["packs"])
    chosen = registered(loaded.registry, checks)
    folder = Path(keep).absolute() if keep else Path(tempfile.mkdtemp(prefix="ddaudit-selftest-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        collected = collect(loaded, chosen, folder, on_step=_show_step)
        table = rows(chosen, collected)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    good = bool(table) and all(row.ok for row in table)
    code = Exit.PASS if good else Exit.FAIL if table else Exit.INCONCLUSIVE
    if as_json:
        word = {Exit.PASS: "PASS", Exit.FAIL: "FAIL"}.get(code, "INCONCLUSIVE")
        run = str(folder) if keep else None
        emit_json(envelope("selftest", word, code, run=run, checks=[row.as_json() for row in table]))
    else:
        _print_table([row.as_json() for row in table])
    return int(code)


def _show_step(number: int, total: int, text: str) -> None:
    click.echo(f"[{number + 1}/{total}] {printable(text)[:150]}", err=True)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "check", "plant", "type", "ranks", "red", "green", "limit", box=None, pad_edge=False)
    for row in rows:
        glyph = "✖" if not row["ok"] else "✔" if row["red"] else "·"
        red, green = (_number(row[side].get("measured")) for side in ("red", "green"))
        table.add_row(
            glyph, row["check"], row["plant"], row["type"], str(row["ranks"]), red, green, _number(row["limit"])
        )
    console = Console()
    console.print(table)
    for row in rows:
        if not row["ok"]:
            console.print(f"✖ {row['check']} / {row['plant']}: {printable(row['why'])}", markup=False)
    proven = [row for row in rows if row["red"]]
    text = (
        f"{sum(r['ok'] for r in proven)} of {len(proven)} plants proven, {len(rows) - len(proven)} cells not applicable"
    )
    console.print(text, markup=False)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
