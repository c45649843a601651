"""Records with everything that pictures are drawn from."""

from __future__ import annotations

import math
from typing import Any

from ddaudit.findings import Remedy, Status, Where
from ddaudit.record import Record, StepRecord
from tests.report import records

LINES = {"compute": 0.020, "communication": 0.008, "peer wait": 0.004, "input": 0.002, "unexplained": 0.0001}


def exhibits(ranks: int, steps: int = 40, hosts: int = 1, slow: int | None = None) -> dict[str, Any]:
    """Tables as the built-in exhibits make them; rank ``slow`` takes twice as long."""
    times = [
        [0.03 * (2 if rank == slow else 1) + 0.001 * ((rank * 7 + s) % 5) for s in range(steps)]
        for rank in range(ranks)
    ]
    return {
        "ledger": {"rank": 0, "step_s": sum(LINES.values()), "lines": LINES, "hidden_s": 0.001},
        "step-times": {
            "by": "rank",
            "rows": [f"{r} node{r * hosts // ranks:02d}" for r in range(ranks)],
            "left_out": 0,
            "steps": list(range(1, steps + 1)),
            "seconds": times,
        },
        "loss": {"steps": list(range(steps)), "nats": [1.3 + 2.1 * math.exp(-s / 8) for s in range(steps)]},
        "step-spread": {"step_s": sorted(times[0]), "input_s": [0.001 * 1.1**s for s in range(steps)]},
        "memory": {
            "kind": "process",
            "peak_bytes": 3.0e9,
            "ranks": [{"rank": r, "host": "node00", "bytes": 2.5e9 + r * 1e7} for r in range(ranks)],
        },
    }


def priced(*shorter: float) -> Record:
    """A run whose two steps say what their timers cost; the second was compared with steps without them."""
    costs = ({"cpu_share": 0.004, "shorter": None}, {"cpu_share": 0.001, "shorter": shorter or None})
    base = records.healthy()
    steps = [s.model_copy(update={"exhibits": {"measuring-cost": c}}) for s, c in zip(base.steps, costs, strict=True)]
    return base.model_copy(update={"steps": tuple(steps)})


def evidence(parallel: str, ranks: int) -> dict[str, Any]:
    points = [
        {
            "op": op,
            "group": list(range(ranks)),
            "bytes": 4**k,
            "passes": [{"repeats": 5, "low_s": t, "median_s": t, "high_s": t}],
        }
        for op in ("all-reduce", "all-gather", "broadcast")
        for k in range(6, 13)
        for t in [1e-4 + 4**k / 3e9]
    ]
    phases = {"spawn_s": 0.02, "load_s": 0.4, "rendezvous_s": 0.05, "first_step_s": 1.2}
    job = {"parallel": parallel, "world_size": ranks, "loss_start_nats": 3.4657, "entropy_nats": 1.213}
    base = records.training(parallel, ranks)
    return {
        "training": base["training"] | {"job": job},
        "collectives": {"backend": "gloo", "world_size": ranks, "points": points},
        "launch-ledger": {"ranks": [{"rank": r, "host": "node00"} | phases for r in range(ranks)]},
    }


def drawn(base: Record, ranks: int = 8, **more: Any) -> Record:
    """``base`` with two training steps that have exhibits and a checkpoint that has coverage."""
    kinds = (("single", 1), ("data", ranks), ("tensor", ranks))
    steps = tuple(
        StepRecord(
            id=kind,
            title=f"Step {kind}",
            state="done",
            seconds=4.0,
            evidence=evidence(kind, n) if n > 1 else records.training(kind, n),
            exhibits=exhibits(n, **more),
            summary={"world_size": n, "tokens_per_s": 5120.5},
        )
        for kind, n in kinds
    )
    coverage = [
        {"name": "model", "share": 1.0, "note": "66 entries"},
        {"name": "optimizer", "share": 0.5, "note": "<b>"},
    ]
    saved = StepRecord(
        id="checkpoint", title="Checkpoint", state="done", exhibits={"coverage": {"layout": "dcp", "rows": coverage}}
    )
    facts = dict(base.facts) | {"memory_bytes": 64e9, "ranks": ranks}
    return base.model_copy(update={"steps": (*steps, saved), "facts": facts})


def triaged() -> Record:
    """An incident with its proof, as a triage records it."""
    incident = {
        "cause": "gpu.fell-off-bus",
        "title": "A GPU dropped off PCIe",
        "confidence": "high",
        "guilty": {"rank": 6, "host": "node07", "gpu": "0000:9a:00.0"},
        "why": "xid 79 in the job's time on the device of rank 6",
        "since": "2026-11-29 14:02:11 (job clock)",
        "evidence": [
            {
                "file": "node07.dmesg",
                "line": 4812,
                "text": "NVRM: Xid (PCI:0000:9a:00): 79, GPU has fallen off the bus.",
            },
            {
                "file": "slurm.out",
                "line": 99120,
                "text": "RuntimeError: CUDA error: unspecified launch failure " + "x" * 300,
            },
        ],
        "first_action": "Drain node07 and restart from the last complete checkpoint.",
        "commands": ["scontrol update nodename=node07 state=drain reason=ddaudit"],
        "alternatives": [{"cause": "net.timeout", "why_not": "its first timeout comes 4 s after the device was lost"}],
        "missing_evidence": ["the baseboard controller's event log of node07"],
    }
    bad = records.finding(
        Status.FAIL,
        "gpu.fell-off-bus",
        step=None,
        where=Where(host="node07", rank=6),
        remedy=Remedy(text="Drain node07.", commands=("scontrol show node node07",)),
    )
    return records.record([bad], command="triage", plan=None, steps=(), extra={"incident": incident})


def walked() -> Record:
    """A triage runbook whose walk went from its first step to its third."""
    book = records.plan(
        records.planned("spread", on={"fail": "one-node", "pass": "stop"}),
        records.planned("neighbours"),
        records.planned("one-node", on={"fail": "stop"}),
        mode="triage",
    )
    steps = tuple(StepRecord(id=id, title=f"Step {id}", state="done") for id in ("spread", "one-node"))
    bad = [records.finding(Status.FAIL, "slow.rank", step=id) for id in ("spread", "one-node")]
    return records.record(bad, plan=book, steps=steps)


def checkpointed() -> Record:
    """An audit of a checkpoint that lost a shard."""
    rows = [
        {"name": f"model.layers.{i}.attention.query.weight", "share": i / 30, "note": "shard missing"}
        for i in range(30)
    ]
    checkpoint = {"verdict": "BROKEN", "layout": "dcp", "path": "/data/step-300", "coverage": rows}
    return records.audit().model_copy(update={"extra": {"checkpoint": checkpoint}})


def scaled_out(ranks: int, trainings: int = 24, findings: int = 9) -> Record:
    """As many steps, findings and words as a real run of ``scale-out`` records: 24 trainings with nine passed findings
    of half a kilobyte each, pages of prose in the plan, and every exhibit. Each rank missed a synchronisation."""
    ids = [f"sharded-variant-{i:02d}" for i in range(trainings)]
    said = "largest difference of averaged gradients against one device over 65 parameters and 6 updates"
    source = "more than 100 times from both the measured noise floor (1.5e-15 in float64) and the smallest fault"
    passed = [
        records.equality(
            1.234567890123456e-15 * (i + 1),
            step=id,
            check=f"parallel.equals-single.{i}",
            text=f"{said} of {id}, update {i}",
            limit_source=source,
            evidence=f"events/{id}/",
            where=Where(host="node00", rank=i, step=i),
        )
        for id in ids
        for i in range(findings)
    ]
    text = "rank {} did not synchronise gradients at step 4"
    bad = [
        records.finding(Status.FAIL, "sync.missing", text=text.format(r), where=Where(rank=r, host="n"))
        for r in range(ranks)
    ]
    prose = "Both runs see the same samples; averaged gradients must equal those of one device. " * 6
    plan = records.plan(*(records.planned(id, ranks, prose=prose, remedy=prose[:160]) for id in ids))
    rows = min(ranks, 64)  # as the exhibits bound them
    tables = exhibits(ranks)
    times = tables["step-times"]
    tables["step-times"] = {**times, "rows": times["rows"][:rows], "seconds": times["seconds"][:rows]}
    phases = {f"launch_{name}_s": 0.4634872789974907 for name in ("wall", "spawn", "load", "import", "rendezvous")}
    steps = tuple(
        StepRecord(
            id=id,
            title="Does sharded data-parallel training equal one device?",
            state="done",
            seconds=4.0,
            evidence=evidence("sharded", ranks) if id == ids[0] else records.training("sharded", 8),
            exhibits=tables,
            summary={"world_size": ranks, "tokens_per_s": 5120.512345678912, **phases},
        )
        for id in ids
    )
    return records.record([*passed, *bad], plan=plan, steps=steps)
