"""Meeting on the TCPStore that torchrun serves already: the conductor writes there where it listens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ddaudit.errors import LaunchProblem
from ddaudit.launch.place import Place, parse_endpoint

__all__ = ["publish_endpoint", "read_endpoint"]

PUBLISH_S = 60.0


def publish_endpoint(place: Place, key: str, host: str, port: int) -> None:
    """Tells the other agents of ``place``'s run where to connect."""
    _store(place, PUBLISH_S).set(_name(place, key), f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def read_endpoint(place: Place, key: str, timeout_s: float) -> tuple[str, int]:
    """Waits for the conductor's word.

    Raises:
        LaunchProblem: it did not come within ``timeout_s``.
    """
    store = _store(place, timeout_s)
    try:
        return parse_endpoint(store.get(_name(place, key)).decode())
    except RuntimeError as error:
        first = str(error).partition("\n")[0][:200]
        raise LaunchProblem(f"the conductor did not come to torchrun's store: {first}", where=place.host) from None


def _name(place: Place, key: str) -> str:
    return f"ddaudit/{key}/{place.attempt}/conductor"


def _store(place: Place, timeout_s: float) -> Any:
    from torch._C._distributed_c10d import TCPStore

    assert place.meeting is not None
    host, port = place.meeting
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        first = str(error).partition("\n")[0][:200]
        raise LaunchProblem(f"torchrun's store at {host}:{port} does not answer: {first}", where=host) from None
