"""Reading pickles without running them: the two functions other rooms call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.inert import opcodes, opcodes_code, opcodes_containers
from ddaudit.inert.machine import TABLE, Machine, Meaning
from ddaudit.inert.meanings import PLAIN
from ddaudit.inert.nodes import Malformed, PickleLimits, PickleResult

_REGISTERED = (opcodes._mark, opcodes_code._build, opcodes_containers._setitems)
assert [TABLE[ord(c)] for c in "(bu"] == list(_REGISTERED)  # importing the three modules filled the table


def read_pickle(
    data: bytes,
    start: int = 0,
    *,
    meanings: Mapping[str, Meaning] = PLAIN,
    storage: Meaning | None = None,
    limits: PickleLimits | None = None,
) -> PickleResult:
    """Interprets one pickle that begins at `data[start]`. Never raises for bad bytes: see `PickleResult.error`.

    Dicts, lists, tuples, numbers and text come back as themselves. A name becomes `Global`, a call of a name in
    `meanings`
    the value that this function of ours gives, any other call a `Call`. `storage` turns persistent ids into values.
    """
    limits = limits or PickleLimits()
    machine = Machine(data, meanings, limits, storage)
    result = machine.result
    try:
        if len(data) - start > limits.max_bytes:
            raise Malformed(f"{len(data) - start:,} bytes are more than the limit of {limits.max_bytes:,}")
        machine.run(start)
    except Malformed as error:
        result.error = error
    except (RecursionError, MemoryError) as error:
        result.error = Malformed(type(error).__name__)
    return result


def load(data: bytes, *, meanings: Mapping[str, Meaning] = PLAIN, limits: PickleLimits | None = None) -> Any:
    """The value of one pickle; raises `Malformed` when the stream is not whole or bytes follow it."""
    result = read_pickle(data, meanings=meanings, limits=limits)
    if result.error is not None:
        raise result.error
    if result.end != len(data):
        raise Malformed(f"{len(data) - result.end:,} bytes follow the end of the pickle", result.end)
    return result.value
