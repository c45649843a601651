"""HF Transformers Trainer: ``checkpoint-N/`` with ``trainer_state.json`` (written last), weights, optimizer, schedule,
RNG."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, deepspeed, safetensors
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, StepValue
from ddaudit.inert import Call, Malformed, read_json, unsafe_name

NAME = "hf-trainer"
STATE = "trainer_state.json"
_RNG = re.compile(r"^rng_state(?:_(\d+))?\.pth$")
_DIR = re.compile(r"^checkpoint-(\d+)$")
_OWN = ("training_args.bin", "scheduler.pt", "optimizer.pt")
_BIN = re.compile(r"^(pytorch_model|adapter_model)(-\d{5}-of-\d{5})?\.bin$")


def detect(folder: Folder) -> bool:
    if STATE in folder and (any(n in folder for n in (*_OWN, "config.json")) or _is_trainers(folder)):
        return True
    own = sum(n in folder for n in _OWN)
    named = _DIR.match(folder.name) and ("config.json" in folder or safetensors.detect(folder))
    return (
        own >= 2
        or (own >= 1 and any(_RNG.match(n) for n in folder.here()))
        or bool(named and (own or "config.json" in folder))
    )


def _is_trainers(folder: Folder) -> bool:
    """Other programs write a trainer_state.json too; the Trainer's has a log."""
    try:
        state = read_json(folder.read(STATE, 64 << 20)).value
    except Malformed:
        return True
    return isinstance(state, dict) and ("log_history" in state or "is_world_process_zero" in state)


def read(reader: Reader) -> None:
    folder, made = reader.folder, reader.made
    state = reader.json(STATE) if STATE in folder else None
    if STATE not in folder:
        text = f"{STATE} is missing: it is written last, so the save did not finish"
        made.fault("complete.marker-missing", text, file=folder.full(STATE), measured=0, limit=1, unit="file")
    else:
        made.completion = Completion(proven=True, proof=f"{STATE} is written last, and it is there")
    args = _training_args(reader)
    _trainer_state(made, state if isinstance(state, dict) else {}, args, folder.full(STATE))
    _weights(reader)
    sharded = _engine(reader)
    for name, prefix in (("optimizer.pt", "optimizer"), ("scheduler.pt", "scheduler"), ("scaler.pt", "scaler")):
        if name in folder:
            reader.load(name, prefix)
    _rng(reader)
    _promise(made, args, sharded)
    _config(reader)


def _training_args(reader: Reader) -> dict[str, Any]:
    made, name = reader.made, "training_args.bin"
    if name not in reader.folder:
        text = f"{name} is missing: batch size, accumulation and schedule of the run are not recorded"
        made.fault("complete.optional-missing", text, file=reader.folder.full(name))
        return {}
    found = reader.load(name, "args")
    state = found.value.state if found is not None and isinstance(found.value, Call) else None
    args = state if isinstance(state, dict) else {}
    full = reader.folder.full(name)
    made.know("micro_batch", args.get("per_device_train_batch_size"), f"per_device_train_batch_size in {full}")
    made.know("accumulation", args.get("gradient_accumulation_steps"), f"gradient_accumulation_steps in {full}")
    return args


def _trainer_state(made: Checkpoint, state: dict[str, Any], args: dict[str, Any], full: str) -> None:
    step = state.get("global_step")
    if type(step) is int:
        made.steps.append(StepValue(name="trainer_state.global_step", value=step, unit="update", file=full, main=True))
    for key in ("epoch", "max_steps", "num_train_epochs", "train_batch_size", "num_input_tokens_seen"):
        if isinstance(state.get(key), (int, float)):
            made.values[f"trainer_state.{key}"] = _value(f"trainer_state.{key}", state[key], full)
    for key in ("epoch", "max_steps"):
        if state and key not in state:
            text = f"{STATE} has no {key}: the Trainer would go on from its default"
            made.fault("complete.optional-missing", text, file=full, key=key)
    said, asked = state.get("max_steps"), args.get("max_steps")
    if type(said) is int and type(asked) is int and asked > 0 and said != asked:
        text = (
            f"max_steps is {said} in trainer_state.json but {asked} "
            f"in training_args.bin: the schedule was made for {asked}"
        )
        made.fault("state.disagrees", text, file=full, key="max_steps", measured=said, limit=asked, unit="update")
    if type(said) is int and type(step) is int and 0 < said < step:
        text = f"global_step {step} is beyond max_steps {said}"
        made.fault("state.disagrees", text, file=full, key="max_steps", measured=said, limit=step, unit="update")
    _epoch(made, state, args, step, full)


def _epoch(made: Checkpoint, state: dict[str, Any], args: dict[str, Any], step: Any, full: str) -> None:
    """``epoch`` grows evenly with the step: the log says how fast; a jump means that skips were counted wrongly."""
    epoch, history = state.get("epoch"), state.get("log_history")
    if not isinstance(epoch, (int, float)) or type(step) is not int or step <= 0 or not isinstance(history, list):
        return
    points = [
        (h["step"], h["epoch"])
        for h in history
        if isinstance(h, dict)
        and type(h.get("step")) is int
        and isinstance(h.get("epoch"), (int, float))
        and 0 < h["step"] <= step
        and h["epoch"] > 0
    ]
    if epoch > 0:
        made.facts["updates_per_epoch"] = step / epoch
    if points:
        rate = points[0][1] / points[0][0]
        if rate > 0 and abs(epoch / step - rate) > 0.25 * rate and abs(epoch - rate * step) > 2 * rate:
            text = (
                f"epoch {epoch:g} at step {step}, but the log counts {rate:.6g} epochs a step, {rate * step:.4g} in all"
            )
            made.fault("step.epoch-rate", text, file=full, key="epoch", measured=epoch, limit=rate * step, unit="epoch")


def _value(name: str, value: Any, file: str) -> Any:
    from ddaudit.checkpoint.model import Value

    return Value(name, value, file)


def _weights(reader: Reader) -> None:
    """Safetensors or .bin weights, sharded or not, adapters included."""
    folder, made = reader.folder, reader.made
    if safetensors.detect(folder):
        proven = made.completion
        safetensors.read(reader)
        made.completion = proven
    bins = [n for n in folder.here() if _BIN.match(n)]
    for name in bins:
        reader.load(name, "model")
    for index in (n for n in folder.here() if n.endswith(".bin.index.json")):
        table = reader.json(index, "index.malformed")
        files = set((table or {}).get("weight_map", {}).values()) if isinstance(table, dict) else set()
        for name in sorted(str(f) for f in files):
            if unsafe_name(name):
                made.fault("path.escape", f"{index}: the file name {name!r:.120} leads out", file=folder.full(index))
            elif name not in folder:
                made.fault(
                    "complete.file-missing", f"{index} names {name}, and it is not there", file=folder.full(name)
                )


def _engine(reader: Reader) -> bool:
    """Optimizer state kept by DeepSpeed or FSDP in the folder's own sub-trees."""
    folder, sharded = reader.folder, False
    for name in folder.folders():
        sub = folder.sub(name)
        if deepspeed.detect(sub):
            deepspeed.read(reader.sub(name))
            sharded = True
        elif dcp.detect(sub) and name.startswith(("optimizer", "pytorch_model", "model")):
            dcp.read(reader.sub(name), "optimizer." if name.startswith("optimizer") else "model.")
            sharded = True
    for name in folder.here():
        if re.match(r"^(optimizer\.bin|optimizer_\d+_rank\d+\.bin|pytorch_model_fsdp(_\d+_rank\d+)?\.bin)$", name):
            reader.load(name, "optimizer" if name.startswith("optimizer") else "model")
            sharded = True
    return sharded


def _rng(reader: Reader) -> None:
    """rng_state.pth of one process, or rng_state_R.pth of several."""
    folder, made = reader.folder, reader.made
    ranks = []
    for name in folder.here():
        match = _RNG.match(name)
        if match:
            rank = int(match[1]) if match[1] else None
            ranks += [rank] if rank is not None else []
            reader.load(name, f"rng_rank{rank or 0}", rank)
    if ranks:
        # A numbered file is only written by a job of two processes or more.
        made.know("ranks", max(max(ranks) + 1, 2), f"rng_state_{max(ranks)}.pth")
        made.facts["rng_family"] = "rng_state_{}.pth"
        batch = made.values.get("trainer_state.train_batch_size")
        if batch is not None and "micro_batch" not in made.world:
            made.know("micro_batch", batch.value, "train_batch_size in trainer_state.json")


def _promise(made: Checkpoint, args: dict[str, Any], sharded: bool) -> None:
    made.facts["homes"] = {
        "optimizer": "optimizer.pt",
        "schedule": "scheduler.pt",
        "step": STATE,
        "model": "model.safetensors",
        "rng": "rng_state_0.pth",
        "scaler": "scaler.pt",
    }
    made.promises.update(
        {"model": "required", "optimizer": "required", "schedule": "required", "sampler": "recomputed"}
    )
    made.promise_notes["sampler"] = "the Trainer recomputes the skip from global_step; world size and batch must stay"
    if args.get("ignore_data_skip") is True:
        made.promise_notes["sampler"] = "ignore_data_skip is set: the epoch starts anew on resume"
    if args.get("save_only_model") is True:
        made.promise_notes["optimizer"] = "save_only_model is set: made for inference, not for resuming"
    made.promises["scaler"] = "expected" if args.get("fp16") is True and not sharded else "unsaved"
    made.facts["fp16"] = args.get("fp16") is True


def _config(reader: Reader) -> None:
    """config.json: the dtype and shapes that the weights should have."""
    if "config.json" not in reader.folder:
        return
    config = reader.json("config.json")
    if isinstance(config, dict):
        reader.made.facts["config"] = {
            key: config[key] for key in safetensors.CONFIG_KEYS if isinstance(config.get(key), (str, int, bool))
        }
