"""``ddaudit lint``: everything that can be said about runbooks and packs without devices, torch or a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ddaudit.errors import PackProblem, Problem, RunbookProblem
from ddaudit.findings import Severity
from ddaudit.packs import Packs
from ddaudit.plants import Plant
from ddaudit.registry import CheckSpec, suggest
from ddaudit.runbook import flow, rules
from ddaudit.runbook.document import parse_runbook, read_page
from ddaudit.runbook.messages import mistakes
from ddaudit.runbook.model import Runbook, Step
from ddaudit.runbook.params import defaults
from ddaudit.runbook.subject import Subject

__all__ = ["advice", "errors", "lint_packs", "lint_runbook"]

#: Rules on one step that must hold before a run, in the order in which their problems are listed.
STEP_RULES: tuple[Callable[[Subject, Step], Iterator[RunbookProblem]], ...] = (
    rules.probes,
    rules.checks,
    rules.comparisons,
    rules.variables,
    rules.parameters,
    rules.limits,
    rules.condition,
    rules.ranks,
    flow.needs,
    flow.edges,
)
#: Commands that a reader must not be led to paste: root rights, or a script straight from the network.
_DANGEROUS = re.compile(r"\bsudo\b|\|\s*(?:sudo\s+)?(?:ba|z|da|k|fi)?sh\b|\|\s*(?:python|perl|ruby)\d?\b")


def errors(runbook: Runbook, packs: Packs, values: Mapping[str, Any]) -> list[RunbookProblem]:
    """Every mistake that would stop or falsify a run. ``values`` holds the parameters; None is "not known yet"."""
    subject = Subject(runbook, packs, {name: value for name, value in values.items() if value is not None})
    return [*flow.header(subject), *(p for step in runbook.steps for rule in STEP_RULES for p in rule(subject, step))]


def advice(runbook: Runbook) -> Iterator[RunbookProblem]:
    """What would run, but should not be committed: pages that mislead the reader who follows them at night."""

    def problem(step: Step | None, key: str, what: str, expected: str | None, fix: str | None) -> RunbookProblem:
        return Subject(runbook, Packs(), {}).problem(step, [key], what, expected, fix)

    if Path(runbook.path).stem != runbook.id:
        what = f"id is {runbook.id!r}, but the file is called {Path(runbook.path).name!r}"
        yield problem(None, "id", what, "the same name, since runbooks are called by it", f"rename to {runbook.id}.md")
    if runbook.budget is not None and (total := flow.longest_s(runbook)) > runbook.budget:
        what = (
            f"timeouts (with retries and repeats) add up to {total:g} s, more than the budget of {runbook.budget:g} s"
        )
        yield problem(None, "budget", what, None, "raise the budget or lower the timeouts")
    for step in flow.unreachable(runbook):
        yield problem(step, "on", "no walk from the start reaches this step", "an edge to it", "remove it or link it")
    for step in runbook.steps:
        if step.probe is not None and not step.checks and (gate := _gates(step)):
            what = f"{gate}, but no check can make the step fail"
            yield problem(step, "checks", what, "at least one check", None)
        if step.severity is Severity.CRITICAL and not step.remedy:
            yield problem(step, "severity", "is critical and has no remedy", "what to do first when it fails", None)
        if step.remedy and (found := _DANGEROUS.search(step.remedy)):
            what = f"the remedy holds {found.group().strip()!r}"
            fix = "say which rights are needed and why, and leave the command without them"
            yield problem(step, "remedy", what, "commands without sudo or a pipe to an interpreter", fix)


def _gates(step: Step) -> str | None:
    """Why others rely on this step's verdict, or None."""
    if step.severity is Severity.CRITICAL:
        return "is critical"
    for spelled in ("fail", "warn"):
        if (target := getattr(step.on, spelled)) != "next":
            return f"on.{spelled} leads to {target!r}"
    return None


def lint_runbook(path: str | Path, packs: Packs) -> list[Problem]:
    """Every problem of one page. A page that cannot be read has one: why."""
    try:
        text = read_page(path)
    except RunbookProblem as unreadable:
        return [unreadable]
    runbook, found = parse_runbook(text, str(path))
    if runbook is None:
        return list(found)
    try:
        values = defaults(runbook)
    except ValueError:
        values = {}  # the reader has blamed that default already
    return [*found, *errors(runbook, packs, values), *advice(runbook)]


def lint_packs(packs: Packs) -> list[Problem]:
    """Files that did not import, checks without a plant, and plants that cannot work."""
    found: list[Problem] = []
    for failure in packs.failures:
        what = f"did not import: {failure.error}"
        found.append(PackProblem(what, where=failure.file, fix="mend the file; nothing in it was registered"))
    for spec in packs.registry.checks.values():
        if not spec.plants:
            what = f"check {spec.id!r} has no plant, so nothing shows that it can fail"
            fix = "give @check a plant=Plant(...); see docs/packs.md"
            found.append(PackProblem(what, where=str(spec.source), expected="at least one", fix=fix))
        for plant in spec.plants:
            found += _plant(spec, plant, packs)
    return found


def _plant(spec: CheckSpec, plant: Plant, packs: Packs) -> Iterator[Problem]:
    named = f"check {spec.id!r}: plant {plant.name!r}"
    where = str(spec.source)
    probe = packs.registry.probes.get(plant.probe)
    if probe is None:
        fix = suggest(plant.probe, packs.registry.probes)
        yield PackProblem(f"{named} runs probe {plant.probe!r}, which does not exist", where=where, fix=fix)
        return
    if not plant.planted and plant.build is None:
        yield PackProblem(f"{named} plants nothing", where=where, expected="planted={...} or build=")
    if plant.build is not None:
        return  # its parameters are known only once it has written its files
    for run, params in (("healthy", dict(plant.params)), ("planted", {**plant.params, **plant.planted})):
        try:
            probe.params.model_validate(params)
        except ValidationError as error:
            for mistake in mistakes(error, probe.params):
                what = f"{named}: {run} parameters: {mistake.what}"
                yield PackProblem(what, where=where, expected=mistake.expected, fix=mistake.fix)
