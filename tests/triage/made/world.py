"""A made-up job: ranks on hosts, and the writers of the lines that such a job leaves behind."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

STYLES = ("srun", "torchrun", "default", "k8s", "mpirun", "perrank")
FRAMEWORKS = ("megatron", "hf", "titan", "plain", "json", "lightning", "deepspeed")
FORMS = ("iso", "dash-t", "syslog", "rsyslog", "journal")

NOISE = (
    "docker0: port 2(veth91c0d1e) entered blocking state",
    "hrtimer: interrupt took 12004 ns",
    "IPv6: ADDRCONF(NETDEV_CHANGE): vethb1e2: link becomes ready",
    "perf: interrupt took too long (3141 > 3126), lowering kernel.perf_event_max_sample_rate to 63500",
    "mce: CPU71: Core temperature/speed normal",
    "usb 1-14: new low-speed USB device number 5 using xhci_hcd",
)


@dataclass
class World:
    """One job and its files. ``zone_h`` is what the job's clock is ahead of the hosts'."""

    seed: int
    hosts: int = 2
    per_host: int = 4
    zone_h: int = 0
    style: str = ""
    framework: str = ""
    form: str = ""
    files: dict[str, str | bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.style = self.style or self.rng.choice(STYLES)
        self.framework = self.framework or self.rng.choice(FRAMEWORKS)
        self.form = self.form or self.rng.choice(FORMS)
        stem = self.rng.choice(("gn-b", "node", "hpc-r07-n", "dgx-", "ip-10-0-7-", "worker-"))
        first = self.rng.randrange(2, 80)
        self.names = [f"{stem}{first + i:02d}" for i in range(self.hosts)]
        self.t0 = datetime(
            2026, self.rng.randrange(1, 12), self.rng.randrange(2, 27), self.rng.randrange(1, 22), 5, 0, tzinfo=UTC
        )
        self.base = self.rng.randrange(20000, 60000)
        self.job = str(self.rng.randrange(10000, 990000))
        self.buses = ["18", "3a", "5d", "9a", "ab", "ba", "db", "e4"]

    @property
    def n(self) -> int:
        return self.hosts * self.per_host

    def host(self, rank: int) -> str:
        return self.names[rank // self.per_host]

    def pid(self, rank: int) -> int:
        return self.base + 7 * rank

    def bus(self, rank: int) -> str:
        return self.buses[rank % self.per_host]

    def at(self, s: float) -> datetime:
        """Job time, ``s`` seconds after the start of the log."""
        return self.t0 + timedelta(seconds=s)

    # --- the job's own output ---

    def say(self, rank: int | None, text: str, s: float = 0.0) -> None:
        """Adds output of a rank (None: of the launcher) as the launcher of this style would print it."""
        for line in text.split("\n"):
            name, label = self._place(rank, s)
            self.files[name] = str(self.files.get(name, "")) + label + line + "\n"

    def _place(self, rank: int | None, s: float) -> tuple[str, str]:
        if self.style == "perrank" and rank is not None:
            return f"logs/rank_{rank:02d}.log", ""
        if self.style == "srun":
            return f"slurm-{self.job}.out", f"{rank}: " if rank is not None else ""
        if self.style == "default" and rank is not None:
            local = rank % self.per_host
            name = f"torchrun-{self.host(rank)}.log" if self.hosts > 1 else "torchrun.log"
            return name, f"[default{local}]:"
        if self.style == "default":
            return f"torchrun-{self.names[0]}.log" if self.hosts > 1 else "torchrun.log", ""
        if self.style == "k8s":
            host = self.host(rank) if rank is not None else self.names[0]
            return f"kubectl-logs-{host}.txt", self.at(s).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z "
        if self.style == "mpirun":
            return f"job.{self.job}.log", f"[1,{rank}]<stderr>:" if rank is not None else ""
        return "launcher.log" if self.style == "perrank" else "train.log", ""

    def tag(self, rank: int) -> str:
        return f"[rank{rank}]: "

    def nccl(self, rank: int, text: str, s: float = 0.0) -> None:
        local = rank % self.per_host
        self.say(rank, f"{self.host(rank)}:{self.pid(rank)}:{self.pid(rank) + 800} [{local}] {text}", s)

    def init(
        self, iface: str = "bond0", odd: dict[int, tuple[str, str]] | None = None, version: str = "2.27.7+cuda12.8"
    ) -> None:
        """NCCL's start-up lines of all ranks."""
        for rank in range(self.n):
            name, ip = (odd or {}).get(rank, (iface, f"10.41.6.{11 + rank // self.per_host}"))
            self.nccl(rank, f"NCCL INFO Bootstrap: Using {name}:{ip}<0>")
            if rank == 0:
                self.say(rank, f"NCCL version {version}")
            self.nccl(rank, "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.")
            self.nccl(rank, f"NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB {name}:{ip}<0>")
            local, bus = rank % self.per_host, self.bus(rank)
            head = f"NCCL INFO ncclCommInitRankConfig comm 0x0{rank}ad rank {rank} nranks {self.n} cudaDev {local} nvmlDev {local} busId {bus}000 commId 0x5ae7 - Init"
            self.nccl(rank, head + " START")
            self.nccl(rank, head + " COMPLETE")

    def steps(
        self,
        count: int = 20,
        every_s: float = 10.0,
        start_s: float = 0.0,
        first: int = 100,
        loss: float = 2.5,
        all_ranks: bool = False,
    ) -> float:
        """Progress lines; returns the time of the last."""
        s = start_s
        for i in range(count):
            s = start_s + i * every_s
            for rank in range(self.n) if all_ranks or self.style == "perrank" else (0,):
                self.say(rank, self.step_line(first + i, loss - 0.001 * i, s, rank), s)
        return s

    def step_line(self, step: int, loss: float, s: float, rank: int = 0) -> str:
        t = self.at(s)
        date = t.strftime("%Y-%m-%d %H:%M:%S")
        if self.framework == "megatron":
            return f" [{date}.110] iteration {step:8d}/ 300000 | consumed samples: 42188800 | elapsed time per iteration (ms): 3011.0 | learning rate: 2.3E-05 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.190 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        if self.framework == "hf":
            return str({"loss": round(loss, 4), "grad_norm": 0.71, "learning_rate": 1.9e-05, "epoch": 1.02})
        if self.framework == "titan":
            return f"[titan] {date},118 - root - INFO - step: {step}  loss:  {loss:.4f}  grad_norm:  0.4422  memory: 61.87GiB(78.12%)  tps: 7,118  mfu: 38.67%"
        if self.framework == "json":
            return json.dumps(
                {
                    "ts": t.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "rank": rank,
                    "step": step,
                    "loss": round(loss, 4),
                    "tok_s": 41022,
                }
            )
        if self.framework == "lightning":
            return (
                f"Epoch 3:  40%|████▏     | {step}/20000 [5:10:44<7:40:12,  2.31s/it, v_num=ab1, train_loss={loss:.3f}]"
            )
        if self.framework == "deepspeed":
            return f"[{date},311] [INFO] [logging.py:107:log_dist] [Rank 0] step={step}, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)] loss={loss:.4f}"
        return f"[{date}] step {step} loss {loss:.3f} dt 6.00s"

    def traceback(
        self,
        rank: int,
        final: str,
        frames: str = "train.py:101:main trainer.py:88:train_step",
        s: float = 300.0,
        tagged: bool = True,
    ) -> None:
        """A traceback as torch's hook prints it on every rank."""
        tag = self.tag(rank) if tagged else ""
        lines = [f"{tag}Traceback (most recent call last):"]
        for frame in frames.split():
            file, line, func = frame.rsplit(":", 2)
            path = file if file.startswith("/") else f"/workspace/{file}"
            lines += [f'{tag}  File "{path}", line {line}, in {func}', f"{tag}    {func}(batch)"]
        lines += [tag + part for part in final.split("\n")]
        self.say(rank, "\n".join(lines), s)

    def glog(self, s: float) -> str:
        t = self.at(s)
        return f"{t.month}{t.day:02d} {t.strftime('%H:%M:%S')}.{self.rng.randrange(10**8, 10**9)}"

    def watchdog(
        self,
        rank: int,
        seq: int,
        op: str = "ALLREDUCE",
        numel: int = 52428800,
        s: float = 900.0,
        enqueued: int | None = None,
        group: str = "0(default_pg)",
    ) -> None:
        """The time-out that a waiting rank reports."""
        head = f"[rank{rank}]:[E{self.glog(s)} ProcessGroupNCCL.cpp:"
        pg = f"[PG ID 0 PG GUID {group} Rank {rank}]"
        out = [
            f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600049 milliseconds before timing out.",
            f"{head}2271] {pg}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued or seq + 5}, last completed work: {seq - 1}",
            f"{head}670] Stack trace of the failed collective not found, potentially because FlightRecorder is disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.",
            f"{head}684] [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
            f"{head}698] [Rank {rank}] To avoid data inconsistency, we are taking the entire process down.",
        ]
        self.say(rank, "\n".join(out), s)

    def behind(self, rank: int, seq: int, s: float = 901.0, first: int = 0) -> None:
        """What a rank that did not come prints when the others' dump signal reaches it."""
        head = f"[rank{rank}]:[E{self.glog(s)} ProcessGroupNCCL.cpp:"
        pg = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        self.say(rank, f"{head}1682] {pg} Observed flight recorder dump signal from another rank via TCPStore.", s)
        self.say(
            rank,
            f"{head}1746] {pg} Received a dump signal due to a collective timeout from  rank {first} and we will try our best to dump the debug info. Last enqueued NCCL work: {seq}, last completed NCCL work: {seq}.This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, or bugs in the communications library (e.g. NCCL), etc. ",
            s,
        )

    def lost(self, rank: int, peer: str, s: float = 305.0, seq: int = 91122) -> None:
        """What a rank prints whose peer has gone."""
        head = f"[rank{rank}]:[E{self.glog(s)} ProcessGroupNCCL.cpp:"
        pg = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        out = [
            f"{head}2271] {pg}  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 1}, last completed work: {seq - 1}",
            f"{head}1899] {pg} Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error, NCCL version 2.27.7",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "Last error:",
            f"socketProgress: Connection closed by remote peer {peer}<40{rank:02d}3>",
            "Exception raised from checkForNCCLErrorsInternal at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2356 (most recent call first):",
            "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7fc9 in /opt/conda/lib/python3.11/site-packages/torch/lib/libc10.so)",
            "",
        ]
        self.say(rank, "\n".join(out), s)

    def gloo_lost(self, rank: int, s: float = 305.0) -> None:
        self.traceback(
            rank, "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.41.6.12]:3744. This is typically caused by a remote worker crashing.",
            "train.py:27:main /opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3252:all_reduce", s,
        )  # fmt: skip

    def others(self, guilty: int | set[int], s: float = 305.0, gloo: bool = False) -> None:
        """All other ranks lose their peer, in a random order."""
        bad = {guilty} if isinstance(guilty, int) else guilty
        ranks = [r for r in range(self.n) if r not in bad]
        self.rng.shuffle(ranks)
        peer = self.host(min(bad)) if bad else self.names[0]
        for rank in ranks:
            self.gloo_lost(rank, s) if gloo else self.lost(rank, peer, s + self.rng.random())

    def ending(self, codes: dict[int, int], first: int | None = None, s: float = 310.0, default: int = -6) -> None:
        """How the launcher of this style reports the end. ``first`` is whom torchelastic calls the root cause."""
        codes = {r: codes.get(r, default) for r in range(self.n)}
        if self.style in ("srun", "mpirun", "perrank"):
            self._srun_ending(codes, s)
        else:
            self._banner(codes, first if first is not None else self.rng.choice(list(codes)), s)

    def _srun_ending(self, codes: dict[int, int], s: float) -> None:
        words = {
            -6: "Aborted (core dumped)",
            -9: "Killed",
            -15: "Terminated",
            -11: "Segmentation fault (core dumped)",
            1: "Exited with exit code 1",
            -7: "Bus error",
        }
        for rank, code in sorted(codes.items(), key=lambda _: self.rng.random()):
            self.say(None, f"srun: error: {self.host(rank)}: task {rank}: {words[code]}", s)
        cancelled = self.at(s) - timedelta(hours=self.zone_h)
        self.say(
            None,
            f"slurmstepd: error: *** STEP {self.job}.0 ON {self.names[0]} CANCELLED AT {cancelled.strftime('%Y-%m-%dT%H:%M:%S')} DUE TO TASK FAILURE ***",
            s,
        )

    def _banner(self, codes: dict[int, int], root: int, s: float) -> None:
        t = self.at(s)
        names = {-6: "SIGABRT", -9: "SIGKILL", -15: "SIGTERM", -11: "SIGSEGV", -7: "SIGBUS"}
        glog = f"{t.month:02d}{t.day:02d} {t.strftime('%H:%M:%S')}.412000 {self.base - 20}"
        local = root % self.per_host
        out = [
            f"E{glog} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {codes[root]}) local_rank: {local} (pid: {self.pid(root)}) of binary: /opt/conda/bin/python3.11"
        ]
        out += [
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "=" * 60,
            "train.py FAILED",
            "-" * 60,
            "Failures:",
        ]
        order = [r for r in codes if r != root]
        for i, rank in enumerate([*order, root]):
            if rank == root:
                out += ["-" * 60, "Root Cause (first observed failure):"]
            code = codes[rank]
            sig = f"  ({names[code]})" if code in names else " "
            out += [
                f"[{(i + 1) % len(codes)}]:", f"  time      : {t.strftime('%Y-%m-%d_%H:%M:%S')}", f"  host      : {self.host(rank)}",
                f"  rank      : {rank} (local_rank: {rank % self.per_host})", f"  exitcode  : {code} (pid: {self.pid(rank)}){sig}", "  error_file: <N/A>",
                f"  traceback : Signal {-code} ({names[code]}) received by PID {self.pid(rank)}" if code in names else "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
            ]  # fmt: skip
        self.say(None, "\n".join([*out, "=" * 60]), s)

    # --- what the hosts say ---

    def dmesg(self, host: str, entries: list[tuple[float, str]], noise: int = 8, form: str = "") -> None:
        """A kernel log of a host: ``entries`` are (job seconds, text); the host's clock lies ``zone_h`` behind."""
        form = form or self.form
        rows = [(self.rng.uniform(-200000, 400), self.rng.choice(NOISE)) for _ in range(noise)] + entries
        lines = [self._kernel_line(host, s, text, form) for s, text in sorted(rows)]
        name = {
            "iso": f"{host}.dmesg",
            "dash-t": f"dmesg-{host}.txt",
            "syslog": f"{host}.kern.log",
            "rsyslog": f"var/log/{host}/kern.log",
            "journal": f"journalctl-k-{host}.log",
            "raw": f"{host}.dmesg.raw",
        }[form]
        self.files[name] = "\n".join(lines) + "\n"

    def _kernel_line(self, host: str, s: float, text: str, form: str) -> str:
        t = self.at(s) - timedelta(hours=self.zone_h)
        if form == "iso":
            return f"{t.strftime('%Y-%m-%dT%H:%M:%S')},{self.rng.randrange(10**5, 10**6)}+00:00 {text}"
        if form == "dash-t":
            return f"[{t.strftime('%a %b')} {t.day:2d} {t.strftime('%H:%M:%S %Y')}] {text}"
        if form == "rsyslog":
            return f"{t.strftime('%Y-%m-%dT%H:%M:%S.%f')}+00:00 {host} kernel: [{900000 + s:.6f}] {text}"
        if form == "journal":
            return f"{t.strftime('%Y-%m-%dT%H:%M:%S')}+0000 {host} kernel: {text}"
        if form == "raw":
            return f"[{900000 + s:.6f}] {text}"
        return f"{t.strftime('%b %d %H:%M:%S')} {host} kernel: {text}"

    def smi(self, host: str, changes: dict[int, dict[str, str]] | None = None, name: str = "") -> None:
        """``nvidia-smi -q`` of a host; ``changes`` per local GPU replace values by key (first occurrence)."""
        out = [
            "",
            "==============NVSMI LOG==============",
            "",
            f"Attached GPUs                             : {self.per_host}",
        ]
        for local in range(self.per_host):
            block = _SMI.replace("@BUS@", self.buses[local].upper()).replace("@N@", str(local)).split("\n")
            for key, value in (changes or {}).get(local, {}).items():
                index = next(i for i, line in enumerate(block) if line.strip().startswith(key + " "))
                block[index] = block[index][: block[index].index(":")] + ": " + value
            out += block
        self.files[name or f"nvidia-smi-q.{host}.txt"] = "\n".join(out) + "\n"

    def sacct(self, state: str, code: str = "0:0") -> None:
        nodes = f"{self.names[0]},{','.join(self.names[1:])}" if self.hosts > 1 else self.names[0]
        self.files["sacct.txt"] = (
            f"JobID|JobName|State|ExitCode|Elapsed|NodeList\n{self.job}|train|{state}|{code}|01:14:02|{nodes}\n{self.job}.0|python|CANCELLED|0:15|01:13:55|{nodes}\n"
        )


_SMI = """GPU 00000000:@BUS@:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU UUID                              : GPU-a6367e60-b1ff-635f-9866-5c833ec3ffc@N@
    PCI
        Bus Id                            : 00000000:@BUS@:00.0
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    ECC Errors
        Volatile
            DRAM Correctable              : 2
            DRAM Uncorrectable            : 0
    Remapped Rows
        Correctable Error                 : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Temperature
        GPU Current Temp                  : 61 C
    Clocks
        Graphics                          : 1755 MHz
        SM                                : 1755 MHz
    Fabric
        State                             : Completed
        Status                            : Success
    Processes                             : None
"""
