"""Optimizer variables of a Keras file: one for each slot and parameter, shaped like the parameter."""

from __future__ import annotations

from collections import Counter, defaultdict

from ddaudit.checkpoint.model import Checkpoint, Tensor
from ddaudit.checkpoint.roles import area_of, keras_slot

_TWO_SLOTS = ("adam", "adamw", "nadam", "adamax", "lamb")


def check_slots(made: Checkpoint, full: str) -> None:
    """Each parameter has every slot, all of one shape, and no shape occurs more often than among the weights.

    Frozen layers have no slots, so weights without any are no fault.
    """
    slots: dict[str, dict[str, Tensor]] = defaultdict(dict)
    shapes: Counter[tuple[int, ...]] = Counter()
    for tensor in (t for t in made.tensors.values() if t.file == full):
        found = keras_slot(tensor.name)
        if found is not None:
            slots[found[0]][found[1]] = tensor
        elif area_of(tensor.name, True) == "model" and "float" in tensor.dtype:
            shapes[tensor.shape] += 1
    for owner, mine in slots.items():
        usual = {w for p, words in slots.items() if p.split(".")[0] == owner.split(".")[0] for w in words}
        if owner.split(".")[0].lower() in _TWO_SLOTS:
            usual |= {"m", "v"} if usual & {"m", "v"} else {"momentum", "velocity"}
        _check_owner(made, full, owner, mine, usual)
    for word in sorted({w for mine in slots.values() for w in mine}):
        have = Counter(mine[word].shape for mine in slots.values() if word in mine)
        for shape, more in (have - shapes).items() if shapes else ():
            tensor = next(m[word] for m in slots.values() if word in m and m[word].shape == shape)
            text = f"{tensor.name} has shape {list(shape)}: {have[shape]} such variables, {have[shape] - more} weights"
            made.fault("optimizer.shape", text, file=full, tensor=tensor.name, measured=have[shape],
                       limit=have[shape] - more, unit="tensor")  # fmt: skip


def _check_owner(made: Checkpoint, full: str, owner: str, mine: dict[str, Tensor], usual: set[str]) -> None:
    some = next(iter(mine.values()))
    for word in sorted(usual - set(mine)):
        text = f"{owner} has {', '.join(sorted(mine))} but no {word}"
        made.fault("optimizer.state-missing", text, file=full, tensor=owner, key=word)
    for word, tensor in sorted(mine.items()):
        if tensor.shape != some.shape:
            text = f"{tensor.name} has shape {list(tensor.shape)}, {some.name} {list(some.shape)}"
            made.fault("optimizer.shape", text, file=full, tensor=tensor.name, key=word)
