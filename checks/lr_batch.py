"""Question 3 on a job file: do learning rate and warm-up follow the effective batch, held against a known-good run?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddaudit.api import Finding, JobNumbers, JobPlan, Limit, Limits, Remedy, Status, check, ok, skip, warn

from ._job import at, plant, times

NO_BASELINE = "not measured: needs a known-good baseline ([baseline] in the job file)"

#: rule -> (exponent of k, name, source)
RULES: dict[str, tuple[float, str, str]] = {
    "linear": (1.0, "linear", "linear rule for SGD: lr grows with the batch (Goyal et al. 2017)"),
    "sqrt": (0.5, "square-root", "square-root rule for Adam and its kin (Malladi et al. 2022)"),
}


class BatchLrLimits(Limits):
    """Shares of what the rule or the baseline asks for."""

    family = "lr"

    rate_ratio: Limit = Limit(
        warn_below=1 / 1.5,
        warn_above=1.5,
        source="default: planned over rule; sqrt(2) apart is within what tuning moves, a factor of 2 is another rule",
    )
    warmup_ratio: Limit = Limit(
        warn_below=0.8, source="default: planned over baseline warm-up, in updates or in tokens, whichever is longer"
    )


@check(
    "lr.matches-batch",
    question="lr",
    asks="Does the learning rate follow the effective batch by the rule of its optimizer?",
    plant=(
        plant("four times the batch, the old learning rate", "lr.not-matched-to-batch", lr=3e-4),
        plant("AdamW scaled by the rule for SGD", "lr.not-matched-to-batch", lr=1.2e-3),
        plant("SGD scaled by the rule for Adam", "lr.not-matched-to-batch", optimizer="sgd"),
    ),
)
def matches_batch(job: JobPlan, limits: BatchLrLimits) -> Iterator[Finding]:
    """With k times the baseline's batch, SGD takes k times its learning rate (Goyal et al. 2017) and the Adam family
    sqrt(k) times (Malladi et al. 2022). Both rules end at the critical batch size (McCandlish et al. 2018), beyond
    which no learning rate makes a larger batch pay; a finding can only say whether the rule was followed.
    """
    mine, good, k = job.planned, job.baseline, job.batch_ratio
    if good is None:
        yield skip(NO_BASELINE)
        return
    if k is None or mine.lr is None or good.lr is None:
        yield skip("not measured: needs lr and the batch (micro_batch, accumulation) of both plan and baseline")
        return
    if mine.parameters and good.parameters and abs(mine.parameters / good.parameters - 1) > 0.01:
        sizes = f"{good.parameters:.3g} and {mine.parameters:.3g} parameters"
        yield skip(f"not measured: baseline and plan are models of {sizes}; a learning rate goes with its model")
        return
    if mine.rule is None or mine.rule != good.rule:
        yield skip(
            f"not measured: no published rule leads from {_named(good)} at one batch to {_named(mine)} at another"
        )
        return
    exponent, name, source = RULES[mine.rule]
    wanted = good.lr * k**exponent
    ratio = mine.lr / wanted
    kept = {"measured": mine.lr, "unit": "1", "limit": wanted, "limit_source": f"{source}, from the baseline"}
    text = f"lr {mine.lr:.3g} at {times(k)} the baseline's batch; the {name} rule gives {wanted:.3g} from {good.lr:.3g}"
    if limits.rate_ratio.judge(ratio) is Status.PASS:
        yield ok(text, where=at(job, "lr"), **kept)
        return
    remedy = Remedy(
        text=f"Start from lr = {wanted:.3g} with a warm-up at least as long as the baseline's, and compare."
    )
    yield warn(
        "lr.not-matched-to-batch", text + _habit(mine.lr / good.lr, k), where=at(job, "lr"), remedy=remedy, **kept
    )


def _named(run: JobNumbers) -> str:
    return run.optimizer or "an unnamed optimizer"


def _habit(factor: float, k: float) -> str:
    """Which habit a factor looks like."""
    if abs(k - 1) < 1e-6:
        return f"; the batch is the baseline's, the learning rate {times(factor)} of it"
    habits = {
        "; unchanged": 1.0,
        "; multiplied by k, the rule for SGD": k,
        "; multiplied by sqrt(k), the rule for Adam": math.sqrt(k),
        "; divided by k": 1 / k,
    }
    return next(
        (words for words, value in habits.items() if abs(factor / value - 1) < 0.02), f"; {times(factor)} of it"
    )


@check(
    "lr.warmup-matches-batch",
    question="lr",
    asks="Is the warm-up at least as long as the baseline's, in updates or in tokens?",
    plant=(
        plant("no warm-up at a larger batch", "lr.warmup-missing", warmup_steps=0),
        plant("a warm-up shorter in updates and in tokens", "lr.warmup-too-short", warmup_steps=100),
    ),
)
def warmup_matches_batch(job: JobPlan, limits: BatchLrLimits) -> Iterator[Finding]:
    """A raised learning rate needs a warm-up (Goyal et al. 2017: the first epochs diverge without). k times the batch
    turns the same updates into k times the tokens, so both are compared: shorter in both is too short.
    """
    mine, good = job.planned, job.baseline
    if good is None:
        yield skip(NO_BASELINE)
        return
    ratios = _warmup_ratios(mine, good)
    if mine.warmup_updates == 0 or mine.warmup_tokens == 0:
        yield from _no_warmup(job, good)
        return
    if good.warmup_updates == 0 or good.warmup_tokens == 0:
        source = "the baseline has no warm-up"
        kept = {"measured": mine.warmup_updates, "unit": "updates", "limit": 0, "limit_source": source}
        yield ok(f"warm-up of {_length(mine)}, where the baseline has none", where=at(job, "warmup_steps"), **kept)
        return
    if not ratios:
        yield skip("not measured: needs warmup_steps or warmup_tokens of both plan and baseline")
        return
    longest = max(ratios.values())
    said = " and ".join(f"{times(ratio)} the baseline's in {unit}" for unit, ratio in ratios.items())
    text = f"warm-up of {_length(mine)}: {said}"
    limit = limits.warmup_ratio
    kept = {"measured": longest, "unit": "of the baseline", "limit": limit.bound(longest), "limit_source": limit.source}
    where = at(job, "warmup_steps", "warmup_tokens")
    if limit.judge(longest) is Status.PASS:
        yield ok(text, where=where, **kept)
        return
    remedy = Remedy(text=f"Warm up over as many tokens as the baseline did: {_length(good)}.")
    yield warn("lr.warmup-too-short", text, where=where, remedy=remedy, **kept)


def _warmup_ratios(mine: JobNumbers, good: JobNumbers) -> dict[str, float]:
    """Planned over baseline, for every unit that both have; samples stand in where no sequence length is given."""
    pairs = {
        "updates": (mine.warmup_updates, good.warmup_updates),
        "tokens": (mine.warmup_tokens, good.warmup_tokens),
    }
    if not (mine.warmup_tokens and good.warmup_tokens):
        pairs["samples"] = (_samples(mine), _samples(good))
    return {unit: a / b for unit, (a, b) in pairs.items() if a is not None and b}


def _samples(run: JobNumbers) -> float | None:
    return run.warmup_updates * run.global_batch if run.warmup_updates and run.global_batch else None


def _length(run: JobNumbers) -> str:
    parts = [f"{run.warmup_updates:.4g} updates"] if run.warmup_updates is not None else []
    parts += [f"{run.warmup_tokens:.3g} tokens"] if run.warmup_tokens is not None else []
    return ", ".join(parts)


def _no_warmup(job: JobPlan, good: JobNumbers) -> Iterator[Finding]:
    """None at all is a fault where the baseline had one, or where the learning rate was raised above its own."""
    mine = job.planned
    had = good.warmup_updates or good.warmup_tokens
    raised = bool(mine.lr and good.lr and mine.lr > good.lr * 1.01)
    kept = {"measured": 0.0, "unit": "updates", "limit": good.warmup_updates, "limit_source": "the baseline's warm-up"}
    where = at(job, "warmup_steps", "warmup_tokens")
    if not had and not raised:
        yield ok("no warm-up, as in the baseline, at no higher learning rate", where=where, **kept)
        return
    why = f"the baseline warms up over {_length(good)}" if had else "the learning rate is raised above the baseline's"
    remedy = Remedy(text="Warm up from the baseline's learning rate over at least as many tokens as the baseline did.")
    yield warn("lr.warmup-missing", f"no warm-up is planned, and {why}", where=where, remedy=remedy, **kept)


@check(
    "lr.schedule-fits",
    asks="Do warm-up and schedule end when the run does?",
    plant=(
        plant("a schedule four times the run", "lr.decay-unfinished", decay_steps=32768),
        plant("a schedule that ends at half the run", "lr.zero-before-end", decay_steps=4096),
        plant("a warm-up longer than the run", "lr.warmup-too-long", warmup_steps=9000),
    ),
)
def schedule_fits(job: JobPlan) -> Iterator[Finding]:
    """At k times the batch and the same epochs a run has 1/k of the updates; schedules written in updates must follow.

    Needs no baseline, so a PASS here does not answer question 3; a fault does.
    """
    run = job.planned
    if run.updates is None or (run.warmup_updates is None and run.decay_updates is None):
        yield skip("not measured: needs steps (or epochs, dataset_samples and the batch), and warm-up or decay_steps")
        return
    kept = {"unit": "updates", "limit": run.updates, "limit_source": "updates of the planned run"}
    clean = True
    if run.warmup_updates is not None and run.warmup_updates >= run.updates:
        clean = False
        text = f"warm-up takes {run.warmup_updates:.6g} updates of a run of {run.updates}: the peak is never reached"
        where = at(job, "warmup_steps", "warmup_tokens")
        yield warn("lr.warmup-too-long", text, question="lr", where=where, measured=run.warmup_updates, **kept)
    if run.decay_updates is not None and not 0.98 <= run.decay_updates / run.updates <= 1.02:
        clean = False
        early = run.decay_updates < run.updates
        what = "then stays at its end value" if early else "and is cut off before it has come down"
        text = f"the schedule is {run.decay_updates} updates long, the run {run.updates}: it decays, {what}"
        id = "lr.zero-before-end" if early else "lr.decay-unfinished"
        yield warn(id, text, question="lr", where=at(job, "decay_steps"), measured=run.decay_updates, **kept)
    if clean:
        said = [f"warm-up {run.warmup_updates:.6g}"] if run.warmup_updates is not None else []
        said += [f"decay {run.decay_updates}"] if run.decay_updates is not None else []
        measured = run.decay_updates or run.warmup_updates
        yield ok(f"{' and '.join(said)} fit a run of {run.updates} updates", measured=measured, **kept)
