"""Waivers: findings that somebody answers for, until a day."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddaudit.engine.waivers import MAX_DAYS, Waivers, load_waivers
from ddaudit.errors import Exit, UsageProblem
from ddaudit.findings import Finding, Status, Verdict, Where, conclude
from ddaudit.packs import load
from ddaudit.registry import Registry

TODAY = date(2026, 11, 30)
GOOD = {"check": "sync.frequency", "where": "node02", "reason": "riser swap", "owner": "dc-ops", "expires": TODAY}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load(entries=False, environment=False).registry


def toml(**fields: Any) -> str:
    shown = {k: v if isinstance(v, date) else f'"{v}"' for k, v in (GOOD | fields).items() if v is not None}
    return "[[waiver]]\n" + "".join(f"{k} = {v}\n" for k, v in shown.items())


def waivers(day: date = TODAY, **fields: Any) -> Waivers:
    return Waivers(day=day, file="waivers.toml", entries=(GOOD | fields,))  # type: ignore[arg-type]


def bad(status: Status = Status.FAIL, **where: Any) -> Finding:
    place = Where(**({"host": "node02", "rank": 3} | where))
    return Finding(
        check="sync.frequency", id="sync.missing-on-step", status=status, text="too few", where=place, step="data"
    )


def test_a_waived_failure_keeps_its_number_and_loses_its_verdict() -> None:
    found = waivers().apply([bad().model_copy(update={"measured": 3, "limit": 4})])
    assert (found[0].status, found[0].measured) == (Status.WAIVED, 3)
    assert "waived FAIL: riser swap; dc-ops, until 2026-11-30" in found[0].text
    assert conclude(found) == (Verdict.PASS, Exit.PASS)


def test_an_error_cannot_be_waived() -> None:
    found = waivers().apply([bad(Status.ERROR)])
    assert found[0].status is Status.ERROR and "cannot be" in found[0].text
    assert conclude(found)[1] is Exit.INCONCLUSIVE


def test_the_day_after_it_expires_the_finding_fails_again_and_says_whose_waiver_lapsed() -> None:
    late = waivers(TODAY + timedelta(days=1))
    found = late.apply([bad()])
    assert found[0].status is Status.FAIL and "the waiver of dc-ops lapsed on 2026-11-30" in found[0].text
    assert [(f.id, f.status) for f in late.report(found)] == [("waiver.expired", Status.WARN)]


def test_a_waiver_that_fits_nothing_is_reported_where_its_check_was_asked_and_only_there() -> None:
    passed = bad(Status.PASS)
    assert [f.id for f in waivers().report(waivers().apply([passed]))] == ["waiver.unused"]
    other = passed.model_copy(update={"check": "loss.descends", "id": "loss.descends"})
    assert list(waivers(expires=TODAY + timedelta(days=60)).report([other])) == []


def test_a_waiver_in_use_that_ends_soon_is_told_and_harms_nobody() -> None:
    soon = waivers(expires=TODAY + timedelta(days=9))
    found = list(soon.report(soon.apply([bad()])))
    assert [(f.id, f.status) for f in found] == [("waiver.expires-soon", Status.PASS)]
    assert list(waivers(expires=TODAY + timedelta(days=60)).report(soon.apply([bad()]))) == []


@pytest.mark.parametrize(
    ("where", "covered"),
    [
        ("*", True),
        ("node02", True),
        ("node0?", True),
        ("node03", False),
        ("3", True),
        ("host=node02 rank=3", True),
        ("host=node02 rank=4", False),
        ("step=data", True),
        ("step=tensor", False),
        ("tensor=*", False),
        ("node", False),
    ],
)
def test_a_place_is_matched_as_a_whole(where: str, covered: bool) -> None:
    assert (waivers(where=where).apply([bad()])[0].status is Status.WAIVED) is covered


@pytest.mark.parametrize(("check", "covered"), [("sync.*", True), ("sync.missing-on-step", True), ("sync", False)])
def test_a_check_is_named_by_its_id_that_of_the_finding_or_a_glob(check: str, covered: bool) -> None:
    assert (waivers(check=check).apply([bad()])[0].status is Status.WAIVED) is covered


def test_a_good_file_is_read(tmp_path: Path, registry: Registry) -> None:
    (path := tmp_path / "waivers.toml").write_text(toml(expires=TODAY + timedelta(days=MAX_DAYS), ticket="OPS-1"))
    read = load_waivers(path, registry, TODAY)
    assert read.entries[0].ticket == "OPS-1" and read.day == TODAY
    assert Waivers.model_validate(read.model_dump(mode="json")) == read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (toml(owner=None), "waiver 0.owner: Field required"),
        (toml(reason=" "), "0.reason"),
        (toml(expires="soon"), "0.expires"),
        (toml(expires=TODAY + timedelta(days=MAX_DAYS + 1)), "at most 90 days, until 2027-02-28"),
        (toml(check="sync.frequenzy"), "did you mean 'sync.frequency'"),
        (toml(severity="major"), "0.severity: Extra inputs"),
        ("[waiver]\n", "something else than waivers"),
        ("[[waivers]]\n", "something else than waivers"),
        ("[[waiver]\n", "is not TOML"),
        ("\x00", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(tmp_path: Path, registry: Registry, text: str, said: str) -> None:
    (path := tmp_path / "waivers.toml").write_text(text)
    with pytest.raises(UsageProblem) as problem:
        load_waivers(path, registry, TODAY)
    line = str(problem.value)
    assert said in line and "\n" not in line and line.startswith(str(path)) and problem.value.exit == 2


def test_a_missing_file_is_a_problem_and_a_finding_without_a_plant_can_be_waived(
    tmp_path: Path, registry: Registry
) -> None:
    with pytest.raises(UsageProblem, match="cannot be read"):
        load_waivers(tmp_path / "none.toml", registry, TODAY)
    (path := tmp_path / "waivers.toml").write_text(toml(check="step.failed"))
    assert load_waivers(path, registry, TODAY).entries[0].check == "step.failed"
