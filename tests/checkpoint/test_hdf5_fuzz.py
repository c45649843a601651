"""Truncated and flipped HDF5 files: the reading process answers or refuses, and where the C library dies the audit says
so.

``DDAUDIT_FUZZ`` asks for every truncation and one flip of every byte; without it some of them are tried.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np

from ddaudit.checkpoint import hdf5_child
from tests.checkpoint.audit import audit

WHOLE = "DDAUDIT_FUZZ" in os.environ
FEW = 60
PER_FILE_S = 20
CIRCLE_AT, CIRCLE_BIT = 2073, 4  # found by the whole run; the library did not come back within minutes
READER = f"""
import signal, sys, zipfile
from pathlib import Path
from ddaudit.checkpoint import hdf5_child
for path in sorted(Path(sys.argv[1]).iterdir(), key=lambda p: int(p.stem)):
    if int(path.stem) < int(sys.argv[2]):
        continue
    signal.alarm({PER_FILE_S})
    print("begin", path.stem, flush=True)
    try:
        hdf5_child.describe(str(path), "full")
        print("read", flush=True)
    except hdf5_child.REFUSALS:
        print("refused", flush=True)
"""


def small_file(path: Path) -> bytes:
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = "3.0"
        file["layers/dense/kernel"] = np.arange(12.0, dtype="f4").reshape(3, 4)
        file.create_dataset("layers/dense/bias", data=np.ones(4, "f4"), chunks=(2,), fletcher32=True)
    return path.read_bytes()


def mutations(seed: bytes) -> list[bytes]:
    dice = random.Random(0)
    points = range(len(seed)) if WHOLE else dice.sample(range(len(seed)), FEW // 2)
    made = [seed[:at] for at in points]
    for at in points:
        flipped = bytearray(seed)
        flipped[at] ^= 1 << dice.randrange(8)
        made.append(bytes(flipped))
    return made


def outcomes(folder: Path) -> tuple[dict[int, str], list[int]]:
    """What became of each file, and the files over which the reader died (by a signal, or out of time)."""
    found: dict[int, str] = {}
    dead: list[int] = []
    begin, total = 0, len(list(folder.iterdir()))
    while begin < total:
        run = subprocess.run(
            [sys.executable, "-c", READER, str(folder), str(begin)], capture_output=True, text=True, check=False
        )
        words = run.stdout.split()
        for at in (i for i, word in enumerate(words) if word == "begin"):
            found[int(words[at + 1])] = words[at + 2] if at + 2 < len(words) else f"died: {run.stderr[-300:]}"
        begin = max(found) + 1
        if run.returncode:
            assert run.returncode < 0, run.stderr[-2000:]  # an exception that nothing expects, not a signal
            dead.append(begin - 1)
    return found, dead


def test_damaged_files_are_read_or_refused(tmp_path: Path):
    seed = small_file(tmp_path / "seed.h5")
    folder = tmp_path / "many"
    folder.mkdir()
    made = mutations(seed)
    for number, raw in enumerate(made):
        (folder / f"{number}.h5").write_bytes(raw)
    found, dead = outcomes(folder)
    assert len(found) == len(made)
    print(f"HDF5 {len(made)}: {[(w, list(found.values()).count(w)) for w in ('read', 'refused')]}, died {len(dead)}")
    for number in dead[:20]:
        result = audit(folder / f"{number}.h5")
        assert result.exit != 0 and any(f.bad for f in result.findings)


def test_a_file_that_sends_the_library_round_in_circles_is_given_up(tmp_path: Path):
    raw = bytearray(small_file(tmp_path / "seed.h5"))
    raw[CIRCLE_AT] ^= CIRCLE_BIT
    (tmp_path / "seed.h5").write_bytes(bytes(raw))
    result = audit(tmp_path / "seed.h5")
    assert result.word == "BROKEN" and any("could not read it" in f.text for f in result.findings)


LIMIT = """
import resource, sys
from ddaudit.checkpoint import hdf5_child
hdf5_child.main([sys.argv[1], "full"])
sys.stderr.write(str(resource.getrlimit(resource.RLIMIT_CPU)[0]))
"""


def test_the_cpu_limit_grows_with_what_is_read_and_is_bounded() -> None:
    """100 GiB that deflate well are given the time they need; what no deflate stream can hold is not believed."""
    limit = hdf5_child.cpu_limit_s
    assert limit(0, 0) < limit(200 << 20, 0) < limit(200 << 20, 4 << 30) < limit(1 << 60, 1 << 60) <= 600
    assert limit(1 << 30, 20 << 30) >= 20 * 1024 / 100, "not even 100 MiB of decoded data a second were expected"


def test_compressed_datasets_raise_the_limit_by_what_they_can_hold(tmp_path: Path) -> None:
    """256 MiB in as many chunks: the honest file holds them all, the other claims them and holds one."""
    chunk = zlib.compress(bytes(1 << 20))
    allowed = {}
    for name, held in {"honest": 256, "bomb": 1}.items():
        with h5py.File(tmp_path / name, "w") as file:
            data = file.create_dataset("w", (256 << 18,), dtype="f4", chunks=(1 << 18,), compression="gzip")
            for at in range(held):
                data.id.write_direct_chunk((at << 18,), chunk)
        done = subprocess.run([sys.executable, "-c", LIMIT, tmp_path / name], capture_output=True, text=True)
        allowed[name] = int(done.stderr)
    assert allowed["honest"] >= hdf5_child.cpu_limit_s(0, 256 << 20)
    assert allowed["bomb"] <= hdf5_child.cpu_limit_s(0, 2 << 20) + 1
