"""What ``job.toml`` may say. The field docstrings are the reference that docs/job.md explains."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["GOALS", "JobFile", "Layout", "ModelShape", "RunSettings"]

GOALS = ("capacity", "larger-batch", "wall-clock", "memory-fit")

# Upper bounds are far above anything that exists: a larger number is a typing error, and products stay exact.
Degree = Annotated[int, Field(ge=1, le=1_048_576)]
Size = Annotated[int, Field(ge=1, le=10_000_000)]
Count = Annotated[int, Field(ge=1, le=10**15)]


class _Strict(BaseModel):
    # TOML has types of its own: "8" is no number and 8.0 no count.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Layout(_Strict):
    """How ranks share the work: ``world_size = dp * sharded * tp * pp * cp``.

    ``dp`` replicas hold whole copies (DDP, or the replicate axis of HSDP); each consists of ``sharded`` ranks that
    share parameters, gradients or optimizer states (FSDP2 or ZeRO, by ``zero_stage``) and see different data too.
    Expert parallelism (``ep``) lies across the ``dp * sharded`` data-parallel ranks and adds none.
    """

    dp: Degree | None = None
    """Left out: what ``world_size`` leaves, else 1 (``ep`` where only that is set)."""
    sharded: Degree = 1
    zero_stage: Literal[1, 2, 3] = 3
    """1 shards optimizer states, 2 gradients as well, 3 (FSDP) everything."""
    tp: Degree = 1
    pp: Degree = 1
    virtual_stages: Annotated[int, Field(ge=1, le=1024)] = 1
    """Chunks of layers per pipeline rank (interleaved schedule)."""
    ep: Degree = 1
    cp: Degree = 1
    world_size: Degree | None = None

    @model_validator(mode="after")
    def _stage_shards_something(self) -> Self:
        if "zero_stage" in self.model_fields_set and self.sharded == 1:
            raise ValueError(f"zero_stage = {self.zero_stage} shards nothing; set sharded to the ranks of one copy")
        return self

    @property
    def data_ranks(self) -> int:
        """N, the number of replicas that see different data."""
        if self.dp is not None:
            return self.dp * self.sharded
        inner = self.sharded * self.tp * self.pp * self.cp
        if self.world_size is not None:
            return max(1, self.world_size // inner) * self.sharded
        return self.ep if self.sharded == 1 else self.sharded


class ModelShape(_Strict):
    """A transformer's sizes. ``parameters`` counts all; left out, it is estimated from the others."""

    parameters: Count | None = None
    layers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    hidden: Size | None = None
    heads: Size | None = None
    kv_heads: Size | None = None
    ffn: Size | None = None
    """Width of the feed-forward layer (of one expert); left out, 4 x hidden."""
    gated: bool = False
    """Three feed-forward matrices (SwiGLU) instead of two."""
    vocab: Size | None = None
    tied_embeddings: bool = False
    experts: Size | None = None
    """Experts per layer; left out, the model is dense."""


class RunSettings(_Strict):
    """Settings of one run: the planned one at the top level, the known-good one in ``[baseline]``."""

    layout: Layout = Layout()
    micro_batch: Size | None = None
    """B_local: samples of one forward pass on one data-parallel replica."""
    accumulation: Size | None = None
    """A: forward passes per update on one replica; pipeline micro-batches count."""
    global_batch: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """B_eff in samples. Two of the three give the third; all three are held against each other."""
    seq_len: Size | None = None
    dataset_samples: Count | None = None
    drop_last: bool | None = None
    """Whether the loader drops an incomplete micro-batch at the end of an epoch."""
    last_window: Literal["drop", "rescale", "step-as-full", "carry"] | None = None
    """What the loop does with an epoch's last, short accumulation window."""
    epochs: Annotated[float, Field(gt=0, le=1e6)] | None = None
    steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Optimizer updates of the whole run."""
    optimizer: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lr: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Peak learning rate."""
    schedule: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    decay_steps: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Updates after which the schedule reaches its end, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**12)] | None = None
    warmup_tokens: Annotated[int, Field(ge=0, le=10**16)] | None = None
    precision: Literal["fp64", "fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"] | None = None
    """``-mixed`` keeps float32 master weights and optimizer states; ``bf16`` and ``fp16`` alone keep none."""
    model: ModelShape = ModelShape()

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        for one, other in (("epochs", "steps"), ("warmup_steps", "warmup_tokens")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"{one} and {other} are both set; expected one of them")
        return self


class JobFile(RunSettings):
    """A whole ``job.toml``."""

    name: Annotated[str, Field(max_length=200)] | None = None
    goal: Literal["capacity", "larger-batch", "wall-clock", "memory-fit"] | None = None
    """Why more devices: a larger model, a larger batch, less time, or a model that does not fit yet."""
    device_memory_gib: Annotated[float, Field(gt=0, le=100_000)] | None = None
    baseline: RunSettings = RunSettings()
    """A run known to train well. What it leaves out about data and model is taken from the plan (:data:`SHARED`)."""

    @property
    def has_baseline(self) -> bool:
        return bool(self.baseline.model_fields_set)
