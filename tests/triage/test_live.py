"""Running ranks are looked at from outside: who hangs, and in what."""

from __future__ import annotations

import os
import signal

from benchmarks.live_hangs import CASES, ask, hung


def test_a_hang_names_the_rank_and_what_it_does(tmp_path):
    """A rank waits for a lock file; then somebody stops it. Four gloo ranks, asked twice, none of them harmed."""
    case = next(c for c in CASES if c.name == "lock")
    with hung(case, tmp_path) as pids:
        told = ask(pids, tmp_path / "live")["incident"]
        assert told["guilty"]["rank"] == case.rank and told["cause"] in case.causes
        assert "lock file" in told["why"]
        os.kill(pids[case.rank], signal.SIGSTOP)
        told = ask(pids, tmp_path / "again")["incident"]
        assert told["guilty"]["rank"] == case.rank
        assert "stopped by a signal" in told["why"]
        assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
