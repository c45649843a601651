"""What a runbook says, typed: the page (:class:`Runbook`, :class:`Step`) and the resolved :class:`Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ddaudit.findings import Severity

__all__ = ["Edges", "Param", "Plan", "PlannedStep", "Runbook", "Seconds", "Step", "parse_duration"]


def parse_duration(value: Any) -> float:
    """``"90s"``, ``"2m"``, ``"1h"``, ``"250ms"`` or a number of seconds -> seconds (> 0)."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    if isinstance(value, str):
        number = value.rstrip("msh")
        if value[len(number) :] not in units:
            raise ValueError(f"{value!r} is no duration; write 90s, 2m or 1h")
        seconds = float(number) * units[value[len(number) :]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise ValueError(f"{value!r} is no duration; write 90s, 2m or 1h")
    if not 0 < seconds < 30 * 86400:
        raise ValueError(f"{value!r} is out of range; more than 0 and less than 30 days")
    return seconds


Seconds = Annotated[float, BeforeValidator(parse_duration)]
Target = str
"""Of an edge: a step id, ``next``, ``stop``, or ``runbook:<id>``."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Param(_Strict):
    """A parameter of a runbook, set with ``-P name=value``."""

    type: Literal["int", "float", "str", "bool"] = "str"
    default: int | float | str | bool | None = None
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] | None = None
    help: str = ""


class Edges(_Strict):
    """Where a triage walk goes after each outcome. In sweep mode only ``stop`` has a meaning."""

    passed: Target = Field("next", alias="pass")
    warn: Target = "next"
    fail: Target = "next"
    error: Target = "next"
    skip: Target = "next"


class Step(_Strict):
    """One ``toml step <id>`` fence. ``line`` is the fence's first line in the file, for messages."""

    id: str
    title: str
    line: int
    prose: str = ""
    probe: str | None = None
    manual: str | None = None
    with_: Mapping[str, Any] = Field(default_factory=dict, alias="with")
    checks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    when: str | None = None
    where: str | None = None
    nproc: int | str | None = None
    timeout: Seconds = 120.0
    retries: int = Field(0, ge=0, le=10)
    repeat: int = Field(1, ge=1, le=100)
    severity: Severity = Severity.MAJOR
    limits: Mapping[str, Any] = Field(default_factory=dict)
    on: Edges = Field(default_factory=Edges)
    required: bool | None = None
    always: bool = False
    remedy: str | None = None


class Runbook(_Strict):
    """A whole page: the ``toml runbook`` header fence and its steps in order."""

    id: str
    title: str
    path: str
    mode: Literal["sweep", "triage"] = "sweep"
    owner: str | None = None
    budget: Seconds | None = None
    start: str | None = None
    params: Mapping[str, Param] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    prose: str = ""
    steps: tuple[Step, ...] = ()


class PlannedStep(_Strict):
    """A step with its parameters filled in. ``params`` may still hold ``$step.metric`` strings, resolved when the
    step starts. ``limits`` maps ``family.metric`` to bounds; ``source`` is the step's ``file:line``."""

    id: str
    title: str
    prose: str = ""
    source: str
    runbook: str
    probe: str | None = None
    manual: str | None = None
    params: Mapping[str, Any] = Field(default_factory=dict)
    checks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    when: str | None = None
    where: str | None = None
    nproc: int = 1
    timeout_s: float = 120.0
    retries: int = 0
    repeat: int = 1
    severity: Severity = Severity.MAJOR
    limits: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    on: Edges = Field(default_factory=Edges)
    required: bool | None = None
    always: bool = False
    remedy: str | None = None


class Plan(_Strict):
    """What a run will do, written to ``plan.json`` before anything starts: ranks read their orders from it."""

    schema_: Literal["ddaudit-plan/1"] = Field("ddaudit-plan/1", alias="schema")
    run_id: str
    runbook: str
    title: str
    mode: Literal["sweep", "triage"] = "sweep"
    start: str | None = None
    budget_s: float | None = None
    device: str = "cpu"
    seed: int = 0
    params: Mapping[str, Any] = Field(default_factory=dict)
    packs: tuple[str, ...] = ()
    steps: tuple[PlannedStep, ...] = ()

    def step(self, id: str) -> PlannedStep:
        return next(s for s in self.steps if s.id == id)
