"""The self-test matrix: every fault of distributed training under every parallelism where it can occur."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddaudit.api import Plant
from ddaudit.training.faults import applicable

#: Float64 and SGD: rounding stays at 1e-15, and no Adam hides the scale of a gradient. Three updates show a fault that
#: only starts with the second; eight samples spread over two replicas, two passes or four pipeline micro-batches.
EXACT: Mapping[str, Any] = {"dtype": "fp64", "optimizer": "sgd", "steps": 3, "global_batch": 8, "capture": True}

#: The runs that a table row stands for, on two ranks.
TYPES: tuple[tuple[str, str], ...] = (
    ("data", "plain"),
    ("data", "zero1"),
    ("data", "zero2"),
    ("sharded", "plain"),
    ("tensor", "plain"),
    ("tensor", "sequence-parallel"),
    ("pipeline", "gpipe"),
    ("pipeline", "1f1b"),
    ("pipeline", "interleaved"),
    ("expert", "plain"),
    ("context", "plain"),
)

#: Fault -> (what is broken, further parameters of fault and twin).
FAULTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "grad-sum": ("a gradient is summed instead of averaged", {}),
    "param-unsynced": ("one parameter misses its sync", {}),
    "accum-undivided": ("accumulated gradients are not divided", {"accumulation": 2}),
    "accum-double-divided": ("accumulated gradients are divided twice", {"accumulation": 2}),
    "mean-of-means": ("per-micro-batch means with unequal token counts", {"accumulation": 2, "ragged": True}),
    "same-shard": ("two ranks are fed the same shard", {}),
    "tp-reduce-skipped": ("a tensor-parallel reduction is skipped", {}),
    "micro-batches-swapped": ("targets of two pipeline micro-batches are swapped", {}),
    "micro-batch-dropped": ("a pipeline micro-batch is dropped", {}),
    "zero-grad-missed": ("gradients are not cleared before update 1", {}),
    "expert-token-dropped": ("an expert loses a token", {}),
    "expert-undivided": ("expert gradients are not divided", {}),
    "context-mask-off-by-one": ("the context mask is off by one", {}),
    "replica-drift": ("a replicated parameter drifts on one rank", {}),
}

EXPECTED: dict[str, tuple[str, ...]] = {
    "gradients": (
        "parallel.gradients-differ",
        "grad.scaled-by-world-size",
        "grad.scale-off",
        "loss.not-divided-by-accum",
        "loss.divided-twice",
    ),
    "replicas": ("replica.diverged",),
}


def matrix(subject: str) -> tuple[Plant, ...]:
    """Plants of one check: ``gradients`` (all that moves a gradient) or ``replicas`` (what only a copy shows)."""
    drift = subject == "replicas"
    faults = [name for name in FAULTS if (name == "replica-drift") is drift]
    return tuple(_cell(fault, parallel, form, subject) for fault in faults for parallel, form in TYPES)


def _cell(fault: str, parallel: str, form: str, subject: str) -> Plant:
    name, more = FAULTS[fault]
    params = {**EXACT, **more, "parallel": parallel, "variant": form}
    alone = {**EXACT, "parallel": "single"} | {k: v for k, v in more.items() if k == "ragged"}
    if parallel == "pipeline":
        params.pop("accumulation", None)  # its micro-batches are the accumulation
    if parallel == "expert":
        alone["experts"] = 4
    return Plant(
        name,
        EXPECTED[subject],
        ranks=2,
        params=params,
        planted={"plant": fault},
        reference=alone if subject == "gradients" else None,
        types=parallel if form == "plain" else f"{parallel}-{form}",
        not_applicable=applicable(fault, parallel, form) or "",
    )
