"""Who broke the job? One check a family of evidence, and one for the answer."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import Finding, IncidentFacts, Plant, Remedy, Severity, Suspect, Where, check, fail, ok, skip, warn

from ._incident_plants import PLANTS


def _plant(family: str) -> Plant:
    name, expect, build = PLANTS[family]
    return Plant(name, expect, probe="triage", params={}, build=build, types="incident")


def _judge(incident: IncidentFacts, family: str, quiet: str) -> Iterator[Finding]:
    """The family's suspects: the chosen one fails, one that lost is told with the reason, none is a pass."""
    suspects = incident.of(family)
    for suspect in suspects:
        yield _finding(suspect)
    if not suspects:
        yield ok(f"{quiet} ({incident.files} files read)", measured=0, unit="suspects", limit=0, limit_source="no sign")


def _finding(suspect: Suspect) -> Finding:
    first = suspect.evidence[0] if suspect.evidence else None
    where = Where(host=suspect.host, rank=suspect.rank, device=suspect.gpu, file=first.file if first else None)
    lines = "; ".join(str(line) for line in suspect.evidence[:3])
    if suspect.why_not is not None:
        return ok(f"{suspect.cause} is not the cause: {suspect.why_not} ({suspect.why})", where=where, evidence=lines)
    return fail(
        suspect.cause,
        f"{suspect.why} (confidence {suspect.confidence})",
        where=where,
        severity=Severity.CRITICAL,
        evidence=lines,
        remedy=Remedy(text=suspect.do_now, commands=suspect.commands),
    )


@check(
    "incident.scheduler", asks="Did the scheduler or a person end the job, or a node die?", plant=_plant("scheduler")
)
def scheduler(incident: IncidentFacts) -> Iterator[Finding]:
    """Time limit, preemption, cancellation, node failure: what follows within seconds is their consequence."""
    yield from _judge(incident, "scheduler", "neither scheduler nor node ended the job")


@check("incident.hardware", asks="Did a GPU or a network port of the job break in its time?", plant=_plant("hardware"))
def hardware(incident: IncidentFacts) -> Iterator[Finding]:
    """Kernel events of the job's own devices; older, corrected and foreign ones are set aside by name."""
    yield from _judge(incident, "hardware", "no fatal event of the job's devices in its time")
    for cause, why, line in incident.set_aside[:5]:
        yield ok(f"{cause} at {line} is set aside: {why}", evidence=line)


@check("incident.host", asks="Did a host run out of memory or processes, or native code crash?", plant=_plant("host"))
def host(incident: IncidentFacts) -> Iterator[Finding]:
    """OOM kills of the job's processes, segmentation faults, kernel limits."""
    yield from _judge(incident, "host", "no process of the job was killed and no native code crashed")


@check("incident.errors", asks="Did a rank raise an error of its own?", plant=_plant("errors"))
def errors(incident: IncidentFacts) -> Iterator[Finding]:
    """The first own exception of a rank, as against those that only report that a peer went away."""
    yield from _judge(incident, "errors", "no rank raised an error of its own")


@check("incident.startup", asks="Do software, ports and network of all nodes fit together?", plant=_plant("startup"))
def startup(incident: IncidentFacts) -> Iterator[Finding]:
    """Versions that differ, a taken port, a node that did not join, an interface that reaches nobody."""
    yield from _judge(incident, "startup", "all nodes started alike and reached each other")


@check("incident.hang", asks="Which rank did not come to the collective, and what was it doing?", plant=_plant("hang"))
def hang(incident: IncidentFacts) -> Iterator[Finding]:
    """The rank that did not enqueue, or came with another operation or size; never the first to report."""
    yield from _judge(incident, "hang", "no rank stayed away from a collective")


@check("incident.storage", asks="Did a file system stop answering?", plant=_plant("storage"))
def storage(incident: IncidentFacts) -> Iterator[Finding]:
    """The kernel's word about servers that do not answer and did not come back."""
    yield from _judge(incident, "storage", "no file system hangs")


@check(
    "incident.numbers", asks="Did the loss stay finite and near its course?", plant=_plant("numbers"), question="loss"
)
def numbers(incident: IncidentFacts) -> Iterator[Finding]:
    """NaN, infinity, or a loss that rose and stayed up."""
    yield from _judge(incident, "numbers", "the losses in the logs are finite and keep their course")


@check("incident.slow", asks="Which device makes the others wait?", plant=_plant("slow"), question="bottleneck")
def slow(incident: IncidentFacts) -> Iterator[Finding]:
    """The rank that computes longest and waits shortest, and what its device says of heat, power and PCIe."""
    yield from _judge(incident, "slow", "no device makes the others wait")


@check("incident.cause", asks="Is there an incident, and does the evidence decide it?", plant=_plant("cause"))
def cause(incident: IncidentFacts) -> Iterator[Finding]:
    """The answer over all families. Undecided is not a pass: it names the evidence that would decide."""
    chosen = next((s for s in incident.suspects if s.why_not is None), None)
    if incident.cause == "none":
        yield ok(f"no incident found in {incident.files} files", measured=0, unit="incidents", limit=0)
    elif chosen is None:
        yield warn(incident.cause, f"undetermined; get {'; '.join(incident.missing) or 'more evidence'}")
        yield skip(f"the evidence does not decide; it would need {'; '.join(incident.missing) or 'more logs'}")
    else:
        yield _finding(chosen)
