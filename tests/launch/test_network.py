"""Which interface ranks use, and what is said before they would wait in vain."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from ddaudit.errors import LaunchProblem
from ddaudit.network import choose_interface


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets, then removes, so that what a test leaves is undone."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_ranks_of_one_host_use_loopback():
    choose_interface("127.0.0.1", None, "node7")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_loopback_that_is_down_is_told_at_once_and_how_to_mend_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {"lo": SimpleNamespace(isup=False)})
    with pytest.raises(LaunchProblem, match="lo is down") as told:
        choose_interface("127.0.0.1", None, "node7")
    assert told.value.where == "node7"
    assert "ip link set lo up" in (told.value.fix or "")


def test_an_interface_that_the_host_lacks_is_told_with_those_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib9")
    with pytest.raises(LaunchProblem, match="has no interface 'ib9'") as told:
        choose_interface("10.0.0.1", "lo", "node7")
    assert "lo" in (told.value.expected or "")
