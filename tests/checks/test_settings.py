"""Settings that differ between ranks are named with the rank that is odd, and equal ones are quiet."""

from __future__ import annotations

from ddaudit.api import RankSettings, SettingsReport
from ddaudit.engine.judge import judge
from ddaudit.findings import Finding
from ddaudit.runbook.model import PlannedStep
from tests.checks.traces import REGISTRY


def found(*settings: dict[str, str]) -> list[Finding]:
    ranks = tuple(RankSettings(rank=r, host=f"node{r}", settings=s) for r, s in enumerate(settings))
    step = PlannedStep(id="s", title="", source="book.md:1", runbook="b")
    return judge(REGISTRY.checks["host.settings"], {"settings": SettingsReport(ranks=ranks)}, step=step, reference={})


def test_equal_ranks_pass_with_the_number_of_settings() -> None:
    (finding,) = found({"version.torch": "2"}, {"version.torch": "2"})
    assert (finding.status.value, finding.text) == ("PASS", "1 settings are equal on all 2 ranks")


def test_the_odd_rank_is_named_with_its_value_and_that_of_the_others() -> None:
    alike = {"variable.NCCL_ALGO": "Ring"}
    (finding,) = found(alike, alike, {"variable.NCCL_ALGO": "Tree"})
    assert (finding.id, finding.where.rank, finding.where.host) == ("host.env-differs", 2, "node2")
    assert "'Tree' on rank(s) 2 and 'Ring' on 2 other(s)" in finding.text


def test_a_setting_that_one_rank_lacks_is_unset_there() -> None:
    (finding,) = found({"limit.nofile": "1024"}, {"limit.nofile": "1024"}, {})
    assert "unset on rank(s) 2" in finding.text
    assert finding.severity.value == "minor"


def test_one_rank_is_not_measured() -> None:
    assert found({"version.torch": "2"})[0].status.value == "SKIP"
