"""Which checkpoint is meant: a path may be one, or a root with many steps and a pointer to one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import ModuleType

from ddaudit.checkpoint import layouts
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import (
    deepspeed,
    deepspeed_universal,
    lightning,
    megatron_dist,
    megatron_legacy,
    torch_files,
)
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Pointer, Sibling
from ddaudit.inert import Malformed

_STEP = re.compile(
    r"(?:global_?step|checkpoint|ckpt|step|iter(?:ation)?|ba|epoch|ep|last)[-_=]?(\d{1,15})", re.IGNORECASE
)
_TRAILING = re.compile(r"(\d{1,15})(?:\D{0,12})$")
_POINTERS = (
    "latest",
    "latest_universal",
    "latest_checkpointed_iteration.txt",
    "dlrover_latest.txt",
    "latest_step.txt",
    "last_checkpoint",
    "latest_checkpoint",
    "latest.txt",
    "checkpoint_latest",
)
_LINKS = re.compile(r"^(latest|last)\b")
_MAX_SIBLINGS = 200
_LOOK_AT = 8
_MAX_DESCENT = 3


@dataclass(slots=True)
class Candidate:
    """A checkpoint below a root: a folder, or one file."""

    name: str
    step: int | None
    folder: Folder
    file: str | None = None
    layout: ModuleType | None = None


@dataclass(slots=True)
class Choice:
    """What to audit, and what lies around it."""

    candidate: Candidate
    root: Folder
    pointers: list[Pointer] = field(default_factory=list)
    siblings: list[Sibling] = field(default_factory=list)
    faults: list[tuple[str, str, str]] = field(default_factory=list)  # kind, text, file
    ambiguous: tuple[str, ...] = ()


def step_in(name: str) -> int | None:
    """The step that a folder or file name says; of several numbers the one behind the most telling word."""
    found = _STEP.findall(name.rsplit("/", 1)[-1])
    if found:
        words = [m[0].lower() for m in re.finditer(r"(global_?step|step|iter(?:ation)?|ba)[-_=]?\d", name)]
        if words and len(found) > 1:
            match = re.search(r"(?:global_?step|step|iter(?:ation)?|ba)[-_=]?(\d{1,15})", name)
            return int(match[1]) if match else int(found[-1])
        return int(found[-1])
    match = _TRAILING.search(name.rsplit("/", 1)[-1].removesuffix("_universal"))
    return int(match[1]) if match else None


def choose(folder: Folder, only: str | None, *, look: bool = True) -> Choice:
    """Picks the checkpoint: the file itself, the folder itself, what the root's pointer names, or the newest step.

    With ``look``, the newest siblings are examined by their headers.
    """
    if only is not None:
        return Choice(Candidate(only, step_in(only), folder, only), folder)
    strong = layouts.detect(folder, weak=False)
    if strong is not None:
        return Choice(Candidate("", step_in(folder.name), folder, layout=strong), folder)
    root = folder
    for _ in range(_MAX_DESCENT):
        found = _candidates(root)
        if found:
            return _from_root(root, found, look)
        weak = layouts.detect(root)
        if weak is not None:
            return Choice(Candidate("", step_in(root.name), root, layout=weak), root)
        inner = root.folders()
        if len(inner) != 1:
            break
        root = root.sub(inner[0])
    return Choice(Candidate("", None, folder), folder)


def _candidates(root: Folder) -> list[Candidate]:
    """Child folders and files that are checkpoints of numbered steps (or that a pointer names)."""
    found = []
    named = {target for _, target in _pointer_texts(root)}
    for name in root.folders()[:10_000]:
        step = step_in(name)
        if step is None and name not in named:
            continue
        sub = root.sub(name)
        layout = layouts.detect(sub)
        if layout is not None or not sub.names() or _STEP.match(name):
            found.append(Candidate(name, step, sub, layout=layout))
    files = [
        n
        for n in root.here()
        if n.endswith(".ckpt") or re.match(r"^(checkpoint|ckpt|model|step|ep\d)[-_]?\w*\d.*\.(pt|pth)$", n)
    ]
    files = [n for n in files if not torch_files.is_temporary(n) and torch_files.rank_of(n) is None]
    several = len(files) > 1 or bool(files and files[0].endswith(".ckpt"))
    if not found and several and (len(files) == 1 or any(re.search(r"step|epoch|\d", n) for n in files)):
        found = [Candidate(n, step_in(n), root, n) for n in files]
    return found


def _pointer_texts(root: Folder) -> list[tuple[str, str]]:
    """(pointer file, name it gives)."""
    found = []
    for name in _POINTERS:
        if name in root and name not in root.listing.links:
            try:
                text = root.read(name, 4096).decode("utf-8").strip()
            except (Malformed, UnicodeDecodeError):
                text = ""
            found.append((name, _tag(name, text)))
    for link, target in root.listing.links.items():
        short = link.removeprefix(root.prefix)
        if link.startswith(root.prefix) and "/" not in short and _LINKS.match(short):
            found.append((short, target.removeprefix(root.prefix)))
    return found


def _tag(pointer: str, text: str) -> str:
    """Megatron's tracker holds a number; the folder is iter_ with seven digits."""
    if pointer == "latest_checkpointed_iteration.txt" and text.isdigit() and len(text) < 16:
        return f"iter_{int(text):07d}"
    return text


def _from_root(root: Folder, found: list[Candidate], look: bool) -> Choice:
    found.sort(key=lambda c: (c.step if c.step is not None else -1, c.name))
    texts = _pointer_texts(root)
    numbered = [c for c in found if c.step is not None]
    if not numbered and len(found) > 1:
        choice = Choice(found[-1], root, ambiguous=tuple(c.name for c in found))
    else:
        choice = Choice((numbered or found)[-1], root)
    states = _look(found, _LOOK_AT if look else 0)
    choice.siblings = [states[c.name] for c in found[-_MAX_SIBLINGS:]]
    _follow(choice, texts, found, states)
    _missing_pointer(choice, texts)
    if len(found) == 1 or choice.candidate.file == "last.ckpt":
        choice.siblings = [s for s in choice.siblings if s.name != choice.candidate.name]
    return choice


def _follow(choice: Choice, texts: list[tuple[str, str]], found: list[Candidate], states: dict[str, Sibling]) -> None:
    """Audits what the pointer names. Lightning's last.ckpt is the one it resumes from."""
    by_name = {c.name: c for c in found}
    root = choice.root
    for file, target in texts:
        spelled = next(
            (
                n
                for n in (target, f"global_step{target}", f"step_{target}", f"step-{target}", f"checkpoint-{target}")
                if n in by_name
            ),
            None,
        )
        state = states.get(spelled or "")
        choice.pointers.append(
            Pointer(
                file=root.full(file),
                target=target[:200],
                exists=spelled is not None,
                complete=state.complete if state else None,
                step=by_name[spelled].step if spelled else None,
            )
        )
        if spelled is not None:
            choice.candidate = by_name[spelled]
    if "last.ckpt" in by_name and not texts:
        choice.candidate = by_name["last.ckpt"]


def _missing_pointer(choice: Choice, texts: list[tuple[str, str]]) -> None:
    """Frameworks that find their checkpoint by a pointer silently start anew without it."""
    layout, have = choice.candidate.layout, {name for name, _ in texts}
    wanted = (
        {
            deepspeed: ("latest",),
            deepspeed_universal: ("latest_universal", "latest"),
            megatron_legacy: ("latest_checkpointed_iteration.txt",),
            megatron_dist: ("latest_checkpointed_iteration.txt",),
        }.get(layout)
        if layout is not None
        else None
    )
    if wanted and not have.intersection(wanted):
        text = f"{wanted[0]} is missing: the framework finds no checkpoint and starts from step 0 without an error"
        choice.faults.append(("pointer.missing", text, choice.root.full(wanted[0])))


def _look(found: list[Candidate], count: int) -> dict[str, Sibling]:
    """The newest siblings by headers, older ones by name only."""
    states = {}
    recent = {c.name for c in found[-count:]} if count else set()
    for candidate in found:
        state = Sibling(name=candidate.name, step=candidate.step, reason="not looked at")
        if candidate.name in recent:
            state = _quick(candidate)
        states[candidate.name] = state
    return states


_RUIN = (
    "complete.",
    "file.truncated",
    "file.empty",
    "file.malformed",
    "file.zeros",
    "shard.",
    "container.pickle",
    "tensor.",
)


def _quick(candidate: Candidate) -> Sibling:
    """Is it complete, by names and headers? Large metadata is not read for a sibling."""
    made = Checkpoint("sibling")
    folder = candidate.folder
    if candidate.file is None and ".metadata" in folder and folder.size(".metadata") > 16 << 20:
        return Sibling(name=candidate.name, step=candidate.step, complete=None, reason="metadata too large for a look")
    mtimes = [folder.mtime(n) for n in ([candidate.file] if candidate.file else folder.names())]
    read(Reader(folder, made, "headers"), candidate)
    bad = next((f for f in made.faults if f.kind.startswith(_RUIN) and f.kind != "complete.optional-missing"), None)
    areas = tuple(sorted({a for a in _areas(made) if a}))
    empty = not made.tensors and not made.values
    return Sibling(
        name=candidate.name,
        step=candidate.step,
        complete=bad is None and not empty,
        areas=areas,
        reason=bad.text if bad is not None else "nothing was read" if empty else "",
        mtime=max(mtimes, default=0.0),
    )


def _areas(made: Checkpoint) -> set[str]:
    from ddaudit.checkpoint.roles import area_of

    return {area_of(n, True) or "" for n in made.tensors} | {area_of(n) or "" for n in made.values}


def read(reader: Reader, candidate: Candidate) -> str:
    """Reads a candidate with its layout; returns the layout's name."""
    if candidate.file is not None:
        return layouts.read_file(reader, candidate.file)
    layout = candidate.layout or layouts.detect(candidate.folder)
    if layout is None:
        return "unknown"
    layout.read(reader)
    return str(layout.NAME)


__all__ = ["Candidate", "Choice", "choose", "lightning", "read", "step_in"]
