"""Starting ranks, watching them, and saying what became of them."""

from __future__ import annotations

from ddaudit.launch.conductor import FleetLauncher
from ddaudit.launch.fleet import Fleet
from ddaudit.launch.local import TRAINING, LocalLauncher, host_name
from ddaudit.launch.place import Place
from ddaudit.launch.steprun import Progress

__all__ = ["TRAINING", "Fleet", "FleetLauncher", "LocalLauncher", "Place", "Progress", "host_name"]
