"""Who wrote a line: the labels that launchers, collectors and libraries put in front of it.

Knows srun ``3:``, torchrun ``[default3]:``, torch ``[rank3]:``, mpirun ``[1,3]<stdout>:``, kubectl ``[pod/x/y]``,
container runtimes ``stdout F``, Ray ``(Name pid=1, ip=10.0.0.1)``, NCCL ``host:pid:tid [dev]``, syslog
``host kernel:``, pdsh ``node03:`` and what frameworks print themselves.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ddaudit.evidence.incident import Stamp
from ddaudit.triage.readers.stamps import Calendar

__all__ = ["Line", "LineReader", "strip_ansi"]

#: What of a line is read: no expression meets megabytes, whatever a log holds.
MAX_LINE_BYTES = 16384

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")

#: Label forms by the kind of character they start with: trying only those makes reading twice as fast.
_FORMS = {
    "[": (
        r"\[pod/(?P<host>[\w.-]+)/[\w.-]+\] ",
        r"\[(?:\d+),(?P<rank>\d+)\](?:<std(?:out|err)>)?: ?",
        r"\[[Rr]ank[ :=]{0,2}(?P<rank>\d+)\]:? ?",
        r"\[[Rr]ank[ =:]+(?P<rank>\d+)[^\]]*\]:? ?",
        r"\[(?:default|trainer|worker|main)(?P<local>\d+)\]: ?",
        r"\[ *(?P<uptime>\d+\.\d{6})\] ?",
        r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [^\]]{12,30}\] ?",
        r"\[\d{4}[-/]\d\d[-/]\d\d[T ][^\]]{8,30}\]:? ?",
    ),
    "(": (r"\((?P<actor>\w+(?:\(rank=(?P<rank>\d+)\))?) pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?\) ",),
    "<": (r"<\d+>",),
    "0": (
        r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:(?:stdout|stderr) [FP] )?",
        r"(?P<task>\d{1,5}): ",
    ),
    " ": (r" {1,4}(?P<task>\d{1,5}): ",),
    "a": (
        r"(?P<host>[a-z][\w.-]*-\d+) (?:[\w.-]+ )?[›|] ",
        r"(?P<host>[a-z][\w.-]*?-\d+) +\| ",
        r"[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)? (?P<host>[\w.-]+) (?P<who>[\w.@/-]+?)(?:\[\d+\])?: ",
        r"(?P<host>[A-Za-z][\w.-]*) (?P<who>kernel|systemd(?:-\w+)?|kubelet|slurmd|dockerd)(?:\[\d+\])?: ",
        r"(?P<who>kernel): ",
        r"(?P<host>[A-Za-z][\w.-]*):(?P<pid>\d+):\d+ \[(?P<dev>\d+)\] ",
        # pdsh and clush before a kernel line: what follows is a time, so that "mce: [Hardware Error]" is no host.
        r"^(?P<host>[A-Za-z][\w.-]{1,60}): +(?=\[ *\d+\.\d{6}\]|\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
        r"|\d{4}-\d\d-\d\dT|<\d+>"
        r"|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d)",
        r"(?P<pdsh>[A-Za-z][A-Za-z-]{0,40}\d[\w-]{0,60}(?:\.[\w-]+){0,6}): ",
    ),
}
_PREFIXES = {kind: tuple(re.compile(form) for form in forms) for kind, forms in _FORMS.items()}


def _kind(character: str) -> str:
    return "0" if character.isdigit() else "a" if character.isalpha() else character


_NOT_HOSTS = re.compile(
    r"(?:step|epoch|rank|iter|iteration|frame|worker|gpu|layer|batch|task|it|proc|thread|part|shard)[_-]?\d+$",
    re.IGNORECASE,
)
_RANK_TEXT = re.compile(
    r"(?:^|[\s\[({|,'\"])(?:global[_ -]?)?[Rr](?:ank|ANK)(?:['\"]?[ :=#]{1,3}|(?=\d))(?P<rank>\d{1,5})(?![\d.])"
)
_FIELD = re.compile(
    r"['\"](?:host(?:name)?|node(?:_?name)?|_HOSTNAME)['\"]: ?['\"](?P<host>[A-Za-z][\w.-]*)['\"]"
    r"|['\"](?P<key>(?:global_|local_)?rank|pid)['\"]: ?['\"]?(?P<n>\d{1,9})\b"
)
_TORCH_RANK = re.compile(r"\[(?:PG [^\]]*?)?Rank (?P<rank>\d+)\]")
_KERNEL_WORDS = re.compile(r"^(?:NVRM:|nvidia-nvswitch|mlx5_core |pcieport |Out of memory|oom-kill:|nfs: |LustreError)")


def strip_ansi(text: str) -> str:
    """Removes terminal control sequences; what is left is shown to people, so nothing may steer their terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def _unwrap(raw: bytes) -> bytes:
    """The line inside docker's json-file form ``{"log": "...", "time": "..."}``, with its time in front."""
    if not raw.startswith(b'{"log":'):
        return raw
    try:
        value = json.loads(raw)
        return f"{value.get('time', '')} {value['log']}".strip("\n").encode() if isinstance(value["log"], str) else raw
    except (ValueError, KeyError, RecursionError):
        return raw


@dataclass(slots=True)
class Line:
    """A line split into who, when and what. ``task`` is srun's label: a rank or a node; the whole file decides."""

    number: int
    text: str
    body: str = ""
    stamp: Stamp | None = None
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str | None = None
    pid: int | None = None
    device: int | None = None
    kernel: bool = False
    uptime_s: float | None = None
    label: str = ""


class LineReader:
    """Splits lines of one file. Keeps the last date seen, for lines that give only a time of day."""

    def __init__(self, calendar: Calendar, *, kernel: bool = False) -> None:
        self.calendar = calendar
        self.kernel = kernel

    def read(self, number: int, raw: bytes) -> Line:
        """Decodes (UTF-8, replacing what is broken), strips colours and peels the labels off."""
        text = strip_ansi(_unwrap(raw[:MAX_LINE_BYTES]).decode("utf-8", "replace")).rstrip("\r\n")
        line = Line(number, text, kernel=self.kernel)
        at = 0
        for _ in range(8):
            at, more = self._peel(line, text, at)
            if not more:
                break
        line.body, line.label = text[at:], text[:at]
        line.stamp = self.calendar.read(text)
        if line.body.startswith("{"):
            self._structured(line)
        if line.rank is None and not line.kernel:
            self._guess_rank(line)
        if not line.kernel and _KERNEL_WORDS.match(line.body):
            line.kernel = True
        return line

    def _peel(self, line: Line, text: str, at: int) -> tuple[int, bool]:
        for pattern in _PREFIXES.get(_kind(text[at : at + 1]), ()):
            found = pattern.match(text, at)
            if found and self._take(line, found):
                return found.end(), True
        return at, False

    def _take(self, line: Line, found: re.Match[str]) -> bool:
        g = found.groupdict()
        if pdsh := g.get("pdsh"):
            if _NOT_HOSTS.match(pdsh) or line.kernel:
                return False
            line.host = line.host or pdsh
        if g.get("task") is not None:
            if line.task is not None or line.kernel or line.rank is not None:
                return False
            line.task = int(found["task"])
        line.rank = line.rank if g.get("rank") is None else int(found["rank"])
        line.local_rank = line.local_rank if g.get("local") is None else int(found["local"])
        line.host = g.get("host") or line.host
        line.pid = line.pid if g.get("pid") is None else int(found["pid"])
        line.device = line.device if g.get("dev") is None else int(found["dev"])
        line.uptime_s = line.uptime_s if g.get("uptime") is None else float(found["uptime"])
        line.kernel = line.kernel or g.get("who") == "kernel"
        return True

    @staticmethod
    def _structured(line: Line) -> None:
        """A line of a structured logger: who wrote it stands in fields of its own."""
        for found in _FIELD.finditer(line.body[:4096]):
            if found["host"]:
                line.host = line.host or found["host"]
            elif found["key"] in ("rank", "global_rank"):
                line.rank = int(found["n"]) if line.rank is None else line.rank
            elif found["key"] == "local_rank":
                line.local_rank = int(found["n"])
            elif line.pid is None:
                line.pid = int(found["n"])

    @staticmethod
    def _guess_rank(line: Line) -> None:
        named = _RANK_TEXT.search(line.body[:80]) if line.device is None else None
        found = _TORCH_RANK.search(line.body[:200]) or named
        if found:
            line.rank = int(found["rank"])
