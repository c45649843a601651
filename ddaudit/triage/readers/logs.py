"""Text logs: every line that the catalogue or a reader of multi-line forms wants, turned into facts."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddaudit.evidence.incident import Collective, Event, Progress, Raised, RankNote
from ddaudit.triage.catalogue import Matcher, Signature
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.endings import SRUN_CODES, ended
from ddaudit.triage.readers.lines import Line, LineReader
from ddaudit.triage.readers.nvidia import bdf
from ddaudit.triage.readers.scan import Hit
from ddaudit.triage.readers.slurm import expand_numbers
from ddaudit.triage.readers.stamps import Calendar
from ddaudit.triage.readers.tracebacks import FINAL, follow

__all__ = ["EXTRA", "LogReader"]

_NCCL_INIT = re.compile(
    r"\brank (?P<rank>\d+) nranks (?P<n>\d+)(?: cudaDev (?P<dev>\d+))?(?: nvmlDev \d+)?(?: busId (?P<bus>[0-9a-fA-F:.]+))?"
)
_BANNER = re.compile(r"^\s+(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: ?(?P<value>.*)$")
_BANNER_RANK = re.compile(r"(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_BANNER_EXIT = re.compile(r"(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_COLL_FRAME = re.compile(r"#\d+ (?P<func>\S+) from (?P<where>\S+)")
_GUID = re.compile(r"PG GUID (?P<guid>[^\]\s]+)")
_VERSION = re.compile(
    r"\bNCCL version (?P<nccl>\d+\.\d+(?:\.\d+)*(?:\+\w+)?)|\btorch(?:==|=|[ :]+(?:version[ :]*)?)(?P<torch>\d+\.\d+[\w.+]*)"
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
    r"(?i)batches|len\(|samples|exhausted|StopIteration|no more|epoch\b.{0,20}\b(?:done|finished|end|over|complete)|(?:end of|finished|completed|done with) epoch"
)
_NODES = re.compile(r"(?i)(?:SLURM_(?:JOB_|STEP_)?NODELIST|NodeList|\bnodes)[=:]\s*['\"]?(?P<list>[a-z][\w.,\[\]-]+)")
_DONE = re.compile(
    r"(?i)training (?:completed|complete|finished|done|ended)|training is (?:complete|done|finished)|train_runtime|after training is done"
    r"|`Trainer\.fit` stopped: `max_|exiting program at iteration|finished training|job (?:completed|finished) success|all epochs (?:done|completed)"
)
_HANDLED = re.compile(
    r"(?i)(?<!Watchdog )\b(?:caught|retry|retrying|retries|skipping|skipped|ignoring|ignored|recovered|falling back|fallback|handled|suppressed|attempt \d)\b|Warning:"
)
_SRUN = re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")

EXTRA = (
    "Traceback (most recent call last)", "Error: ", "Exception: ", "Exception in thread", "terminated with the following error", " nranks ", "exitcode  : ", "  host      : ",
    "  rank      : ", "  time      : ", "Stack trace of the failed collective: ", "NCCL version ", "torch=", "torch version", "torch: ",
    "image", "hostname", "Hostname", "host=", "host:", "node=", "on host ", "GLOBAL_RANK", "world_size", "WORLD_SIZE", "world size",
    "raining ", "train_runtime", "Trainer.fit", "exiting program", " per rank", " per-rank", "CANCELLED AT", "KeyboardInterrupt",
    "StopIteration", "success", "NET/IB : Using", "batches", "len(", "samples", "exhausted",
    "finished epoch", "epoch done", "nd of epoch", "epoch end", "no more ", "Epoch ", "NODELIST", "NodeList", "nodelist", "Nodes:", "nodes:",
)  # fmt: skip


class LogReader:
    """Turns the hits of one file into facts. ``task`` labels stay in ``local_rank``-less lines until the file's end."""

    def __init__(self, name: str, reader: LineReader, matcher: Matcher, into: Gathered, rank: int | None) -> None:
        self.name, self.reader, self.matcher, self.into, self.rank = name, reader, matcher, into, rank
        self.events: list[tuple[Event, int | None]] = []
        self.raised: list[tuple[Raised, int | None]] = []
        self.consumed: set[int] = set()
        self.banner: dict[str, str] = {}
        self.ranks_seen: set[int] = set()
        self.tasks: dict[int, set[int]] = {}
        self.task_hosts: dict[int, str] = {}
        self.slurm_clock: list[tuple[int, float]] = []
        self.log_clock: list[tuple[int, float]] = []
        self.thread: tuple[int, str] | None = None
        self.spawned: tuple[int, int] | None = None
        self.task_is_rank = True
        self.task_exits: list[tuple[int, str, int | None, Line]] = []
        self._extras: dict[int, Callable[[Line, Hit], None]] = {}
        for index, literal in enumerate(matcher.literals):
            if literal in EXTRA:
                self._extras[index] = self._handler(literal)

    def _handler(self, literal: str) -> Callable[[Line, Hit], None]:
        if literal.startswith("Traceback"):
            return self._traceback
        if literal in ("Error: ", "Exception: ", "KeyboardInterrupt", "StopIteration"):
            return self._bare
        if literal.startswith("terminated with"):
            return self._spawned
        if literal == "Exception in thread":
            return self._in_thread
        if literal == " nranks ":
            return self._nccl_init
        if (literal.strip().endswith(":") and literal.startswith("  ")) or literal.startswith("exitcode"):
            return self._banner
        if literal == "CANCELLED AT":
            return self._cancelled
        if literal.startswith("Stack trace"):
            return self._collective_stack
        if literal in ("raining ", "train_runtime", "Trainer.fit", "exiting program", "success"):
            return self._finished
        if literal in (
            "batches",
            "len(",
            "samples",
            "exhausted",
            "finished epoch",
            "epoch done",
            "nd of epoch",
            "epoch end",
            "no more ",
            "Epoch ",
        ):
            return self._note
        return self._facts

    def take(self, hit: Hit) -> Line:
        """Reads one hit: signatures first, then the forms that span lines."""
        line = self.reader.read(hit.number, hit.raw)
        if line.rank is None and line.task is None and self.rank is not None and not line.kernel:
            line.rank = self.rank
        self._notice(line)
        matched: set[str] = set()
        for literal in hit.literals:
            for signature in self.matcher.owners[literal]:
                if signature.id not in matched and (found := signature.regex.search(line.text)):
                    matched.add(signature.id)
                    self._event(signature, found, line)
        for handler in dict.fromkeys(self._extras[i] for i in sorted(hit.literals) if i in self._extras):
            handler(line, hit)
        return line

    def _notice(self, line: Line) -> None:
        """Keeps who appears in this file, and which srun label stands before which rank and host."""
        if line.rank is not None:
            self.ranks_seen.add(line.rank)
            if line.task is not None:
                self.tasks.setdefault(line.task, set()).add(line.rank)
        if line.device is not None and line.host:
            self.into.see_host(line.host)
            if line.task is not None:
                self.task_hosts.setdefault(line.task, line.host)
            if line.rank is not None:
                self.into.know(line.rank, host=line.host, pid=line.pid)
        elif line.kernel and line.host:
            self.into.see_host(line.host)
        if line.stamp is not None and not line.kernel and "CANCELLED AT" not in line.text:
            self.log_clock.append((line.number, line.stamp.time_s))

    def _event(self, signature: Signature, found: re.Match[str], line: Line) -> None:
        fields = {k: v for k, v in found.groupdict().items() if v is not None}
        job = fields.get("job") or fields.get("job2") or fields.get("job3")
        if line.uptime_s is not None:
            fields["uptime"] = str(line.uptime_s)
        pid = int(fields["pid"]) if fields.get("pid", "").isdigit() else line.pid
        kernel = line.kernel or signature.layer == "kernel"
        event = Event(
            signature.id, signature.cause, signature.role, signature.layer, spot(self.name, line.number, line.text), line.stamp,
            line.host, line.rank, line.local_rank, pid, job, kernel,
            signature.layer in ("app", "nccl", "torch") and bool(_HANDLED.search(line.body)), fields,
        )  # fmt: skip
        self.events.append((event, line.task))
        if signature.id == "pg-timeout" and line.rank is not None:
            self._watchdog(line, fields)
        elif signature.id == "pg-status" and line.rank is not None:
            where = spot(self.name, line.number, line.text)
            self.into.progress.append(
                Progress(line.rank, _group(line.text), int(fields["enq"]), int(fields["done"]), where)
            )
        elif signature.id in ("mpi-exit", "ds-exit", "spawn-signal"):
            ended(signature.id, fields, event.spot, line.host, self.into)
        elif signature.id in ("sl-exitcode", "srun-oom"):
            self._srun(line)
        elif fields.get("peer") and signature.layer in ("nccl", "scheduler"):
            self.into.see_host(fields["peer"], 0)
        elif signature.id == "nccl-bootstrap-if" and line.host:
            self.into.addresses.setdefault(fields["ip"], line.host)
            self.into.version("interface", line.host, fields["iface"], event.spot)

    def _watchdog(self, line: Line, fields: dict[str, str]) -> None:
        if any(
            c.rank == line.rank and c.seq == int(fields["seq"]) and c.spot.file == self.name
            for c in self.into.collectives[-64:]
        ):
            return
        numel_in, numel_out = (int(fields[k]) if fields.get(k, "").isdigit() else None for k in ("nin", "nout"))
        assert line.rank is not None
        self.into.collectives.append(
            Collective(
                line.rank, _group(line.text), int(fields["seq"]), fields["op"], numel_in, numel_out, "", "timeout",
                spot(self.name, line.number, line.text), (), line.stamp, float(fields["ran"]),
            )
        )  # fmt: skip

    def _cancelled(self, line: Line, hit: Hit) -> None:
        """Slurm's clock in the job's own log: beside the job's stamps it fixes the offset of the two."""
        found = re.search(r"CANCELLED AT (\S+)", line.body)
        if found and (stamp := Calendar(self.reader.calendar.year).read(found[1])):
            self.slurm_clock.append((line.number, stamp.time_s))

    def _srun(self, line: Line) -> None:
        if (found := _SRUN.search(line.body)) is None:
            return
        how = next((code for words, code in SRUN_CODES.items() if found["how"].startswith(words)), None)
        exited = re.search(r"exit code (\d+)", found["how"])
        code = int(exited[1]) if exited else how
        for task in expand_numbers(found["tasks"]):
            self.task_hosts.setdefault(task, found["host"])
            self.tasks.setdefault(task, set())
            self.task_exits.append((task, found["host"], code, line))

    def _traceback(self, line: Line, hit: Hit) -> None:
        traceback = follow(line, hit, self.reader)
        if (
            traceback is None
            or line.number in self.consumed
            or ("exitcode" in self.banner and line.text.startswith("  traceback"))
        ):
            return
        self.consumed |= traceback.lines
        final = traceback.final
        thread = self.thread[1] if self.thread and 0 < line.number - self.thread[0] <= 2 else None
        rank = final.rank if final.rank is not None else line.rank if line.rank is not None else self.rank
        if rank is None and self.spawned and 0 < line.number - self.spawned[0] <= 2:
            rank = self.spawned[1]
        frames = tuple(reversed(traceback.frames))
        self._raise(traceback.kind, traceback.message, final, rank, frames, thread)

    def _bare(self, line: Line, hit: Hit) -> None:
        if line.number in self.consumed or line.kernel or (found := FINAL.match(line.body)) is None:
            return
        self.consumed.add(line.number)
        self._raise(found["kind"], found["message"] or "", line, line.rank, (), None)

    def _raise(
        self, kind: str, message: str, line: Line, rank: int | None, frames: tuple[str, ...], thread: str | None
    ) -> None:
        where = spot(self.name, line.number, line.text)
        host = line.host
        self.raised.append((Raised(kind, message, where, rank, host, line.stamp, frames, thread), line.task))

    def _in_thread(self, line: Line, hit: Hit) -> None:
        if found := re.search(r"Exception in thread (?P<name>[^:]+)", line.body):
            self.thread = (line.number, found["name"])

    def _spawned(self, line: Line, hit: Hit) -> None:
        if found := re.search(r"-- Process (\d+) terminated with the following error", line.body):
            self.spawned = (line.number, int(found[1]))

    def _nccl_init(self, line: Line, hit: Hit) -> None:
        if found := _NCCL_INIT.search(line.body):
            rank = int(found["rank"])
            index = int(found["dev"]) if found["dev"] else None
            self.into.world_sizes[int(found["n"])] += 1
            self.ranks_seen.add(rank)
            self.into.know(
                rank, host=line.host, pid=line.pid, gpu=bdf(found["bus"]), gpu_index=index, local_rank=line.local_rank
            )
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
                self.into.know(int(named["rank"]), pid=int(ended["pid"]), exit_code=int(ended["code"]), exit_spot=where)

    def _collective_stack(self, line: Line, hit: Hit) -> None:
        frames, spots = [], []
        for number, raw in hit.following(12):
            text = self.reader.read(number, raw)
            if not (found := _COLL_FRAME.match(text.body)):
                break
            frames.append(f"{found['func']} ({found['where']})")
            spots.append(spot(self.name, number, text.text))
        for index in range(len(self.into.collectives) - 1, -1, -1):
            last = self.into.collectives[index]
            if last.rank == line.rank and last.spot.file == self.name and frames:
                self.into.collectives[index] = Collective(
                    last.rank, last.group, last.seq, last.op, last.numel_in, last.numel_out, last.dtype, last.state, last.spot,
                    tuple(frames), last.stamp, last.ran_ms, tuple(spots),
                )  # fmt: skip
                return

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


def _group(text: str) -> str:
    found = _GUID.search(text)
    return found["guid"] if found else ""
