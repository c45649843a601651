"""How launchers say that a rank ended: srun, torchelastic's banner, mpirun, DeepSpeed, torch's spawn."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from ddaudit.evidence.incident import Spot
from ddaudit.triage.readers.collect import Gathered

__all__ = ["SRUN_CODES", "ended"]

SRUN_CODES = {
    "Aborted": -6,
    "Killed": -9,
    "Terminated": -15,
    "Segmentation fault": -11,
    "Bus error": -7,
    "Out Of Memory": -9,
    "Illegal instruction": -4,
}


def ended(signature: str, fields: Mapping[str, str], where: Spot, host: str | None, into: Gathered) -> None:
    """Learns a rank's end from the lines of other launchers than srun and torchelastic.

    DeepSpeed and spawn count local ranks; they are taken for global ones where the bundle knows one host at most.
    """
    code = int(fields["code"]) if re.fullmatch(r"-?\d+", fields.get("code", "")) else _signal(fields.get("sig"))
    if signature == "mpi-exit":
        pid = int(fields["pid"]) or None
        into.know(int(fields["rank"]), host=fields.get("peer"), pid=pid, exit_code=code, exit_spot=where)
        return
    local = int(fields["local"])
    if len(into.hosts) <= 1:
        into.know(local, host=host, local_rank=local, exit_code=code, exit_spot=where)


def _signal(name: str | None) -> int | None:
    if name is None:
        return None
    if name.isdigit():
        return -int(name)
    known = getattr(signal, name, None)
    return -int(known) if known is not None else None
