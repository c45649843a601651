"""The timeline of an incident says who did what when, and never more than is dated."""

from __future__ import annotations

import re

import pytest

from ddaudit.cli.triage_record import record_of
from ddaudit.report.pictures_incident import incident
from ddaudit.triage.answer import investigate
from tests.triage.test_made_incidents import make


def picture(key, folder):
    make(key, 0, folder)
    found = list(incident(record_of(investigate([folder]), "logs", 0.1)))
    assert len(found) <= 1
    return found[0] if found else None


def test_a_lost_gpu_stands_before_the_waits_it_caused(tmp_path):
    drawn = picture("gpu.fell-off-bus", tmp_path)
    assert re.match(
        r"The cause shows on [\w-]+ at \d{4}-\d\d-\d\d [\d:]+, [^,;]+ after the last step; the first to wait",
        drawn.finding,
    )
    what = [row[2] for row in drawn.rows]
    assert what.count("cause") == 1 and "waiting" in what and "training" in what
    assert "<text" in drawn.drawing and drawn.finding in drawn.drawing


def test_a_rank_that_did_not_come_is_told_by_when_the_others_began_to_wait(tmp_path):
    drawn = picture("data.loader-stalled", tmp_path)
    assert "ranks began to wait at" in drawn.finding


@pytest.mark.parametrize("key", ["collective.mismatch-size/recorder", "rdzv.missing-node/unheard"])
def test_without_dates_there_is_no_picture(key, tmp_path):
    assert picture(key, tmp_path) is None


def test_a_name_with_markup_is_shown_as_text(tmp_path):
    make("gpu.fell-off-bus", 0, tmp_path)
    answer = investigate([tmp_path])
    record = record_of(answer, "logs", 0.1)
    rows = record.extra["incident"]["timeline"]
    for row in rows:
        row["lane"] = "<b>&$x$" + "y" * 500
    drawn = next(incident(record))
    assert "<b>" not in drawn.drawing and "$x$" in drawn.drawing


def test_a_timeline_of_another_version_is_left_out(tmp_path):
    make("none", 0, tmp_path)
    record = record_of(investigate([tmp_path]), "logs", 0.1)
    record.extra["incident"]["timeline"] = [{"when": 3}]
    assert list(incident(record)) == []
