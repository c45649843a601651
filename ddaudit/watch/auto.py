"""``import ddaudit.watch.auto`` as the first line of a script or a notebook: watches this process.

Events go to ``$DDAUDIT_WATCH_DIR``, or to ``ddaudit-runs/watch-<time>/events/script`` below the working folder.
``$DDAUDIT_WATCH_EVERY`` samples the costly digests every so many updates.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch  # noqa: F401 - the hooks need it

from ddaudit.watch.install import install

__all__: list[str] = []

if not os.environ.get("DDAUDIT_WATCH_DIR"):
    _folder = Path("ddaudit-runs") / time.strftime("watch-%Y%m%d-%H%M%S") / "events" / "script"
    os.environ["DDAUDIT_WATCH_DIR"] = str(_folder.absolute())
install()
