"""The arithmetic of a planned job, against published and hand-counted numbers."""

from __future__ import annotations

import pytest

from ddaudit.evidence import JobNumbers, JobPlan
from ddaudit.job import EXAMPLE, job_plan, parse_job


def plan(text: str) -> JobPlan:
    return job_plan(parse_job(text, "job.toml"))


def planned(text: str) -> JobNumbers:
    return plan(text).planned


@pytest.mark.parametrize(
    ("layout", "more", "world", "replicas", "effective"),
    [
        ("dp = 8", "micro_batch = 4\naccumulation = 2", 8, 8, 64),
        ("sharded = 2\ntp = 2", "micro_batch = 4", 4, 2, 8),
        ("dp = 2\nsharded = 2", "micro_batch = 4", 4, 4, 16),
        ("pp = 2", "micro_batch = 4\naccumulation = 4", 2, 1, 16),
        ("tp = 2", "micro_batch = 4", 2, 1, 4),
        ("ep = 2", "micro_batch = 4", 2, 2, 8),
        ("dp = 2\nep = 2", "micro_batch = 4", 2, 2, 8),
        ("cp = 4\ndp = 2", "micro_batch = 4", 8, 2, 8),
        ("world_size = 64\ntp = 8\npp = 4", "micro_batch = 1\naccumulation = 16", 64, 2, 32),
        ("world_size = 64\nsharded = 8", "micro_batch = 1", 64, 64, 64),
    ],
)
def test_replicas_are_ranks_that_see_different_data(layout: str, more: str, world: int, replicas: int, effective: int):
    run = planned(f"{more}\n[layout]\n{layout}")
    assert (run.world_size, run.replicas, run.global_batch) == (world, replicas, effective)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("micro_batch = 8\nglobal_batch = 256", (8, 4, 256)),
        ("accumulation = 4\nglobal_batch = 256", (8, 4, 256)),
        ("micro_batch = 8", (8, 1, 64)),
        ("micro_batch = 8\nglobal_batch = 250", (8, None, None)),
        ("global_batch = 256", (None, None, None)),
    ],
)
def test_two_of_batch_micro_batch_and_accumulation_give_the_third(text: str, found: tuple[int | None, ...]):
    run = planned(f"{text}\n[layout]\ndp = 8")
    assert (run.micro_batch, run.accumulation, run.global_batch) == found


def test_a_pipeline_without_accumulation_has_no_known_batch():
    assert planned("micro_batch = 8\n[layout]\npp = 2").accumulation is None


@pytest.mark.parametrize(
    ("settings", "micro_batches", "updates", "rest", "unread"),
    [
        # 103 samples on 2 replicas in micro-batches of 4: 51 each with drop_last, 52 (one twice) without.
        ("drop_last = true", 12, 4, 0, 103 - 96),
        ("drop_last = false", 13, 4, 1, 0),
        ("drop_last = false\nlast_window = 'drop'", 13, 4, 1, 103 - 96),
        ("drop_last = false\nlast_window = 'rescale'", 13, 5, 1, 0),
        ("drop_last = false\nlast_window = 'carry'", 13, 4, 1, 0),
    ],
)
def test_an_epoch_is_cut_as_the_sampler_and_the_loader_cut_it(
    settings: str, micro_batches: int, updates: int, rest: int, unread: int
):
    text = f"micro_batch = 4\naccumulation = 3\ndataset_samples = 103\nepochs = 2\n{settings}\n[layout]\ndp = 2"
    run = planned(text)
    assert (run.micro_batches_per_epoch, run.updates_per_epoch) == (micro_batches, updates)
    assert (run.left_over_micro_batches, run.unread_samples, run.updates) == (rest, unread, 2 * updates)


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [("dp = 64", 120.0), ("zero_stage = 1", 31.4), ("zero_stage = 2", 16.6), ("", 1.9)]
)
def test_model_states_are_those_of_the_zero_paper(stage: str, gigabytes: float):
    """Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, mixed-precision Adam, 64 ranks; in units of 1e9."""
    layout = stage if stage.startswith("dp") else f"sharded = 64\n{stage}"
    text = f"optimizer = 'adam'\nprecision = 'fp16-mixed'\n[model]\nparameters = 7_500_000_000\n[layout]\n{layout}"
    floor = planned(text).memory
    assert floor is not None
    assert floor.total_bytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "billions"),
    [
        (24, 2304, 24, 1.7),
        (30, 3072, 32, 3.6),
        (60, 10240, 80, 76.1),
        (96, 12288, 96, 174.6),
        (128, 25600, 160, 1008.0),
    ],
)
def test_parameters_estimated_from_a_shape_agree_with_published_models(
    layers: int, hidden: int, heads: int, billions: float
):
    """Narayanan et al. 2021, tables 1 and 2; vocabulary 51,200, embeddings tied."""
    shape = f"layers = {layers}\nhidden = {hidden}\nheads = {heads}\nvocab = 51200\ntied_embeddings = true"
    run = planned(f"[model]\n{shape}")
    assert run.parameters_estimated
    assert (run.parameters or 0) / 1e9 == pytest.approx(billions, rel=0.035)


def test_the_floor_stays_below_what_a_trainer_with_float32_gradients_was_measured_to_hold():
    """Korthikanti et al. 2022: 45.6 GiB of states for 175 billion parameters at tp 8, pp 8, with 18 bytes each."""
    shape = "layers = 96\nhidden = 12288\nheads = 96\nvocab = 51200\ntied_embeddings = true"
    head = "optimizer = 'adam'\nprecision = 'fp16-mixed'"
    floor = planned(f"{head}\n[model]\n{shape}\n[layout]\ntp = 8\npp = 8").memory
    assert floor is not None
    assert floor.total_bytes / (1 << 30) == pytest.approx(45.56 * 16 / 18, rel=0.02)


def test_experts_are_divided_by_their_own_axis():
    head = "optimizer = 'adamw'\nprecision = 'bf16-mixed'\n"
    text = head + "[model]\nlayers = 2\nhidden = 64\nvocab = 100\nexperts = 8\n[layout]\nep = {}"
    one, four = (planned(text.format(ep)).memory for ep in (1, 4))
    assert one is not None and four is not None
    experts = 2 * 8 * 2 * 64 * 256
    assert one.parameters - four.parameters == pytest.approx(experts * 3 / 4)


@pytest.mark.parametrize(
    ("stages", "passes", "chunks", "share"), [(1, 4, 1, 0.0), (4, 4, 1, 3 / 7), (4, 16, 1, 3 / 19), (4, 4, 4, 3 / 19)]
)
def test_the_bubble_of_a_pipeline(stages: int, passes: int, chunks: int, share: float):
    layout = f"pp = {stages}\nvirtual_stages = {chunks}"
    assert planned(f"micro_batch = 1\naccumulation = {passes}\n[layout]\n{layout}").bubble_share == pytest.approx(share)


def test_a_baseline_shares_data_and_model_and_neither_batch_nor_rate():
    found = plan("seq_len = 128\noptimizer = 'adamw'\nlr = 1.0\nmicro_batch = 4\n[baseline]\nprecision = 'fp32'")
    assert found.baseline is not None
    assert (found.baseline.seq_len, found.baseline.rule, found.baseline.precision) == (128, "sqrt", "fp32")
    assert (found.baseline.lr, found.baseline.micro_batch, found.baseline.warmup_updates) == (None, None, None)


def test_the_batch_ratio_counts_tokens_where_sequence_lengths_differ():
    text = "seq_len = {}\nmicro_batch = 8\n[baseline]\nseq_len = 1024\nmicro_batch = 8"
    assert plan(text.format(4096)).batch_ratio == 4.0
    assert plan(text.format(1024)).batch_ratio == 1.0


@pytest.mark.parametrize(
    ("name", "rule"),
    [("AdamW", "sqrt"), ("torch.optim.SGD", "linear"), ("LAMB", "sqrt"), ("lion", None), ("mine", None)],
)
def test_the_rule_is_that_of_the_optimizer_and_never_guessed(name: str, rule: str | None):
    assert planned(f"optimizer = '{name}'").rule == rule


def test_evidence_round_trips():
    found = plan(EXAMPLE)
    assert JobPlan.restore(*found.dump()) == found
    assert found.place("lr") == f"job.toml:{found.lines['lr']}" and found.place("nothing") == "job.toml"
