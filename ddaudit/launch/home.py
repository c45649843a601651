"""What this host's own ranks write in a run over several hosts: on this host first, like on every other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddaudit.errors import LaunchProblem
from ddaudit.launch.shipping import Shipper

__all__ = ["Home"]


class Home:
    """A temporary folder of the conductor's host; ``send`` takes its pieces to the run folder."""

    def __init__(self, send: Callable[[Mapping[str, Any], bytes], None]) -> None:
        self._send = send
        self._shipper: Shipper | None = None
        try:
            self._root = Path(tempfile.mkdtemp(prefix="ddaudit-node-"))
        except OSError as error:
            raise LaunchProblem(f"no temporary folder can be made: {error.strerror}", fix="set TMPDIR") from error

    def orders(self, orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A step begins: its orders, which write here."""
        self._shipper = Shipper(self._root, orders[0]["folder"], self._send)
        return [{**order, "home": str(self._root)} for order in orders]

    def ship(self) -> None:
        """Sends what the running step's files gained."""
        if self._shipper is not None:
            self._shipper.ship()

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
