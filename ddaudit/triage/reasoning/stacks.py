"""What a stuck process does, read off its stack."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ddaudit.evidence.incident import Process, Spot, Stack
from ddaudit.triage.reasoning.case import Case

__all__ = ["Doing", "collective_name", "doing", "in_collective", "main_stack"]

_COLLECTIVE = re.compile(
    r"(?i)distributed/distributed_c10d|c10d_logger|_functional_collectives|ProcessGroup|ncclKernel|ncclAllReduce|gloo::|_engine_run_backward"
    r"|autograd/graph\.py|^(?:barrier|all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|all_to_all\w*"
    r"|monitored_barrier) |work\.wait|cuda/streams\.py|synchronize \(torch/cuda"
    r"|cudaStreamSynchronize|cudaEventSynchronize|_fsdp_|fully_shard|schedules?\.py|p2p_communication|wait_stream"
)
_LOADER = re.compile(
    r"(?i)_try_get_data|_get_data \(|_next_data|__next__ \(.*(?:dataloader|loader|dataset)|dataloader\.py"
    r"|prefetch\w* \(|tf/data|dali"
)
_LOCK_FILE = re.compile(
    r"(?i)file_baton|filelock|portalocker|fasteners|lockfile|\bflock\b|lockf|_jit_compile|cpp_extension\.py"
    r"|acquire_lock \(|soft_?lock|triton/runtime/cache"
)
_STORE = re.compile(
    r"(?i)(?:fsync|fdatasync|\bwrite\b|\bread\b|readinto|\bopen\b|os\.stat|listdir|scandir|rename|unlink|_write|_save|save_file|copyfile\w*|pread|pwrite)\b"
)
_SAVE = re.compile(r"(?i)checkpoint|torch/serialization|_save|safetensors|fsspec|torch\.save|save_pretrained|ckpt")
_LOCK = re.compile(
    r"(?i)\b(?:acquire|_acquire\w*|take_gil|PyGILState_Ensure|PyEval_RestoreThread|pthread_mutex_lock|__lll_lock_wait\w*|futex_wait\w*|sem_wait|pthread_cond_wait|_wait_for_tstate_lock)\b"
    r"|logging/__init__\.py.*|handle \(logging"
)
_CHILD = re.compile(
    r"(?i)communicate \(subprocess|wait \(subprocess|_try_wait|poll \(multiprocessing|waitpid"
    r"|join \(multiprocessing|join \(threading|_communicate|wait4"
)
_PIPE = re.compile(
    r"(?i)_recv_bytes|_recv \(multiprocessing|recv \(multiprocessing|get \(multiprocessing/queues"
    r"|_send \(multiprocessing|put \(queue"
)
_D_STORAGE = re.compile(
    r"(?i)cl_|nfs|rpc|lustre|ptlrpc|gpfs|cxi|fuse|request_wait|io_schedule|wait_on_page|folio|wait_on_buffer|xfs|ext4|ceph|beegfs|vfs|blk|jbd2|osc_|ll_|lock_page|mmfs"
)


@dataclass(frozen=True)
class Doing:
    """A cause id for what the process does, in words, with the frames that show it."""

    cause: str
    words: str
    spots: tuple[Spot, ...]


def main_stack(case: Case, rank: int) -> Stack | None:
    """The last main-thread stack of a rank."""
    mine = [s for s in case.incident.stacks if s.rank == rank and s.main]
    return mine[-1] if mine else None


def collective_name(stack: Stack) -> str | None:
    """The collective that a main thread is in (``all_reduce``), when its stack shows one by name."""
    for frame in stack.frames[:6]:
        name, _, place = frame.partition(" (")
        if "distributed_c10d" in place and name not in ("wrapper", "wait", "_wait"):
            return name
    return None


def in_collective(stack: Stack) -> bool:
    """True when the main thread waits in (or for) a collective or the device, as a healthy waiting rank does."""
    top = stack.frames[:6]
    if any(_LOADER.search(f) or _LOCK_FILE.search(f) for f in top):
        return False
    return any(_COLLECTIVE.search(f) for f in top)


def doing(case: Case, rank: int) -> Doing | None:
    """What a rank that did not come does, from stacks and the process list."""
    stack = main_stack(case, rank)
    stuck = _stopped(case, rank)
    if stack is None or (stuck is not None and "stopped" in stuck.words):
        return stuck
    depth, cause, words = _classify(stack)
    spots = stack.spots[depth : depth + 2] or stack.spots[:2]
    workers = [s for s in case.incident.stacks if s.worker and s.rank == rank]
    sleeping = _sleeping(case, stack, workers)
    if cause == "data.loader-stalled" and workers and all(_locked(w) for w in workers):
        return Doing(
            "app.deadlock",
            "waits for loader workers that wait for a lock (held over a fork)",
            (*spots, *(w.spots[0] for w in workers[:2])),
        )
    if cause in ("data.loader-stalled", "storage.fs-hang"):
        spots = (*spots, *(p.spot for p in sleeping[:2]), *(w.spots[0] for w in workers[:1]))
    if cause == "" and sleeping:
        cause, words = "storage.fs-hang", "sleeps uninterruptibly in a file system"
        spots = (*spots, *(p.spot for p in sleeping[:2]))
    if cause == "" and stuck is not None:
        return stuck
    return Doing(cause, words, tuple(spots)) if cause else None


def _classify(stack: Stack) -> tuple[int, str, str]:
    """(depth of the telling frame, cause, words): the most telling kind of frame decides, the innermost of it."""
    frames = stack.frames
    for pattern, cause, words in (
        (_LOCK_FILE, "app.stale-lock", "waits for a lock file"),
        (_LOADER, "data.loader-stalled", "waits for its data loader"),
    ):
        for depth, frame in enumerate(frames[:14]):
            if pattern.search(frame):
                return depth, cause, words
    if any(_SAVE.search(f) for f in frames[:12]) and any(_STORE.search(f.split(" (")[0]) for f in frames[:4]):
        depth = next(i for i, f in enumerate(frames[:4]) if _STORE.search(f.split(" (")[0]))
        return depth, "storage.fs-hang", "is inside a file operation of a checkpoint"
    if in_collective(stack):
        return 0, "", ""
    for pattern, words in (
        (_CHILD, "waits for a child process or thread"),
        (_PIPE, "waits on a pipe or queue"),
        (_LOCK, "waits for a lock"),
    ):
        for depth, frame in enumerate(frames[:5]):
            if pattern.search(frame):
                return depth, "app.deadlock", words
    if any(_STORE.search(f.split(" (")[0]) for f in frames[:2]):
        return 0, "storage.fs-hang", "is inside a file operation"
    return 0, "collective.desync", "runs code outside of the collective that the others wait in"


def _locked(worker: Stack) -> bool:
    return any(_LOCK.search(f) for f in worker.frames[:3]) and not any(
        re.search(r"get \(multiprocessing/queues", f) for f in worker.frames[:4]
    )


def _sleeping(case: Case, stack: Stack, workers: list[Stack]) -> list[Process]:
    pids = {stack.pid, *(w.pid for w in workers)}
    return [p for p in case.incident.processes if p.state.startswith("D") and p.pid in pids]


def _stopped(case: Case, rank: int) -> Doing | None:
    """From the process list alone: stopped by a signal, or in uninterruptible sleep."""
    place = case.incident.ranks.get(rank)
    for process in case.incident.processes:
        if place is not None and process.pid == place.pid and process.host in (None, place.host):
            if process.state.startswith(("T", "t")):
                return Doing("app.deadlock", "is stopped by a signal (state T)", (process.spot,))
            if process.state.startswith("D"):
                storage = bool(_D_STORAGE.search(process.wchan))
                words = f"sleeps uninterruptibly in {process.wchan or 'the kernel'}"
                return Doing("storage.fs-hang" if storage else "app.deadlock", words, (process.spot,))
    return None
