"""Plain files: one torch.save file, or a folder of them (``model.pt``, ``optimizer.pt``, ``rank0.pt``,
``rng_rank1.pt`` ...).

The fallback of all layouts, so it judges files by their bytes and by the words in their names.
"""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.flatten import add_tree
from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import safetensors
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import LFS_PREFIX, Reader
from ddaudit.checkpoint.roles import area_of
from ddaudit.evidence.checkpoint import Completion
from ddaudit.inert import Malformed, Source, TensorRef, looks_like_torch
from ddaudit.inert.torch_file import is_legacy

NAME = "torch-files"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar", ".th", ".pickle", ".model", ".state", ".p")
_RANK = re.compile(
    r"^(?P<head>.*?)(?P<word>[_\-.]?(?:dp|world)?_?(?:rank|proc|process|gpu|worker)[_\-]?)(?P<rank>\d{1,6})(?P<tail>\D.*|)$"
)
#: Keys of torchdata's StatefulDataLoader, with and without workers.
_LOADER_KEYS = {"_num_yielded", "_snapshot", "_sampler_iter_state"}
_TEMPORARY = re.compile(r"(\.tmp|\.temp|\.part|\.partial|\.incomplete|\.swp|~|-unfinished)$|^\.?tmp|\.tmp[._-]")
_ROLES = {
    "model": "model", "weights": "model", "pytorch_model": "model", "optim": "optimizer", "optimizer": "optimizer",
    "opt": "optimizer", "scheduler": "scheduler", "lr_scheduler": "scheduler", "rng_state": "rng", "rng": "rng",
    "random_states": "rng", "scaler": "scaler", "sampler": "sampler", "dataloader": "dataloader", "data": "dataloader",
    "dl_state_dict": "dataloader", "train_dataloader": "dataloader", "loader": "dataloader", "ema": "model.ema",
}  # fmt: skip


def is_temporary(name: str) -> bool:
    return bool(_TEMPORARY.search(name.rsplit("/", 1)[-1]))


def rank_of(name: str) -> tuple[str, int] | None:
    """(family, rank) of a per-rank file name: ``rng_rank1.pt`` is rank 1 of ``rng_rank{}.pt``."""
    match = _RANK.match(name)
    if match is None:
        return None
    return f"{match['head']}{match['word']}{{}}{match['tail']}", int(match["rank"])


def detect(folder: Folder) -> bool:
    return any(n.endswith(SUFFIXES) or _peek(folder, n) for n in folder.here() if not n.startswith("."))


def _peek(folder: Folder, name: str) -> bool:
    if not folder.size(name):
        return False
    try:
        return looks_like_torch(folder.source(name))
    except Malformed:
        return False


def read(reader: Reader, only: str | None = None) -> None:
    """Every readable file of the folder, or only one. Ranked files are read as one family."""
    folder, made = reader.folder, reader.made
    names = [only] if only else [n for n in folder.here() if _wanted(folder, n)]
    families: dict[str, list[int]] = {}
    primaries = [n for n in names if rank_of(n) is None and _role(n) is None]
    for name in names:
        ranked = rank_of(name) if only is None else None
        if ranked is not None:
            families.setdefault(ranked[0], []).append(ranked[1])
        prefix = f"{_stem(name)}." if len(primaries) > 1 and name in primaries else ""
        read_one(reader, name, prefix, ranked[1] if ranked else None)
    if any(n.endswith(".safetensors") for n in folder.here()) and only is None:
        safetensors.read(reader)
    made.facts["rank_families"] = {f: sorted(r) for f, r in families.items()}
    if only is not None or len(names) == 1:
        made.completion = Completion(proven=True, proof="the file's own directory or length says it is whole")


def _wanted(folder: Folder, name: str) -> bool:
    if (
        name.startswith(".")
        or is_temporary(name)
        or name.endswith((".safetensors", ".json", ".txt", ".py", ".yaml", ".md"))
    ):
        return False
    return name.endswith(SUFFIXES) or _peek(folder, name)


def _stem(name: str) -> str:
    return name.rsplit(".", 1)[0] if name.endswith(SUFFIXES) else name


def _role(name: str) -> str | None:
    ranked = rank_of(name)
    stem = _stem(ranked[0] if ranked else name).replace("{}", "").strip("_-.")
    stem = re.sub(r"[_\-]?\d+$", "", stem)
    return _ROLES.get(stem) or _ROLES.get(re.sub(r"[_\-](rank|proc|process|gpu|world_size).*$", "", stem))


def read_one(reader: Reader, name: str, prefix: str = "", rank: int | None = None) -> Any:
    """One file, by its bytes: torch archive, legacy stream, or bare pickle. Returns its value, or None."""
    source = reader.open(name)
    if source is None:
        return None
    full = reader.folder.full(name)
    if looks_like_torch(source):
        found = reader.torch_in(source, full)
        value = found.value if found is not None else None
        if found is not None:
            add_tree(reader, value, found, source, _prefix(name, prefix, value, rank), full, rank)
            _whole_model(reader.made, value, full)
        return value
    head = source.pread(0, 64)
    if head[:1] == b"\x80" or (head[:1] in b"(c}]" and b"\n" in head):
        result = reader.pickle(name)
        if result is not None:
            add_tree(reader, result.value, None, source, _prefix(name, prefix, result.value, rank), full, rank)
        return result.value if result is not None else None
    _unknown(reader, source, name, full)
    return None


def _whole_model(made: Checkpoint, value: Any, full: str) -> None:
    """torch.save(model): weights inside objects, which only the very same code can load."""
    path = getattr(value, "path", None)
    if path:
        made.fault("object.whole", f"{full} holds a whole {path} object, not a state dict", file=full, key=path)


def _prefix(name: str, prefix: str, value: Any, rank: int | None) -> str:
    """Names start with the file's role when the file holds one bare part; ranks keep theirs apart."""
    role = _role(name)
    if isinstance(value, dict) and set(value) & _LOADER_KEYS:
        return f"rank{rank}.dataloader.{_stem(name)}" if rank is not None else f"dataloader.{_stem(name)}"
    parts = []
    if rank is not None and role != "rng":
        parts.append(f"rank{rank}")
    if isinstance(value, dict) and any(isinstance(k, str) and area_of(k) for k in list(value)[:2000]):
        if role == "rng" and rank is not None:
            return f"rng_rank{rank}"
        bare = role in ("optimizer", "scheduler", "rng", "model") and not _is_training(value)
        return ".".join([*parts, *([role] if bare and role else [prefix.rstrip(".")] if prefix else [])])
    if isinstance(value, dict) and value and all(isinstance(v, TensorRef) for v in list(value.values())[:50]):
        role = role or "model"
    if isinstance(value, dict) and {"state", "param_groups"} <= set(value):
        role = "optimizer"
    if rank is not None and role == "rng":
        return f"rng_rank{rank}"
    return ".".join([*parts, *([prefix.rstrip(".")] if prefix else []), *([role] if role else [])])


def _is_training(value: dict[Any, Any]) -> bool:
    areas = {area_of(k) for k in value if isinstance(k, str)} - {None}
    return len(areas) > 1


def _unknown(reader: Reader, source: Source, name: str, full: str) -> None:
    head = source.pread(0, 256)
    if head.startswith(LFS_PREFIX):
        reader.made.fault("file.lfs-pointer", f"{name} is a Git LFS pointer, the real file was not fetched", file=full)
    elif not source.pread(0, 4096).strip(b"\0"):
        reader.made.fault("file.zeros", f"{name} holds zero bytes only", file=full)
    else:
        reader.made.fault("file.unknown", f"{name} is no torch file, pickle, safetensors or HDF5 file", file=full)


__all__ = ["NAME", "detect", "is_legacy", "rank_of", "read", "read_one"]
