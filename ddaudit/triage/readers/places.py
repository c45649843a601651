"""What a job says about itself: who runs where, with which versions, how it ended, how many batches it has."""

from __future__ import annotations

import re

from ddaudit.evidence.incident import RankNote
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.lines import Line
from ddaudit.triage.readers.nvidia import bdf
from ddaudit.triage.readers.scan import Hit

__all__ = ["Places"]

_NCCL_INIT = re.compile(
    r"\brank (?P<rank>\d+) nranks (?P<n>\d+)(?: cudaDev (?P<dev>\d+))?(?: nvmlDev \d+)?"
    r"(?: busId (?P<bus>[0-9a-fA-F:.]+))?"
)
_BANNER = re.compile(r"^\s+(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_BANNER_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_BANNER_EXIT = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_VERSION = re.compile(
    r"\bNCCL version (?P<nccl>\d+\.\d+(?:\.\d+)*(?:\+\w+)?)|\btorch(?:==|="
    r"|[ :]+(?:version[ :]*)?)(?P<torch>\d+\.\d+[\w.+]*)"
)
_IMAGE = re.compile(r"(?i)\bimage[ :=]+['\"]?(?P<image>[\w./-]+[:@][\w.:@-]+)")
_PLACE = re.compile(r"(?i)\b(?:host(?:name)?|node(?:name)?)[ =:'\"]{1,3}(?P<host>[A-Za-z][\w.-]*\d[\w.-]*)")
_ON_HOST = re.compile(
    r"(?i)\brank[ =:]*(?P<rank>\d+)\b.{0,40}?\b(?:on|@|host[=: ]+|node[=: ]+)\s*(?P<host>[A-Za-z][\w.-]*\d[\w.-]*)"
)
_PID = re.compile(r"(?i)\bpid[ =:]+(?P<pid>\d+)")
_MEMBER = re.compile(r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<n>\d+)")
_WORLD = re.compile(r"(?i)\bworld[_ -]?size['\"]?[ =:]+(?P<n>\d+)")
_BATCH_NOTE = re.compile(
    r"(?i)batches|len\(|samples|exhausted|StopIteration|no more|epoch\b.{0,20}\b(?:done|finished|end|over"
    r"|complete)|(?:end of|finished|completed|done with) epoch"
)
_NODES = re.compile(r"(?i)(?:SLURM_(?:JOB_|STEP_)?NODELIST|NodeList|\bnodes)[=:]\s*['\"]?(?P<list>[a-z][\w.,\[\]-]+)")
_DONE = re.compile(
    r"(?i)training (?:completed|complete|finished|done|ended)|training is (?:complete|done|finished)"
    r"|train_runtime|after training is done"
    r"|`Trainer\.fit` stopped: `max_|exiting program at iteration|finished training|job (?:completed"
    r"|finished) success|all epochs (?:done|completed)"
)


class Places:
    """Learns places, versions and endings from the lines of one file."""

    def __init__(self, name: str, into: Gathered, rank: int | None) -> None:
        self.name, self.into, self.rank = name, into, rank
        self.banner: dict[str, str] = {}
        self.ranks_seen: set[int] = set()
        self.tasks: dict[int, set[int]] = {}

    def _nccl_init(self, line: Line, hit: Hit) -> None:
        if found := _NCCL_INIT.search(line.body):
            rank = int(found["rank"])
            index = int(found["dev"]) if found["dev"] else None
            self.into.world_sizes[int(found["n"])] += 1
            self.ranks_seen.add(rank)
            self.into.know(rank, host=line.host, gpu=bdf(found["bus"]), gpu_index=index, local_rank=line.local_rank)
            self.into.runs_as(rank, line.pid, self.name)
            if line.task is not None:
                self.tasks.setdefault(line.task, set()).add(rank)

    def _banner(self, line: Line, hit: Hit) -> None:
        if (found := _BANNER.match(line.body)) is None:
            return
        self.banner[found["key"]] = found["value"].strip()
        if found["key"] == "rank" and (named := _BANNER_RANK.search(found["value"])):
            host = self.banner.get("host")
            self.into.know(int(named["rank"]), host=host, local_rank=int(named["local"]))
        if found["key"] == "exitcode" and (ended := _BANNER_EXIT.search(found["value"])):
            named = _BANNER_RANK.search(self.banner.get("rank", ""))
            if named:
                where = spot(self.name, line.number, line.text)
                self.into.know(int(named["rank"]), exit_code=int(ended["code"]), exit_spot=where)
                self.into.runs_as(int(named["rank"]), int(ended["pid"]), self.name)

    def _finished(self, line: Line, hit: Hit) -> None:
        if _DONE.search(line.body) and not re.search(r"(?i)\bnot\b|fail|error", line.body):
            self.into.finished = spot(self.name, line.number, line.text)

    def _note(self, line: Line, hit: Hit) -> None:
        wanted = _BATCH_NOTE.search(line.body) is not None
        if (
            wanted
            and not line.kernel
            and (line.rank is not None or line.task is not None or line.local_rank is not None or self.rank is not None)
        ):
            note = RankNote(line.rank, line.body[:200], spot(self.name, line.number, line.text))
            self.into.rank_notes.append((note, line.task if line.task is not None else line.local_rank, self.name))

    def _facts(self, line: Line, hit: Hit) -> None:
        where = spot(self.name, line.number, line.text)
        place = _PLACE.search(line.body)
        host = line.host or (place["host"] if place else None)
        if place:
            self.into.mentioned.add(place["host"])
        if found := _VERSION.search(line.body):
            what = "nccl" if found["nccl"] else "torch"
            self.into.version(what, host or self.name, found["nccl"] or found["torch"], where)
        if found := _IMAGE.search(line.body):
            self.into.version("image", host or self.name, found["image"], where)
        if found := _NODES.search(line.body):
            self.into.node_lists.append(found["list"])
        if "NET/IB : Using" in line.body:
            self.into.adapters |= set(re.findall(r"\](\w+):\d+/", line.body))
        if found := _MEMBER.search(line.body):
            self.into.world_sizes[int(found["n"])] += 1
            self.ranks_seen.add(int(found["rank"]))
        if (found := _WORLD.search(line.body)) and 0 < int(found["n"]) < 1_000_000:
            self.into.world_sizes[int(found["n"])] += 1
        if found := _ON_HOST.search(line.body):
            pid = _PID.search(line.body)
            self.into.know(int(found["rank"]), host=found["host"], pid=int(pid["pid"]) if pid else None)
        elif place and line.rank is not None and not line.kernel:
            pid = _PID.search(line.body)
            self.into.know(line.rank, host=place["host"], pid=int(pid["pid"]) if pid else None)
