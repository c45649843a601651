"""The Markdown side of a runbook: its headings and TOML fences with their lines, and the prose between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Fence", "Heading", "Page"]


@dataclass(frozen=True)
class Heading:
    """Lines are 1-based; ``last`` differs from ``line`` for underlined headings."""

    line: int
    last: int
    text: str


@dataclass(frozen=True)
class Fence:
    """A fence ``toml KIND [NAME]``. ``line`` opens it, ``last`` closes it (1-based)."""

    kind: str
    name: str
    line: int
    last: int
    toml: str
    closed: bool


class Page:
    """A page taken apart. Sections run from a heading, or the end of the fence above, to the next one."""

    def __init__(self, text: str) -> None:
        self.lines: list[str] = text.split("\n")
        self.fences: list[Fence] = []
        self.headings: list[Heading] = []
        self._scan(text)

    def _scan(self, text: str) -> None:
        from markdown_it import MarkdownIt

        tokens = MarkdownIt("commonmark").parse(text)
        for index, token in enumerate(tokens):
            if token.map is None:
                continue
            line, last = token.map[0] + 1, token.map[1]
            if token.type == "heading_open":
                self.headings.append(Heading(line, last, tokens[index + 1].content))
            elif token.type == "fence" and (words := token.info.split()) and words[0] == "toml" and len(words) > 1:
                closed = last > line and self.lines[last - 1].strip().startswith(token.markup)
                self.fences.append(Fence(words[1], " ".join(words[2:]), line, last, token.content, closed))

    @property
    def title(self) -> str | None:
        """The first heading."""
        return self.headings[0].text if self.headings else None

    def heading(self, fence: Fence) -> str | None:
        """Nearest heading above a fence."""
        above = [h.text for h in self.headings if h.line < fence.line]
        return above[-1] if above else None

    def introduction(self) -> str:
        """Prose above the section of the first step."""
        steps = [f for f in self.fences if f.kind == "step"]
        return self._prose(1, self._start(steps[0]) - 1 if steps else len(self.lines))

    def prose(self, fence: Fence) -> str:
        """Prose of a step's own section, before and behind its fence."""
        behind = [f for f in self.fences if f.line > fence.line]
        return self._prose(self._start(fence), self._start(behind[0]) - 1 if behind else len(self.lines))

    def _start(self, fence: Fence) -> int:
        """First line of the fence's section."""
        above = [h.line for h in self.headings if h.line < fence.line]
        before = [f.last + 1 for f in self.fences if f.line < fence.line]
        return max([1, *above[-1:], *before[-1:]])

    def _prose(self, first: int, last: int) -> str:
        blocks: Sequence[Fence | Heading] = [*self.fences, *self.headings]
        ours = {line for block in blocks for line in range(block.line, block.last + 1)}
        kept = [self.lines[line - 1] for line in range(first, last + 1) if line not in ours]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
