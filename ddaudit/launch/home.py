"""What this host's own ranks write in a run over several hosts: on this host first, like on every other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddaudit.launch.shipping import Shipper
from ddaudit.launch.spool import Spool, tidy

__all__ = ["Home"]


class Home:
    """A temporary folder of the conductor's host; ``send`` takes its pieces to the run folder."""

    def __init__(self, run_dir: Path, send: Callable[[Mapping[str, Any], bytes], None]) -> None:
        self._send = send
        self._shipper: Shipper | None = None
        self._whole = True
        tidy()
        self._spool = Spool.make("node")
        self._spool.belong(run_dir)

    def orders(self, orders: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """A step begins: its orders, which write here."""
        self._shipper = Shipper(self._spool.root, orders[0]["folder"], self._send)
        return [{**order, "home": str(self._spool.root)} for order in orders]

    def ship(self) -> None:
        """Sends what the running step's files gained."""
        if self._shipper is not None:
            whole, self._whole = self._whole, False
            self._shipper.ship()
            self._whole = whole

    def close(self) -> None:
        """Removes the folder; one that could not be sent whole is left to the run that goes on."""
        if self._whole:
            self._spool.remove()
        else:
            self._spool.close()
