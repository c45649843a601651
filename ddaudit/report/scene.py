"""Where a run took place and what it trained, gathered from facts and evidence; nothing is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.record import Record, StepRecord
from ddaudit.report.numbers import duration
from ddaudit.report.safe import visible

__all__ = ["backends", "capacity", "first_line", "hosts", "parallelism", "world_size"]


def _places(record: Record) -> Iterator[Mapping[str, Any]]:
    """Every rank's ``{rank, host, device}`` that the evidence names."""
    for step in record.steps:
        for evidence in step.evidence.values():
            ranks = evidence.get("ranks")
            yield from (r for r in ranks if isinstance(r, Mapping)) if isinstance(ranks, list | tuple) else ()


def hosts(record: Record) -> tuple[str, ...]:
    """Names of the hosts that took part, in order of appearance."""
    found = record.facts.get("hosts")
    named = list(found) if isinstance(found, list | tuple | Mapping) else []
    named += [record.facts["host"]] if isinstance(record.facts.get("host"), str) else []
    named += [p["host"] for p in _places(record) if isinstance(p.get("host"), str)]
    return tuple(dict.fromkeys(visible(h, 120) for h in named))


def world_size(step: StepRecord) -> int | None:
    """Ranks that a step was run with, from its evidence or summary."""
    sources = [step.summary, *step.evidence.values()]
    sources += [job for e in step.evidence.values() if isinstance(job := e.get("job"), Mapping)]
    sizes = [s.get("world_size") for s in sources]
    return next((n for n in sizes if isinstance(n, int)), None)


def parallelism(record: Record, step: StepRecord) -> str | None:
    """The parallelism that a step trained under (``data``, ``tensor`` ...), or None when it trained nothing."""
    job = step.evidence.get("training", {}).get("job")
    planned = record.plan.steps if record.plan else ()
    params = next((p.params for p in planned if p.id == step.id and p.probe == "train"), {})
    sources: list[Any] = [job if isinstance(job, Mapping) else {}, step.summary, params]
    found = next((s.get("parallel") for s in sources if s.get("parallel")), None)
    return visible(found, 60) if isinstance(found, str) else None


def backends(record: Record) -> set[str]:
    """Names of communication backends that the run says it used, lower case."""
    named = [record.facts.get("backend"), *(s.summary.get("backend") for s in record.steps)]
    return {part.lower() for b in named if isinstance(b, str) for part in b.replace(",", " ").split()}


def first_line(record: Record) -> str:
    """The verdict line without its mark: runbook, place, duration, run id."""
    parts = [visible(record.plan.runbook if record.plan else record.command, 80)]
    ranks = max((n for s in record.steps if (n := world_size(s)) is not None), default=None)
    found = hosts(record)
    place = [f"{ranks} {_plural('rank', ranks)}"] if ranks else []
    place += [f"on {len(found)} hosts" if len(found) > 1 else f"on {found[0]}"] if found else []
    if kind := _device(record):
        place.append(f"({kind})")
    if place:
        parts.append(" ".join(place))
    if record.seconds is not None:
        parts.append(f"in {duration(record.seconds)}")
    parts.append(f"run {visible(record.run_id, 80)}")
    return "  ".join(parts)


def _device(record: Record) -> str:
    for key in ("device_name", "gpu", "device"):
        if isinstance(record.facts.get(key), str):
            return visible(record.facts[key], 60)
    return visible(record.plan.device, 60) if record.plan else ""


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def capacity(record: Record, kind: str) -> float | None:
    """Bytes that a rank could use: of the smallest device of the run, or of the host's memory shared by its ranks.

    ``kind`` is "device" or "process".
    """
    if kind == "process":
        found = record.facts.get("memory_bytes")
        ranks = record.facts.get("ranks")
        share = ranks if isinstance(ranks, int) and ranks > 0 and len(hosts(record)) == 1 else 1
        return float(found) / share if isinstance(found, int | float) else None
    reports = [step.evidence.get("devices", {}).get("devices", ()) for step in record.steps]
    sizes = [d.get("memory_bytes") for devices in reports for d in devices if isinstance(d, Mapping)]
    return min((float(s) for s in sizes if isinstance(s, int | float)), default=None)
