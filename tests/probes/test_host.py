"""Who else uses the host's cores: what is counted, and what is not."""

from __future__ import annotations

import types

import psutil
import pytest

from ddaudit.evidence.host import HostLoad
from ddaudit.probes.host import HostParams, host


class Events:
    """Keeps what a probe emits."""

    def __init__(self) -> None:
        self.kept: list[HostLoad] = []

    def emit_evidence(self, evidence: HostLoad) -> None:
        self.kept.append(evidence)


@pytest.fixture
def stolen(monkeypatch: pytest.MonkeyPatch):
    """A hypervisor that takes a second more at every look."""
    seconds = iter(range(100))
    monkeypatch.setattr(psutil, "cpu_times", lambda: types.SimpleNamespace(steal=float(next(seconds))))


def looked(scope: str) -> HostLoad:
    events = Events()
    context = types.SimpleNamespace(events=events, host="here")
    host(context, HostParams(window_s=0.05, scope=scope))
    (load,) = events.kept
    return load


def test_what_the_hypervisor_takes_counts_for_the_machine(stolen):
    assert looked("machine").steal_cores > 1.0


def test_what_the_hypervisor_takes_is_nobodys_child(stolen):
    assert looked("children").steal_cores is None
