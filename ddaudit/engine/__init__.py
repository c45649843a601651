"""The engine: walks a plan, has checks judge what was recorded, and writes the record."""

from __future__ import annotations

from ddaudit.engine.journal import Settings
from ddaudit.engine.restore import restore
from ddaudit.engine.session import Session, prepare, resume
from ddaudit.engine.walk import Options, Quiet, Walk, Watcher

__all__ = ["Options", "Quiet", "Session", "Settings", "Walk", "Watcher", "prepare", "restore", "resume"]
