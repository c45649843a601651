"""When a run counts as a pass, by its exit code: options, required steps, and runs that measured nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main

PAGE = """# T

```toml runbook
id = "t"
mode = "{mode}"
```
{steps}"""


def step(id: str, more: str = "", value: int = 5, fence: str = 'checks = ["measures.within-limits"]') -> str:
    return f"""
```toml step {id}
probe = "command"
with.argv = ["/bin/sh", "-c", "echo v {value}"]
with.capture.regex = {{ v = 'v (?P<value>\\d+)' }}
{fence}
{more}
```
"""


def ran(folder: Path, steps: str, *options: str, mode: str = "sweep") -> tuple[int, dict[str, Any]]:
    """Exit code and record of one run of a page with these steps."""
    folder.mkdir(exist_ok=True)
    (folder / "t.md").write_text(PAGE.format(steps=steps, mode=mode))
    fixed = ["--out", str(folder / "runs"), "--device", "cpu", "--packs", "builtin", "--no-progress", "-q"]
    code = main(["run", str(folder / "t.md"), *fixed, *options])
    (path,) = folder.glob("runs/*/record.json")
    record = json.loads(path.read_text())
    assert record["exit_code"] == code
    assert main(["report", str(path.parent), "--rejudge", "--packs", "builtin"]) == code, "judged again, the same"
    return code, record


GOOD, WARN = "limits.v = { fail_above = 9 }", "limits.v = { warn_above = 1 }"
MINOR, MAJOR = ('limits.v = { fail_above = 1 }\nseverity = "%s"' % s for s in ("minor", "major"))  # noqa: UP031
ABSENT = 'when = "cpus >= 100000"\n' + GOOD


@pytest.mark.parametrize(
    ("steps", "options", "code"),
    [
        (step("a", GOOD), (), 0),
        (step("a", WARN), (), 0),
        (step("a", WARN), ("--warn-as-fail",), 1),
        (step("a", MINOR), (), 0),
        (step("a", MINOR), ("--fail-on", "minor"), 1),
        (step("a", MAJOR), (), 1),
        (step("a", MAJOR), ("--fail-on", "critical"), 0),
        (step("a", GOOD) + step("b", ABSENT), (), 0),
        (step("a", GOOD) + step("b", ABSENT), ("--strict",), 3),
        (step("a", GOOD) + step("b", ABSENT + "\nrequired = true"), (), 3),
        (step("a", MAJOR) + step("b", ABSENT + "\nrequired = true"), (), 1),
        (step("a", ABSENT), (), 3),
        (step("a", fence=""), (), 3),
        (step("a", GOOD) + step("b", fence=""), (), 0),
    ],
    ids=[
        "good", "warn", "warn-as-fail", "minor", "fail-on-minor", "major", "fail-on-critical", "skip", "strict",
        "required-skip", "fail-beats-required-skip", "nothing-measured", "no-check", "a-step-without-checks",
    ],
)  # fmt: skip
def test_the_exit_code(tmp_path: Path, steps: str, options: tuple[str, ...], code: int) -> None:
    assert ran(tmp_path, steps, *options)[0] == code


def test_a_step_without_checks_says_nothing_and_keeps_its_numbers(tmp_path: Path) -> None:
    _, record = ran(tmp_path, step("a", GOOD) + step("b", fence="", value=7))
    assert {f["step"] for f in record["findings"]} == {"a"}
    assert record["steps"][1]["summary"]["v"] == 7


def test_a_sweep_stops_where_its_page_says_so(tmp_path: Path) -> None:
    stop = MAJOR + '\non = { fail = "stop" }'
    code, record = ran(tmp_path, step("a", stop) + step("b", GOOD) + step("c", GOOD + "\nalways = true"))
    assert (code, [s["state"] for s in record["steps"]]) == (1, ["done", "skipped", "done"])
    assert record["steps"][1]["reason"] == "the runbook stops behind step a, given how that ended"


def test_a_step_is_told_what_others_measured_once(tmp_path: Path) -> None:
    """``$$`` is a plain ``$`` and stays one, however often the plan is read back."""
    told = 'needs = ["a"]\nwith.argv = ["/bin/sh", "-c", "echo v $$1 $$$$0", "x", "$a.v"]\n'
    told += "with.capture.regex = { v = 'v (?P<value>\\d+)' }\nprobe = \"command\"\n" + GOOD
    _, record = ran(tmp_path, step("a", GOOD) + f'\n```toml step b\nchecks = ["measures.*"]\n{told}\n```\n')
    argv = record["plan"]["steps"][1]["params"]["argv"]
    assert argv == ["/bin/sh", "-c", "echo v $1 $$0", "x", 5]
    (run,) = (tmp_path / "runs").iterdir()
    kept = json.loads((run / "plan.json").read_text())["steps"][1]["params"]["argv"]
    assert kept == ["/bin/sh", "-c", "echo v $$1 $$$$0", "x", "$a.v"], "the plan stays as it was made"


def test_a_question_to_a_person_holds_the_measured_number(tmp_path: Path) -> None:
    asked = '\n```toml step b\nneeds = ["a"]\nmanual = "Is $a.v right, and $$5 too?"\n```\n'
    code, record = ran(tmp_path, step("a", GOOD) + asked, "--answers", "b=fail")
    assert (code, record["findings"][-1]["text"]) == (1, "Is 5 right, and $5 too? - answered 'fail'")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("b=maybe", "expected pass, warn or fail"),
        ("c=pass", "no manual step 'c'; fix: one of: b"),
        ("b", "expected name=value"),
    ],
)
def test_an_answer_that_fits_nothing_is_refused(
    tmp_path: Path, answer: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    page = PAGE.format(mode="sweep", steps=step("a", GOOD) + '\n```toml step b\nmanual = "ok?"\n```\n')
    (tmp_path / "t.md").write_text(page)
    argv = ["run", str(tmp_path / "t.md"), "--out", str(tmp_path / "runs"), "--device", "cpu", "--answers", answer]
    assert main(argv) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "runs").exists()
