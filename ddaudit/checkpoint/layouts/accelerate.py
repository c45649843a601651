"""Accelerate ``save_state``: weights, ``optimizer.bin``, ``scheduler.bin``, ``dl_state_dict.bin``,
``random_states_R.pkl``."""

from __future__ import annotations

import re

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, deepspeed, safetensors
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, StepValue

NAME = "accelerate"
_RNG = re.compile(r"^random_states_(\d+)\.pkl$")
_CUSTOM = re.compile(r"^custom_checkpoint_(\d+)\.pkl$")
_MODEL_BIN = re.compile(r"^pytorch_model(_\d+|_fsdp\w*)?\.bin$")
_PARTS = re.compile(r"^(optimizer|scheduler|sampler|dl_state_dict)(_\d+)?(_rank\d+)?\.bin$")
_PREFIX = {"optimizer": "optimizer", "scheduler": "scheduler", "sampler": "sampler", "dl_state_dict": "dataloader"}


def detect(folder: Folder) -> bool:
    names = folder.here()
    return any(_RNG.match(n) for n in names) or sum(bool(_PARTS.match(n)) for n in names) >= 2


def read(reader: Reader) -> None:
    folder, made = reader.folder, reader.made
    ranks = []
    for name in folder.here():
        rng, part = _RNG.match(name), _PARTS.match(name)
        if rng:
            ranks.append(int(rng[1]))
            _random_states(reader, name, int(rng[1]))
        elif part:
            number = (part[2] or "") + (part[3] or "")
            reader.load(name, _PREFIX[part[1]] + (f".{number.strip('_')}" if number else ""))
        elif _CUSTOM.match(name):
            reader.load(name, name.removesuffix(".pkl"))
        elif _MODEL_BIN.match(name):
            reader.load(name, "model" + (name.removeprefix("pytorch_model").removesuffix(".bin").replace("_", ".")))
        elif name == "scaler.pt":
            reader.load(name, "scaler")
    if safetensors.detect(folder):
        safetensors.read(reader)
    _engine(reader)
    made.completion = Completion(proven=None, proof="accelerate writes no marker; only the set of files can tell")
    _world(made, ranks)
    _promise(reader, made)


def _random_states(reader: Reader, name: str, rank: int) -> None:
    """Each process's RNG, and the micro-batches it has run (``step``)."""
    made, prefix = reader.made, f"rng_rank{rank}"
    reader.load(name, prefix, rank)
    step = made.values.pop(f"{prefix}.step", None)
    if step is not None and type(step.value) is int:
        made.steps.append(
            StepValue(
                name=f"{name}:step", value=step.value, unit="micro-batch", file=reader.folder.full(name), rank=rank
            )
        )


def _engine(reader: Reader) -> None:
    for name in reader.folder.folders():
        sub = reader.folder.sub(name)
        if deepspeed.detect(sub):
            deepspeed.read(reader.sub(name))
        elif dcp.detect(sub):
            dcp.read(reader.sub(name), "optimizer." if name.startswith("optimizer") else "model.")
        elif "latest" in sub:
            for tag in sub.folders():
                if deepspeed.detect(sub.sub(tag)):
                    deepspeed.read(reader.sub(f"{name}/{tag}"))


def _world(made: Checkpoint, ranks: list[int]) -> None:
    """The number of random_states files; the wrapped scheduler, which every process steps, tells when some are lost."""
    count = max(ranks) + 1 if ranks else 0
    made.facts["rng_family"] = "random_states_{}.pkl"
    epochs = [v.value for n, v in made.values.items() if n.startswith("scheduler") and n.endswith("last_epoch")]
    steps = {t.name: t for t in made.tensors.values() if t.name.startswith("optimizer") and t.name.endswith(".step")}
    made.facts["accelerate_scheduler"] = (epochs[0] if epochs and type(epochs[0]) is int else None, len(steps), count)
    made.facts["schedule_unit"] = "process-update"
    if count:
        made.facts["accelerate_ranks"] = count


def finish(made: Checkpoint) -> None:
    """After tensor values are known: processes = scheduler steps per optimizer step."""
    groups = [n for n in made.values if n.startswith("optimizer") and "param_groups" in n]
    if groups and not any(n.endswith("initial_lr") for n in groups):
        made.promises["schedule"] = "unsaved"
        made.promise_notes["schedule"] = "the optimizer's groups have no initial_lr, so none was attached to it"
    epoch, _, count = made.facts.get("accelerate_scheduler", (None, 0, 0))
    steps = [
        t.value
        for t in made.tensors.values()
        if t.name.startswith("optimizer") and t.name.endswith(".step") and t.value
    ]
    if epoch and steps and epoch % steps[0] == 0 and epoch >= steps[0]:
        processes = int(epoch // steps[0])
        if count > 1 and processes > 2 * count:
            text = f"the schedule stands at {epoch}: that would be {processes} processes, {count} saved a random state"
            made.fault("step.schedule-mismatch", text, file="scheduler.bin", measured=epoch, limit=steps[0] * count)
        elif processes > max(count, 1) and processes <= 65536:
            made.know("ranks", processes, f"scheduler last_epoch {epoch} / optimizer step {steps[0]:g}")
            return
    if count:
        made.know("ranks", count, f"{count} random_states files")


def _promise(reader: Reader, made: Checkpoint) -> None:
    made.facts["homes"] = {"optimizer": "optimizer.bin", "schedule": "scheduler.bin", "sampler": "dl_state_dict.bin",
                           "step": "custom_checkpoint_0.pkl", "model": "model.safetensors"}  # fmt: skip
    made.promises.update({"model": "required", "optimizer": "required", "sampler": "required", "scaler": "unsaved"})
    made.promise_notes["sampler"] = "accelerate saves a position only for stateful loaders (dl_state_dict.bin)"
    made.promise_notes["step"] = (
        "accelerate counts micro-batches only; the step is in a registered object (custom_checkpoint_0.pkl)"
    )
    told = ("custom_checkpoint_", "dl_state_dict", "sampler")
    if not any(n.startswith(told) for n in reader.folder.here()):
        # Neither a counter nor a stateful loader was given to accelerate: the script keeps both itself.
        made.promises.update({"sampler": "unsaved", "step": "unsaved"})
        made.promise_notes["step"] = "no counter was registered; the script must know the step, as by the folder's name"
