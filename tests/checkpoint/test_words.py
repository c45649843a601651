"""Every kind of fault that a reader can note has a verdict word, and names say which part of a state they are of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddaudit.checkpoint.roles import area_of, group_of
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


@pytest.mark.parametrize(
    ("name", "area"),
    [
        ("optimizer_g.state.0.exp_avg", "optimizer"),
        ("optimizerD.state.0.exp_avg", "optimizer"),
        ("critic_optimizer.state.0.exp_avg", "optimizer"),
        ("scheduler_g.last_epoch", "schedule"),
        ("optimizer_config.lr", None),
        ("opt_param_scheduler.num_steps", "schedule"),
    ],
)
def test_one_of_several_optimizers_is_known_by_its_word(name: str, area: str | None):
    assert area_of(name) == area


def test_states_of_several_optimizers_are_kept_apart():
    assert group_of("optimizer_g.state.0.exp_avg", "optimizer") != group_of("optimizer_d.state.0.exp_avg", "optimizer")
