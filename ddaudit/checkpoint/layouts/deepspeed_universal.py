"""DeepSpeed universal: ``zero/<parameter>/{fp32,exp_avg,exp_avg_sq,step}.pt`` beside copied model-state files."""

from __future__ import annotations

from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import deepspeed
from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion, StepValue
from ddaudit.inert import TensorRef

NAME = "deepspeed-universal"
_SHARED = ("optimizer_state.pt",)


def detect(folder: Folder) -> bool:
    zero = folder.sub("zero")
    if "zero" not in folder.folders():
        return False
    return any(n.endswith(("/fp32.pt", "/exp_avg.pt", "/step.pt")) for n in zero.names()) or bool(
        folder.sub("tmp").names()
    )


def read(reader: Reader) -> None:
    folder, made = reader.folder, reader.made
    shapes = _read_models(reader)
    zero = reader.sub("zero")
    words: dict[str, set[str]] = {}
    for parameter in zero.folder.folders():
        words[parameter] = _read_parameter(zero.sub(parameter), parameter, shapes.get(parameter))
    for name in _SHARED:
        if name in zero.folder:
            zero.load(name, "optimizer.universal")
        elif any("exp_avg" in have for have in words.values()):
            text = f"zero/{name} is missing: it holds the parameter groups, and the loader opens it first"
            made.fault("complete.file-missing", text, file=zero.folder.full(name), measured=0, limit=1, unit="file")
    _check(made, folder, words, shapes)
    if "tmp" in folder.folders():
        text = "tmp/ is still there: the conversion to the universal format did not finish"
        made.fault("complete.conversion-unfinished", text, file=folder.full("tmp"))


def _read_models(reader: Reader) -> dict[str, tuple[int, ...]]:
    """Counters and client state from the copied model files, and the shapes that must exist."""
    made, shapes = reader.made, {}
    models = [n for n in reader.folder.here() if n.endswith("_model_states.pt")]
    for name in models:
        state = deepspeed._read_model(reader, name, "", None if name.startswith("mp_rank") else _rank(name), 0)
        for group in (state or {}).get("param_shapes") or []:
            if isinstance(group, dict):
                shapes.update({str(k): v for k, v in group.items() if isinstance(v, tuple)})
        if state is not None:
            deepspeed._promise(made, state)
    if not models:
        path = reader.folder.full("mp_rank_00_model_states.pt")
        made.fault("complete.file-missing", "no model_states file is there", file=path)
    made.param_shapes.update({f"model.{k}": v for k, v in shapes.items()})
    return shapes


def _rank(name: str) -> int:
    part = name.removeprefix("zero_pp_rank_").split("_", 1)[0]
    return int(part) if part.isdigit() else 0


def _read_parameter(reader: Reader, parameter: str, shape: tuple[int, ...] | None) -> set[str]:
    """One parameter's folder. Each file is a tensor, or {"param": tensor, ...} with the way it was cut."""
    made, found_words = reader.made, set()
    for name in reader.folder.here():
        if not name.endswith(".pt"):
            continue
        word, full = name.removesuffix(".pt"), reader.folder.full(name)
        found_words.add(word)
        found = reader.torch(name)
        if found is None:
            continue
        ref: Any = found.value.get("param") if isinstance(found.value, dict) else found.value
        source = reader.folder.source(name)
        if word == "step":
            _add_step(reader, found, ref, parameter, name)
        elif isinstance(ref, TensorRef):
            tensor = reader.tensor_of(ref, found, source, f"optimizer.state.{parameter}.{word}", full, None)
            tensor.view = shape
            _check_shape(made, tensor, shape, full)
            made.add_tensor(tensor)
            if word == "fp32" and ref.dtype != "float32":
                text = f"{full} is {ref.dtype}: master weights are float32"
                made.fault("optimizer.dtype", text, file=full, tensor=tensor.name, measured=ref.dtype, limit="float32")
        else:
            made.fault("file.malformed", f"{full} holds no tensor", file=full, key=parameter)
    return found_words


def _add_step(reader: Reader, found: Any, value: Any, parameter: str, name: str) -> None:
    from ddaudit.checkpoint.scalars import decode

    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if isinstance(value, TensorRef) and value.numel == 1 and value.storage is not None:
        place = found.storages.get(value.storage.key)
        if place is not None and value.extent * value.item_bytes <= place.length:
            raw = reader.folder.source(name).read(place.offset + value.offset * value.item_bytes, value.item_bytes)
            number = decode(raw, value.dtype)
    if number is not None:
        step = StepValue(name=f"optimizer.state.{parameter}.step", value=number, unit="update",
                         file=reader.folder.full(name), tensor_of=parameter)  # fmt: skip
        reader.made.steps.append(step)


def _check_shape(made: Checkpoint, tensor: Tensor, shape: tuple[int, ...] | None, full: str) -> None:
    from math import prod

    if shape is not None and tensor.numel != prod(shape):
        text = f"{full}: {tensor.numel:,} elements, param_shapes says {list(shape)} = {prod(shape):,}"
        made.fault("optimizer.shape", text, file=full, tensor=tensor.name, measured=tensor.numel, limit=prod(shape))


def _check(made: Checkpoint, folder: Folder, words: dict[str, set[str]], shapes: dict[str, tuple[int, ...]]) -> None:
    """Every parameter of param_shapes has a folder, and every folder the same files."""
    everything = set().union(*words.values()) if words else set()
    real = {p: have for p, have in words.items() if p in shapes} if shapes else words  # buffers have their value only
    common = {w for w in everything if sum(w in have for have in real.values()) * 2 > len(real)}
    for parameter, have in real.items():
        for word in sorted(common - have):
            path = folder.full(f"zero/{parameter}/{word}.pt")
            made.fault(
                "complete.shard-missing",
                f"{parameter} has no {word}.pt, other parameters do",
                file=path,
                tensor=parameter,
                key=word,
            )
    for parameter in sorted(set(shapes) - set(words)):
        path = folder.full(f"zero/{parameter}")
        made.fault("complete.shard-missing", f"{parameter} has no folder below zero/", file=path, tensor=parameter)
    if "exp_avg" not in everything and "momentum_buffer" in everything:
        made.fault(
            "universal.not-adam",
            "the states are not Adam's: the universal loader knows Adam's names only",
            key="momentum_buffer",
        )
    whole = not any(f.kind == "complete.shard-missing" for f in made.faults)
    proof = f"{len(words)} parameter folders for {len(shapes)} parameters in param_shapes"
    made.completion = Completion(proven=whole if shapes else None, proof=proof)
