"""Reads what a broken job left behind and reasons out who and what broke it. Never imports torch.

The room is also the Python call of the same name: ``ddaudit.triage("logs/")`` returns the judged incident.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddaudit.triage.answer import Answer


class _Room(ModuleType):
    """A module that can be called: the package and the call share the one natural name."""

    def __call__(
        self, *paths: str | os.PathLike[str], job: str | None = None, packs: Iterable[str | os.PathLike[str]] = ()
    ) -> Answer:
        """Reads and judges logs, folders or a bundle; the same as ``ddaudit triage PATHS``. ``packs`` are folders
        whose catalogue tables are read as well.

        Raises:
            Problem: nothing there to read, or a catalogue table is wrong.
        """
        from ddaudit.triage.answer import investigate

        return investigate([Path(p) for p in paths], job=job, extra=[Path(p) for p in packs])


sys.modules[__name__].__class__ = _Room
