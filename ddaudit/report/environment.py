"""Facts about the environment, differences between nodes first, and how to repeat the run."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.jsonio import dumps
from ddaudit.record import Record
from ddaudit.report.model import Fact
from ddaudit.report.numbers import number
from ddaudit.report.safe import visible

__all__ = ["differences", "environment", "repeat", "repeat_command"]

MAX_FACTS = 400
DEPTH = 5


def environment(record: Record) -> tuple[Fact, ...]:
    """Every fact as a dotted name and a value; the command line is told by :func:`repeat`."""
    facts = [fact for fact in _flat("", record.facts, 0) if fact.name != "argv"]
    rest = len(facts) - MAX_FACTS
    return (*facts[:MAX_FACTS], *([Fact("…", f"{rest} more in record.json")] if rest > 0 else []))


def _flat(name: str, value: Any, depth: int) -> Iterator[Fact]:
    if isinstance(value, Mapping) and value and depth < DEPTH:
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item, depth + 1)
    elif isinstance(value, list | tuple) and all(not isinstance(v, Mapping | list | tuple) for v in value):
        yield Fact(visible(name, 200), visible(", ".join(number(v) for v in value) or "none", 1000))
    elif isinstance(value, Mapping | list | tuple):
        yield Fact(visible(name, 200), visible(dumps(value), 1000))
    else:
        yield Fact(visible(name, 200), visible("not known" if value is None else _plain(value), 1000))


def _plain(value: Any) -> str:
    # Versions, ports and seeds are names: no thousands separators.
    return number(value) if isinstance(value, float) else str(value)


def differences(record: Record) -> tuple[Fact, ...]:
    """Facts that differ between hosts, when ``facts["hosts"]`` maps each host to its own facts."""
    found = record.facts.get("hosts")
    if not isinstance(found, Mapping) or len(found) < 2:
        return ()
    tables = {visible(h, 120): {f.name: f.value for f in _flat("", v, 0)} for h, v in found.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    result = []
    for name in names:
        values: dict[str, list[str]] = {}
        for host, table in tables.items():
            values.setdefault(table.get(name, "not known"), []).append(host)
        if len(values) > 1:
            worded = "; ".join(f"{value} on {', '.join(hosts[:8])}" for value, hosts in values.items())
            result.append(Fact(name, visible(worded, 1000)))
    return tuple(result)


def repeat_command(record: Record) -> str:
    """The command line as one would type it, or empty when it was not recorded."""
    argv = record.facts.get("argv")
    if not isinstance(argv, list | tuple) or not argv:
        return ""
    words = [str(a) for a in argv]
    return visible(shlex.join(words))


def repeat(record: Record) -> tuple[Fact, ...]:
    """Seed, device, packs, versions and the plan's hash."""
    facts = [Fact("ddaudit", visible(record.ddaudit_version, 60)), Fact("record schema", record.schema_)]
    if plan := record.plan:
        told = dumps(plan.model_dump(by_alias=True, exclude={"run_id"}))
        digest = hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()
        facts += [
            Fact("runbook", visible(plan.runbook, 120)),
            Fact("device", visible(plan.device, 60)),
            Fact("seed", str(plan.seed)),
            Fact("plan", f"sha256 {digest[:16]}, {len(plan.steps)} steps"),
        ]
        facts += [Fact("parameters", visible(dumps(plan.params)))] if plan.params else []
        facts += [Fact("packs", visible(", ".join(plan.packs)))] if plan.packs else []
    versions = ("python", "torch", "cuda", "nccl", "driver")
    facts += [Fact(k, visible(v, 120)) for k in versions if isinstance(v := record.facts.get(k), str)]
    return tuple(facts)
