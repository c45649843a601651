"""The ``watch`` probe: runs a training script on the step's ranks with the watcher's hooks in place."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ddaudit.context import ProbeContext
from ddaudit.errors import RunbookProblem
from ddaudit.evidence import TrainingTrace, WatchedScript
from ddaudit.evidence.events import EventWriter, read_streams
from ddaudit.registry import probe

__all__ = ["WatchParams", "watch"]


class WatchParams(BaseModel):
    """``script`` runs as ``__main__`` with ``argv``. With ``twice`` it first runs once in a process of its own: as the
    leg that saves a checkpoint, or where it saves none as the run to compare with. ``label`` is for the reader.
    ``ddaudit watch`` itself runs any command instead."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    script: str = ""
    argv: tuple[str, ...] = ()
    twice: bool = False
    label: str = ""


@probe("watch", produces=(TrainingTrace, WatchedScript), params=WatchParams, where="ranks")
def watch(context: ProbeContext, params: WatchParams) -> None:
    """Runs the script on ranks that already share a process group; its own ``init_process_group`` finds it made.

    Records the training trace and what else was seen of the script. Judges nothing.

    Raises:
        RunbookProblem: the script is not there.
    """
    path = Path(params.script)
    if not path.is_file():
        raise RunbookProblem(
            f"no script {params.script!r}", fix="-P script=train.py, or `ddaudit watch -- torchrun ...`"
        )
    root = context.scratch / "runs"
    if params.twice and context.rank == 0:
        _first_leg(path, params, root / "earlier" / "events" / "script", context.remaining_s())
    _as_launched(context, path, params)
    from ddaudit.watch.install import install

    recorder = install(folder=context.events.path.parent, writer=context.events)
    error: BaseException | None = None
    try:
        runpy.run_path(str(path), run_name="__main__")
    except Exception as caught:  # judged like a script's own crash: what it did until then is evidence
        error = caught
        recorder.reporter.failed(type(caught), caught, caught.__traceback__)
    recorder.reporter.finish(recorder, "exit")
    if context.rank == 0:
        _close(context, params, root, 0 if error is None else 1)


def _as_launched(context: ProbeContext, path: Path, params: WatchParams) -> None:
    """The environment that torchrun would have given, and one process group for script and launcher."""
    import torch.distributed as dist

    os.environ.update(
        RANK=str(context.rank), WORLD_SIZE=str(context.world_size), LOCAL_RANK=str(context.local_rank),
        MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
    )  # fmt: skip
    sys.argv = [str(path), *params.argv]
    sys.path.insert(0, str(path.parent))
    dist.init_process_group = lambda *args, **kwargs: None


def _first_leg(path: Path, params: WatchParams, folder: Path, timeout_s: float) -> None:
    from ddaudit.watch.launch import environment

    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = {**environment(folder, 1, os.environ), **alone}
    subprocess.run([sys.executable, str(path), *params.argv], env=env, check=False, timeout=max(1.0, timeout_s))


def _close(context: ProbeContext, params: WatchParams, root: Path, code: int) -> None:
    from ddaudit.watch.companion import other_run
    from ddaudit.watch.join import join

    streams = [s for s in read_streams(context.events.path.parent) if s.name == context.events.path.stem]
    resume = join(root, root / "this", streams, None) if params.twice else None
    other = other_run(read_streams(root / "earlier" / "events" / "script"), "earlier") if params.twice else None
    script: dict[str, Any] = {"argv": [params.script, *params.argv], "exit_code": code, "cores": os.cpu_count()}
    if other is not None and resume is None:
        script |= dict.fromkeys(("single", "baseline"), other.model_dump(mode="json"))
    if resume is not None:
        script["resume"] = resume.model_dump(mode="json")
    with EventWriter(context.events.path.with_name(f"{context.events.path.stem}-watch.jsonl")) as writer:
        writer.emit("script", script=script)
