"""A slow job: the culprit computes longest and waits shortest, and its device says why."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from statistics import median
from typing import NamedTuple

from ddaudit.evidence.incident import Gpu, RankTimes, Spot, Step
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite

__all__ = ["judge"]

#: A rank this much above the median of the others is an outlier (healthy GPUs of one node differ by about 5 %).
OUTLIER = 1.15
#: A job whose late steps take this much longer than its early ones became slow.
SLOWER = 1.15
THROTTLE_BITS = {"gpu.thermal-throttle": 0x20 | 0x40, "gpu.power-brake": 0x80}


class Straggler(NamedTuple):
    """The rank that the others wait for: its time over the others' median, and the lines that show it."""

    rank: int
    ratio: float
    spots: tuple[Spot, ...]
    what: str


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates for slow jobs. Speaks only when something is slow, or when nothing else is wrong but a device."""
    straggler = _straggler(case)
    became = _became_slow(case)
    slow = straggler is not None or became is not None
    groups: dict[tuple[str, str | None], list[tuple[Gpu, list[Spot]]]] = {}
    for cause, gpu, spots in _devices(case):
        groups.setdefault((cause, gpu.host), []).append((gpu, spots))
    for (cause, _), found in groups.items():
        if slow or not case.failed:
            yield _device(case, cause, found, straggler, became)
    yield from _kernel_link(case, straggler, slow)
    yield from _logs(case, straggler, became)
    if straggler is not None and straggler.what == "data":
        why = f"rank {straggler.rank} spends {straggler.ratio:.1f} times as long on its data as the others"
        yield Candidate(
            "data.loader-stalled", Tier.SLOW, why, cite(straggler.spots), straggler.rank, case.host_of(straggler.rank)
        )


def _straggler(case: Case) -> Straggler | None:
    """Longest compute time, confirmed by the shortest wait where waits were printed."""
    compute = [t for t in case.incident.rank_times if t.what == "compute"]
    waits = [t for t in case.incident.rank_times if t.what == "wait"]
    if compute:
        found = _outlier(compute[-3:])
        if found is not None:
            shortest = [min(t.values, key=lambda r: t.values[r]) for t in waits[-3:]]
            if not shortest or found[0] in shortest:
                return Straggler(found[0], found[1], tuple(t.spot for t in (*compute[-2:], *waits[-1:])), "compute")
    if waits and (short := _shortest(waits[-3:])) is not None:
        return Straggler(short, 1.0, tuple(t.spot for t in waits[-2:]), "wait")
    return _from_steps(case.incident.steps)


def _outlier(times: list[RankTimes]) -> tuple[int, float] | None:
    rows = [max(t.values, key=lambda r: t.values[r]) for t in times]
    if len(set(rows)) != 1:
        return None
    rank = rows[0]
    ratios = [t.values[rank] / max(median([v for r, v in t.values.items() if r != rank] or [1.0]), 1e-9) for t in times]
    return (rank, min(ratios)) if min(ratios) > OUTLIER else None


def _shortest(times: list[RankTimes]) -> int | None:
    rows = [min(t.values, key=lambda r: t.values[r]) for t in times]
    rank = rows[0]
    clear = all(t.values[rank] * 2 < median([v for r, v in t.values.items() if r != rank] or [0.0]) for t in times)
    return rank if len(set(rows)) == 1 and clear else None


def _from_steps(steps: tuple[Step, ...]) -> Straggler | None:
    """The same from each rank's own step lines: its late compute (or data) time against the others'."""
    readers: tuple[tuple[str, Callable[[Step], float | None]], ...] = (
        ("compute", lambda s: s.compute_s),
        ("data", lambda s: s.data_s),
    )
    for what, read in readers:
        late: dict[int, list[Step]] = {}
        for step in steps:
            if step.rank is not None and read(step) is not None:
                late.setdefault(step.rank, []).append(step)
        level = {r: median([read(s) or 0.0 for s in own[-5:]]) for r, own in late.items()}
        if len(level) < 2:
            continue
        rank = max(level, key=lambda r: level[r])
        others = median([v for r, v in level.items() if r != rank])
        whole = median([s.step_s for own in late.values() for s in own if s.step_s] or [0.0])
        telling = level[rank] - others > 0.1 * whole if what == "data" else True
        if level[rank] > OUTLIER * max(others, 1e-9) and telling:
            return Straggler(rank, level[rank] / max(others, 1e-9), tuple(s.spot for s in late[rank][-2:]), what)
    return None


def _became_slow(case: Case) -> tuple[Spot, float, float] | None:
    """(first slow step's line, time before, time after) when the steps of one log grew slower for good."""
    series: dict[tuple[str, int | None], list[Step]] = {}
    for step in case.incident.steps:
        if step.step_s is not None:
            series.setdefault((step.spot.file, step.rank), []).append(step)
    for steps in series.values():
        times = [s.step_s or 0.0 for s in steps]
        if len(times) < 8:
            continue
        before, after = median(times[: max(3, len(times) // 5)]), median(times[-max(3, len(times) // 5) :])
        if after > SLOWER * before:
            turn = next((s for s in steps if (s.step_s or 0.0) > (before + after) / 2), steps[-1])
            return turn.spot, before, after
    return None


def _devices(case: Case) -> Iterator[tuple[str, Gpu, list[Spot]]]:
    for gpu in case.incident.gpus:
        for cause, words in (
            ("gpu.thermal-throttle", ("HW Thermal Slowdown", "SW Thermal Slowdown")),
            ("gpu.power-brake", ("HW Power Brake Slowdown",)),
        ):
            keys = [k for k, v in gpu.values.items() if k.split("/")[-1] in words and v == "Active"]
            keys += _bits(gpu, THROTTLE_BITS[cause]) + _csv_active(
                gpu, "thermal" if cause.startswith("gpu.th") else "brake"
            )
            if keys:
                yield cause, gpu, [gpu.spots[k] for k in (*keys, *_context(gpu))]
        if keys := _narrow(case, gpu):
            yield "gpu.pcie-degraded", gpu, [gpu.spots[k] for k in keys]


def _bits(gpu: Gpu, mask: int) -> list[str]:
    found = []
    for key, value in gpu.values.items():
        if "reasons.active" in key and re.fullmatch(r"0x[0-9a-fA-F]+", value) and int(value, 16) & mask:
            found.append(key)
    return found


def _csv_active(gpu: Gpu, word: str) -> list[str]:
    return [k for k, v in gpu.values.items() if "reasons" in k and word in k and v.lower() == "active"]


def _context(gpu: Gpu) -> list[str]:
    return [k for k in gpu.values if k.endswith(("GPU Current Temp", "Clocks/SM"))][:2]


def _narrow(case: Case, gpu: Gpu) -> list[str]:
    """Keys of a PCIe link below its maximum, where the siblings of the host reach theirs.

    Idle GPUs lower their generation by themselves, so a low generation counts only beside siblings that keep it up.
    """
    siblings = [g for g in case.incident.gpus if g.host == gpu.host and g is not gpu]
    keys = []
    for name in ("Link Width", "PCIe Generation"):
        now, top = _link(gpu, name)
        if now is None or top is None or now >= top:
            continue
        full = [g for g in siblings if (pair := _link(g, name))[0] is not None and pair[0] == pair[1]]
        if (name == "Link Width" and (full or not siblings)) or (full and len(full) * 2 > len(siblings)):
            keys += [
                k
                for k in gpu.values
                if f"{name}/Current" in k or k in ("pcie.link.width.current", "pcie.link.gen.current")
            ]
    return keys


def _link(gpu: Gpu, name: str) -> tuple[int | None, int | None]:
    short = {"Link Width": "pcie.link.width", "PCIe Generation": "pcie.link.gen"}[name]
    found = []
    for which in ("Current", "Max"):
        text = next(
            (v for k, v in gpu.values.items() if k.endswith(f"{name}/{which}")),
            gpu.values.get(f"{short}.{which.lower()}", ""),
        )
        digits = re.match(r"\d+", text)
        found.append(int(digits[0]) if digits else None)
    return found[0], found[1]


def _device(
    case: Case,
    cause: str,
    found: list[tuple[Gpu, list[Spot]]],
    straggler: Straggler | None,
    became: tuple[Spot, float, float] | None,
) -> Candidate:
    """One candidate a host and cause. When several GPUs of a host suffer alike, the host is named and no rank."""
    owners = {_owner(case, gpu): (gpu, spots) for gpu, spots in found}
    chosen = owners.get(straggler.rank) if straggler is not None else None
    gpu, spots = chosen or found[0]
    rank = _owner(case, gpu) if len(found) == 1 or chosen else None
    if rank is None and straggler is not None and case.host_of(straggler.rank) in (None, gpu.host) and len(found) == 1:
        rank = straggler.rank
    agrees = straggler is None or rank is None or straggler.rank == rank
    host = gpu.host or case.host_of(rank)
    change = f"; steps went from {became[1]:.3g} s to {became[2]:.3g} s" if became else ""
    slowest = (
        f"; rank {rank} computes {straggler.ratio:.2f} times as long as the others"
        if straggler and agrees and straggler.what == "compute"
        else ""
    )
    why = f"GPU {gpu.bdf} of {host or 'an unnamed host'}: {spots[0].text}{slowest}{change}"
    outside = [e.spot for e in case.events if e.layer == "bmc" and e.cause == cause][:2]
    evidence = cite(
        spots[:3],
        straggler.spots[:2] if straggler and agrees else (),
        [became[0]] if became else (),
        outside,
        spots[3:],
    )
    tier = Tier.SLOW if agrees else Tier.UNKNOWN
    index = f" (GPU {gpu.index})" if gpu.index is not None else ""
    device = f"{gpu.bdf}.0{index}" if len(found) == 1 or chosen else f"{len(found)} GPUs"
    return Candidate(
        cause, tier, why, evidence, rank, host, gpu=device, confidence="high" if slowest or change else "medium"
    )


def _owner(case: Case, gpu: Gpu) -> int | None:
    return next((r.rank for r in case.incident.ranks.values() if r.gpu == gpu.bdf and r.host in (None, gpu.host)), None)


def _kernel_link(case: Case, straggler: Straggler | None, slow: bool) -> Iterator[Candidate]:
    events = [e for e in case.events if e.cause == "gpu.pcie-degraded" and e.role == "root"]
    events = [
        e
        for e in events
        if not e.kernel or not e.fields.get("drv", "").startswith(("mlx", "nvme", "i40", "ixgbe", "ice", "bnx"))
    ]
    if events and (slow or not case.failed) and (slow or case.incident.steps):
        rank = events[0].rank if events[0].rank is not None else straggler.rank if straggler else None
        if straggler is not None and events[0].rank is not None and straggler.rank != events[0].rank:
            return
        host = events[0].host or case.host_of(rank)
        yield Candidate(
            "gpu.pcie-degraded",
            Tier.SLOW,
            f"a device of {host or 'a host'} runs below its PCIe capability",
            cite((e.spot for e in events[:2]), straggler.spots[:2] if straggler else ()),
            rank,
            host,
            gpu=events[0].fields.get("bdf"),
            confidence="high" if straggler else "medium",
        )


def _logs(case: Case, straggler: Straggler | None, became: tuple[Spot, float, float] | None) -> Iterator[Candidate]:
    """Monitors and the BMC that speak of heat or power, when the job is slow and no device record does."""
    if straggler is None and became is None:
        return
    have = {c for c, _, _ in _devices(case)}
    for cause in ("gpu.thermal-throttle", "gpu.power-brake"):
        events = [
            e
            for e in case.events
            if e.cause == cause and (e.layer in ("bmc", "nvml")) and (e.role == "root" or e.layer == "bmc")
        ]
        if events and cause not in have and not have & {"gpu.thermal-throttle", "gpu.power-brake", "gpu.pcie-degraded"}:
            rank = straggler.rank if straggler else None
            host = case.host_of(rank) or next((e.host for e in events if e.host), None)
            why = f"{events[0].signature} on {host or 'a host'} while the job slowed down"
            evidence = cite(
                (e.spot for e in events[:3]), straggler.spots if straggler else (), [became[0]] if became else ()
            )
            yield Candidate(cause, Tier.SLOW, why, evidence, rank, host, confidence="medium")
