"""Every ``--json`` prints one object of the published schema, also when the call could not be carried out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddaudit.report.envelope import Envelope
from tests.conftest import ddaudit


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("list", "checks", "--json"), 0),
        (("env", "--json"), 0),
        (("lint", "--json"), 0),
        (("show", "loss.floor", "--json"), 0),
        (("run", "nosuch", "--json"), 2),
        (("run", "smoke", "-P", "ranks=x", "--json"), 2),
        (("run", "smoke", "--dry-run", "--json"), 0),
        (("report", "nosuch", "--json"), 2),
        (("selftest", "nosuch", "--json"), 2),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else str(v),
)
def test_the_object_is_an_envelope(argv: tuple[str, ...], code: int, tmp_path: Path):
    done = ddaudit(*argv, cwd=tmp_path)
    shown = Envelope.model_validate(json.loads(done.stdout))
    assert (done.returncode, shown.exit_code) == (code, code), done.stderr
    assert len(shown.questions) == 7
    assert list(tmp_path.iterdir()) == []
