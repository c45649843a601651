"""GitHub Actions: the job's step summary, and annotations beside the code.

A summary may have 1 MiB, a comment 65,536 characters: ours is cut at 60,000 so that it fits both. A step shows at most
ten annotations of a kind, so at most ten are written, worst first, and the summary has the rest.
"""

from __future__ import annotations

from ddaudit.findings import Status
from ddaudit.record import Record
from ddaudit.report.markdown import render_markdown
from ddaudit.report.model import Row
from ddaudit.report.options import Options
from ddaudit.report.safe import visible
from ddaudit.report.view import build_view

__all__ = ["MAX_ANNOTATIONS", "MAX_BYTES", "render_github", "workflow_commands"]

MAX_BYTES = 60_000
MAX_ANNOTATIONS = 10


def render_github(record: Record, options: Options) -> str:
    """The Markdown report, cut at a line end; what is cut is said, and no block or fold is left open."""
    text = render_markdown(record, options)
    if len(text.encode()) <= MAX_BYTES:
        return text
    kept: list[str] = []
    size = 400  # for the last lines
    for line in text.splitlines():
        size += len(line.encode()) + 1
        if size > MAX_BYTES:
            break
        kept.append(line)
    kept += _closed(kept)
    return "\n".join([*kept, "", f"Cut at {MAX_BYTES:,} bytes; the whole report is in the run folder.", ""])


def _closed(lines: list[str]) -> list[str]:
    """Ends for what ``lines`` leave open: a fence of code, a fold."""
    fence = ""
    for line in lines:
        head = line.lstrip()
        ticks = head[: len(head) - len(head.lstrip("`"))]
        if len(ticks) >= 3 and (not fence or (ticks == fence and head == ticks)):
            fence = "" if fence else ticks
    folds = sum(line.startswith("<details>") for line in lines) - sum(line == "</details>" for line in lines)
    return [*([fence] if fence else []), *(["", "</details>"] * folds)]


def workflow_commands(record: Record) -> list[str]:
    """Workflow commands, one a line: ``::error`` for FAIL and ERROR, ``::warning`` for WARN."""
    bad = (Status.FAIL, Status.ERROR, Status.WARN)
    rows = [row for row in build_view(record).problems if row.mark.word in bad]
    shown = rows if len(rows) <= MAX_ANNOTATIONS else rows[: MAX_ANNOTATIONS - 1]
    lines = [_annotation(row) for row in shown]
    if rest := len(rows) - len(shown):
        lines.append(f"::notice title=ddaudit::and {rest} more that did not pass; see the step summary")
    return lines


def _annotation(row: Row) -> str:
    level = "warning" if row.mark.word == Status.WARN else "error"
    said = "; ".join(part for part in (row.where, row.text, row.compared, row.remedy) if part)
    title = _escaped(f"ddaudit {row.id}").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escaped(visible(said, 900))}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
