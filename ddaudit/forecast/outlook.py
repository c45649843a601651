"""The forecast: from a run, a job file or a hardware description to predictions for every size asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ddaudit.errors import EvidenceProblem, UsageProblem
from ddaudit.evidence.forecast import ForecastFacts, Prediction
from ddaudit.forecast.batch import reached, steps_to_loss
from ddaudit.forecast.calibrate import Calibrated, calibrate, described
from ddaudit.forecast.goodput import best_interval
from ddaudit.forecast.hardware_file import known_hardware, load_hardware
from ddaudit.forecast.layout import Layout, misfit
from ddaudit.forecast.layouts import AXES, Scaling, grown
from ddaudit.forecast.measured import Measured, RunFacts, read_run
from ddaudit.forecast.predict import Outlook, predict, step_interval
from ddaudit.forecast.search import best
from ddaudit.forecast.subject import Subject, from_job
from ddaudit.job.load import LoadedJob
from ddaudit.record import load_record

__all__ = ["KINDS", "Failures", "Question", "answer", "read_facts"]

KINDS = (*AXES, "auto")
MAX_DEVICES = 1 << 20


@dataclass(frozen=True)
class Failures:
    """For the checkpoint interval: how long a save stalls and a restart takes, and how often a device fails a day."""

    save_s: float | None = None
    restart_s: float | None = None
    per_device_day: float | None = None


@dataclass(frozen=True)
class Question:
    """What is asked. ``parallel`` None grows what the layout already grows by; ``critical`` is a known critical batch
    in samples, which wins over a measured one."""

    to: Sequence[int]
    parallel: str | None = None
    scaling: Scaling = "weak"
    critical: float | None = None
    failures: Failures = Failures()
    target_loss: float | None = None


def answer(
    question: Question, run: RunFacts | None = None, job: LoadedJob | None = None, hardware: str | None = None
) -> ForecastFacts:
    """Forecasts a job (else the run's own training) on the machine of a run, or of a hardware description.

    Raises:
        UsageProblem: nothing to forecast or to calibrate from, or sizes that make no sense.
        EvidenceProblem: the run holds nothing that can be used.
    """
    _refuse(question, run, job, hardware)
    subject, calibrated = _grounds(question, run, job, hardware)
    critical, notes = _critical(question, run, subject)
    outlook = Outlook(subject, calibrated, subject.layout, critical)
    if reason := misfit(subject.layout, subject.shape):
        raise UsageProblem(f"the layout to start from cannot run: {reason}")
    made, refused = _predictions(question, outlook)
    base = predict(outlook, subject.layout)
    notes += [
        *_knee([base, *made]),
        *_loader(outlook),
        *_saves(question, run, made),
        *_goal(question, run, outlook, made),
    ]
    return ForecastFacts(
        model=subject.name,
        machine=calibrated.machine.name,
        basis=calibrated.basis,
        planned=subject.planned,
        goal=subject.goal,
        scaling=question.scaling,
        base=base,
        predictions=tuple(made),
        refused=refused,
        memory_limit_bytes=outlook.limit_bytes,
        critical_batch=critical,
        notes=(*calibrated.notes, *notes),
        sources=calibrated.machine.sources,
    )


def _grounds(
    question: Question, run: RunFacts | None, job: LoadedJob | None, hardware: str | None
) -> tuple[Subject, Calibrated]:
    """What to forecast, and the machine to forecast it on."""
    described_as = load_hardware(hardware) if hardware is not None else None
    subject = from_job(job) if job is not None else None
    if run is None:
        assert described_as is not None and subject is not None
        return subject, described(described_as, subject.width)
    calibrated = calibrate(run, _kind(question, run, subject), described_as)
    subject = subject or max(calibrated.rows, key=lambda m: m.ranks).subject
    if calibrated.machine.cores is None:
        return subject, calibrated
    if described_as is not None:  # CPU ranks tell nothing of another machine's devices and links
        found = described(described_as, subject.width)
        told = f"the run was measured on CPU ranks, which calibrate nothing of {described_as.name}"
        return subject, replace(found, notes=(*found.notes, told))
    if subject.planned:
        told = "these are CPU ranks of one host; --hardware describes the machine that the job is planned for"
        return subject, replace(calibrated, notes=(*calibrated.notes, told))
    return subject, calibrated


def _refuse(question: Question, run: RunFacts | None, job: LoadedJob | None, hardware: str | None) -> None:
    if not question.to or any(not 1 <= n <= MAX_DEVICES for n in question.to):
        raise UsageProblem(
            f"sizes {', '.join(map(str, question.to)) or '(none)'}", expected=f"device counts from 1 to {MAX_DEVICES}"
        )
    if question.parallel is not None and question.parallel not in KINDS:
        raise UsageProblem(f"no kind of parallelism is called {question.parallel!r}", expected=", ".join(KINDS))
    if run is None and job is None:
        raise UsageProblem("nothing to forecast", expected="a run folder, or --job FILE with --hardware FILE")
    if run is None and hardware is None:
        raise UsageProblem(
            "nothing to calibrate from",
            expected="a run folder, or --hardware with a file or one of: " + ", ".join(known_hardware()),
        )


def _kind(question: Question, run: RunFacts, subject: Subject | None) -> str:
    """The kind of step to calibrate from: what is asked, else what the plan grows, else what was measured most."""
    if question.parallel in AXES:
        return str(question.parallel)
    if subject is not None:
        return _own_axis(subject.layout)
    many = [m for m in run.steps if m.ranks > 1]
    return max(many, key=lambda m: (m.kind == "data", m.updates)).kind if many else "single"


def _own_axis(layout: Layout) -> str:
    """The axis by which a layout grows when nobody says: its largest data-parallel one."""
    return "sharded" if layout.sharded > layout.dp else "data"


def _same_model(run: RunFacts | None, subject: Subject) -> list[Measured]:
    """Steps whose loss and gradients speak for the subject: all of the run's own training, but for a planned job only
    those of its very shape."""
    steps = run.steps if run is not None else ()
    return [m for m in steps if not subject.planned or m.subject.shape == subject.shape]


def _critical(question: Question, run: RunFacts | None, subject: Subject) -> tuple[float | None, list[str]]:
    if question.critical is not None:
        return question.critical, []
    seen = [m for m in _same_model(run, subject) if m.noise is not None]
    if not seen:
        return None, [_no_noise(run, subject)]
    widest = max(seen, key=lambda m: m.updates)
    noise = widest.noise
    assert noise is not None
    text = f"gradient noise scale {noise.samples:,.0f} samples ({noise.low:,.0f} to {noise.high:,.0f}) over"
    return noise.samples, [f"{text} {noise.steps} updates of {widest.step}; it grows as the loss falls"]


def _no_noise(run: RunFacts | None, subject: Subject) -> str:
    """Why time to a loss is not forecast, and what would change that."""
    told = "so time to a loss is not forecast; --critical-batch gives a known one"
    if run is None:
        return f"critical batch not measured: no run, {told}"
    if not _same_model(run, subject):
        return f"critical batch not measured: the run trained another model than the job's, {told}"
    gaps = [f"{m.step} has {m.noise_gap}" for m in run.steps if m.noise_gap]
    if gaps:
        return f"gradient noise scale not measured: {max(gaps, key=len)}, {told}"
    return f"gradient noise scale not measured: no data-parallel step of two ranks or more, {told}"


def _predictions(question: Question, outlook: Outlook) -> tuple[list[Prediction], dict[int, str]]:
    base = outlook.base
    kind = question.parallel or _own_axis(base)
    made: list[Prediction] = []
    refused: dict[int, str] = {}
    for devices in sorted(set(question.to)):
        found: Prediction | str
        if kind == "auto":
            factor = devices / base.devices if question.scaling == "weak" else 1.0
            found = best(outlook, devices, max(1, round(base.global_batch * factor)))
        else:
            layout = grown(base, kind, devices, question.scaling, outlook.subject.shape)
            found = predict(outlook, layout) if isinstance(layout, Layout) else layout
        if isinstance(found, str):
            refused[devices] = found
        else:
            made.append(found)
    return made, refused


def _knee(made: Sequence[Prediction]) -> list[str]:
    """The first size at which an added device brings less than half of what it should, against the size before."""
    for before, after in pairwise(sorted(made, key=lambda one: one.devices)):
        if after.devices == before.devices:
            continue
        gain = (after.samples_per_s / before.samples_per_s - 1) / (after.devices / before.devices - 1)
        if gain < 0.5:
            worth = f"bring {gain:.0%} of their share" if gain > 0 else "slow the job down"
            return [f"knee: beyond {before.devices} devices, added ones {worth} (at {after.devices})"]
    return []


def _loader(outlook: Outlook) -> list[str]:
    """The ranks of one host at which its loader becomes the limit."""
    machine, layout = outlook.calibrated.machine, outlook.base
    if machine.sample_s <= 0 or machine.cores is not None:
        return []
    step_s = step_interval(outlook, layout)[1].mid
    ranks = step_s / (layout.micro_batch * layout.accumulation * machine.sample_s)
    ranks *= layout.tp * layout.pp * layout.cp
    return [f"the loader of a host feeds at most {ranks:.0f} ranks of it; beyond that, input is the limit"]


def _saves(question: Question, run: RunFacts | None, made: Sequence[Prediction]) -> list[str]:
    """The checkpoint interval that wastes least, and the goodput it gives."""
    failures = question.failures
    measured = [m.save_s for m in run.steps if m.save_s is not None] if run is not None else []
    save_s = failures.save_s if failures.save_s is not None else max(measured, default=None)
    if save_s is None or failures.per_device_day is None:
        return []
    said = []
    for one in made:
        found = best_interval(save_s, failures.restart_s or 0.0, one.devices, failures.per_device_day)
        if found is not None:
            said.append(
                f"{one.devices} devices: save every {found.interval_s / 60:.1f} min (a save stalls {save_s:.3g} s, the"
                f" job fails every {found.mtbf_s / 3600:.1f} h); goodput {found.share:.1%}"
            )
    return said


def _goal(question: Question, run: RunFacts | None, outlook: Outlook, made: Sequence[Prediction]) -> list[str]:
    """Updates and time to a loss: those of the run's own curve, moved to each batch by the critical one."""
    goal = question.target_loss
    if goal is None or run is None:
        return []
    steps = _same_model(run, outlook.subject)
    if not steps:
        return [f"time to loss {goal:g} cannot be told: the run trained another model than the job's"]
    seen = [(m, reached(m.losses, goal)) for m in steps if m.kind == "single" or m.ranks > 1]
    met = [(m, updates) for m, updates in seen if updates is not None]
    if not met:
        lowest = min((min(m.losses) for m in steps if m.losses), default=None)
        had = "no loss was recorded" if lowest is None else f"the lowest measured is {lowest:.4g}"
        return [f"time to loss {goal:g} cannot be told: {had}; run more updates"]
    if outlook.critical is None:
        return [f"updates to loss {goal:g} cannot be told without the critical batch (--critical-batch)"]
    source, updates = max(met, key=lambda pair: pair[0].updates)
    said = []
    batch = source.subject.layout.global_batch
    for one in made:
        scale = steps_to_loss(one.global_batch, outlook.critical) / steps_to_loss(batch, outlook.critical)
        count = updates * scale
        many = "update" if round(count) <= 1 else "updates"
        said.append(
            f"loss {goal:g} on {one.devices} devices: about {max(1.0, count):.0f} {many} of {one.global_batch} samples,"
            f" {count * one.step_s.mid:.3g} s, {count * one.step_s.mid * one.devices / 3600:.3g} device hours"
        )
    return said


def read_facts(folder: Path) -> RunFacts:
    """A run folder with what its record knows of the machine.

    Raises:
        EvidenceProblem: no run folder.
    """
    run = read_run(folder)
    try:
        return replace(run, facts=load_record(folder).facts)
    except EvidenceProblem:
        return replace(run, skipped=(*run.skipped, "record.json cannot be read: cores and memory are not known"))
