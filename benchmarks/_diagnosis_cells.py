"""The cells of the scoreboard: what is planted, how strongly, and what a right verdict says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["CELLS", "HEALTHY", "Cell", "Result"]

EVERYWHERE = ("memory-input", "no-logging", "no-gc", "one-thread", "keep-memory", "no-timers")
APART = ("no-sync", "solo", "swap")


@dataclass(frozen=True)
class Cell:
    """One kind of run. ``weak`` and ``strong`` are values of ``plant_ms``; ``price`` is what the plant costs a step, as
    a multiple of it, or what has to tell: "rest", windows of a run in which the plant rests; "pairs", runs with and
    without it. ``rank`` is the guilty rank, None where all are alike.
    ``twin`` are parameters of the run without the plant. ``cores``: others on the cores decide this cell."""

    name: str
    cause: str = "healthy"
    plant: str = ""
    weak: float = 25.0
    strong: float = 60.0
    price: float | Literal["rest", "pairs"] = 1.0
    rank: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    twin: Mapping[str, Any] = field(default_factory=dict)
    cores: bool = False

    def ms(self, strength: str) -> float:
        return self.strong if strength == "strong" else self.weak

    def windows(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        """A/B windows that suit the run."""
        names = list(EVERYWHERE)
        if params["parallel"] == "data" and not str(params.get("variant", "")).startswith("zero"):
            names += APART
        if params.get("accumulation", 1) > 1 or params.get("variant") == "accumulate":
            names.append("sync-once")
        if params.get("num_workers"):
            names.append("idle-workers")
        if self.price == "rest":
            names.append("no-plant")
        return tuple(names)


@dataclass(frozen=True)
class Result:
    """What the verdict said of one cell. ``told`` and ``planted`` are ms a step (MB for memory that grows)."""

    cell: Cell
    strength: str
    named: str
    rank: int | None
    told: float | None
    planted: float | None
    seconds: float
    text: str

    @property
    def right(self) -> bool:
        return self.named == self.cell.cause or (self.cell.cause == "healthy" and self.named == "unproven")

    @property
    def right_rank(self) -> bool | None:
        """None where no rank is guilty."""
        return None if self.cell.rank is None else self.right and self.rank == self.cell.rank

    @property
    def price_error(self) -> float | None:
        """Relative error of the price, None where there is none."""
        if self.told is None or not self.planted or not self.right or self.cell.cause == "healthy":
            return None
        return self.told / self.planted - 1.0

    @property
    def line(self) -> str:
        price = "" if self.planted is None else f", planted {self.planted:.1f}"
        told = "" if self.told is None else f", told {self.told:.1f}"
        rank = "" if self.rank is None else f" rank {self.rank}"
        return f"{self.cell.name} ({self.strength}): {self.named}{rank}{told}{price} [{self.seconds:.0f} s]"


ACCUMULATE = {"variant": "accumulate", "accumulation": 8}
STRAGGLER, LAST = "perf.straggler-rank", 1

CELLS: tuple[Cell, ...] = (
    Cell("slow device of a rank (sleep)", STRAGGLER, "slow-rank-blocked", rank=LAST),
    Cell("extra matmul on a rank", STRAGGLER, "slow-rank", rank=LAST),
    Cell("extra matmul, sharded data", STRAGGLER, "slow-rank", 40.0, 100.0, rank=LAST, params={"parallel": "sharded"}),
    Cell("slow device, tensor", STRAGGLER, "slow-rank-blocked", 60.0, 150.0, rank=LAST, params={"parallel": "tensor"}),
    Cell(
        "slow device, context", STRAGGLER, "slow-rank-blocked", 40.0, 100.0, rank=LAST, params={"parallel": "context"}
    ),
    Cell("slow loader of a rank", STRAGGLER, "slow-input-rank", rank=LAST),
    Cell("work on rank 0 only", "perf.host-work-on-rank0", "host-work-on-rank0", rank=0),
    Cell("lateness that roams", "perf.lateness-roams", "lateness-roams"),
    Cell("garbage collection in turns", "perf.gc-uncoordinated", "gc-uncoordinated", price="rest"),
    Cell("late launch on all ranks", "perf.host-bound", "late-launch", 40.0, 100.0),
    Cell("slow wire, latency", "perf.communication-bound", "slow-collective", 40.0, 100.0),
    Cell("slow wire, rate", "perf.communication-bound", "slow-link", 40.0, 100.0),
    Cell("slow reads in the rank", "perf.input-bound", "slow-input", 4.0, 10.0, price=8.0),
    Cell("slow storage, 1 worker", "perf.input-bound", "slow-storage", 9.0, 15.0, "pairs"),
    Cell("too few workers for decoding", "perf.input-bound", "slow-decode", 6.0, 12.0, "pairs"),
    Cell("bursty worker", "perf.bursty-workers", "bursty-workers", 120.0, 240.0, "pairs"),
    Cell("worker respawn", "perf.worker-respawn", "worker-respawn", 25.0, 50.0, "pairs"),
    Cell("thread storm of workers", "perf.cpu-oversubscribed", "worker-storm", 60.0, 120.0, "pairs"),
    Cell("thread storm of ranks", "perf.cpu-oversubscribed", "thread-storm", 25.0, 100.0, "pairs"),
    Cell("forced sync", "perf.forced-sync", "forced-sync", 40.0, 100.0, "rest"),
    Cell(
        "sync every micro-step", "sync.every-micro-step", "sync-every-micro-step", 5.0, 15.0, "rest", params=ACCUMULATE
    ),
    Cell("stage imbalance", "perf.stage-imbalance", "stage-imbalance", rank=LAST, params={"parallel": "pipeline"}),
    Cell(
        "expert imbalance",
        "perf.expert-imbalance",
        "expert-imbalance",
        40.0,
        80.0,
        rank=LAST,
        params={"parallel": "expert"},
    ),
    Cell("sequence-length imbalance", "perf.sequence-imbalance", "sequence-imbalance", rank=LAST),
    Cell("memory growth", "perf.memory-growth", "memory-growth", 0.5, 2.0),
    Cell("memory pressure", "perf.memory-stall", "memory-pressure", 25.0, 60.0, "rest"),
    Cell("neighbours on all cores", "perf.core-contended", "core-contended", 50.0, 100.0, "pairs", cores=True),
    Cell("neighbour on a rank's core", "perf.core-shared", "core-shared", 50.0, 100.0, "pairs", rank=LAST, cores=True),
    Cell("CPU quota", "perf.cpu-quota", "cpu-quota", 50.0, 25.0, "pairs", rank=LAST, cores=True),
)

_ODD: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("plain data", {}),
    ("one device's worth of accumulation", {"variant": "accumulate"}),
    ("accumulation of 8", ACCUMULATE),
    ("ZeRO stage 1", {"variant": "zero1"}),
    ("ZeRO stage 2", {"variant": "zero2"}),
    ("sharded data", {"parallel": "sharded"}),
    ("tensor", {"parallel": "tensor"}),
    ("tensor, sequence-parallel", {"parallel": "tensor", "variant": "sequence-parallel"}),
    ("pipeline, GPipe", {"parallel": "pipeline"}),
    ("pipeline, 1F1B", {"parallel": "pipeline", "variant": "1f1b"}),
    ("pipeline, interleaved", {"parallel": "pipeline", "variant": "interleaved"}),
    ("expert", {"parallel": "expert"}),
    ("context", {"parallel": "context"}),
    ("no workers, data in memory", {"num_workers": 0, "dataset_samples": 64}),
    ("one loader worker", {"num_workers": 1}),
    ("two loader workers", {"num_workers": 2}),
    ("ragged samples", {"ragged": True}),
    ("unused-parameter search with a static graph", {"find_unused": True}),
    ("`.item()` once in 100 steps", {"plant": "item-now-and-then"}),
    ("cold cache in the first epoch", {"plant": "cold-cache", "dataset_samples": 64}),
    ("gradient clipping", {"clip_norm": 0.5}),
    ("SGD", {"optimizer": "sgd"}),
    ("float64", {"dtype": "fp64"}),
    ("the small preset", {"preset": "small", "global_batch": 8}),
)

HEALTHY: tuple[Cell, ...] = tuple(Cell(f"healthy: {name}", params=params) for name, params in _ODD)
