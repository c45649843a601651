"""Incidents in the words of other launchers, collectors and schedulers; restarts; symptoms that pull the wrong way."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from tests.triage.made.hangs import BACKWARD, hang
from tests.triage.made.label import Label, scenario
from tests.triage.made.world import World

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU {local} has a total capacity of 79.11 GiB of which 5.62 GiB is free. Including non-PyTorch memory, this process has 73.48 GiB memory in use. Of the allocated memory 70.10 GiB is allocated by PyTorch, and 1.40 GiB is reserved by PyTorch but unallocated."
ENDED = "CANCELLED AT {at} DUE TO "


def host_time(world: World, s: float) -> str:
    return (world.at(s) - timedelta(hours=world.zone_h)).strftime("%Y-%m-%dT%H:%M:%S")


# --- restarts: the last attempt counts ---


def first_attempt(world: World, rank: int) -> float:
    """An attempt that a rank's KeyError ended, and the agent's restart after it."""
    world.style = world.style if world.style in ("torchrun", "default", "srun") else "torchrun"
    end = world.steps(12)
    world.traceback(rank, "KeyError: 'tokenizer_cache'", s=end + 5)
    world.others(rank, end + 6)
    t = world.at(end + 10)
    glog = f"{t.month:02d}{t.day:02d} {t.strftime('%H:%M:%S')}.412000 {world.base - 20}"
    world.say(
        None,
        f"E{glog} torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: {rank % world.per_host} (pid: {world.pid(rank)}) of binary: /opt/conda/bin/python3.11\n"
        f"I{glog} torch/distributed/elastic/agent/server/api.py:912] [default] Worker group FAILED. 3/3 attempts left; will restart worker group",
        end + 10,
    )
    return end + 60


@scenario("gpu.oom", "restart/another-cause")
def restart_other(world: World) -> Label:
    """The first attempt died of an exception of one rank; the second, hours later, of another rank's memory."""
    first = world.rng.randrange(world.n)
    guilty = (first + 1 + world.rng.randrange(world.n - 1)) % world.n
    start = first_attempt(world, first)
    world.base += 1000
    end = world.steps(20, start_s=start, every_s=300, first=100)
    world.traceback(guilty, OOM.format(local=guilty % world.per_host), s=end + 5)
    world.others(guilty, end + 6)
    world.ending({guilty: 1}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed", "restart/killed-by-its-new-pid")
def restart_killed(world: World) -> Label:
    """The kernel names the process of the second attempt; the first one's pids stand in the log as well."""
    world.init()
    start = first_attempt(world, world.rng.randrange(world.n))
    guilty = world.rng.randrange(world.n)
    world.base += 1000
    world.init()
    end = world.steps(12, start_s=start + 1200, first=100)
    world.others(guilty, end + 10)
    world.ending({guilty: -9}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (
                end + 8.1,
                f"Memory cgroup out of memory: Killed process {world.pid(guilty)} (pt_main_thread) total-vm:596091484kB, anon-rss:418524800kB, file-rss:407272kB, shmem-rss:0kB, UID:1012 pgtables:850832kB oom_score_adj:0",
            )
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("app.exception", "restart/resubmitted", hosts=1)
def resubmitted(world: World) -> Label:
    """The logs of two jobs: a long one that ran into its time limit, and a short one that failed at once."""
    world.style = "srun"
    old, new = world.job, str(int(world.job) + 17)
    end = world.steps(60)
    world.say(
        None,
        f"slurmstepd: error: *** JOB {old} ON {world.names[0]} {ENDED.format(at=host_time(world, end + 5))}TIME LIMIT ***",
        end + 5,
    )
    world.job = new
    guilty = world.rng.randrange(world.n)
    world.traceback(guilty, "FileExistsError: [Errno 17] File exists: '/scratch/run/lock.json'", s=end + 900)
    world.others(guilty, end + 901)
    world.ending({guilty: 1}, s=end + 910)
    return Label(guilty, world.host(guilty))


@scenario("app.exception", "restart/same-cause")
def restart_same(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    start = first_attempt(world, guilty)
    world.base += 1000
    end = world.steps(12, start_s=start, first=100)
    world.traceback(guilty, "KeyError: 'tokenizer_cache'", s=end + 5)
    world.others(guilty, end + 6)
    world.ending({guilty: 1}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("none", "restart/recovered")
def restart_recovered(world: World) -> Label:
    start = first_attempt(world, 1)
    world.base += 1000
    end = world.steps(30, start_s=start, first=100)
    world.say(0, "Training completed", end + 5)
    world.sacct("COMPLETED")
    return Label(nobody=True)


@scenario("app.exception", "restart/requeued-after-node-failure")
def requeued(world: World) -> Label:
    """Slurm requeued the job after a node failure into the same output file; the second run died of its own bug."""
    world.style = "srun"
    end = world.steps(10)
    bad = world.names[-1]
    world.say(
        None,
        f"srun: error: Node failure on {bad}\nslurmstepd: error: *** JOB {world.job} ON {world.names[0]} {ENDED.format(at=host_time(world, end + 20))}NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        end + 20,
    )
    world.base += 500
    guilty = world.rng.randrange(world.n)
    start = end + 1800
    world.nccl(0, "NCCL INFO Bootstrap: Using bond0:10.41.6.11<0>", start)
    end = world.steps(15, start_s=start, first=90)
    world.traceback(guilty, "IndexError: list index out of range", s=end + 5)
    world.others(guilty, end + 7)
    world.ending({guilty: 1}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("gpu.oom", "restart/attempt-folders")
def attempts(world: World) -> Label:
    """torchelastic's folders of two attempts, a file a rank."""
    world.style = "perrank"
    first, guilty = world.rng.sample(range(world.per_host), 2)
    root = "logs/none_k3q0x1pd"
    for attempt, who, final in (
        (0, first, "ConnectionResetError: [Errno 104] Connection reset by object store"),
        (1, guilty, OOM.format(local=guilty)),
    ):
        for local in range(world.per_host):
            s = 4000.0 * attempt
            text = "".join(world.step_line(100 + i, 2.4, s + 10 * i, local) + "\n" for i in range(12))
            if local == who:
                text += f'[rank{local}]: Traceback (most recent call last):\n[rank{local}]:   File "/workspace/train.py", line 8{attempt}, in step\n[rank{local}]:     step(batch)\n[rank{local}]: {final}\n'
            world.files[f"{root}/attempt_{attempt}/{local}/stderr.log"] = text
    return Label(guilty)


# --- other schedulers and launchers ---


@scenario("sched.time-limit", "sched.time-limit/pbs")
def pbs(world: World) -> Label:
    world.style = "torchrun"
    end = world.steps(20)
    world.say(None, "=>> PBS: job killed: walltime 86432 exceeded limit 86400", end + 5)
    world.lost(1, world.names[-1], end + 6)
    return Label(nobody=True)


@scenario("sched.time-limit", "sched.time-limit/lsf")
def lsf(world: World) -> Label:
    world.style = "torchrun"
    end = world.steps(20)
    world.lost(1, world.names[-1], end + 6)
    world.say(None, "TERM_RUNLIMIT: job killed after reaching LSF run time limit.\nExited with exit code 140.", end + 8)
    return Label(nobody=True)


@scenario("sched.preempted", "sched.preempted/cloud")
def spot(world: World) -> Label:
    world.style = "k8s"
    end = world.steps(20)
    world.files["events.txt"] = (
        "LAST SEEN   TYPE      REASON      OBJECT                MESSAGE\n"
        f"2m          Normal    Preempted   pod/{world.names[1]}   Preempted by pod 4b1f9f4e-1c1c-4d0b-9a57-6f0d7c9e1b11 on node gke-a3-17\n"
    )
    for rank in range(world.per_host):
        world.lost(rank, world.names[1], end + 30)
    return Label()


@scenario("sched.cancelled-by-user", "sched.cancelled-by-user/sacct")
def cancelled_sacct(world: World) -> Label:
    """Only ``sacct -P`` and the tail of the log tell."""
    world.style = "torchrun"
    end = world.steps(20)
    t = world.at(end + 3)
    world.say(
        None,
        f"W{t.month:02d}{t.day:02d} {t.strftime('%H:%M:%S')}.412000 61102 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers",
        end + 3,
    )
    world.files["sacct.txt"] = (
        f"JobID|JobName|Partition|State|ExitCode|Start|End|Elapsed|Timelimit|NodeList\n{world.job}|pretrain|gpu|CANCELLED by 20114|0:0|{host_time(world, -60)}|{host_time(world, end + 3)}|00:04:13|2-00:00:00|{','.join(world.names)}\n{world.job}.batch|batch||CANCELLED|0:15|{host_time(world, -60)}|{host_time(world, end + 4)}|00:04:14||{world.names[0]}\n"
    )
    return Label(nobody=True)


@scenario("app.exception", "app.exception/ray")
def ray(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rows = []
    for rank in range(world.n):
        ip = f"10.41.6.{11 + rank // world.per_host}"
        rows.append(f"(RayTrainWorker pid={world.pid(rank)}, ip={ip}) [rank{rank}]: step 100 loss 2.31")
        if rank != guilty:
            rows.append(
                f"(RayTrainWorker pid={world.pid(rank)}, ip={ip}) [rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2356, remote process exited or there was a network error, NCCL version 2.27.7"
            )
    label = f"(RayTrainWorker pid={world.pid(guilty)}, ip=10.41.6.{11 + guilty // world.per_host}) "
    rows += [
        f"{label}[rank{guilty}]: Traceback (most recent call last):",
        f'{label}[rank{guilty}]:   File "/workspace/train.py", line 50, in train_loop_per_worker',
        f"{label}[rank{guilty}]:     batch = next(it)['labels']",
        f"{label}[rank{guilty}]: KeyError: 'labels'",
        "ray.exceptions.RayTaskError(KeyError): ray::_RayTrainWorker__execute.get_next() (pid=41, ip=10.41.6.11)",
    ]
    world.files["driver.log"] = "\n".join(rows) + "\n"
    return Label(guilty)


@scenario("app.exception", "app.exception/deepspeed")
def deepspeed(world: World) -> Label:
    """pdsh labels from the DeepSpeed launcher; the rank is told by torch's own label."""
    guilty = world.rng.randrange(world.n)
    rows = []
    for rank in range(world.n):
        host = world.host(rank)
        rows.append(
            f"{host}: [{world.at(5).strftime('%Y-%m-%d %H:%M:%S')},311] [INFO] [comm.py:669:init_distributed] Initializing TorchBackend in DeepSpeed with backend nccl rank={rank}"
        )
    host = world.host(guilty)
    rows += [
        f"{host}: [rank{guilty}]: Traceback (most recent call last):",
        f'{host}: [rank{guilty}]:   File "/workspace/train.py", line 77, in <module>',
        f"{host}: [rank{guilty}]:     main()",
        f"{host}: [rank{guilty}]: TypeError: forward() got an unexpected keyword argument 'position_ids'",
        f"{host}: [{world.at(60).strftime('%Y-%m-%d %H:%M:%S')},100] [ERROR] [launch.py:325:sigkill_handler] ['/opt/conda/bin/python3', '-u', 'train.py', '--local_rank={guilty % world.per_host}'] exits with return code = 1",
        f"pdsh@login1: {host}: ssh exited with exit code 1",
    ]
    world.files["deepspeed.log"] = "\n".join(rows) + "\n"
    return Label(guilty, host)


@scenario("data.corrupt-sample", "data.corrupt-sample/json-lines")
def json_lines(world: World) -> Label:
    """A structured logger: every line is JSON, the traceback stands inside of one string."""
    guilty = world.rng.randrange(world.n)
    rows = []
    for i in range(20):
        rows += [
            json.dumps(
                {
                    "ts": world.at(10.0 * i).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "level": "info",
                    "rank": r,
                    "host": world.host(r),
                    "msg": "step",
                    "step": i,
                    "loss": 2.4,
                }
            )
            for r in range(world.n)
        ]
    trace = 'Traceback (most recent call last):\n  File "/workspace/data/dataset.py", line 61, in __getitem__\n    return decode(raw)\nPIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f1c2c0>'
    rows.append(
        json.dumps(
            {
                "ts": world.at(205).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "level": "error",
                "rank": guilty,
                "host": world.host(guilty),
                "msg": "uncaught exception",
                "exc_info": trace,
            }
        )
    )
    for rank in range(world.n):
        if rank != guilty:
            rows.append(
                json.dumps(
                    {
                        "ts": world.at(206).strftime("%Y-%m-%dT%H:%M:%SZ"),
                        "level": "error",
                        "rank": rank,
                        "host": world.host(rank),
                        "msg": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.41.6.12]:3744",
                    }
                )
            )
    world.files["train.jsonl"] = "\n".join(rows) + "\n"
    return Label(guilty, world.host(guilty))


# --- other collectors ---


@scenario("gpu.fell-off-bus", "gpu.fell-off-bus/sections")
def sections(world: World) -> Label:
    """One text per case: what a script wrote of every node, a headline before each part."""
    world.style, world.zone_h = "srun", 0
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 771, s=end + 620)
    out = []
    for name in world.names:
        out += [f"========== {name} ==========", "### dmesg -T | tail"]
        t = world.at(-5 * 86400)
        out.append(
            f"[{t.strftime('%a %b')} {t.day:2d} {t.strftime('%H:%M:%S %Y')}] NVRM: Xid (PCI:0000:e4:00): 13, pid=99, name=python, Graphics SM Warp Exception"
        )
        if name == world.host(guilty):
            t = world.at(end + 20)
            stamp = f"[{t.strftime('%a %b')} {t.day:2d} {t.strftime('%H:%M:%S %Y')}]"
            out += [
                f"{stamp} NVRM: GPU at PCI:0000:{world.bus(guilty)}:00: GPU-5d41402a-bc4b-2a76-b971-9d911017c592",
                f"{stamp} NVRM: Xid (PCI:0000:{world.bus(guilty)}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                f"{stamp} NVRM: GPU 0000:{world.bus(guilty)}:00.0: GPU has fallen off the bus.",
            ]
        out += ["### uptime", " 04:11:02 up 31 days,  2:11,  1 user,  load average: 3.11, 3.41, 4.02", ""]
    world.files["collected.txt"] = "\n".join(out) + "\n"
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed", "host.oom-killed/tails")
def tails(world: World) -> Label:
    """``tail -n +1 */dmesg`` into one file."""
    guilty = world.rng.randrange(world.n)
    world.style = "torchrun"
    world.zone_h = 0
    end = world.steps(12)
    world.others(guilty, end + 10)
    world.ending({guilty: -9}, s=end + 20)
    out = []
    for name in world.names:
        t = world.at(end + 8)
        out.append(f"==> {name}/dmesg.txt <==")
        out.append(
            f"[{world.at(-999).strftime('%a %b %d %H:%M:%S %Y')}] Out of memory: Killed process 81231 (firefox) total-vm:100kB, anon-rss:8112000kB, file-rss:0kB, shmem-rss:0kB, UID:4402 pgtables:18220kB oom_score_adj:0"
        )
        if name == world.host(guilty):
            out.append(
                f"[{t.strftime('%a %b %d %H:%M:%S %Y')}] Out of memory: Killed process {world.pid(guilty)} (pt_main_thread) total-vm:596091484kB, anon-rss:418524800kB, file-rss:407272kB, shmem-rss:0kB, UID:1012 pgtables:850832kB oom_score_adj:0"
            )
        out.append("")
    world.files["all-dmesg.txt"] = "\n".join(out) + "\n"
    return Label(guilty, world.host(guilty))


@scenario("gpu.ecc-uncorrectable", "gpu.ecc-uncorrectable/export")
def export(world: World) -> Label:
    """``journalctl -k -o export``."""
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    world.traceback(guilty, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", s=end + 9)
    world.others(guilty, end + 10)
    world.ending({guilty: 1}, s=end + 20)
    out = []
    for s, text in (
        (
            -90000.0,
            "NVRM: Xid (PCI:0000:e4:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
        ),
        (
            end + 8,
            f"NVRM: Xid (PCI:0000:{world.bus(guilty)}:00): 48, pid={world.pid(guilty)}, name=pt_main_thread, DBE (double bit error) in bank 3",
        ),
        (
            end + 8.1,
            f"NVRM: Xid (PCI:0000:{world.bus(guilty)}:00): 94, pid={world.pid(guilty)}, name=pt_main_thread, Contained: SM (0x1). RST: No, D-RST: No",
        ),
    ):
        micro = int((world.at(s) - timedelta(hours=world.zone_h)).timestamp() * 1e6)
        out.append(
            f"__CURSOR=s=0639\n__REALTIME_TIMESTAMP={micro}\n__MONOTONIC_TIMESTAMP=91822\n_TRANSPORT=kernel\n_HOSTNAME={world.host(guilty)}\nPRIORITY=4\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={text}\n"
        )
    world.files["journal-export.txt"] = "\n".join(out)
    return Label(guilty, world.host(guilty))


@scenario("app.deadlock", "app.deadlock/gdb")
def gdb(world: World) -> Label:
    """``gdb -p PID -batch -ex 'thread apply all bt'`` of every rank."""
    guilty, _ = hang(world)
    for rank in range(world.n):
        top = (
            "#0  0x00007f5ad2a9d117 in futex_wait () from /lib/x86_64-linux-gnu/libc.so.6\n#1  0x00007f5ad2aa4a41 in pthread_mutex_lock () from /lib/x86_64-linux-gnu/libc.so.6\n#2  0x00007f59c1a1b2c3 in TokenizerPool::acquire() () from /workspace/libtok.so\n"
            if rank == guilty
            else "#0  0x00007f5ad2b2d5a1 in cudaStreamSynchronize () from /usr/local/cuda/lib64/libcudart.so.12\n#1  0x00007f59d1a1b2c3 in c10d::ProcessGroupNCCL::WorkNCCL::synchronize() () from /opt/torch/lib/libtorch_cuda.so\n"
        )
        world.files[f"gdb/rank{rank}.txt"] = (
            f'[Thread debugging using libthread_db enabled]\n\nThread 2 (Thread 0x7f59b7fff640 (LWP {world.pid(rank) + 9}) "pt_nccl_watchdg"):\n#0  0x00007f5ad2aa4a41 in pthread_cond_timedwait () from /lib/x86_64-linux-gnu/libc.so.6\n#1  0x00007f59d1a1b2c3 in c10d::ProcessGroupNCCL::Watchdog::runLoop() () from /opt/torch/lib/libtorch_cuda.so\n\nThread 1 (Thread 0x7f5ad3000740 (LWP {world.pid(rank)}) "python3"):\n{top}#3  0x0000000000501234 in _PyEval_EvalFrameDefault ()\n'
        )
    return Label(guilty, world.host(guilty))


@scenario("data.loader-stalled", "data.loader-stalled/pyspy-json")
def pyspy_json(world: World) -> Label:
    guilty, _ = hang(world)
    for rank in range(world.n):
        names = (
            [
                ("wait", "threading.py", 331),
                ("get", "queue.py", 180),
                ("_try_get_data", "torch/utils/data/dataloader.py", 1297),
                ("__next__", "torch/utils/data/dataloader.py", 742),
                ("main", "/workspace/train.py", 388),
            ]
            if rank == guilty
            else [
                ("_engine_run_backward", "torch/autograd/graph.py", 829),
                ("backward", "torch/_tensor.py", 648),
                ("main", "/workspace/train.py", 388),
            ]
        )
        threads: list[dict[str, Any]] = [{
            "pid": world.pid(rank), "thread_id": 140201, "thread_name": "MainThread", "os_thread_id": world.pid(rank), "active": rank != guilty, "owns_gil": False,
            "frames": [{"name": n, "filename": f"/opt/conda/lib/python3.11/{f}", "module": None, "short_filename": f, "line": line, "locals": None, "is_entry": True} for n, f, line in names],
            "process_info": None,
        }]  # fmt: skip
        world.files[f"stacks/{world.host(rank)}/rank_{rank}.json"] = json.dumps(threads)
    return Label(guilty, world.host(guilty), accept=("storage.fs-hang",))


@scenario("app.stale-lock", "app.stale-lock/one-file")
def stacks_in_one(world: World) -> Label:
    """All py-spy dumps of the job in one file, a comment before each."""
    guilty, _ = hang(world, seq=3)
    out = []
    for rank in range(world.n):
        own = (
            "    wait (torch/utils/file_baton.py:49)\n    _jit_compile (torch/utils/cpp_extension.py:2112)\n    load (torch/utils/cpp_extension.py:1623)\n    main (/workspace/train.py:88)\n"
            if rank == guilty
            else BACKWARD
        )
        out.append(
            f'# rank {rank} on {world.host(rank)}\nProcess {world.pid(rank)}: python train.py\nPython v3.11.9 (/opt/conda/bin/python3.11)\n\nThread {world.pid(rank)} (idle): "MainThread"\n{own}'
        )
    world.files["all_stacks.txt"] = "\n".join(out)
    return Label(guilty, world.host(guilty))


def json_dump(rank: int, n: int, last: int, op: str, prefix: str = "nccl", status: bool = True) -> bytes:
    """A Flight Recorder dump as its JSON door gives it: frames left out, the progress of each group in ``pg_status``."""
    entries = [
        {
            "record_id": s, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": s, "p2p_seq_id": 0, "op_id": s,
            "profiling_name": f"{prefix}:all_reduce" if s < last else f"{prefix}:{op}", "time_created_ns": 1795000000000000000 + s, "input_sizes": [[1024]], "input_dtypes": ["Float"],
            "output_sizes": [[1024]], "output_dtypes": ["Float"], "state": ("completed" if s < last else "started") if prefix == "nccl" else "scheduled", "is_p2p": False, "retired": s < last, "timeout_ms": 600000,
        }
        for s in range(max(0, last - 8), last + 1)
    ]  # fmt: skip
    value: dict[str, Any] = {
        "version": "2.9",
        "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": f"[{', '.join(map(str, range(n)))}]"}},
    }
    if status:
        value["pg_status"] = {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": last,
                "last_completed_collective": last - 1,
            }
        }
    return json.dumps(value).encode()


@scenario("collective.desync", "collective.desync/recorder-json")
def recorder_json(world: World) -> Label:
    """JSON dumps only: one rank has enqueued fewer."""
    guilty = world.rng.randrange(world.n)
    for rank in range(world.n):
        world.files[f"fr_{rank}.json"] = json_dump(rank, world.n, 40 if rank == guilty else 41, "all_reduce")
    return Label(guilty, accept=("unknown.collective-timeout",))


@scenario("collective.mismatch-op", "collective.mismatch-op/gloo-recorder", hosts=1)
def recorder_gloo(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    for rank in range(world.n):
        world.files[f"fr/trace_{rank}"] = json_dump(
            rank, world.n, 17, "broadcast" if rank == guilty else "all_reduce", "gloo", status=False
        )
    return Label(guilty, accept=("collective.desync",))


@scenario("net.ib-link-flap", "net.ib-link-flap/nccl-files", hosts=4, per_host=1)
def nccl_files(world: World) -> Label:
    """NCCL_DEBUG_FILE=nccl.%h.%p.log beside the ranks' output, and dmesg counted from boot."""
    world.style = "perrank"
    guilty = world.rng.randrange(world.n)
    end = world.steps(12)
    for rank in range(world.n):
        host, pid = world.host(rank), world.pid(rank)
        head = f"{host}:{pid}:{pid + 40} [0] NCCL INFO"
        rows = [
            f"{host}:{pid}:{pid} [0] NCCL INFO Bootstrap: Using bond0:10.41.6.{11 + rank}<0>",
            f"{head} NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB bond0:10.41.6.{11 + rank}<0>",
            f"{head} ncclCommInitRankConfig comm 0x5{rank} rank {rank} nranks {world.n} cudaDev 0 nvmlDev 0 busId 18000 commId 0x5ae7 - Init COMPLETE",
        ]
        if rank != guilty:
            rows.append(
                f"{host}:{pid}:{pid + 60} [0] transport/net_ib/p2p.cc:412 NCCL WARN NET/IB: Got completion from peer 10.41.6.{11 + guilty}<51120> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid ::ffff:10.41.6.11 remoteGids ::ffff:10.41.6.13 hca mlx5_3"
            )
            world.lost(rank, world.host(guilty), end + 13)
        world.files[f"nccl/nccl.{host}.{pid}.log"] = "\n".join(rows) + "\n"
    world.dmesg(
        world.host(guilty),
        [
            (end + 4, "mlx5_core 0000:ab:00.0 mlx5_3: Port: 1 Link DOWN"),
            (end + 9, "mlx5_core 0000:ab:00.0 mlx5_3: Port: 1 Link ACTIVE"),
        ],
        form="raw",
    )
    return Label(guilty, world.host(guilty))


@scenario("node.failed", "node.failed/slurmctld", hosts=4, per_host=1)
def slurmctld(world: World) -> Label:
    """The controller's log and ``sacct -P`` only; the job's log ends in mid-step."""
    guilty = world.rng.randrange(1, world.n)
    host = world.host(guilty)
    world.style = "srun"
    end = world.steps(12)
    other = "zz-999"
    world.files["slurmctld.log"] = "".join(
        f"[{host_time(world, s)}.{ms:03d}] {text}\n"
        for s, ms, text in (
            (end - 5000, 1, f"error: Nodes {other} not responding, setting DOWN"),
            (end + 100, 201, f"error: Nodes {host} not responding"),
            (end + 400, 16, f"error: Nodes {host} not responding, setting DOWN"),
            (end + 400, 18, f"Killing JobId={world.job} on failed node {host}"),
            (end + 401, 11, f"Requeuing JobId={world.job}"),
        )
    )
    world.sacct("NODE_FAIL", "0:0")
    return Label(None, host)


@scenario("rdzv.port-in-use", "rdzv.port-in-use/other-words")
def port_words(world: World) -> Label:
    world.style = "torchrun"
    world.say(
        None,
        f'[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n[E socket.cpp:500] [c10d] The server socket has failed to listen on any local network address.\nTraceback (most recent call last):\n  File "/opt/conda/bin/torchrun", line 8, in <module>\n    sys.exit(main())\nRuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use). The server socket has failed to bind to {world.names[0]}:29500 (errno: 98 - Address already in use).',
    )
    return Label()


# --- symptoms that pull the wrong way ---


@scenario("gpu.fell-off-bus", "several/fallen-gpu-and-slow-storage")
def several(world: World) -> Label:
    """A file server stalled and came back on a node of the job minutes before another node's GPU was lost."""
    guilty = world.rng.randrange(world.per_host)
    world.init()
    end = world.steps(15)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 4400, s=end + 620)
    world.dmesg(
        world.names[0],
        [
            (
                end + 18,
                f"NVRM: Xid (PCI:0000:{world.bus(guilty)}:00): 79, pid={world.pid(guilty)}, name=pt_main_thread, GPU has fallen off the bus.",
            )
        ],
    )
    world.dmesg(
        world.names[1],
        [
            (end - 140, "nfs: server filer07 not responding, still trying"),
            (end - 100, "nfs: server filer07 OK"),
            (end - 60, "mce: [Hardware Error]: Corrected error, no action required."),
            (end - 30, "pcieport 0000:00:01.1: AER: Corrected error received: 0000:01:00.0"),
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("app.exception", "several/exception-and-other-jobs-oom")
def others_oom(world: World) -> Label:
    """While the job died of its own error the kernel killed a process of another user on the same node."""
    guilty = world.rng.randrange(world.n)
    end = world.steps(12)
    world.traceback(guilty, "AttributeError: 'NoneType' object has no attribute 'shape'", s=end + 8)
    world.others(guilty, end + 10)
    world.ending({guilty: 1}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (
                end + 7,
                "Memory cgroup out of memory: Killed process 90412 (java) total-vm:18811200kB, anon-rss:8112000kB, file-rss:0kB, shmem-rss:0kB, UID:4402 pgtables:18220kB oom_score_adj:0",
            )
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("storage.disk-full", "several/disk-full-then-nccl")
def disk_then_nccl(world: World) -> Label:
    """Rank 0 alone writes; the others wait for it in a barrier and time out."""
    world.init()
    end = world.steps(12)
    frames = "train.py:101:main ckpt.py:88:save_checkpoint /opt/conda/lib/python3.11/site-packages/torch/serialization.py:849:save"
    world.traceback(
        0,
        "RuntimeError: [enforce fail at inline_container.cc:778] . PytorchStreamWriter failed writing file data/12: file write failed\nOSError: [Errno 28] No space left on device: '/scratch/run/step_1200.pt'",
        frames,
        s=end + 8,
    )
    for rank in range(1, world.n):
        world.watchdog(rank, 4400, "BARRIER", 1, s=end + 620)
    world.ending({0: 1}, s=end + 700)
    return Label(0, world.host(0))


@scenario("unknown.collective-timeout", "unknown.collective-timeout/banner-only")
def banner_only(world: World) -> Label:
    """The end of the launcher's output: every rank aborted, one of them is called the root cause."""
    world.style = "torchrun"
    world.steps(12)
    for rank in range(world.n):
        world.watchdog(rank, 512, "REDUCE_SCATTER_BASE", s=800 + rank * 0.01)
    world.ending({}, s=830)
    return Label(nobody=True)


@scenario("none", "none/progress-bars")
def bars(world: World) -> Label:
    """A run in progress: bars, warnings, a retry that went well, other people's errors in the kernel log."""
    world.framework = "lightning"
    world.steps(30)
    world.say(0, "WARNING - HTTPError: 503 Server Error: Service Unavailable. Retrying in 2s (attempt 1)", 150)
    world.steps(20, start_s=310, first=130)
    world.dmesg(
        world.names[0],
        [
            (100, "NVRM: Xid (PCI:0000:e4:00): 31, pid=991203, name=blender, Ch 00000008, MMU Fault"),
            (120, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0"),
        ],
    )
    return Label(nobody=True)
