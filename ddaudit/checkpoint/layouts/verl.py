"""verl: ``{model,optim,extra_state}_world_size_W_rank_R.pt`` of one actor or critic, ``data.pt`` beside it."""

from __future__ import annotations

import re

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion

NAME = "verl"
_FILE = re.compile(r"^(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt$")
_ROLES = {"model": "model", "optim": "optimizer", "extra_state": ""}


def detect(folder: Folder) -> bool:
    return any(_FILE.match(n) for n in folder.here()) or any(
        _FILE.match(n) for sub in folder.folders() for n in folder.sub(sub).here()
    )


def read(reader: Reader) -> None:
    """The actor (and critic) of a ``global_step_N`` folder, or one of them."""
    folder, made = reader.folder, reader.made
    parts = [""] if any(_FILE.match(n) for n in folder.here()) else folder.folders()
    whole = True
    for part in parts:
        sub = reader.sub(part) if part else reader
        if any(_FILE.match(n) for n in sub.folder.here()):
            whole &= _read_part(sub, f"{part}." if part and len(parts) > 1 else "")
    for name in ("data.pt", "dataloader.pt"):
        if name in folder:
            reader.load(name, "dataloader")
    made.completion = Completion(proven=whole, proof="file names carry the world size")
    made.promises.update({"sampler": "expected", "scaler": "unsaved", "step": "unsaved"})
    made.promise_notes["step"] = "verl counts its steps in the name of the folder, global_step_N"


def _read_part(reader: Reader, prefix: str) -> bool:
    folder, made = reader.folder, reader.made
    have: dict[tuple[str, int], set[int]] = {}
    for name in folder.here():
        match = _FILE.match(name)
        if match:
            kind, size, rank = match[1], int(match[2]), int(match[3])
            have.setdefault((kind, size), set()).add(rank)
            role = _ROLES[kind]
            reader.load(name, f"{prefix}rank{rank}" + (f".{role}" if role else ""), rank)
    sizes = {size for _, size in have}
    if len(sizes) > 1:
        text = f"files of world sizes {sorted(sizes)} lie together"
        made.fault("file.stale", text, file=folder.full("."), measured=len(sizes), limit=1)
    newest = max(sizes, key=lambda s: max(folder.mtime(n) for n in folder.here() if f"_world_size_{s}_" in n))
    made.know("ranks", newest, "world_size in file names")
    lost = [
        (k, r) for k in {k for k, _ in have} for r in range(min(newest, 65536)) if r not in have.get((k, newest), set())
    ]
    for kind in _ROLES:
        if not any(k == kind for k, _ in have) and kind != "extra_state":
            made.facts.setdefault("verl_missing", []).append(kind)
    for kind, rank in lost[:20]:
        name = f"{kind}_world_size_{newest}_rank_{rank}.pt"
        made.fault("complete.shard-missing", f"{name} is missing", file=folder.full(name), rank=rank)
    if not lost:
        made.facts.setdefault("merge", []).append(prefix)
    return not lost
