"""``ddaudit forecast``: will more devices help, and what becomes the limit?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddaudit.cli.common import check_folder, emit_json, envelope, json_option, parse_params
from ddaudit.cli.terminal import printable
from ddaudit.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from ddaudit.evidence.forecast import ForecastFacts, Prediction

__all__ = ["command"]

KINDS = ("data", "sharded", "tensor", "pipeline", "expert", "context", "auto")
GIB = 1 << 30


@click.command("forecast")
@click.argument("run", required=False)
@click.option("--job", metavar="FILE", help="Forecast this planned job (job.toml), not the run's own training.")
@click.option("--job-set", multiple=True, metavar="KEY=VALUE", help="Override a key of the job file (layout.tp=4).")
@click.option("--to", "to", required=True, metavar="N,N...", help="Numbers of devices (8,16,64,512).")
@click.option("--parallel", type=click.Choice(KINDS), help="Grow by this; auto: rank all layouts that fit.")
@click.option("--scaling", type=click.Choice(["weak", "strong"]), default="weak", show_default=True,
              help="weak: the batch grows with the replicas; strong: it stays.")  # fmt: skip
@click.option("--hardware", metavar="FILE", help="A description file, or the name of one that ships with ddaudit.")
@click.option("--critical-batch", type=click.FloatRange(min=0, min_open=True), metavar="SAMPLES",
              help="A known critical batch; left out, that of the run's gradient noise.")  # fmt: skip
@click.option("--target-loss", type=click.FloatRange(min=0, min_open=True), metavar="NATS",
              help="Also give the updates to this loss, by the run's own curve.")  # fmt: skip
@click.option("--save-s", type=click.FloatRange(min=0), help="Seconds that a save stalls; left out, as measured.")
@click.option("--restart-s", type=click.FloatRange(min=0), help="Seconds from a failure to the next step.")
@click.option("--failures-per-device-day", "failures", type=click.FloatRange(min=0, min_open=True),
              help="How often a device ends the job: gives the best checkpoint interval and the goodput.")  # fmt: skip
@json_option
def command(run: str | None, **options: Any) -> int:
    """Will more devices help, and what becomes the limit?

    RUN is a run folder: its steps, collectives and gradients calibrate the model. Two measured sizes give a prediction,
    one gives bounds. Without a run, --job and --hardware forecast from a description alone.
    """
    facts = _ask(run, options)
    code = Exit.PASS if facts.predictions else Exit.INCONCLUSIVE
    if options["as_json"]:
        whole = facts.model_dump(mode="json")
        more = {"predictions": whole.pop("predictions"), "forecast": whole, "run": run}
        emit_json(envelope("forecast", "PASS" if facts.predictions else "INCONCLUSIVE", code, **more))
    else:
        for line in _lines(facts):
            click.echo(printable(line))
    return int(code)


def _ask(run: str | None, options: dict[str, Any]) -> ForecastFacts:
    from ddaudit.forecast.outlook import Failures, Question, answer, read_facts
    from ddaudit.job import load_job

    if options["job"] is None and options["job_set"]:
        raise UsageProblem("--job-set belongs to --job")
    if options["target_loss"] is not None and run is None:
        raise UsageProblem("--target-loss needs a run whose loss curve is known", fix="ddaudit forecast RUN ...")
    measured = None if run is None else read_facts(check_folder(run))
    job = load_job(Path(options["job"]), parse_params(options["job_set"], "--job-set")) if options["job"] else None
    question = Question(
        to=_sizes(options["to"]),
        parallel=options["parallel"],
        scaling=options["scaling"],
        critical=options["critical_batch"],
        failures=Failures(options["save_s"], options["restart_s"], options["failures"]),
        target_loss=options["target_loss"],
    )
    return answer(question, measured, job, options["hardware"])


def _sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or any(not (w.isascii() and w.isdigit()) or len(w) > 9 for w in words):
        raise UsageProblem(f"--to {text!r}", expected="numbers of devices, such as 8,16,64")
    return [int(word) for word in words]


def _lines(facts: ForecastFacts) -> Iterator[str]:
    basis = {
        "two-sizes": "a prediction: several sizes were measured",
        "one-size": "bounds: one size was measured",
        "description": "bounds: nothing was measured",
    }[facts.basis]
    yield f"{facts.model} on {facts.machine}"
    yield f"{basis}; {facts.scaling} scaling from {facts.base.devices} device(s), {facts.base.layout}"
    yield ""
    yield from _table(facts)
    for one in facts.predictions:
        if one.layout == facts.base.layout:
            continue
        yield ""
        yield f"{facts.base.devices} -> {one.devices}: {one.verdict}, {_times(one)}; {one.reason}"
        yield from (f"  {line}" for line in one.advice)
        if one.time_to_loss_ratio is not None:
            spent = one.time_to_loss_ratio * one.devices / facts.base.devices
            yield f"  time to the same loss: {_factor(one.time_to_loss_ratio)}x, for {_factor(spent)}x the device hours"
        for lost in one.rejected:
            yield f"  not {lost.layout}: {lost.why}"
    for devices, reason in sorted(facts.refused.items()):
        yield f"{devices}: {reason}"
    if facts.notes:
        yield ""
        yield from (f"- {note}" for note in facts.notes)


def _factor(value: float) -> str:
    """Three digits, and no exponent for a large factor."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _times(one: Prediction) -> str:
    low, high = f"{one.speedup.low:.3g}", f"{one.speedup.high:.3g}"
    return f"{low}x" if low == high else f"{low}-{high}x"


def _table(facts: ForecastFacts) -> Iterator[str]:
    limit = facts.memory_limit_bytes
    yield f"{'devices':>8} {'step s':>22} {'speedup':>9} {'of ideal':>9} {'memory GiB':>13}  limiter"
    for one in (facts.base, *(p for p in facts.predictions if p.devices != facts.base.devices)):
        step = f"{one.step_s.low:.3g} {one.step_s.mid:.3g} {one.step_s.high:.3g}"
        room = f"{one.memory_bytes / GIB:.{1 if one.memory_bytes >= GIB else 3}f}" + (
            f"/{limit / GIB:.0f}" if limit else ""
        )
        share = one.terms.get(one.limiter, 0.0) / one.step_s.mid
        yield (
            f"{one.devices:>8} {step:>22} {one.speedup.mid:>8.2f}x {one.efficiency:>9.0%} {room:>13}"
            f"  {one.limiter} {share:.0%}"
        )
