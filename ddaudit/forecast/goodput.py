"""How often to save, and how much of the time then trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Goodput", "best_interval"]


@dataclass(frozen=True)
class Goodput:
    """Save every ``interval_s`` seconds; ``share`` of the wall time then goes into steps that are kept."""

    interval_s: float
    share: float
    mtbf_s: float


def best_interval(save_s: float, restart_s: float, devices: int, failures_per_device_day: float) -> Goodput | None:
    """The interval that wastes least, and the goodput it gives.

    Daly 2006, eq. 37: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for a save that stalls d seconds and a mean
    time M between failures of the whole job, M where d >= 2 M; for small d / M it is Young's sqrt(2 d M) (1974). The
    expected time of one interval of work t is M e^(R/M) (e^((t + d) / M) - 1) (Daly 2006, eq. 20).

    Returns: None where nothing fails or a save costs nothing: there is then no best interval.
    """
    rate = devices * failures_per_device_day / 86400
    if rate <= 0 or save_s <= 0:
        return None
    mtbf = 1 / rate
    x = save_s / (2 * mtbf)
    interval = math.sqrt(2 * save_s * mtbf) * (1 + math.sqrt(x) / 3 + x / 9) - save_s if x < 1 else mtbf
    exponent = (restart_s / mtbf, (interval + save_s) / mtbf)
    if max(exponent) > 50:
        return Goodput(interval, 0.0, mtbf)
    spent = mtbf * math.exp(exponent[0]) * math.expm1(exponent[1])
    return Goodput(interval, interval / spent, mtbf)
