"""Every kind of parallelism computes what one device computes on the same global batch, and resumes bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddaudit.evidence import TrainingTrace
from tests.training.ranks import deviation, trained, trained_all

SHORT = {"steps": 3, "global_batch": 8, "optimizer": "sgd", "capture": True}
EXACT = {**SHORT, "dtype": "fp64"}

#: Name, ranks, parameters, and what question 2 must find: N, B_local, A.
KINDS: list[tuple[str, int, dict[str, Any], tuple[int, int, int]]] = [
    ("data", 2, {"parallel": "data"}, (2, 4, 1)),
    ("data-accumulate", 2, {"parallel": "data", "variant": "accumulate"}, (2, 2, 2)),
    ("data-zero1", 2, {"parallel": "data", "variant": "zero1"}, (2, 4, 1)),
    ("data-zero2", 2, {"parallel": "data", "variant": "zero2"}, (2, 4, 1)),
    ("sharded", 2, {"parallel": "sharded", "accumulation": 2}, (2, 2, 2)),
    ("tensor", 2, {"parallel": "tensor"}, (1, 8, 1)),
    ("tensor-sequence", 2, {"parallel": "tensor", "variant": "sequence-parallel"}, (1, 8, 1)),
    ("pipeline", 2, {"parallel": "pipeline"}, (1, 2, 4)),
    ("pipeline-1f1b", 2, {"parallel": "pipeline", "variant": "1f1b"}, (1, 2, 4)),
    ("pipeline-interleaved", 2, {"parallel": "pipeline", "variant": "interleaved"}, (1, 2, 4)),
    ("expert", 2, {"parallel": "expert"}, (2, 4, 1)),
    ("context", 2, {"parallel": "context"}, (1, 8, 1)),
    ("fsdp-tp", 4, {"parallel": "fsdp-tp"}, (2, 4, 1)),
    ("hsdp", 4, {"parallel": "hsdp"}, (4, 2, 1)),
]
NAMES = [name for name, *_ in KINDS]
Traces = dict[str, TrainingTrace]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """All kinds in float64 with uneven samples, which is the harder case, and clipping."""
    uneven = {**EXACT, "ragged": True, "clip_norm": 0.1}
    found: Traces = {}
    for ranks in (2, 4):
        runs = {name: {**uneven, **params} for name, n, params, _ in KINDS if n == ranks}
        found |= trained_all(tmp_path_factory.mktemp(f"ranks{ranks}"), ranks, runs)
    alone = {"single": uneven, "experts": {**uneven, "experts": 4}}
    return found | trained_all(tmp_path_factory.mktemp("alone"), 1, alone)


def reference_of(name: str, traces: Traces) -> TrainingTrace:
    return traces["experts" if name == "expert" else "single"]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_every_rank_equal_one_device(name: str, traces: Traces) -> None:
    assert deviation(traces[name], reference_of(name, traces)) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_final_parameters_losses_and_norms_equal_one_device(name: str, traces: Traces) -> None:
    trace, reference = traces[name], reference_of(name, traces)
    assert deviation(trace, reference, "param") < 1e-12
    for series in ("loss_nats", "grad_norm", "grad_norm_clipped"):
        assert np.abs(trace.series(series) - reference.series(series)).max() < 1e-12, series


@pytest.mark.parametrize(("name", "expected"), [(name, expected) for name, _, _, expected in KINDS])
def test_the_effective_batch_is_factored_by_replicas_that_read_different_samples(
    name: str, expected: tuple[int, int, int], traces: Traces
) -> None:
    trace = traces[name]
    assert (trace.job.dp, trace.job.micro_batch, trace.job.accumulation) == expected
    read = {tuple(row) for row in trace.sample_ids[:, 0].tolist()}
    assert len(read) == expected[0]
    assert len({i for row in read for i in row}) == 8
    assert (trace.series("micro_batches") == expected[2]).all()


@pytest.mark.parametrize("name", ["data", "data-accumulate", "data-zero1"])
def test_replicas_tell_the_norm_of_their_own_gradient(name: str, traces: Traces) -> None:
    """A mean of gradients is never longer than they are on average: the difference is the noise."""
    own, averaged = traces[name].series("grad_norm_local"), traces[name].series("grad_norm")
    assert (np.mean(own**2, axis=0) > np.mean(averaged**2, axis=0)).all()
    assert not np.array_equal(own[0], own[1])


@pytest.mark.parametrize("name", NAMES)
def test_measured_synchronisation_is_what_the_kind_needs(name: str, traces: Traces) -> None:
    trace = traces[name]
    assert (trace.series("grad_syncs") == trace.job.grad_syncs_per_step).all()
    assert (trace.job.grad_syncs_per_step == 0) == (name == "tensor" or name.startswith("pipeline"))
    waits = trace.series("comm_wait_s")
    assert ((waits > 0) & (waits < trace.series("step_s"))).all()


@pytest.mark.parametrize("name", ["data", "data-zero1", "tensor", "tensor-sequence", "expert", "context"])
def test_replicated_parameters_agree_bit_for_bit(name: str, traces: Traces) -> None:
    digests = traces[name].series("param_digest")
    assert (digests == digests[0]).all()
    assert len(set(digests[0].tolist())) == digests.shape[1]


def test_hybrid_sharding_replicates_each_slice(traces: Traces) -> None:
    digests = traces["hsdp"].series("param_digest")
    of_shard = {index: [d for d, r in zip(digests.tolist(), traces["hsdp"].ranks, strict=True) if r.coords["shard"] == index] for index in (0, 1)}  # fmt: skip  # noqa: E501
    assert of_shard[0][0] == of_shard[0][1] != of_shard[1][0] == of_shard[1][1]


@pytest.mark.parametrize("name", ["data", "sharded"])
def test_float32_differs_by_rounding_only(name: str, tmp_path: Path) -> None:
    params = next(p for n, _, p, _ in KINDS if n == name)
    one = trained(tmp_path / "one", **SHORT)
    assert 0 < deviation(trained(tmp_path / "many", 2, **SHORT, **params), one) < 1e-5


RESUMED = ["data-accumulate", "data-zero1", "sharded", "pipeline-interleaved", "expert"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    folder = tmp_path_factory.mktemp("resume")
    settings = {"steps": 4, "global_batch": 8, "dataset_samples": 24}
    runs: dict[str, dict[str, Any]] = {}
    for name in RESUMED:
        params = {**settings, **next(p for n, _, p, _ in KINDS if n == name)}
        runs[name] = {**params, "checkpoint": "step:2"}
        runs[f"{name}-resumed"] = {**params, "resume_from": str(folder / name / "scratch/step-2")}
    return trained_all(folder, 2, runs)


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_repeats_the_losses_bit_for_bit(name: str, resumed: Traces) -> None:
    whole, rest = resumed[name], resumed[f"{name}-resumed"]
    assert list(rest.steps) == [2, 3]
    for series in ("loss_nats", "lr", "grad_norm", "update_norm", "batch_digest", "epoch"):
        assert (rest.series(series) == whole.series(series)[:, 2:]).all(), series
