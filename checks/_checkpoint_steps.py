"""Step consensus. Counters differ in unit and frameworks in convention, so equality is asked only after both."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ddaudit.api import CheckpointFacts, Finding, StepValue, Where

from ._checkpoint_common import finding, home

_UNBOUNDED = 2**59
_RANK = re.compile(r"rank[_-]?\d+")


def judge_steps(facts: CheckpointFacts) -> Iterator[Finding]:
    """Findings for every counter that cannot be reconciled with the main step."""
    main = [s for s in facts.steps if s.main]
    if not main:
        yield _missing(facts)
        return
    values = {s.value for s in main}
    if len(values) > 1:
        odd = Counter(s.value for s in main).most_common()[-1][0]
        one = next(s for s in main if s.value == odd)
        other = next(s for s in main if s.value != odd)
        text = (
            f"{one.name} is {one.value:g} but {other.name} is {other.value:g}: ranks or files come from different saves"
        )
        yield finding(
            "step.rank-mismatch",
            text,
            where=_where(one),
            measured=one.value,
            limit=other.value,
            unit="update",
            limit_source=other.name,
        )
    step = Counter(s.value for s in main).most_common(1)[0][0]
    yield from _directory(facts, step, main[0])
    yield from _optimizer(facts, step)
    yield from _others(facts, step)
    yield from _between_ranks(facts)


def _between_ranks(facts: CheckpointFacts) -> Iterator[Finding]:
    """Every rank runs as many micro-batches as the others, and every rank's schedule stands where the others' do."""
    counted: dict[tuple[str, str, str], list[StepValue]] = defaultdict(list)
    for item in facts.steps:
        if item.unit == "micro-batch" and item.rank is not None:
            counted[("", "", item.unit)].append(item)
            continue
        said = any(item.name.endswith(p.name) for p in facts.positions)  # and judged with the positions
        counter = item.tensor_of is None and not item.main and not said
        if counter and (item.unit == "sample" or item.lag[1] < _UNBOUNDED) and _RANK.search(item.file or ""):
            word = ".".join(item.name.split(".")[-2:])
            counted[(word, _RANK.sub("rank#", item.file or ""), item.unit)].append(item)
    for items in counted.values():
        low, high = (f(items, key=lambda s: s.value) for f in (min, max))
        if low.value != high.value:
            text = (
                f"{low.name} is {low.value:g}, {high.name} is {high.value:g}: the ranks' files are of different saves"
            )
            yield finding(
                "step.rank-mismatch", text, where=_where(low), measured=low.value, limit=high.value, unit=low.unit
            )


def _where(item: StepValue) -> Where:
    return Where(file=item.file, key=item.name, rank=item.rank, tensor=item.tensor_of)


def _missing(facts: CheckpointFacts) -> Finding:
    area = facts.area("step")
    note = f" ({area.note})" if area is not None and area.note else ""
    inferred = sorted({s.value for s in facts.steps if s.tensor_of})
    hint = f"; optimizer state says {inferred[-1]:g}" if inferred else ""
    text = f"no global step is stored{note}{hint}"
    kind = "step.unsaved" if area is not None and area.promise == "unsaved" else "step.missing"
    return finding(kind, text, where=Where(file=home(facts, "step"), key="global_step"))


def _directory(facts: CheckpointFacts, step: float, main: StepValue) -> Iterator[Finding]:
    named = facts.facts.get("directory_step")
    spelled = (facts.selected or facts.path).rstrip("/")
    ignored = facts.layout == "accelerate" or spelled.endswith("last.ckpt")
    # Lightning's own names say step=N; others are up to the user, and a save in a hook may be one behind.
    slack = facts.facts.get("step_slack", 0) + (1 if facts.layout == "lightning" else 0)
    ignored |= facts.layout == "lightning" and "step=" not in spelled.rsplit("/", 1)[-1]
    if named is None or ignored or main.unit != "update":
        return
    name = spelled.rsplit("/", 1)[-1]
    explicit = any(word in name for word in ("step", "checkpoint-", "iter", "ba"))
    if explicit and abs(named - step) > slack:
        text = f"the name {name} says step {named}, {main.name} says {step:g}"
        yield finding(
            "step.directory-mismatch",
            text,
            where=_where(main),
            measured=step,
            limit=named,
            unit="update",
            limit_source="folder name",
        )


def _optimizer(facts: CheckpointFacts, step: float) -> Iterator[Finding]:
    """Per-parameter steps: all equal to the updates made (skipped ones do not count), on every rank.

    A parameter that was frozen for a while, or an expert that no token reached, is behind: a minority of lower steps is
    reported as such only when it is not zero-progress everywhere.
    """
    steps = [s for s in facts.steps if s.tensor_of is not None and s.unit == "update"]
    if not steps:
        return
    optimizers = int(facts.facts.get("optimizers", 1) or 1)
    wanted = step - facts.skipped_updates
    allowed = {wanted, step} | {wanted / optimizers}
    off = [s for s in steps if s.value not in allowed]
    if not off or (optimizers > 1 and _shared(steps, wanted)):
        return
    by_value: dict[float, list[StepValue]] = defaultdict(list)
    for item in off:
        by_value[item.value].append(item)
    for value, items in sorted(by_value.items())[:5]:
        first = items[0]
        ranks = sorted({i.rank for i in items if i.rank is not None})
        place = f" (rank {', '.join(map(str, ranks[:8]))})" if ranks else ""
        text = (
            f"optimizer step {value:g} for {len(items)} of {len(steps)} "
            f"entries{place}, the checkpoint's step is {step:g}"
        )
        yield finding(
            "step.optimizer-mismatch",
            text,
            where=_where(first),
            measured=value,
            limit=wanted,
            unit="update",
            limit_source="global step minus skipped updates",
        )


def _shared(steps: list[StepValue], wanted: float) -> bool:
    """True when several optimizers, each with one step of its own, made the counted updates together.

    One without a step of its own (SGD) may have made the rest.
    """
    each: dict[str, set[float]] = defaultdict(set)
    for item in steps:
        each[(item.tensor_of or "").rpartition(".")[0]].add(item.value)
    return all(len(v) == 1 for v in each.values()) and sum(max(v) for v in each.values()) <= wanted


def _others(facts: CheckpointFacts, step: float) -> Iterator[Finding]:
    """Schedules, micro-batches, samples: each in its own unit."""
    done: set[tuple[str, float, str]] = set()
    for item in facts.steps:
        if item.name.endswith("opt_param_scheduler.num_steps"):
            yield from _schedule_samples(facts, item, step)
        twice = any(p.name == item.name or item.name.endswith(p.name) for p in facts.positions)
        if item.main or item.tensor_of is not None or item.lag[1] > _UNBOUNDED or twice:
            continue
        kind, wanted = _wanted(facts, item, step)
        (low, high), skipped = item.lag, facts.skipped_updates
        near = any(w - skipped + low <= item.value <= w + high for w in wanted)
        key = (kind, item.value, item.name.rsplit(".", 1)[-1])
        if wanted and not near and key not in done:
            done.add(key)
            right = " or ".join(f"{w:g}" for w in wanted)
            text = f"{item.name} is {item.value:g}; at step {step:g} it should be {right}"
            yield finding(kind, text, where=_where(item), measured=item.value, limit=wanted[0], unit=item.unit,
                          limit_source=f"step {step:g} in the counter's own unit")  # fmt: skip


def _schedule_samples(facts: CheckpointFacts, item: StepValue, step: float) -> Iterator[Finding]:
    """Megatron's schedule counts samples: never more than were consumed, and fewer only by whole skipped updates.

    Where iteration x global batch is what was consumed, two witnesses stand against the schedule; else nobody can say
    which number is wrong.
    """
    consumed = next((p.samples for p in facts.positions if p.kind == "consumed" and p.samples), None)
    batch = facts.world.global_batch
    if not consumed or item.value == consumed or (batch and item.value == step * batch):
        return
    agreed = bool(batch) and step * (batch or 0) == consumed
    text = f"{item.name} is {item.value:g}, but {consumed:,} samples were consumed"
    kind = None
    if agreed and (item.value > consumed or (consumed - item.value) % (batch or 1)):
        kind, text = "step.schedule-mismatch", f"{text}, as iteration {step:g} x global batch {batch} says too"
    elif not consumed / 2 <= item.value <= consumed or (agreed and not facts.facts.get("fp16")):
        kind = "step.samples-mismatch"
    if kind is not None:
        yield finding(kind, text, where=_where(item), measured=item.value, limit=consumed, unit="sample",
                      limit_source="args.consumed_train_samples")  # fmt: skip


def _wanted(facts: CheckpointFacts, item: StepValue, step: float) -> tuple[str, list[float]]:
    """(kind of fault, values that are right at ``step``) for one counter; no values where nothing can be said."""
    world = facts.world
    if item.unit == "sample":
        return "step.samples-mismatch", _samples(facts, step)
    if item.unit == "micro-batch":
        return "step.loop-mismatch", [step * world.accumulation] if world.accumulation else []
    if item.unit == "process-update":
        ranks = world.ranks or world.dp
        whole = item.value if step and not item.value % step and not ranks else None
        return "step.schedule-mismatch", [n for n in (step, step * ranks if ranks else None, whole) if n is not None]
    kind = "step.loop-mismatch" if "loop" in item.name else "step.schedule-mismatch"
    return kind, [step] if item.unit == "update" else []


def _samples(facts: CheckpointFacts, step: float) -> list[float]:
    """Samples at ``step``: of all ranks, or of one rank, as scripts count either."""
    world = facts.world
    wanted = []
    if world.global_batch:
        wanted.append(step * world.global_batch)
    if world.micro_batch:
        each = step * world.micro_batch * (world.accumulation or 1)
        wanted += [each, each * (world.dp or world.ranks or 1)]
    return sorted(set(wanted))
