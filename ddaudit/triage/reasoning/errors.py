"""The first own error of a rank: exceptions and fatal lines that are nobody else's consequence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ddaudit.evidence.incident import Event, GpuProcess, Raised, Spot
from ddaudit.triage.reasoning.case import Candidate, Case, Tier, cite
from ddaudit.triage.reasoning.waiting import absent

__all__ = ["cause_of", "judge"]

_DECODE = re.compile(
    r"(?:UnidentifiedImageError|DecompressionBomb\w*|ReadError|JSONDecodeError|UnicodeDecodeError|EOFError|ArrowInvalid|BadGzipFile|LZMAError"
    r"|zlib\.error|struct\.error|\berror|DecodeError|ParserError|TFRecord\w*|SyntaxError)$"
)
_LOADING = re.compile(
    r"(?i)load_checkpoint|load_state_dict|_load_\w*checkpoint|torch/serialization\.py|distributed/checkpoint|resume_from|restore_checkpoint|safetensors"
)
_DATA = re.compile(
    r"(?i)data/_utils/(?:fetch|worker|collate)|__getitem__|webdataset|datasets?/|dataset\.py|collate|decode"
)
_BAD_DATA = re.compile(
    r"(?i)decod|corrupt|truncat|malformed|premature|checksum|bad magic|\bcrc\b|not a valid|unrecognized data"
    r"|invalid (?:data|header|image|jpeg|png|file)|inflate|damaged"
)
_SIZE = re.compile(r"(?P<n>[\d.]+) (?P<u>[KMGT]i?B|bytes)")
_UNITS = {
    "bytes": 1.0,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
}
#: Share of the GPU's memory that must be in other hands before the OOM is theirs and not the rank's.
FOREIGN_SHARE = 0.15
FOREIGN_MIB = 4096
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - a mount's name, not a place to write
_ELSEWHERE = ("collective.", "net.", "rdzv.", "env.", "data.uneven-shards")
_STORAGE = ("storage.quota-exceeded", "storage.disk-full", "host.shm-exhausted", "host.fd-limit", "host.process-limit")


def judge(case: Case) -> Iterator[Candidate]:
    """One candidate a cause, from exceptions first and from fatal lines outside of exceptions second."""
    groups: dict[str, list[Raised]] = {}
    for raised in case.own:
        if raised.signature == "ddp-params":
            continue
        cause = cause_of(raised, case)
        if not cause.startswith(_ELSEWHERE):
            groups.setdefault(cause, []).append(raised)
    for cause, items in groups.items():
        yield _candidate(case, cause, items)
    if case.failed or case.hung:
        yield from _plain(case, set(groups))


def cause_of(raised: Raised, case: Case) -> str:
    """The cause id of an exception, from its text and from where it was raised."""
    frames = " ".join(raised.frames)
    if raised.cause == "gpu.oom":
        held = foreign_memory(raised.message, case) or strangers(case, raised)
        return "gpu.memory-held-by-other-process" if held else "gpu.oom"
    if (
        raised.cause == "storage.disk-full"
        and not _full(case)
        and (case.of("edquot") or any(m.kind == "quota" for m in case.incident.mounts))
    ):
        return "storage.quota-exceeded"
    if raised.cause == "storage.disk-full" and re.search(
        r"multiprocessing|shared_memory|storage\.py.*_share|_new_shared", frames
    ):
        return "host.shm-exhausted"
    if raised.cause == "data.corrupt-sample" and _LOADING.search(frames) and not _DATA.search(frames):
        return "checkpoint.corrupt"
    if raised.cause == "checkpoint.corrupt" and _DATA.search(frames) and not _LOADING.search(frames):
        return "data.corrupt-sample"
    if raised.cause:
        return raised.cause
    if raised.signature == "dl-exit":
        return _lost_worker(case)
    return _by_place(raised, frames)


def _by_place(raised: Raised, frames: str) -> str:
    kind = raised.kind.split(".")[-1]
    if _LOADING.search(frames) and not re.search(r"data/_utils|__getitem__", frames):
        if kind in ("EOFError", "UnpicklingError", "BadZipFile", "FileNotFoundError"):
            return "checkpoint.corrupt"
        if kind in ("AssertionError", "ValueError", "RuntimeError") and re.search(
            r"(?i)\bshape|\bsize|mismatch|parallel|world.?size|\bexpected|config", raised.message
        ):
            return "checkpoint.mismatch"
    if _DECODE.search(raised.kind) and (_DATA.search(frames) or "DataLoader worker" in raised.message):
        return "data.corrupt-sample"
    if ("DataLoader worker" in raised.message or _DATA.search(frames)) and _BAD_DATA.search(raised.message):
        return "data.corrupt-sample"
    if kind == "MemoryError":
        return "host.oom-killed"
    return "app.exception"


def _full(case: Case) -> bool:
    return any(m.kind in ("full", "inodes") and m.path != SHARED_MEMORY for m in case.incident.mounts)


def _lost_worker(case: Case) -> str:
    """A loader worker died without a word: what the rest of the bundle says about it."""
    if any(m.path == SHARED_MEMORY for m in case.incident.mounts) or case.of("dl-shm", "dl-bus", "exit-bus"):
        return "host.shm-exhausted"
    if case.of("oom-killed", "oom-kill", "dl-killed"):
        return "host.oom-killed"
    return "app.segfault" if case.of("kernel-segv", "dl-segv") else "app.exception"


def foreign_memory(message: str, case: Case) -> bool:
    """True when an out-of-memory message shows memory in the hands of processes that are not the job's."""
    capacity = _bytes(re.search(r"total capacity of ([\d.]+ \w+)", message))
    if capacity is None:
        return False
    mine = {r.pid for r in case.incident.ranks.values()}
    others = re.findall(r"Process (\d+) has ([\d.]+ \w+) memory in use", message)
    held = sum(_size(size) for pid, size in others if int(pid) not in mine)
    if others:
        return held >= FOREIGN_SHARE * capacity
    free = _bytes(re.search(r"of which ([\d.]+ \w+) is free", message))
    used = _bytes(re.search(r"this process has ([\d.]+ \w+) memory in use", message))
    return free is not None and used is not None and capacity - free - used >= 2 * FOREIGN_SHARE * capacity


def strangers(case: Case, raised: Raised) -> list[GpuProcess]:
    """Processes with much memory on the rank's GPU that are none of the job's, as nvidia-smi listed them.

    Containers renumber pids, so a lone process on a GPU may be the rank itself; of two, one is a stranger.
    """
    place = case.incident.ranks.get(raised.rank) if raised.rank is not None else None
    named = re.search(r"\bGPU (\d+)\b", raised.message)
    index = place.gpu_index if place and place.gpu_index is not None else int(named[1]) if named else None
    mine = {r.pid for r in case.incident.ranks.values() if r.pid is not None}
    rows = [p for p in case.incident.gpu_processes if p.gpu_index in (None, index) and p.host in (None, raised.host)]
    foreign = [p for p in rows if p.pid not in mine and p.memory_mib >= FOREIGN_MIB]
    known = any(p.pid in mine for p in case.incident.gpu_processes)
    return foreign if known or len(rows) > 1 or (not case.trained and bool(mine)) else []


def _bytes(found: re.Match[str] | None) -> float | None:
    return _size(found[1]) if found else None


def _size(text: str) -> float:
    found = _SIZE.match(text)
    return float(found["n"]) * _UNITS.get(found["u"], 1.0) if found else 0.0


def _candidate(case: Case, cause: str, items: Sequence[Raised]) -> Candidate:
    ordered = sorted(
        items,
        key=lambda r: (
            r.stamp is None,
            r.stamp.time_s if r.stamp else 0,
            r.spot.file.endswith(".json"),
            r.spot.file,
            r.spot.line,
        ),
    )
    rank, host = guilty(case, ordered)
    first = next((r for r in ordered if r.rank == rank), ordered[0])
    path = re.search(r"['\"](/[^'\"]+)['\"]", first.message)
    what = f"{first.kind.split('.')[-1]}: {first.message[:120]}" if first.message else first.kind
    inner = next(
        (f for f in first.frames if "site-packages" not in f and "dist-packages" not in f and "/torch/" not in f), ""
    )
    who = f"rank {rank}" if rank is not None else "a rank" if len(items) == 1 else f"{len(items)} ranks"
    why = f"{who} raised {what}" + (f" at {inner}" if inner else "")
    thread = f" in thread {first.thread}: the rank lived on and never told the others" if first.thread else ""
    spots = cite(
        [first.spot, *first.also[:3]], (r.spot for r in ordered[:3]), _related(case, cause, rank), _exit(case, rank)
    )
    time_s = first.stamp.time_s if first.stamp else None
    return Candidate(
        cause,
        Tier.OWN_ERROR,
        why + thread,
        spots,
        rank,
        host,
        path=path[1] if path else None,
        time_s=time_s,
        gpu=_gpu(cause, first),
    )


def _gpu(cause: str, raised: Raised) -> str | None:
    found = re.search(r"\bGPU (\d+)\b", raised.message) if cause.startswith("gpu.") else None
    return f"GPU {found[1]}" if found else None


def _related(case: Case, cause: str, rank: int | None) -> list[Spot]:
    """Lines that speak of the same cause elsewhere: full mounts, quota reports, other signatures of the same rank."""
    spots = [
        e.spot for e in case.events if e.cause == cause and not e.kernel and not e.handled and e.rank in (None, rank)
    ][:3]
    if cause == "gpu.memory-held-by-other-process":
        mine = {r.pid for r in case.incident.ranks.values()}
        spots += [p.spot for p in case.incident.gpu_processes if p.pid not in mine][:2]
    for mount in case.incident.mounts:
        if (cause == "host.shm-exhausted" and mount.path == SHARED_MEMORY) or cause in (
            "storage.disk-full",
            "storage.quota-exceeded",
        ):
            spots.append(mount.spot)
    return spots


def _exit(case: Case, rank: int | None) -> list[Spot | None]:
    place = case.incident.ranks.get(rank) if rank is not None else None
    return [place.exit_spot] if place else []


def guilty(case: Case, items: Sequence[Raised | Event]) -> tuple[int | None, str | None]:
    """(rank, host) that a set of equal errors points at. An error that all ranks raise is nobody's."""
    ranks = {r.rank for r in items if r.rank is not None}
    hosts = {h for r in items if (h := r.host or case.host_of(r.rank))}
    if not ranks:
        rank = _unnamed(case)
        return rank, case.host_of(rank) or (next(iter(hosts)) if len(hosts) == 1 else None)
    if len(ranks) == 1:
        rank = next(iter(ranks))
        return rank, case.host_of(rank) or (next(iter(hosts)) if len(hosts) == 1 else None)
    if len(hosts) == 1 and len(case.incident.hosts) > 1 and _all_of_host(case, ranks, next(iter(hosts))):
        return None, next(iter(hosts))
    known = set(case.incident.ranks) | ranks
    if 2 * len(ranks) > len(known):
        return None, None
    return _earliest(items), None


def _all_of_host(case: Case, ranks: set[int], host: str) -> bool:
    return ranks >= set(case.ranks_on(host)) or len(ranks) > 1


def _earliest(items: Sequence[Raised | Event]) -> int | None:
    timed = sorted(((r.stamp.time_s, r.rank) for r in items if r.stamp and r.rank is not None), key=lambda x: x[0])
    return timed[0][1] if len(timed) > 1 and timed[1][0] - timed[0][0] > 1.0 else None


def _unnamed(case: Case) -> int | None:
    """The rank of an error that carries no label: the one the others waited for, or the one that ended otherwise."""
    if (missing := absent(case)) is not None and len(missing.ranks) == 1:
        return missing.ranks[0]
    odd = [r for r, code in case.failed_exits.items() if code not in (-6, -15, -9, 134, 143, 137)]
    if len(odd) == 1:
        return odd[0]
    first = case.of("el-exit")
    if len(first) == 1 and first[0].rank is not None and case.incident.ranks[first[0].rank].exit_code not in (-6, -15):
        return first[0].rank
    return (
        next(iter(case.incident.ranks))
        if len(case.incident.ranks) == 1 and (case.incident.world_size or 1) == 1
        else None
    )


def _plain(case: Case, have: set[str]) -> Iterator[Candidate]:
    """Fatal lines that no exception carries: native libraries and loggers report so."""
    lines = {r.spot.line for r in case.incident.raised}
    groups: dict[str, list[Event]] = {}
    for event in case.events:
        wanted = (
            event.role == "root" and not event.kernel and not event.handled and event.layer in ("app", "nccl", "torch")
        )
        if (
            wanted
            and event.cause not in have
            and not event.cause.startswith((*_ELSEWHERE, "host.oom", "app.segfault"))
            and event.cause
        ) and event.spot.line not in lines:
            groups.setdefault(event.cause, []).append(event)
    for cause, items in groups.items():
        if cause == "gpu.oom" and foreign_memory(items[0].spot.text, case):
            cause = "gpu.memory-held-by-other-process"
        rank, host = guilty(case, items)
        why = f"{items[0].signature} on {'rank ' + str(rank) if rank is not None else host or 'some rank'}"
        spots = cite((e.spot for e in items[:3]), _related(case, cause, rank))
        time_s = items[0].stamp.time_s if items[0].stamp else None
        tier = (
            Tier.OWN_ERROR
            if cause in _STORAGE or cause.startswith(("gpu.", "app.", "train.", "model."))
            else Tier.SYMPTOM
        )
        yield Candidate(cause, tier, why, spots, rank, host, confidence="medium", time_s=time_s)
