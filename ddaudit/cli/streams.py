"""Output whose reader may go away, and the signal that ends a command."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO

__all__ = ["Lasting", "Stopped", "guard", "hush"]

#: A pipe without a reader, and a terminal that was closed.
GONE = (errno.EPIPE, errno.EIO)


class Stopped(KeyboardInterrupt):
    """A command is to end at once. ``number`` is the signal that said so."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Lasting:
    """A text stream that outlives its reader: what nobody can read any more is dropped, and the command goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        if error.errno not in GONE:
            raise error
        hush(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard() -> None:
    """Makes stdout and stderr :class:`Lasting`; a process that was started without them writes to nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - lives as long as the process
        setattr(sys, name, Lasting(stream))


def hush(stream: Any) -> None:
    """Points a stream's descriptor at nothing, so that what is still buffered cannot fail again at exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, stream.fileno())
    os.close(nothing)
