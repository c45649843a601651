"""Plans of large worlds: what fits, what does not, and what a rank would hold."""

from __future__ import annotations

import json

from tests.conftest import ddaudit


def test_a_plan_is_tried_at_a_thousand_ranks_in_one_process():
    done = ddaudit("run", "scale-out", "--dry-run", "--world-size", "1024", "--device", "cpu", "--json")
    answer = json.loads(done.stdout)
    rows = {row["step"]: row for row in answer["rehearsal"]}
    assert done.returncode == 1  # a model with four heads cannot be split over a thousand ranks
    assert rows["data"]["axes"] == {"dp": 1024} and rows["data"]["replicas"] == 1024
    assert rows["data"]["global_batch"] == 1024 * rows["data"]["micro_batch"] * rows["data"]["accumulation"]
    assert "heads" in rows["tensor"]["problem"]
    sharded = rows["sharded"]
    assert 0 < sharded["shard_bytes"] <= sharded["whole_bytes"] / 32  # rows of 32 are the finest split of this model
    assert done.stderr == ""


def test_a_step_whose_condition_is_false_does_not_stop_the_plan():
    """Eight ranks do not fit the interleaved schedule, and its condition leaves that step out."""
    done = ddaudit("run", "scale-out", "--dry-run", "--device", "cpu", "-P", "ranks=4", "--only", "pipeline*", "--json")
    assert done.returncode == 0, done.stderr
    assert "pipeline-interleaved" in {s["id"] for s in json.loads(done.stdout)["planned"]}
