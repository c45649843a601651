"""What one rank's parts of a step cost by themselves: arithmetic, memory, and reading data without a model."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence

__all__ = ["ComputeCosts", "LoaderCosts", "MatmulRate", "MemoryCosts", "MemoryTrade"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MatmulRate(_Part):
    """The best rate that [m, k] times [k, n] reached, in FLOP/s (2 m n k per product)."""

    m: int
    k: int
    n: int
    flops_per_s: float


class ComputeCosts(JsonEvidence):
    """Arithmetic of forward and backward passes over one micro-batch.

    ``counted_flops`` is what torch's FlopCounterMode saw; ``formula_flops`` is 6 P + 12 L h s a token. ``seconds`` is
    the median pass. Rates of matrix products by shape stand in for a vendor's peak.
    """

    kind: ClassVar[str] = "compute-costs"

    host: str
    device: str
    dtype: str
    tokens: int
    counted_flops: float
    formula_flops: float
    seconds: float
    matmuls: tuple[MatmulRate, ...]

    @property
    def peak_flops_per_s(self) -> float:
        """The best rate of any shape that was tried."""
        return max(rate.flops_per_s for rate in self.matmuls)

    @property
    def utilisation(self) -> float:
        """Model FLOPs by the formula, over the time they took at the best measured rate."""
        return self.formula_flops / self.seconds / self.peak_flops_per_s


class LoaderCosts(JsonEvidence):
    """What the loader delivers alone. Seconds for one update's batches (medians): ``cold_s`` over the first pass,
    ``warm_s`` over the second, ``step_s`` of a training step on a batch from memory."""

    kind: ClassVar[str] = "loader-costs"

    host: str
    workers: int
    updates: int
    cold_s: float
    warm_s: float
    step_s: float

    @property
    def headroom(self) -> float:
        """How many times the need of one step the warm loader can deliver."""
        return self.step_s / self.warm_s


class MemoryTrade(_Part):
    """Activation checkpointing of one kind: bytes that the forward pass keeps for the backward pass, and the median
    seconds of both."""

    recompute: str
    activation_bytes: int
    seconds: float


class MemoryCosts(JsonEvidence):
    """The ledger of one rank's memory in bytes, counted tensor by tensor.

    ``activations`` maps micro-batch sizes to bytes kept for the backward pass. ``resident_bytes`` is the process,
    ``available_bytes`` what the system (or the device) could still give. ``predicted_state_bytes`` is what parameters,
    gradients and optimizer state take by the count of parameters.
    """

    kind: ClassVar[str] = "memory-costs"

    host: str
    device: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int | None
    resident_bytes: int
    proportional_bytes: int | None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    available_bytes: int
    predicted_state_bytes: int
    activations: dict[int, int]
    trades: tuple[MemoryTrade, ...]

    @property
    def state_bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def bytes_per_sample(self) -> float:
        """Slope of the activations between the smallest and the largest micro-batch."""
        small, large = min(self.activations), max(self.activations)
        return (self.activations[large] - self.activations[small]) / (large - small)
