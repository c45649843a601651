"""A planned job in numbers: what a job file says, and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ddaudit.evidence.base import JsonEvidence

__all__ = ["JobNumbers", "JobPlan", "MemoryFloor"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemoryFloor(_Frozen):
    """Bytes that one rank cannot do without: model states alone, no activations, workspaces or context.

    ``gathered_bytes`` is one transformer block in compute precision, which fully sharded training holds unsharded.
    """

    parameters: float
    """Parameters of the rank's own part of the model, before sharding."""
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    gathered_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.gathered_bytes


class JobNumbers(_Frozen):
    """One run of a job: its settings, with what they imply filled in. None means that the file does not say.

    ``replicas`` is N: ranks that see different data, ``dp * sharded``; expert parallelism lies across those ranks.
    ``global_batch`` is B_eff = N * B_local * A in samples per update, ``global_batch_claimed`` what the file calls it.
    Per-epoch numbers are those of a distributed sampler that gives every replica equally many samples.
    """

    world_size: int
    world_size_claimed: int | None = None
    dp: int
    sharded: int
    zero_stage: int
    tp: int
    pp: int
    ep: int
    cp: int
    virtual_stages: int = 1
    replicas: int

    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    global_batch_claimed: int | None = None
    seq_len: int | None = None
    tokens_per_update: int | None = None

    dataset_samples: int | None = None
    drop_last: bool | None = None
    last_window: str | None = None
    micro_batches_per_epoch: int | None = None
    """Per replica."""
    updates_per_epoch: int | None = None
    left_over_micro_batches: int | None = None
    """Per replica, behind the last full window of an epoch."""
    unread_samples: int | None = None
    """Of the data set in one epoch: left out by ``drop_last``, and with the last window where that is dropped."""
    epochs: float | None = None
    updates: int | None = None

    optimizer: str | None = None
    rule: Literal["linear", "sqrt"] | None = None
    """How the learning rate follows the batch under this optimizer; None where no published rule is known."""
    lr: float | None = None
    schedule: str | None = None
    decay_updates: int | None = None
    warmup_updates: float | None = None
    warmup_tokens: float | None = None

    precision: str | None = None
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    experts: int | None = None
    parameters: float | None = None
    parameters_estimated: bool = False
    memory: MemoryFloor | None = None

    @property
    def bubble_share(self) -> float | None:
        """Idle share of a pipeline's step, (p - 1) / (v m + p - 1) for p stages, m micro-batches and v chunks a stage
        (Narayanan et al. 2021, section 2.2); 0 without a pipeline, None when m is unknown.
        """
        if self.pp == 1:
            return 0.0
        if self.accumulation is None:
            return None
        return (self.pp - 1) / (self.virtual_stages * self.accumulation + self.pp - 1)


class JobPlan(JsonEvidence):
    """A job file: what is planned and, where the file says so, a run known to be good.

    ``lines`` maps the dotted key of every setting to its line in ``file``, so that findings can point at it.
    """

    kind: ClassVar[str] = "job"

    file: str
    name: str | None = None
    goal: str | None = None
    device_memory_bytes: float | None = None
    planned: JobNumbers
    baseline: JobNumbers | None = None
    lines: Mapping[str, int] = Field(default_factory=dict)

    def place(self, *keys: str) -> str:
        """``job.toml:12``: the first of these settings that the file holds, else the file alone."""
        line = next((self.lines[key] for key in keys if key in self.lines), None)
        return self.file if line is None else f"{self.file}:{line}"

    @property
    def batch_ratio(self) -> float | None:
        """k: how many times larger the planned batch is than the baseline's, in tokens where the sequence lengths
        differ, else in samples.
        """
        if self.baseline is None:
            return None
        mine, other = self.planned, self.baseline
        if mine.seq_len != other.seq_len and mine.tokens_per_update and other.tokens_per_update:
            return mine.tokens_per_update / other.tokens_per_update
        if mine.global_batch and other.global_batch:
            return mine.global_batch / other.global_batch
        return None
