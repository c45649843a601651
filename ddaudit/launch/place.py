"""Where this process stands in a run over several hosts: from the command line, Slurm, torchrun or MPI."""

from __future__ import annotations

import math
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddaudit.errors import UsageProblem

__all__ = ["Asked", "Place", "compress_hosts", "expand_hosts", "find_place", "parse_endpoint"]

#: torchrun's default port of its c10d rendezvous.
PORT = 29400
FLAGS = "--nnodes N --node-rank K --rdzv-endpoint HOST:PORT"
#: (rank, size, local rank, local size) as MPI launchers call them: Open MPI, Intel MPI, MVAPICH2.
MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
#: Hosts of the largest list that is expanded; more is damage, not a cluster.
MAX_HOSTS = 65_536


@dataclass(frozen=True)
class Asked:
    """The command line's own words; None where it says nothing."""

    nnodes: int | None = None
    ranks_per_node: int | None = None
    node_rank: int | None = None
    endpoint: str | None = None


@dataclass(frozen=True)
class Place:
    """One process of a run over ``nnodes`` hosts.

    ``node_rank`` 0 conducts, the others obey it at ``host:port``. Processes with a ``local_rank`` above 0 (the launcher
    started one per GPU) only wait for their node's first. ``meeting`` is the address of a TCPStore that torchrun serves
    already; agents learn there where the conductor listens.
    """

    nnodes: int
    node_rank: int
    ranks_per_node: int
    host: str
    port: int
    source: str
    local_rank: int = 0
    meeting: tuple[str, int] | None = None
    attempt: str = ""

    @property
    def conducts(self) -> bool:
        return self.node_rank == 0 and self.local_rank == 0


def find_place(asked: Asked, environment: Mapping[str, str], gpus: int) -> Place | None:
    """The place, or None for a run on this host alone. The command line beats torchrun, which beats Slurm and MPI.

    Raises:
        UsageProblem: numbers that do not fit together, or no way to know where to meet.
    """
    found = _torchrun(environment) or _slurm(environment) or _mpi(environment)
    if asked.nnodes is None and (asked.node_rank is not None or asked.endpoint is not None) and found is None:
        raise UsageProblem("--node-rank and --rdzv-endpoint say nothing without --nnodes", expected=FLAGS)
    if asked.nnodes is None and found is None:
        return None
    nnodes = asked.nnodes if asked.nnodes is not None else found.nnodes if found else 1
    node_rank = (
        asked.node_rank if asked.node_rank is not None else found.node_rank if found else 0 if nnodes == 1 else -1
    )
    if not 0 <= node_rank < nnodes:
        what = f"node rank {node_rank} of {nnodes} nodes" if node_rank >= 0 else f"which of the {nnodes} nodes is this?"
        raise UsageProblem(what, expected=FLAGS)
    per_node = asked.ranks_per_node or (found.ranks_per_node if found else 0)
    if per_node <= 1 and not asked.ranks_per_node:
        per_node = max(1, gpus)
    place = Place(nnodes, node_rank, per_node, "127.0.0.1", PORT, found.source if found else "command line")
    if found is not None:
        place = Place(**{**vars(found), "nnodes": nnodes, "node_rank": node_rank, "ranks_per_node": per_node})
    if asked.endpoint is not None:
        host, port = parse_endpoint(asked.endpoint)
        place = Place(**{**vars(place), "host": host, "port": port, "meeting": None})
    elif not place.host or (found is None and nnodes > 1):
        fix = "mpirun -x MASTER_ADDR=HOST, or --rdzv-endpoint" if found is not None else None
        raise UsageProblem("where do the nodes meet?", expected=FLAGS, fix=fix)
    return place if place.nnodes > 1 or place.local_rank > 0 or place.ranks_per_node > 1 else None


def parse_endpoint(text: str) -> tuple[str, int]:
    """``HOST``, ``HOST:PORT``, ``[::1]:PORT`` -> host and port.

    Raises:
        UsageProblem: it is none of these.
    """
    found = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>\d{1,5}))?", text)
    port = int(found["port"] or PORT) if found else 0
    if not found or not 0 < port < 65_536:
        raise UsageProblem(f"--rdzv-endpoint {text!r}", expected="HOST:PORT with a port from 1 to 65535")
    return found["six"] or found["name"], port


def _number(environment: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        return None
    return int(text)


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    names = ("GROUP_WORLD_SIZE", "GROUP_RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    nnodes, node, per_node, local, port = (_number(environment, name) for name in names)
    host = environment.get("MASTER_ADDR", "")
    if not nnodes or node is None or not per_node or local is None or not port or not host:
        raise UsageProblem("torchrun's variables are not whole", expected=", ".join((*names, "MASTER_ADDR")))
    served = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    meeting = (host, port) if served else None
    return Place(nnodes, node, per_node, host, port, "torchrun", local, meeting, attempt)


def _slurm(environment: Mapping[str, str]) -> Place | None:
    """Inside ``srun`` only: the batch script has the job's variables too, but it runs once, on one node."""
    nnodes = _number(environment, "SLURM_STEP_NUM_NODES", least=1)
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", least=1)
    node, local = _number(environment, "SLURM_NODEID"), _number(environment, "SLURM_LOCALID")
    hosts = environment.get("SLURM_STEP_NODELIST", "")
    if nnodes is None or tasks is None or node is None or local is None or not hosts or (nnodes == tasks == 1):
        return None
    first = expand_hosts(hosts)[0]
    job = int("".join(c for c in environment.get("SLURM_JOB_ID", "0") if c in "0123456789") or 0)
    # A port of its own for each job and step of a shared node, below the kernel's ephemeral ports.
    step = _number(environment, "SLURM_STEP_ID") or 0
    port = 20_000 + (job * 7 + step) % 10_000
    host = environment.get("MASTER_ADDR") or _slurm_address(first)
    return Place(nnodes, node, math.ceil(tasks / nnodes), host, port, "Slurm", local)


def _slurm_address(name: str) -> str:
    """A node's address: its name where that resolves, else what Slurm itself sends to (``NodeAddr``)."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        command = ["scontrol", "-o", "show", "node", name]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            return name
        found = re.search(r"(?:^|\s)NodeAddr=(\S+)", told)
        return found[1] if found else name
    return name


def _mpi(environment: Mapping[str, str]) -> Place | None:
    """Ranks are taken to fill one node after the other, mpirun's default (``--map-by slot``). The host is empty where
    nobody told it.

    Raises:
        UsageProblem: the ranks do not lie so; which node is whose is not told then.
    """
    for names in MPI:
        rank, size, local, local_size = (_number(environment, name) for name in names)
        if rank is None or not size or local is None or not local_size or size == 1:
            continue
        nnodes = math.ceil(size / local_size)
        if nnodes > 1 and (size % local_size or local != rank % local_size):
            what = f"rank {rank} of {size} is number {local} of {local_size} on its node: "
            what += "ranks do not fill one node after the other"
            raise UsageProblem(what, fix="as many ranks on each node and `mpirun --map-by slot`, or one rank a node")
        host = environment.get("MASTER_ADDR", "" if nnodes > 1 else "127.0.0.1")
        port = _number(environment, "MASTER_PORT", least=1) or PORT
        return Place(nnodes, rank // local_size, local_size, host, port, "MPI", local)
    return None


def expand_hosts(text: str) -> list[str]:
    """Slurm's host list, ``n[1-3,07],login`` -> n1 n2 n3 n07 login.

    Raises:
        UsageProblem: it cannot be read, or names more hosts than any cluster has.
    """
    found: list[str] = []
    if not re.fullmatch(r"[A-Za-z0-9._,-]*(?:\[[0-9,-]+\][A-Za-z0-9._,-]*)*", text):
        text = ""
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            names = [n + end for n in names for end in ([plain] if plain else _ranges(ranges, text))]
            if len(names) > MAX_HOSTS:
                raise UsageProblem(f"host list {text[:80]!r} names too many hosts", expected=f"at most {MAX_HOSTS}")
        found += names
    if not found or any(not re.fullmatch(r"[A-Za-z0-9._-]+", n) for n in found):
        raise UsageProblem("a host list cannot be read", expected="Slurm's form, such as n[1-4]")
    return found


def compress_hosts(names: Sequence[str]) -> str:
    """The inverse of :func:`expand_hosts`, as short as Slurm writes it: n1 n2 n3 n7 -> ``n[1-3,7]``."""
    stems: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in dict.fromkeys(names):
        found = re.fullmatch(r"(.*?)(\d+)", name)
        if found:
            stems.setdefault((found[1], len(found[2])), []).append(int(found[2]))
        else:
            plain.append(name)
    for (stem, width), numbers in stems.items():
        spans: list[list[int]] = []
        for number in sorted(numbers):
            if spans and number == spans[-1][1] + 1:
                spans[-1][1] = number
            else:
                spans.append([number, number])
        words = [str(a).zfill(width) + (f"-{str(b).zfill(width)}" if b > a else "") for a, b in spans]
        single = len(words) == 1 and "-" not in words[0]
        plain.append(f"{stem}{words[0]}" if single else f"{stem}[{','.join(words)}]")
    return ",".join(sorted(plain))


def _ranges(text: str, whole: str) -> list[str]:
    ends: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdigit() and last.isdigit()) or int(last) - int(first) > MAX_HOSTS:
            raise UsageProblem(f"host list {whole[:80]!r} cannot be read", expected="Slurm's form, such as n[1-4]")
        ends += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return ends
