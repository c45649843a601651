"""Every kind of fault that a reader can note has a verdict word."""

from __future__ import annotations

import re
from pathlib import Path

from ddaudit.evidence.checkpoint_words import MEANINGS, WORDS

ROOT = Path(__file__).resolve().parents[2]
_CALL = re.compile(r"""(?:\.fault\(|finding\(|kind = )\s*f?["']([a-z0-9]+\.[a-z0-9-]+)["']""")


def test_every_noted_kind_has_a_word():
    files = [*(ROOT / "ddaudit" / "checkpoint").rglob("*.py"), *(ROOT / "checks").glob("*checkpoint*.py")]
    noted = {kind: file.name for file in files for kind in _CALL.findall(file.read_text(encoding="utf-8"))}
    assert len(noted) > 60
    assert {kind: file for kind, file in noted.items() if kind not in MEANINGS} == {}


def test_kinds_and_words_are_spelled_whole():
    assert {m.word for m in MEANINGS.values()} <= set(WORDS)
    assert all(re.fullmatch(r"[a-z0-9]+\.[a-z0-9]+(-[a-z0-9]+)*", kind) for kind in MEANINGS)
