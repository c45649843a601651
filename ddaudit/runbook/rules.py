"""What must hold before a step may start, checked without devices: each rule yields every mistake it finds."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ddaudit.errors import RunbookProblem, UsageProblem
from ddaudit.limits import Limit, share_of
from ddaudit.registry import ProbeSpec, suggest
from ddaudit.runbook import when
from ddaudit.runbook.graph import needs_of, reachable
from ddaudit.runbook.limits import flatten
from ddaudit.runbook.messages import mistakes
from ddaudit.runbook.model import Runbook, Step
from ddaudit.runbook.selection import applicable, feeds, is_glob
from ddaudit.runbook.subject import Subject
from ddaudit.runbook.values import fill, finish, references, resolve

__all__ = ["checks", "comparisons", "condition", "limits", "parameters", "probes", "ranks", "variables"]

#: More ranks than any job of today has: a larger number is a typing error.
MAX_RANKS = 65536


def probes(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """The probe exists."""
    known = subject.packs.registry.probes
    if step.probe is not None and step.probe not in known:
        what = f"no probe is called {step.probe!r}"
        yield subject.problem(step, ["probe"], what, fix=_broken(subject) or suggest(step.probe, known))


def checks(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """Every pattern names a check, and the step's probe records what that check asks for."""
    registry, probe = subject.packs.registry, subject.probe(step)
    if step.manual is not None and step.checks:
        yield subject.problem(step, ["checks"], "a manual step has checks", "none; its answer is its outcome")
        return
    for pattern in step.checks:
        matched = [spec for id, spec in registry.checks.items() if fnmatch.fnmatchcase(id, pattern)]
        if not matched:
            what = f"no check {'matches' if is_glob(pattern) else 'is called'} {pattern!r}"
            yield subject.problem(step, ["checks"], what, fix=_broken(subject) or suggest(pattern, registry.checks))
        elif probe is not None and not any(feeds(probe, spec) for spec in matched):
            wanted = sorted({need.type.kind for spec in matched for need in spec.needs.values() if not need.optional})
            what = f"probe {probe.name!r} does not record what {pattern!r} asks for ({', '.join(wanted)})"
            yield subject.problem(step, ["checks"], what, "a check of what the probe records", "ddaudit list checks")


def comparisons(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """A check that compares with another step finds one in ``needs`` that records the same kind of evidence."""
    registry = subject.packs.registry
    steps = {other.id: other for other in subject.runbook.steps}
    offered = {
        kind.kind
        for need in step.needs
        if need in steps and (probe := subject.probe(steps[need]))
        for kind in probe.produces
    }
    for spec in applicable(step, registry):
        reference = spec.needs.get("reference")
        if reference is not None and not reference.optional and reference.type.kind not in offered:
            kind = reference.type.kind
            what = f"check {spec.id!r} compares with another step, and `needs` names none that records {kind}"
            yield subject.problem(step, ["checks"], what, fix="add the step to compare with to needs")


def _broken(subject: Subject) -> str | None:
    """A file that did not import is the likeliest home of a check or probe that is missing."""
    failures = subject.packs.failures
    return f"mend {failures[0].file}, which did not import ({failures[0].error})" if failures else None


def variables(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """Every ``$name`` is a parameter, every ``$step.metric`` names a step that ran before."""
    for key, value, runtime in (
        ("with", step.with_, True),
        ("where", step.where, True),
        ("limits", step.limits, False),
        ("nproc", step.nproc, False),
    ):
        for ref in references(value):
            name, _, metric = ref.partition(".")
            if not metric and name not in subject.runbook.params:
                hint = suggest(name, subject.runbook.params) if subject.runbook.params else None
                yield subject.problem(step, [key], f"${name} is no parameter", fix=hint or "write $$ for a plain $")
            elif metric and not runtime:
                what = f"{key} holds ${ref}, which is known only when the step starts"
                yield subject.problem(step, [key], what, "a number or a $parameter")
            elif metric and name not in _before(subject.runbook, step):
                what = f"${ref} refers to step {name!r}, which does not run before this one"
                hint = f"add {name!r} to needs" if name in [s.id for s in subject.runbook.steps] else None
                yield subject.problem(step, [key], what, f"a step in `needs`, or ${{{name}}}.{metric}", hint)


def _before(runbook: Runbook, step: Step) -> set[str]:
    """Steps whose metrics a step may use: what it needs (sweep), any other step (triage)."""
    if runbook.mode == "triage":
        return {other.id for other in runbook.steps} - {step.id}
    return reachable(needs_of(runbook), step.id) - {step.id}


def parameters(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """``with`` fits the probe's own parameter model."""
    probe = subject.probe(step)
    if probe is None:
        if step.manual is not None and step.with_:
            yield subject.problem(step, ["with"], "a manual step takes no parameters", fix="remove `with`")
        return
    given = fill(step.with_, subject.values)
    open_keys = {key for key, value in given.items() if next(references(value), None)}
    settled = {key: resolve(value, {}) for key, value in given.items() if key not in open_keys}
    try:
        probe.params.model_validate(settled | {key: given[key] for key in open_keys})
    except ValidationError as error:
        for found in mistakes(error, probe.params, "with"):
            # A key whose value is known only when the step starts is judged then.
            if (found.keys and found.keys[0] not in open_keys) or not (found.keys or open_keys):
                yield subject.problem(step, ["with", *found.keys], found.what, found.expected, found.fix)


def limits(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """Each limit has right bounds and a metric that a chosen check, or a measure of the probe, declares."""
    chosen = applicable(step, subject.packs.registry)
    known = {metric for spec in chosen for metric in spec.metrics()}
    free = any(spec.limits and spec.limits[1].free for spec in chosen)
    measures = _measures(subject, step)
    for name, bounds in flatten(step.limits).items():
        keys = ["limits", *name.split(".")]
        if not isinstance(bounds, Mapping):
            yield subject.problem(step, keys, f"limits.{name} is {bounds!r}", "a table such as { fail_above = 3 }")
            continue
        yield from _bounds(subject, step, name, finish(bounds, subject.values))
        if name in known or (free and measures is None) or (free and name in (measures or ())):
            continue
        if measures and name in measures:
            what = f"limits.{name} is on a measure, and no chosen check judges measures"
            yield subject.problem(step, keys, what, fix='add "measures.within-limits" to checks')
        else:
            offered = known | set(measures or () if free else ())
            hint = suggest(name, offered) if offered else "the step's checks take no limits"
            yield subject.problem(step, keys, f"limits.{name}: no chosen check has this metric", fix=hint)


def _bounds(subject: Subject, step: Step, name: str, bounds: Mapping[str, Any]) -> Iterator[RunbookProblem]:
    pending = {k for k, value in bounds.items() if next(references(value), None) or (k != "source" and share_of(value))}
    try:
        Limit.model_validate({key: 0.0 if key in pending else value for key, value in bounds.items()}, strict=False)
    except ValidationError as error:
        for found in mistakes(error, Limit, f"limits.{name}"):
            keys = ["limits", *name.split("."), *found.keys]
            yield subject.problem(step, keys, found.what, found.expected, found.fix)


def _measures(subject: Subject, step: Step) -> Sequence[str] | None:
    """Names that the step's probe says it will measure; None when it does not say."""
    probe = subject.probe(step)
    declare = getattr(probe.params, "declared_measures", None) if probe else None
    if declare is None:
        return None
    names: Sequence[str] = declare(fill(step.with_, subject.values))
    return names


def condition(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """``when`` follows its grammar and asks for known facts."""
    if step.when is None:
        return
    try:
        parsed = when.parse(when.bind(step.when, subject.values))
    except when.WhenError as error:
        yield subject.problem(step, ["when"], f"when: {error}", 'a condition such as "gpus >= 2 and not slurm"')
        return
    for what, hint in parsed.mistakes():
        if not any(what.endswith(repr(f"${name}")) for name in subject.runbook.params):
            yield subject.problem(step, ["when"], f"when: {what}", fix=hint)


def ranks(subject: Subject, step: Step) -> Iterator[RunbookProblem]:
    """``nproc`` is a count that the probe can run with."""
    nproc = finish(1 if step.nproc is None else step.nproc, subject.values)
    if isinstance(nproc, str) and next(references(nproc), None):
        return
    if isinstance(nproc, bool) or not isinstance(nproc, int) or not 1 <= nproc <= MAX_RANKS:
        expected = f"a number of ranks from 1 to {MAX_RANKS}, or a $parameter of type int"
        yield subject.problem(step, ["nproc"], f"nproc is {nproc!r}", expected)
        return
    probe = subject.probe(step)
    if probe is not None and probe.where == "host" and nproc != 1:
        what = f"nproc is {nproc}, but probe {probe.name!r} runs once on the host"
        yield subject.problem(step, ["nproc"], what, "1", "remove nproc")
    elif probe is not None and (reason := _misfit(subject, step, probe, nproc)):
        yield subject.problem(step, ["nproc"], reason)


def _misfit(subject: Subject, step: Step, probe: ProbeSpec, nproc: int) -> str | None:
    """Why the probe cannot run on so many ranks, when its parameter model can tell (method ``misfit(ranks)``)."""
    try:
        params = probe.params.model_validate(resolve(fill(step.with_, subject.values), {}))
    except (ValidationError, UsageProblem):
        return None  # wrong parameters, or ones that wait for a metric: another rule's subject
    misfit = getattr(params, "misfit", None)
    reason: str | None = misfit(nproc) if misfit else None
    return reason
