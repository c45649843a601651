"""The post for the incident channel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddaudit.record import Record
from ddaudit.report.model import Headline
from ddaudit.report.options import Options
from ddaudit.report.view import build_view

__all__ = ["MAX_CHARACTERS", "MAX_LINES", "render_incident"]

#: Slack cuts a block at 3,000 characters and a message near 4,000.
MAX_CHARACTERS = 2_400
MAX_LINES = 12
MAX_COMMANDS = 2
MAX_TEXT = 220


def render_incident(record: Record, options: Options) -> str:
    """At most twelve lines of Markdown without a table: what broke, what to do, what is not known.

    What Markdown and chat clients act on (links, mentions, code fences) is defused: the words may come from a log.
    """
    view = build_view(record, options.run_dir)
    lines = [f"**{view.verdict}** {_plain(view.first_line)}"]
    lines += [f"**{h.label}** {_plain(h.text)}" for h in view.headlines if h.text]
    commands = list(_commands(view.headlines))[:MAX_COMMANDS]
    block = ["```", *commands, "```"] if commands else []
    room = MAX_LINES - len(block)
    kept: list[str] = []
    for line in lines[:room]:
        if sum(map(len, (*kept, line, *block))) + MAX_LINES > MAX_CHARACTERS:
            break
        kept.append(line)
    return "\n".join([*kept, *block]) + "\n"


def _commands(headlines: Sequence[Headline]) -> Iterator[str]:
    for headline in headlines:
        yield from (" ".join(c.split())[:MAX_TEXT].replace("`", "'") for c in headline.commands)


def _plain(text: str) -> str:
    short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    for mark, harmless in (("`", "'"), ("<", "‹"), (">", "›"), ("@", "(at)"), ("|", "¦"), ("[", "("), ("]", ")")):
        short = short.replace(mark, harmless)
    return short.replace("*", "∗").replace("://", ":\u2215\u2215")
