"""The engine: walks a plan, has checks judge what was recorded, and writes the record.

Its names are imported when they are first asked for: judging alone (an audit of a checkpoint) needs no launcher.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddaudit.engine.journal import Settings
    from ddaudit.engine.session import Session, prepare, resume
    from ddaudit.engine.walk import Options, Quiet, Walk, Watcher

__all__ = ["Options", "Quiet", "Session", "Settings", "Walk", "Watcher", "prepare", "resume"]

_HOMES = {
    "Options": "walk", "Quiet": "walk", "Walk": "walk", "Watcher": "walk", "Session": "session", "prepare": "session",
    "resume": "session", "Settings": "journal",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
