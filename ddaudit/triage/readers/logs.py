"""Text logs: every line that the catalogue or a reader of multi-line forms wants, turned into facts."""

from __future__ import annotations

import re

from ddaudit.evidence.incident import Collective, Event, Progress, Raised
from ddaudit.triage.catalogue import Matcher, Signature
from ddaudit.triage.readers.collect import Gathered, spot
from ddaudit.triage.readers.endings import SRUN_CODES, ended
from ddaudit.triage.readers.lines import Line, LineReader
from ddaudit.triage.readers.places import Places
from ddaudit.triage.readers.scan import Hit
from ddaudit.triage.readers.slurm import expand_numbers
from ddaudit.triage.readers.stamps import Calendar
from ddaudit.triage.readers.tracebacks import FINAL, follow

__all__ = ["EXTRA", "LogReader"]

_COLL_FRAME = re.compile(r"#\d+ (?P<func>\S+) from (?P<where>\S+)")
_GUID = re.compile(r"PG GUID (?P<guid>[^\]\s]+)")
_HANDLED = re.compile(
    r"(?i)(?<!Watchdog )\b(?:caught|retry|retrying|retries|skipping|skipped|ignoring|ignored|recovered"
    r"|falling back|fallback|handled|suppressed|attempt \d)\b|Warning:"
)
_SRUN = re.compile(r"srun: error: (?P<host>[\w.-]+): tasks? (?P<tasks>[\d,-]+): (?P<how>.+)$")

#: Literals that a reader of longer forms wants, and the method that reads them.
EXTRA: dict[str, str] = {
    literal: method
    for method, literals in {
        "_traceback": ("Traceback (most recent call last)",),
        "_bare": ("Error: ", "Exception: ", "KeyboardInterrupt", "StopIteration"),
        "_in_thread": ("Exception in thread",),
        "_spawned": ("terminated with the following error",),
        "_nccl_init": (" nranks ",),
        "_banner": ("exitcode  : ", "  host      : ", "  rank      : ", "  time      : "),
        "_collective_stack": ("Stack trace of the failed collective: ",),
        "_cancelled": ("CANCELLED AT",),
        "_finished": ("raining ", "train_runtime", "Trainer.fit", "exiting program", "success"),
        "_note": (
            "batches",
            "len(",
            "samples",
            "exhausted",
            "epoch done",
            "nd of epoch",
            "epoch end",
            "no more ",
            "Epoch ",
        ),
        "_facts": (
            *("NCCL version ", "torch=", "torch version", "torch: ", "image ", "image=", "image:", "NET/IB : Using"),
            *("hostname", "Hostname", "host=", "host:", "node=", "on host ", "GLOBAL_RANK"),
            *("world_size", "WORLD_SIZE", "world size", "NODELIST", "NodeList", "nodelist", "Nodes:", "nodes:"),
        ),
    }.items()
    for literal in literals
}


class LogReader(Places):
    """Turns the hits of one file into facts. ``task`` labels stay in ``local_rank``-less lines until the file's end."""

    def __init__(self, name: str, reader: LineReader, matcher: Matcher, into: Gathered, rank: int | None) -> None:
        super().__init__(name, into, rank)
        self.reader, self.matcher = reader, matcher
        self.events: list[tuple[Event, int | None]] = []
        self.raised: list[tuple[Raised, int | None]] = []
        self.consumed: set[int] = set()
        self.task_hosts: dict[int, str] = {}
        self.slurm_clock: list[tuple[int, float]] = []
        self.log_clock: list[tuple[int, float]] = []
        self.thread: tuple[int, str] | None = None
        self.spawned: tuple[int, int] | None = None
        self.task_is_rank = True
        self.task_exits: list[tuple[int, str, int | None, Line]] = []

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
        wanted = (EXTRA.get(self.matcher.literals[i]) for i in sorted(hit.literals))
        for method in dict.fromkeys(name for name in wanted if name is not None):
            getattr(self, method)(line, hit)
        return line

    def forget(self) -> None:
        """Drops what happened according to this file; the names of places that it gave stay."""
        self.events.clear()
        self.raised.clear()

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
                self.into.know(line.rank, host=line.host)
                self.into.runs_as(line.rank, line.pid, self.name)
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
            signature.id,
            signature.cause,
            signature.role,
            signature.layer,
            spot(self.name, line.number, line.text),
            line.stamp,
            line.host,
            line.rank,
            line.local_rank,
            pid,
            job,
            kernel,
            signature.layer in ("app", "nccl", "torch") and bool(_HANDLED.search(line.body)),
            fields,
        )
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
                line.rank,
                _group(line.text),
                int(fields["seq"]),
                fields["op"],
                numel_in,
                numel_out,
                "",
                "timeout",
                spot(self.name, line.number, line.text),
                (),
                line.stamp,
                float(fields["ran"]),
            )
        )

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
                    last.rank,
                    last.group,
                    last.seq,
                    last.op,
                    last.numel_in,
                    last.numel_out,
                    last.dtype,
                    last.state,
                    last.spot,
                    tuple(frames),
                    last.stamp,
                    last.ran_ms,
                    tuple(spots),
                )
                return


def _group(text: str) -> str:
    found = _GUID.search(text)
    return found["guid"] if found else ""
