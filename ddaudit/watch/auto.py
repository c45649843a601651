"""``import ddaudit.watch.auto`` as the first line of a script or a notebook: watches this process.

The run folder is ``ddaudit-runs/watch-<time>-...`` below the working folder; ``ddaudit report`` on it judges what was
recorded so far, also while the job goes on. Ranks that a launcher started on one node share one folder; on several
nodes set ``$DDAUDIT_WATCH_DIR`` to the folder ``events/script`` of a run folder that all of them see.
``$DDAUDIT_WATCH_EVERY`` samples the costly digests every so many updates.

One recording holds one training. Before the next one in the same process (a notebook's cell run again, a sweep), call
:func:`begin`.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

import psutil
import torch  # noqa: F401 - the hooks need it

from ddaudit.watch.install import install
from ddaudit.watch.report import Reporter

__all__ = ["begin"]

_began = itertools.count(1)


def begin() -> Path:
    """Ends the recording of the training so far, lets go of its model and data, and records what comes next.

    Returns:
        The run folder of what comes next, for ``ddaudit report``.
    """
    events = _events(next(_began))
    recorder = install(folder=events)
    if recorder.reporter.folder != events:
        events.mkdir(parents=True, exist_ok=True)
        recorder.begin_again(Reporter(events))
    return events.parents[1]


def _events(number: int) -> Path:
    """The folder of the first recording as the environment has it, or one of this launch; a number for later ones."""
    given = os.environ.get("DDAUDIT_WATCH_DIR")
    if given and number == 1:
        return Path(given)
    run = Path(given).parents[1] if given else Path("ddaudit-runs").absolute() / _launch()
    return run.with_name(f"{run.name}-{number}" if number > 1 else run.name) / "events" / "script"


def _launch() -> str:
    """A name that the ranks of one launch on this node share: the time at which their common parent started."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    process = psutil.Process(os.getppid() if ranks > 1 else os.getpid())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(process.create_time()))
    return f"watch-{stamp}-{process.pid}"


if os.environ.get("DDAUDIT_WATCH_DIR") is None:
    sys.stderr.write(f"ddaudit: this training is recorded in {begin()}\n")
else:
    begin()
