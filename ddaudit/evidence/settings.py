"""What every rank was started with: versions, variables, limits, mounts; differences explain more than hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream

__all__ = ["RankSettings", "SettingsReport"]


class RankSettings(BaseModel):
    """Settings of one rank as text, by a dotted name: ``version.torch``, ``variable.NCCL_ALGO``, ``limit.nofile``,
    ``mount./dev/shm``, ``machine.kernel``. A name that a rank does not have is unset there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int
    host: str
    settings: Mapping[str, str]


class SettingsReport(JsonEvidence):
    """Settings of all ranks, in rank order."""

    kind: ClassVar[str] = "settings"

    ranks: tuple[RankSettings, ...] = ()

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        found = [RankSettings.model_validate(e["settings"]) for s in streams for e in s.of("settings")]
        return cls(ranks=tuple(sorted(found, key=lambda r: r.rank))) if found else None
