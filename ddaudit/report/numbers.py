"""Numbers as people read them. NaN and the infinities are words here, never an exception."""

from __future__ import annotations

import math
from typing import Any

from ddaudit.report.safe import visible

__all__ = ["duration", "number", "quantity", "spread"]

BYTES = ("byte", "bytes", "B")


def number(value: Any) -> str:
    """Four significant digits; integers whole with separators; words made visible; None as an en dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value, 200)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**15 else f"{value:.4g}"
    if value.is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def quantity(value: Any, unit: str | None) -> str:
    """A number with its unit. Seconds and bytes take the prefix that fits; the pure unit ``1`` is not printed."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if plain and unit == "s":
        return duration(value)
    if plain and unit in BYTES:
        return _binary(value)
    if value is None or unit in (None, "", "1"):
        return number(value)
    return f"{number(value)} {visible(unit, 40)}"


def duration(seconds: float | None) -> str:
    """Seconds as ``4m10s``, ``1.25 s`` or ``3.1 ms``; an en dash when unknown."""
    if seconds is None or not math.isfinite(seconds):
        return number(seconds)
    size = abs(seconds)
    if size >= 3600:
        return f"{seconds // 3600:.0f}h{seconds % 3600 // 60:02.0f}m"
    if size >= 60:
        return f"{seconds // 60:.0f}m{math.floor(seconds % 60):02d}s"
    if size >= 1 or size == 0:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if size >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def spread(values: list[Any], unit: str | None) -> str:
    """One quantity for several findings: the value when equal, ``low … high`` when not."""
    known = [v for v in values if v is not None]
    numeric = [v for v in known if isinstance(v, int | float) and not isinstance(v, bool) and not math.isnan(v)]
    if not known:
        return "–"
    if len(numeric) < len(known):
        shown = list(dict.fromkeys(quantity(v, unit) for v in known))
        return ", ".join(shown[:4]) + (" …" if len(shown) > 4 else "")
    low, high = quantity(min(numeric), unit), quantity(max(numeric), unit)
    # Seconds and bytes keep both units: their prefixes may differ.
    short = low if unit in ("s", *BYTES) else number(min(numeric))
    return low if low == high else f"{short} … {high}"


def _binary(size: float) -> str:
    for prefix in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or prefix == "TiB":
            return f"{size:.4g} {prefix}" if prefix != "B" else f"{number(size)} B"
        size /= 1024
    raise AssertionError("unreachable")
