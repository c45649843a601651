"""Planted faults: how a check proves that it can fail.

A plant names one probe step twice: as it is (the healthy twin) and with ``planted`` parameters laid over (the fault).
``ddaudit selftest`` runs both for real and shows the check red on one and quiet on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Plant"]


@dataclass(frozen=True)
class Plant:
    """One fault and its healthy twin.

    Attributes:
        name: what is broken, in words a reader of the self-test table understands.
        expect: the finding id (or one of several) that must turn WARN or FAIL.
        probe: the probe to run; ``ranks`` processes run it.
        params: parameters of both runs.
        planted: parameters laid over ``params`` in the faulty run only.
        reference: parameters of the run that a check's ``reference`` argument is read from (``reference_ranks``
            processes), or None when the check needs none. ``params`` may use what it measured as
            ``$reference.metric``.
        limits: the step's limits in both runs, for checks whose metrics the runbook names.
        build: for probes that read files: called with an empty folder and True for the fault, False for the twin;
            returns further parameters (such as the path it wrote).
        types: labels the row of the self-test matrix, such as the parallelism type.
        not_applicable: why this fault cannot occur here; the row is shown, and nothing is run.
    """

    name: str
    expect: str | tuple[str, ...]
    probe: str = "train"
    ranks: int = 1
    params: Mapping[str, Any] = field(default_factory=dict)
    planted: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None
    reference_ranks: int = 1
    limits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    build: Callable[[Path, bool], Mapping[str, Any]] | None = None
    types: str = ""
    not_applicable: str = ""

    @property
    def expected(self) -> tuple[str, ...]:
        return (self.expect,) if isinstance(self.expect, str) else self.expect
