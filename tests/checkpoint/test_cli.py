"""The commands: exit codes, one JSON object, no torch, text for people."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddaudit.checkpoint.sample import FAULTS, write_sample
from ddaudit.cli.checkpoint_audit import audit_path, main
from ddaudit.report.envelope import Envelope
from tests.checkpoint import generate as g

ROOT = Path(__file__).resolve().parents[2]


Run = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line in this process: (exit code, stdout, stderr)."""

    def call(*argv: object) -> tuple[int, str, str]:
        code = main([str(word) for word in argv])
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


@pytest.fixture
def as_json(run: Run) -> AsJson:
    def call(*argv: object) -> tuple[int, dict[str, Any]]:
        code, out, _ = run(*argv, "--json")
        return code, json.loads(out)

    return call


def test_no_command_imports_torch_a_launcher_or_checks_of_other_things(tmp_path: Path):
    root = write_sample(tmp_path)
    code = (
        "import sys; from ddaudit.cli.checkpoint_audit import main; r = sys.argv[1];"
        "[main(w.split()) for w in (f'audit {r}', f'show {r}', f'diff {r} {r}', f'manifest {r} -o {r}.json',"
        "f'verify {r} --manifest {r}.json')];"
        "print('HEAVY', [m for m in ('torch', 'h5py', 'matplotlib', 'ddaudit.launch') if m in sys.modules],"
        "[m for m in sys.modules if '.checks.' in m and 'checkpoint' not in m])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, env=environment)
    assert "HEAVY [] []" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("fault", "code", "word"),
    [
        ("none", 0, "OK"),
        ("cut", 1, "BROKEN"),
        ("nan", 1, "WRONG"),
        ("no-sampler", 1, "NOT-RESUMABLE"),
        ("payload", 1, "SECURITY"),
        ("no-scaler", 0, "DEGRADED"),
    ],
)
def test_audit_exits_by_its_verdict(fault: str, code: int, word: str, tmp_path: Path, as_json: AsJson):
    got, answer = as_json("audit", write_sample(tmp_path, fault))
    assert (got, answer["exit_code"], answer["checkpoint"]["verdict"]) == (code, code, word)
    Envelope.model_validate(answer)


def test_what_cannot_be_understood_is_unknown_and_exits_3(tmp_path: Path, as_json: AsJson):
    (tmp_path / "notes.txt").write_text("hello")
    code, answer = as_json("audit", tmp_path)
    assert (code, answer["verdict"], answer["checkpoint"]["verdict"]) == (3, "INCONCLUSIVE", "UNKNOWN")


def test_a_path_that_does_not_exist_is_one_line_and_exits_2(tmp_path: Path, run: Run):
    code, _, err = run("audit", tmp_path / "missing")
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_audit_prints_areas_and_remedies_for_people(tmp_path: Path, run: Run):
    _, out, _ = run("audit", write_sample(tmp_path, "no-optimizer"))
    assert "NOT-RESUMABLE" in out and "optimizer" in out and "→" in out


def test_levels_read_less(tmp_path: Path, as_json: AsJson):
    root = write_sample(tmp_path, "bit-flip")
    assert as_json("audit", root)[1]["checkpoint"]["verdict"] == "WRONG"
    assert as_json("audit", root, "--level", "headers")[1]["checkpoint"]["verdict"] == "OK"


def test_show_lists_tensors_and_values(tmp_path: Path, as_json: AsJson, run: Run):
    code, answer = as_json("show", write_sample(tmp_path))
    rows = {row["name"]: row for row in answer["tensors"]}
    assert code == 0 and rows["model.emb.weight"]["shape"] == [64, 32]
    assert {"name": "global_step", "value": 6}.items() <= next(
        v for v in answer["values"] if v["name"] == "global_step"
    ).items()
    assert "emb.weight" in run("show", tmp_path / "run")[1]


def test_diff_manifest_and_verify_agree(tmp_path: Path, as_json: AsJson, run: Run):
    good, bad = write_sample(tmp_path / "a"), write_sample(tmp_path / "b", "old-optimizer")
    assert as_json("diff", good, good)[0] == 0
    code, answer = as_json("diff", good, bad)
    assert code == 1 and [d["name"] for d in answer["differences"]] == ["optimizer.state.1.step"]
    assert run("manifest", good, "-o", tmp_path / "m.json")[0] == 0
    assert run("verify", good, "--manifest", tmp_path / "m.json")[0] == 0
    assert run("verify", bad, "--manifest", tmp_path / "m.json")[0] == 1
    (tmp_path / "empty.pt").write_bytes(b"")
    assert as_json("diff", good, tmp_path / "empty.pt")[0] == 3


def test_two_jobs_give_the_same_manifest(tmp_path: Path, run: Run):
    root = write_sample(tmp_path)
    texts = [run("manifest", root, "-o", "-", "--jobs", jobs)[1] for jobs in (1, 4)]
    assert texts[0] == texts[1] and json.loads(texts[0])["global_step"] == 6


def test_remote_paths_are_read_through_fsspec(tmp_path: Path):
    root = write_sample(tmp_path, "none")
    assert audit_path(f"file://{root}").word == audit_path(str(root)).word == "OK"


def test_a_job_file_gives_the_batch_that_the_checkpoint_lacks(tmp_path: Path, as_json: AsJson):
    path = g.save(g.training_state(micro_batch_size=None, grad_accum_steps=None), tmp_path / "c.pt")
    (tmp_path / "job.toml").write_text("micro_batch = 2\naccumulation = 1\n")
    assert as_json("audit", path)[0] == 0
    assert as_json("audit", path, "--job", tmp_path / "job.toml")[1]["checkpoint"]["verdict"] == "WRONG"


@pytest.mark.parametrize("fault", [f for f in FAULTS if f not in ("none", "no-rng-key")])
def test_every_sample_fault_has_its_finding(fault: str, tmp_path: Path):
    assert any(f.bad for f in audit_path(str(write_sample(tmp_path, fault))).findings)
