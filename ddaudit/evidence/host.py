"""What else runs on a host: who competes with the ranks for its cores."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

__all__ = ["HostLoad", "Neighbour"]


class Neighbour(BaseModel):
    """A process that is not ours. ``cores`` is its mean CPU use over the window in cores (1.0 = one core busy)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    name: str
    user: str | None = None
    cores: float


class HostLoad(JsonEvidence):
    """CPU use of a host over a window of ``seconds`` in which ddaudit itself was idle."""

    kind: ClassVar[str] = "host-load"

    host: str
    seconds: float
    cores: int
    """Cores this process may use."""
    others_cores: float
    """CPU use of all other processes together, in cores."""
    steal_cores: float | None = None
    """Time the hypervisor gave to other machines, in cores; None where it is not reported."""
    neighbours: tuple[Neighbour, ...] = ()
    """The largest, most first."""
