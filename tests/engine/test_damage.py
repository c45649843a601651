"""Run folders that were damaged, forged or written by another version: rebuilt, or refused in one line with code 2."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main
from tests.engine.forks import copied, desk


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three steps."""
    table = desk(tmp_path_factory.mktemp("damage") / "desk")
    table.go()
    assert main([*table.argv, "-q"]) == 0
    return table.run


@pytest.fixture
def run(healthy: Path, tmp_path: Path) -> Path:
    return copied(healthy, tmp_path / "run")


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


def link(path: Path, target: str) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def rename_steps(plan: dict[str, Any]) -> dict[str, Any]:
    plan["steps"][0]["id"] = "../../outside"
    return plan


def retarget(run: Path) -> None:
    journal = run / "events" / "run.jsonl"
    journal.write_text(journal.read_text().replace('"folder": "a"', '"folder": "../../../etc"'))


def forget_end(run: Path) -> None:
    """As if the run had been killed before its end."""
    journal = run / "events" / "run.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"event": "end"' not in line))
    edit(run / "record.json", lambda record: {**record, "complete": False})


DEEP = "[" * 200_000

#: name -> (what is done to a copied run, what every command must say); refused by all three commands.
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an empty folder": (lambda run: (shutil.rmtree(run), run.mkdir()), "expected a run folder"),
    "a folder of something else": (
        lambda run: (shutil.rmtree(run), run.mkdir(), (run / "x").touch()),
        "expected a run",
    ),
    "no folder": (shutil.rmtree, "no such folder"),
    "a file": (lambda run: (shutil.rmtree(run), run.touch()), "no such folder"),
    "a record of a newer version": (
        lambda run: edit(run / "record.json", lambda r: {**r, "schema": "ddaudit/2"}),
        "update ddaudit",
    ),
    "a link for events": (lambda run: link(run / "events", "/etc"), "is a link"),
    "a link for a step's events": (lambda run: link(run / "events" / "a", "/etc"), "is a link"),
    "a link for the journal": (lambda run: link(run / "events" / "run.jsonl", "/etc/passwd"), "is a link"),
    "a link for the record": (lambda run: link(run / "record.json", "/etc/passwd"), "is a link"),
    "a link for logs": (lambda run: link(run / "logs", "/etc"), "is a link"),
}

#: Refused where the record is lost as well, so that the run must be made again from plan and events.
WITHOUT_RECORD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no plan": (lambda run: (run / "plan.json").unlink(), "no record.json"),
    "half a plan": (lambda run: cut(run / "plan.json"), "not a plan"),
    "an empty plan": (lambda run: (run / "plan.json").write_text(""), "not a plan"),
    "a plan of bytes": (lambda run: (run / "plan.json").write_bytes(b"\xff\x00\xfe"), "not a plan"),
    "a plan nested too deeply": (lambda run: (run / "plan.json").write_text(DEEP), "not a plan"),
    "a plan that is a list": (lambda run: (run / "plan.json").write_text("[]"), "not a plan"),
    "a plan of 1 GB": (lambda run: sparse(run / "plan.json"), "1073741824 bytes"),
    "a plan whose steps lead elsewhere": (lambda run: edit(run / "plan.json", rename_steps), "not a plan (id:"),
    "no journal": (lambda run: (run / "events" / "run.jsonl").unlink(), "no events/run.jsonl"),
    "a journal that is a pipe": (lambda run: pipe(run / "events" / "run.jsonl"), "no events/run.jsonl"),
    "an empty journal": (lambda run: (run / "events" / "run.jsonl").write_text(""), "the journal has no head"),
    "a journal of garbage": (lambda run: (run / "events" / "run.jsonl").write_text("{]\n" * 9), "has no head"),
    "a journal of wrong types": (
        lambda run: (run / "events" / "run.jsonl").write_text('{"event": "run", "created": []}\n'),
        "has no head",
    ),
    "a journal nested too deeply": (lambda run: (run / "events" / "run.jsonl").write_text(DEEP), "has no head"),
    "a journal of 1 GB": (lambda run: sparse(run / "events" / "run.jsonl"), "1073741824 bytes"),
}

#: Mended by `report`, which says so or shows it; the verdict's code is the second entry.
MENDED: dict[str, tuple[Callable[[Path], Any], int]] = {
    "no record": (lambda run: (run / "record.json").unlink(), 0),
    "half a record": (lambda run: cut(run / "record.json"), 0),
    "a record of bytes": (lambda run: (run / "record.json").write_bytes(b"\xff\x00"), 0),
    "a record nested too deeply": (lambda run: (run / "record.json").write_text(DEEP), 0),
    "a record of another tool": (lambda run: (run / "record.json").write_text('{"schema": "x"}'), 0),
    "a record that lacks fields": (lambda run: (run / "record.json").write_text('{"schema": "ddaudit/1"}'), 0),
    "a record of 1 GB": (lambda run: sparse(run / "record.json"), 0),
    "no evidence.h5": (lambda run: (run / "evidence.h5").unlink(), 0),
    "evidence.h5 of 1 GB": (lambda run: sparse(run / "evidence.h5"), 0),
    "garbage in the events of a step": (
        lambda run: (*map(cut, (run / "events" / "a").iterdir()), (run / "record.json").unlink()),
        0,
    ),
    "a pipe among the events": (
        lambda run: (pipe(run / "events" / "a" / "x.jsonl"), (run / "record.json").unlink()),
        0,
    ),
    "a run that was killed": (forget_end, 3),
    "a step's folder that leads elsewhere": (lambda run: (retarget(run), (run / "record.json").unlink()), 3),
}


def said(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err + printed.out
    return printed.err


COMMANDS = {
    "report": ["report", "{run}", "--packs", "builtin"],
    "rejudge": ["report", "{run}", "--rejudge", "--packs", "builtin"],
    "resume": ["run", "--resume", "{run}", "--packs", "builtin"],
}


@pytest.mark.parametrize("name", [*REFUSED, *WITHOUT_RECORD])
def test_a_folder_beyond_repair_is_refused_in_one_line(
    name: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = {**REFUSED, **WITHOUT_RECORD}[name]
    if name in WITHOUT_RECORD:
        (run / "record.json").unlink()
    damage(run)
    for command, argv in COMMANDS.items():
        assert main([word.format(run=run) for word in argv]) == 2, command
        err = said(capsys)
        assert len(err.splitlines()) == 1, (command, err)
        assert message in err or (command == "resume" and "no plan.json" in err), (command, err)


@pytest.mark.parametrize("name", MENDED)
def test_what_can_be_mended_is(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, code = MENDED[name]
    damage(run)
    assert main(["report", str(run), "--packs", "builtin"]) == code
    assert "rebuilt" in said(capsys) or code == 3
    assert main(["run", "--resume", str(run), "--packs", "builtin", "--no-progress"]) == 0, said(capsys)
    record = json.loads((run / "record.json").read_text())
    assert record["complete"] and sorted(step["id"] for step in record["steps"]) == ["a", "b", "c"]


def test_a_link_never_lets_a_resumed_run_write_outside(run: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    forget_end(run)
    link(run / "events" / "a", str(tmp_path / "outside"))
    assert main(["run", "--resume", str(run), "--packs", "builtin"]) == 2
    assert list((tmp_path / "outside").iterdir()) == []


def test_evidence_that_makes_no_sense_is_an_error_of_its_step_alone(run: Path) -> None:
    events = run / "events" / "a" / "forged.jsonl"
    forged = [{"event": "measure", "t": 0, "name": ["no name"], "value": {}}, {"event": "tensor", "t": 0}]
    events.write_text("".join(json.dumps(line) + "\n" for line in forged))
    (run / "record.json").unlink()
    assert main(["report", str(run), "--packs", "builtin"]) == 3
    findings = json.loads((run / "record.json").read_text())["findings"]
    by_step = {step: [f for f in findings if f["step"] == step] for step in "abc"}
    assert [f["status"] for f in by_step["a"]] == ["ERROR", "SKIP"]
    assert by_step["a"][0]["id"] == "evidence.damaged" and "measures" in by_step["a"][0]["text"]
    assert {f["status"] for f in by_step["b"] + by_step["c"]} == {"PASS"}


def test_checks_of_a_pack_that_is_not_here_are_named(run: Path) -> None:
    edit(run / "plan.json", lambda plan: {**plan, "steps": [{**plan["steps"][0], "checks": ["site.x"]}]})
    assert main(["report", str(run), "--rejudge", "--packs", "builtin"]) == 3
    (finding,) = json.loads((run / "record.json").read_text())["findings"]
    assert finding["status"] == "ERROR" and "site.x is not loaded; name the pack" in finding["text"]


def test_a_report_of_a_folder_that_cannot_be_written_is_still_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ddaudit import record
    from ddaudit.engine import rebuild
    from ddaudit.report import formats

    def refuse(path: Path, content: Any) -> Path:
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(record, "write_atomically", refuse)
    monkeypatch.setattr(rebuild, "write_h5", refuse)
    monkeypatch.setattr(formats, "write_atomically", refuse)
    assert main(["report", str(run), "--rejudge", "--packs", "builtin"]) == 0
    printed = capsys.readouterr()
    assert "PASS" in printed.out
    unwritten = [line for line in printed.err.splitlines() if "Read-only file system" in line]
    assert len(unwritten) == 3, unwritten
    assert all(name in line for name, line in zip(("record.json", "html", "md"), unwritten, strict=True))


def test_a_line_that_was_broken_off_does_not_swallow_the_next(run: Path) -> None:
    forget_end(run)
    journal = run / "events" / "run.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:40])
    assert main(["run", "--resume", str(run), "--packs", "builtin", "--no-progress", "-q"]) == 0
    record = json.loads((run / "record.json").read_text())
    assert record["complete"] and [step["state"] for step in record["steps"]] == ["done"] * 3
