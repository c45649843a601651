"""Stacks of stuck processes: py-spy dump, faulthandler, gdb; and process lists."""

from __future__ import annotations

import json
import re
from pathlib import PurePath

from ddaudit.evidence.incident import Process, Spot, Stack
from ddaudit.triage.readers.collect import Gathered, spot

__all__ = ["looks_like_stacks", "read_processes", "read_stacks"]

_PYSPY_PROCESS = re.compile(r"^(?:Process|PID:?) (?P<pid>\d+)(?:: (?P<cmd>.*))?$")
_PYSPY_THREAD = re.compile(r'^Thread (?P<tid>\d+|0x[0-9a-fA-F]+) ?(?:\((?P<state>[\w+ ]+)\))?(?:: ?"(?P<name>[^"]*)")?')
_PYSPY_FRAME = re.compile(r"^\s+(?P<func>[^\s(][^(]*?) \((?P<where>[^()]+?)\)\s*$")
_FAULT_THREAD = re.compile(
    r"^(?:(?P<current>Current t|T)hread (?P<tid>0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])?|(?P<whole>Stack))"
    r" \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<func>\S+)')
_GDB_THREAD = re.compile(
    r'^Thread (?P<n>\d+) \((?:Thread 0x[0-9a-f]+ )?(?:\(?LWP (?P<tid>\d+)\)?)?[^)]*?(?:"(?P<name>[^"]*)")?\)*:'
)
_GDB_FRAME = re.compile(r"^#\d+ +(?:0x[0-9a-f]+ in )?(?P<func>[\w:~<>.@]+) ?\(.*?\)?(?: (?:at|from) (?P<where>\S+))?$")
_MARKS = ("most recent call first", "Thread ", "#0 ")
_RANK = re.compile(r"(?i)rank[_-]?0*(?P<rank>\d+)")
_PS_HEAD = re.compile(r"\bPID\b.*\b(?:STAT|S|STATE)\b.*\b(?:CMD|COMMAND)\b")


def looks_like_stacks(text: str) -> bool:
    """True when a text holds thread headers of a known form."""
    return '"frames"' in text or bool(
        re.search(
            r"(?m)^(?:Process \d+: |Thread \d+ \((?:idle|active)|(?:Current t|T)hread 0x[0-9a-f]+.*call first"
            r"|Stack \(most recent call first\)|Thread \d+ \(.*LWP )",
            text,
        )
    )


def read_stacks(text: str, name: str, host: str | None, rank: int | None) -> list[Stack]:
    """All threads of a dump. The first thread of a process, or one called MainThread, is the main one."""
    stacks: list[Stack] = []
    pid: int | None = None
    command, head = "", None
    frames: list[tuple[str, Spot]] = []
    seen_rank = rank

    def close() -> None:
        if head is not None and frames:
            stacks.append(
                _stack(head, frames, (seen_rank, host, pid, command), first=not any(s.pid == pid for s in stacks))
            )

    for number, line in enumerate(text.splitlines(), 1):
        if found := _PYSPY_PROCESS.match(line):
            close()
            head, frames, pid, command = None, [], int(found["pid"]), found["cmd"] or ""
        elif found := _FAULT_THREAD.match(line) or _GDB_THREAD.match(line) or _PYSPY_THREAD.match(line):
            close()
            head, frames = found, []
        elif head is not None and (frame := _frame(line)):
            frames.append((frame, spot(name, number, line)))
        elif head is None and rank is None and (named := _RANK.search(line)) and len(line) < 80:
            seen_rank = int(named["rank"])
    close()
    return stacks


def _frame(line: str) -> str | None:
    if found := _FAULT_FRAME.match(line):
        return f"{found['func']} ({found['file']}:{found['line']})"
    if found := _PYSPY_FRAME.match(line):
        return f"{found['func']} ({found['where']})"
    if found := _GDB_FRAME.match(line):
        return f"{found['func']} ({found['where'] or ''})"
    return None


def _stack(
    head: re.Match[str],
    frames: list[tuple[str, Spot]],
    who: tuple[int | None, str | None, int | None, str],
    *,
    first: bool,
) -> Stack:
    rank, host, pid, _ = who
    g = head.groupdict()
    thread = g.get("name") or ("MainThread" if g.get("current") == "Current t" or g.get("whole") or first else "")
    names = tuple(f for f, _ in frames)
    worker = any("_worker_loop" in f or "data/_utils/worker.py" in f for f in names)
    main = thread in ("MainThread", "pt_main_thread", "python", "python3") or (
        first and not thread.startswith("Thread-")
    )
    return Stack(rank, host, pid, thread, main and not worker, worker, names, tuple(s for _, s in frames))


def read_processes(text: str, name: str, host: str | None) -> list[Process]:
    """Rows of ``ps`` with a header that names PID, state and command."""
    found: list[Process] = []
    columns: list[str] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if _PS_HEAD.search(line):
            columns = line.split()
            continue
        if columns is None:
            continue
        cells = line.split(None, len(columns) - 1)
        if len(cells) < len(columns) or not cells[columns.index("PID")].isdigit():
            continue
        row = dict(zip(columns, cells, strict=True))
        state = row.get("STAT") or row.get("S") or row.get("STATE") or ""
        command = row.get("CMD") or row.get("COMMAND") or ""
        found.append(Process(int(row["PID"]), host, state, row.get("WCHAN", ""), command, spot(name, number, line)))
    return found


def _from_json(text: str, name: str, host: str | None, rank: int | None) -> list[Stack]:
    """``py-spy dump --json``: a list of threads, the innermost frame first. Its lines are counted by content."""
    if not text.lstrip().startswith("[") or '"frames"' not in text:
        return []
    try:
        threads = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: list[Stack] = []
    for thread in threads if isinstance(threads, list) else []:
        rows = thread.get("frames") if isinstance(thread, dict) else None
        frames = [f for f in rows if isinstance(f, dict)] if isinstance(rows, list) else []
        if not frames:
            continue
        names = tuple(
            f"{f.get('name')} ({f.get('short_filename') or f.get('filename')}:{f.get('line')})" for f in frames
        )
        title = str(thread.get("thread_name") or "")
        worker = any("_worker_loop" in f or "data/_utils/worker.py" in f for f in names)
        pid = thread.get("pid") if isinstance(thread.get("pid"), int) else None
        main = (title == "MainThread" or thread.get("os_thread_id") == pid) and not worker
        found.append(Stack(rank, host, pid, title, main, worker, names, tuple(spot(name, 1, f) for f in names)))
    return found


def add_stacks(text: str, name: str, into: Gathered, host: str | None, rank: int | None) -> None:
    """Reads dump and process list of one file into the record."""
    if rank is None and (named := _RANK.search(PurePath(name).name)):
        rank = int(named["rank"])
    for stack in _from_json(text, name, host, rank) or read_stacks(text, name, host, rank):
        into.stacks.append(stack)
        if stack.rank is not None and stack.main:
            into.know(stack.rank, pid=stack.pid, host=stack.host)
    into.processes += read_processes(text, name, host)
