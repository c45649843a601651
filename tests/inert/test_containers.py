"""Torch files, zips, safetensors and JSON: read as their frameworks read them, and refused with a reason otherwise."""

from __future__ import annotations

import io
import json
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ddaudit.inert import (
    BytesSource,
    FileSource,
    Malformed,
    TensorRef,
    inside,
    read_json,
    read_safetensors,
    read_torch,
    read_zip,
    unsafe_name,
)


def saved(value: object, *, legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def bytes_of(data: bytes, ref: TensorRef) -> bytes:
    found = read_torch(BytesSource(data))
    place = found.storages[ref.storage.key]
    start = place.offset + ref.offset * ref.item_bytes
    return data[start : start + ref.numel * ref.item_bytes]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensor_bytes_are_found_where_torch_put_them(legacy: bool):
    tensor = torch.arange(12.0).reshape(3, 4)
    data = saved({"a": tensor, "view": tensor[1:], "n": 3}, legacy=legacy)
    value = read_torch(BytesSource(data)).value
    assert value["n"] == 3
    assert value["a"].shape == (3, 4) and value["a"].dtype == "float32"
    assert bytes_of(data, value["view"]) == tensor[1:].numpy().tobytes()
    assert value["a"].storage.key == value["view"].storage.key


def test_every_dtype_of_torch_is_known():
    for dtype in (
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.bool,
        torch.float8_e4m3fn,
        torch.complex64,
    ):
        ref = read_torch(BytesSource(saved(torch.zeros(3, dtype=dtype)))).value
        assert ref.dtype == str(dtype).removeprefix("torch.")
        assert ref.extent * ref.item_bytes == torch.zeros(3, dtype=dtype).nbytes


def test_a_parameter_and_a_transposed_view_keep_their_strides():
    data = saved([torch.nn.Parameter(torch.ones(2)), torch.zeros(3, 4).t()])
    parameter, view = read_torch(BytesSource(data)).value
    assert parameter.shape == (2,)
    assert (view.shape, view.stride, view.contiguous) == ((4, 3), (1, 4), False)


def test_crcs_in_the_archive_are_the_members_own():
    data = saved(torch.arange(100.0))
    members = read_zip(BytesSource(data)).members
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {n: m.crc for n, m in members.items()} == {i.filename: i.CRC for i in archive.infolist()}


@pytest.mark.parametrize("cut", [1, 10, 100, 400])
def test_a_cut_archive_says_so(cut: int):
    with pytest.raises(Malformed, match=r"cut short|zip"):
        read_torch(BytesSource(saved(torch.arange(10.0))[:-cut]))


def lying_zip(**change: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02N.")
        archive.writestr("a/data/0", b"x" * 64)
    raw = bytearray(buffer.getvalue())
    at = raw.rfind(b"PK\x01\x02")
    for field, value in change.items():
        offset, kind = {
            "flags": (8, "<H"),
            "method": (10, "<H"),
            "size": (24, "<I"),
            "packed": (20, "<I"),
            "header": (42, "<I"),
        }[field]
        struct.pack_into(kind, raw, at + offset, value)
    return bytes(raw)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"flags": 1}, "encrypted"),
        ({"method": 8}, "compressed"),
        ({"size": 0x7FFFFFFF, "packed": 0x7FFFFFFF}, "member"),
        ({"header": 0}, "name"),
    ],
)
def test_archives_that_lie_about_a_member_are_found_out(change: dict[str, int], kind: str):
    assert kind in {k for k, _ in read_zip(BytesSource(lying_zip(**change))).problems}


def test_two_members_of_one_name_are_reported():
    buffer = io.BytesIO()
    with pytest.warns(UserWarning), zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"N.")
        archive.writestr("a/data.pkl", b"K\x01.")
    assert "duplicate" in {k for k, _ in read_zip(BytesSource(buffer.getvalue())).problems}


def test_a_zip64_that_claims_too_much_is_not_believed():
    data = bytearray(saved(torch.ones(1)))
    at = data.rfind(b"PK\x06\x06")
    struct.pack_into("<2Q", data, at + 24, 2**40, 2**40)
    with pytest.raises(Malformed):
        read_zip(BytesSource(bytes(data)))


def header(entries: dict[str, object], body: bytes) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_a_safetensors_header_gives_the_tensors_places():
    data = header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, np.ones(2, "f4").tobytes())
    found = read_safetensors(BytesSource(data))
    assert found.problems == []
    assert data[found.entries["a"].offset :] == np.ones(2, "f4").tobytes()


@pytest.mark.parametrize(
    ("entries", "body", "kind"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 7, "truncated"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 9, "trailing"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"\0" * 12, "hole"),
        (
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            },
            b"\0" * 8,
            "overlap",
        ),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, b"\0" * 8, "entry"),
        ({"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8, "entry"),
        ({"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}}, b"\0" * 8, "entry"),
    ],
)
def test_bad_geometry_has_a_name(entries: dict[str, object], body: bytes, kind: str):
    assert kind in {k for k, _, _ in read_safetensors(BytesSource(header(entries, body))).problems}


def test_a_header_length_beyond_the_file_is_refused():
    with pytest.raises(Malformed, match="header"):
        read_safetensors(BytesSource(struct.pack("<Q", 2**63) + b"{}"))


def test_duplicate_tensor_names_are_reported():
    text = b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    found = read_safetensors(BytesSource(struct.pack("<Q", len(text)) + text))
    assert "duplicate" in {k for k, _, _ in found.problems}


@pytest.mark.parametrize("raw", [b"[" * 500, b'{"a":' * 500, b"1" * 5000, b'"\\"' * 300_000, b"\xff", b"", b"{]"])
def test_hostile_json_is_refused_quickly(raw: bytes):
    begin = time.perf_counter()
    with pytest.raises(Malformed):
        read_json(raw)
    assert time.perf_counter() - begin < 5


def test_duplicate_json_keys_are_kept_in_mind():
    assert read_json(b'{"a":1,"b":{"c":1,"c":2}}').duplicates == ["c"]


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../b", "a\0b", "", "C:\\x", "\\\\host\\x", "a\\..\\..\\b", 7, None]
)
def test_names_that_lead_out_are_unsafe(name: object):
    assert unsafe_name(name) is not None


def test_links_may_stay_inside_but_not_leave(tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "real").write_bytes(b"x")
    (root / "good").symlink_to("real")
    (root / "bad").symlink_to("/etc/hostname")
    (root / "loop").symlink_to("loop")
    assert inside(root, "good") == (root / "real").resolve()
    for name in ("bad", "loop", "missing"):
        with pytest.raises(Malformed):
            inside(root, name)


def test_a_fifo_is_refused_without_waiting(tmp_path: Path):
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Malformed, match="regular"):
        FileSource(tmp_path / "pipe")


def test_a_closed_file_is_opened_again_by_the_next_read(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"abc")
    source = FileSource(tmp_path / "f")
    source.close()
    assert source.read(1, 2) == b"bc"
    source.close()


def test_reading_beyond_the_end_is_an_error_not_a_short_answer():
    with pytest.raises(Malformed, match="not inside"):
        BytesSource(b"abc").read(1, 3)


def test_remembered_edges_are_the_bytes_of_the_file():
    data = bytes(range(256)) * 64
    for offset, length in ((0, 100), (7, 4096), (3, 4097), (1, 16000)):
        plain, edges = BytesSource(data).window(offset, length), BytesSource(data).edges(offset, length)
        for at in (0, 1, 4090, 4095, 4096, length - 4096, length - 5, length - 1, length):
            for count in (0, 1, 10, 5000):
                assert at < 0 or edges.pread(at, count) == plain.pread(at, count), (offset, length, at, count)
        assert edges.base[1] == offset
    with pytest.raises(Malformed):
        BytesSource(data).edges(10, len(data))
