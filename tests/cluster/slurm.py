"""A real Slurm of several nodes on this machine, from Debian's packages, without systemd, accounting or cgroups.

Needs root and the packages slurmctld, slurmd, slurm-client and munge. Every daemon runs in the foreground and dies
with the test process.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ddaudit.launch.process import stat_fields

__all__ = ["Cluster", "cluster", "missing"]

CONF = """\
ClusterName=ddaudit
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={base}/munge.sock
CryptoType=crypto/munge
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmctldPidFile={base}/slurmctld.pid
SlurmdPidFile={base}/slurmd.%n.pid
SlurmdSpoolDir={base}/spool.%n
StateSaveLocation={base}/state
SlurmctldLogFile={base}/slurmctld.log
SlurmdLogFile={base}/slurmd.%n.log
SlurmctldPort={port}
SlurmdTimeout=30
MinJobAge=3600
KillWait=30
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={base}/jobcomp.txt
NodeName=n[1-{nodes}] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 State=UNKNOWN
PartitionName=debug Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> str | None:
    """Why there can be no Slurm here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    absent = [p for p in ("slurmctld", "slurmd", "sbatch", "munged", "setpriv") if shutil.which(p) is None]
    return f"needs {', '.join(absent)}" if absent else None


def free_ports(count: int) -> int:
    """The first of ``count`` free ports in a row, below the kernel's ephemeral ones."""
    for first in range(21_000 + os.getpid() % 5_000, 32_000, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


class Cluster:
    def __init__(self, base: Path, nodes: int) -> None:
        self.base, self.nodes = base, nodes
        self.env = {"SLURM_CONF": str(base / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def begin(self) -> None:
        (self.base / "state").mkdir(parents=True)
        key = self.base / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        port = free_ports(self.nodes + 1)
        text = CONF.format(base=self.base, nodes=self.nodes, port=port, first=port + 1, last=port + self.nodes)
        (self.base / "slurm.conf").write_text(text)
        names = ["socket=munge.sock", "key-file=munge.key", "pid-file=munge.pid", "log-file=munge.log"]
        options = [
            f"--{n.partition('=')[0]}={self.base / n.partition('=')[2]}" for n in (*names, "seed-file=munge.seed")
        ]
        self.start("munged", "munged", "--foreground", "--force", *options)
        self.wait(lambda: (self.base / "munge.sock").exists())
        self.start("slurmctld", "slurmctld", "-D", "-c", "-f", self.env["SLURM_CONF"])
        for number in range(1, self.nodes + 1):
            self.start_node(number)
        self.wait(lambda: self.ask("sinfo", "-h", "-N", "-o", "%T").split().count("idle") == self.nodes)

    def start(self, name: str, *argv: str) -> None:
        """A daemon that the kernel kills when this process ends."""
        log = (self.base / f"{name}.out").open("ab")
        with log:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv], stdout=log, stderr=log, env={**os.environ, **self.env}
            )

    def start_node(self, number: int) -> None:
        (self.base / f"spool.n{number}").mkdir(exist_ok=True)
        self.start(f"n{number}", "slurmd", "-D", "-N", f"n{number}", "-f", self.env["SLURM_CONF"])

    def kill_node(self, number: int) -> None:
        """The node's daemon dies, with every process of jobs on it, and the controller is told."""
        daemon = self.daemons.pop(f"n{number}")
        daemon.kill()
        daemon.wait()
        for line in self.strays(f"SLURMD_NODENAME=n{number}"):
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)
        self.run("scontrol", "update", f"nodename=n{number}", "state=down", "reason=test")

    @staticmethod
    def wait(what: object, limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while not what():  # type: ignore[operator]
            assert time.monotonic() < until, "Slurm did not get there"
            time.sleep(0.05)

    def ask(self, *argv: str) -> str:
        done = subprocess.run(argv, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60)
        return done.stdout

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, *argv: str) -> str:
        return self.run("sbatch", "--parsable", "-o", "/dev/null", *argv).partition(";")[0]

    def record(self, job: str) -> str:
        return self.ask("scontrol", "-o", "show", "job", job)

    def state(self, job: str) -> str:
        return self.record(job).partition("JobState=")[2].partition(" ")[0]

    def strays(self, also: str = "") -> list[str]:
        """Living processes whose environment says that they belong to a job of this cluster (and has ``also``)."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or (stat_fields(int(entry.name)) or ["Z"])[0] == "Z":
                continue
            with suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                ours = f"SLURM_CONF={self.env['SLURM_CONF']}".encode()
                if (
                    ours in words
                    and (not also or also.encode() in words)
                    and any(w.startswith(b"SLURM_JOB_ID=") for w in words)
                ):
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()[:80]!r}")
        return found

    def end(self) -> None:
        with suppress(subprocess.SubprocessError, OSError):
            self.ask("scancel", "--full", "-s", "KILL", "-u", "root")
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        for line in self.strays():
            with suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


@contextmanager
def cluster(base: Path, nodes: int = 4) -> Iterator[Cluster]:
    made = Cluster(base, nodes)
    try:
        made.begin()
        yield made
    finally:
        made.end()
