"""The window of an optimizer: everything between clearing its gradients and its step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ddaudit.watch.gradients import Parameters
from ddaudit.watch.loaders import Batch
from ddaudit.watch.losses import Micro

__all__ = ["Back", "Window"]


@dataclass
class Back:
    """One outermost backward call and what went into it. ``synced`` is None where no wrapper was called."""

    micro: Micro
    batches: list[Batch]
    prints: list[int]
    rows: int
    synced: bool | None
    bypass: bool
    scale: float
    seconds: float = 0.0


@dataclass
class Window:
    """State of one optimizer; ``number`` is the order of construction."""

    number: int
    optimizer: Any
    parameters: Parameters
    updates: int = 0
    follows: int = 0
    """Updates that the recorded optimizer had made when this one was made."""
    backs: list[Back] = field(default_factory=list)
    cleared: bool = True
    """Whether gradients were seen cleared since the previous step."""
    unscaled: bool = False
    clips: int = 0
    early_clips: int = 0
    local_clips: int = 0
    """Clips of unreduced gradients to which a later backward pass added."""
    clipped_at: int = 0
    clip_norm: float = math.nan
    clip_limit: float = math.nan
    ticks: int = 0
    entered: float = 0.0
    inside_s: float = 0.0
    """Backward and forward time spent inside the step (closures)."""

    def mark_cleared(self) -> None:
        """Gradients are gone: what was computed into them does not count for the coming step."""
        self.cleared = True
        self.backs.clear()
        self.parameters.forget()

    @property
    def unreduced(self) -> bool:
        """FSDP2 keeps what it has not reduced yet out of sight: no gradient in place does not mean that it was
        cleared."""
        if not self.backs or self.backs[-1].synced is not False:
            return False
        return any(hasattr(p, "_local_tensor") for p in self.parameters.items[:1])

    @property
    def lost(self) -> bool:
        """Gradients arrived by backward, and the optimizer steps without any (or with zeros only)."""
        return bool(self.backs) and self.parameters.arrived and self.parameters.cleared()

    def add(self, back: Back) -> None:
        """One more backward pass."""
        if self.clipped_at and self.clipped_at == len(self.backs) and self.backs[-1].synced is False:
            self.local_clips += 1
        self.backs.append(back)

    def copy(self) -> Window:
        """The window as it is: what comes later begins with other objects."""
        found = object.__new__(Window)
        found.__dict__.update(self.__dict__)
        return found

    def stepped(self) -> None:
        """Begins the next window."""
        self.updates += 1
        self.backs = []
        self.cleared = self.unscaled = False
        self.clips = self.early_clips = self.local_clips = self.ticks = 0
        self.clip_norm = math.nan
        self.entered = self.inside_s = 0.0
        self.clipped_at = 0
        self.parameters.forget()

    def batches(self) -> list[Batch]:
        """Loader batches of the window, each once."""
        if len(self.backs) == 1 and len(self.backs[0].batches) < 2:
            return self.backs[0].batches
        found: list[Batch] = []
        for back in self.backs:
            found += [b for b in back.batches if not any(b is other for other in found)]
        return found

    def micro_batches(self, batches: int) -> float:
        """Forward/backward passes that share out one global batch: several losses over one batch count once; NaN
        where that cannot be told. ``batches`` counts those of :meth:`batches`."""
        passes = len(self.backs)
        if not passes:
            return math.nan
        if batches:
            return float(min(passes, batches))
        alike = len({b.micro.shape for b in self.backs}) == 1
        mixed = len({b.synced for b in self.backs}) > 1
        return float(passes) if passes == 1 or (alike and (passes > 2 or mixed)) else math.nan

    def samples(self, batches: list[Batch]) -> float:
        """Samples of the window: of the loader's batches, or of the models' inputs where there is no loader."""
        if batches:
            return float(sum(b.size for b in batches))
        rows = sum(b.rows for b in self.backs)
        return float(rows) if rows else math.nan

    def loss_table(self) -> list[list[float]]:
        """One row a backward pass: loss, largest and total weight of its means, elements of the largest, whether some
        were left out, whether it is an explicit sum, and the largest whole divisor. Empty where nobody asked."""
        return [_row(back) for back in self.backs[:64]] if any(b.micro.weighed for b in self.backs) else []


def _row(back: Back) -> list[float]:
    micro, main = back.micro, back.micro.main
    weights = micro.weights(back.scale)
    value = math.nan if micro.value is None else micro.value / back.scale
    whole = [d for d in micro.divisors if d > 1 and abs(d - round(d)) < 1e-9]
    return [
        value,
        weights[0] if weights else math.nan,
        weights[1] if weights else math.nan,
        math.nan if main is None or main.count is None else main.count,
        float(main is not None and main.ragged),
        float(main is not None and main.kind == "sum"),
        float(len(whole)),
        max(whole, default=math.nan),
        float(back.micro.shape),
        {None: -1.0, False: 0.0, True: 1.0}[back.synced],
    ]
