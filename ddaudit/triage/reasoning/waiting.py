"""Who did not come: the ranks that never put the collective on their queue, as against those that waited in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddaudit.evidence.incident import Collective, Spot
from ddaudit.triage.reasoning.case import Case

__all__ = ["Absent", "absent", "entries_at", "odd_ones"]

#: Operations whose sizes differ between ranks by right (roots of scatters, uneven splits).
_UNEVEN = ("ALLTOALL", "GATHER", "SCATTER", "SEND", "RECV", "COALESCED")


@dataclass(frozen=True)
class Absent:
    """Ranks that did not enqueue collective ``seq``, how that is known, and the lines that say so.

    ``known`` ranks have said how far they came (fewer collectives than the others); the others are only silent.
    """

    ranks: tuple[int, ...]
    known: bool
    seq: int | None
    spots: tuple[Spot, ...]


def absent(case: Case) -> Absent | None:
    """The ranks that the others waited for, or None when the evidence does not tell."""
    for find in (_by_recorder, _by_progress, _by_text, _by_watchdog, _by_sequence, _by_silence):
        if found := find(case):
            return found
    return None


def _blocked(case: Case) -> tuple[int, str] | None:
    """The collective that most ranks timed out in: (seq, group)."""
    counts = Counter((c.seq, c.group) for c in case.timeouts.values())
    return min(counts, key=lambda k: (-counts[k], k[0])) if counts else None


def _by_recorder(case: Case) -> Absent | None:
    """Flight Recorder: in some group, ranks whose last entry lies before the others' last."""
    for group, per_rank in recorded(case).items():
        if len(per_rank) < 2:
            continue
        last = {rank: max(entries) for rank, entries in per_rank.items()}
        top, low = max(last.values()), min(last.values())
        behind = tuple(sorted(r for r, n in last.items() if n == low))
        # The others run ahead by what they queue asynchronously; one behind all of them is the one that stopped.
        if top > low and 2 * len(behind) < len(last) and group is not None and not odd_ones(case):
            spots = [per_rank[r][last[r]].spot for r in behind] + [
                per_rank[r][low + 1].spot for r in last if low + 1 in per_rank[r]
            ][:2]
            return Absent(behind, True, low + 1, tuple(spots))
    return None


def recorded(case: Case) -> Mapping[str, dict[int, dict[int, Collective]]]:
    """group -> rank -> seq -> entry, of Flight Recorder dumps."""
    groups: dict[str, dict[int, dict[int, Collective]]] = {}
    for item in case.incident.collectives:
        if item.state != "timeout" and item.seq >= 0:
            groups.setdefault(item.group, {}).setdefault(item.rank, {})[item.seq] = item
    return groups


def _by_progress(case: Case) -> Absent | None:
    """Progress lines: ranks whose last enqueued work lies before the collective that the others timed out in."""
    latest: dict[str, dict[int, tuple[int, Spot]]] = {}
    for item in case.incident.progress:
        mine = latest.setdefault(item.group, {})
        if item.rank not in mine or item.enqueued >= mine[item.rank][0]:
            mine[item.rank] = (item.enqueued, item.spot)
    blocked = _blocked(case)
    for group, ranks in latest.items():
        if len(ranks) < 2 and blocked is None:
            continue
        seq = blocked[0] if blocked and (blocked[1] == group or not blocked[1]) else max(n for n, _ in ranks.values())
        behind = tuple(sorted(r for r, (n, _) in ranks.items() if n < seq))
        if behind and 2 * len(behind) < max(len(ranks), len(case.timeouts) + len(behind)):
            lowest = min(ranks[r][0] for r in behind)
            slowest = tuple(r for r in behind if ranks[r][0] == lowest)
            if blocked or lowest < seq - 1 or case.failed:
                return Absent(slowest, True, seq, tuple(ranks[r][1] for r in slowest))
    return None


def _by_text(case: Case) -> Absent | None:
    """Lines that name the missing rank: the desync report, monitoredBarrier."""
    for event in case.of("pg-desync", "pg-monitored"):
        ranks = tuple(int(n) for n in event.fields.get("ranks", "").replace(" ", "").split(",") if n.isdigit())
        if ranks:
            return Absent(ranks, True, None, (event.spot,))
    return None


def _by_watchdog(case: Case) -> Absent | None:
    """The one rank whose watchdog itself was stuck, or that could not get the GIL, while others timed out."""
    events = [e for e in case.of("pg-stuck", "pg-gil") if e.rank is not None]
    ranks = {e.rank for e in events if e.rank is not None}
    if len(ranks) == 1 and (len(case.timeouts) > 1 or len(case.incident.ranks) > 2) and not ranks & set(case.timeouts):
        return Absent(tuple(ranks), True, (_blocked(case) or (None, ""))[0], tuple(e.spot for e in events[:2]))
    return None


def _by_sequence(case: Case) -> Absent | None:
    """Ranks that time out in another collective than the rest: they skipped one, or made one too many."""
    by_group: dict[str, dict[int, object]] = {}
    for rank, item in case.timeouts.items():
        by_group.setdefault(item.group, {})[rank] = item.seq
    for seqs in by_group.values():
        odd = case.minority(seqs)
        if odd:
            return Absent(
                tuple(odd), True, (_blocked(case) or (None, ""))[0], tuple(case.timeouts[r].spot for r in odd)
            )
    return None


def _by_silence(case: Case) -> Absent | None:
    """Ranks whose output is in the bundle and that alone did not time out."""
    waited = set(case.timeouts) | {
        r.rank for r in case.incident.raised if r.signature in ("gloo-timeout", "pg-timeout") and r.rank is not None
    }
    if len(waited) < 2:
        return None
    world = set(range(case.incident.world_size)) if case.incident.world_size else set(case.incident.ranks)
    visible = (
        (case.incident.whole_logs | set(case.incident.ranks)) if _merged(case, waited) else case.incident.whole_logs
    )
    silent = tuple(sorted((world & visible) - waited))
    if silent and 2 * len(silent) < len(waited) + len(silent):
        spots = [c.spot for c in case.timeouts.values()][:2]
        return Absent(silent, False, (_blocked(case) or (None, ""))[0], tuple(spots))
    return None


def _merged(case: Case, waited: set[int]) -> bool:
    """True when one file carries the time-outs of several ranks, so that a silent one would have been heard there."""
    files = Counter(c.spot.file for c in case.timeouts.values())
    return bool(files) and files.most_common(1)[0][1] >= max(2, len(waited) // 2)


def entries_at(case: Case) -> dict[int, Collective]:
    """What each rank did at the first collective where they differ, or at the one that blocked them.

    Flight Recorder entries of one group are compared by sequence number; else the time-outs are.
    """
    for per_rank in recorded(case).values():
        common = set.intersection(*(set(e) for e in per_rank.values())) if len(per_rank) > 1 else set()
        for seq in sorted(common):
            at = {rank: entries[seq] for rank, entries in per_rank.items()}
            if len({(c.op.lower(), c.dtype) for c in at.values()}) > 1 or _sizes_differ(at):
                return at
    blocked = _blocked(case)
    if blocked is None:
        return {}
    return {r: c for r, c in case.timeouts.items() if c.seq == blocked[0] and c.group == blocked[1]}


def _sizes_differ(at: Mapping[int, Collective]) -> bool:
    ops = {c.op.upper().replace("_", "") for c in at.values()}
    if len(ops) != 1 or any(
        word in next(iter(ops)) for word in _UNEVEN if word != "GATHER" or not next(iter(ops)).startswith("ALLGATHER")
    ):
        return False
    return len({c.numel_in for c in at.values()}) > 1


def odd_ones(case: Case) -> tuple[str, list[int], dict[int, Collective]] | None:
    """("op" or "size", the minority's ranks, every rank's entry) at a collective where ranks differ."""
    at = entries_at(case)
    if len(at) < 2:
        return None
    ops: dict[int, object] = {r: c.op.lower() for r, c in at.items()}
    if len(set(ops.values())) > 1:
        return "op", case.minority(ops), at
    if _sizes_differ(at) or len({c.dtype for c in at.values()}) > 1:
        return "size", case.minority({r: (c.numel_in, c.dtype) for r, c in at.items()}), at
    return None
