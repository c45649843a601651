"""Starting ranks, watching them, and saying what became of them."""

from __future__ import annotations

from ddaudit.launch.local import LocalLauncher, host_name
from ddaudit.launch.steprun import Progress

__all__ = ["LocalLauncher", "Progress", "host_name"]
