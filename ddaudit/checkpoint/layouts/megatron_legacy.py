"""Megatron-LM ``--ckpt-format torch``: ``mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`` (+ ``distrib_optim.pt``)."""

from __future__ import annotations

import re
from typing import Any

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts.megatron_args import note_args
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.reader import Reader
from ddaudit.evidence.checkpoint import Completion

NAME = "megatron-legacy"
_RANK = re.compile(r"^mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?$")
_MODEL = ("model_optim_rng.pt", "model_rng.pt")
_OPTIMIZER = ("distrib_optim.pt", "optim.pt")


def detect(folder: Folder) -> bool:
    return any(_RANK.match(d) for d in folder.folders())


def read(reader: Reader) -> None:
    folder, made = reader.folder, reader.made
    ranks = sorted(d for d in folder.folders() if _RANK.match(d))
    have_optimizer: dict[str, bool] = {}
    keys: dict[str, set[str]] = {}
    wanted: tuple[int, int, int] = (1, 1, 1)
    inside = False
    for rank in ranks:
        sub = reader.sub(rank)
        model = next((n for n in _MODEL if n in sub.folder), None)
        if model is None:
            path = sub.folder.full(_MODEL[0])
            made.fault("complete.file-missing", f"{rank} has no {_MODEL[0]}", file=path)
            continue
        found = sub.load(model, rank)
        state: Any = found.value if found is not None and isinstance(found.value, dict) else {}
        keys[rank] = {str(k).rstrip("0123456789") for k, v in state.items() if v not in (None, {}, [])}
        wanted = max(wanted, note_args(made, state.get("args"), sub.folder.full(model)))
        optimizer = state.get("optimizer")
        inside |= isinstance(optimizer, dict) and bool(set(optimizer) & {"state", "fp32_from_fp16_params", "optimizer"})
        files = [n for n in sub.folder.here() if n in _OPTIMIZER or n.startswith("layer_wise_optimizer_")]
        have_optimizer[rank] = bool(files)
        for name in files:
            sub.load(name, f"{rank}.distrib_optim")
    _check(reader, ranks, have_optimizer, wanted, inside)
    _check_keys(reader, keys)
    if wanted[0] > 1:
        _check_copies(made, ranks)
        _check_alike(made, ranks)


_KEYS = ("iteration", "model", "optimizer", "opt_param_scheduler", "rng_state", "args")


def _check_keys(reader: Reader, keys: dict[str, set[str]]) -> None:
    """What one rank's file has, every rank's must have."""
    everything = set().union(*keys.values()) if keys else set()
    for rank, have in keys.items():
        for key in (k for k in _KEYS if k in everything - have):
            file = reader.folder.full(f"{rank}/{_MODEL[0]}")
            text = f"{file} has no {key}, other ranks' files do"
            reader.made.fault("key.missing", text, file=file, key=key)


def _check_alike(made: Checkpoint, ranks: list[str]) -> None:
    """Tensor-parallel ranks of one pipeline stage hold parts of equal shapes and dtypes."""
    seen: dict[tuple[str, str], Any] = {}
    for tensor in made.tensors.values():
        rank, _, rest = tensor.name.partition(".")
        if rank not in ranks or not rest.startswith("model"):
            continue
        stage = rank.split("_", 3)[3] if rank.count("_") > 2 else ""
        other = seen.setdefault((stage, rest), tensor)
        if (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            text = (
                f"{tensor.name} is {tensor.dtype} {list(tensor.shape)}, "
                f"{other.name} is {other.dtype} {list(other.shape)}: tensor-parallel parts are alike"
            )
            made.fault("weights.ranks-differ", text, file=tensor.file, tensor=tensor.name,
                       measured=str(list(tensor.shape)), limit=str(list(other.shape)))  # fmt: skip


def _check_copies(made: Checkpoint, ranks: list[str]) -> None:
    """Tensor-parallel ranks hold different parts; only norms and the like are the same on all."""
    marks: dict[str, set[Any]] = {}
    for tensor in made.tensors.values():
        span = tensor.chunks[0].span() if tensor.chunks and len(tensor.shape) > 1 else None
        head, _, rest = tensor.name.partition(".")
        if head in ranks and span is not None and span.checksum is not None and span.checksum.crc:
            marks.setdefault(head, set()).add((rest, span.checksum.crc, span.checksum.length))
    seen: dict[Any, str] = {}
    for rank, mine in marks.items():
        other = seen.setdefault(frozenset(mine), rank)
        if other != rank and len(mine) > 1:
            text = f"{rank} and {other} hold the same bytes in all {len(mine)} matrices: one was written over the other"
            made.fault(
                "shard.repeated", text, file=next(t.file for t in made.tensors.values() if t.name.startswith(rank))
            )


def _check(
    reader: Reader, ranks: list[str], have_optimizer: dict[str, bool], wanted: tuple[int, int, int], inside: bool
) -> None:
    """tp x pp (x ep) folders must exist, and if one of them has an optimizer file, all must."""
    made, folder = reader.made, reader.folder
    tp, pp, ep = wanted
    names = [
        f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "") + (f"_{e:03d}" if ep > 1 else "")
        for t in range(min(tp, 1024)) for p in range(min(pp, 1024)) for e in range(min(ep, 1024))
    ][:100_000]  # fmt: skip
    lost = [n for n in names if n not in ranks]
    for name in lost[:20]:
        text = (
            f"{name} is missing: tp {tp} x pp {pp} x ep {ep} = {len(names)} folders are needed, {len(ranks)} are there"
        )
        made.fault(
            "complete.shard-missing", text, file=folder.full(name), measured=len(ranks), limit=len(names), unit="folder"
        )
    if any(have_optimizer.values()) or (have_optimizer and not inside):
        for rank, there in have_optimizer.items():
            if not there and any(have_optimizer.values()):
                text = f"{rank} has no {_OPTIMIZER[0]}, other ranks have theirs"
                made.fault("complete.shard-missing", text, file=folder.full(f"{rank}/{_OPTIMIZER[0]}"))
    stale = sorted(set(ranks) - set(names)) if tp * pp * ep > 1 or len(ranks) > 1 else []
    for name in stale[:20]:
        made.fault(
            "file.stale-rank",
            f"{name} is beyond tp {tp} x pp {pp} x ep {ep}: left from another layout",
            file=folder.full(name),
        )
    made.completion = Completion(proven=not lost, proof=f"{len(ranks)} of tp {tp} x pp {pp} x ep {ep} folders")
    made.promises.update({"sampler": "recomputed", "scaler": "unsaved"})
    made.promise_notes["sampler"] = "Megatron continues from consumed_train_samples"
