"""What to train and how to spread it: the parameters of the ``train`` probe and the arithmetic of batches. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ddaudit.errors import UsageProblem

__all__ = ["VARIANTS", "Geometry", "TrainParams", "geometry"]

#: Variants of every kind of parallelism; the first is the default.
VARIANTS: dict[str, tuple[str, ...]] = {
    "single": ("plain",),
    "data": ("plain", "accumulate", "zero1", "zero2"),
    "sharded": ("plain",),
    "tensor": ("plain", "sequence-parallel"),
    "pipeline": ("gpipe", "1f1b", "interleaved"),
    "expert": ("plain",),
    "context": ("plain",),
    "fsdp-tp": ("plain", "sequence-parallel"),
    "hsdp": ("plain",),
}

Parallelism = Literal["single", "data", "sharded", "tensor", "pipeline", "expert", "context", "fsdp-tp", "hsdp"]

WindowName = Literal[
    "memory-input",
    "no-sync",
    "no-logging",
    "sync-once",
    "solo",
    "swap",
    "no-gc",
    "one-thread",
    "keep-memory",
    "no-timers",
    "idle-workers",
    "no-plant",
]
"""Windows of ``ddaudit.evidence.windows`` that a run may ask for; "normal" lies between any two."""

APART = ("no-sync", "solo", "swap")
"""Windows that need ranks which can do without their peers, or with a peer's data."""


class TrainParams(BaseModel):
    """Parameters of one training run. The defaults are the ``tiny`` run that a CPU core finishes in about a second.

    ``lr`` None means what suits preset and optimizer (``tiny``: AdamW 0.01, SGD 0.5; both learn its source within 40
    updates). ``experts`` None means 4 for expert parallelism and a dense model for every other kind; a single-device
    reference for the former sets it to 4. ``plant_ms`` is how long a planted delay lasts, None its own length.
    ``steps`` counts updates from the very first one, also when resuming. After them come ``rounds`` rounds of A/B
    ``windows`` (see ``ddaudit.training.windows``), each with one suspect taken out; a run with windows times steps and
    is no training result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parallel: Parallelism = "single"
    variant: str = ""
    preset: Literal["tiny", "small", "medium", "large"] = "tiny"
    dtype: Literal["fp32", "bf16", "fp64"] = "fp32"
    experts: int | None = Field(default=None, ge=0, le=64)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    optimizer: Literal["sgd", "adamw"] = "adamw"
    lr: float | None = Field(default=None, ge=0.0)
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup_steps: int = Field(default=4, ge=0)
    clip_norm: float | None = Field(default=None, gt=0.0)
    steps: int = Field(default=40, ge=1)
    global_batch: int = Field(default=16, ge=1)
    micro_batch: int | None = Field(default=None, ge=1)
    accumulation: int | None = Field(default=None, ge=1)
    seq_len: int | None = Field(default=None, ge=2)
    dataset_samples: int = Field(default=4096, ge=1)
    drop_last: bool = True
    ragged: bool = False
    num_workers: int = Field(default=0, ge=0, le=64)
    find_unused: bool = False
    capture: bool = False
    checkpoint: str = Field(default="none", pattern=r"^(none|end|step:[1-9][0-9]{0,8})$")
    resume_from: str | None = None
    seed: int = Field(default=1234, ge=0, lt=2**31)
    windows: tuple[WindowName, ...] = ()
    rounds: int = Field(default=3, ge=1, le=1000)
    plant: str = ""
    plant_ms: float | None = Field(default=None, ge=0.0, le=60_000.0)

    @model_validator(mode="after")
    def _variant_exists(self) -> Self:
        known = VARIANTS[self.parallel]
        if self.variant and self.variant not in known:
            raise ValueError(f"{self.parallel} has no variant {self.variant!r}; one of: {', '.join(known)}")
        return self

    def misfit(self, ranks: int) -> str | None:
        """Why this training cannot be spread over so many ranks, or None. Plans and lint ask before anything starts."""
        try:
            geometry(self, ranks)
        except UsageProblem as problem:
            return str(problem)
        return None

    @property
    def form(self) -> str:
        """The variant, with the default filled in."""
        return self.variant or VARIANTS[self.parallel][0]

    @property
    def expert_count(self) -> int:
        """Experts per mixture layer; 0 for a dense model."""
        if self.experts is not None:
            return self.experts
        return 4 if self.parallel == "expert" else 0

    @property
    def base_lr(self) -> float:
        """Peak learning rate."""
        if self.lr is not None:
            return self.lr
        adamw = {"tiny": 1e-2, "small": 3e-3, "medium": 1e-3, "large": 3e-4}[self.preset]
        return adamw if self.optimizer == "adamw" else 50.0 * adamw

    @property
    def checkpoint_after(self) -> int | None:
        """Number of updates after which to save, or None."""
        if self.checkpoint == "none":
            return None
        return self.steps if self.checkpoint == "end" else int(self.checkpoint.partition(":")[2])


@dataclass(frozen=True)
class Geometry:
    """How one global batch is spread. ``axes`` maps each mesh axis to its size, outermost first;
    ``global_batch = dp * micro_batch * accumulation`` samples."""

    axes: dict[str, int]
    dp: int
    micro_batch: int
    accumulation: int

    @property
    def world_size(self) -> int:
        size = 1
        for extent in self.axes.values():
            size *= extent
        return size


def axes_of(params: TrainParams, world_size: int) -> dict[str, int]:
    """Mesh axes of a kind of parallelism over ``world_size`` ranks."""
    inner = 2 if world_size % 2 == 0 else 1
    axes: dict[str, dict[str, int]] = {
        "single": {"dp": 1},
        "data": {"dp": world_size},
        "sharded": {"dp": world_size},
        "tensor": {"tp": world_size},
        "pipeline": {"pp": world_size},
        "expert": {"ep": world_size},
        "context": {"cp": world_size},
        "fsdp-tp": {"dp": world_size // inner, "tp": inner},
        "hsdp": {"replicate": world_size // inner, "shard": inner},
    }
    return axes[params.parallel]


def geometry(params: TrainParams, world_size: int) -> Geometry:
    """Spreads the global batch over the ranks.

    Raises:
        UsageProblem: the ranks do not fit the kind, or the batch does not divide.
    """
    axes = axes_of(params, world_size)
    result_size = 1
    for extent in axes.values():
        result_size *= extent
    if result_size != world_size:
        raise UsageProblem(f"{params.parallel} runs on {result_size} rank, not {world_size}", fix="set ranks = 1")
    data_axes = [axes[name] for name in ("dp", "ep", "replicate", "shard") if name in axes]
    dp = 1
    for extent in data_axes:
        dp *= extent
    default = 4 if params.parallel == "pipeline" else 2 if params.form == "accumulate" else 1
    accumulation = params.accumulation or default
    if params.micro_batch and not params.accumulation:
        accumulation = max(1, params.global_batch // (dp * params.micro_batch))
    micro_batch = params.micro_batch or params.global_batch // (dp * accumulation)
    if dp * micro_batch * accumulation != params.global_batch:
        raise UsageProblem(
            f"global_batch {params.global_batch} is not {dp} replicas x {micro_batch} samples x {accumulation} passes",
            expected="global_batch = N * B_local * A",
            fix=f"set global_batch to a multiple of {dp * accumulation}, or change micro_batch or accumulation",
        )
    _refuse_misfits(params, axes, accumulation)
    return Geometry(axes, dp, micro_batch, accumulation)


def _refuse_misfits(params: TrainParams, axes: dict[str, int], accumulation: int) -> None:
    """Refuses what would deadlock or fail deep inside a library."""
    apart = [name for name in params.windows if name in APART]
    if apart and (params.parallel not in ("single", "data") or params.form.startswith("zero")):
        raise UsageProblem(
            f"ranks under {params.parallel} ({params.form}) cannot train apart, as the window {apart[0]!r} would",
            expected="single, or plain data parallelism",
        )
    if params.dataset_samples < params.global_batch:
        raise UsageProblem(
            f"dataset_samples {params.dataset_samples} is less than one global batch of {params.global_batch}"
        )
    if params.parallel == "expert" and (not params.expert_count or params.expert_count % axes["ep"]):
        raise UsageProblem(f"{params.expert_count} experts do not spread evenly over {axes['ep']} ranks")
    if params.experts and params.parallel not in ("single", "data", "expert"):
        raise UsageProblem(f"experts are not supported under {params.parallel}", expected="single, data or expert")
    if params.form == "interleaved" and accumulation % axes["pp"]:
        raise UsageProblem(
            f"the interleaved schedule needs a multiple of {axes['pp']} micro-batches, not {accumulation}"
        )
    if params.dropout and params.parallel not in ("single", "data", "sharded", "hsdp"):
        raise UsageProblem(
            f"dropout under {params.parallel} would need rank-aware masks to equal one device", fix="set dropout = 0"
        )
