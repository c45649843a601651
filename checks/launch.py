"""Did every rank run to its end, and if not, which one failed by itself?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ddaudit.api import (
    Finding,
    LaunchFacts,
    Plant,
    RankOutcome,
    Remedy,
    Severity,
    Status,
    Where,
    check,
    draft,
    fail,
    ok,
    skip,
)

STUCK = ("on-cpu", "sleeping", "disk", "stopped")
DRILL = {"steps": 12, "pause_s": 0.01}
#: Ends the wait for a stuck peer long before the step's own deadline, so that the self-test stays quick.
IMPATIENT = {**DRILL, "collective_timeout_s": 3.0}


def _plant(name: str, expect: str, fault: str, params: Mapping[str, Any] | None = None) -> Plant:
    return Plant(name, expect, probe="drill", ranks=2, params=params or DRILL, planted={"fault": fault}, types="launch")


@check(
    "launch.ranks",
    asks="Did every rank start, run to its end and leave nothing behind?",
    plant=(
        _plant("a rank is killed", "launch.rank-lost", "kill"),
        _plant("a rank leaves with exit code 0 in the middle", "launch.rank-lost", "leave"),
        _plant("a rank waits for a lock", "launch.rank-hung", "hang-lock", IMPATIENT),
        _plant("a rank is stopped", "launch.rank-hung", "stop", IMPATIENT),
    ),
)
def ranks(launch: LaunchFacts) -> Iterator[Finding]:
    """Names the rank that failed or hung by itself, not those that it took along.

    Peers of a dead rank fail within milliseconds and peers of a stuck one wait, so the first own failure, a stopped
    process or the lowest collective sequence number decides. Where nothing tells the ranks apart, none is accused.
    """
    if launch.ok:
        yield ok(
            f"all {launch.world_size} rank(s) on {launch.host} ran to their end in {launch.seconds:.1f} s",
            measured=launch.world_size,
            unit="ranks",
            limit=launch.world_size,
            limit_source="ranks the step asks for",
        )
    elif launch.interrupted:
        yield skip("not measured: the run was interrupted while the ranks were at work")
    elif launch.progressing:
        yield _slow(launch)
    elif culprits := [r for r in launch.ranks if r.culprit]:
        yield from _named(launch, culprits)
    else:
        yield _nobody(launch)


def _named(launch: LaunchFacts, culprits: list[RankOutcome]) -> Iterator[Finding]:
    """One finding per culprit; a failure that several ranks share (the same bug in each) is told once."""
    shared: dict[tuple[object, ...], list[RankOutcome]] = {}
    for rank in culprits:
        hung = rank.state in STUCK or rank.state == "done"
        key: tuple[object, ...] = (rank.rank,) if hung else (rank.state, rank.exit_code, rank.signal)
        if rank.state == "host-lost":
            key = (rank.host,)
        shared.setdefault(key, []).append(rank)
    for members in shared.values():
        first = members[0]
        if first.problem:
            yield draft(
                Status.ERROR, "launch.problem", first.error or "a rank could not do its work", where=_where(first)
            )
        elif first.state == "host-lost":
            yield _host_lost(launch, members)
        elif first.state in STUCK or first.state == "done":
            yield _hung(launch, first)
        else:
            yield _lost(launch, members)


def _lost(launch: LaunchFacts, members: list[RankOutcome]) -> Finding:
    first = members[0]
    who = _who(first) if len(members) == 1 else f"ranks {', '.join(str(r.rank) for r in members)} on {first.host}"
    how = f"killed by {first.signal}" if first.state == "killed" else f"exit code {first.exit_code}"
    said = f": {_line(first.error)}" if first.error else ""
    text = f"{who} was lost after {launch.seconds:.1f} s, {how}{said}; {first.why}{_position(launch, first)}"
    return _fail(launch, "launch.rank-lost", text, first, len(members), _lost_remedy(launch, first))


def _host_lost(launch: LaunchFacts, members: list[RankOutcome]) -> Finding:
    first = members[0]
    ranks = "rank " + ", ".join(str(r.rank) for r in members[:8])
    if len(members) > 8:
        ranks += f" and {len(members) - 8} more"
    text = f"host {first.host} was lost after {launch.seconds:.1f} s with {ranks}: {_line(first.error)}"
    remedy = Remedy(
        text="Is the host up, and does it answer on the interface that the run used? Its kernel log and the scheduler"
        " tell why it went; events that it did not send in time are in its own folder for temporary files.",
        commands=(f"ping -c 3 {first.host}", f"scontrol show node {first.host}", "dmesg -T | tail -50"),
    )
    return fail(
        "launch.host-lost",
        text,
        severity=Severity.CRITICAL,
        measured=len(members),
        unit="ranks",
        limit=0,
        limit_source="every rank must run to its end",
        where=Where(host=first.host, step=first.last_step),
        remedy=remedy,
    )


def _hung(launch: LaunchFacts, rank: RankOutcome) -> Finding:
    state = {
        "on-cpu": "computing (on CPU)",
        "disk": "in uninterruptible sleep (D)",
        "stopped": "stopped (T)",
        "done": "through with its work",
    }.get(rank.state, rank.state)
    limit = f"until the deadline of {launch.timeout_s:g} s" if launch.timed_out else "until its peers gave up waiting"
    at = f" at {rank.stuck_at}" if rank.stuck_at else ""
    text = f"{_who(rank)} hung {limit}, {state}{at}; {rank.why}{_position(launch, rank)}"
    remedy = Remedy(
        text="Read what each rank was doing in its .stack file; the ranks that wait are not the fault.",
        commands=(f"cat {_file(launch, rank, '.stack')}",),
    )
    return _fail(launch, "launch.rank-hung", text, rank, 1, remedy)


def _slow(launch: LaunchFacts) -> Finding:
    steps = [r.last_step for r in launch.ranks if r.last_step is not None]
    reached = f" (last recorded step {min(steps)} to {max(steps)})" if steps else ""
    return draft(
        Status.ERROR,
        "launch.too-slow",
        f"the ranks were still making progress{reached} when the timeout of {launch.timeout_s:g} s passed: none hangs",
        measured=launch.seconds,
        unit="s",
        limit=launch.timeout_s,
        limit_source="the step's timeout",
        remedy=Remedy(text="Raise the step's timeout, ask for less work in it, or free the machine of other load."),
    )


def _nobody(launch: LaunchFacts) -> Finding:
    """All ranks failed or waited alike."""
    states = ", ".join(f"rank {r.rank} {r.state}" + (f" at {r.stuck_at}" if r.stuck_at else "") for r in launch.ranks)
    first = next((r for r in launch.ranks if r.state != "done"), None)
    if launch.timed_out:
        text = (
            f"no rank is behind the others, yet not all ended within {launch.timeout_s:g} s: {states}{_between(launch)}"
        )
        id, remedy = "launch.rank-hung", Remedy(text="Raise the step's timeout, or compare the ranks' .stack files.")
    else:
        text = f"ranks lost each other and none failed first: {states}; {_line(first.error if first else None)}"
        id, remedy = "launch.rank-lost", Remedy(text="Look at the network between the ranks and at each rank's log.")
    return _fail(launch, id, text, None, sum(r.state != "done" for r in launch.ranks), remedy)


def _between(launch: LaunchFacts) -> str:
    """What else may be at fault where ranks are on several hosts: a cut link leaves them all waiting alike."""
    count = len({rank.host for rank in launch.ranks})
    return f"; which of {count} hosts, or the network between two of them, is not proven" if count > 1 else ""


def _fail(launch: LaunchFacts, id: str, text: str, rank: RankOutcome | None, count: int, remedy: Remedy) -> Finding:
    suffix = ".stack" if id == "launch.rank-hung" else ".log"
    return fail(
        id,
        text,
        severity=Severity.CRITICAL,
        measured=count,
        unit="ranks",
        limit=0,
        limit_source="every rank must run to its end",
        where=_where(rank) if rank else Where(host=None if _between(launch) else launch.host),
        evidence=_file(launch, rank, suffix) if rank else None,
        remedy=remedy,
    )


def _lost_remedy(launch: LaunchFacts, rank: RankOutcome) -> Remedy:
    log = f"cat {_file(launch, rank, '.log')}"
    if rank.signal == "SIGKILL":
        if launch.oom_kills:
            text = f"The kernel ended {launch.oom_kills} process(es) for memory meanwhile: use less memory per rank."
        else:
            text = "Nobody here sent SIGKILL: look for a memory limit (cgroup, job scheduler) or another user."
        return Remedy(text=text, commands=("dmesg -T | grep -iE 'out of memory|oom-kill|killed process'", log))
    if rank.signal:
        return Remedy(
            text="A native crash: the .stack file has the Python frames.",
            commands=(f"cat {_file(launch, rank, '.stack')}", log),
        )
    return Remedy(text="The rank's log has the whole traceback.", commands=(log,))


def _who(rank: RankOutcome) -> str:
    return f"rank {rank.rank} on {rank.host} (pid {rank.pid})"


def _where(rank: RankOutcome) -> Where:
    return Where(host=rank.host, rank=rank.rank, step=rank.last_step)


def _file(launch: LaunchFacts, rank: RankOutcome, suffix: str) -> str:
    return f"logs/{launch.folder or '<step>'}/{rank.host}-{rank.rank}{suffix}"


def _line(text: str | None) -> str:
    """First line of an error, short enough for a table."""
    return (text or "").strip().split("\n", 1)[0][:300]


def _position(launch: LaunchFacts, rank: RankOutcome) -> str:
    """Collective sequence numbers, as far as ranks could still report them."""
    peers = [
        f"rank {r.rank} {r.collective_seq}" for r in launch.ranks if r.collective_seq is not None and r is not rank
    ]
    mine = f"{rank.collective_seq} ({rank.collective_op})" if rank.collective_seq is not None else "not reported"
    step = f"; last recorded step {rank.last_step}" if rank.last_step is not None else ""
    return f"{step}; collectives entered: {mine}" + (f", peers: {', '.join(peers[:8])}" if peers else "")
