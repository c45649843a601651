"""Collects what running ranks show from outside: stacks, process states, dumps, kernel and scheduler words. Read-only.

Nothing is attached to but by py-spy, no process is stopped, and no signal is sent unless the caller names one that the
ranks have registered with faulthandler. What cannot be had (no py-spy, no right to read the kernel log) becomes a note.
"""

from __future__ import annotations

import os
import shutil
import signal as signals
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from ddaudit.errors import EvidenceProblem
from ddaudit.redact import redact_argv, redact_text

__all__ = ["collect", "find_ranks"]

COMMAND_TIMEOUT_S = 15.0
#: Tail of a rank's log file that is kept.
LOG_TAIL_BYTES = 4 << 20
#: Time that a rank gets to write its stack after a signal it has registered.
SIGNAL_WAIT_S = 1.0
DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")


def find_ranks(pids: Sequence[int] = ()) -> list[psutil.Process]:
    """The given processes, or all of this user's whose environment holds RANK and WORLD_SIZE.

    Raises:
        EvidenceProblem: a process does not exist, or none is found.
    """
    if pids:
        missing = [pid for pid in pids if not psutil.pid_exists(pid)]
        if missing:
            raise EvidenceProblem(f"no process {missing[0]}", fix="ps -ef | grep python")
        return [psutil.Process(pid) for pid in pids]
    found = [p for p in psutil.process_iter() if {"RANK", "WORLD_SIZE"} <= set(environment(p)) and not _is_child(p)]
    if not found:
        raise EvidenceProblem("no running ranks of this user found", fix="name them with --pid")
    return found


def environment(process: psutil.Process) -> dict[str, str]:
    """A process's environment; empty where it may not be read."""
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def _is_child(process: psutil.Process) -> bool:
    """A loader worker inherits its rank's environment; the rank is the outermost process with it."""
    try:
        parent = process.parent()
    except psutil.Error:
        return False
    return parent is not None and environment(parent).get("RANK") == environment(process).get("RANK")


def collect(folder: Path, pids: Sequence[int] = (), job: str | None = None, ask: str | None = None) -> list[str]:
    """Writes a bundle about running ranks into ``folder``; returns notes about what could not be had.

    Args:
        pids: the ranks; empty finds them by their environment.
        job: a Slurm job id whose records are added.
        ask: name of a signal (``USR1``) that the ranks have registered with ``faulthandler.register``.
    """
    ranks = find_ranks(pids)
    host = socket.gethostname()
    notes: list[str] = []
    (folder / f"ps-{host}.txt").write_text(_process_list(ranks), encoding="utf-8")
    (folder / "rank_map.txt").write_text(_rank_map(ranks, host), encoding="utf-8")
    if ask is not None:
        _ask(ranks, ask, notes)
    for process in ranks:
        rank = environment(process).get("RANK", str(process.pid))
        _stacks(process, folder / f"pyspy/{host}_rank{rank}.txt", notes)
        _log_files(process, folder / f"logs/rank_{rank}.log")
        _dumps(process, folder / "fr")
    _commands(folder, host, job, notes)
    _cgroup_events(ranks, folder / f"cgroup-{host}.txt")
    return notes


def _process_list(ranks: Iterable[psutil.Process]) -> str:
    rows = ["    PID STAT WCHAN                            CMD"]
    for process in ranks:
        for member in [process, *_children(process)]:
            command = " ".join(redact_argv(_command_line(member)))[:200]
            rows.append(f"{member.pid:7d} {_state(member.pid):4s} {_wchan(member.pid):32s} {command}")
    return "\n".join(rows) + "\n"


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return ["?"]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def _wchan(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text().strip() or "-"
    except OSError:
        return "-"


def _rank_map(ranks: Iterable[psutil.Process], host: str) -> str:
    rows = ["rank host pid local_rank"]
    sizes = set()
    for process in ranks:
        known = environment(process)
        sizes.add(known.get("WORLD_SIZE", ""))
        if known.get("RANK", "").isdigit():
            rows.append(f"{known['RANK']} {host} {process.pid} {known.get('LOCAL_RANK', known['RANK'])}")
    return "\n".join([*rows, *(f"world_size: {s}" for s in sizes if s.isdigit())]) + "\n"


def _stacks(process: psutil.Process, path: Path, notes: list[str]) -> None:
    tool = shutil.which("py-spy")
    if tool is None:
        if not any("py-spy" in note for note in notes):
            notes.append("no Python stacks: py-spy is not installed (pip install py-spy)")
        return
    path.parent.mkdir(exist_ok=True)
    parts = [_output([tool, "dump", "--pid", str(p.pid)], notes) for p in [process, *_children(process)]]
    text = "\n".join(part for part in parts if part)
    if text:
        path.write_text(text, encoding="utf-8")


def _ask(ranks: Iterable[psutil.Process], name: str, notes: list[str]) -> None:
    """Sends a signal to those ranks that catch it; to any other it would be deadly."""
    number = getattr(signals, "SIG" + name.upper().removeprefix("SIG"), None)
    if number is None:
        raise EvidenceProblem(f"no signal {name}", expected="USR1, USR2, QUIT")
    for process in ranks:
        if _catches(process.pid, int(number)):
            os.kill(process.pid, number)
        else:
            notes.append(f"process {process.pid} does not catch {name}: not asked for its stack")
    time.sleep(SIGNAL_WAIT_S)


def _catches(pid: int, number: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def _log_files(process: psutil.Process, path: Path) -> None:
    """The tail of what standard output and error of a rank go to, where that is a file."""
    seen: set[str] = set()
    for number in (1, 2):
        try:
            target = Path(f"/proc/{process.pid}/fd/{number}").resolve(strict=True)
            if not target.is_file() or str(target) in seen:
                continue
            seen.add(str(target))
            with target.open("rb") as stream:
                stream.seek(max(0, target.stat().st_size - LOG_TAIL_BYTES))
                text = stream.read(LOG_TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.write(redact_text(text))


def _dumps(process: psutil.Process, folder: Path) -> None:
    """Flight Recorder dumps that a rank has written where its environment says."""
    known = environment(process)
    rank = known.get("RANK", "0")
    for variable in DUMP_VARIABLES:
        source = Path(known.get(variable, "/nonexistent") + rank)
        if source.is_file() and source.stat().st_size <= LOG_TAIL_BYTES * 16:
            folder.mkdir(exist_ok=True)
            shutil.copyfile(source, folder / f"trace_rank_{rank}")


def _commands(folder: Path, host: str, job: str | None, notes: list[str]) -> None:
    wanted = {f"dmesg-{host}.txt": ["dmesg", "-T"], f"nvidia-smi-q.{host}.txt": ["nvidia-smi", "-q"]}
    if job is not None:
        wanted["sacct.txt"] = ["sacct", "-j", job, "--parsable2", "--format=JobID,JobName,State,ExitCode,NodeList"]
        wanted["scontrol_job.txt"] = ["scontrol", "show", "job", job]
    for name, argv in wanted.items():
        if shutil.which(argv[0]) is None:
            continue
        if text := _output(argv, notes):
            (folder / name).write_text(redact_text(text), encoding="utf-8")


def _output(argv: list[str], notes: list[str]) -> str:
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        notes.append(f"{argv[0]}: {type(error).__name__}")
        return ""
    if done.returncode != 0:
        notes.append(f"{argv[0]}: {done.stderr.decode('utf-8', 'replace').strip()[:120] or f'exit {done.returncode}'}")
        return ""
    return done.stdout.decode("utf-8", "replace")


def _cgroup_events(ranks: Iterable[psutil.Process], path: Path) -> None:
    """``memory.events`` (version 1: ``memory.oom_control``) of the ranks' groups: counts kills by the memory limit."""
    lines = []
    for group, name in sorted({g for p in ranks for g in _cgroups(p.pid)}):
        try:
            events = Path(f"/sys/fs/cgroup{group}/{name}").read_text()
        except OSError:
            continue
        lines += [f"{group} memory.events {line}" for line in events.splitlines()]
    if lines:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cgroups(pid: int) -> list[tuple[str, str]]:
    """(folder below the control groups' root, file that counts kills), of version 2 and of version 1."""
    try:
        rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    except OSError:
        return []
    unified = [(row[2], "memory.events") for row in rows if len(row) == 3 and row[0] == "0"]
    return unified + [("/memory" + row[2], "memory.oom_control") for row in rows if "memory" in row[1].split(",")]
