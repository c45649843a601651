"""What a runbook says, typed: the page (:class:`Runbook`, :class:`Step`) and the resolved :class:`Plan`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ddaudit.findings import Severity
from ddaudit.runbook.lines import locate

__all__ = ["Edges", "Param", "Plan", "PlannedStep", "Runbook", "Seconds", "Step", "parse_duration"]


def parse_duration(value: Any) -> float:
    """``"90s"``, ``"2m"``, ``"1h"``, ``"250ms"`` or a number of seconds -> seconds (> 0)."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
    if isinstance(value, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|m|h)", value)):
        seconds = float(found[1]) * units[found[2]]
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
    """One ``toml step <id>`` fence.

    ``line`` is the fence's opening line in the file (1-based) and ``toml`` its text, so that messages can name the
    line of a key.
    """

    id: str
    title: str
    line: int
    toml: str = Field("", repr=False)
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

    def line_of(self, *keys: str) -> int:
        """Line of a key (``"limits", "parallel", "grad_rel_l2"``), or of as much of that path as can be found."""
        return self.line + locate(self.toml, keys)


class Runbook(_Strict):
    """A whole page: the ``toml runbook`` header fence and its steps in order."""

    id: str
    title: str
    path: str
    line: int = 1
    toml: str = Field("", repr=False)
    mode: Literal["sweep", "triage"] = "sweep"
    owner: str | None = None
    budget: Seconds | None = None
    start: str | None = None
    params: Mapping[str, Param] = Field(default_factory=dict)
    tags: tuple[str, ...] = ()
    prose: str = ""
    steps: tuple[Step, ...] = ()

    def step(self, id: str) -> Step:
        """The step of that id; KeyError when there is none."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(id)

    def line_of(self, *keys: str) -> int:
        """Line of a key of the header fence."""
        return self.line + locate(self.toml, keys)

    def source(self, line: int) -> str:
        """``scale-out.md:31``: the place without the machine's own path, as reports print it."""
        return f"{PurePath(self.path).name}:{line}"


class PlannedStep(_Strict):
    """A step with its parameters filled in.

    ``params``, ``where``, ``when``, ``remedy`` and ``manual`` may still hold ``$step.metric`` (and ``$$`` for a plain
    ``$``): :func:`ddaudit.runbook.resolve` finishes them when the step starts. ``checks`` are ids, globs already
    expanded. ``limits`` maps ``family.metric`` to bounds, each with its own ``source`` (``file:line``); ``source`` is
    the step's.
    """

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
