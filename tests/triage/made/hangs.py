"""Ranks that wait for one that does not come, or that come with something else."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

import pickle
from typing import Any

from tests.triage.made.label import Label, scenario
from tests.triage.made.world import World

BACKWARD = "    _engine_run_backward (torch/autograd/graph.py:829)\n    backward (torch/_tensor.py:648)\n    train_step (/workspace/trainer.py:211)\n    main (/workspace/train.py:388)\n"


def stacks(world: World, guilty: int, frames: str, thread: str = "") -> None:
    for rank in range(world.n):
        own = frames if rank == guilty else BACKWARD
        extra = thread if rank == guilty else ""
        world.files[f"pyspy/{world.host(rank)}_rank{rank}.txt"] = (
            f'Process {world.pid(rank)}: python train.py\nPython v3.11.9 (/opt/conda/bin/python3.11)\n\nThread {world.pid(rank)} ({"idle" if rank == guilty else "active"}): "MainThread"\n{own}{extra}'
        )


def hang(world: World, seq: int = 60211, op: str = "ALLREDUCE", silent: bool = False) -> tuple[int, float]:
    """All but one time out; the one says that it had completed everything it had enqueued (or nothing)."""
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    order = [r for r in range(world.n) if r != guilty]
    world.rng.shuffle(order)
    for rank in order:
        world.watchdog(rank, seq, op, s=end + 620 + world.rng.random())
    if not silent:
        world.behind(guilty, seq - 1, end + 621, first=order[0])
    return guilty, end


@scenario("data.loader-stalled")
def loader(world: World) -> Label:
    guilty, _ = hang(world)
    stacks(
        world,
        guilty,
        "    wait (threading.py:331)\n    get (queue.py:180)\n    _try_get_data (torch/utils/data/dataloader.py:1297)\n    _next_data (torch/utils/data/dataloader.py:1502)\n    __next__ (torch/utils/data/dataloader.py:742)\n    main (/workspace/train.py:388)\n",
    )
    return Label(guilty, world.host(guilty), accept=("storage.fs-hang",))


@scenario("data.loader-stalled", "data.loader-stalled/timeout")
def loader_timeout(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    end = world.steps(10)
    world.traceback(
        guilty,
        "RuntimeError: DataLoader timed out after 300 seconds",
        "train.py:101:main /opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1445:_get_data",
        s=end + 300,
    )
    world.others(guilty, end + 305)
    world.ending({guilty: 1}, s=end + 320)
    return Label(guilty, world.host(guilty))


@scenario("data.loader-stalled", "data.loader-stalled/faulthandler")
def loader_faulthandler(world: World) -> Label:
    guilty, _ = hang(world)
    for rank in range(world.n):
        frames = (
            '  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1297 in _try_get_data\n  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 742 in __next__\n'
            if rank == guilty
            else '  File "/opt/conda/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        )
        world.files[f"stacks/faulthandler_rank{rank}.log"] = (
            f'Current thread 0x00007f2a6c5c2740 (most recent call first):\n{frames}  File "/workspace/train.py", line 101 in main\n'
        )
    return Label(guilty, world.host(guilty), accept=("storage.fs-hang",))


@scenario("app.stale-lock")
def lock(world: World) -> Label:
    guilty, _ = hang(world, seq=3)
    stacks(
        world,
        guilty,
        "    wait (torch/utils/file_baton.py:49)\n    _jit_compile (torch/utils/cpp_extension.py:2112)\n    load (torch/utils/cpp_extension.py:1623)\n    build (/workspace/ops/__init__.py:14)\n    main (/workspace/train.py:88)\n",
    )
    world.files[f"ls-{world.host(guilty)}.txt"] = (
        "-rw-r--r-- 1 ada ml 0 Jan 12 03:11 /home/ada/.cache/torch_extensions/py311_cu128/fused/lock\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("app.stale-lock", "app.stale-lock/filelock")
def filelock(world: World) -> Label:
    guilty, _ = hang(world, seq=3, silent=True)
    stacks(
        world,
        guilty,
        "    acquire (filelock/_api.py:344)\n    __enter__ (filelock/_api.py:376)\n    download_and_prepare (datasets/builder.py:870)\n    load_dataset (datasets/load.py:2084)\n    main (/workspace/train.py:61)\n",
    )
    return Label(guilty, world.host(guilty))


@scenario("app.deadlock")
def deadlock(world: World) -> Label:
    guilty, _ = hang(world)
    choice = world.rng.choice((
        "    communicate (subprocess.py:1209)\n    run (subprocess.py:550)\n    git_hash (/workspace/log.py:12)\n    main (/workspace/train.py:120)\n",
        "    acquire (logging/__init__.py:927)\n    handle (logging/__init__.py:978)\n    info (/workspace/log.py:31)\n    train_step (/workspace/trainer.py:97)\n",
        "    join (threading.py:1112)\n    flush (/workspace/metrics.py:44)\n    train_step (/workspace/trainer.py:97)\n    main (/workspace/train.py:120)\n",
        "    take_gil (ceval_gil.h:210)\n    PyEval_RestoreThread (ceval.c:700)\n    pybind_call (/workspace/ext.cpp:31)\n    main (/workspace/train.py:120)\n",
    ))  # fmt: skip
    stacks(world, guilty, choice)
    return Label(guilty, world.host(guilty))


@scenario("collective.desync")
def desync(world: World) -> Label:
    """A rank in a branch of its own, busy with something else."""
    guilty, _ = hang(world)
    stacks(
        world,
        guilty,
        "    forward (torch/nn/modules/linear.py:125)\n    evaluate (/workspace/evaluate.py:77)\n    maybe_evaluate (/workspace/trainer.py:301)\n    main (/workspace/train.py:388)\n",
    )
    return Label(guilty, world.host(guilty), accept=("collective.mismatch-op",))


@scenario("collective.desync", "collective.desync/report")
def desync_report(world: World) -> Label:
    world.style = "torchrun"
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(10)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 183, s=end + 620)
    world.say(
        0,
        f"[rank0]:[E{world.glog(end + 622)} ProcessGroupNCCL.cpp:900] [Rank 0]\n\t - [{guilty}] finished collective #182, but didn't join collective #183 (count from 1)\n\t - [{','.join(str(r) for r in range(world.n) if r != guilty)}] joined but didn't finish collective #183 (count from 1)",
        end + 622,
    )
    return Label(guilty, world.host(guilty))


def dump(rank: int, n: int, entries: list[tuple[int, str, list[list[int]], str]]) -> bytes:
    """A Flight Recorder dump: (seq, op, input sizes, state)."""
    rows: list[dict[str, Any]] = []
    for seq, op, sizes, state in entries:
        rows.append({
            "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
            "profiling_name": f"nccl:{op}", "time_created_ns": 1795000000000000000 + seq, "input_sizes": sizes, "input_dtypes": ["BFloat16"] * len(sizes),
            "output_sizes": sizes, "output_dtypes": ["BFloat16"] * len(sizes), "state": state, "is_p2p": False, "retired": False, "timeout_ms": 600000,
            "frames": [{"name": op, "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2714}, {"name": "step", "filename": "/srv/train.py", "line": 64}],
        })  # fmt: skip
    return pickle.dumps(
        {
            "version": "2.10",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(n)))}},
            "pg_status": {},
            "entries": rows,
        }
    )


@scenario("collective.mismatch-op", hosts=1)
def mismatch_op(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    for rank in range(world.n):
        last = ("broadcast", [[1]]) if rank == guilty else ("all_reduce", [[4096, 1024]])
        world.files[f"fr/nccl_trace_rank_{rank}"] = dump(
            rank,
            world.n,
            [(s, "all_reduce", [[4096, 1024]], "completed") for s in range(30, 42)]
            + [(42, last[0], last[1], "started")],
        )
        world.watchdog(
            rank, 42, "BROADCAST" if rank == guilty else "ALLREDUCE", 1 if rank == guilty else 4194304, enqueued=43
        )
    return Label(guilty)


@scenario("collective.mismatch-op", "collective.mismatch-op/logs")
def mismatch_logs(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    end = world.steps(10)
    for rank in range(world.n):
        world.watchdog(
            rank,
            42,
            "_ALLGATHER_BASE" if rank == guilty else "ALLREDUCE",
            77 if rank == guilty else 4194304,
            s=end + 620,
            enqueued=43,
        )
    return Label(guilty, accept=("collective.desync",))


@scenario("collective.mismatch-size")
def mismatch_size(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    end = world.steps(10)
    for rank in range(world.n):
        world.watchdog(rank, 42, "ALLREDUCE", 1000 if rank == guilty else 1024, s=end + 620, enqueued=43)
    return Label(guilty)


@scenario("collective.mismatch-size", "collective.mismatch-size/recorder", hosts=1)
def size_recorder(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    for rank in range(world.n):
        rows = 7 if rank == guilty else 8
        world.files[f"dumps/trace_rank_{rank}.pkl"] = dump(
            rank,
            world.n,
            [(s, "all_reduce", [[8, 16]], "completed") for s in range(5)]
            + [(5, "all_reduce", [[rows, 16]], "started")],
        )
    return Label(guilty)


@scenario("collective.mismatch-size", "collective.mismatch-size/detail")
def size_detail(world: World) -> Label:
    guilty = world.rng.randrange(1, world.n)
    for rank in range(world.n):
        a, b = (guilty, 0)
        world.traceback(
            rank,
            f"RuntimeError: Detected mismatch between collectives on ranks. Rank {a} is running collective: CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[12], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)), but Rank {b} is running collective: CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)).Collectives differ in the following aspects: \t Tensor Tensor shapes: 12vs 10",
            "train.py:40:main",
            30,
        )
    world.ending({}, s=60, default=1)
    return Label(accept=("collective.mismatch-op",))


@scenario("data.uneven-shards")
def uneven(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    for rank in range(world.n):
        world.say(rank, f"INFO rank {rank}: {1249 if rank == guilty else 1250} batches per epoch")
    end = world.steps(15)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 1250, s=end + 620)
    world.say(guilty, f"INFO rank {guilty}: epoch 0 done after 1249 batches, waiting in barrier", end)
    world.watchdog(guilty, 1250, "BARRIER", 1, s=end + 620)
    return Label(guilty)


@scenario("data.uneven-shards", "data.uneven-shards/join")
def uneven_join(world: World) -> Label:
    for rank in range(world.n):
        world.traceback(
            rank,
            "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
            "train.py:40:main /opt/conda/lib/python3.11/site-packages/torch/distributed/algorithms/join.py:270:__exit__",
            300,
        )
    world.ending({}, s=310, default=1)
    return Label()
