"""Files of ranks that contradict each other: about the job's layout, or about which rank's file they are."""

from __future__ import annotations

import re
from collections import Counter

from ddaudit.checkpoint.model import Checkpoint, Tensor, Value
from ddaudit.checkpoint.roles import area_of

_LAYOUT = ("ranks", "dp", "tp", "pp", "mp", "ep", "global_batch")
_RANK = re.compile(r"rank[_-]?(\d+)")
#: A number behind one of these words says which part of the state a file holds.
_PART = re.compile(r"(rank|rng_state|random_states|layer|model|expert|custom_checkpoint)([_-]?)(\d+)")

_NUMBER = re.compile(r"_\d+$")
#: Names that frameworks give to one part of the state, and that nobody gives to another.
_ROLES = {
    "optimizer", "scheduler", "dl_state_dict", "distrib_optim", "model_optim_rng", "training_args", "scaler", "sampler",
    "random_states", "rng_state", "custom_checkpoint", "fp32", "exp_avg", "exp_avg_sq",
}  # fmt: skip


def check_said(made: Checkpoint) -> None:
    """One key, in the files of several ranks, with several numbers: at least one rank was laid out otherwise."""
    for fact in _LAYOUT:
        families: dict[tuple[str, str], dict[str, int]] = {}
        voices: dict[str, set[int]] = {}
        for source, number in made.said.get(fact, {}).items():
            key, _, file = source.partition(" in ")
            voices.setdefault(file, set()).add(number)
            if _RANK.search(file):
                families.setdefault((key.rsplit(".", 1)[-1], _RANK.sub("rank#", file)), {})[file] = number
        for (key, _), by_file in families.items():
            if len(set(by_file.values())) > 1 and not (fact in ("ranks", "dp") and _leftover(voices)):
                _contradicted(made, fact, key, by_file, voices)


def _leftover(voices: dict[str, set[int]]) -> bool:
    """True where ranks 0 to n-1 all say n and nothing else: files beyond are a larger job's, and said to be stale."""
    ranks: dict[int, set[int]] = {}
    for file, numbers in voices.items():
        if match := _RANK.search(file):
            ranks.setdefault(int(match[1]), set()).update(numbers)
    every = {n for numbers in ranks.values() for n in numbers if n <= len(ranks)}
    return any(all(ranks.get(r) == {n} for r in range(n)) for n in every)


def _contradicted(made: Checkpoint, fact: str, key: str, by_file: dict[str, int], voices: dict[str, set[int]]) -> None:
    """Names the odd file: the one whose number the fewest files give."""
    votes = Counter(n for numbers in voices.values() for n in numbers)
    right = max(by_file.values(), key=lambda n: votes[n])  # of equals the first
    file = next(f for f, n in by_file.items() if n != right)
    text = f"{file} says {key} {by_file[file]}, the other ranks' files {right}: they are not of one job"
    if votes[by_file[file]] == votes[right]:
        other = next(f for f, n in by_file.items() if n == right)
        text = f"{file} says {key} {by_file[file]}, {other} says {right}: they are not of one job"
    kept = [f for f in made.faults if f.kind != "world.disagrees" or f.key != fact]
    made.left_out["world.disagrees"] = made.left_out.get("world.disagrees", 0) - len(made.faults) + len(kept)
    made.faults = kept
    made.fault("world.ranks-differ", text, file=file, rank=_rank(file), key=key, measured=by_file[file], limit=right)


def check_rates_alike(made: Checkpoint) -> None:
    """The optimizers of all ranks of one family of files hold one learning rate for each group."""
    seen: dict[tuple[str, str], Value] = {}
    for value in made.values.values():
        if not value.name.endswith(".lr") or "param_groups." not in value.name or not _RANK.search(value.file):
            continue
        other = seen.setdefault((_RANK.sub("rank#", value.file), value.name.rsplit("param_groups.", 1)[1]), value)
        if other.value != value.value:
            text = f"{value.name} is {value.value} in {value.file}, but {other.value} in {other.file}: two saves?"
            made.fault("step.rate", text, file=value.file, rank=_rank(value.file), key=value.name,
                       measured=str(value.value), limit=str(other.value))  # fmt: skip


def check_saved_names(made: Checkpoint) -> None:
    """torch.save writes the stem of the file's name into the file: another rank's name there is another rank's file."""
    areas: dict[str, set[str | None]] = {}
    items: list[Tensor | Value] = [*made.tensors.values(), *made.values.values()]
    for item in items:
        if item.file in made.archives:
            areas.setdefault(item.file, set()).add(area_of(item.name, item.name in made.tensors))
    for file, saved in made.archives.items():
        name = file.rsplit("/", 1)[-1]
        stem = name.rsplit(".", 1)[0]
        mine, inside = _PART.findall(stem), _PART.findall(saved)
        numbered = mine != inside and _PART.sub(r"\1\2#", stem) == _PART.sub(r"\1\2#", saved)
        roles = {_NUMBER.sub("", stem), _NUMBER.sub("", saved)}
        if not numbered and not (len(roles) == 2 and roles <= _ROLES):
            continue
        kind = "rng.exchanged" if areas.get(file, set()) <= {"rng", None} else "shard.exchanged"
        text = f"{file} was saved as {saved}: it is another part's file under this name"
        made.fault(kind, text, file=file, rank=_rank(name), measured=saved, limit=stem)


def _rank(name: str) -> int | None:
    match = _RANK.search(name)
    return int(match[1]) if match else None
