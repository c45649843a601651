"""Where a Slurm job's nodes lie, and what its earlier tries took: the texts of scontrol and sacct, read. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ddaudit.evidence.scheduler import EarlierTry, JobPlacement
from ddaudit.triage.readers.slurm import expand_hosts

__all__ = [
    "HISTORY",
    "devices_of",
    "earlier_tries",
    "epoch",
    "fewest",
    "field_of",
    "leaves_of",
    "names_of",
    "placement",
]

#: Columns that :func:`earlier_tries` needs.
HISTORY = ("JobID", "State", "Start", "End", "ElapsedRaw")
GOING_ON = frozenset({"RUNNING", "COMPLETING", "PENDING", "SUSPENDED", "CONFIGURING"})


def field_of(record: str, name: str) -> str | None:
    """A field of ``scontrol -o show job``'s first line; None where it is empty or occurs with two values, since free
    text may hold anything."""
    found = set(re.findall(rf"(?:^|\s){re.escape(name)}=(\S+)", record.strip().partition("\n")[0]))
    value = found.pop() if len(found) == 1 else None
    return None if value in (None, "(null)", "None", "Unknown", "N/A") else value


def epoch(text: str | None) -> float | None:
    """Seconds since the epoch of one of Slurm's local times."""
    try:
        return time.mktime(datetime.fromisoformat(text or "").timetuple())
    except (ValueError, OverflowError):
        return None


def devices_of(record: str) -> tuple[int | None, str]:
    """How many GPUs the job holds, or else CPUs, and which of the two."""
    held = field_of(record, "AllocTRES") or field_of(record, "TRES") or ""
    for name, kind in (("gres/gpu", "GPUs"), ("cpu", "CPUs")):
        if found := re.search(rf"(?:^|,){name}=(\d{{1,9}})(?:,|$)", held):
            return int(found[1]), kind
    return None, "devices"


def leaves_of(topology: str, nodes: Sequence[str]) -> tuple[dict[str, int], tuple[int, ...]]:
    """How many of the nodes hang on each leaf switch (or block), and how many nodes each leaf of the cluster has, from
    ``scontrol -o show topology``."""
    wanted = set(nodes)
    held: dict[str, int] = {}
    sizes: list[int] = []
    for line in topology.splitlines():
        name = re.match(r"\s*(?:SwitchName|BlockName)=(\S+)", line)
        listed = re.search(r"\sNodes=(\S+)", line)
        level = re.search(r"\sLevel=(\d+)", line)
        if name and listed and (level is None or level[1] == "0"):
            there = set(expand_hosts(listed[1]))
            sizes.append(len(there))
            if there & wanted:
                held[name[1]] = len(there & wanted)
    return held, tuple(sizes)


def fewest(nodes: int, sizes: Sequence[int]) -> int | None:
    """The fewest leaves that would hold so many nodes; None where all together do not."""
    left = nodes
    for number, size in enumerate(sorted(sizes, reverse=True), 1):
        left -= size
        if left <= 0:
            return number
    return None


def names_of(nodes: Sequence[str]) -> Mapping[str, int]:
    """Nodes by the stem of their names, which often tells a rack: r1-n03 -> r1-n."""
    stems: dict[str, int] = {}
    for node in nodes:
        stem = re.sub(r"\d+$", "", node)
        stems[stem] = stems.get(stem, 0) + 1
    return stems


def earlier_tries(table: str, job: str) -> list[EarlierTry]:
    """Tries of the job before the present one, oldest first, from ``sacct --duplicates -X -P -o`` :data:`HISTORY`."""
    lines = [line.split("|") for line in table.splitlines() if "|" in line]
    if not lines or not set(HISTORY) <= set(lines[0]):
        return []
    rows = [dict(zip(lines[0], cells, strict=False)) for cells in lines[1:] if len(cells) == len(lines[0])]
    mine = [row for row in rows if row["JobID"] == job and epoch(row["Start"]) is not None]
    mine.sort(key=lambda row: row["Start"])
    before = [row for row in mine if row["State"].split(" ")[0] not in GOING_ON]
    if before and len(before) == len(mine):
        before = before[:-1]  # the job has ended: its last try is the present one
    return [
        EarlierTry(state=row["State"].split(" ")[0], start=row["Start"], end=row["End"], seconds=_seconds(row))
        for row in before
    ]


def _seconds(row: Mapping[str, str]) -> float:
    told = row["ElapsedRaw"]
    if told.isascii() and told.isdigit():
        return float(told)
    begin, end = epoch(row["Start"]), epoch(row["End"])
    return max(0.0, end - begin) if begin is not None and end is not None else 0.0


Answer = tuple[str, str | None]
"""What a program printed, and why it printed nothing of use."""


def placement(
    record: str, host: str, *, topology: Callable[[], Answer], history: Callable[[str], Answer], began: float | None
) -> JobPlacement | None:
    """Everything that the record, and the two programs asked only where they matter, tell of the job's allocation.

    ``began`` is when this run began in it, in seconds since the epoch. None without a job or without nodes.
    """
    job, listed = field_of(record, "JobId"), field_of(record, "NodeList")
    nodes = expand_hosts(listed) if listed else []
    if job is None or not nodes:
        return None
    restarts = field_of(record, "Restarts") or ""
    devices, word = devices_of(record)
    start = epoch(field_of(record, "StartTime"))
    return JobPlacement(
        host=host,
        job_id=job,
        nodes=len(nodes),
        names=names_of(nodes),
        restarts=int(restarts) if restarts.isascii() and restarts.isdigit() else None,
        devices=devices,
        device_word=word,
        # Slurm's times have whole seconds, so a run may seem to begin a moment before its job.
        idle_s=None if began is None or start is None or began < start - 1 else max(0.0, began - start),
        **_spread(nodes, topology),
        **_tries(job, restarts, start, history),
    )


def _spread(nodes: Sequence[str], topology: Callable[[], Answer]) -> dict[str, Any]:
    text, absent = topology()
    held, sizes = leaves_of(text, nodes)
    if sum(held.values()) < len(nodes):
        reason = absent or "the topology that Slurm knows does not hold all nodes of the job"
        return {"leaves_absent": reason}
    return {"leaves": held, "fewest_leaves": fewest(len(nodes), sizes)}


def _tries(job: str, restarts: str, start: float | None, history: Callable[[str], Answer]) -> dict[str, Any]:
    """Accounting is not asked about a job that was never restarted."""
    if restarts == "0":
        return {"tries": (), "requeued_s": 0.0}
    table, absent = history(job)
    tries = earlier_tries(table, job)
    if not tries:
        return {"tries_absent": absent or "accounting has no earlier try of the job"}
    ends = [epoch(t.end) for t in tries]
    begins = [*(epoch(t.start) for t in tries[1:]), start]
    waits = [max(0.0, b - e) for e, b in zip(ends, begins, strict=True) if e is not None and b is not None]
    return {"tries": tuple(tries), "requeued_s": sum(waits)}
