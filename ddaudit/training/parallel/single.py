"""One device: the reference that every other kind must equal. The contract's defaults are all there is to it."""

from __future__ import annotations

from ddaudit.training.parallel.contract import Parallel

__all__ = ["SingleDevice"]


class SingleDevice(Parallel):
    """Forward, backward and update on one device, with gradient accumulation if asked for."""
