"""Can training continue: at the right step, with every optimizer shard, at the right data position?"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import CheckpointFacts, Finding, Where, check, ok, skip

from ._checkpoint_common import faults, finding, home, spoken
from ._checkpoint_plants import (
    lost_optimizer,
    lost_rank_rng,
    lost_sampler,
    lost_scaler,
    lost_schedule,
    no_squares,
    old_optimizer,
)
from ._checkpoint_sampler import judge_positions
from ._checkpoint_steps import judge_steps


def _resumable(facts: CheckpointFacts) -> bool:
    """Exports and loader states are not meant to be resumed from, so nothing is missing in them."""
    return facts.purpose == "training"


@check(
    "checkpoint.optimizer",
    question="checkpoint",
    plant=(lost_optimizer, no_squares),
    asks="Does every parameter have its optimizer state, whole and of the right shape?",
)
@spoken("optimizer: nothing to ask of this checkpoint")
def optimizer(facts: CheckpointFacts) -> Iterator[Finding]:
    """Coverage by name or by number, shapes, dtypes, aliases, master weights against weights, every rank's shard."""
    found = list(faults(facts, "optimizer"))
    yield from found
    area, measured = facts.area("optimizer"), facts.optimizer
    if not _resumable(facts) or area is None:
        return
    config = facts.facts
    if unread := config.get("master_unread"):
        yield skip(f"not measured: {unread:,} weights were not held against their master weights, "
                   "of which the first 2 GiB are read a second time")  # fmt: skip
    absent = not area.present or (measured is None and area.count < 2)
    if absent and not any(f.id.endswith("optimizer.absent") for f in found):
        why = f" ({area.note})" if area.note else ""
        text = f"no optimizer state is in {home(facts, 'optimizer')}{why}: moments would start from zero"
        yield finding("optimizer.absent", text, where=Where(file=home(facts, "optimizer"), key="optimizer"))
    elif "optimizer" in config.get("verl_missing", ()):
        yield finding("optimizer.absent", "no optim_* files", where=Where(file=home(facts, "optimizer"), key="optim"))
    elif (moved := _bound_to_layout(facts)) is not None:
        yield moved
    elif not found and measured is not None:
        yield ok(
            f"{measured.covered:,} parameters have {', '.join(measured.moments) or 'state'}",
            measured=measured.covered,
            unit="parameter",
            limit=measured.declared,
            limit_source="param_groups",
        )


def _bound_to_layout(facts: CheckpointFacts) -> Finding | None:
    """Megatron's default optimizer sharding loads only under the tensor- and pipeline-parallel sizes of the save."""
    target, world = facts.target, facts.world
    if target is None or facts.facts.get("optimizer_sharding") != "dp_reshardable":
        return None
    saved, wanted = (world.tp or 1, world.pp or 1), (target.tp or 1, target.pp or 1)
    if saved == wanted:
        return None
    text = (
        f"optimizer state is dp_reshardable: saved with tp {saved[0]} "
        f"x pp {saved[1]}, not loadable with {wanted[0]} x {wanted[1]}"
    )
    return finding(
        "optimizer.target", text, measured=str(wanted), limit=str(saved), limit_source="distrib_optim_sharding_type"
    )


@check(
    "checkpoint.step",
    question="checkpoint",
    plant=old_optimizer,
    asks="Do all counters agree on one step, after their units are taken into account?",
)
@spoken("step: nothing to ask of this checkpoint")
def step(facts: CheckpointFacts) -> Iterator[Finding]:
    """Step consensus: loader's step, per-parameter optimizer steps, schedule, samples, folder name, every rank."""
    found = list(faults(facts, "step"))
    yield from found
    if not _resumable(facts):
        return
    judged = list(judge_steps(facts))
    yield from judged
    main = [s for s in facts.steps if s.main]
    if main and not any(f.bad for f in (*found, *judged)):
        number = len([s for s in facts.steps if s.tensor_of])
        yield ok(
            f"step {main[0].value:g} ({main[0].name}); {number} optimizer steps agree",
            measured=main[0].value,
            unit="update",
            limit=main[0].value,
            limit_source=main[0].name,
        )


@check(
    "checkpoint.sampler",
    question="checkpoint",
    plant=lost_sampler,
    asks="Is the data position stored, for every rank, and does it fit the step?",
)
@spoken("sampler: nothing to ask of this checkpoint")
def sampler(facts: CheckpointFacts) -> Iterator[Finding]:
    """Position arithmetic with the number of samples that would be repeated or lost, also for another world size."""
    found = list(faults(facts, "sampler"))
    yield from found
    if facts.purpose not in ("training", "loader-state"):
        return
    judged = list(judge_positions(facts))
    yield from judged
    area = facts.area("sampler")
    if (
        area is not None
        and not any(f.bad for f in (*found, *judged))
        and not any(f.status.value == "PASS" for f in judged)
    ):
        note = area.note or "stored and consistent with the step"
        yield ok(f"data position: {note}", measured=len(facts.positions), unit="position")


@check("checkpoint.schedule", question="checkpoint", plant=lost_schedule, asks="Is the learning-rate schedule stored?")
@spoken("schedule: nothing to ask of this checkpoint")
def schedule(facts: CheckpointFacts) -> Iterator[Finding]:
    """Without it the schedule restarts, or depends on the script rebuilding it from the step."""
    yield from faults(facts, "schedule")
    area = facts.area("schedule")
    if not _resumable(facts) or area is None:
        return
    where = Where(file=home(facts, "schedule"), key="scheduler")
    if area.present:
        yield ok(f"schedule: {area.keys[0]} and {area.count - 1} more", measured=area.count, unit="value")
    elif area.promise == "unsaved":
        yield finding("schedule.unsaved", f"no schedule state: {area.note}", where=where)
    elif area.promise == "required" or facts.rich:
        yield finding(
            "schedule.missing",
            f"no schedule state is in {home(facts, 'schedule')}: the learning rate would restart",
            where=where,
        )
    else:
        text = "no schedule state: the script saves model, optimizer and step only"
        yield finding("schedule.unsaved", text, where=where)


@check("checkpoint.rng", question="checkpoint", plant=lost_rank_rng, asks="Is the random state of every rank stored?")
@spoken("rng: nothing to ask of this checkpoint")
def rng(facts: CheckpointFacts) -> Iterator[Finding]:
    """Its absence makes a resume not reproducible; many frameworks never save it, which is said, not held against
    them."""
    found = list(faults(facts, "rng"))
    yield from found
    area = facts.area("rng")
    if not _resumable(facts) or area is None or found:
        return
    if area.present:
        yield ok(f"random state: {area.keys[0]} and {area.count - 1} more", measured=area.count, unit="value")
    else:
        reason = area.note or "none is stored"
        text = f"random state: {reason}; dropout and shuffling will not repeat exactly"
        yield finding("rng.missing", text, where=Where(file=home(facts, "rng"), key="rng"))


@check(
    "checkpoint.scaler", question="checkpoint", plant=lost_scaler, asks="Is the loss scale stored where fp16 needs it?"
)
@spoken("scaler: nothing to ask of this checkpoint")
def scaler(facts: CheckpointFacts) -> Iterator[Finding]:
    """Only fp16 runs have one; a restart at the default scale of 65,536 overflows for some steps."""
    yield from faults(facts, "scaler")
    area = facts.area("scaler")
    if not _resumable(facts) or area is None:
        return
    if area.present:
        yield ok("loss scale stored", measured=area.count, unit="value")
    elif facts.facts.get("fp16") is True and area.promise != "unsaved":
        text = "the run trains in fp16, but no loss scaler is stored"
        yield finding("scaler.missing", text, where=Where(file=home(facts, "scaler"), key="scaler"))
