"""Making text from anywhere inert. Every string of a record passes :func:`visible` before any format sees it.

Host names, log lines, tensor names and runbook prose are untrusted: they may hold terminal escapes, bidirectional
controls, newlines that imitate our own lines, or a megabyte without a break. Each format adds its own escaping on top
(autoescape in HTML, :func:`markdown`, an XML writer, a JSON writer).
"""

from __future__ import annotations

import json
import re

__all__ = ["LINE_LIMIT", "json_text", "markdown", "to_ascii", "visible"]

#: Longest text shown in one place; the record keeps the whole.
LINE_LIMIT = 2000

_BREAK = re.compile(r"[ \t]*[\r\n\x0b\x0c\x85\u2028\u2029][\s]*")
_MARKDOWN = re.compile(r"[\\`*_\[\]<>|~&$#!@]|(?<=:)//|^[-+=]|^\d+[.)](?=\s|$)")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "//": "\\/\\/"}

_ASCII = {
    "✔": "[ok]",
    "▲": "[warn]",
    "✖": "[FAIL]",
    "‼": "[ERR]",
    "◌": "[skip]",
    "⊘": "[waived]",
    "·": "-",
    "…": "...",
    "⏎": "\\n",
    "×": "x",
    "–": "-",
    "—": "-",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "µ": "u",
    "─": "-",
    "└": "`",
}


def _escape(char: str) -> str:
    if char.isprintable():
        return char
    if char.isspace() and char not in "\x1c\x1d\x1e\x1f":
        return " "
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(value: object, limit: int = LINE_LIMIT) -> str:
    """``value`` as one printable line of at most about ``limit`` characters.

    Control, format (bidi, zero-width), surrogate and unassigned characters become backslash escapes, line breaks
    become ``⏎``, and what was cut is counted.
    """
    text = value if isinstance(value, str) else str(value)
    cut = len(text) - limit
    text = _BREAK.sub(" ⏎ ", text[:limit].strip())
    if not text.isprintable():
        text = "".join(map(_escape, text))
    return f"{text} … ({cut:,} more characters)" if cut > 0 else text


def markdown(text: str) -> str:
    """Escapes what Markdown, GitHub (mentions, autolinks) or inline HTML act on. ``text`` is already one line."""
    # A list number such as "12." takes its escape before the last character, every other match before its only one.
    return _MARKDOWN.sub(lambda match: _ENTITIES.get(match[0], f"{match[0][:-1]}\\{match[0][-1]}"), text)


def to_ascii(text: str) -> str:
    """Our glyphs as words, other non-ASCII characters as backslash escapes; lines stay lines."""
    for glyph, word in _ASCII.items():
        text = text.replace(glyph, word)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def _escape_json(char: str) -> str:
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]


def json_text(text: str, *, html: bool = False) -> str:
    """Escapes, inside finished JSON text, what a terminal (or with ``html`` an HTML parser) would act on.

    Such characters occur only within JSON strings, so the escapes change no value.
    """
    text = "\n".join(line if line.isprintable() else "".join(map(_escape_json, line)) for line in text.split("\n"))
    if html:
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return text
