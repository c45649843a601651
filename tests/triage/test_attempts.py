"""Restarts, other jobs and older lines: what belongs to the failure in question."""

from __future__ import annotations

from datetime import datetime

from ddaudit.triage.answer import investigate
from tests.triage.test_made_incidents import make


def test_the_earlier_attempt_is_named_and_told_apart(tmp_path):
    make("restart/another-cause", 0, tmp_path / "a")
    (note,) = [n for n in investigate([tmp_path / "a"]).to_json()["notes"] if "attempt" in n]
    assert "broke of app.exception: not what ended the last one" in note
    make("restart/same-cause", 0, tmp_path / "b")
    (note,) = [n for n in investigate([tmp_path / "b"]).to_json()["notes"] if "attempt" in n]
    assert note.endswith("broke of app.exception: the same again")


def test_a_job_that_was_not_restarted_has_one_attempt(tmp_path):
    for key in ("app.exception", "gpu.oom", "sched.time-limit", "none/running"):
        make(key, 0, tmp_path / key)
        assert investigate([tmp_path / key]).before is None, key


def test_a_job_id_picks_the_job(tmp_path):
    """Of two jobs' logs the newest counts, unless another one is asked for."""
    label = make("restart/resubmitted", 0, tmp_path)
    logs = sorted(p.stem.split("-")[1] for p in tmp_path.glob("slurm-*.out"))
    assert investigate([tmp_path]).to_json()["guilty"]["rank"] == label.rank
    assert investigate([tmp_path], job=logs[0]).to_json()["cause"] == "sched.time-limit"


def test_since_leaves_out_what_is_older(tmp_path):
    frame = '  File "t.py", line 3, in main'
    error = f"[rank{{r}}]: Traceback (most recent call last):\n[rank{{r}}]: {frame}\n[rank{{r}}]: KeyError: {{k}}\n"
    rows = [f"[2026-03-0{day} 10:00:{s:02d}] step {s} loss 2.5\n" for day in (1, 2) for s in range(3)]
    stamp = "2026-03-0{day}T10:00:09Z "
    old, new = (
        "".join(stamp.format(day=day) + line + "\n" for line in error.format(r=r, k=k).splitlines())
        for day, r, k in ((1, 1, "'old'"), (2, 3, "'new'"))
    )
    (tmp_path / "pod.log").write_text("".join(rows[:3]) + old + "".join(rows[3:]) + new)
    since = datetime.fromisoformat("2026-03-02T00:00:00+00:00").timestamp()
    told = investigate([tmp_path], since_s=since).to_json()
    assert told["guilty"] == {"rank": 3} and "'new'" in told["why"]
