"""What file names and sizes alone say: no file is opened but the small pointer that names the newest step."""

from __future__ import annotations

import re

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import dcp, deepspeed, hf_trainer, megatron_dist, nemo, torchsnapshot, verl
from ddaudit.checkpoint.layouts.safetensors import check_numbers, detect
from ddaudit.checkpoint.layouts.torch_files import rank_of
from ddaudit.checkpoint.model import Checkpoint
from ddaudit.checkpoint.ranks import check_families
from ddaudit.evidence.checkpoint import Completion

#: The file that a layout writes last. DCP's stands for torchtitan and sharded FSDP too.
_MARKERS = {
    dcp.NAME: dcp.METADATA,
    megatron_dist.NAME: "metadata.json",
    hf_trainer.NAME: hf_trainer.STATE,
    torchsnapshot.NAME: ".snapshot_metadata",
    nemo.NAME: "weights/metadata.json",
}
_DEEPSPEED = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt$")
_VERL = re.compile(r"^(model|optim|extra_state)_world_size_(\d+)_rank_(\d+)\.pt$")
_STATES = re.compile(r"^(rng_state_|random_states_)(\d{1,6})(\.\w+)$")
_GRID_MAX = 100_000


def read_names(made: Checkpoint, folder: Folder, only: str | None) -> None:
    """Notes empty files, missing markers and gaps in numbered sets; the completion says that nothing was opened."""
    names = [only] if only is not None else folder.names()
    for name in names:
        if name in folder and not folder.size(name) and not name.endswith(".distcp"):
            made.fault("file.empty", f"{name} has no bytes", file=folder.full(name), measured=0, unit="byte")
    if only is None:
        _marker(made, folder)
        _grids(made, folder)
        _families(made, folder)
    lost = any(kind.startswith("complete.") for kind in made.left_out)
    proof = f"{len(names)} files by their names and sizes; none was opened"
    made.completion = Completion(proven=False if lost else None, proof=proof)


def _marker(made: Checkpoint, folder: Folder) -> None:
    marker = _MARKERS.get(made.layout)
    if marker is not None and marker not in folder:
        text = f"{marker} is missing: it is written last, so the save did not finish"
        made.fault("complete.marker-missing", text, file=folder.full(marker), measured=0, limit=1, unit="file")


def _grids(made: Checkpoint, folder: Folder) -> None:
    """ZeRO shards are numbered by two ranks; verl's names carry the world size."""
    pairs = {(int(m[1]), int(m[2])) for n in folder.here() if (m := _DEEPSPEED.match(n))}
    whole = [(d, m) for d in range(1 + max((p[0] for p in pairs), default=-1)) for m in sorted({p[1] for p in pairs})]
    for dp, mp in [p for p in whole[:_GRID_MAX] if p not in pairs]:
        name = f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"
        made.fault("complete.shard-missing", f"{name} is missing", file=folder.full(name), rank=dp)
    files = {n for n in folder.here() if _VERL.match(n)}
    sizes = {(m[1], int(m[2])) for n in files if (m := _VERL.match(n))}
    for kind, size in sorted(sizes):
        for rank in range(min(size, _GRID_MAX)):
            name = f"{kind}_world_size_{size}_rank_{rank}.pt"
            if name not in files:
                made.fault("complete.shard-missing", f"{name} is missing", file=folder.full(name), rank=rank)


def _families(made: Checkpoint, folder: Folder) -> None:
    """Files that differ in a rank number only, and ``N-of-M`` sets."""
    families: dict[str, list[int]] = {}
    for name in folder.here():
        ranked = rank_of(name) if made.layout not in (deepspeed.NAME, verl.NAME) else None
        if ranked is not None and not name.endswith((".distcp", ".metadata")):
            families.setdefault(ranked[0], []).append(ranked[1])
    made.facts["rank_families"] = {f: sorted(r) for f, r in families.items()}
    check_families(made)
    states = [m for n in folder.here() if (m := _STATES.match(n))]
    for rank in sorted(set(range(max((int(m[2]) for m in states), default=-1))) - {int(m[2]) for m in states}):
        name = f"{states[0][1]}{rank}{states[0][3]}"
        made.fault("rng.incomplete", f"{name} is missing", file=folder.full(name), rank=rank)
    if detect(folder):
        check_numbers(made, [n for n in folder.here() if n.endswith(".safetensors")])
