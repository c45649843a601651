"""Plans of large worlds: what fits, what does not, and what a rank would hold."""

from __future__ import annotations

import json

from ddaudit.training.rehearsal import rehearse
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


def test_mixed_precision_keeps_its_parameters_in_fp32_and_adamw_four_tensors_of_their_size():
    asked = {"parallel": "data", "global_batch": 4096}
    plain, mixed, sgd = rehearse(
        [("a", asked), ("b", {**asked, "dtype": "bf16"}), ("c", {**asked, "optimizer": "sgd"})], 4096
    )
    assert mixed.whole_bytes == plain.whole_bytes
    assert plain.rank_bytes == 4 * (plain.whole_bytes or 0) and sgd.rank_bytes == 2 * (sgd.whole_bytes or 0)


def test_a_plan_that_trains_nothing_is_shown_all_the_same():
    done = ddaudit("run", "crash", "--dry-run", "--world-size", "4096", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["rehearsal"] == []
    assert set(answer["other_steps"].values()) == {1}, "reading logs takes one process at any size"
