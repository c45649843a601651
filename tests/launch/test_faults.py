"""Every fault in one rank, at a random moment, is named rightly, and no process outlives the driver."""

from __future__ import annotations

import json
import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddaudit.evidence.events import read_streams
from tests.launch import drive

SEED = random.SystemRandom().randrange(1 << 30)
HANG_TIMEOUT_S = 5.0


def _cases() -> list[dict[str, Any]]:
    chance = random.Random(SEED)
    common = {"steps": 12, "pause_s": 0.005}
    cases: list[dict[str, Any]] = [{"fault": "none", "ranks": 2, **common}]
    for ranks, faults in ((2, drive.LOST + drive.HUNG), (4, ("kill", "abort", "hang-lock"))):
        for fault in faults:
            case = {"fault": fault, "ranks": ranks, "rank": chance.randrange(ranks), "at_step": chance.randrange(12)}
            timeout = HANG_TIMEOUT_S if fault in drive.HUNG else 30.0
            cases.append({**case, **common, "timeout_s": timeout})
    cases.append({"fault": "problem", "ranks": 2, "rank": 0, **common})
    cases.append({"fault": "none", "ranks": 4, **common})
    cases.append({"fault": "none", "ranks": 3, "steps": 1_000_000, "timeout_s": HANG_TIMEOUT_S})
    return cases


CASES = _cases()


def _name(case: dict[str, Any]) -> str:
    return f"{case['fault']}-{case['ranks']}"


@dataclass(frozen=True)
class Session:
    """What the drivers printed, by case name, where they wrote it, and which of their processes were left."""

    folders: dict[str, Path]
    results: dict[str, dict[str, Any]]
    left: list[str]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Runs all cases in three drivers at once: two take the hangs, which mostly wait."""
    hangs = [c for c in CASES if c["fault"] in drive.HUNG]
    shares = [[c for c in CASES if c["fault"] not in drive.HUNG], hangs[::2], hangs[1::2]]
    folders: dict[str, Path] = {}
    results: dict[str, dict[str, Any]] = {}
    left: list[str] = []
    with ExitStack() as stack:
        runs = [tmp_path_factory.mktemp("run") for _ in shares]
        drivers = [stack.enter_context(drive.driver(r, h, SEED)) for r, h in zip(runs, shares, strict=True)]
        for run_dir, process in zip(runs, drivers, strict=True):
            output, _ = process.communicate(timeout=300)
            left += drive.session_members(process.pid)
            assert process.returncode == 0, (run_dir / "logs/launcher.log").read_text()
            for result in map(json.loads, output.splitlines()):
                name = _name(result["case"])
                results[name], folders[name] = result, run_dir
    return Session(folders, results, left)


@pytest.mark.parametrize("case", [c for c in CASES if c["fault"] in drive.LOST], ids=_name)
def test_a_lost_rank_is_named_with_its_end(session: Session, case: dict[str, Any]) -> None:
    result = session.results[_name(case)]
    (finding,) = result["findings"]
    assert (finding["status"], finding["id"], finding["severity"]) == ("FAIL", "launch.rank-lost", "critical"), SEED
    assert finding["where"]["rank"] == case["rank"], (SEED, finding["text"])
    assert finding["where"]["host"] and finding["remedy"]["commands"]
    victim = result["facts"]["ranks"][case["rank"]]
    ends = {"kill": "SIGKILL", "abort": "SIGABRT", "segfault": "SIGSEGV"}
    if case["fault"] in ends:
        assert (victim["state"], victim["signal"]) == ("killed", ends[case["fault"]])
    else:
        codes = {"exit": 7, "leave": 0}
        assert (victim["state"], victim["exit_code"]) == ("exited", codes.get(case["fault"], 65))
    assert str(victim["pid"]) in finding["text"]
    assert result["facts"]["seconds"] < 15, "a lost rank ends the step long before its deadline"


@pytest.mark.parametrize("case", [c for c in CASES if c["fault"] in drive.HUNG], ids=_name)
def test_a_hung_rank_is_named_with_state_position_and_stacks(session: Session, case: dict[str, Any]) -> None:
    result = session.results[_name(case)]
    (finding,) = result["findings"]
    assert (finding["status"], finding["id"], finding["severity"]) == ("FAIL", "launch.rank-hung", "critical"), SEED
    assert finding["where"]["rank"] == case["rank"], (SEED, finding["text"])
    facts = result["facts"]
    assert facts["timed_out"] and facts["seconds"] < HANG_TIMEOUT_S + 4
    victim = facts["ranks"][case["rank"]]
    states = {"stop": ["stopped"], "spin": ["on-cpu"], "skip-collective": ["done", "sleeping"]}
    assert victim["state"] in states.get(case["fault"], ["sleeping"]), SEED
    answering = [r for r in facts["ranks"] if r["state"] != "stopped"]
    assert all("drill.py" in r["stack"] or "worker.py" in r["stack"] for r in answering)
    mute = 1 if case["fault"] in ("stop", "hang-native") else 0
    assert sum(r["collective_seq"] is None for r in facts["ranks"]) == mute
    assert victim["why"] in finding["text"]


def test_healthy_ranks_pass_and_say_how_many_and_how_long(session: Session) -> None:
    for ranks in (2, 4):
        (finding,) = session.results[f"none-{ranks}"]["findings"]
        assert (finding["status"], finding["measured"]) == ("PASS", ranks)
        assert f"all {ranks} rank(s)" in finding["text"] and " s" in finding["text"]


def test_ranks_that_still_get_on_at_the_deadline_are_slow_and_none_is_accused(session: Session) -> None:
    (finding,) = session.results["none-3"]["findings"]
    assert (finding["status"], finding["id"], finding["where"]["rank"]) == ("ERROR", "launch.too-slow", None)


def test_a_problem_of_the_user_is_an_error_and_no_lost_rank(session: Session) -> None:
    (finding,) = session.results["problem-2"]["findings"]
    assert (finding["status"], finding["id"], finding["where"]["rank"]) == ("ERROR", "launch.problem", 0)
    assert "planted problem" in finding["text"]


def test_what_the_ranks_recorded_before_a_fault_is_kept(session: Session) -> None:
    for name, result in session.results.items():
        run_dir = session.folders[name]
        folder = run_dir / "events" / result["facts"]["folder"]
        streams = read_streams(folder)
        assert len(streams) == result["case"]["ranks"] + 1, name
        assert all(s.damaged_lines == 0 for s in streams)
        assert all(s.of("start") for s in streams if s.name != "launcher")
        assert (run_dir / "logs" / result["facts"]["folder"]).is_dir()


def test_no_process_of_the_session_is_left(session: Session) -> None:
    assert session.left == []
