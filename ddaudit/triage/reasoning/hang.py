"""Ranks wait in a collective: who did not come, or came with something else, and what it was doing instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddaudit.evidence.incident import Collective, Event, Spot
from ddaudit.triage.reasoning.case import Candidate, Case, Confidence, Tier, cite
from ddaudit.triage.reasoning.stacks import Doing, collective_name, doing, in_collective, main_stack
from ddaudit.triage.reasoning.storage import came_back
from ddaudit.triage.reasoning.waiting import Absent, absent, odd_ones

__all__ = ["judge"]

_EPOCH_END = re.compile(
    r"(?i)\b(?:end of epoch|epoch \d+ (?:done|finished|end|over|complete)\w*|(?:finished|completed"
    r"|done with) epoch|epoch_end|end_epoch|StopIteration|(?:loader|iterator|dataset|data) (?:is )?exhausted"
    r"|no more (?:batches|data|samples))\b"
)
_BATCHES = re.compile(
    r"(?i)(?:(?P<n>\d{1,9}) (?:train(?:ing)? )?(?:batches|samples|shards|examples|minibatches|iterations"
    r"|steps) (?:this|per|in|for|of)? ?(?:the |this )?(?:epoch|loader|rank|dataset)?"
    r"|(?:len\((?:train_?)?(?:loader|dataloader|dl|dataset)\)|num_?batches|n_?batches|batches(?: per epoch)?"
    r"|num_?samples|dataset size|shard size)[ =:]{1,3}(?P<m>\d{1,9})"
    r"|after (?P<k>\d{1,9}) (?:batches|iterations|steps))"
)


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates for a hang, from the most telling evidence down to the stacks alone."""
    yield from _fingerprints(case)
    if not case.hung:
        return
    uneven = _uneven(case)
    if uneven is not None:
        yield uneven
    odd = odd_ones(case)
    if odd is not None:
        yield _mismatch(case, *odd)
        return
    missing = absent(case) or _by_stacks(case) or _by_states(case)
    if missing is None or not missing.seq:
        named = _other_collective(case)
        if named is not None:
            yield named
            return
    if missing is not None:
        yield from _missing(case, missing)


def _fingerprints(case: Case) -> Iterator[Candidate]:
    """Texts that compare two ranks themselves: debug mode DETAIL, NCCL's and gloo's size checks."""
    events = case.of("pg-mismatch")
    if events:
        fields = events[0].fields
        shape = [re.search(r"TensorShape=\[([^\]]*)\]", fields.get(k, "")) for k in ("fa", "fb")]
        ops = [re.search(r"OpType=(\w+)", fields.get(k, "")) for k in ("fa", "fb")]
        same = ops[0] and ops[1] and ops[0][1] == ops[1][1]
        cause = (
            "collective.mismatch-size"
            if same and shape[0] and shape[1] and shape[0][1] != shape[1][1]
            else "collective.mismatch-op"
        )
        odd = _named_odd(events)
        why = f"ranks call different collectives{f': rank {odd} differs from the others' if odd is not None else ''}"
        yield Candidate(cause, Tier.OWN_ERROR, why, cite(e.spot for e in events), odd, case.host_of(odd))
    sizes = case.of("nccl-trunc", "gloo-size")
    if sizes and not events:
        ranks = {e.rank for e in sizes if e.rank is not None}
        odd = next(iter(ranks)) if len(ranks) == 1 and len(case.incident.ranks) == 2 else None
        yield Candidate(
            "collective.mismatch-size",
            Tier.OWN_ERROR,
            "two ranks disagree about the size of one message",
            cite(e.spot for e in sizes),
            odd,
            case.host_of(odd),
        )
    yield from _divergence(case)
    exhausted = case.of("uneven-inputs")
    if exhausted:
        odd = _fewest(case)
        yield Candidate(
            "data.uneven-shards",
            Tier.OWN_ERROR,
            "a rank ran out of batches before the others",
            cite(e.spot for e in exhausted[:3]),
            odd,
            case.host_of(odd),
        )


def _divergence(case: Case) -> Iterator[Candidate]:
    """DDP's own comparison of models: every rank tells its parameter count and that of a rank which differs."""
    events = case.of("ddp-params")
    if not events:
        return
    counts: dict[int, object] = {}
    for event in events:
        for who, what in (("a", "na"), ("b", "nb")):
            if event.fields.get(who, "").isdigit():
                counts[int(event.fields[who])] = event.fields.get(what)
    odd = case.minority(counts) if len(counts) > 2 else []
    raisers = {e.rank for e in events if e.rank is not None}
    world = case.incident.world_size or len(case.incident.ranks)
    if not odd and not counts and len(raisers) == 1 and world > 2:
        odd = sorted(raisers)
    elif not odd and not counts and world > 2 and len(raisers) == world - 1:
        odd = sorted(set(range(world)) - raisers)
    rank = odd[0] if len(odd) == 1 else None
    why = f"{f'rank {rank}' if rank is not None else 'a rank'} built another model than the others"
    yield Candidate(
        "model.rank-divergence", Tier.OWN_ERROR, why, cite(e.spot for e in events[:4]), rank, case.host_of(rank)
    )


def _named_odd(events: list[Event]) -> int | None:
    """The rank whose fingerprint differs from that of two or more others."""
    prints: dict[int, str] = {}
    for event in events:
        for who, what in (("a", "fa"), ("b", "fb")):
            if event.fields.get(who, "").isdigit():
                prints.setdefault(int(event.fields[who]), event.fields.get(what, ""))
    if len(prints) < 3:
        return None
    for rank, text in prints.items():
        others = {t for r, t in prints.items() if r != rank}
        if len(others) == 1 and text not in others:
            return rank
    return None


def _mismatch(case: Case, kind: str, odd: list[int], at: dict[int, Collective]) -> Candidate:
    cause = "collective.mismatch-op" if kind == "op" else "collective.mismatch-size"
    rank = odd[0] if len(odd) == 1 else None
    seq = next(iter(at.values())).seq
    words = ", ".join(sorted({f"{_who(at, c)}: {c.op} of {c.numel_in} elements" for c in at.values()}))
    why = f"at collective {seq} the ranks differ ({words})"
    others = [c for r, c in at.items() if r not in odd]
    mine = [at[r] for r in odd]
    timeouts = [case.timeouts[r] for r in (*odd, *(r for r in at if r not in odd)) if r in case.timeouts]
    frames = [
        s
        for c in (*mine, *(case.timeouts[r] for r in odd if r in case.timeouts))
        for s in c.frame_spots
        if "torch/distributed" not in s.text
    ]
    spots = cite((c.spot for c in mine), (c.spot for c in timeouts[:2]), frames[:2], (c.spot for c in others[:2]))
    if kind == "op" and rank is not None and (early := _left_loop(case, rank, at)):
        return Candidate(
            "data.uneven-shards",
            Tier.HANG,
            f"{why}; rank {rank} had left the training loop",
            cite(early, spots),
            rank,
            case.host_of(rank),
        )
    low = min((c.stamp.time_s - (c.ran_ms or 0) / 1000 for c in case.timeouts.values() if c.stamp), default=None)
    return Candidate(cause, Tier.HANG, why, spots, rank, case.host_of(rank), time_s=low)


def _who(at: dict[int, Collective], entry: Collective) -> str:
    ranks = sorted(r for r, c in at.items() if (c.op, c.numel_in) == (entry.op, entry.numel_in))
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


def _left_loop(case: Case, rank: int, at: dict[int, Collective]) -> list[Spot]:
    """Lines or frames that show the odd rank past the end of its epoch while the others train on."""
    entry = at[rank]
    frames = [
        f
        for f in (*entry.frames, *(case.timeouts[rank].frames if rank in case.timeouts else ()))
        if _EPOCH_END.search(f)
    ]
    others = [f for r, c in at.items() if r != rank for f in c.frames if _EPOCH_END.search(f)]
    if frames and not others:
        return [entry.spot]
    return []


def _fewest(case: Case) -> int | None:
    counts = {r: n for r, (n, _) in _batch_counts(case).items()}
    odd = case.minority(dict(counts))
    return odd[0] if len(odd) == 1 else None


def _batch_counts(case: Case) -> dict[int, tuple[int, Spot]]:
    """Number of batches that each rank says it has (or ended its epoch after)."""
    counts: dict[int, tuple[int, Spot]] = {}
    for note in case.incident.rank_notes:
        found = _BATCHES.search(note.text)
        if found and note.rank is not None:
            counts[note.rank] = (int(found["n"] or found["m"] or found["k"]), note.spot)
    return counts


def _uneven(case: Case) -> Candidate | None:
    """Ranks that printed different numbers of batches, in a job that hung."""
    counts = _batch_counts(case)
    odd = case.minority({r: n for r, (n, _) in counts.items()})
    if not odd:
        return _epoch_over(case)
    common = next(n for r, (n, _) in counts.items() if r not in odd)
    missing = absent(case)
    fewer = [r for r in odd if counts[r][0] < common]
    rank = odd[0] if len(odd) == 1 else None
    if (
        missing is not None
        and missing.ranks
        and len(odd) == 1
        and odd[0] not in missing.ranks
        and fewer
        and odd_ones(case) is None
    ):
        return None
    who = f"rank {rank} has" if rank is not None else f"ranks {odd} have"
    why = f"{who} {counts[odd[0]][0]} batches, the others {common}"
    others = [s for r, (_, s) in counts.items() if r not in odd]
    return Candidate(
        "data.uneven-shards",
        Tier.OWN_ERROR,
        why,
        cite((counts[r][1] for r in odd), others[:2]),
        rank,
        case.host_of(rank),
    )


def _epoch_over(case: Case) -> Candidate | None:
    """A minority of ranks said that its epoch had ended, and the others hang in the middle of theirs."""
    ended: dict[int, Spot] = {
        n.rank: n.spot for n in case.incident.rank_notes if n.rank is not None and _EPOCH_END.search(n.text)
    }
    waited = set(case.timeouts) - set(ended)
    if not ended or 2 * len(ended) >= len(ended) + len(waited) or not waited:
        return None
    rank = next(iter(ended)) if len(ended) == 1 else None
    who = f"rank {rank}" if rank is not None else f"ranks {sorted(ended)}"
    why = f"{who} had ended the epoch while the others were still in it"
    waits = [case.timeouts[r].spot for r in sorted(waited)[:2]]
    return Candidate("data.uneven-shards", Tier.OWN_ERROR, why, cite(ended.values(), waits), rank, case.host_of(rank))


def _by_stacks(case: Case) -> Absent | None:
    """No time-out yet, but stacks of several ranks: those outside of a collective while most wait in one."""
    ranks = sorted({s.rank for s in case.incident.stacks if s.rank is not None and s.main})
    mains = {r: s for r in ranks if (s := main_stack(case, r)) is not None}
    outside = tuple(r for r, s in mains.items() if not in_collective(s))
    if outside and len(mains) > 1 and 2 * len(outside) < len(mains):
        return Absent(outside, True, None, tuple(mains[r].spots[0] for r in outside))
    tops = {r: s.frames[:1] for r, s in mains.items()}
    odd = case.minority(dict(tops)) if not outside else []
    if len(odd) == 1 and len(mains) > 2:
        return Absent((odd[0],), True, None, mains[odd[0]].spots[:2])
    return None


def _by_states(case: Case) -> Absent | None:
    """No stacks: the ranks whose process is stopped or asleep in the kernel, while the others only wait."""
    rows = {p.pid: p for p in case.incident.processes}
    own = {r.rank: rows[r.pid] for r in case.incident.ranks.values() if r.pid in rows}
    odd = tuple(sorted(r for r, p in own.items() if p.state[:1] in "TtD"))
    if odd and 2 * len(odd) < len(own):
        return Absent(odd, True, None, tuple(own[r].spot for r in odd))
    return None


def _other_collective(case: Case) -> Candidate | None:
    """Stacks that show a minority of ranks in another collective than the rest."""
    mains = {r: s for r in case.incident.ranks if (s := main_stack(case, r)) is not None}
    names: dict[int, object] = {r: name for r, s in mains.items() if (name := collective_name(s)) is not None}
    odd = case.minority(names)
    if len(odd) != 1:
        return None
    rank = odd[0]
    others = next(n for r, n in names.items() if r != rank)
    why = f"rank {rank} is in {names[rank]}, the others are in {others}"
    spots = cite(mains[rank].spots[:4], *(mains[r].spots[:1] for r in names if r != rank))
    return Candidate("collective.mismatch-op", Tier.HANG, why, spots, rank, case.host_of(rank))


def _missing(case: Case, missing: Absent) -> Iterator[Candidate]:
    """One candidate for the rank that did not come: the cause is what it does instead."""
    rank = missing.ranks[0] if len(missing.ranks) == 1 else None
    hosts = {case.host_of(r) for r in missing.ranks}
    host = next(iter(hosts)) if len(hosts) == 1 else None
    acts = [a for r in missing.ranks if (a := doing(case, r)) is not None]
    storage = _storage(case, host, missing)
    low = min((c.stamp.time_s - (c.ran_ms or 0) / 1000 for c in case.timeouts.values() if c.stamp), default=None)
    who = f"rank {rank}" if rank is not None else f"ranks {', '.join(map(str, missing.ranks[:8]))}"
    seq = f" collective {missing.seq}" if missing.seq is not None else ""
    act = acts[0] if acts else _hint(case, missing)
    if (
        act is not None
        and act.cause in ("data.loader-stalled", "storage.fs-hang")
        and storage
        and act.cause == "storage.fs-hang"
    ):
        act = Doing("storage.fs-hang", act.words + "; the kernel reports its file system", (*storage, *act.spots))
    elif storage and (act is None or act.cause in ("collective.desync", "app.deadlock", "data.loader-stalled")):
        act = Doing(
            "storage.fs-hang", "has a file system that does not answer", (*storage, *(act.spots if act else ()))
        )
    if act is None and not missing.known:
        return
    cause = act.cause if act else "collective.desync"
    why = f"{who} never enqueued{seq}" + (
        f": it {act.words}" if act else " while the others waited in it; nothing shows what it did"
    )
    waits = [c.spot for c in case.timeouts.values()][:2]
    spots = cite(act.spots if act else (), missing.spots, _own_lines(case, missing), waits)
    confidence: Confidence = "high" if act and missing.known else "medium"
    yield Candidate(cause, Tier.HANG, why, spots, rank, host, confidence=confidence, time_s=low)


def _hint(case: Case, missing: Absent) -> Doing | None:
    """What the missing rank's own log says, short of an exception."""
    order = ("lock-wait", "dl-wait-log", "fs-wait-log", "pg-stuck", "pg-gil", "loader-fork", "eio", "estale")
    for signature in order:
        events = [e for e in case.of(signature) if e.rank in missing.ranks]
        if events:
            return Doing(events[0].cause, f"says so itself ({signature})", tuple(e.spot for e in events[:2]))
    return None


def _storage(case: Case, host: str | None, missing: Absent) -> list[Spot]:
    """Kernel lines in the job's time about a file system of the missing rank's host that did not come back."""
    pids = {case.incident.ranks[r].pid for r in missing.ranks if r in case.incident.ranks}
    spots = []
    for event in case.events:
        if event.cause != "storage.fs-hang" or not event.kernel or event.host not in (None, host):
            continue
        if case.when(event) == "out" or (case.when(event) == "maybe" and event.pid not in pids):
            case.reject(event, "outside the job's time")
        elif came_back(case, event):
            case.reject(event, "the server answered again")
        else:
            spots.append(event.spot)
    return spots


def _own_lines(case: Case, missing: Absent) -> list[Spot]:
    return [e.spot for e in case.events if e.rank in missing.ranks and e.handled and e.cause][:2]
