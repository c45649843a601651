"""Plain named numbers from any probe: a bandwidth that a vendor tool printed, a queue time, a count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream
from ddaudit.findings import Number, Where

__all__ = ["Measure", "Measures"]


class Measure(BaseModel):
    """One number (or word) with its unit and place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: Number
    unit: str | None = None
    where: Where = Field(default_factory=Where)


class Measures(JsonEvidence):
    """All ``measure`` events of a step, in the order of ranks and time."""

    kind: ClassVar[str] = "measures"

    values: tuple[Measure, ...] = ()

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        found = [
            Measure(name=e["name"], value=e["value"], unit=e.get("unit"), where=Where(**e.get("where", {})))
            for stream in streams
            for e in stream.of("measure")
        ]
        return cls(values=tuple(found)) if found else None

    def named(self, name: str) -> list[Measure]:
        """Every measure of that name (one per place it was taken)."""
        return [m for m in self.values if m.name == name]
