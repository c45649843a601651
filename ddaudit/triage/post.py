"""The post for the incident channel: at most twelve lines of Markdown, no table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ddaudit.packs import builtin
from ddaudit.triage.answer import Answer

__all__ = ["render_post"]

TEMPLATE = "incident.md.j2"
#: Slack cuts messages near 4,000 characters; a post stays well below.
MAX_TEXT = 220
MAX_COMMANDS = 2


def render_post(answer: Answer, source: str, folders: Sequence[Path] = ()) -> str:
    """Renders ``incident.md.j2`` (a pack's own template of that name comes first)."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    places = [*folders, builtin() / "templates"]
    # Markdown, not HTML: the filter below defuses what Markdown and chat clients act on.
    environment = Environment(loader=FileSystemLoader(places), undefined=StrictUndefined, autoescape=False)  # noqa: S701
    environment.filters["md"] = _plain
    facts = answer.to_json()
    first = facts["evidence"][0] if facts["evidence"] else None
    rows = answer.lines(source, 0.0)
    named = {row.split(" ", 1)[0]: row.split(" ", 1)[1].strip() for row in rows[1:]}
    text = environment.get_template(TEMPLATE).render(
        head=rows[0].split("  read in")[0],
        incident=facts,
        first=first,
        blast=named.get("Blast", "-"),
        aside=facts["alternatives"][:2],
        commands=facts["commands"][:MAX_COMMANDS],
        source=source,
    )
    return text.strip("\n") + "\n"


def _plain(text: object) -> str:
    """One line of inert text: no code fence, tag, mention or link from a log gets into a channel."""
    short = " ".join(str(text).split())[:MAX_TEXT]
    for mark, harmless in (("`", "'"), ("<", "‹"), (">", "›"), ("@", "(at)"), ("|", "¦"), ("[", "("), ("]", ")")):
        short = short.replace(mark, harmless)
    return short
