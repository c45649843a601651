"""The engine's own event file, ``events/run.jsonl``, typed: how the run began, how each step ended, how the run did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddaudit.engine.baselines import Baseline
from ddaudit.engine.folder import JOURNAL, refuse_links
from ddaudit.engine.measured import named_device
from ddaudit.engine.outcome import Standards, State
from ddaudit.engine.waivers import Waivers
from ddaudit.errors import EvidenceProblem
from ddaudit.evidence.events import Stream, read_stream
from ddaudit.evidence.jobend import JobEnd
from ddaudit.findings import Severity
from ddaudit.packs import Failure
from ddaudit.runbook.model import Plan

__all__ = ["Ended", "Head", "Journal", "Settings", "read_journal", "read_plan"]

#: Of the plan, and of the journal: a step takes a few kB of either.
MAX_BYTES = 64 << 20
#: A step's id, or that of one of its attempts. Both name folders, so they may not lead elsewhere.
STEP_ID = r"[A-Za-z0-9_-]{1,64}"
Attempt = Annotated[str, Field(pattern=rf"^{STEP_ID}(\.[a-z]+\d+){{0,3}}$")]
M = TypeVar("M", bound=BaseModel)


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Settings(_Event):
    """How a run is concluded. Kept in the journal, so that a report or a resumed run concludes the same."""

    fail_on: Severity = Severity.MAJOR
    strict: bool = False
    warn_as_fail: bool = False
    waivers: Waivers = Field(default_factory=Waivers)
    baseline: Baseline | None = None

    def standards(self, facts: Mapping[str, Any]) -> Standards:
        """What steps are held against on a machine with these facts."""
        return Standards(self.waivers, self.baseline, named_device(facts))


class Head(_Event):
    """The event ``run``."""

    command: str
    created: float
    facts: Mapping[str, Any]
    options: Settings = Field(default_factory=Settings)

    @property
    def standards(self) -> Standards:
        return self.options.standards(self.facts)


class Ended(_Event):
    """The event ``step``. ``params`` are what the ranks were told, with ``$step.metric`` filled in."""

    id: str
    state: State
    reason: str | None = None
    started: float | None = None
    seconds: float | None = None
    folder: Attempt | None = None
    answer: str | None = None
    params: Mapping[str, Any] = Field(default_factory=dict)


class End(_Event):
    """The event ``end``. ``signal`` is what ended the run early."""

    seconds: float
    signal: int | None = Field(None, ge=1, le=64)


class _PackFailure(_Event):
    failure: dict[str, str]


@dataclass(frozen=True)
class Journal:
    """What the file holds. ``ended`` is in the order of time; of a step that ended twice, the last word counts.
    ``end`` is None while the run goes on, and for ever when it was killed. ``job`` is the scheduler's last word on the
    job that the run ended with, None where nobody asked it."""

    head: Head
    failures: tuple[Failure, ...] = ()
    ended: Mapping[str, Ended] = field(default_factory=dict)
    end: End | None = None
    seconds: float = 0.0
    job: JobEnd | None = None

    def completes(self, plan: Plan) -> bool:
        """True when the run came to its own end, and no step of a sweep is missing for a damaged line."""
        whole = plan.mode == "triage" or all(step.id in self.ended for step in plan.steps)
        return self.end is not None and self.end.signal is None and whole


def read_journal(run_dir: Path) -> Journal:
    """Reads the journal; damaged lines are dropped, as in every event file.

    Raises:
        EvidenceProblem: no journal, or one without a head.
    """
    refuse_links(run_dir)
    path = run_dir / JOURNAL
    if not path.is_file():
        expected = "a run folder that `ddaudit run` wrote"
        raise EvidenceProblem(f"no {JOURNAL}", where=str(run_dir), expected=expected)
    _refuse_huge(path)
    stream = read_stream(path)
    heads = _typed(stream, "run", Head)
    if not heads:
        raise EvidenceProblem("the journal has no head", where=str(path), expected="an event `run` first")
    ended: dict[str, Ended] = {}
    for event in _typed(stream, "step", Ended):
        ended.pop(event.id, None)
        ended[event.id] = event
    starts = ("run", "resume", "end")
    last = next((e["event"] for e in reversed(stream.events) if e["event"] in starts), "run")
    ends = _typed(stream, "end", End)
    failures = tuple(_failure(e.failure) for e in _typed(stream, "pack-failure", _PackFailure))
    seconds = round(sum(e.seconds for e in ends), 3)
    end = ends[-1] if ends and last == "end" else None
    return Journal(heads[0], failures, ended, end, seconds, _last_job(stream))


def _last_job(stream: Stream) -> JobEnd | None:
    """The last word that names what ended the job, else the last one. What was said of an earlier try of the job does
    not hold for the present one."""
    began = max((i for i, e in enumerate(stream.events) if e["event"] in ("run", "resume")), default=0)
    told = _typed(Stream(stream.name, stream.events[began:]), "job", JobEnd)
    return next((job for job in reversed(told) if job.ended_by is not None), told[-1] if told else None)


def _refuse_huge(path: Path) -> None:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise EvidenceProblem(f"{size} bytes", where=str(path), expected=f"at most {MAX_BYTES}")


def _typed(stream: Stream, event: str, model: type[M]) -> list[M]:
    found = []
    for item in stream.of(event):
        try:
            found.append(model.model_validate(item))
        except ValidationError:
            continue  # a damaged line; the step it told of counts as one that never ended
    return found


def _failure(told: Mapping[str, str]) -> Failure:
    return Failure(**{name: str(told.get(name, "not known")) for name in ("pack", "file", "error", "trace")})


def read_plan(run_dir: Path) -> Plan:
    """Reads ``plan.json``.

    Raises:
        EvidenceProblem: missing, too large, not a plan, or with step ids that would lead out of the folder.
    """
    refuse_links(run_dir)
    path = run_dir / "plan.json"
    if not path.is_file():
        expected = "a run folder that `ddaudit run` wrote"
        raise EvidenceProblem("no plan.json", where=str(run_dir), expected=expected)
    _refuse_huge(path)
    try:
        plan = Plan.model_validate(json.loads(path.read_text(encoding="utf-8")))
        for step in plan.steps:
            _Named(id=step.id)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(p) for p in first["loc"])
        raise EvidenceProblem(f"not a plan ({place}: {first['msg']})", where=str(path)) from None
    except (ValueError, RecursionError, OSError) as error:
        raise EvidenceProblem(f"not a plan ({str(error).splitlines()[0]})", where=str(path)) from None
    return plan


class _Named(_Event):
    id: Annotated[str, Field(pattern=rf"^{STEP_ID}$")]
