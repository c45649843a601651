"""Readers that execute nothing.

Whatever the bytes say, no module is imported, no callable is called, no path is followed out of its folder and no size
is believed before it is compared with what is there. Formats: pickle (`read_pickle`, `load`), JSON (`read_json`), zip
tails (`read_zip`), torch files (`read_torch`), safetensors headers (`read_safetensors`), through one `Source` of bytes.
"""

from __future__ import annotations

from ddaudit.inert.jsons import JsonDocument, read_json
from ddaudit.inert.meanings import PLAIN, NumpyArray, Record
from ddaudit.inert.nodes import Call, Global, InertSet, Malformed, Opaque, Persistent, PickleLimits, PickleResult
from ddaudit.inert.pickles import load, read_pickle
from ddaudit.inert.safetensors import SafetensorsHeader, looks_like_safetensors, read_safetensors
from ddaudit.inert.source import BytesSource, FileSource, Source, inside, unsafe_name
from ddaudit.inert.torch_file import TorchFile, looks_like_torch, read_torch
from ddaudit.inert.torch_objects import ITEM_BITS, Storage, TensorRef
from ddaudit.inert.zips import ZipTail, looks_like_zip, read_zip

__all__ = [
    "ITEM_BITS",
    "PLAIN",
    "BytesSource",
    "Call",
    "FileSource",
    "Global",
    "InertSet",
    "JsonDocument",
    "Malformed",
    "NumpyArray",
    "Opaque",
    "Persistent",
    "PickleLimits",
    "PickleResult",
    "Record",
    "SafetensorsHeader",
    "Source",
    "Storage",
    "TensorRef",
    "TorchFile",
    "ZipTail",
    "inside",
    "load",
    "looks_like_safetensors",
    "looks_like_torch",
    "looks_like_zip",
    "read_json",
    "read_pickle",
    "read_safetensors",
    "read_torch",
    "read_zip",
    "unsafe_name",
]
