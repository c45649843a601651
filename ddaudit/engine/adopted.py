"""A run folder that no ddaudit command made: events of a process that imported ``ddaudit.watch.auto``.

It has no plan and no journal, and the process may still train: both are made up in memory each time it is judged.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from ddaudit.engine.facts import collect
from ddaudit.engine.folder import JOURNAL
from ddaudit.engine.journal import End, Ended, Head, Journal, Settings
from ddaudit.engine.rebuild import build_record, judged_from_disk
from ddaudit.engine.waivers import Waivers
from ddaudit.engine.watched import NO_RANK, watch_plan
from ddaudit.evidence.events import Stream, read_streams
from ddaudit.packs import Packs
from ddaudit.record import Record

__all__ = ["is_adopted", "judge_adopted"]

STEP = "script"


def is_adopted(run_dir: Path) -> bool:
    """True for a folder with events of ranks, and without the plan and journal that a command writes first."""
    ours = (run_dir / "plan.json").exists() or (run_dir / JOURNAL).exists()
    return not ours and any((run_dir / "events" / STEP).glob("*.jsonl"))


def judge_adopted(run_dir: Path, packs: Packs, waivers: Waivers | None = None, runbook: str = "pre-merge") -> Record:
    """Judges what the ranks have recorded by now as ``ddaudit watch`` with these waivers would."""
    streams = read_streams(run_dir / "events" / STEP)
    first, last = _span(streams)
    plan, step = watch_plan(packs, runbook, run_id=run_dir.name)
    told = any(stream.first("rank") for stream in streams)
    ended = Ended(
        id=step.id, state="done" if told else "failed", reason=None if told else NO_RANK, started=first,
        seconds=round(last - first, 3), folder=STEP,
    )  # fmt: skip
    facts = collect("cpu", "the script decides", ["ddaudit", "report", run_dir.name])
    head = Head(
        command="watch",
        created=first,
        facts=facts | {"runbook": plan.runbook, "judged_on": socket.gethostname()},
        options=Settings(waivers=waivers or Waivers()),
    )
    journal = Journal(head, (), {step.id: ended}, End(seconds=last - first), round(last - first, 3))
    judged = judged_from_disk(run_dir, plan, journal, packs.registry)
    record = build_record(journal, plan, judged, None)
    script: dict[str, Any] = {"argv": [], "exit_code": None, "signal": None}
    return record.model_copy(update={"extra": {"script": script, "trace": str(run_dir / "events" / STEP)}})


def _span(streams: list[Stream]) -> tuple[float, float]:
    """Wall clock of the first and the last event."""
    times = [float(e["t"]) for s in streams for e in s.events if isinstance(e.get("t"), int | float)]
    return (min(times), max(times)) if times else (0.0, 0.0)
