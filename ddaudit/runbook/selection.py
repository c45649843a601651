"""Which checks a step asks."""

from __future__ import annotations

import fnmatch

from ddaudit.evidence.launch import LaunchFacts
from ddaudit.registry import CheckSpec, ProbeSpec, Registry
from ddaudit.runbook.model import Step

__all__ = ["applicable", "feeds", "is_glob"]


def is_glob(pattern: str) -> bool:
    """Whether a pattern of ``checks`` may name several checks."""
    return any(character in pattern for character in "*?[")


def feeds(probe: ProbeSpec, spec: CheckSpec) -> bool:
    """Whether a probe records every kind of evidence that a check cannot do without."""
    # By kind, not by class: a pack's module may be imported twice, as a check's import and as a probe of its own.
    kinds = {LaunchFacts.kind, *(evidence.kind for evidence in probe.produces)}
    return all(need.optional or need.type.kind in kinds for need in spec.needs.values())


def applicable(step: Step, registry: Registry) -> list[CheckSpec]:
    """Checks of a step, in registration order. A glob takes only those that the step's probe can feed, so that
    ``batch.*`` may stand beside any probe; an id written out is taken as it is."""
    probe = registry.probes.get(step.probe or "")
    found = []
    for id, spec in registry.checks.items():
        named = id in step.checks
        matched = any(is_glob(p) and fnmatch.fnmatchcase(id, p) for p in step.checks)
        if named or (matched and (probe is None or feeds(probe, spec))):
            found.append(spec)
    return found
