"""What the script says about itself: its options with their help, its variables, and what it prints.

A claim has a ``kind`` ("global_batch", "micro_batch", "accumulation", "updates", "warmup_updates",
"warmup_epochs", "warmup_share" of all updates, and "base_batch" and "base_rate" of a learning rate that is scaled with
the batch), a value and the place it was read from. Text is looked at
for numbers only and not kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from ddaudit.watch.source import is_own

__all__ = ["Claims", "classify", "printed"]

_PER_RANK = re.compile(
    r"\bper[-_ ](?:\w+[-_ ])?(?:process|proc|rank|gpu|device|worker|replica|node|card)|\bmicro|\blocal|\bone process",
    re.I,
)
_GLOBAL = re.compile(
    r"\b(total|global|effective|overall)\b|\b(all|over|across)\b.{0,12}\b(process|rank|gpu|device)", re.I
)
_PRINTED = re.compile(
    r"\b(total|global|effective)\b(?P<gap>[^\n=:0-9]{0,60}?)\bbatch\b(?:[ _-]?size)?[^\n0-9]{0,40}?(?P<value>\d+)\b",
    re.I,
)
_WHOLE = re.compile(r"(?<![\d.\w])\d+(?![\d.]*\d|\w)")
_WORDS = re.compile(r"[^a-z0-9]+")
_COUNTERS = frozenset({"global_step", "global_steps", "completed_steps", "num_updates", "optimizer_steps", "n_updates"})
_ACCUMULATION = re.compile(r"^(grad(ient)?s?_)?accum(ulat\w*)?(_grad(ient)?s?)?(_(steps?|iters?|batches))?$")
_BASE_BATCH = re.compile(r"^(base|ref|reference|lr|nominal)_(lr_|global_|total_)?(batch|bs)(_?size)?$")
_WARMUP_OTHERWISE = re.compile(r"^(num_)?warm_?up_(?P<unit>epochs?|ratio|fraction|frac|proportion|pct)$")
_BASE_RATE = re.compile(r"^(base|ref|reference)_(lr|learning_rate)$|^(blr|lr_base)$")
_PER_BATCH = re.compile(r"\b(per|for|at)\b[^.;]{0,40}?\b(?P<value>\d{1,6})\b[^.;]{0,12}\b(samples|images|batch)|"
                        r"\bbatch(?:[ _-]?size)?\s*(?:of|=)?\s*(?P<other>\d{1,6})\b", re.I)  # fmt: skip
_ELSEWHERE = re.compile(r"(profil|bench|tim(er|ing)|trac(e|ing)|eval|val|test|infer|generat|checkpoint|state)", re.I)
MAX_PRINTS, MAX_FRAMES, MAX_COUNTS, MAX_NESTED = 400, 12, 16, 2


def classify(name: str, text: str = "") -> str | None:
    """Kind of a variable or option by its name and, for options, its help text; None when it says nothing."""
    word = _WORDS.sub("_", name.lower()).strip("_")
    words = f"{word.replace('_', ' ')} {text}"
    if _ACCUMULATION.match(word) or word in ("accumulate_grad_batches", "grad_acc_steps"):
        return "accumulation"
    if _BASE_BATCH.match(word):
        return "base_batch"
    if re.search(r"batch_?size$|^(global|total|effective)_batch$", word) and not re.match(r"(eval|val|test)", word):
        if _PER_RANK.search(words):
            return "micro_batch"
        return "global_batch" if _GLOBAL.search(words) else None
    if word in ("max_steps", "max_train_steps", "total_updates", "max_updates", "num_updates_total", "train_updates"):
        return "updates"
    if _BASE_RATE.match(word):
        return "base_rate"
    if (found := _WARMUP_OTHERWISE.match(word)) is not None:
        return "warmup_epochs" if found["unit"].startswith("epoch") else "warmup_share"
    return "warmup_updates" if re.match(r"^(num_)?warm_?up(_(steps|iters|updates|iterations))?$", word) else None


def printed(line: str) -> list[int]:
    """Whole numbers of a printed line that claims a global batch, such as ``4 x 8 x 2 = 64``: one of them is the claim.
    Empty when the line claims none or speaks of one process."""
    found = _PRINTED.search(line)
    if found is None or _PER_RANK.search(line) or re.search(r"\b(per|each|tokens?)\b", found["gap"], re.I):
        return []
    return [int(n) for n in _WHOLE.findall(line[found.start("value") :])[:8]]


class Claims:
    """Collects claims; the same claim is kept once."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.counters: dict[str, list[list[float]]] = {}
        self._prints = 0

    def add(self, kind: str | None, value: Any, source: str) -> None:
        """Keeps a claim about a positive whole number (about a rate, a positive number)."""
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31
        whole = whole or (kind == "base_rate" and isinstance(value, float) and 0 < value < 1e3)
        if kind == "warmup_share":
            whole = isinstance(value, float) and 0 < value < 1
        claim = {"kind": kind, "value": value, "source": source}
        if kind and whole and claim not in self.found and len(self.found) < 64:
            self.found.append(claim)

    def options(self, parser: Any, namespace: Any) -> None:
        """Reads an argparse parser and what it parsed."""
        for action in getattr(parser, "_actions", ()):
            value = getattr(namespace, action.dest, None)
            option = (action.option_strings or [action.dest])[-1]
            text = str(action.help or "")
            self.add(classify(action.dest, text), value, f"option {option}")
            if isinstance(value, float) and re.match(r"^((base|ref)_)?(lr|learning_rate|blr)$", action.dest):
                found = _PER_BATCH.search(text)
                if found is not None:
                    self.add("base_batch", int(found["value"] or found["other"]), f"help of option {option}")
                    self.add("base_rate", value, f"option {option}")

    def text(self, parts: tuple[Any, ...]) -> None:
        """Looks at what is about to be printed."""
        self._prints += 1
        if self._prints <= MAX_PRINTS:
            for line in " ".join(p for p in parts if isinstance(p, str)).splitlines()[:40]:
                for number in printed(line[:400]):
                    self.add("global_batch", number, "its own printout")

    def variables(self, frame: FrameType | None) -> None:
        """Reads names of the script's frames: plain numbers, and numbers in its configuration objects."""
        for scope, names in _scopes(frame):
            for name, value in names.items():
                self.add(classify(name), value, f"variable {name} in {scope}")
                if not name.startswith("_") and _is_config(value):
                    for key, inner in _settings(value, MAX_NESTED):
                        self.add(classify(key.rpartition(".")[2]), inner, f"{name}.{key} in {scope}")

    def count(self, frame: FrameType | None, update: int, passes: int) -> None:
        """Notes step counters beside the true numbers of updates and backward passes before this update."""
        for _, names in _scopes(frame):
            owner = names.get("self")
            held = vars(owner) if hasattr(owner, "__dict__") else {}
            for name, value in [*names.items(), *held.items()]:
                if name in _COUNTERS and isinstance(value, int):
                    rows = self.counters.setdefault(name, [])
                    if len(rows) < MAX_COUNTS and (not rows or rows[-1][0] != update):
                        rows.append([update, passes, value])


def _scopes(frame: FrameType | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The script's own frames, innermost first, then its module; frames of installed packages are left out."""
    shown = 0
    while frame is not None and shown < MAX_FRAMES:
        file = frame.f_code.co_filename
        if is_own(file):
            shown += 1
            yield frame.f_code.co_name, dict(frame.f_locals)
        frame = frame.f_back
    main = sys.modules.get("__main__")
    yield "the script", dict(vars(main)) if main is not None else {}


def _is_config(value: Any) -> bool:
    kind = type(value)
    known = kind.__name__ in ("Namespace", "SimpleNamespace", "TrainingArguments", "DictConfig")
    return isinstance(value, dict) or known or (hasattr(kind, "__dataclass_fields__") and _written_here(kind))


def _written_here(kind: type) -> bool:
    """Whether a class comes from the script or a module beside it, not from an installed package."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (isinstance(file, str) and is_own(file))


def _settings(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Settings of a configuration object and of those within it, by dotted name. Sections about something else than
    training have steps of their own."""
    for key, inner in _members(value).items():
        if depth and _is_config(inner) and not _ELSEWHERE.match(key):
            yield from ((f"{key}.{name}", found) for name, found in _settings(inner, depth - 1))
        else:
            yield key, inner


def _members(value: Any) -> Mapping[str, Any]:
    items = value.items() if isinstance(value, Mapping) else vars(value).items()
    return {k: v for k, v in list(items)[:200] if isinstance(k, str)}
