"""JSON with non-finite numbers that every reader accepts.

The JSON standard has no NaN; a run whose loss is NaN must still be written, mailed and read back. Non-finite floats
become the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` on the way out; typed readers turn them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["NON_FINITE", "decode_number", "dumps", "encode"]

NON_FINITE: dict[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode(value: Any) -> Any:
    """Returns ``value`` with every non-finite float replaced by its name, ready for a strict JSON writer."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if hasattr(value, "item") and not hasattr(value, "__len__"):  # a numpy scalar
        return encode(value.item())
    return value


def decode_number(value: Any) -> Any:
    """The inverse of :func:`encode` for a field that is known to be numeric; other values pass unchanged."""
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def dumps(value: Any, *, indent: int | None = None, compact: bool = False) -> str:
    """Serialises strictly: output never holds a bare NaN or Infinity. ``compact`` leaves out every space."""
    separators = (",", ":") if compact else None
    return json.dumps(encode(value), allow_nan=False, indent=indent, ensure_ascii=False, separators=separators)
