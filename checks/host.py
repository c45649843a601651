"""Is the host ours alone? What else runs there explains slow and uneven steps before any hardware does."""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import Finding, HostLoad, Limit, Limits, Plant, Remedy, Severity, Where, check, ok, warn


class HostLimits(Limits):
    """Limits on what other processes may use."""

    family = "host"

    others_share: Limit = Limit(
        warn_above=0.25, source="default: a quarter of the cores taken by others stretches every collective"
    )


@check(
    "host.contention",
    asks="Do other processes leave the cores to the ranks?",
    # On a machine that is itself busy the spinners get a share only, so the plant is held against a tighter limit.
    plant=Plant(
        "a busy loop on every core",
        "host.contention",
        probe="host",
        params={"scope": "children"},
        planted={"spinners": 4},
        limits={"host.others_share": {"warn_above": 0.02}},
    ),
)
def contention(load: HostLoad, limits: HostLimits) -> Iterator[Finding]:
    """Names the largest neighbours. Times measured beside them are theirs as much as the job's."""
    busy = load.others_cores + (load.steal_cores or 0.0)
    share = busy / load.cores
    limit = limits.others_share
    names = ", ".join(f"{n.name} (pid {n.pid}, {n.user or 'user unknown'}) {n.cores:.2f}" for n in load.neighbours[:3])
    steal = f"; the hypervisor took {load.steal_cores:.2f}" if load.steal_cores else ""
    text = f"other processes use {load.others_cores:.2f} of {load.cores} cores on {load.host}{steal}"
    kept = {"measured": share, "unit": "share of the cores", "limit": limit.bound(share), "limit_source": limit.source}
    if limit.judge(share).value == "PASS":
        yield ok(text, where=Where(host=load.host), **kept)
        return
    yield warn(
        "host.contention",
        f"{text}: {names}" if names else text,
        severity=Severity.MINOR,
        where=Where(host=load.host),
        remedy=Remedy(
            text="Timings of this run are not the job's own. Stop the neighbours, or give each job its cores."
        ),
        **kept,
    )
