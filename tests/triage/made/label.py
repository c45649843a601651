"""What a made-up incident is, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.triage.made.world import World


@dataclass
class Label:
    """The right answer. ``rank``/``host`` None: nobody is asked for. ``nobody``: naming anyone is wrong."""

    rank: int | None = None
    host: str | None = None
    accept: tuple[str, ...] = ()
    nobody: bool = False


Scenario = Callable[[World], Label]
SCENARIOS: dict[str, tuple[str, Scenario, dict[str, int]]] = {}


def scenario(cause: str, name: str = "", **world: int) -> Callable[[Scenario], Scenario]:
    """Registers a scenario under ``name`` (default: the cause)."""

    def register(function: Scenario) -> Scenario:
        key = name or cause
        assert key not in SCENARIOS, key
        SCENARIOS[key] = (cause, function, dict(world))
        return function

    return register
