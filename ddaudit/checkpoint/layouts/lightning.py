"""PyTorch Lightning: one ``.ckpt`` file, or a folder (FSDP/ModelParallel: DCP plus ``meta.pt``; DeepSpeed: a ZeRO
tree)."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.flatten import add_tree
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, deepspeed
from ddaudit.checkpoint.layouts.lightning_loops import check_epoch, find_schedule
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, Position, StepValue
from ddaudit.inert import Malformed, looks_like_torch

NAME = "lightning"
META = "meta.pt"
_OPTIMIZER = re.compile(r"optimizer_states\.(\d{1,4})\.")
_VERSION = "pytorch-lightning_version"
_KEYS = ("loops", "optimizer_states", "lr_schedulers", "callbacks", "hyper_parameters")


def detect(folder: Folder) -> bool:
    """The folder form; DeepSpeed's is found through the tag folder that ``latest`` names."""
    return (META in folder and (dcp.detect(folder) or "checkpoint" in folder.folders())) or _deepspeed(
        folder
    ) is not None


def _deepspeed(folder: Folder) -> str | None:
    tag = "checkpoint"
    return (
        tag if folder.name.endswith(".ckpt") and tag in folder.folders() and deepspeed.detect(folder.sub(tag)) else None
    )


def is_lightning(value: Any) -> bool:
    """True for the dictionary of a Lightning checkpoint, also of one that lost a key."""
    if not isinstance(value, dict):
        return False
    return _VERSION in value or ("state_dict" in value and sum(k in value for k in _KEYS) >= 2)


def detect_file(folder: Folder, name: str) -> bool:
    try:
        source = folder.source(name)
        if not looks_like_torch(source):
            return False
        from ddaudit.inert import read_torch

        return is_lightning(read_torch(source).value)
    except Malformed:
        return False


def read(reader: Reader, only: str | None = None) -> None:
    folder, made = reader.folder, reader.made
    if only is not None:
        found = reader.torch(only)
        if found is not None:
            _add(reader, found.value, found, only)
        made.completion = Completion(
            proven=True, proof="the file is written whole and renamed; its directory says it is whole"
        )
        return
    tag = _deepspeed(folder)
    if tag is not None:
        deepspeed.read(reader.sub(tag))
        state = {n: v.value for n, v in made.values.items()}
        _find_loops(made, state, folder.full(tag))
        _promise(made)
        return
    if META in folder:
        found = reader.torch(META)
        if found is not None:
            _add(reader, found.value, found, META)
    dcp.read(reader)


def _add(reader: Reader, value: Any, found: Any, name: str) -> None:
    made, full = reader.made, reader.folder.full(name)
    add_tree(reader, value, found, reader.folder.source(name), "", full)
    state = value if isinstance(value, dict) else {}
    _promise(made)
    if state.get("lr_schedulers") == []:
        made.promises["schedule"] = "unsaved"
        made.promise_notes["schedule"] = "the job registered none"
    made.facts["lightning"] = str(state.get(_VERSION, "?"))
    flat = {n: v.value for n, v in made.values.items()}
    _find_loops(made, flat, full)
    loops = state.get("loops")
    if "global_step" in state and not (isinstance(loops, dict) and loops.get("fit_loop")):
        made.fault(
            "key.missing",
            "the loops' counters are not in the file: position and epoch are lost",
            file=full,
            key="loops",
        )
    sharded = name == META
    for key in ("state_dict", "global_step", "optimizer_states", "lr_schedulers", "epoch"):
        if key not in state and not (sharded and key in ("state_dict", "optimizer_states")):
            missing = "weights-only save" if key == "optimizer_states" else "the key is not in the file"
            made.facts.setdefault("lightning_missing", {})[key] = missing


def _promise(made: Checkpoint) -> None:
    made.promises.update(
        {
            "model": "required",
            "optimizer": "required",
            "schedule": "expected",
            "sampler": "recomputed",
            "rng": "unsaved",
        }
    )
    made.promise_notes["rng"] = "Lightning saves no RNG state"
    made.promise_notes["sampler"] = "Lightning skips batches by its loop counters; a stateful loader adds its own state"


def _find_loops(made: Checkpoint, flat: dict[str, Any], file: str) -> None:
    """Loop counters. ``completed`` trails ``processed`` by one inside a batch hook, and ``_batches_that_stepped`` the
    step."""
    head = "loops.fit_loop."

    def number(name: str) -> int | None:
        value = flat.get(head + name)
        return value if type(value) is int else None

    stepped = number("epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed")
    manual = number("epoch_loop.manual_optimization.optim_step_progress.total.completed")
    total = stepped or manual
    if total:
        made.steps.append(
            StepValue(name=head + "optimizer.step.total.completed", value=total, unit="update", file=file)
        )
    processed = number("epoch_loop.batch_progress.total.processed")
    completed = number("epoch_loop.batch_progress.total.completed")
    ready = number("epoch_loop.batch_progress.total.ready")
    if processed is not None and completed is not None and ready is not None:
        _check_counters(made, ready, processed, completed, file)
    current = number("epoch_loop.batch_progress.current.processed")
    in_epoch = number("epoch_loop.automatic_optimization.optim_progress.optimizer.step.current.completed")
    if processed and stepped and current is not None and in_epoch is not None:
        _check_current(made, current, in_epoch, max(1, round(processed / stepped)), file)
    _note_position(made, current, flat.get("epoch"), file)
    check_epoch(made, flat, file)
    find_schedule(made, flat, file, by_hand=not stepped and bool(manual))
    made.facts["optimizers"] = 1 + max((int(m[1]) for n in flat if (m := _OPTIMIZER.match(n))), default=0)
    if processed is not None:
        made.facts["micro_batches"] = processed


def _check_counters(made: Checkpoint, ready: int, processed: int, completed: int, file: str) -> None:
    """A batch is ready, then processed, then completed: a save finds at most one on its way."""
    if max(ready, processed) - completed > 1:
        made.fault(
            "step.loops",
            f"batch counters disagree: ready {ready}, processed {processed}, completed {completed}"
            " (a gap of one is normal)",
            file=file,
            key="loops.fit_loop.epoch_loop.batch_progress.total",
            measured=ready - completed,
            limit=1,
        )


def _check_current(made: Checkpoint, current: int, stepped: int, accumulation: int, file: str) -> None:
    """Batches and optimizer steps of this epoch tell one position; two mean that a resume skips the wrong number."""
    wanted = -(-current // accumulation)
    if abs(wanted - stepped) > 1:
        key = "loops.fit_loop.epoch_loop.batch_progress.current.processed"
        text = f"{current} batches of this epoch are {wanted} optimizer steps, but {stepped} were counted"
        made.fault("step.loop-mismatch", text, file=file, key=key, measured=wanted, limit=stepped, unit="update")


def _note_position(made: Checkpoint, current: int | None, epoch: Any, file: str) -> None:
    """Batches of this epoch: by them Lightning skips on resume."""
    if current is None:
        return
    name = "loops.fit_loop.epoch_loop.batch_progress.current.processed"
    made.facts["batches_in_epoch"] = current
    number = epoch if type(epoch) is int else None
    made.positions.append(Position(name=name, scope="rank", batches=current, epoch=number, file=file, kind="loop"))
    made.extra_areas.setdefault("sampler", []).append("loops.fit_loop.epoch_loop.batch_progress")
