"""Errors of programs, hosts, data, storage and checkpoints."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

from tests.triage.made.label import Label, scenario
from tests.triage.made.world import World

LOADER = "train.py:101:main /opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1297:_try_get_data"
SAVE = "train.py:101:main ckpt.py:88:save_checkpoint /opt/conda/lib/python3.11/site-packages/torch/serialization.py:849:save"
LOAD = "train.py:41:main ckpt.py:22:load_checkpoint /opt/conda/lib/python3.11/site-packages/torch/serialization.py:1568:load"


def crash(
    world: World,
    final: str,
    frames: str = "train.py:101:main trainer.py:88:train_step",
    steps: int = 12,
    code: int = 1,
    gloo: bool = False,
) -> int:
    """One rank raises, the others lose it. Returns the rank."""
    guilty = world.rng.randrange(world.n)
    end = world.steps(steps) if steps else 0.0
    victims_first = world.rng.random() < 0.5
    if victims_first:
        world.others(guilty, end + 10, gloo)
    world.traceback(guilty, final.replace("@HOST@", world.host(guilty)), frames, s=end + 8)
    if not victims_first:
        world.others(guilty, end + 10, gloo)
    world.ending({guilty: code}, s=end + 20)
    return guilty


@scenario("app.exception")
def exception(world: World) -> Label:
    finals = (
        "KeyError: 'warmup_steps'",
        "ValueError: too many values to unpack (expected 2)",
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "IndexError: list index out of range",
        "ZeroDivisionError: float division by zero",
        "AssertionError: bad micro-batch",
        "omegaconf.errors.ConfigAttributeError: Missing key lr",
    )
    guilty = crash(world, world.rng.choice(finals), gloo=world.rng.random() < 0.5)
    world.dmesg(
        world.host(guilty),
        [
            (
                -3 * 3600.0,
                "Memory cgroup out of memory: Killed process 99112 (jupyter-lab) total-vm:18811200kB, anon-rss:8112000kB, file-rss:0kB, shmem-rss:0kB, UID:4402 pgtables:18220kB oom_score_adj:0",
            )
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("app.segfault")
def segfault(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    world.say(
        guilty,
        'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f2a6c5c2740 (most recent call first):\n  File "/workspace/ops/decode.py", line 41 in decode_jpeg\n  File "/workspace/train.py", line 101 in main\n',
        end + 5,
    )
    world.others(guilty, end + 10)
    world.ending({guilty: -11}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (
                end + 5,
                f"python3.11[{world.pid(guilty)}]: segfault at 10 ip 00007f2a91b0c3f2 sp 00007ffc41e1a9d0 error 4 in libturbojpeg.so.0.2.0[7f2a91af1000+5d000] likely on CPU 12 (core 12, socket 0)",
            )
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("app.segfault", "app.segfault/bare")
def segfault_bare(world: World) -> Label:
    """Only the launcher says so."""
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    world.others(guilty, end + 10)
    world.ending({guilty: -11}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed")
def oom_killed(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    world.others(guilty, end + 10)
    world.ending({guilty: -9}, s=end + 20)
    pid = world.pid(guilty)
    world.dmesg(world.host(guilty), [
        (end + 8, "pt_main_thread invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0"),
        (end + 8, f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/system.slice/slurmstepd.scope/job_{world.job},task_memcg=/system.slice/slurmstepd.scope/job_{world.job}/step_0/user/task_{guilty},task=pt_main_thread,pid={pid},uid=1012"),
        (end + 8.1, f"Memory cgroup out of memory: Killed process {pid} (pt_main_thread) total-vm:596091484kB, anon-rss:418524800kB, file-rss:407272kB, shmem-rss:0kB, UID:1012 pgtables:850832kB oom_score_adj:0"),
    ])  # fmt: skip
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed", "host.oom-killed/slurm")
def oom_slurm(world: World) -> Label:
    """No kernel log: the scheduler counted an oom_kill event."""
    world.style = "srun"
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    world.say(
        None,
        f"slurmstepd: error: Detected 1 oom_kill event in StepId={world.job}.0. Some of the step tasks have been OOM Killed.",
        end + 9,
    )
    world.others(guilty, end + 10)
    world.ending({guilty: -9}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed", "host.oom-killed/loader-worker")
def oom_worker(world: World) -> Label:
    guilty = crash(world, "RuntimeError: DataLoader worker (pid 41220) is killed by signal: Killed. ", LOADER)
    world.dmesg(
        world.host(guilty),
        [
            (
                128,
                "Out of memory: Killed process 41220 (pt_data_worker) total-vm:96091484kB, anon-rss:88524800kB, file-rss:0kB, shmem-rss:0kB, UID:1012 pgtables:850832kB oom_score_adj:0",
            )
        ],
    )
    return Label(guilty, world.host(guilty))


@scenario("host.oom-killed", "host.oom-killed/k8s", hosts=1)
def oom_k8s(world: World) -> Label:
    world.style = "k8s"
    guilty = world.rng.randrange(world.n)
    end = world.steps(12)
    world.others(guilty, end + 10)
    world.ending({guilty: -9}, s=end + 20)
    world.files["describe-pod.txt"] = (
        f"Name:             {world.names[0]}\nNode:             n-17/10.0.0.4\nContainers:\n  trainer:\n    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Restart Count:  0\n"
    )
    return Label(guilty, world.names[0])


@scenario("host.shm-exhausted")
def shm(world: World) -> Label:
    guilty = crash(
        world,
        "RuntimeError: DataLoader worker (pid 412) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        LOADER,
    )
    world.files[f"df-{world.host(guilty)}.txt"] = (
        "Filesystem      Size  Used Avail Use% Mounted on\noverlay         1.7T  611G  1.1T  37% /\nshm              64M   64M     0 100% /dev/shm\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("host.shm-exhausted", "host.shm-exhausted/nccl")
def shm_nccl(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.nccl(
        guilty,
        "NCCL WARN Error: failed to extend /dev/shm/nccl-03v824 to 33030532 bytes, error: No space left on device (28)",
    )
    world.traceback(
        guilty,
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.7\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nError: failed to extend /dev/shm/nccl-03v824 to 33030532 bytes, error: No space left on device (28)",
        "train.py:40:main",
        30,
    )
    world.others(guilty, 40)
    world.ending({guilty: 1}, s=60)
    return Label(guilty, world.host(guilty))


@scenario("host.fd-limit")
def fds(world: World) -> Label:
    final = world.rng.choice(
        (
            "OSError: [Errno 24] Too many open files: '/data/tok/shard-00121.bin'",
            "RuntimeError: received 0 items of ancdata",
            "RuntimeError: unable to open shared memory object </torch_7788_1211_3> in read-write mode: Too many open files (24)",
        )
    )
    guilty = crash(world, final, LOADER)
    return Label(guilty, world.host(guilty))


@scenario("host.process-limit")
def processes(world: World) -> Label:
    final = world.rng.choice(
        (
            "RuntimeError: can't start new thread",
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "OSError: [Errno 11] Resource temporarily unavailable: fork",
        )
    )
    guilty = crash(
        world, final, "train.py:70:main /opt/conda/lib/python3.11/multiprocessing/popen_fork.py:66:_launch", steps=3
    )
    world.dmesg(world.host(guilty), [(25, "cgroup: fork rejected by pids controller in /system.slice/docker-4f.scope")])
    return Label(guilty, world.host(guilty))


@scenario("host.process-limit", "host.process-limit/openmp")
def openmp(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.steps(2)
    world.say(guilty, "\nlibgomp: Thread creation failed: Resource temporarily unavailable", 25)
    world.others(guilty, 40)
    world.ending({guilty: 1}, s=60)
    return Label(guilty, world.host(guilty) if world.style in ("srun", "mpirun", "perrank") else None)


@scenario("data.corrupt-sample")
def sample(world: World) -> Label:
    choices = (
        'PIL.UnidentifiedImageError: Caught UnidentifiedImageError in DataLoader worker process 2.\nOriginal Traceback (most recent call last):\n  File "/opt/conda/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)\n  File "/workspace/data.py", line 61, in __getitem__\n    img = Image.open(path)\nPIL.UnidentifiedImageError: cannot identify image file \'/data/in1k/n0153/n0153_882.JPEG\'',
        "OSError: image file is truncated (44 bytes not processed)",
        "tarfile.ReadError: unexpected end of data @ <_io.BufferedReader name='/data/wds/shard-000121.tar'>",
        "zlib.error: Error -3 while decompressing data: incorrect data check",
        "pyarrow.lib.ArrowInvalid: Could not open Parquet input source '<Buffer>': Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file.",
        "json.decoder.JSONDecodeError: Expecting ',' delimiter: line 1 column 8121 (char 8120)",
        "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 12: invalid start byte",
    )
    frames = "train.py:101:main /opt/conda/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py:52:fetch data/dataset.py:61:__getitem__"
    guilty = crash(world, world.rng.choice(choices), frames, gloo=world.rng.random() < 0.3)
    return Label(guilty, world.host(guilty))


@scenario("storage.quota-exceeded")
def quota(world: World) -> Label:
    guilty = crash(
        world, "OSError: [Errno 122] Disk quota exceeded: '/gpfs/scratch/ada/runs/7/step_900.ckpt.part'", SAVE
    )
    return Label(guilty, world.host(guilty))


@scenario("storage.disk-full")
def disk(world: World) -> Label:
    guilty = crash(
        world,
        world.rng.choice(
            (
                "OSError: [Errno 28] No space left on device: '/scratch/ckpt/step_900/rank3.pt'",
                "OSError: [Errno 28] No space left on device",
                "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 9216 vs 9110\nOSError: [Errno 28] No space left on device",
            )
        ),
        SAVE,
    )
    world.files[f"df-{world.host(guilty)}.txt"] = (
        "Filesystem      Size  Used Avail Use% Mounted on\n/dev/nvme1n1     14T   14T     0 100% /scratch\nshm             126G  1.1G  125G   1% /dev/shm\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("checkpoint.corrupt")
def corrupt(world: World) -> Label:
    finals = (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        "_pickle.UnpicklingError: pickle data was truncated",
        "EOFError: Ran out of input",
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
        "_pickle.UnpicklingError: invalid load key, '\\x00'.",
    )
    guilty = crash(world, world.rng.choice(finals), LOAD, steps=0, gloo=True)
    world.files["previous-job.err.tail"] = (
        f"slurmstepd: error: *** JOB {int(world.job) - 40} ON {world.host(guilty)} CANCELLED AT 2026-01-02T04:11:07 DUE TO TIME LIMIT ***\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("checkpoint.mismatch")
def mismatch(world: World) -> Label:
    finals = (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for tok.weight: copying a param with shape torch.Size([50304, 64]) from checkpoint, the shape in current model is torch.Size([50432, 64]).",
        "RuntimeError: Missing key in checkpoint state_dict: optim.state.layers.0.weight.exp_avg.",
        "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
        "AssertionError: checkpoint was saved with tensor-model-parallel size 8, but the current value is 4",
    )
    final = world.rng.choice(finals)
    for rank in range(world.n):
        world.traceback(rank, final, LOAD, s=30 + rank)
    world.ending({}, s=60, default=1)
    return Label()


@scenario("model.rank-divergence")
def divergence(world: World) -> Label:
    guilty = world.rng.randrange(1, world.n)
    for rank in range(world.n):
        mine, other = (148, 0) if rank == guilty else (146, guilty)
        final = f"RuntimeError: DDP expects same model across all ranks, but Rank {rank} has {mine} params, while rank {other} has inconsistent {294 - mine} params."
        world.traceback(
            rank,
            final,
            "train.py:60:main /opt/conda/lib/python3.11/site-packages/torch/nn/parallel/distributed.py:840:__init__",
            s=30,
        )
    world.ending({}, s=60, default=1)
    return Label(guilty)


@scenario("train.nan-loss")
def nan(world: World) -> Label:
    end = world.steps(20)
    for i in range(8):
        world.say(0, world.step_line(120 + i, float("nan"), end + 10 + 10 * i), end + 10 + 10 * i)
    return Label()


@scenario("train.nan-loss", "train.nan-loss/guard")
def nan_guard(world: World) -> Label:
    end = world.steps(20)
    for rank in range(world.n):
        world.traceback(rank, "ValueError: Loss is nan, stopping training", s=end + 10)
    world.ending({}, s=end + 30, default=1)
    return Label()


@scenario("env.version-mismatch", hosts=3, per_host=1)
def versions(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.style = "perrank"
    for rank in range(world.n):
        old = rank == guilty
        world.say(
            rank,
            f"[entrypoint] image registry.local/ml/pretrain:{'25.09' if old else '26.03'}  host={world.host(rank)}  torch={'2.7.0+cu126' if old else '2.9.1+cu128'}",
        )
        world.nccl(
            rank,
            f"NCCL INFO ncclCommInitRankConfig comm 0x08 rank {rank} nranks 3 cudaDev 0 nvmlDev 0 busId 18000 commId 0x5a - Init START",
        )
        other = 0 if rank != 0 else guilty
        mine, theirs = (22602, 22707) if old else (22707, 22602)
        peer = guilty if not old else (0 if guilty else 1)
        world.nccl(
            rank,
            f"init.cc:729 NCCL WARN Mismatched NCCL version detected : rank {peer} version {theirs} rank {rank} version {mine}",
        )
        world.traceback(
            rank,
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.7\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "train.py:40:main",
            30,
        )
        assert other is not None
    return Label(guilty, world.host(guilty))


@scenario("env.driver-mismatch")
def driver(world: World) -> Label:
    bad = world.rng.randrange(world.hosts)
    host = world.names[bad]
    text = world.rng.choice(
        (
            "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
            "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading and installing a new version",
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination",
        )
    )
    for rank in range(world.n):
        if world.host(rank) == host:
            world.traceback(rank, text, "train.py:12:main", 20)
    world.files[f"nvidia-smi-{host}.txt"] = (
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.82\n"
    )
    for rank in range(world.n):
        if world.host(rank) != host:
            world.gloo_lost(rank, 40)
    world.ending({r: 1 for r in range(world.n) if world.host(r) == host}, s=60)
    return Label(None, host)


@scenario("env.fabric-manager-down")
def fabric(world: World) -> Label:
    bad = world.rng.randrange(world.hosts)
    host = world.names[bad]
    for rank in range(world.n):
        if world.host(rank) == host:
            world.traceback(
                rank,
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized",
                "train.py:12:main",
                20,
            )
        else:
            world.gloo_lost(rank, 40)
    world.ending({r: 1 for r in range(world.n) if world.host(r) == host}, s=60)
    world.files[f"systemctl-{host}.txt"] = (
        "● nvidia-fabricmanager.service - NVIDIA fabric manager service\n     Loaded: loaded (/lib/systemd/system/nvidia-fabricmanager.service; enabled)\n     Active: failed (Result: exit-code) since Mon 2026-03-02 03:11:20 UTC; 2h ago\n"
    )
    return Label(None, host)


@scenario("env.glibc-mismatch")
def glibc(world: World) -> Label:
    bad = world.rng.randrange(world.hosts)
    host = world.names[bad]
    for rank in range(world.n):
        if world.host(rank) == host:
            world.traceback(
                rank,
                "ImportError: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by /opt/venv/lib/python3.11/site-packages/flash_attn_2_cuda.so)",
                "train.py:3:<module>",
                10,
            )
        else:
            world.gloo_lost(rank, 40)
    world.ending({r: 1 for r in range(world.n) if world.host(r) == host}, s=60)
    return Label(None, host)
