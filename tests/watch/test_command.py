"""``ddaudit watch`` around real commands: what passes through, what comes out, and which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, ddaudit

TRAIN = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(8, 4)
    loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item().hex(), flush=True)
    if step == 6 and len(sys.argv) > 1:
        exec(sys.argv[1])
"""


def script(folder: Path, text: str = TRAIN) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def watch(folder: Path, *argv: str, json_: bool = True) -> subprocess.CompletedProcess[str]:
    flags = ["--json"] if json_ else []
    return ddaudit("watch", *flags, "--out", str(folder / "runs"), "--", *argv, cwd=folder)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


BUSY = (
    """
import os, subprocess, sys
print("stdin says", sys.stdin.readline().strip(), flush=True)
print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout, flush=True)
if (child := os.fork()) == 0:
    print("forked", flush=True)
    os._exit(3)
print(os.WEXITSTATUS(os.waitpid(child, 0)[1]), flush=True)
os.chdir("/")
"""
    + TRAIN
)


def test_losses_are_bit_equal_and_everything_else_passes_through(tmp_path: Path):
    """A script that reads stdin, starts and forks processes and changes directory prints what it prints alone."""
    path = script(tmp_path, BUSY)
    said_in = {"input": "hello\n", "capture_output": True, "text": True, "cwd": tmp_path}
    plain = subprocess.run([sys.executable, str(path)], check=True, **said_in)
    code = "import sys; from ddaudit.cli.main import run; run()"
    argv = [sys.executable, "-c", code, "watch", "--out", "runs", "--", sys.executable, str(path)]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, **said_in)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "stdin says hello\n42\n" in done.stdout
    assert list((tmp_path / "runs").glob("*/report.md"))


def test_json_has_stdout_for_itself(tmp_path: Path):
    done = watch(tmp_path, sys.executable, str(script(tmp_path)))
    found = said(done)
    assert (found["command"], found["verdict"], found["exit_code"], done.returncode) == ("watch", "PASS", 0, 0)
    assert found["script"]["exit_code"] == 0
    assert Path(found["trace"]).is_dir()
    assert "11 " in done.stderr
    assert {q["id"]: q["status"] for q in found["questions"]}["batch"] == "PASS"


def test_a_crash_keeps_the_scripts_exit_code_and_the_trace_so_far_is_judged(tmp_path: Path):
    found = said(watch(tmp_path, sys.executable, str(script(tmp_path)), "sys.exit(7)"))
    assert (found["exit_code"], found["script"]["exit_code"]) == (7, 7)
    assert any(f["check"] == "script.loss" and f["status"] == "PASS" for f in found["findings"])


def test_a_killed_script_is_judged_and_its_signal_named(tmp_path: Path):
    found = said(watch(tmp_path, sys.executable, str(script(tmp_path)), "import os; os.kill(os.getpid(), 9)"))
    assert (found["exit_code"], found["script"]["signal"]) == (137, "SIGKILL")
    assert any(f["check"] == "script.sync" for f in found["findings"])


def test_a_failed_gate_outranks_the_scripts_exit_code(tmp_path: Path):
    broken = TRAIN.replace("loss.backward()", "(loss * float('nan')).backward()")
    found = said(watch(tmp_path, sys.executable, str(script(tmp_path, broken)), "sys.exit(7)"))
    assert (found["exit_code"], found["verdict"]) == (1, "FAIL")
    assert any(f["id"] == "loss.nan" for f in found["findings"])


def test_no_rank_is_inconclusive_never_a_pass(tmp_path: Path):
    for argv in ([sys.executable, "-I", str(script(tmp_path))], ["true"]):
        found = said(watch(tmp_path, *argv))
        assert (found["exit_code"], found["verdict"]) == (3, "INCONCLUSIVE")
        assert any("no rank reported" in f["text"] for f in found["findings"])


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path):
    done = watch(tmp_path, "no-such-program-here")
    assert done.returncode == 2
    assert said(done)["verdict"] == "USAGE"


def test_an_existing_sitecustomize_still_runs(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import builtins\nbuiltins.MARK = 'kept'\n")
    path = script(tmp_path, TRAIN + "print(MARK)\n")
    code = "import sys; from ddaudit.cli.main import run; run()"
    root = Path(__file__).resolve().parents[2]
    env_path = f"{root}:{tmp_path / 'mine'}"
    done = ddaudit(
        "watch", "--out", str(tmp_path / "runs"), "--", sys.executable, str(path), cwd=tmp_path, PYTHONPATH=env_path
    )
    assert code and done.stdout.endswith("kept\n"), done.stderr


def test_expectations_are_held_against_the_run(tmp_path: Path):
    path = script(tmp_path)
    done = ddaudit(
        "watch", "--json", "--expect", "global_batch=16", "--out", str(tmp_path / "runs"), "--", sys.executable,
        str(path), cwd=tmp_path,
    )  # fmt: skip
    assert [f["id"] for f in said(done)["findings"] if f["status"] == "FAIL"] == ["batch.effective-mismatch"]


def test_a_script_that_stops_moving_is_ended_and_its_stack_kept(tmp_path: Path):
    path = script(tmp_path)
    done = ddaudit(
        "watch", "--json", "--hang-timeout", "6", "--out", str(tmp_path / "runs"), "--", sys.executable, str(path),
        "import threading; threading.Event().wait()", cwd=tmp_path,
    )  # fmt: skip
    found = said(done)
    assert found["script"]["exit_code"] == 124
    assert any(f["check"] == "script.end" and f["status"] == "FAIL" for f in found["findings"])
    stacks = [p.read_text() for p in (tmp_path / "runs").rglob("stack-*.txt")]
    assert any("threading.py" in text and "in wait" in text for text in stacks)
