"""Slurm's own words: sacct tables (columns or ``|``), scontrol show job and node; host lists like ``n[01-03,7]``."""

from __future__ import annotations

import re

from ddaudit.evidence.incident import SchedulerJob
from ddaudit.triage.readers.collect import Gathered, spot

__all__ = ["expand_hosts", "expand_numbers", "read_sacct", "read_scontrol"]

_RANGE = re.compile(r"^(?P<a>\d+)(?:-(?P<b>\d+))?$")
#: A list that expands beyond this is damage or an attack, not a cluster.
MAX_HOSTS = 100_000


def expand_numbers(text: str) -> list[int]:
    """``0-3,7`` -> [0, 1, 2, 3, 7]."""
    numbers: list[int] = []
    for part in text.split(","):
        if (found := _RANGE.match(part.strip())) and len(numbers) < MAX_HOSTS:
            first, last = int(found["a"]), int(found["b"] or found["a"])
            numbers += range(first, min(last, first + MAX_HOSTS) + 1)
    return numbers


def expand_hosts(text: str) -> list[str]:
    """``n[01-03,7],gpu9`` -> [n01, n02, n03, n7, gpu9]. A list that Slurm cut short (``+``) gives what is whole."""
    hosts: list[str] = []
    for found in re.finditer(r"(?P<stem>[\w.-]+)(?:\[(?P<list>[\d,-]+)\])?(?P<tail>[\w.-]*)(?P<open>\[)?", text):
        if found["open"]:
            break
        for part in (found["list"] or "").split(",") if found["list"] else [""]:
            low, _, high = part.partition("-")
            width = len(low)
            last = int(high or low) if low else 0
            numbers = range(int(low), min(last, int(low) + MAX_HOSTS) + 1) if low else [None]
            hosts += [f"{found['stem']}{'' if n is None else str(n).zfill(width)}{found['tail']}" for n in numbers]
        if len(hosts) > MAX_HOSTS:
            break
    return hosts


def read_sacct(text: str, name: str, into: Gathered) -> None:
    """Rows of sacct, whatever columns were asked for."""
    columns: list[str] = []
    starts: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\|?\s*JobID", line) and "State" in line:
            columns = [c.strip() for c in line.strip("|").split("|")] if "|" in line else line.split()
            starts = []
            continue
        if columns and re.fullmatch(r"[- ]+", line.strip() or "x"):
            starts = [m.span() for m in re.finditer(r"-+", line)]
            continue
        if columns and line.strip():
            row = _row(line, columns, starts)
            if row.get("JobID", "")[:1].isdigit() and row.get("State"):
                where = spot(name, number, line)
                nodes = row.get("NodeList", "")
                into.jobs.append(SchedulerJob(row["JobID"], row["State"], row.get("ExitCode", ""), where, nodes))


def _row(line: str, columns: list[str], spans: list[tuple[int, int]]) -> dict[str, str]:
    if "|" in line:
        cells = [c.strip() for c in line.strip("|").split("|")]
    elif len(spans) == len(columns):
        # sacct right-aligns under the rulers; a long last cell may run over.
        cells = [line[a : b if i < len(spans) - 1 else None].strip() for i, (a, b) in enumerate(spans)]
    else:
        cells = line.split()
    return dict(zip(columns, cells, strict=False))


def read_scontrol(text: str, name: str, into: Gathered) -> None:
    """``scontrol show job`` and ``show node``: state, reason, nodes."""
    subject = kind = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"\b(?P<what>JobId|NodeName)=(?P<id>\S+)", line):
            subject, kind = found["id"], found["what"]
        if subject and (found := re.search(r"\b(?:Job)?State=(?P<state>\S+)", line)):
            where = spot(name, number, line)
            if kind == "JobId":
                reason = re.search(r"\bReason=(?P<r>\S+)", line)
                into.jobs.append(SchedulerJob(subject, found["state"], reason["r"] if reason else "", where))
            else:
                into.jobs.append(SchedulerJob("node:" + subject, found["state"], "", where, subject))
                into.see_host(subject, 0)
        if kind == "NodeName" and (found := re.search(r"\bReason=(?P<reason>.+)", line)):
            into.jobs.append(
                SchedulerJob("node:" + subject, "REASON " + found["reason"], "", spot(name, number, line), subject)
            )
