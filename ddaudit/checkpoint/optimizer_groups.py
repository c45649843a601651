"""What an optimizer's parameter groups promise: a state for every number, two moments for Adam, a step for each."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import area_of, group_of

#: Layouts that store torch.optim's own state dict, whose loader wants groups and a step for each parameter.
TORCH_STYLE = ("torch-files", "hf-trainer", "accelerate", "lightning", "dcp", "torchtitan")
_RATES = ("lr", "weight_decay", "eps", "betas", "momentum", "_last_lr", "base_lrs", "initial_lr")
_FIRST_ONLY = {"exp_avg", "step", "fp32", "param", "master"}
_MANY = 50_000


def words_of(made: Checkpoint, group: str) -> set[str]:
    """Names of the hyper-parameters in a group's ``param_groups``."""
    found = set()
    for name, value in made.values.items():
        if "param_groups" in name and value.value != [] and group_of(name, "optimizer") == group:
            found.update(name.split(".")[-2:])
    return found


def declared_ids(made: Checkpoint, group: str) -> list[Any] | None:
    """Parameters that ``param_groups`` list; None where no group lists any."""
    found: list[Any] = []
    seen = False
    for value in made.values.values():
        listed = value.name.endswith(".params") and "param_groups" in value.name
        if listed and group_of(value.name, "optimizer") == group:
            seen = True
            found += value.value if isinstance(value.value, list) else []
    return found if seen else None


def is_adam(words: set[str]) -> bool:
    return {"betas", "eps"} <= words


def check_stateless(made: Checkpoint) -> None:
    """Groups of a stateful optimizer without any state: only right before the first update."""
    if any(s.main and s.value == 0 for s in made.steps):
        return
    if any(area_of(t.name) == "optimizer" for t in made.tensors.values()):
        return
    group = next((group_of(n, "optimizer") for n in made.values if "param_groups" in n), None)
    if group is None or not is_adam(words_of(made, group)):
        return
    count = len(declared_ids(made, group) or [])
    where = next(v for n, v in made.values.items() if "param_groups" in n)
    text = f"param_groups list {count} parameters, and none of them has moments: Adam would start anew"
    made.fault("optimizer.absent", text, file=where.file, key="state", measured=0, limit=count, unit="parameter")


def check_promises(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], group: str, *, numbered: bool) -> None:
    """Holds the states of one group against what its hyper-parameters and its loader need."""
    words = words_of(made, group)
    some = next(iter(next(iter(by_owner.values())).values()))
    _check_twice(made, group)
    if numbered and not words and made.layout in TORCH_STYLE:
        text = "states are numbered, but no param_groups say which parameter has which number"
        made.fault("optimizer.groups", text, file=some.file, key="param_groups", measured=0, limit=1, unit="group")
    kinds = {w for states in by_owner.values() for w in states}
    others = {
        t.name.rsplit(".", 1)[-1]
        for t in made.tensors.values()
        if area_of(t.name) == "optimizer" and ".state." in t.name and group_of(t.name, "optimizer") == group
    }
    lost = is_adam(words) and "exp_avg" in kinds and not (kinds | others) - _FIRST_ONLY
    if lost or _megatron_lost(made, kinds):
        text = f"no parameter has exp_avg_sq, and the optimizer is Adam: it cannot continue from {some.name}"
        made.fault("optimizer.state-missing", text, file=some.file, tensor=some.name, key="exp_avg_sq")
    if made.layout in TORCH_STYLE and is_adam(words) and len(by_owner) < _MANY:
        _check_steps(made, by_owner, group, some)


def _megatron_lost(made: Checkpoint, kinds: set[str]) -> bool:
    """Megatron keeps exp_avg for Adam (and for Lion, which its arguments then name), and Adam needs its square."""
    return (
        made.layout in ("megatron-legacy", "megatron-dist", "nemo")
        and made.facts.get("megatron_optimizer", "adam") == "adam"
        and "exp_avg" in kinds
        and "exp_avg_sq" not in kinds
        and not any("exp_avg_sq" in name for name in made.tensors)
    )


def _check_twice(made: Checkpoint, group: str) -> None:
    """No parameter is in two groups of one optimizer."""
    listed: dict[str, Counter[str]] = {}
    for name, value in made.values.items():
        if name.endswith(".params") and "param_groups" in name and group_of(name, "optimizer") == group:
            ids = value.value if isinstance(value.value, list) else []
            listed.setdefault(f"{value.file}:{name.split('param_groups')[0]}", Counter()).update(map(str, ids))
    for place, counts in listed.items():
        twice = [i for i, n in counts.items() if n > 1]
        if twice:
            text = f"param_groups list parameter {twice[0]} more than once"
            file = place.rsplit(":", 1)[0]
            made.fault("optimizer.groups", text, file=file, key=twice[0], measured=len(twice), limit=0)


def _check_steps(made: Checkpoint, by_owner: dict[str, dict[str, Tensor]], group: str, some: Tensor) -> None:
    """torch's Adam counts updates for each parameter; without the count its bias correction starts anew or fails."""
    owners = [s.tensor_of for s in made.steps if s.tensor_of is not None]
    counted = {o.removeprefix(f"{group}.") if group else o for o in owners}
    lost = [o for o in by_owner if o not in counted]
    if owners and len(lost) * 2 >= len(by_owner):
        return  # counted in another form: for each group, or by a sharded engine
    for owner in lost[:1]:
        text = f"{owner} has moments but no step ({len(lost)} of {len(by_owner)} parameters)"
        made.fault(
            "optimizer.state-missing",
            text,
            file=some.file,
            tensor=owner,
            key="step",
            measured=len(lost),
            limit=0,
            unit="parameter",
        )


def check_rates(made: Checkpoint) -> None:
    """Learning rates and other hyper-parameters that are not finite make the first update not finite."""
    for value in made.values.values():
        parts = value.name.split(".")
        word = next((p for p in parts[-2:] if p in _RATES), None)
        if word is None or area_of(value.name) not in ("optimizer", "schedule"):
            continue
        numbers = value.value if isinstance(value.value, list) else [value.value]
        if any(isinstance(n, float) and not math.isfinite(n) for n in numbers):
            text = f"{value.name} is {value.value}: the next update would not be finite"
            made.fault("values.not-finite-optimizer", text, file=value.file, key=value.name, measured=str(value.value))
    _check_last_rate(made)


def _check_last_rate(made: Checkpoint) -> None:
    """The schedule sets the groups' rates, so what it set last is what the groups hold."""
    last = [v for n, v in made.values.items() if n.endswith("_last_lr") and isinstance(v.value, list)]
    rates: dict[int, float] = {}
    for name, value in made.values.items():
        head, _, word = name.rpartition(".")
        number = head.rsplit(".", 1)[-1]
        if word == "lr" and "param_groups" in head and number.isdigit() and isinstance(value.value, float):
            rates[int(number)] = value.value
    if len(last) != 1 or len(rates) != len(last[0].value) or made.layout not in TORCH_STYLE:
        return
    for index, told in enumerate(last[0].value):
        have = rates.get(index)
        if isinstance(told, float) and have is not None and not math.isclose(told, have, rel_tol=1e-6, abs_tol=1e-12):
            text = f"the schedule set the rate of group {index} to {told:g}, the optimizer holds {have:g}: two saves?"
            made.fault("step.rate", text, file=last[0].file, key=last[0].name, measured=have, limit=told)
            return
