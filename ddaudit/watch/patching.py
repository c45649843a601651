"""Replacing torch's functions so that a fault of ours never reaches the script."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["Guard", "wrap"]


class Guard:
    """Runs our side of a hook. A hook that raises is recorded once and not called again; other processes (forked
    loader workers) are left alone."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.broken: dict[str, str] = {}

    @property
    def active(self) -> bool:
        return os.getpid() == self.pid

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result, or None where it may not run or raised."""
        if not self.active or name in self.broken:
            return None
        try:
            return function(*args)
        except Exception:
            self.broken[name] = traceback.format_exc(limit=-6)
            if os.environ.get("DDAUDIT_WATCH_DEBUG"):
                sys.stderr.write(f"ddaudit: hook {name} broke\n{self.broken[name]}")
            return None


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces ``owner.name`` by ``make(original)``, once, keeping its name and docstring."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "_ddaudit_watch", False):
        return
    replaced = functools.wraps(original)(make(original))
    replaced._ddaudit_watch = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)
