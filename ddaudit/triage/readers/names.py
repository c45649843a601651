"""What file names tell: the rank in ``rank_05.log`` or ``attempt_0/5/stderr.log``, the host in ``gn-b07.dmesg``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

__all__ = [
    "host_candidates",
    "host_in",
    "is_prose",
    "job_in",
    "like_named",
    "local_rank_in",
    "looks_kernel",
    "numbered_ranks",
    "rank_in",
]

_RANK = re.compile(r"(?i)(?:^|[^a-z])(?:global[_-]?)?rank[_-]?0*(?P<rank>\d{1,5})(?!\d)")
_ELASTIC = re.compile(r"(?:^|/)attempt_\d+/(?P<local>\d+)/(?:std(?:out|err)\.log|error\.json)$")
_NUMBERED = re.compile(
    r"^(?P<stem>.*?)(?:[-_.](?:task|worker|proc|w|r|p)?[-_]?)0*(?P<n>\d{1,5})(?P<tail>\.(?:err|out|log|txt)(?:\.gz|\.zst|\.xz)?)$"
)
_KERNEL = re.compile(r"(?i)(?:dmesg|kern(?:el)?[._-]|kern\.log|syslog|messages|journal|console|conman|kmsg)")
_HOST_FILE = re.compile(
    r"(?i)(?:^|[._ -])(?:dmesg|kern|kernel|nvidia|smi|nvsmi|syslog|messages|console|conman|ibstat|ps|ss|netstat"
    r"|lsof|df|free|journal(?:ctl)?"
    r"|pyspy|spy|sel|bmc|ipmi|lspci|gdb|stack|stacks|top|mount|ls|ethtool|systemctl|fabricmanager|ldd"
    r"|uptime)(?=$|[._ -])"
)
_PROSE = re.compile(
    r"(?i)\.(?:py|pyi|pyx|ipynb|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|go|sh|bash|zsh|sbatch|slurm|diff|patch|md|rst|html?|j2|tex)$"
    r"|^(?:readme|notes?|todo|changelog|licen[cs]e)(?:$|[._ -])"
)
_JOB = re.compile(r"(?i)(?:slurm|job|run)[-_.]?(?P<job>\d{3,12})")
_WORDS = re.compile(
    r"(?i)(?:^|[._ -])(?:dmesg|kern(?:el)?|log|logs|txt|out|err|nvidia|smi|nvsmi|q|T|syslog|messages|console"
    r"|conman|ibstat|ibdev|ps|df|free"
    r"|journal(?:ctl)?|kubectl|pyspy|py|spy|sel|bmc|ipmi|lspci|stack|stacks|gdb|rank\d+|worker\d+|gz|xz|zst|all"
    r"|tail|excerpt|before|after|iso|lspci|top|mount|ls|ss|netstat|lsof|uptime|sysfs|ethtool|fabricmanager"
    r"|systemctl|ldd|env|pip|freeze)(?=$|[._ -])"
)


def rank_in(name: str) -> int | None:
    """Rank that a path names as such."""
    found = _RANK.search(PurePath(name).name) or _RANK.search(PurePath(name).parent.name)
    return int(found["rank"]) if found else None


def local_rank_in(name: str) -> int | None:
    """Local rank of a torchelastic per-worker file."""
    found = _ELASTIC.search(name.replace("\\", "/"))
    return int(found["local"]) if found else None


def numbered_ranks(names: Iterable[str]) -> dict[str, int]:
    """Files that differ in one number running 0..n-1 (``job-7-0.err``, ``job-7-1.err``): number -> rank."""
    families: dict[tuple[str, str, str], dict[str, int]] = {}
    for name in names:
        path = PurePath(name)
        if (found := _NUMBERED.match(path.name)) and not _KERNEL.search(path.name):
            families.setdefault((str(path.parent), found["stem"], found["tail"]), {})[name] = int(found["n"])
    ranks: dict[str, int] = {}
    for members in families.values():
        if len(members) > 1 and sorted(members.values()) == list(range(len(members))):
            ranks |= members
    return ranks


def is_prose(name: str) -> bool:
    """True for programs and for what people write: such a file quotes errors, it does not report any."""
    return _PROSE.search(PurePath(name).name) is not None


def looks_kernel(name: str) -> bool:
    """True for files named as kernel, system or console logs."""
    return _KERNEL.search(PurePath(name).name) is not None or _KERNEL.search(str(PurePath(name).parent)) is not None


def job_in(name: str) -> str | None:
    """Job id in a file name such as ``slurm-771204.out``."""
    found = _JOB.search(PurePath(name).name)
    return found["job"] if found else None


def host_in(name: str, hosts: Iterable[str]) -> str | None:
    """The longest of ``hosts`` that a path holds as a whole word; short names match fully qualified hosts."""
    best: str | None = None
    for host in hosts:
        for form in (host, host.split(".")[0]):
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9]|-\d)", name) and len(form) > len(
                (best or "").split(".")[0]
            ):
                best = host
    return best


def host_candidates(name: str) -> str | None:
    """A host-like word left in a file name after the words for kinds of files are taken away (``ivy-11_rank5.txt``)."""
    stem = PurePath(name).name
    if (
        (title := name.partition("::")[2])
        and re.fullmatch(r"[A-Za-z][\w.-]*\d[\w.-]*", title)
        and rank_in(title) is None
    ):
        return title  # a part of a collection, called after its host
    if found := re.search(r"(?:^|[_.])(?P<host>[A-Za-z][A-Za-z0-9-]*\d+)[_.-]rank", stem):
        return found["host"]
    if not _HOST_FILE.search(stem):
        return None
    for _ in range(4):
        stem = _WORDS.sub("", stem)
    stem = stem.strip("._- ")
    return stem if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*\d[A-Za-z0-9-]*", stem) else None


def like_named(paths: Iterable[str], hosts: Iterable[str]) -> set[str]:
    """Files called like known hosts (``n01.log`` beside ``n02.log``) are of hosts too."""
    stems = {PurePath(path).name.split(".")[0] for path in paths}
    forms = {re.sub(r"\d+", "#", host) for host in hosts if host in stems}
    return {stem for stem in stems if "#" in (form := re.sub(r"\d+", "#", stem)) and form in forms}
