"""The collectives probe on real gloo ranks, in groups smaller than the world."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import get_args

import pytest

from ddaudit.context import ProbeContext
from ddaudit.errors import RunbookProblem
from ddaudit.evidence import CollectiveSweep, EventWriter
from ddaudit.evidence.bandwidth import BUS_FACTOR
from ddaudit.evidence.store import load_events
from ddaudit.jsonio import dumps
from ddaudit.launch import LocalLauncher
from ddaudit.probes.collectives import CollectivesParams, Op, _sizes, collectives
from ddaudit.record import write_atomically
from ddaudit.runbook.model import Plan, PlannedStep

QUICK = {"sizes": 1, "repeats": 2, "min_bytes": 100, "max_bytes": 100}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> CollectiveSweep:
    """All operations on four ranks in two groups, and all pairs."""
    folder = tmp_path_factory.mktemp("sweep")
    params = {**QUICK, "group_size": 2, "pair_bytes": 64}
    step = PlannedStep(id="s", title="t", source="b:1", runbook="b", probe="collectives", params=params, nproc=4)
    write_atomically(
        folder / "plan.json",
        dumps(Plan(run_id="r", runbook="b", title="t", steps=(step,)).model_dump(mode="json", by_alias=True)),
    )
    with LocalLauncher(folder, torch=True) as launcher:
        assert launcher.run_step(step, folder / "plan.json", folder="s").ok
    found = load_events(folder, "s", [CollectiveSweep])["collectives"]
    assert isinstance(found, CollectiveSweep)
    return found


def test_each_group_has_its_own_points_of_every_operation(sweep: CollectiveSweep) -> None:
    assert {(p.op, p.group) for p in sweep.points} == {(op, g) for op in get_args(Op) for g in ((0, 1), (2, 3))}
    assert all(len(p.passes) == 3 and p.passes[0].repeats == 2 for p in sweep.points)


def test_every_result_was_checked_and_is_exact(sweep: CollectiveSweep) -> None:
    assert sweep.checked == 4 * 6 * 3 and sweep.wrong == ()


def test_sizes_are_whole_elements_for_every_rank(sweep: CollectiveSweep) -> None:
    assert {p.bytes for p in sweep.points} == {96}


def test_every_pair_of_the_world_was_timed_in_every_round(sweep: CollectiveSweep) -> None:
    assert [p.ranks for p in sweep.pairs] == list(itertools.combinations(range(4), 2))
    assert {len(p.passes) for p in sweep.pairs} == {3} and {p.bytes for p in sweep.pairs} == {64}


def test_operations_are_those_with_a_bus_factor() -> None:
    assert set(get_args(Op)) == set(BUS_FACTOR)


def test_sizes_are_spread_evenly_on_a_log_scale() -> None:
    assert _sizes(CollectivesParams(min_bytes=1024, max_bytes=1 << 20, sizes=3), "cpu") == [1024, 32768, 1 << 20]
    assert _sizes(CollectivesParams(sizes=1), "cpu") == [4096]
    assert _sizes(CollectivesParams(min_bytes=1 << 20, max_bytes=4, sizes=4), "cpu") == [1 << 20]
    assert max(_sizes(CollectivesParams(), "cuda")) == 256 << 20


@pytest.mark.parametrize(("world", "group"), [(1, 0), (4, 3), (2, 1), (2, 4)])
def test_groups_that_do_not_divide_the_ranks_are_refused(tmp_path: Path, world: int, group: int) -> None:
    with EventWriter(tmp_path / "events" / "n-0.jsonl") as events:
        context = ProbeContext("s", 0, world, 0, "n", "cpu", tmp_path, tmp_path, events, time.monotonic() + 9)
        with pytest.raises(RunbookProblem, match="in groups of"):
            collectives(context, CollectivesParams(group_size=group))
