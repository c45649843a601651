"""The precedence: root before cascade, scheduler before what follows it, own error before peer error, and when to say
that the evidence does not decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddaudit.evidence.incident import Incident
from ddaudit.triage.reasoning import errors, hang, hardware, host, numbers, scheduler, slow, startup, storage
from ddaudit.triage.reasoning.case import Candidate, Case, Rejected, Tier, cite
from ddaudit.triage.reasoning.waiting import absent

__all__ = ["FAMILIES", "Verdict", "decide"]

#: The families of suspects. Each is one check.
FAMILIES: dict[str, Callable[[Case], Iterator[Candidate]]] = {
    "scheduler": scheduler.judge,
    "hardware": hardware.judge,
    "host": host.judge,
    "errors": errors.judge,
    "startup": startup.judge,
    "hang": hang.judge,
    "storage": storage.judge,
    "numbers": numbers.judge,
    "slow": slow.judge,
}
#: An own error this much earlier than a hardware event is not its consequence.
LEAD_S = 30.0


@dataclass(frozen=True)
class Verdict:
    """The cause, who else was argued for and why not, what was seen and set aside, and what is missing."""

    chosen: Candidate
    others: tuple[tuple[Candidate, str], ...]
    rejected: tuple[Rejected, ...]


def decide(incident: Incident) -> Verdict:
    """Hears all families and picks the root."""
    case = Case(incident)
    if case.completed is not None:
        none = Candidate("none", Tier.UNKNOWN, "the job ended well", (case.completed,))
        _ = [list(judge(case)) for judge in (hardware.judge, host.judge)]
        return Verdict(none, (), tuple(case.rejected))
    heard = [replace(c, families=(family,)) for family, judge in FAMILIES.items() for c in judge(case)]
    heard = _merge(heard)
    if not heard:
        return Verdict(_undecided(case), (), tuple(case.rejected))
    chosen = _first(heard)
    others = tuple((c, _why_not(c, chosen)) for c in heard if c is not chosen and c.cause != chosen.cause)
    return Verdict(chosen, others, tuple(case.rejected))


def _first(heard: Sequence[Candidate]) -> Candidate:
    """Lowest tier; within a tier the earliest; an own error well before a hardware event comes first."""
    ordered = sorted(heard, key=_key)
    best = ordered[0]
    if best.tier == Tier.HARDWARE and best.time_s is not None and best.confidence != "high":
        earlier = [
            c for c in ordered if c.tier == Tier.OWN_ERROR and c.time_s is not None and best.time_s - c.time_s > LEAD_S
        ]
        return earlier[0] if earlier else best
    return best


def _key(candidate: Candidate) -> tuple[object, ...]:
    generic = candidate.cause in ("app.exception", "collective.desync")
    unsure = {"high": 0, "medium": 1, "low": 2}[candidate.confidence]
    nobody = candidate.rank is None and candidate.host is None
    return (candidate.tier, generic, unsure, nobody, candidate.time_s is None, candidate.time_s or 0.0)


def _merge(heard: Sequence[Candidate]) -> list[Candidate]:
    """Joins candidates of one cause that do not contradict each other, keeping the strongest's words."""
    merged: list[Candidate] = []
    for item in sorted(heard, key=_key):
        same = next((i for i, m in enumerate(merged) if m.cause == item.cause and _agree(m, item)), None)
        if same is None:
            merged.append(item)
            continue
        kept = merged[same]
        fill = {
            f: getattr(item, f) for f in ("rank", "host", "gpu", "device", "path", "pid") if getattr(kept, f) is None
        }
        fill["families"] = tuple(dict.fromkeys((*kept.families, *item.families)))
        merged[same] = replace(kept, evidence=cite(kept.evidence[:7], item.evidence, kept.evidence), **fill)
    return merged


def _agree(a: Candidate, b: Candidate) -> bool:
    return all(
        getattr(a, f) is None or getattr(b, f) is None or getattr(a, f) == getattr(b, f) for f in ("rank", "host")
    )


def _why_not(other: Candidate, chosen: Candidate) -> str:
    if other.tier > chosen.tier:
        return {
            Tier.SCHEDULER: "the scheduler ended the job first; this follows from it",
            Tier.HARDWARE: "the kernel's event explains it",
            Tier.OWN_ERROR: "a rank's own error came first",
            Tier.HANG: "a consequence of the rank that did not come",
        }.get(chosen.tier, "weaker evidence")
    if other.time_s is not None and chosen.time_s is not None and other.time_s > chosen.time_s:
        return "later than the cause"
    return "weaker evidence"


def _undecided(case: Case) -> Candidate:
    """Nothing decisive: a real time-out without a culprit, a lost peer, or no incident."""
    waits = [c.spot for c in case.timeouts.values()]
    texts = [e.spot for e in case.of("gloo-timeout", "pg-monitored", "store-wait", "pg-dump", "pg-stuck")]
    if case.timeouts or case.of("gloo-timeout", "pg-stuck", "pg-desync"):
        missing = absent(case)
        silent = f"; silent: ranks {', '.join(map(str, missing.ranks))}" if missing else ""
        why = f"a collective timed out, and nothing in the bundle says who did not come{silent}"
        return Candidate(
            "unknown.collective-timeout",
            Tier.UNKNOWN,
            why,
            cite(waits[:3], texts[:3]),
            confidence="low",
            missing=_missing_logs(case),
        )
    cascades = [e for e in case.events if e.role == "cascade" and not e.kernel and e.layer in ("nccl", "torch")]
    if case.failed and not case.blind:
        peers = sorted({e.fields["peer"].split("<")[0] for e in cascades if e.fields.get("peer")})
        named = f" ({peers[0]})" if len(peers) == 1 else ""
        why = f"ranks lost a peer{named}, and nothing in the bundle shows what happened to it"
        wanted = tuple(f"log, kernel log and scheduler state of {p}" for p in peers[:4]) + _missing_logs(case)
        spots = cite(
            (e.spot for e in cascades if e.fields.get("peer")),
            (e.spot for e in cascades[:3]),
            (e.spot for e in case.of("el-exit", "sl-exitcode")[:2]),
        )
        return Candidate("unknown.peer-lost", Tier.UNKNOWN, why, spots, confidence="low", missing=wanted)
    seen = case.incident.finished
    last = case.incident.steps[-1].spot if case.incident.steps else None
    return Candidate(
        "none", Tier.UNKNOWN, "nothing ended badly and nothing hangs", cite([seen, last]), confidence="medium"
    )


def _missing_logs(case: Case) -> tuple[str, ...]:
    """What would decide it: logs and dumps of the ranks that are not here, kernel logs of all nodes."""
    have = case.incident.whole_logs
    world = case.incident.world_size
    if world and set(range(world)) - have:
        absent_ranks = sorted(set(range(world)) - have)
        which = f"ranks {absent_ranks[0]}-{absent_ranks[-1]}" if len(absent_ranks) > 1 else f"rank {absent_ranks[0]}"
    else:
        which = "all other ranks" if have else "all ranks"
    wanted = [f"logs of {which}", f"Flight Recorder dumps or py-spy stacks of {which}"]
    kernels = [s for s in case.incident.sources if s.kind == "kernel"]
    if not kernels:
        wanted.append("kernel logs (dmesg -T) of all nodes")
    if not case.incident.jobs:
        wanted.append("the scheduler's record of the job (sacct, scontrol show node)")
    return tuple(wanted)
