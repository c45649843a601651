"""The whole answer: from a description, from runs of one and two sizes, and what is refused with a way out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddaudit.errors import EvidenceProblem, Problem, UsageProblem
from ddaudit.evidence import CollectiveSweep, TrainingTrace
from ddaudit.evidence.forecast import ForecastFacts
from ddaudit.forecast.calibrate import with_peaks
from ddaudit.forecast.hardware_file import known_hardware, load_hardware, machine_of
from ddaudit.forecast.measured import Measured, RunFacts, measure
from ddaudit.forecast.memory import memory
from ddaudit.forecast.outlook import Failures, Question, answer, read_facts
from ddaudit.job import EXAMPLE, LoadedJob, parse_job
from tests.checks.traces import trace

SIZES = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 256, "seq_len": 64}


def job(**settings: Any) -> LoadedJob:
    return parse_job(EXAMPLE, "job.toml", {k.replace("__", "."): v for k, v in settings.items()})


def trained(kind: str, ranks: int, step_s: float, **more: Any) -> TrainingTrace:
    """Twelve updates of 16 samples over so many ranks."""
    facts: Mapping[str, Any] = {
        "parallel": kind, "dtype": "fp32", "optimizer": "adamw", "dp": ranks, "global_batch": 16, "accumulation": 1,
        "micro_batch": 16 // ranks, **SIZES, **more.pop("job", {}),
    }  # fmt: skip
    return trace(ranks, 12, job=facts, step_s=step_s, input_s=0.0, optimizer_s=0.001, **more)


def seen(step: str, given: TrainingTrace) -> Measured:
    found = measure(step, given)
    assert isinstance(found, Measured), found
    return found


def run(*traces: TrainingTrace, cpus: int = 64, sweeps: tuple[CollectiveSweep, ...] = ()) -> RunFacts:
    steps = tuple(seen(f"s{i}", t) for i, t in enumerate(traces))
    return RunFacts("run", steps, sweeps, {"cpus": cpus, "memory_bytes": 1 << 34, "hosts": 1})


def test_every_description_that_ships_can_be_read_and_names_its_sources():
    for name in known_hardware():
        hardware = load_hardware(name)
        assert hardware.sources
        assert machine_of(hardware).rate(4096) < hardware.device.peak_flops_16


def test_a_description_gives_bounds_and_says_so():
    found = answer(Question([8, 64]), job=job(), hardware="h100-ndr")
    small, large = found.predictions
    assert found.basis == "description"
    assert small.speedup.low == small.speedup.mid == 1
    assert large.speedup.low < large.speedup.mid <= large.speedup.high
    assert 4 < large.speedup.mid < 8
    assert large.global_batch == 8 * found.base.global_batch
    assert "x2.83 (square-root rule)" in large.advice[0]
    assert "nothing was measured" in found.notes[0]


def test_strong_scaling_keeps_the_batch_until_nothing_is_left_to_cut():
    found = answer(Question([32, 256, 512], scaling="strong"), job=job(), hardware="h100-ndr")
    assert [p.global_batch for p in found.predictions] == [256, 256]
    assert "does not spread over 512 replicas" in found.refused[512]


def test_one_measured_size_gives_bounds_and_two_a_prediction():
    alone = answer(Question([4], parallel="data"), run=run(trained("single", 1, 0.1)))
    assert alone.basis == "one-size"
    both = answer(Question([4], parallel="data"), run=run(trained("single", 1, 0.1), trained("data", 2, 0.055)))
    (four,) = both.predictions
    assert both.basis == "two-sizes"
    assert both.base.devices == 2
    assert four.verdict == "helps"
    assert four.speedup.low < four.speedup.mid < four.speedup.high


def test_ranks_beyond_the_cores_do_not_help_and_the_reason_is_named():
    given = run(trained("single", 1, 0.1), trained("data", 2, 0.055), cpus=2)
    found = answer(Question([4], parallel="data", scaling="strong"), run=given)
    (four,) = found.predictions
    assert four.verdict == "does not help"
    assert four.reason == "4 ranks share 2 cores"


def test_a_measured_noise_scale_makes_devices_beyond_the_critical_batch_buy_little():
    noisy = trained("data", 2, 0.055, grad_norm_local=2.0, grad_norm=1.5)
    found = answer(Question([64], parallel="data", target_loss=0.5), run=run(trained("single", 1, 0.1), noisy))
    assert found.critical_batch == pytest.approx((4 - 2.25) / (1 / 8 - 1 / 16) / ((16 * 2.25 - 8 * 4) / 8), rel=1e-6)
    (far,) = found.predictions
    assert far.time_to_loss_ratio is not None
    assert far.time_to_loss_ratio > 1 / far.speedup.mid
    assert any("no loss was recorded" in note for note in found.notes)


def test_peaks_of_two_micro_batch_sizes_calibrate_activations_and_what_is_reserved():
    rows = []
    for micro in (4, 16):
        given = seen("s", trained("single", 1, 0.1, job={"micro_batch": micro, "accumulation": 16 // micro}))
        subject = given.subject
        used = memory(subject.shape, subject.layout, subject.states, subject.width)
        rows.append(replace(given, peak_bytes=used.total + 0.5 * (used.activations + used.logits) + 1e6))
    machine = with_peaks(machine_of(load_hardware("h100-ndr")), rows)
    assert machine.kept == pytest.approx(1.5)
    assert machine.reserved_bytes == pytest.approx(1e6)


def test_a_loader_that_feeds_few_ranks_is_named_before_it_limits():
    slow = replace(seen("s", trained("single", 1, 0.1)), device="cuda", input_s=0.05)
    found = answer(Question([2, 64], parallel="data"), run=RunFacts("run", (slow,), (), {"cpus": 8, "hosts": 1}))
    assert any("feeds at most 16 ranks" in note for note in found.notes)
    assert found.predictions[-1].limiter == "input"


def test_auto_ranks_what_fits_says_why_others_lost_and_is_quick_at_4096():
    found = answer(Question([4096], parallel="auto"), job=job(), hardware="h100-ndr")
    (best,) = found.predictions
    assert best.fits
    assert best.rejected
    assert all(lost.why for lost in best.rejected)
    assert all(lost.step_s is None or lost.step_s >= 0.99 * best.step_s.mid for lost in best.rejected)


def test_a_failure_rate_gives_the_interval_that_wastes_least():
    failures = Failures(save_s=30, restart_s=300, per_device_day=0.001)
    found = answer(Question([512], failures=failures), job=job(), hardware="h100-ndr")
    assert any("512 devices: save every 52.7 min" in note for note in found.notes)


@pytest.mark.parametrize(
    ("settings", "to", "parallel", "said"),
    [
        ({}, [12], "tensor", "multiple of the 8"),
        ({"layout__sharded": 1}, [3], "tensor", "16 heads do not divide by tp 3"),
        ({"layout__sharded": 1}, [64], "pipeline", "24 layers do not fill 64 pipeline chunks; lower pp"),
        ({"layout__sharded": 1}, [8], "pipeline", "4 micro-batches do not fill 8 pipeline stages"),
        ({"device_memory_gib": 0.01}, [64], "auto", "fits: the smallest"),
        ({"global_batch": 256}, [7], "auto", "no layout cuts a batch"),
    ],
)
def test_a_size_that_cannot_run_is_refused_with_what_to_change(
    settings: dict[str, Any], to: list[int], parallel: str, said: str
):
    found = answer(Question(to, parallel=parallel, scaling="strong"), job=job(**settings), hardware="h100-ndr")
    assert found.predictions == ()
    assert said in found.refused[to[0]]


@pytest.mark.parametrize(
    ("question", "more", "said"),
    [
        (Question([8]), {}, "nothing to forecast"),
        (Question([8]), {"job": job()}, "nothing to calibrate from"),
        (Question([]), {"job": job(), "hardware": "h100-ndr"}, "sizes (none)"),
        (Question([0]), {"job": job(), "hardware": "h100-ndr"}, "sizes 0"),
        (Question([8], parallel="magic"), {"job": job(), "hardware": "h100-ndr"}, "magic"),
        (Question([8]), {"job": job(), "hardware": "nowhere.toml"}, "no such hardware file"),
        (Question([8]), {"job": parse_job("micro_batch = 2", "j.toml"), "hardware": "h100-ndr"}, "a forecast needs"),
        (Question([8], parallel="expert"), {"run": RunFacts("run")}, "no step to calibrate expert from"),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_is_missing(question: Question, more: dict[str, Any], said: str):
    with pytest.raises(Problem, match=said.replace("(", r"\(").replace(")", r"\)")):
        answer(question, **more)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("outer_bytes_per_s = 0", "network.outer_bytes_per_s"),
        ("outer_bytes_per_s = -1", "network.outer_bytes_per_s"),
        ("outer_bytes_per_s = nan", "network.outer_bytes_per_s"),
        ("outer_bytes_per_s = 'fast'", "network.outer_bytes_per_s"),
        ("outer_bytes_per_s = [", "wrong TOML"),
    ],
)
def test_a_description_of_no_machine_is_refused_by_its_key(tmp_path: Path, line: str, said: str):
    whole = (Path(load_hardware.__code__.co_filename).parent / "hardware" / "h100-ndr.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(whole.replace("outer_bytes_per_s = 40e9", line))
    with pytest.raises(UsageProblem, match=said):
        load_hardware(str(path))


def test_what_cannot_calibrate_is_skipped_with_its_reason():
    assert "planted" in str(measure("s", trained("data", 2, 0.1, job={"planted": "slow-rank"})))
    assert "does not tell" in str(measure("s", trace(2, 12, step_s=0.1)))
    assert "fewer than" in str(measure("s", trace(1, 3, job={"parallel": "single", "micro_batch": 1,
                                                             "accumulation": 1, **SIZES}, step_s=0.1)))  # fmt: skip


def test_a_folder_that_is_no_run_is_told_so(tmp_path: Path):
    with pytest.raises(EvidenceProblem, match="no events"):
        read_facts(tmp_path)


def test_what_other_programs_did_to_the_steps_is_no_part_of_the_forecast():
    """Twice the wall time with half of it queued for a core: the same forecast, and a note that says so."""

    def forecast(busy: float) -> ForecastFacts:
        queued = {"cpu_s": 0.05, "runqueue_s": 0.05 * (busy - 1), "runqueue_comm_s": 0.0}
        alone, two = trained("single", 1, 0.1 * busy, **queued), trained("data", 2, 0.055 * busy, **queued)
        return answer(Question([4], parallel="data", scaling="strong"), run=run(alone, two, cpus=2))

    quiet, busy = forecast(1.0), forecast(2.0)
    assert busy.predictions[0].step_s.mid == pytest.approx(quiet.predictions[0].step_s.mid, rel=0.02)
    assert any("other programs made steps up to 2.0x longer" in note for note in busy.notes)
    assert not any("other programs" in note for note in quiet.notes)


def test_few_updates_give_no_noise_scale_and_the_forecast_says_how_many_are_needed():
    norms = {"grad_norm_local": np.full((2, 12), 2.0), "grad_norm": np.full((2, 12), 1.5)}
    for name in norms:
        norms[name][:, 6:] = np.nan
    given = run(trained("single", 1, 0.1), trained("data", 2, 0.055, **norms))
    found = answer(Question([4], parallel="data"), run=given)
    assert found.critical_batch is None
    assert any("gradient noise scale not measured: s1 has 6 updates, 8 needed" in note for note in found.notes)


def test_cpu_ranks_calibrate_no_described_machine_and_no_other_models_batch():
    noisy = trained("data", 2, 0.055, grad_norm_local=2.0, grad_norm=1.5)
    given = run(trained("single", 1, 0.1), noisy)
    found = answer(Question([64], target_loss=1.0), run=given, job=job(), hardware="h100-ndr")
    alone = answer(Question([64]), job=job(), hardware="h100-ndr")
    assert found.predictions == alone.predictions
    assert found.critical_batch is None
    assert any("CPU ranks, which calibrate nothing of NVIDIA H100" in note for note in found.notes)
    assert any("the run trained another model than the job's" in note for note in found.notes)
    here = answer(Question([64]), run=given, job=job())
    assert any("--hardware describes the machine that the job is planned for" in note for note in here.notes)


def test_what_no_run_measures_of_overlap_widens_the_bounds():
    found = answer(Question([8], parallel="tensor"), job=job(layout__sharded=1), hardware="h100-ndr")
    (one,) = found.predictions
    assert one.terms["tensor"] > 0
    assert one.step_s.low < (one.step_s.mid - 0.5 * one.terms["tensor"]) / 1.3
    assert one.step_s.high > one.step_s.mid * 1.3


def test_a_measured_rate_of_products_is_what_a_step_is_held_against():
    given = run(trained("single", 1, 0.1), trained("data", 2, 0.055), cpus=2)
    found = answer(Question([4], parallel="data"), run=replace(given, rates={4: 1e13}))
    assert any("of the 1e+04 GFLOP/s that they reach alone" in note for note in found.notes)
