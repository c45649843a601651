"""Records for report tests, built from small parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ddaudit.errors import Exit
from ddaudit.findings import Finding, Remedy, Severity, Status, Verdict, Where, conclude
from ddaudit.record import Record, StepRecord, answers
from ddaudit.runbook.model import Plan, PlannedStep

#: Text that each reader would act on if it were not made inert.
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    "\x1b[2J\x1b]8;;http://evil.test\x07\x9b31m\r\n✔ PASS everything\u202egnp.exe\u2066\u200b\ud800\x00\ufffe"
    "]]> `code` **bold** [link](javascript:alert(3)) | # head {{ 7*7 }} {% raw %} @everyone [red]markup[/red]"
)


def finding(status: Status, id: str = "batch.effective", **fields: Any) -> Finding:
    base: dict[str, Any] = {"check": id, "text": f"{id} says {status.lower()}", "step": "data", "question": None}
    return Finding(status=status, id=id, **(base | fields))


def training(parallel: str, ranks: int, host: str = "node05") -> dict[str, Any]:
    places = [{"rank": r, "host": host, "device": "cpu"} for r in range(ranks)]
    return {"training": {"job": {"parallel": parallel, "world_size": ranks}, "ranks": places, "steps": [0, 1]}}


def planned(id: str, ranks: int = 2, **fields: Any) -> PlannedStep:
    base = {"title": f"Step {id}", "source": "scale-out.md:40", "runbook": "scale-out", "probe": "train"}
    return PlannedStep.model_validate(base | {"id": id, "nproc": ranks} | fields)


def plan(*steps: PlannedStep, device: str = "cpu", mode: str = "sweep") -> Plan:
    known = steps or (planned("single", 1), planned("data", 2))
    fields = {"run_id": "1129-1402", "runbook": "scale-out", "title": "Before scaling out", "seed": 17}
    return Plan.model_validate({**fields, "device": device, "mode": mode, "steps": known})


def record(findings: Sequence[Finding] = (), **fields: Any) -> Record:
    """A finished run of two steps on one host, judged by the house rules unless ``verdict`` says otherwise."""
    verdict, exit_code = conclude(findings)
    steps = (
        StepRecord(
            id="single",
            title="One device",
            state="done",
            seconds=4.0,
            evidence=training("single", 1),
            summary={"world_size": 1, "tokens_per_s": 5120.5},
        ),
        StepRecord(
            id="data",
            title="Data parallel",
            state="done",
            seconds=6.25,
            evidence=training("data", 2),
            summary={"world_size": 2, "tokens_per_s": 9120.5, "backend": "gloo"},
        ),
    )
    asked = {id: f"needs the check of {id}" for id in ("loss", "batch", "lr", "accumulation", "sync", "checkpoint")}
    base: dict[str, Any] = {
        "ddaudit_version": "0.1.0",
        "command": "run",
        "run_id": "1129-1402",
        "created": 1764424800.0,
        "seconds": 21.5,
        "plan": plan(),
        "facts": {
            "argv": ["ddaudit", "run", "scale out"],
            "host": "node05",
            "torch": "2.13.0",
            "shm": {"bytes": 67108864},
        },
        "steps": steps,
        "findings": tuple(findings),
        "questions": answers(tuple(findings), asked),
        "verdict": verdict,
        "exit_code": int(exit_code),
        "complete": True,
    }
    return Record(**(base | fields))


def equality(measured: float, status: Status = Status.PASS, **fields: Any) -> Finding:
    base: dict[str, Any] = {
        "text": "averaged gradients against one device",
        "question": "sync",
        "measured": measured,
        "unit": "1",
        "limit": 1e-10,
        "limit_source": "scale-out.md:40",
        "severity": Severity.CRITICAL,
    }
    return finding(status, "parallel.equals-single", **(base | fields))


def healthy() -> Record:
    return record(
        [
            finding(Status.PASS, "loss.descends", step="single", question="loss", measured=3.1, unit="nat/token"),
            finding(Status.PASS, "batch.effective", question="batch", measured=32, unit="1", limit=32),
            equality(3.25e-16),
        ]
    )


def failed() -> Record:
    """Eight ranks of one host miss a synchronisation; one check errs, one is skipped, one warns."""
    ranks = [
        finding(
            Status.FAIL,
            "sync.missing-on-step",
            check="sync.frequency",
            question="sync",
            text=f"rank {rank} did not synchronise gradients at step 4",
            where=Where(host="node05", rank=rank, step=4),
            measured=rank % 2,
            unit="round",
            limit=1,
            limit_source="parallelism's own need",
            evidence=f"events/data/node05-{rank}.jsonl",
            remedy=Remedy(text="Leave no_sync before the last micro-batch.", commands=("grep -n no_sync train.py",)),
        )
        for rank in range(8)
    ]
    return record(
        [
            finding(Status.PASS, "loss.descends", step="single", question="loss", measured=3.1, unit="nat/token"),
            finding(Status.WARN, "bottleneck.input-bound", question="bottleneck", measured=0.4, unit="1", limit=0.2),
            *ranks,
            finding(Status.ERROR, "gpu.ecc", text="NVML refused", where=Where(host="node07")),
            finding(Status.SKIP, "collectives.bandwidth", text="needs 2 nodes, 1 here"),
            equality(0.25, Status.FAIL),
        ]
    )


def not_a_number() -> Record:
    """Every number that a record can hold is NaN or infinite somewhere."""
    base = record(
        [
            finding(Status.FAIL, "loss.nan", question="loss", measured=math.nan, unit="nat/token", limit=math.inf),
            finding(Status.PASS, "grad.norm", measured=-math.inf, unit="s", limit=math.nan),
            equality(math.nan, Status.FAIL),
        ]
    )
    steps = [
        s.model_copy(update={"seconds": math.nan, "summary": {"tokens_per_s": math.nan, "world_size": 2}})
        for s in base.steps
    ]
    facts = {"clock_mhz": math.nan, "argv": ["ddaudit"]}
    return base.model_copy(update={"steps": tuple(steps), "seconds": math.inf, "created": math.nan, "facts": facts})


def interrupted() -> Record:
    """Ctrl-C in the second of three steps; the third was never reached."""
    steps = (
        StepRecord(id="single", title="One device", state="done", seconds=4.0),
        StepRecord(id="data", title="Data parallel", state="interrupted", reason="Ctrl-C after 3 s", seconds=3.0),
    )
    return record(
        [finding(Status.PASS, "loss.descends", step="single", question="loss")],
        plan=plan(planned("single", 1), planned("data"), planned("tensor")),
        steps=steps,
        verdict=Verdict.INTERRUPTED,
        exit_code=int(Exit.INTERRUPTED),
        complete=False,
    )


def empty() -> Record:
    return Record(ddaudit_version="0.1.0", command="run", run_id="empty", created=0.0)


def audit() -> Record:
    """A command without a runbook: findings, no steps, no plan."""
    bad = finding(
        Status.FAIL, "checkpoint.shard-missing", step=None, where=Where(file="__3_0.distcp"), question="checkpoint"
    )
    fields = {"command": "checkpoint audit", "plan": None, "steps": (), "facts": {}, "questions": answers((bad,), {})}
    return record([bad], **fields, extra={"checkpoint": {"verdict": "NOT-RESUMABLE"}})


def hostile(text: str = HOSTILE) -> Record:
    """``text`` in every string that a record can take."""
    bad = finding(
        Status.FAIL,
        text,
        check=text,
        text=text,
        step=text,
        question="loss",
        where=Where(host=text, rank=0, device=text, file=text, key=text, tensor=text, step=1),
        measured=text,
        unit=text,
        limit=text,
        limit_source=text,
        evidence=text,
        remedy=Remedy(text=text, commands=(text,)),
    )
    others = [bad.model_copy(update={"status": s}) for s in (Status.PASS, Status.SKIP, Status.ERROR, Status.WAIVED)]
    step = StepRecord(
        id=text,
        title=text,
        state="failed",
        reason=text,
        evidence={"training": {"job": {"parallel": text, "world_size": 2}, "ranks": [{"rank": 0, "host": text}]}},
        summary={"backend": text, "tokens_per_s": text, "world_size": 2},
    )
    base = plan(planned(text), planned("b", title=text, probe=text, source=text)).model_copy(
        update={
            "runbook": text,
            "title": text,
            "device": text,
            "mode": "triage",
            "packs": (text,),
            "params": {text: text},
        }
    )
    incident = {"cause": text, "confidence": text, "guilty": {text: text}, "evidence": [{"text": text}]}
    return record(
        [bad, *others],
        run_id=text,
        command=text,
        ddaudit_version=text,
        plan=base,
        steps=(step,),
        facts={text: text, "argv": [text], "hosts": {text: {"a": text}, "b": {"a": "x"}}, "torch": text},
        extra={"incident": incident | {"first_action": {"text": text, "commands": [text]}}},
    )
