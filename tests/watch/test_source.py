"""Which lines only some ranks reach, read from a script's own source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit.watch.source import guarded

SCRIPT = """\
def train(rank, world):
    if world > 1:
        reduce()
    if rank == 0:
        log()
    if local_rank != -1:
        broadcast()
    for batch in loader:
        if is_main_process():
            gather()
        step()

def save(rank):
    if rank != 0:
        return
    barrier()
"""


@pytest.mark.parametrize(
    ("line", "condition"),
    [(3, None), (5, "if rank == 0"), (7, None), (10, "if is_main_process()"), (11, None), (16, "if rank != 0")],
)
def test_a_condition_on_the_rank_around_or_before_a_line_is_named(tmp_path: Path, line: int, condition: str | None):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert guarded([(str(path), line)]) == (condition and f"train.py:{line} under `{condition}`")


def test_a_file_that_is_gone_or_no_python_says_nothing(tmp_path: Path):
    (tmp_path / "broken.py").write_text("if rank == 0:\n(((\n")
    assert guarded([(str(tmp_path / "broken.py"), 2), (str(tmp_path / "gone.py"), 1)]) is None
