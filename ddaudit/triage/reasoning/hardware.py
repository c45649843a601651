"""Kernel and hardware events of the job's own devices, in the job's time."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.evidence.incident import Event, Gpu, Rank, Spot
from ddaudit.triage.readers.nvidia import bdf
from ddaudit.triage.reasoning.case import Candidate, Case, Confidence, Tier, cite

__all__ = ["judge"]

#: Of several GPU causes on one device the more specific one is the news: a row that cannot be remapped explains the
#: ECC error before it, a lost GPU explains everything after.
_ORDER = ("gpu.row-remap-failure", "gpu.ecc-uncorrectable", "gpu.nvlink-error", "gpu.gsp-timeout", "gpu.fell-off-bus")


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates ``gpu.*`` (broken), ``net.ib-link-flap`` and ``app.illegal-memory-access`` from the kernel's side."""
    events = [e for e in case.events if _gpu_event(e) and _admissible(case, e)]
    for host in dict.fromkeys(e.host for e in events):
        yield from _gpu(case, [e for e in events if e.host == host], host)
    yield from _link(case)


def _gpu_event(event: Event) -> bool:
    # NVML states what is, without a time; the kernel says when.
    return (
        event.cause.startswith("gpu.")
        and event.role == "root"
        and (event.kernel or event.layer == "nvml")
        and "throttle" not in event.cause
    )


def _admissible(case: Case, event: Event) -> bool:
    """In the window, of a GPU the job uses, of the job's process."""
    if event.cause in ("gpu.power-brake", "gpu.pcie-degraded") or event.signature == "nvml-reset":
        return False
    when = case.when(event)
    if when == "out":
        case.reject(event, "outside the job's time: an older event")
        return False
    if case.other_process(event):
        case.reject(event, f"another process ({event.fields.get('task')})")
        return False
    if when == "maybe" and (case.foreign_pid(event) or not _suspicious(case, event)):
        case.reject(event, "fits the job's time only under another time zone, and nothing else ties it to the job")
        return False
    if _foreign_gpu(case, event):
        case.reject(event, "a GPU that the job does not use")
        return False
    return case.failed or case.hung


def _foreign_gpu(case: Case, event: Event) -> bool:
    address = bdf(event.fields.get("bdf"))
    used = {r.gpu for r in case.incident.ranks.values() if r.gpu and r.host in (None, event.host)}
    # A switch or bridge is nobody's GPU and everybody's: it is not in the map.
    return bool(address and used and address not in used and event.signature.startswith(("xid-", "nvrm-off")))


def _suspicious(case: Case, event: Event) -> bool:
    rank = event.rank
    if rank is None:
        return bool([r for r in case.own if r.cause.startswith("gpu.")]) or case.hung
    return rank in _silent(case) or any(r.rank == rank for r in case.own)


def _silent(case: Case) -> set[int]:
    """Ranks that did not report while most others did."""
    loud = set(case.timeouts) | {e.rank for e in case.events if e.role == "cascade" and e.rank is not None}
    known = set(case.incident.ranks)
    return known - loud if len(loud) * 2 >= len(known) else set()


def _gpu(case: Case, events: list[Event], host: str | None) -> Iterator[Candidate]:
    by_device: dict[str | None, list[Event]] = {}
    for event in events:
        by_device.setdefault(bdf(event.fields.get("bdf")), []).append(event)
    if len(by_device) > 1 and None in by_device:
        loose = by_device.pop(None)
        next(iter(by_device.values())).extend(loose)
    for device, found in by_device.items():
        cause = min((e.cause for e in found), key=lambda c: _ORDER.index(c) if c in _ORDER else 9)
        first = min(found, key=lambda e: (e.stamp is None, e.stamp.time_s if e.stamp else 0, e.spot.line))
        if cause != first.cause and cause != "gpu.row-remap-failure":
            cause = first.cause
        smi = _smi(case, host, device)
        if cause == "gpu.ecc-uncorrectable" and _remap_failed(smi):
            cause = "gpu.row-remap-failure"
        rank = _rank(case, host, device, found)
        yield _candidate(case, cause, found, first, host, device, rank, smi)


def _candidate(
    case: Case,
    cause: str,
    found: list[Event],
    first: Event,
    host: str | None,
    device: str | None,
    rank: int | None,
    smi: Gpu | None,
) -> Candidate:
    place = case.incident.ranks.get(rank) if rank is not None else None
    host = host or (place.host if place else None)
    own = [r.spot for r in case.own if r.rank == rank and r.cause.startswith(("gpu.", "app.ill"))]
    when = {
        "in": "in the job's time",
        "maybe": "in the job's time under another zone",
        "unknown": "at a time that the file does not tell",
    }[case.when(first)]
    of = f"GPU {device}" if device else "a GPU"
    why = f"{of} of {host or 'an unnamed host'}: {first.signature} {when}" + (
        f"; it is rank {rank}'s" if rank is not None else ""
    )
    index = place.gpu_index if place else None
    gpu = (
        " ".join(x for x in (f"{device}.0" if device else "", f"(local GPU {index})" if index is not None else "") if x)
        or None
    )
    ordered = sorted(found, key=lambda e: (not e.kernel, e.spot.file, e.spot.line))
    confidence: Confidence = "high" if rank is not None or own else "medium"
    spots = cite((e.spot for e in ordered[:4]), own, _map_spots(case, rank), _smi_spots(smi))
    return Candidate(
        cause, Tier.HARDWARE, why, spots, rank, host, gpu, confidence=confidence, time_s=case.job_time(first)
    )


def _rank(case: Case, host: str | None, device: str | None, found: list[Event]) -> int | None:
    """The GPU's rank: by pid, by PCI address and host, by nvidia-smi's order, or the rank that said so itself."""
    if (named := next((e.rank for e in found if e.rank is not None), None)) is not None:
        return named
    places = [r for r in case.incident.ranks.values() if device and r.gpu == device and host in (None, r.host)]
    if len(places) == 1:
        return places[0].rank
    own = {
        r.rank
        for r in case.own
        if r.rank is not None and ((r.cause.startswith("gpu.") and r.cause != "gpu.oom") or "CUDA error" in r.message)
    }
    own = {r for r in own if host in (None, case.host_of(r)) or case.host_of(r) is None}
    if len(own) == 1:
        return next(iter(own))
    index = next((g.index for g in case.incident.gpus if g.bdf == device and g.host in (None, host)), None)
    local = [
        r.rank for r in case.incident.ranks.values() if index is not None and _index(r) == index and r.host == host
    ]
    if len(local) == 1:
        return local[0]
    silent = [r for r in _silent(case) if case.host_of(r) == host]
    return silent[0] if len(silent) == 1 else case.only_rank(host)


def _index(rank: Rank) -> int | None:
    return rank.gpu_index if rank.gpu_index is not None else rank.local_rank


def _map_spots(case: Case, rank: int | None) -> list[Spot | None]:
    place = case.incident.ranks.get(rank) if rank is not None else None
    return [place.exit_spot] if place is not None else []


def _smi(case: Case, host: str | None, device: str | None) -> Gpu | None:
    return next((g for g in case.incident.gpus if g.bdf == device and (g.host in (None, host) or host is None)), None)


def _remap_failed(gpu: Gpu | None) -> bool:
    return gpu is not None and any(
        k.endswith("Remapping Failure Occurred") and v.startswith("Yes") for k, v in gpu.values.items()
    )


def _smi_spots(gpu: Gpu | None) -> list[Spot]:
    if gpu is None:
        return []
    wanted = (
        "Remapped Rows/Pending",
        "Remapping Failure Occurred",
        "Volatile/DRAM Uncorrectable",
        "Volatile/SRAM Uncorrectable SEC-DED",
    )
    return [s for k, s in gpu.spots.items() if k.endswith(wanted) and gpu.values[k] not in ("No", "0", "N/A", "")]


_COMPLAINTS = (
    *("nccl-ib-completion", "nccl-ib-async", "nccl-remote", "nccl-timedout", "nccl-closed"),
    *("ofi-completion", "gloo-closed"),
)


def _link(case: Case) -> Iterator[Candidate]:
    """A port that went down while ranks complained about the network."""
    complaints = case.of(*_COMPLAINTS)
    near = _downs(case, bool(complaints))
    asynchronous = case.of("nccl-ib-async")
    if not (near or asynchronous) or not (complaints or asynchronous or case.hung):
        return
    hosts = [e.host for e in near if e.host] or [e.host for e in asynchronous if e.host]
    host = max(set(hosts), key=hosts.count) if hosts else None
    first = next((e for e in near if e.host == host), next(iter(asynchronous), None))
    assert first is not None
    device = first.fields.get("hca")
    rank = next((e.rank for e in asynchronous if e.rank is not None and e.host == host), None)
    rank = rank if rank is not None and len(case.ranks_on(host)) <= 1 else case.only_rank(host)
    address = first.fields.get("bdf")
    device = f"{device} ({address})" if address else device
    counters = [e.spot for e in case.of("ib-counters", "ib-state-down") if e.host == host]
    why = f"port {device or '?'} of {host or 'a host'} went down in the job's time; the others complain about this host"
    spots = cite(
        (e.spot for e in near[:3] if e.host == host),
        (e.spot for e in asynchronous[:1]),
        (e.spot for e in case.of("nccl-ib-completion")[:2]),
        counters,
    )
    yield Candidate(
        "net.ib-link-flap",
        Tier.HARDWARE,
        why,
        spots,
        rank,
        host,
        device=device,
        time_s=case.job_time(first),
    )


def _downs(case: Case, complaints: bool) -> list[Event]:
    """Ports that went down in the job's time and that the job uses."""
    near = []
    for event in case.events:
        if event.cause != "net.ib-link-flap" or event.role != "root" or not event.kernel:
            continue
        when = case.when(event)
        if when == "out" or (when == "maybe" and not complaints):
            case.reject(event, "outside the job's time: an older event")
        elif _unused_port(case, event):
            case.reject(event, "a port that the job does not use")
        else:
            near.append(event)
    return near


def _unused_port(case: Case, event: Event) -> bool:
    """A port is known to be unused when NCCL listed the adapters it uses and this is none of them, or when the adapter
    that peers complain about is another one."""
    hca = event.fields.get("hca", "")
    return bool(hca.startswith("mlx5") and case.incident.adapters and hca not in case.incident.adapters)
