"""Limits that the judgements on the step time share."""

from __future__ import annotations

from ddaudit.api import Limit, Limits

__all__ = ["BottleneckLimits"]


class BottleneckLimits(Limits):
    """Limits on shares of a typical step. Shares of input and host leave the time out in which the rank waited for a
    core."""

    family = "bottleneck"

    unexplained_share: Limit = Limit(
        warn_above=0.05,
        source="default: books that leave a twentieth of the step open may hide the largest term",
    )
    input_share: Limit = Limit(
        warn_above=0.4,
        source="default: a loader that takes two fifths of the step limits it more than any kernel could",
    )
    communication_share: Limit = Limit(
        warn_above=0.6,
        source="default: with three fifths of the step on the wire, a device more adds less than half of itself",
    )
    host_share: Limit = Limit(
        warn_above=0.5,
        source="default: a device that waits for the host half the step gains nothing from being faster",
    )
    straggler_share: Limit = Limit(
        warn_above=0.1,
        source="default: a tenth of every rank's step; below it, lateness of healthy ranks takes turns",
    )
    core_share: Limit = Limit(
        warn_above=0.2,
        source="default: a fifth of the step without a core is more than ranks on cores of their own ever wait",
    )
