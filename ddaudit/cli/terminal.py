"""Text for terminals: nothing that came from a file, a host or a user may move the cursor or change colours."""

from __future__ import annotations

import unicodedata

__all__ = ["printable"]


def printable(text: str, *, keep: str = "") -> str:
    """Shows control, format and bidirectional characters as ``\\xNN`` or ``\\uNNNN``; those in ``keep`` pass."""
    return "".join(c if c in keep or not _unsafe(c) else _escape(c) for c in text)


def _unsafe(character: str) -> bool:
    # Cc: control, Cf: format (bidi overrides, zero width), Cs: lone surrogates, Zl and Zp: line breaks of their own.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
