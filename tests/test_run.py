"""`ddaudit run` end to end on CPU ranks, and what is left when files of its folder are lost."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from ddaudit.findings import QUESTIONS

from .conftest import ddaudit


@pytest.fixture
def copy(healthy_run: Path, tmp_path: Path) -> Path:
    """The healthy run, copied elsewhere."""
    return Path(shutil.copytree(healthy_run, tmp_path / "copy"))


def record(run: Path) -> dict:
    return json.loads((run / "record.json").read_text())


def test_json_answers_all_seven_questions(healthy_run: Path):
    done = ddaudit("report", str(healthy_run), "--json")
    shown = json.loads(done.stdout)
    assert (shown["schema"], shown["command"], shown["exit_code"]) == ("ddaudit/1", "run", 0)
    assert [q["id"] for q in shown["questions"]] == list(QUESTIONS)
    by_id = {q["id"]: q for q in shown["questions"]}
    assert "B_eff = N * B_local * A = " in by_id["batch"]["answer"]
    assert by_id["lr"]["status"] == "not-measured" and "baseline" in by_id["lr"]["answer"]
    assert all(q["answer"] for q in shown["questions"])


def test_equality_with_one_device_is_told_with_limit_and_source(healthy_run: Path):
    shown = json.loads(ddaudit("report", str(healthy_run), "--json").stdout)
    equal = [f for f in shown["findings"] if f["check"] == "parallel.equals-single"]
    assert {f["status"] for f in equal} == {"PASS"}
    assert all(f["measured"] <= f["limit"] and f["limit_source"] for f in equal)
    assert any("noise floor" in f["text"] for f in equal)


def test_reports_are_written_beside_the_record(healthy_run: Path):
    assert {"record.json", "plan.json", "evidence.h5", "report.html", "report.md"} <= {
        p.name for p in healthy_run.iterdir()
    }


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_lost_arrays_are_rebuilt_and_the_record_stays_the_same(copy: Path, damage: str):
    before = record(copy)
    path = copy / "evidence.h5"
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:1000])
    done = ddaudit("report", str(copy))
    assert done.returncode == 0, done.stderr
    assert "rebuilt" in done.stderr
    assert path.stat().st_size > 1000
    assert record(copy) == before


def test_a_lost_record_is_rebuilt_the_same_from_plan_and_events(copy: Path):
    before = record(copy)
    (copy / "record.json").unlink()
    (copy / "evidence.h5").unlink()
    assert ddaudit("report", str(copy)).returncode == 0
    after = record(copy)
    # The digest of a new HDF5 file differs where the library writes times into it; everything else is equal.
    for facts in (before["facts"], after["facts"]):
        facts.pop("evidence_sha256")
    assert after == before


def test_arrays_in_hdf5_equal_those_in_the_events(healthy_run: Path):
    import numpy as np

    from ddaudit import packs
    from ddaudit.engine.outcome import evidence_kinds
    from ddaudit.evidence.store import load_events, read_h5

    kinds = evidence_kinds(packs.load(entries=False, environment=False).registry)
    stored = read_h5(healthy_run, kinds)
    for step, evidence in stored.items():
        fresh = load_events(healthy_run, step, kinds)
        assert set(fresh) == set(evidence)
        for kind in fresh:
            (facts, arrays), (facts2, arrays2) = fresh[kind].dump(), evidence[kind].dump()
            assert json.loads(json.dumps(facts, default=str)) == json.loads(json.dumps(facts2, default=str))
            assert set(arrays) == set(arrays2)
            for name in arrays:
                np.testing.assert_array_equal(arrays[name].values, arrays2[name].values)
                assert (arrays[name].unit, arrays[name].axes) == (arrays2[name].unit, arrays2[name].axes)


def test_a_loss_that_becomes_nan_round_trips_through_every_format(small_runbook: Path, tmp_path: Path):
    options = ["-P", "plant=loss-nan", "--only", "single", "--device", "cpu", "--report", "junit"]
    done = ddaudit("run", str(small_runbook), *options, "--out", str(tmp_path), "--json")
    assert done.returncode == 1, done.stderr
    shown = json.loads(done.stdout, parse_constant=pytest.fail)
    (bad,) = [f for f in shown["findings"] if f["id"] == "loss.nan"]
    assert bad["measured"] == "NaN"
    run = next(tmp_path.iterdir())
    again = ddaudit("report", str(run), "--json", "--rejudge")
    assert json.loads(again.stdout)["findings"] == shown["findings"]
    assert math.isnan(_loss(run)[-1])
    for name in ("report.html", "report.md", "junit.xml"):
        assert "NaN" in (run / name).read_text(), name
    assert "loss.nan" in ddaudit("report", str(run)).stdout


def _loss(run: Path) -> list[float]:
    import h5py

    with h5py.File(run / "evidence.h5") as file:
        return list(file["steps/single/training/arrays/loss_nats"][0])


def test_a_failed_step_makes_its_dependants_skip(small_runbook: Path, tmp_path: Path):
    done = ddaudit(
        "run", str(small_runbook), "-P", "plant=loss-nan", "--out", str(tmp_path), "--device", "cpu", "--json"
    )
    shown = json.loads(done.stdout)
    skipped = [f for f in shown["findings"] if f["step"] == "data"]
    assert {f["status"] for f in skipped} == {"SKIP"}
    assert "needs single" in skipped[0]["text"]


def test_dry_run_launches_and_writes_nothing(small_runbook: Path, tmp_path: Path):
    done = ddaudit("run", str(small_runbook), "--out", str(tmp_path / "runs"), "--dry-run")
    assert done.returncode == 0
    assert "single" in done.stdout and "data" in done.stdout
    assert not (tmp_path / "runs").exists()
