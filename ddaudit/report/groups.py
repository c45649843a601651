"""Findings that say the same thing of many ranks, hosts or tensors become one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddaudit.findings import Finding
from ddaudit.report.numbers import spread
from ddaudit.report.safe import visible

__all__ = ["Group", "group", "place", "ranges"]


@dataclass(frozen=True)
class Group:
    """Findings of one check, id, step, status and severity, with their indices in the record."""

    indices: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def order(self) -> tuple[int, int]:
        """Larger is worse."""
        return self.first.status.rank, self.first.severity.rank

    @property
    def text(self) -> str:
        """The sentence, with the number of findings that word it differently."""
        others = len({f.text for f in self.findings}) - 1
        return visible(self.first.text) + (f" (and {others} more like it)" if others else "")

    @property
    def where(self) -> str:
        return place(self.findings)

    @property
    def measured(self) -> str:
        return spread([f.measured for f in self.findings], self.first.unit)

    @property
    def limit(self) -> str:
        return spread([f.limit for f in self.findings], self.first.unit)


def group(findings: Iterable[tuple[int, Finding]]) -> list[Group]:
    """Groups indexed findings, worst first and otherwise in the record's order."""
    found: dict[tuple[object, ...], list[tuple[int, Finding]]] = {}
    for index, finding in findings:
        key = (finding.status, finding.severity, finding.check, finding.id, finding.step, finding.unit)
        found.setdefault(key, []).append((index, finding))
    groups = [Group(tuple(i for i, _ in items), tuple(f for _, f in items)) for items in found.values()]
    return sorted(groups, key=lambda g: g.order, reverse=True)


def place(findings: Sequence[Finding]) -> str:
    """Where a group points: ``ranks 0-7 on node05``, ``3 tensors: a, b, c``, ``step 4``; empty when nobody says."""
    wheres = [f.where for f in findings]
    ranks = sorted({w.rank for w in wheres if w.rank is not None})
    hosts = _distinct(w.host for w in wheres)
    devices = _distinct(w.device for w in wheres)
    steps = sorted({w.step for w in wheres if w.step is not None})
    parts = []
    if ranks:
        parts.append(f"{'rank' if len(ranks) == 1 else 'ranks'} {ranges(ranks)}")
    if hosts:
        parts.append(f"on {_listed(hosts, 'hosts')}" if ranks else _listed(hosts, "hosts"))
    if devices:
        parts.append(_listed(devices, "devices"))
    for name, values in (
        ("file", _distinct(w.file for w in wheres)),
        ("key", _distinct(w.key for w in wheres)),
        ("tensor", _distinct(w.tensor for w in wheres)),
    ):
        if values:
            parts.append(f"{name} {values[0]}" if len(values) == 1 else _listed(values, f"{name}s"))
    if steps:
        parts.append(f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)}")
    return ", ".join(parts).replace(", on ", " on ")


def ranges(numbers: Sequence[int]) -> str:
    """``[0, 1, 2, 5]`` -> ``0-2, 5``; beyond eight runs the rest is counted."""
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:8]]
    rest = sum(b - a + 1 for a, b in runs[8:])
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _distinct(values: Iterable[str | None]) -> list[str]:
    return [visible(v, 120) for v in dict.fromkeys(v for v in values if v)]


def _listed(values: list[str], plural: str) -> str:
    if len(values) == 1:
        return values[0]
    return f"{len(values)} {plural}: {', '.join(values[:4])}{' …' if len(values) > 4 else ''}"
