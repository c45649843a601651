"""How a report is to look. What the terminal can do is read in one place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

__all__ = ["PICTURES", "Options"]

#: ``0`` leaves pictures out of pages: a gate that nobody looks at saves their two seconds.
PICTURES = "DDAUDIT_PICTURES"


@dataclass(frozen=True)
class Options:
    """Attributes:
    run_dir: the run folder, named in the report; None when there is none.
    template_folders: folders searched for templates before the built-in one (user packs first).
    width: columns of the text report.
    color: whether the text report may use colour.
    ascii_only: glyphs as words (``[ok]``, ``[FAIL]``) and no character beyond ASCII.
    verbosity: -1 the first ten lines only, 0 the usual, 1 also passing checks and the environment.
    pictures: whether a page is drawn with pictures, which take about two seconds.
    """

    run_dir: Path | None = None
    template_folders: Sequence[Path] = ()
    width: int = 100
    color: bool = False
    ascii_only: bool = False
    verbosity: int = 0
    pictures: bool = True

    @staticmethod
    def terminal(stream: TextIO, environ: Mapping[str, str], color: str = "auto") -> tuple[int, bool, bool]:
        """Width, colour and the need for ASCII of an output stream.

        ``color`` is auto, always or never; auto follows NO_COLOR, FORCE_COLOR, TERM=dumb and whether it is a terminal.
        """
        tty = stream.isatty()
        width = shutil.get_terminal_size((100, 24)).columns if tty or environ.get("COLUMNS") else 100
        colored = tty and environ.get("TERM") != "dumb"
        if environ.get("FORCE_COLOR"):
            colored = True
        if environ.get("NO_COLOR"):
            colored = False
        if color != "auto":
            colored = color == "always"
        try:
            "✔⏎…".encode(stream.encoding or "ascii")
        except (UnicodeError, LookupError):
            return width, colored, True
        return width, colored, False
