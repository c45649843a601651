"""Small tables: rank maps, df, quota reports, error.json of torchelastic."""

from __future__ import annotations

import json
import re

from ddaudit.evidence.incident import Mount, Raised, Stamp
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.nvidia import bdf

__all__ = ["read_df", "read_error_json", "read_quota", "read_rank_map"]

_HOST = re.compile(r"(?im)^\s*#?\s*(?:host(?:name)?|node)\s*[=:]\s*(?P<host>[\w.-]+)\s*$")
_KEYS = {"rank": "rank", "global_rank": "rank", "host": "host", "hostname": "host", "node": "host", "pid": "pid"}
_KEYS |= {"gpu": "gpu_index", "local_rank": "local_rank", "device": "gpu_index", "cuda": "gpu_index"}
_KEYS |= {"pci": "gpu", "bus": "gpu", "bus_id": "gpu", "busid": "gpu", "pci_bus_id": "gpu", "bdf": "gpu"}


def read_rank_map(text: str, into: Gathered) -> None:
    """A table whose header has ``rank`` and at least one of host, pid, gpu, pci; or JSON of the same."""
    named = _HOST.search(text)
    columns: list[str] = []
    for line in text.splitlines():
        cells = [c.strip() for c in re.split(r"[|,;\t]|\s+", line.strip(" |#")) if c.strip()]
        keys = [_KEYS.get(c.lower().replace("-", "_"), "") for c in cells]
        if "rank" in keys and sum(bool(k) for k in keys) > 1 and not any(c.isdigit() for c in cells):
            columns = keys
        elif columns and len(cells) >= len(columns) and cells[columns.index("rank")].isdigit():
            _learn(dict(zip(columns, cells, strict=False)), named["host"] if named else None, into)


def _learn(row: dict[str, str], host: str | None, into: Gathered) -> None:
    numbers = {k: int(row[k]) for k in ("pid", "gpu_index", "local_rank") if row.get(k, "").isdigit()}
    into.know(int(row["rank"]), host=row.get("host") or host, gpu=bdf(row.get("gpu")), **numbers)


def read_df(text: str, name: str, host: str | None, into: Gathered) -> None:
    """Mounts of ``df`` that are (nearly) full; ``df -i`` counts inodes."""
    inodes = False
    for number, line in enumerate(text.splitlines(), 1):
        if "Mounted on" in line:
            inodes = "IUse%" in line
        elif (found := re.search(r"\s(?P<use>\d{1,3})%\s+(?P<path>/\S*)\s*$", line)) and int(found["use"]) >= 99:
            into.mounts.append(Mount(found["path"], "inodes" if inodes else "full", host, spot(name, number, line)))


def read_quota(text: str, name: str, host: str | None, into: Gathered) -> None:
    """Quota reports (mmlsquota, lfs quota, quota): rows marked over (``*``) or with an expired grace."""
    if not re.search(r"(?i)quota", text):
        return
    for number, line in enumerate(text.splitlines(), 1):
        over = re.search(r"\d\*", line) or re.search(r"\bexpired\b", line) or re.search(r"(?i)over quota", line)
        if over and re.search(r"\d", line):
            into.mounts.append(Mount(line.split()[0], "quota", host, spot(name, number, line)))


def read_error_json(text: str, name: str, host: str | None, local_rank: int | None, into: Gathered) -> Raised | None:
    """torchelastic's error file: the exception, its call stack and a Unix time that fixes the job's clock."""
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, str):
        message = {"message": message}
    if not isinstance(message, dict):
        return None
    final = str(message.get("message", ""))
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', str(extra.get("py_callstack", "")))
    kind, _, rest = final.partition(": ")
    moment = str(extra.get("timestamp", ""))
    stamp = Stamp(float(moment), True) if re.fullmatch(r"\d{9,11}(\.\d+)?", moment) else None
    where = spot(name, 1, final.splitlines()[0] if final else text)
    stack = tuple(f"{func} ({file}:{line})" for file, line, func in frames)
    raised = Raised(kind, rest, where, local_rank, host, stamp, stack)
    into.raised.append(raised)
    return raised
