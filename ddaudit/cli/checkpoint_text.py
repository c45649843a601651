"""What the checkpoint commands print for people. Every name from a file is escaped before it reaches the terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ddaudit.cli.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

    from ddaudit.checkpoint.collect import Collected
    from ddaudit.checkpoint.passes import Progress
    from ddaudit.cli.checkpoint_audit import AuditResult
    from ddaudit.evidence.checkpoint import CheckpointDiff

_NAME_WIDTH = 100
_PLAIN = (int, float, str, bool, type(None))
_MIB = 1 << 20


def _console() -> Console:
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False)


def _cut(text: object, width: int = _NAME_WIDTH) -> str:
    plain = printable(str(text))
    return plain if len(plain) <= width else plain[: width - 1] + "…"


def print_audit(result: AuditResult) -> None:
    """The verdict, one row an area, then every finding that is not good, with what to do."""
    from rich.table import Table

    from ddaudit.evidence.checkpoint_words import WORDS, word_of

    facts, console = result.facts, _console()
    step = f", step {result.global_step}" if result.global_step is not None else ""
    name = facts.path + (f" ({facts.selected})" if facts.selected else "")
    console.print(f"{result.word}  {_cut(name, 300)}: {facts.layout}{step}", markup=False)
    size = f"{facts.bytes / _MIB:,.1f} MiB in {facts.files} files, {facts.tensors} tensors"
    console.print(f"{size}; complete: {_cut(facts.completion.proof, 200)}", markup=False)
    table = Table("area", "verdict", "what was found", box=None, pad_edge=False)
    for area, word in result.areas.items():
        mine = [f for f in result.findings if f.check.rpartition(".")[2] == area]
        worst = max(mine, key=lambda f: WORDS.index(word_of(f)))
        table.add_row(area, word, _escape(_cut(worst.text, 160)))
    console.print(table)
    bad = [f for f in result.findings if word_of(f) != "OK"]
    for finding in bad[:50]:
        place = f"  [{_cut(finding.where, 200)}]" if str(finding.where) else ""
        console.print(
            f"{finding.status.glyph} {word_of(finding)} {finding.id}: {_cut(finding.text, 400)}{place}", markup=False
        )
        if finding.remedy is not None:
            console.print(f"    → {printable(finding.remedy.text)}", markup=False)
    if len(bad) > 50:
        console.print(f"... and {len(bad) - 50} more (see --json)", markup=False)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def show_rows(collected: Collected) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tensors and values as plain rows, by name."""
    tensors = [
        {"name": t.name, "dtype": t.dtype, "shape": list(t.view or t.shape), "shards": len(t.chunks), "bytes": t.nbytes,
         "file": t.chunks[0].file if t.chunks else t.file, "value": t.value}
        for t in sorted(collected.made.tensors.values(), key=lambda t: t.name)
    ]  # fmt: skip
    values = [
        {"name": v.name, "value": v.value if isinstance(v.value, _PLAIN) else _kind(v.value), "file": v.file}
        for v in sorted(collected.made.values.values(), key=lambda v: v.name)
    ]  # fmt: skip
    return tensors, values


def _kind(value: Any) -> str:
    if isinstance(value, list) and len(value) <= 8:
        return str(value)
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def print_show(collected: Collected, tensors: list[dict[str, Any]], values: list[dict[str, Any]], limit: int) -> None:
    from rich.table import Table

    console, facts = _console(), collected.facts
    console.print(f"{facts.layout}  {_cut(facts.path, 300)}  {facts.selected or ''}", markup=False)
    table = Table("tensor", "dtype", "shape", "shards", "bytes", box=None, pad_edge=False)
    for row in tensors[:limit]:
        shape = "x".join(map(str, row["shape"])) or "scalar"
        table.add_row(_escape(_cut(row["name"])), row["dtype"], shape, str(row["shards"]), f"{row['bytes']:,}")
    console.print(table)
    table = Table("value", "", box=None, pad_edge=False)
    for row in values[:limit]:
        table.add_row(_escape(_cut(row["name"])), _escape(_cut(row["value"], 60)))
    console.print(table)
    left = max(0, len(tensors) - limit) + max(0, len(values) - limit)
    if left:
        console.print(f"... and {left} more rows (--limit)", markup=False)


def diff_json(found: CheckpointDiff) -> dict[str, Any]:
    data = found.model_dump(mode="json")
    return {
        k: data[k]
        for k in (
            "a",
            "b",
            "comparable",
            "reason",
            "identical",
            "compared",
            "differences",
            "only_in_a",
            "only_in_b",
            "ignored",
        )
    }


def print_diff(found: CheckpointDiff) -> None:
    console = _console()
    word = "not comparable" if not found.comparable else "identical" if found.identical else "different"
    console.print(
        f"{word}: {_cut(found.a, 200)} and {_cut(found.b, 200)} ({found.compared} entries compared)", markup=False
    )
    if found.reason:
        console.print(f"  {_cut(found.reason, 300)}", markup=False)
    for item in found.differences[:50]:
        console.print(f"  {item.kind:6} {_cut(item.name)}: {_cut(item.text, 200)}", markup=False)
    for title, names in (
        ("only in the first", found.only_in_a),
        ("only in the second", found.only_in_b),
        ("ignored", found.ignored),
    ):
        for name in names[:20]:
            console.print(f"  {title}: {_cut(name, 200)}", markup=False)
        if len(names) > 20:
            console.print(f"  {title}: {len(names) - 20} more", markup=False)


def progress_line() -> Progress:
    """Prints "1,234 of 5,678 MiB, 900 MiB/s, 5 s left" on stderr, at most five times a second."""
    begin = time.monotonic()
    last = [0.0]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] < 0.2 and done < total:
            return
        last[0] = now
        rate = done / max(now - begin, 1e-6)
        left = (total - done) / max(rate, 1.0)
        sys.stderr.write(
            f"\r{done / _MIB:,.0f} of {total / _MIB:,.0f} MiB, {rate / _MIB:,.0f} MiB/s, {left:,.0f} s left  "
        )
        if done >= total:
            sys.stderr.write("\n")

    return show
