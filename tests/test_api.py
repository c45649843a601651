"""The Python calls do what the commands do, tell problems as exceptions, and cost nothing until they are used."""

from __future__ import annotations

import importlib
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

import ddaudit
from ddaudit.errors import EvidenceProblem, RunbookProblem, UsageProblem
from tests.engine.forks import desk
from tests.engine.test_baselines import run

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> ddaudit.Run:
    """A run of three steps, from Python."""
    table = desk(tmp_path_factory.mktemp("api") / "desk")
    table.go()
    where = {"params": {"desk": table.path}, "out": table.path / "runs", "device": "cpu"}
    return ddaudit.run(table.path / "three.md", **where)


def test_a_run_returns_its_verdict_findings_and_folder(done: ddaudit.Run) -> None:
    assert (done.verdict, done.exit_code) == ("PASS", 0)
    assert {f.step for f in done.findings} == {"a", "b", "c"} and done.record.complete
    assert (done.folder / "report.html").is_file() and (done.folder / "record.json").is_file()


def test_a_run_folder_is_read_back_the_same(done: ddaudit.Run) -> None:
    assert ddaudit.load_run(done.folder).record == done.record
    assert ddaudit.load_run(done.folder, rejudge=True).findings == done.findings


def test_a_finished_run_is_resumed_to_the_same_record(done: ddaudit.Run) -> None:
    assert ddaudit.resume(done.folder).record == done.record


@pytest.mark.parametrize(
    ("format", "word"), [("text", "PASS"), ("json", '"schema"'), ("html", "<html"), ("md", "PASS")]
)
def test_a_run_renders_in_every_format(done: ddaudit.Run, format: str, word: str) -> None:
    assert word in done.render(format)


def test_a_call_that_does_not_fit_starts_nothing(tmp_path: Path) -> None:
    table = desk(tmp_path / "desk")
    page, out = table.path / "three.md", tmp_path / "runs"
    with pytest.raises(UsageProblem, match="needs parameter 'desk'"):
        ddaudit.run(page, out=out)
    with pytest.raises(UsageProblem, match="there is no manual step 'x'"):
        ddaudit.run(page, params={"desk": "d"}, out=out, answers={"x": "pass"}, device="cpu")
    page.write_text("no fence")
    with pytest.raises(RunbookProblem):
        ddaudit.run(page, out=out)
    with pytest.raises(EvidenceProblem):
        ddaudit.load_run(tmp_path)
    assert not out.exists() and table.ran() == []


def test_the_folder_is_free_again_after_a_run(done: ddaudit.Run) -> None:
    from ddaudit.engine.folder import in_use

    assert not in_use(done.folder)


def test_importing_ddaudit_imports_nothing_else() -> None:
    code = "import sys, ddaudit; print([m for m in sys.modules if m.startswith(('ddaudit.', 'pydantic', 'torch'))])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
    assert {"run", "resume", "load_run"} <= set(dir(ddaudit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ddaudit.nothing  # noqa: B018 - the look-up is the test


def test_the_page_names_every_call() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in ddaudit.__all__ if name != "__version__" and f"ddaudit.{name}" not in page] == []


def test_a_checkpoint_is_audited_from_python(tmp_path: Path) -> None:
    from ddaudit.checkpoint.sample import write_sample

    result = ddaudit.audit(write_sample(tmp_path / "sample", "none"))
    assert (result.word, int(result.exit)) == ("OK", 0)
    assert {"sampler", "optimizer", "step"} <= set(result.areas)


def test_logs_are_judged_from_python_whether_or_not_the_room_was_imported_before(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    answer = ddaudit.triage(tmp_path)
    assert answer.to_json()["cause"]
    importlib.import_module("ddaudit.triage.answer")  # the package must stay a package
    assert ddaudit.triage(tmp_path).to_json() == answer.to_json()


def test_a_baseline_is_learned_from_runs_and_a_run_is_held_against_it(tmp_path: Path) -> None:
    good = [ddaudit.Run(run(10_000.0 + i), tmp_path) for i in range(4)]
    file = tmp_path / "box.baseline.json"
    assert ddaudit.learn(good, file).name == "box" and file.is_file()
    slow = ddaudit.Run(run(5_000.0), tmp_path)
    assert [row.metric for row in ddaudit.compare([slow], file) if row.worse] == ["data.tokens_per_s"]
    assert not any(row.worse for row in ddaudit.compare(good, file))
    with pytest.raises(ddaudit.Problem, match="2 run"):
        ddaudit.learn(good[:2], file)


def test_waivers_and_a_baseline_hold_for_a_run_from_python(tmp_path: Path) -> None:
    (tmp_path / "loose.md").write_text(ASKS)
    date_ = (date.today() + timedelta(days=30)).isoformat()
    entry = f'check = "step"\nwhere = "*"\nreason = "known"\nowner = "me"\nexpires = {date_}\n'
    (tmp_path / "waivers.toml").write_text("[[waiver]]\n" + entry)
    ddaudit.learn([ddaudit.Run(run(10_000.0), tmp_path) for _ in range(3)], tmp_path / "b.baseline.json")
    given = {"waivers": tmp_path / "waivers.toml", "baseline": tmp_path / "b.baseline.json"}
    waived = ddaudit.run(tmp_path / "loose.md", out=tmp_path, device="cpu", answers={"look": "fail"}, **given)
    assert [f.status.value for f in waived.findings if f.check == "step"] == ["WAIVED"]
    assert [f.status.value for f in waived.findings if f.check == "baseline"] == ["SKIP"]
    assert ddaudit.load_run(waived.folder, rejudge=True).record.findings == waived.findings
    for name in given:
        with pytest.raises(ddaudit.Problem, match=r"nowhere\.x"):
            ddaudit.run(tmp_path / "loose.md", out=tmp_path / "none", **{name: tmp_path / "nowhere.x"})
    assert not (tmp_path / "none").exists()


#: A page that asks a person, so that nothing is launched.
ASKS = """# Looks

```toml runbook
id = "looks"
title = "Looks"
```

## Is the lamp green?

```toml step look
manual = "Is the lamp green?"
```
"""
