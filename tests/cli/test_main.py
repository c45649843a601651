"""One place maps every way a command can end to an exit code."""

from __future__ import annotations

import json

import click
import pytest

from ddaudit.cli import main as front
from ddaudit.errors import Exit, LaunchProblem, UsageProblem


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Makes ``ddaudit run`` do what the test says."""

    def install(action):
        @click.command("run")
        @click.option("--json", "as_json", is_flag=True)
        def fake(as_json: bool):
            return action()

        monkeypatch.setattr(front.LazyGroup, "get_command", lambda self, ctx, name: fake if name == "run" else None)

    return install


def raising(error: BaseException):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (lambda: int(Exit.PASS), 0),
        (lambda: int(Exit.FAIL), 1),
        (lambda: Exit.INCONCLUSIVE, 3),
        (lambda: None, 0),
        (raising(UsageProblem("no")), 2),
        (raising(LaunchProblem("no")), 3),
        (raising(click.UsageError("no")), 2),
        (raising(KeyboardInterrupt()), 130),
        (raising(click.Abort()), 130),
        (raising(RuntimeError("bug")), 4),
    ],
)
def test_every_ending_has_its_code(command, action, code: int, capsys: pytest.CaptureFixture[str]):
    command(action)
    assert front.main(["run"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_saves_its_trace_and_names_the_file(command, capsys: pytest.CaptureFixture[str]):
    command(raising(RuntimeError("token=hunter2hunter2")))
    assert front.main(["run", "--json"]) == 4
    captured = capsys.readouterr()
    path = captured.err.strip().rpartition(" ")[2]
    with open(path) as file:
        trace = file.read()
    assert "RuntimeError" in trace
    assert "hunter2" not in trace + captured.err + captured.out
    assert json.loads(captured.out)["verdict"] == "INTERNAL"


@pytest.mark.parametrize("argv", [["nosuch"], ["run", "--nosuch"], ["--nosuch"]])
def test_wrong_words_are_usage_errors_in_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert front.main(argv) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_control_characters_of_a_message_do_not_reach_the_terminal(command, capsys: pytest.CaptureFixture[str]):
    command(raising(UsageProblem("a\x1b[31mred\x07")))
    front.main(["run"])
    assert "\x1b" not in capsys.readouterr().err
