"""Which part of a training state a name belongs to, by the words that frameworks use for it."""

from __future__ import annotations

import re

_WORDS = {
    "optimizer": (
        "optimizer", "optimizers", "optim", "optims", "opt", "optimizer_state", "optimizer_states", "optim_state",
        "optimizer_state_dict", "optim_state_dict", "optimizers_state", "optimizer_weights", "base_optimizer_state",
        "distrib_optim", "fp32_flat_groups", "chained_optimizer",
    ),
    "schedule": (
        "scheduler", "schedulers", "lr_scheduler", "lr_schedulers", "lr_scheduler_states", "opt_param_scheduler",
        "sched",
        "lr_sched", "scheduler_state", "scheduler_state_dict", "lr_scheduler_state_dict", "learning_rate_scheduler",
        "scheduler_states", "lr_schedule", "warmup_scheduler",
    ),
    "sampler": (
        "sampler", "samplers", "dataloader", "dataloaders", "data_loader", "train_dataloader", "train_loader", "loader",
        "dataset_state", "data_sampler", "dl_state", "dl_state_dict", "data_state", "combined_loader", "data_iterator",
        "train_sampler", "batch_sampler", "dataloader_state", "sampler_state", "train_data", "loader_state",
        "data_iter",
        "sampler_state_dict", "dataloader_state_dict", "train_dataloader_state", "data_loader_state",
    ),
    "rng": (
        "rng", "rng_state", "rng_states", "random_state", "random_states", "torch_manual_seed",
        "torch_cuda_manual_seed",
        "numpy_random_seed", "cuda_rng_state", "torch_rng_state", "python_rng_state", "numpy_rng_state",
        "random_rng_state",
        "np_rng_state", "rng_tracker_states", "rng_state_dict", "cpu_rng_state", "torch_rng", "numpy_rng", "python_rng",
        "cuda_rng_states",
    ),
    "scaler": (
        "scaler", "grad_scaler", "loss_scaler", "amp", "gradscaler", "scaler_state_dict", "scaler_state",
        "MixedPrecision",
        "amp_scaler", "scaler_states",
    ),
    "model": (
        "model", "models", "module", "modules", "state_dict", "model_state_dict", "model_state", "net", "network",
        "weights",
        "model_weights", "params", "parameters", "ema", "model_ema", "generator", "discriminator", "encoder", "decoder",
    ),
}  # fmt: skip
_OTHER = frozenset(
    (
        "callbacks",
        "hyper_parameters",
        "hparams",
        "args",
        "config",
        "loops",
        "metrics",
        "history",
        "metadata",
        "train_state",
        "trainer_state",
        "ds_config",
        "custom_checkpoint",
        "timestamp",
        "stats",
        "best_metric",
        "rerun_state_machine",
    )
)
_AREA = {word: area for area, words in _WORDS.items() for word in words}
_RANKED = re.compile(r"^(.*?)[_-]?(?:dp_|tp_|pp_)?rank[_-]?(\d+)$")
#: One of several: optimizer_g, optimizerD, critic_optimizer, scheduler_g.
_ONE_OF = (
    (
        "optimizer",
        re.compile(r"^(?:optimizer|optim|opt)(?:_[a-z0-9]{1,16}|[A-Z])$|^[a-zA-Z0-9]{1,16}_(?:optimizer|optim|opt)$"),
    ),
    ("schedule", re.compile(r"^(?:lr_)?scheduler(?:_[a-z0-9]{1,16}|[A-Z])$|^[a-zA-Z0-9]{1,16}_scheduler$")),
)
_DESCRIBED = frozenset(
    [
        "config",
        "cfg",
        "name",
        "type",
        "class",
        "args",
        "kwargs",
        "params",
        "hparams",
        "lr",
        "step",
        "steps",
        "version",
        "dtype",
    ]
)
_RNG_PARTS = ("rng", "cuda", "torch", "numpy", "python", "cpu", "random")
_SEARCH = 4  # components looked at from the left

#: Words of a wrapper around parameter names, in any position.
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_MOMENTS = {
    "exp_avg": "first", "exp_avg_sq": "second", "max_exp_avg_sq": "second", "momentum_buffer": "first", "m": "first",
    "v": "second", "square_avg": "second", "sum": "second", "acc_delta": "second", "exp_inf": "second", "momentum":
    "first",
    "velocity": "second",
    "exp_avg_sq_row": "second", "exp_avg_sq_col": "second", "row_var": "second", "col_var": "second", "variance":
    "second",
}  # fmt: skip


def area_of(name: str, is_tensor: bool = False) -> str | None:
    """The area of a dotted name; unknown tensors are weights, unknown values belong to no area."""
    parts = name.split(".")
    for part in parts[:_SEARCH]:
        if part in _OTHER or part.startswith("custom_checkpoint_"):
            return "sampler" if "combined_loader" in parts else None
        area = _AREA.get(part) or _AREA.get(part.split("/")[0])
        if area is None and (ranked := _RANKED.match(part)):
            area = _AREA.get(ranked[1])
        if area is None:
            area = one_of(part)
        if area is None and (part.startswith("rng_") or part.endswith("_rng_state")):
            area = "rng"
        if area is not None:
            return "sampler" if area == "model" and "combined_loader" in parts else area
    return "model" if is_tensor else None


def one_of(part: str) -> str | None:
    """The area of a word that names one of several optimizers or schedules."""
    if part in _AREA or _RANKED.match(part) or part.rsplit("_", 1)[-1] in _DESCRIBED:
        return None
    return next((area for area, pattern in _ONE_OF if pattern.match(part)), None)


def group_of(name: str, area: str) -> str:
    """What stands in front of the area word: "" or "rank1", "checkpoint_legacy" ... so that copies are not mixed; and
    the word itself where it names one of several."""
    parts = name.split(".")
    for index, part in enumerate(parts[:4]):
        if one_of(part) == area:
            return ".".join(parts[: index + 1])
        if area_of(part) == area or area_of(part + ".x") == area:
            return ".".join(parts[:index])
    return ""


def strip_area(name: str, area: str) -> str:
    """The name without leading words that only say the area (``model.``, ``module.``, ``state_dict.``)."""
    parts = name.split(".")
    while (
        len(parts) > 1 and _AREA.get(parts[0]) == area and not (area == "model" and parts[0] in ("encoder", "decoder"))
    ):
        parts = parts[1:]
    return ".".join(parts)


def canonical_weight(name: str) -> str:
    """A parameter's name without area word and without wrapper prefixes."""
    parts = [p for p in strip_area(name, "model").split(".") if p not in WRAPPERS]
    return ".".join(parts) or name


def has_wrapper(name: str) -> str | None:
    """The wrapper word that a parameter's name carries, if any (the area word in front does not count)."""
    parts = name.split(".")
    rest = parts[1:] if _AREA.get(parts[0]) == "model" else parts
    return next((p for p in rest if p in WRAPPERS), None)


def moment_word(name: str) -> str | None:
    """The word of an optimizer moment: at the end of the name, or in front of the parameter's."""
    if area_of(name) != "optimizer":
        return None
    parts = name.split(".")
    short = ("m", "v", "sum", "momentum", "velocity")  # also names of layers, so trusted only at the end
    inside = (p for p in parts[1:3] if p in _MOMENTS and p not in short)
    return parts[-1] if parts[-1] in _MOMENTS else next(inside, None)


def moment_of(name: str) -> tuple[str, str] | None:
    """(parameter, kind) of an optimizer moment: kind is "first", "second" or "other"; None for what is no moment."""
    word = moment_word(name)
    if word is None:
        return None
    parts = name.split(".")
    rest = parts[:-1] if parts[-1] == word else [p for p in parts if p != word]
    return ".".join(p for p in rest if p not in ("optimizer", "optim", "state")), _MOMENTS[word]


def keras_slot(name: str) -> tuple[str, str] | None:
    """(parameter, "m" or "v") of ``optimizer_weights.Adam.m.dense.kernel``, or with the word at the end, as older
    Keras has it."""
    parts = name.split(".")
    if parts[0] != "optimizer_weights" or len(parts) < 4:
        return None
    at = next((i for i in (2, len(parts) - 1) if parts[i] in ("m", "v", "momentum", "velocity")), None)
    return None if at is None else (".".join(parts[1:at] + parts[at + 1 :]), parts[at])


def is_second_moment(name: str) -> bool:
    """True for averages of squares, which cannot be negative."""
    found, keras = moment_of(name), keras_slot(name)
    return keras[1] == "v" if keras is not None else found is not None and found[1] == "second"


def rng_rank(name: str) -> int | None:
    """The rank that an RNG key belongs to (``rng_rank1``, ``rng.3.torch``), if its name says so."""
    for part in name.split(".")[:3]:
        match = re.match(r"^rng\w*?_?rank_?(\d+)$", part) or re.match(r"^rng_(\d+)$", part)
        if match:
            return int(match[1])
    match = re.match(r"^(?:\w+\.)?rng\.(\d+)\.", name)
    return int(match[1]) if match else None
