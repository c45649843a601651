"""Where this process stands in its collectives, read from torch's Flight Recorder."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

__all__ = ["position", "switch_on"]

#: Entries the Flight Recorder keeps. Only the last few collectives matter to tell who is behind, and a dump of 256
#: takes about a millisecond.
ENTRIES = 256


def switch_on() -> None:
    """Asks for recording. Call before the first process group is made: libtorch reads the variable then."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES))


def position() -> dict[str, dict[str, Any]]:
    """Where this rank stands in each process group, by the Flight Recorder (gloo records it too, measured in 2.13).

    Returns:
        group name -> ``enqueued`` and ``completed`` sequence numbers, and ``op`` and ``sizes`` of the last one
        enqueued; empty when torch is not loaded or no group exists.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return {}
    dump = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    groups: dict[str, dict[str, Any]] = {}
    for entry in dump.get("entries", []):
        if entry["is_p2p"]:
            continue
        status = dump["pg_status"].get(str(entry["pg_id"]), {})
        groups[entry["process_group"][0]] = {
            "enqueued": entry["collective_seq_id"],
            "completed": int(status.get("last_completed_collective", -1)),
            "op": entry["profiling_name"],
            "sizes": entry["input_sizes"],
        }
    return groups
