"""The job did not get off the ground: software that differs, a taken port, a missing node, a closed path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from ddaudit.evidence.incident import Event, Spot
from ddaudit.triage.reasoning.case import Candidate, Case, Confidence, Tier, cite
from ddaudit.triage.reasoning.errors import guilty

__all__ = ["judge"]

#: Interfaces that reach no other host.
_LOCAL = re.compile(r"^(?:lo|docker\d*|br-|virbr|veth|cni|flannel|podman|tun|tap|wlan)")
_LOOPBACK = re.compile(r"\b127\.\d+\.\d+\.\d+")


def judge(case: Case) -> Iterator[Candidate]:
    """Candidates ``env.*``, ``rdzv.*``, ``net.wrong-interface`` and ``net.unreachable``."""
    if not case.failed and not case.hung:
        return
    yield from _versions(case)
    yield from _environment(case)
    yield from _port(case)
    if not case.trained:
        yield from _interface(case)
        yield from _missing_node(case)
        yield from _unreachable(case)


def _fatal(case: Case, *causes: str) -> list[Event]:
    return [e for e in case.events if e.cause in causes and e.role == "root" and not e.handled]


def _versions(case: Case) -> Iterator[Candidate]:
    events = _fatal(case, "env.version-mismatch")
    if not events:
        return
    odd = _odd_version(case, events)
    host, rank = odd if odd else (None, None)
    if odd is None:
        rank, host = guilty(case, events)
    spots = [s for per in case.incident.versions.values() for who, (_, s) in per.items() if who == host]
    why = f"{host or 'a rank'} runs other software than the rest"
    yield Candidate("env.version-mismatch", Tier.OWN_ERROR, why, cite((e.spot for e in events[:3]), spots), rank, host)


def _odd_version(case: Case, events: list[Event]) -> tuple[str | None, int | None] | None:
    """The host or rank whose version is in the minority, from what each printed, else from what NCCL compared."""
    for per in case.incident.versions.values():
        values = {who: value for who, (value, _) in per.items() if who in case.incident.hosts}
        counts = Counter(values.values())
        if len(counts) == 2 and len(values) > 2 and min(counts.values()) == 1:
            host = next(w for w, v in values.items() if counts[v] == 1)
            return host, case.only_rank(host)
    said: dict[int, str] = {}
    for event in events:
        for who, what in (("a", "va"), ("b", "vb")):
            if event.fields.get(who, "").isdigit():
                said[int(event.fields[who])] = event.fields.get(what, "")
    odd = case.minority(dict(said))
    hosts = {case.host_of(r) for r in odd}
    if odd and len(hosts) == 1:
        return next(iter(hosts)), odd[0] if len(odd) == 1 else None
    # Two ranks compared, one of them named by everybody: the one that all others find different.
    named = Counter(
        int(e.fields["a"])
        for e in events
        if e.fields.get("a", "").isdigit() and e.rank is not None and e.rank != int(e.fields["a"])
    )
    if named and named.most_common(1)[0][1] > 1:
        rank = named.most_common(1)[0][0]
        return case.host_of(rank), rank if case.only_rank(case.host_of(rank)) is not None or case.host_of(
            rank
        ) is None else None
    return None


def _environment(case: Case) -> Iterator[Candidate]:
    for cause in ("env.driver-mismatch", "env.fabric-manager-down", "env.glibc-mismatch"):
        events = [e for e in _fatal(case, cause) if not e.kernel or case.when(e) != "out"]
        states = _fabric(case) if cause == "env.fabric-manager-down" else []
        own = [e for e in events if e.layer == "app" or e.rank is not None]
        if not events or (cause == "env.fabric-manager-down" and not own and not states):
            continue
        ranked = own or events
        rank, host = guilty(case, ranked)
        hosts = {e.host for e in events if e.host}
        host = host or (next(iter(hosts)) if len(hosts) == 1 else None)
        if host is not None and rank is None:
            rank = case.only_rank(host)
        if (
            host is not None
            and rank is not None
            and len(case.ranks_on(host)) > 1
            and len({e.rank for e in own if e.rank is not None}) != 1
        ):
            rank = None
        why = f"{host or 'a node'}: {events[0].signature}"
        yield Candidate(
            cause,
            Tier.OWN_ERROR,
            why,
            cite((e.spot for e in ranked[:4]), (e.spot for e in events[:4]), states),
            rank,
            host,
        )


def _fabric(case: Case) -> list[Spot]:
    spots = []
    for gpu in case.incident.gpus:
        for key, value in gpu.values.items():
            if key.endswith("Fabric/State") and not value.startswith(("Completed", "N/A")):
                spots.append(gpu.spots[key])
    return spots[:2]


def _port(case: Case) -> Iterator[Candidate]:
    events = [e for e in case.of("store-bind") if not e.handled]
    raised = [r for r in case.own if r.signature == "store-bind"]
    if not (events or raised) or (case.trained and not raised):
        return
    rank, host = guilty(case, raised or events)
    hosts = {e.host for e in events if e.host}
    host = host or (next(iter(hosts)) if len(hosts) == 1 else None)
    # The store is served by rank 0 or by its agent.
    rank = 0 if rank is None and (0 in case.ranks_on(host) or not case.ranks_on(host)) else rank
    listening = [e.spot for e in case.of("ss-listen")]
    yield Candidate(
        "rdzv.port-in-use",
        Tier.OWN_ERROR,
        f"the master's port is taken on {host or 'the master'}",
        cite((r.spot for r in raised), (e.spot for e in events[:3]), listening),
        rank,
        host,
    )


_COMPLAINTS = (
    *("nccl-refused", "nccl-noroute", "nccl-timedout", "nccl-nosock", "nccl-system"),
    *("gloo-mesh", "gloo-iface", "store-connect"),
)


def _interface(case: Case) -> Iterator[Candidate]:
    """A host that announced itself on an interface which reaches nobody, while others use another one."""
    complaints = case.of(*_COMPLAINTS)
    events = _fatal(case, "net.wrong-interface")
    interfaces = case.incident.versions.get("interface", {})
    local = {host: spot for host, (name, spot) in interfaces.items() if _LOCAL.match(name)}
    looped = [e for e in case.of("gloo-mesh", "nccl-refused", "gloo-iface") if _LOOPBACK.search(e.spot.text)]
    if local and (complaints or case.hung or events) and len(case.incident.hosts) > 1:
        host = next(iter(local)) if len(local) == 1 else None
        name = interfaces[next(iter(local))][0]
        why = f"{host or 'hosts'} announced {name}, an interface that reaches no other host"
        yield _wrong(case, why, cite(local.values(), (e.spot for e in (*events, *complaints)[:3])), host)
    elif events or looped:
        rank, host = guilty(case, events or looped)
        why = "the named interface does not exist or reaches nobody"
        yield _wrong(case, why, cite(e.spot for e in (*events, *looped)[:4]), host, rank)
    elif (odd := _odd_subnet(case)) and complaints:
        host, spot = odd
        why = f"{host} announced an address of another network than the others"
        yield _wrong(case, why, cite([spot], (e.spot for e in complaints[:3])), host)


def _wrong(case: Case, why: str, spots: tuple[Spot, ...], host: str | None, rank: int | None = None) -> Candidate:
    rank = case.only_rank(host) if rank is None else rank
    return Candidate("net.wrong-interface", Tier.OWN_ERROR, why, spots, rank, host)


def _odd_subnet(case: Case) -> tuple[str, Spot] | None:
    """The one host whose bootstrap interface and network differ from all others'."""
    interfaces = case.incident.versions.get("interface", {})
    nets = {host: ".".join(ip.split(".")[:2]) for ip, host in case.incident.addresses.items() if "." in ip}
    both = {h: (interfaces[h][0], nets.get(h)) for h in interfaces}
    counts = Counter(both.values())
    if len(both) > 2 and len(counts) == 2 and min(counts.values()) == 1:
        host = next(h for h, v in both.items() if counts[v] == 1)
        common = counts.most_common(1)[0][0]
        if both[host][0] != common[0] and both[host][1] != common[1]:
            return host, interfaces[host][1]
    return None


def _missing_node(case: Case) -> Iterator[Candidate]:
    events = _fatal(case, "rdzv.missing-node")
    if not events:
        return
    launch = [
        e
        for e in case.events
        if e.cause == "rdzv.missing-node" and e.signature not in ("store-clients", "el-rdzv", "el-rdzv-wait")
    ]
    closed = [
        e
        for e in case.of("store-connect", "nccl-noroute", "nccl-timedout", "el-rdzv-conn")
        if e.host or e.rank is not None
    ]
    if closed and not launch:
        return  # the missing node was there and could not get through
    hosts = [e.fields.get("peer") or e.host for e in launch if e.fields.get("peer") or e.host]
    host = hosts[0] if len(set(hosts)) == 1 else _unheard(case)
    waits = case.of("el-rdzv-wait")
    why = f"{host or 'a node'} never joined: the others waited for it until the time-out"
    ranks = case.ranks_on(host)
    yield Candidate(
        "rdzv.missing-node",
        Tier.OWN_ERROR,
        why,
        cite((e.spot for e in launch[:3]), (e.spot for e in events[:3]), (e.spot for e in waits[:1])),
        ranks[0] if len(ranks) == 1 else None,
        host,
        confidence="high" if host else "medium",
    )


def _unheard(case: Case) -> str | None:
    """The one host of the job's node list that has no file and wrote no line."""
    heard = {e.host for e in case.events if e.host and not e.kernel} | {
        s.host for s in case.incident.sources if s.host and s.kind in ("log", "stacks")
    }
    listed = set(case.incident.listed_hosts)
    silent = sorted(listed - heard) if heard else []
    return silent[0] if len(silent) == 1 else None


def _unreachable(case: Case) -> Iterator[Candidate]:
    events = [
        e
        for e in _fatal(case, "net.unreachable")
        if e.rank is not None or e.host is not None or len(case.incident.hosts) < 2
    ] or _fatal(case, "net.unreachable")
    refused = case.of("nccl-refused", "store-connect", "el-rdzv-conn", "nccl-ib-modify")
    if not events and not refused:
        return
    if not events and any(
        r.signature not in ("store-clients", "store-connect", "el-rdzv", "el-rdzv-conn", "") for r in case.own
    ):
        return
    everything = [*events, *refused]
    targets = {
        case.incident.addresses.get(p, p)
        for e in everything
        if (p := (e.fields.get("peer") or "").split("<")[0].split(":")[0])
    }
    targets = {t for t in targets if t in case.incident.hosts or not case.incident.hosts}
    sources = {e.host for e in everything if e.host}
    host = _cut_off(targets, sources)
    waiting = case.of("store-clients", "el-rdzv", "el-rdzv-wait")
    if host is None and len(sources) == 1 and waiting and len(case.incident.hosts) > 2:
        host = next(iter(sources))  # the others joined; only this one could not
    why = f"{host or 'hosts'} cannot be reached over the network"
    confidence: Confidence = "high" if events else "medium"
    yield Candidate(
        "net.unreachable",
        Tier.OWN_ERROR if events or waiting else Tier.SYMPTOM,
        why,
        cite(e.spot for e in everything[:4]),
        case.only_rank(host),
        host,
        confidence=confidence,
    )


def _cut_off(targets: set[str], sources: set[str]) -> str | None:
    """The host that is at one end of every failed connection, when there is exactly one such."""
    if len(targets) == 1 and len(sources) > 1:
        return next(iter(targets))
    if len(sources) == 1 and len(targets) > 1:
        return next(iter(sources))
    return None
