"""What a scheduler says of a whole job once it ends, or once it is told to: its waits, and what ended it. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["JobEnd"]

#: Reasons by which Slurm keeps a job back -> what for. Every other reason is a wait for nodes.
KEPT_BACK = {
    "JobHeldUser": "hold",
    "JobHeldAdmin": "hold",
    "Dependency": "dependency",
    "DependencyNeverSatisfied": "dependency",
    "BeginTime": "begin",
}
#: Slurm warns up to half a minute before ``--signal`` asks for it, and the job's script asks for at most a minute.
NEAR_S = 95.0
TERM_CODE = 128 + signal.SIGTERM


class JobEnd(BaseModel):
    """A job as Slurm told it last. ``exit_code`` is its script's, None where a signal ended that.

    ``queue_s`` is Start - Eligible and ``held_s`` Eligible - Submit, of whole seconds each. ``waits`` are the seconds
    that the job was seen to wait for each of Slurm's reasons, empty where nobody watched. ``left_s`` is how far its
    time limit was when it ended, None without a limit. ``preempted``: Slurm gave it grace to make room for another job.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str
    state: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = Field(0, ge=0)
    queue_s: float | None = None
    held_s: float | None = None
    absent: str | None = None
    nodes: str | None = None
    waits: Mapping[str, float] = {}
    left_s: float | None = None
    preempted: bool = False

    @property
    def ended_by(self) -> str | None:
        """The state of Slurm that names what ended the job; None where its own script did.

        A job that is warned of its time limit, or given grace before it is preempted, ends in order before that, and
        Slurm calls it a failed script. It shows by TERM being what ended it, with little time left; a grace shortens
        the time that is left too.
        """
        if self.reason == "TimeLimit":
            return "TIMEOUT"
        told = self.exit_code == TERM_CODE or self.signal == signal.SIGTERM
        if self.state in ("FAILED", "RUNNING") and told and self.preempted:
            return "PREEMPTED"
        if self.state in ("FAILED", "RUNNING") and told and self.left_s is not None and self.left_s <= NEAR_S:
            return "TIMEOUT"
        return None if self.state in ("COMPLETED", "FAILED", "RUNNING", "COMPLETING") else self.state

    @property
    def kept_back_s(self) -> Mapping[str, float]:
        """Seconds between submission and eligibility by what they were for: "hold", "dependency", "begin".

        The scheduler's own sum is shared out as the waits were watched; "unknown" where nobody did.
        """
        if not self.held_s:
            return {}
        seen: dict[str, float] = {}
        for reason, seconds in self.waits.items():
            if reason in KEPT_BACK:
                seen[KEPT_BACK[reason]] = seen.get(KEPT_BACK[reason], 0.0) + seconds
        total = sum(seen.values())
        return {k: self.held_s * s / total for k, s in seen.items()} if total > 0 else {"unknown": self.held_s}

    @property
    def queued_for(self) -> str | None:
        """Slurm's reason for the longest part of the wait for nodes."""
        queued = {reason: s for reason, s in self.waits.items() if reason not in KEPT_BACK}
        return max(queued, key=lambda reason: queued[reason], default=None)
