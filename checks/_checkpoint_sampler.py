"""Data positions: what must be there, for which ranks, and how many samples a resume would repeat or lose.

With R data-parallel ranks, micro-batch b and A micro-batches an update, each rank has read ``s * A * b`` samples after
``s`` updates of an epoch, all ranks together R times that. DistributedSampler deals ``indices[rank::R]``, so equal
progress ``k`` on all ranks consumes exactly the first ``k * R`` entries of the epoch's order: a change to R' is exact
when R' divides ``k * R``.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import CheckpointFacts, Finding, Position, Where, ok

from ._checkpoint_common import finding, home


def judge_positions(facts: CheckpointFacts) -> Iterator[Finding]:
    """The verdict table: presence, then each position, then the target's layout."""
    area, step = facts.area("sampler"), _step(facts)
    if facts.purpose == "training" and (area is None or not area.present):
        yield from _absent(facts, step)
        return
    yield from _impossible(facts)
    yield from _between_ranks(facts)
    bad = False
    for position in facts.positions[:1000]:
        for item in _one(facts, position, step):
            bad = True
            yield item
    if not bad:
        yield from _unplaced(facts, step)
        yield from _target(facts, step)


def _unplaced(facts: CheckpointFacts, step: float | None) -> Iterator[Finding]:
    """States with an epoch but no position: exact at an epoch's end, and nowhere else."""
    if not facts.positions or any(p.samples is not None or p.batches is not None for p in facts.positions):
        return
    epochs = _epochs(facts, step)
    if not step or (epochs and epochs == int(epochs)):
        return
    first = facts.positions[0]
    text = f"{first.name} holds an epoch but no position: within an epoch all its samples would be read again"
    yield finding("sampler.no-position", text, where=Where(file=first.file, key=first.name))


def _step(facts: CheckpointFacts) -> float | None:
    return next((s.value for s in facts.steps if s.main and s.unit == "update"), None)


def _each(facts: CheckpointFacts, step: float | None) -> float | None:
    """Samples that one rank has read after ``step`` updates."""
    world = facts.world
    if step is None:
        return None
    if world.micro_batch:
        return step * world.micro_batch * (world.accumulation or 1)
    ranks = world.dp or world.ranks
    return step * world.global_batch / ranks if world.global_batch and ranks else None


def _absent(facts: CheckpointFacts, step: float | None) -> Iterator[Finding]:
    """No position at all: lost, recomputed by the framework, or never saved by a minimal script."""
    area = facts.area("sampler")
    promise = area.promise if area is not None else "expected"
    note = f": {area.note}" if area is not None and area.note else ""
    where = Where(file=home(facts, "sampler"), key="sampler")
    each = _each(facts, step)
    ranks = facts.world.dp or facts.world.ranks or 1
    lost = f"; {each * ranks:,.0f} samples would be read again" if each else ""
    if promise == "recomputed":
        yield from _recomputed(facts, step, note)
    elif promise == "unsaved":
        yield finding("sampler.unsaved", f"no data position{note}{lost}", where=where)
    elif promise == "required" or facts.rich:
        measured = each * ranks if each else None
        yield finding(
            "sampler.missing",
            f"no sampler or loader state is stored{note}{lost}",
            where=where,
            measured=measured,
            limit=0,
            unit="sample",
            limit_source="samples read since the epoch began",
        )
    else:
        text = f"no data position is stored: the script saves model, optimizer and step only{lost}"
        yield finding("sampler.unsaved", text, where=where)


def _recomputed(facts: CheckpointFacts, step: float | None, note: str) -> Iterator[Finding]:
    target = facts.target
    before, after = facts.world.dp or facts.world.ranks, (target.dp or target.ranks) if target is not None else None
    if before and after and before != after:
        each = _each(facts, step)
        text = f"the position is recomputed from the step, but {before} ranks become {after}"
        moved = abs(after - before) * each if each else None
        yield finding(
            "sampler.target",
            text + (f": about {moved:,.0f} samples are repeated or lost" if moved else ""),
            measured=moved,
            limit=0,
            unit="sample",
            limit_source="same world size and batch",
        )
    else:
        yield ok(f"data position is recomputed on resume{note}", measured=step, unit="update")


def _impossible(facts: CheckpointFacts) -> Iterator[Finding]:
    for p in facts.positions:
        if any(n is not None and n < 0 for n in (p.samples, p.batches, p.epoch)):
            yield finding(
                "sampler.impossible",
                f"{p.name} holds a negative position",
                where=Where(file=p.file, key=p.name, rank=p.rank),
            )
        if p.length and p.samples is not None and p.samples > p.length:
            text = f"{p.name} has read {p.samples:,} of {p.length:,} samples"
            yield finding(
                "sampler.beyond-epoch",
                text,
                where=Where(file=p.file, key=p.name, rank=p.rank),
                measured=p.samples,
                limit=p.length,
                unit="sample",
                limit_source="dataset length",
            )


def _between_ranks(facts: CheckpointFacts) -> Iterator[Finding]:
    """All ranks read equally far; one state for several ranks hides what the others did."""
    ranked = [p for p in facts.positions if p.rank is not None]
    kinds: dict[str, dict[int, Position]] = {}
    for p in ranked:
        kinds.setdefault(p.kind, {})[p.rank or 0] = p
    for positions in kinds.values():
        seen = {(p.samples, p.batches) for p in positions.values()}
        if len(seen) > 1:
            low = min(positions.values(), key=lambda p: (p.samples or 0, p.batches or 0))
            high = max(positions.values(), key=lambda p: (p.samples or 0, p.batches or 0))
            text = (
                f"rank {low.rank} has read {_amount(low)}, rank {high.rank} {_amount(high)}: "
                "samples would be repeated on one and lost on the other"
            )
            yield finding(
                "sampler.ranks-differ",
                text,
                where=Where(file=low.file, key=low.name, rank=low.rank),
                measured=low.samples if low.samples is not None else low.batches,
                limit=high.samples if high.samples is not None else high.batches,
            )
    ranks = facts.world.dp or facts.world.ranks
    loaders = [p for p in facts.positions if p.kind == "loader"]
    if ranks and ranks > 1 and len(loaders) == 1 and loaders[0].rank is None and facts.layout == "accelerate":
        text = f"one loader state for {ranks} ranks: the last writer's; ranks at other positions are lost"
        yield finding(
            "sampler.one-for-all",
            text,
            where=Where(file=loaders[0].file, key=loaders[0].name),
            measured=1,
            limit=ranks,
            unit="state",
            limit_source="data-parallel ranks",
        )


def _amount(p: Position) -> str:
    return f"{p.samples:,} samples" if p.samples is not None else f"{p.batches or 0:,} batches"


def _one(facts: CheckpointFacts, p: Position, step: float | None) -> Iterator[Finding]:
    """One position against the step. A position within a later epoch may be smaller; it may never be larger."""
    where = Where(file=p.file, key=p.name, rank=p.rank)
    if p.kind in ("consumed", "loop"):
        yield from _consumed(facts, p, step, where)
        return
    epochs = max(_epochs(facts, step), float(facts.facts.get("epoch") or 0))
    later = (p.epoch or 0) > 0 or epochs >= 1
    off = _samples_off(facts, p, step, where, later) or (None if later else _batches_off(facts, p, step, where))
    if off is not None:
        yield off
        return
    if p.samples is not None and p.batches and (p.samples % p.batches) and not later:
        text = f"{p.name}: {p.samples:,} samples in {p.batches:,} batches do not divide"
        yield finding("sampler.position-mismatch", text, where=where, measured=p.samples, unit="sample")
    if epochs >= 1 and p.epoch is None and p.kind == "loader" and not p.seed:
        text = f"{p.name} stores no epoch, and the run is in epoch {int(epochs)}"
        yield finding("sampler.no-epoch", text, where=where)


def _samples_off(facts: CheckpointFacts, p: Position, step: float | None, where: Where, later: bool) -> Finding | None:
    """Samples of one rank, or (where nothing says which) of all ranks together."""
    each, world = _each(facts, step), facts.world
    if p.samples is None or each is None:
        return None
    wanted = {each} if p.scope == "rank" else {each, each * (world.dp or world.ranks or 1)}
    micro = facts.facts.get("micro_batches")
    if micro and world.micro_batch:
        wanted.add(float(micro) * world.micro_batch)
    if p.samples in wanted or (later and p.samples <= max(wanted)):
        return None
    return _off(p, p.samples, min(wanted, key=lambda w: abs(w - (p.samples or 0))), "sample", where, step)


def _batches_off(facts: CheckpointFacts, p: Position, step: float | None, where: Where) -> Finding | None:
    """Batches of one rank against its micro-batches; without accumulation on record, any whole multiple of the step."""
    if p.batches is None or not step:
        return None
    micro = facts.facts.get("micro_batches")
    counted = {s.value for s in facts.steps if s.unit == "micro-batch"}
    planned = step * facts.world.accumulation if facts.world.accumulation else 0
    wanted = counted or {float(n) for n in (micro, planned) if n}
    if wanted and p.batches not in wanted:
        return _off(p, p.batches, min(wanted, key=lambda w: abs(w - (p.batches or 0))), "batch", where, step)
    if not wanted and (p.batches % step or p.batches < step):
        return _off(p, p.batches, step, "batch", where, step)
    return None


def _epochs(facts: CheckpointFacts, step: float | None) -> float:
    return step / facts.updates_per_epoch if step and facts.updates_per_epoch else 0.0


def _off(p: Position, have: float, wanted: float, unit: str, where: Where, step: float | None) -> Finding:
    difference = wanted - have
    what = (
        f"{difference:,.0f} {unit}{'es' if unit == 'batch' else 's'} would be read again"
        if difference > 0
        else (f"{-difference:,.0f} {unit}{'es' if unit == 'batch' else 's'} would be skipped")
    )
    text = f"{p.name} stands at {have:,.0f}, step {step or 0:g} needs {wanted:,.0f} on each rank: {what}"
    return finding(
        "sampler.position-mismatch",
        text,
        where=where,
        measured=have,
        limit=wanted,
        unit=unit,
        limit_source="step x accumulation x micro-batch",
    )


def _consumed(facts: CheckpointFacts, p: Position, step: float | None, where: Where) -> Iterator[Finding]:
    """Samples of all ranks since the start. Batch ramp-up makes fewer, so only a note, unless another counter of
    samples bears the step out."""
    world = facts.world
    batch = world.global_batch
    if p.kind == "loop":
        return
    if batch is None and world.micro_batch and (world.dp or world.ranks):
        batch = world.micro_batch * (world.accumulation or 1) * (world.dp or world.ranks or 1)
    if p.samples is not None and step and batch and p.samples != step * batch:
        text = f"{p.name} is {p.samples:,}; {step:g} updates of {batch} samples are {step * batch:,.0f}"
        kind = "step.samples-mismatch"
        if witness := next((s.name for s in facts.steps if s.unit == "sample" and s.value == step * batch), None):
            lost = abs(step * batch - p.samples)
            what = "read again" if p.samples < step * batch else "skipped"
            kind, text = "sampler.position-mismatch", f"{text}, as {witness} says too: {lost:,.0f} would be {what}"
        yield finding(
            kind,
            text,
            where=where,
            measured=p.samples,
            limit=step * batch,
            unit="sample",
            limit_source="step x global batch",
        )


def _target(facts: CheckpointFacts, step: float | None) -> Iterator[Finding]:
    """Another number of data-parallel ranks: exact when it divides what all ranks have read together."""
    target = facts.target
    after = (target.dp or target.ranks) if target is not None else None
    before = facts.world.dp or facts.world.ranks
    each = _each(facts, step)
    if after is None or before is None or after == before:
        return
    stateful = [p for p in facts.positions if p.kind == "loader"]
    if stateful:
        text = (
            f"loader states of {before} ranks do not fit {after} ranks: "
            f"a rank's own count carried over is off by {before}/{after}"
        )
        yield finding(
            "sampler.target",
            text,
            where=Where(key=stateful[0].name),
            measured=after,
            limit=before,
            unit="rank",
            limit_source="ranks at save time",
        )
    elif each is not None:
        rest = int(each * before) % after
        if rest:
            text = (
                f"{each * before:,.0f} samples read by {before} ranks do not "
                f"divide by {after}: up to {after - 1} are repeated or lost"
            )
            yield finding("sampler.target", text, measured=rest, limit=0, unit="sample", limit_source="k x R mod R'")
        else:
            yield ok(
                f"position {each * before:,.0f} divides by {after} ranks: the resume can be exact",
                measured=0,
                unit="sample",
                limit=0,
            )
