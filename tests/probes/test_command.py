"""The command probe: programs of the machine as a source of measures."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ddaudit.context import ProbeContext
from ddaudit.evidence import CommandRun, EventWriter, Measures, read_streams
from ddaudit.probes.command import CommandParams, command


def run(folder: Path, deadline_s: float = 30.0, **params: Any) -> tuple[Measures, CommandRun]:
    """Runs the probe as a host process would, and reads its evidence back from the event file."""
    with EventWriter(folder / "events" / "node1-0.jsonl") as events:
        context = ProbeContext(
            step="s", rank=0, world_size=1, local_rank=0, host="node1", device="cpu", run_dir=folder, scratch=folder,
            events=events, deadline=time.monotonic() + deadline_s,
        )  # fmt: skip
        command(context, CommandParams.model_validate(params))
    streams = read_streams(folder / "events")
    measures, ended = Measures.assemble(streams), CommandRun.assemble(streams)
    assert measures is not None and ended is not None
    return measures, ended


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def values(measures: Measures, name: str) -> list[Any]:
    return [m.value for m in measures.named(name)]


def test_json_paths_become_measures_with_units_and_the_host(tmp_path: Path) -> None:
    shown = {"gpus": [{"bw": 371.5, "ok": True}, {"bw": 12}], "name": "H"}
    capture = {"json": {"bw": "gpus.1.bw", "best": "gpus.*.bw", "ok": "gpus.0.ok", "name": "name", "none": "gpus.7.bw"}}
    argv = python(f"print('starting up'); print({json.dumps(shown)!r})")
    measures, ended = run(tmp_path, argv=argv, capture=capture, pick="max", units={"bw": "GB/s"})
    assert values(measures, "bw") == [12] and values(measures, "best") == [371.5]
    assert values(measures, "ok") == [1] and values(measures, "name") == ["H"]
    assert measures.named("bw")[0].unit == "GB/s" and measures.named("bw")[0].where.host == "node1"
    assert values(measures, "none") == [None] and "gpus.7.bw" in ended.absent["none"]
    assert values(measures, "exit_code") == [0] and measures.named("seconds")[0].unit == "s"


def test_a_regex_reads_the_last_of_several_values_unless_told_otherwise(tmp_path: Path) -> None:
    argv = python("print('size 8 busbw 1.5\\nsize 16 busbw 1,250.25\\nsize 32 busbw 3')")
    capture = {"regex": {"busbw": r"busbw (?P<value>\S+)$"}}
    for pick, expected in (
        ("last", [3]),
        ("first", [1.5]),
        ("max", [1250.25]),
        ("min", [1.5]),
        ("all", [1.5, 1250.25, 3]),
    ):
        measures, _ = run(tmp_path / pick, argv=argv, capture=capture, pick=pick)
        assert values(measures, "busbw") == expected, pick


def test_named_groups_read_a_table_of_nccl_tests(tmp_path: Path) -> None:
    table = "#  size  time  algbw  busbw\n  1048576  102.5  10.23  19.18\n  8388608  401.0  20.92  39.22\n"
    groups = r"^\s+(?P<size_bytes>\d+)\s+(?P<time_us>[\d.]+)\s+[\d.]+\s+(?P<bus_gbps>[\d.]+)$"
    measures, _ = run(
        tmp_path, argv=python(f"print({table!r})"), capture={"groups": groups}, pick="all", units={"bus_gbps": "GB/s"}
    )
    assert values(measures, "bus_gbps") == [19.18, 39.22] and values(measures, "size_bytes") == [1048576, 8388608]


def test_a_missing_program_is_not_measured_and_says_why(tmp_path: Path) -> None:
    capture = {"regex": {"temperature": "(?P<value>.)"}}
    measures, ended = run(tmp_path, argv=["no-such-program-here", "-x"], capture=capture)
    assert values(measures, "temperature") == [None] and values(measures, "exit_code") == [None]
    assert ended.not_started == "the program 'no-such-program-here' is not on PATH"
    assert ended.absent["temperature"] == ended.not_started


def test_a_file_that_is_no_program_is_not_measured(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("\x7fELF broken")
    _, refused = run(tmp_path / "a", argv=[str(script)])
    assert "not executable" in (refused.not_started or "")
    script.chmod(0o755)
    (tmp_path / "b").mkdir()
    _, broken = run(tmp_path / "b", argv=[str(script)])
    assert "did not start" in (broken.not_started or "")


def test_exit_code_and_signal_are_told_apart(tmp_path: Path) -> None:
    _, failed = run(tmp_path / "a", argv=python("import sys; sys.stderr.write('bad link'); sys.exit(3)"))
    _, killed = run(tmp_path / "b", argv=python("import os; os.kill(os.getpid(), 9)"))
    assert (failed.exit_code, failed.signal, failed.stderr_tail) == (3, None, "bad link")
    assert (killed.exit_code, killed.signal) == (137, "SIGKILL")


def test_a_program_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print('child', c.pid, flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    capture = {"regex": {"child": r"child (?P<value>\d+)", "never": r"never (?P<value>\d+)"}}
    measures, ended = run(tmp_path, argv=python(code), timeout="700ms", capture=capture)
    assert ended.timed_out and ended.exit_code is None and time.monotonic() - began < 20
    child = values(measures, "child")[0]
    assert isinstance(child, int) and gone(child)
    assert "was ended after" in ended.absent["never"] and values(measures, "exit_code") == [None]


def gone(pid: int) -> bool:
    """True once the process has ended; a zombie that nobody reaped has."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
    return False


def test_the_step_deadline_outranks_the_own_timeout(tmp_path: Path) -> None:
    _, ended = run(tmp_path, deadline_s=2.5, argv=python("import time; time.sleep(60)"), timeout="10m")
    assert ended.timed_out and ended.timeout_s < 1


def test_output_is_bounded_and_the_program_is_not_blocked(tmp_path: Path) -> None:
    argv = python("import sys; sys.stdout.write('x' * 5_000_000); print('\\nend 7')")
    capture = {"regex": {"end": r"end (?P<value>\d)"}}
    _, ended = run(tmp_path, argv=argv, capture=capture, max_output_bytes=1000)
    assert ended.exit_code == 0 and ended.truncated and len(ended.stdout_tail) <= 1000
    assert ended.absent["end"].endswith("(its output was cut)")


def test_secrets_leave_neither_argv_nor_output_nor_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "hf_" + "a1B2c3D4e5F6g7H8"
    monkeypatch.setenv("HF_TOKEN", token)
    code = f"import sys; print('token={token}'); sys.stderr.write('{token}')"
    run(tmp_path, argv=[*python(code), "--api-key", token], capture={"regex": {"word": r"token=(?P<value>\S+)"}})
    assert token not in (tmp_path / "events" / "node1-0.jsonl").read_text()


def test_only_listed_variables_reach_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "1")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    argv = python("import os, json; print(json.dumps(dict(os.environ)))")
    capture = {"json": {"debug": "NCCL_DEBUG", "own": "OWN", "secret": "SECRET_OF_MINE"}}
    measures, _ = run(tmp_path, argv=argv, env=["NCCL_*"], set_env={"OWN": "7"}, capture=capture)
    assert values(measures, "debug") == ["INFO"] and values(measures, "own") == [7]
    assert values(measures, "secret") == [None]


def test_no_shell_looks_at_the_words(tmp_path: Path) -> None:
    argv = python("import sys; print(sys.argv[1:])")
    _, ended = run(tmp_path, argv=[*argv, "$HOME", "; touch owned", "*"])
    assert ended.stdout_tail.strip() == str(["$HOME", "; touch owned", "*"])
    assert not (tmp_path / "owned").exists() and os.listdir(tmp_path) == ["events"]


def test_nan_stays_a_number(tmp_path: Path) -> None:
    measures, _ = run(tmp_path, argv=python("print('loss nan')"), capture={"regex": {"loss": r"loss (?P<value>\S+)"}})
    value = values(measures, "loss")[0]
    assert value != value


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"argv": []}, "at least 1 item"),
        ({"argv": ["ls -l"]}, "one word each"),
        ({"argv": [" "]}, "empty word"),
        ({"argv": ["a", "b\0"]}, "NUL"),
        ({"argv": ["a"], "shell": True}, "Extra inputs"),
        ({"argv": ["a"], "capture": {"regex": {"x": "("}}}, "no regular expression"),
        ({"argv": ["a"], "capture": {"regex": {"x": "(.)"}}}, r"no group \(\?P<value>"),
        ({"argv": ["a"], "capture": {"groups": "(.)"}}, "no named group"),
        ({"argv": ["a"], "capture": {"json": {"exit_code": "a"}}}, "measured anyway"),
        ({"argv": ["a"], "capture": {"json": {"b w": "a"}}}, "no measure's name"),
        ({"argv": ["a"], "capture": {"json": {"x": "a"}, "groups": "(?P<x>.)"}}, "captured twice"),
        ({"argv": ["a"], "units": {"x": "s"}}, "no capture measures"),
        ({"argv": ["a"], "max_output_bytes": 10**12}, "less than or equal"),
        ({"argv": ["a"], "timeout": "soon"}, "no duration"),
    ],
)
def test_wrong_parameters_are_refused_with_a_reason(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        CommandParams.model_validate(params)
