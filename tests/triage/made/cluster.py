"""Networks, rendezvous, storage, nodes and schedulers; and bundles without a culprit."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

from datetime import timedelta

from tests.triage.made.label import Label, scenario
from tests.triage.made.world import World


@scenario("none")
def healthy(world: World) -> Label:
    world.init()
    end = world.steps(30)
    world.say(0, "Training completed", end + 5)
    world.say(
        0,
        f"[rank0]:[W{world.glog(end + 6)} ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())",
        end + 6,
    )
    world.dmesg(
        world.names[0],
        [
            (-6 * 86400.0, "NVRM: Xid (PCI:0000:2a:00): 31, pid=991203, name=python3, Ch 00000008, MMU Fault"),
            (10, "mce: [Hardware Error]: Corrected error, no action required."),
            (-20 * 3600.0, "mlx5_core 0000:5e:00.1 mlx5_1: Port: 1 Link DOWN"),
        ],
    )
    world.sacct("COMPLETED")
    return Label(nobody=True)


@scenario("none", "none/running")
def running(world: World) -> Label:
    """Still running; noise only, a caught OOM among it."""
    world.init()
    world.steps(10)
    world.say(
        1,
        "[WARNING|trainer.py:2412] >> rank 1: caught torch.OutOfMemoryError in evaluation_step (CUDA out of memory. Tried to allocate 1.96 GiB. GPU 1 has a total capacity of 79.11 GiB of which 1.44 GiB is free.), halving eval batch 16 -> 8 and retrying",
        105,
    )
    world.steps(20, start_s=110, first=110)
    world.smi(world.names[0])
    return Label(nobody=True)


@scenario("unknown.collective-timeout")
def unknown_timeout(world: World) -> Label:
    """One rank's log only: nobody can be named."""
    world.style = "perrank"
    end = 300.0
    for i in range(30):
        world.say(0, world.step_line(100 + i, 2.5, 10.0 * i), 10.0 * i)
    world.say(
        0,
        f"[rank0]:[E{world.glog(end + 600)} ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from  rank 5 and we will try our best to dump the debug info. Last enqueued NCCL work: 90230, last completed NCCL work: 90210.",
        end + 600,
    )
    world.watchdog(0, 90211, "_ALLGATHER_BASE", s=end + 601, enqueued=90230)
    return Label(nobody=True)


@scenario("unknown.collective-timeout", "unknown.collective-timeout/all")
def unknown_all(world: World) -> Label:
    """Everybody waits, everybody has enqueued."""
    world.init()
    end = world.steps(20)
    for rank in range(world.n):
        world.watchdog(rank, 90211, "_ALLGATHER_BASE", s=end + 601 + rank * 0.1)
    world.ending({}, s=end + 700)
    return Label(nobody=True)


@scenario("unknown.peer-lost", hosts=2)
def peer_lost(world: World) -> Label:
    """Log of the first host only; its ranks lost the second host."""
    world.style = "perrank"
    end = 0.0
    for i in range(20):
        for rank in range(world.per_host):
            world.say(rank, world.step_line(100 + i, 2.5, 10.0 * i, rank), 10.0 * i)
        end = 10.0 * i
    for rank in range(world.per_host):
        world.lost(rank, world.names[1], end + 30)
    return Label(nobody=True)


@scenario("net.ib-link-flap", hosts=4, per_host=1)
def flap(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    ip = f"10.41.6.{11 + guilty}"
    for rank in range(world.n):
        if rank != guilty:
            world.nccl(
                rank,
                f"transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer {ip}<5{rank}120> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_1",
                end + 12,
            )
            world.lost(rank, world.host(guilty), end + 13)
    world.ending({guilty: -15}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (end + 4, "mlx5_core 0000:ab:00.0 mlx5_1: Port: 1 Link DOWN"),
            (end + 9, "mlx5_core 0000:ab:00.0 mlx5_1: Port: 1 Link ACTIVE"),
        ],
    )
    other = world.names[(guilty + 1) % world.n]
    world.dmesg(other, [(-19 * 3600.0, "mlx5_core 0000:5e:00.1: Port module event: module 1, Cable unplugged")])
    return Label(guilty, world.host(guilty))


@scenario("net.ib-link-flap", "net.ib-link-flap/many-ranks")
def flap_many(world: World) -> Label:
    """Several ranks a host: only the host can be named."""
    host = world.names[-1]
    world.init()
    end = world.steps(15)
    for rank in range(world.per_host):
        world.nccl(
            rank,
            f"transport/net_ib.cc:2458 NCCL WARN NET/IB: Got completion from peer 10.41.6.{10 + world.hosts}<5{rank}120> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid fe80::1 remoteGids fe80::2 hca mlx5_0",
            end + 12,
        )
        world.lost(rank, host, end + 13)
    world.ending({}, s=end + 20)
    world.dmesg(host, [(end + 4, "mlx5_core 0000:1a:00.0 mlx5_0: Port: 1 Link DOWN")])
    return Label(None, host)


@scenario("net.wrong-interface", hosts=3, per_host=1)
def interface(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init("bond0", {guilty: ("docker0", "172.17.0.1")})
    for rank in range(world.n):
        if rank != guilty:
            world.nccl(
                rank,
                f"misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<4{rank}123> failed : Connection refused",
                60,
            )
            world.traceback(
                rank,
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7",
                "train.py:40:main",
                61,
            )
    world.ending({}, s=70, default=1)
    return Label(guilty, world.host(guilty))


@scenario("net.wrong-interface", "net.wrong-interface/gloo", hosts=2, per_host=1)
def interface_gloo(world: World) -> Label:
    world.style = "perrank"
    guilty = 1
    world.say(0, f"INFO host={world.host(0)} rank 0 starting")
    world.say(1, f"INFO host={world.host(1)} rank 1 starting")
    world.traceback(
        guilty,
        "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: eth7",
        "train.py:20:main /opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1710:init_process_group",
        10,
    )
    world.gloo_lost(0, 20)
    return Label(guilty, world.host(guilty))


@scenario("net.unreachable", hosts=3, per_host=1)
def unreachable(world: World) -> Label:
    guilty = world.rng.randrange(1, world.n)
    world.init()
    ip = f"10.41.6.{11 + guilty}"
    for rank in range(world.n):
        if rank != guilty:
            world.nccl(
                rank,
                f"misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {ip}<4{rank}123> failed : No route to host",
                60,
            )
            world.traceback(
                rank,
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7",
                "train.py:40:main",
                61,
            )
    world.ending({}, s=70, default=1)
    return Label(guilty, world.host(guilty))


@scenario("net.unreachable", "net.unreachable/master", hosts=3, per_host=1)
def unreachable_master(world: World) -> Label:
    """One node cannot reach the master; the master waits for it."""
    for rank in (0, 1):
        world.files[f"{world.host(rank)}.log"] = f"[INFO] host={world.host(rank)} agent up\n"
    world.files[f"{world.host(0)}.log"] = (
        str(world.files[f"{world.host(0)}.log"])
        + "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/3 clients joined.\n"
    )
    world.files[f"{world.host(2)}.log"] = (
        f"[INFO] host={world.host(2)} agent up\n[W socket.cpp:752] [c10d] The client socket has failed to connect to any network address of ({world.host(0)}, 29500). Will retry.\n"
        f"[E socket.cpp:957] [c10d] The client socket has timed out after 900000ms while trying to connect to ({world.host(0)}, 29500).\n"
        "torch.distributed.DistNetworkError: The client socket has timed out after 900000ms while trying to connect to ("
        + world.host(0)
        + ", 29500).\n"
    )
    return Label(None, None, accept=("rdzv.missing-node",))


@scenario("rdzv.port-in-use")
def port(world: World) -> Label:
    world.traceback(
        0,
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "train.py:20:main",
        10,
    )
    world.ending({}, first=0, s=60, default=1)
    return Label(0, world.host(0))


@scenario("rdzv.missing-node", hosts=4, per_host=2)
def missing_node(world: World) -> Label:
    guilty = world.names[-1]
    for host in world.names[:-1]:
        world.files[f"logs/{host}.log"] = (
            f"[INFO] host={host} SLURM_JOB_NODELIST={','.join(world.names)} starting agent\n"
            'Traceback (most recent call last):\n  File "/opt/conda/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
            "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"
        )
    world.files["srun.err"] = (
        f"srun: error: Task launch for StepId={world.job}.0 failed on node {guilty}: Job credential expired\nsrun: error: Application launch failed: Job credential expired\n"
    )
    return Label(None, guilty)


@scenario("rdzv.missing-node", "rdzv.missing-node/unheard", hosts=4, per_host=2)
def missing_unheard(world: World) -> Label:
    guilty = world.names[-1]
    for host in world.names[:-1]:
        world.files[f"logs/{host}.log"] = (
            f"[INFO] host={host} SLURM_JOB_NODELIST={','.join(world.names)} starting agent\ntorch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
        )
    return Label(None, guilty)


@scenario("node.failed", hosts=4, per_host=1)
def node(world: World) -> Label:
    guilty = world.rng.randrange(1, world.n)
    host = world.host(guilty)
    world.style = "srun"
    end = world.steps(12)
    for rank in range(world.n):
        if rank != guilty:
            world.lost(rank, host, end + 400)
    at = (world.at(end + 420) - timedelta(hours=world.zone_h)).strftime("%Y-%m-%dT%H:%M:%S")
    world.say(
        None,
        f"srun: error: Node failure on {host}\nslurmstepd: error: *** JOB {world.job} ON {world.names[0]} CANCELLED AT {at} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        end + 420,
    )
    world.sacct("NODE_FAIL", "1:0")
    world.files["slurmctld.log"] = (
        f"[{at}.016] error: Nodes {host} not responding, setting DOWN\n[{at}.018] Killing JobId={world.job} on failed node {host}\n"
    )
    world.files["scontrol_node.txt"] = (
        f"NodeName={host} Arch=x86_64 CoresPerSocket=64\n   State=DOWN*+DRAIN ThreadsPerCore=2\n   Reason=Not responding [slurm@{at}]\n"
    )
    return Label(guilty, host)


@scenario("node.failed", "node.failed/k8s", hosts=2, per_host=2)
def node_k8s(world: World) -> Label:
    world.style = "perrank"
    for i in range(10):
        for rank in (0, 1):
            world.say(rank, world.step_line(i, 2.0, 10.0 * i, rank), 10.0 * i)
    for rank in (0, 1):
        world.lost(rank, world.names[1], 140)
    world.files["events.txt"] = (
        f"LAST SEEN   TYPE      REASON          OBJECT              MESSAGE\n5m          Warning   NodeNotReady    pod/{world.names[1]}      Node is not ready\n4m          Normal    TaintManagerEviction   pod/{world.names[1]}   Marking for deletion Pod ml/{world.names[1]}\n"
    )
    return Label(None, None)


def scheduler_end(world: World, words: str, state: str, s: float = 210.0) -> None:
    at = (world.at(s) - timedelta(hours=world.zone_h)).strftime("%Y-%m-%dT%H:%M:%S")
    world.say(None, f"slurmstepd: error: *** JOB {world.job} ON {world.names[0]} CANCELLED AT {at}{words} ***", s)
    world.say(None, f"slurmstepd: error: *** STEP {world.job}.0 ON {world.names[0]} CANCELLED AT {at}{words} ***", s)
    t = world.at(s)
    for rank in range(world.n):
        world.say(
            None,
            f"W{t.month:02d}{t.day:02d} {t.strftime('%H:%M:%S')}.412000 61102 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {world.pid(rank)} closing signal SIGTERM",
            s,
        )
    for rank in range(world.n // 2):
        world.lost(rank, world.names[-1], s + 1)
    world.say(
        None, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 61102 got signal: 15", s + 2
    )
    world.sacct(state, "0:15")


@scenario("sched.time-limit")
def time_limit(world: World) -> Label:
    world.steps(20)
    scheduler_end(world, " DUE TO TIME LIMIT", "TIMEOUT")
    return Label(nobody=True)


@scenario("sched.preempted")
def preempted(world: World) -> Label:
    world.steps(20)
    scheduler_end(world, " DUE TO PREEMPTION", "PREEMPTED")
    return Label(nobody=True)


@scenario("sched.cancelled-by-user")
def cancelled(world: World) -> Label:
    world.steps(20)
    scheduler_end(world, "", "CANCELLED by 1012")
    return Label(nobody=True)


@scenario("storage.fs-hang")
def fs_hang(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    host = world.host(guilty)
    world.init()
    end = world.steps(15)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 4400, s=end + 620)
    world.behind(guilty, 4399, end + 621)
    world.dmesg(host, [
        (end + 20, "nfs: server filer07 not responding, still trying"),
        (end + 150, f"INFO: task pt_main_thread:{world.pid(guilty)} blocked for more than 120 seconds."),
        (end + 150.1, f"task:pt_main_thread   state:D stack:0     pid:{world.pid(guilty)} ppid:{world.base - 3}"),
    ])  # fmt: skip
    frames = "    write (torch/serialization.py:779)\n    save (torch/serialization.py:850)\n    save_checkpoint (/workspace/ckpt.py:44)\n    main (/workspace/train.py:140)\n"
    world.files[f"pyspy/{host}_rank{guilty}.txt"] = (
        f'Process {world.pid(guilty)}: python train.py\nPython v3.11.9 (/opt/conda/bin/python3.11)\n\nThread {world.pid(guilty)} (idle): "MainThread"\n{frames}'
    )
    world.files[f"ps-{host}.txt"] = (
        f"    PID STAT WCHAN                            CMD\n  {world.pid(guilty)} D    rpc_wait_bit_killable            python3.11 -u train.py\n"
    )
    return Label(guilty, host)
