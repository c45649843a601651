"""What a probe is handed: who it is, where it may write, and how it records facts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddaudit.evidence.events import EventWriter

__all__ = ["ProbeContext"]


@dataclass
class ProbeContext:
    """One process of one step.

    Attributes:
        step: the runbook step's id.
        rank, world_size, local_rank: torchrun's meanings; a host probe is rank 0 of 1.
        host: name of this host as findings print it.
        device: "cpu" or "cuda".
        run_dir: the run folder. Writing is allowed in ``scratch`` only.
        scratch: this step's folder for files that outlive it (checkpoints), shared by its ranks.
        events: this process's event file.
        deadline: ``time.monotonic()`` at which the launcher will end the step.
        facts: what the engine knew when the step began, for remedies and placement.
        packs: folders of the packs in use besides the built-in one.
    """

    step: str
    rank: int
    world_size: int
    local_rank: int
    host: str
    device: str
    run_dir: Path
    scratch: Path
    events: EventWriter
    deadline: float
    seed: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    packs: tuple[str, ...] = ()

    def remaining_s(self) -> float:
        """Seconds until the step's deadline, never negative."""
        return max(0.0, self.deadline - time.monotonic())

    def measure(self, name: str, value: float | int | str | None, unit: str | None = None, **where: Any) -> None:
        """Records one named number; ``where`` takes the fields of :class:`ddaudit.findings.Where`."""
        self.events.emit("measure", name=name, value=value, unit=unit, where={"host": self.host, **where})
