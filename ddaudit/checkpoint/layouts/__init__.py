"""One module a layout: ``NAME``, ``detect(folder)`` and ``read(reader)``. The order below is the order of asking.

A layout turns files into the logical model of ``ddaudit.checkpoint.model``; it notes facts and faults, and judges
nothing.
"""

from __future__ import annotations

from types import ModuleType

from ddaudit.checkpoint.folder import Folder
from ddaudit.checkpoint.layouts import (
    accelerate,
    composer,
    dcp,
    deepspeed,
    deepspeed_universal,
    hdf5,
    hf_trainer,
    lightning,
    megatron_dist,
    megatron_legacy,
    nemo,
    safetensors,
    torch_files,
    torchsnapshot,
    verl,
    zarr,
)
from ddaudit.checkpoint.reader import Reader
from ddaudit.inert import Malformed, looks_like_safetensors

#: Recognised by files that nobody else writes.
STRONG: tuple[ModuleType, ...] = (
    nemo, composer, lightning, deepspeed_universal, deepspeed, megatron_dist, megatron_legacy, hf_trainer, accelerate,
    verl, torchsnapshot, dcp, zarr,
)  # fmt: skip
#: Loose files: also what a folder of several checkpoints may look like.
WEAK: tuple[ModuleType, ...] = (hdf5, torch_files, safetensors)


def detect(folder: Folder, *, weak: bool = True) -> ModuleType | None:
    """The layout of a folder, or None."""
    return next((m for m in (*STRONG, *(WEAK if weak else ())) if m.detect(folder)), None)


def read_file(reader: Reader, name: str) -> str:
    """Reads one file that is a checkpoint by itself. Returns the layout's name."""
    folder = reader.folder
    try:
        source = folder.source(name)
        if hdf5.is_hdf5(folder, name) or name.endswith(hdf5.SUFFIXES):
            hdf5.read(reader, name)
            return hdf5.NAME
        if source.size and (looks_like_safetensors(source) or name.endswith(".safetensors")):
            safetensors.read(reader, only=name)
            return safetensors.NAME
    except Malformed:
        pass  # the fallback below reports what is wrong with the file
    if lightning.detect_file(folder, name):
        lightning.read(reader, name)
        return lightning.NAME
    if composer._FILE.match(name):
        composer.read(reader, name)
        return composer.NAME
    torch_files.read(reader, name)
    return torch_files.NAME
