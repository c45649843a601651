"""When costly facts of an update are recorded: always at first, where most faults show, then ever more seldom.

The answer depends on the update's number alone, so that all ranks record the same updates and can be compared.
"""

from __future__ import annotations

__all__ = ["Sampling"]

#: Up to which update every how manieth is recorded, and beyond them.
PERIODS, LATER = ((24, 1), (128, 8)), 32
#: Updates that are recorded whole where only every so manieth is asked for.
FIRST = 8
#: Bytes of parameters and gradients that are digested per update on average (xxh3: about 10 GB/s).
DIGEST_BYTES = 16 << 20


class Sampling:
    """``every`` is what the user asked for; 1 leaves the choice to :data:`PERIODS`."""

    def __init__(self, every: int) -> None:
        self.every = max(1, every)

    def period(self, update: int) -> int:
        """Every how manieth update is recorded around this one."""
        if self.every > 1:
            return 1 if update < FIRST else self.every
        for end, period in PERIODS:
            if update < end:
                return period
        return LATER

    def due(self, update: int) -> bool:
        """Whether slices of gradients, norms and counters are recorded."""
        return update % self.period(update) == 0

    def digests_due(self, update: int, nbytes: int) -> bool:
        """Whether all of the parameters and gradients, ``nbytes`` of each on this rank, are digested."""
        return update < 3 or update % max(self.period(update), -(-2 * nbytes // DIGEST_BYTES)) == 0
