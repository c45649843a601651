"""What judgements of links share: limits, and which interface carried the bytes."""

from __future__ import annotations

from collections.abc import Sequence

from ddaudit.api import Interface, Limit, Limits

__all__ = ["QUICK", "NetLimits", "carrier"]


class NetLimits(Limits):
    """Limits on links between hosts."""

    family = "net"

    slow_factor: Limit = Limit(
        fail_above=4.0,
        source="default: hosts of one fleet differ less, a port that fell back a generation more",
    )
    slow_excess_s: Limit = Limit(
        fail_above=0.02, source="default: less than this on the largest message is what a busy CPU does to a thread"
    )
    lost_share: Limit = Limit(
        fail_above=0.01,
        source="default: sound networks lose 1 packet in 10,000 or fewer (Pingmesh, SIGCOMM 2015), and TCP's rate falls"
        " with the square root of the share (Mathis et al., 1997)",
    )
    work_factor: Limit = Limit(
        fail_above=2.5, source="default: the same work on hosts of one kind; a busy core at worst halves it"
    )
    nominal_share: Limit = Limit(
        warn_below=0.3, source="default: one stream reaches a third of a hardware link's rate unless something is wrong"
    )


QUICK = {"sizes": [65536], "repeats": 3, "work_s": 0.1}


def carrier(interfaces: Sequence[Interface], host: str) -> Interface | None:
    """The interface of a host that carried most bytes."""
    mine = [i for i in interfaces if i.host == host and i.sent + i.received > 0]
    return max(mine, key=lambda i: i.sent + i.received, default=None)
