"""Reading by processes of their own finds what reading in this one finds, whatever becomes of those processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddaudit.checkpoint import apart, passes
from ddaudit.checkpoint.apart import MappedFile
from ddaudit.checkpoint.collect import Collected, Options, collect
from ddaudit.checkpoint.examine import examine
from ddaudit.inert import Malformed
from tests.checkpoint import generate

MAKERS: dict[str, Callable[[Path], Path]] = {
    "dcp": lambda folder: generate.dcp_training(folder / "dcp"),
    "torch": lambda folder: generate.save({"model": generate.weights(64)}, folder / "m.pt"),
    "safetensors": lambda folder: generate.safetensors(generate.weights(64), folder / "m.safetensors"),
}


@pytest.fixture(params=MAKERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MAKERS[request.param](tmp_path)


def read(path: Path, monkeypatch: pytest.MonkeyPatch, *, least: int, **options: Any) -> Collected:
    monkeypatch.setattr(passes, "LEAST_BYTES", least)
    return collect(str(path), Options(**options))


def never(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("this process was to read nothing")


@pytest.mark.parametrize("jobs", [1, 3])
def test_children_find_what_one_process_finds(checkpoint: Path, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    here = read(checkpoint, monkeypatch, least=1 << 60)
    monkeypatch.setattr(passes, "examine", never)
    apart_ = read(checkpoint, monkeypatch, least=0, jobs=jobs)
    assert apart_.scans == here.scans
    assert apart_.facts == here.facts
    assert here.scans


def test_a_flipped_byte_is_found_by_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = MAKERS["torch"](tmp_path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(generate.weights(64)["emb.weight"].numpy().tobytes())] ^= 1
    path.write_bytes(raw)
    found = read(path, monkeypatch, least=0)
    assert [f.tensor or f.key for f in found.facts.faults if f.kind == "integrity.crc"]


@pytest.mark.parametrize("number", [signal.SIGBUS, signal.SIGKILL])
def test_what_a_dead_child_did_not_tell_is_read_here(
    number: int, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = read(checkpoint, monkeypatch, least=1 << 60)
    mine = os.getpid()
    seen: list[str] = []

    def dies(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != mine and seen:
            os.kill(os.getpid(), number)
        seen.append(tensor.name)
        return examine(tensor, *args, **kwargs)

    monkeypatch.setattr(apart, "examine", dies)
    found = read(checkpoint, monkeypatch, least=0)
    assert found.scans == here.scans
    assert found.facts.bytes_read == here.facts.bytes_read


def test_an_error_of_a_child_is_not_lost(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "examine", never)
    with pytest.raises(RuntimeError, match="this process was to read nothing"):
        read(checkpoint, monkeypatch, least=0)


def test_a_file_that_is_shorter_by_now_is_said_to_have_changed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100_000))
    source = MappedFile(tmp_path / "f")
    os.truncate(tmp_path / "f", 10)
    with pytest.raises(Malformed, match="did the file change"):
        source.view(50_000, 1000, 51_000)


def test_an_interrupt_leaves_no_child(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    fork = os.fork

    def noted() -> int:
        begun.append(fork())
        return begun[-1]

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fork", noted)
    with pytest.raises(KeyboardInterrupt):
        read(checkpoint, monkeypatch, least=0, jobs=2, progress=interrupted)
    assert begun
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_mapped_file_shows_its_bytes_across_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "WINDOW_BYTES", 8192)
    monkeypatch.setattr(apart, "LEAST_WINDOW_BYTES", 4096)
    data = os.urandom(50_000)
    (tmp_path / "f").write_bytes(data)
    source = MappedFile(tmp_path / "f")
    assert (
        b"".join(bytes(source.view(at, min(3000, len(data) - at), len(data))) for at in range(0, len(data), 3000))
        == data
    )
    assert bytes(source.view(10, 30_000, 30_010)) == data[10:30_010]
    with pytest.raises(Malformed):
        source.view(49_000, 1001, 50_001)
