"""Speed and memory of the full audit against plain reads and torch.

Writes a DCP save of four ranks, a torch file and a safetensors file of GIB each (default 4) below FOLDER, warms the
page cache, then runs every method in a process of its own, interleaved, ROUNDS times (default 3), and prints the
median CPU seconds, start of the interpreter included, as ratios to bare reads of 4 MiB. Then it audits sparse files of
1/4, 1 and 4 times GIB, and prints the peak of anonymous memory. Exit 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES = "import os, sys, pathlib\nfiles = [p for p in pathlib.Path(sys.argv[1]).rglob('*') if p.is_file()]\n"
BARE = """
buffer = bytearray(4 << 20)
for path in files:
    fd, at = os.open(path, os.O_RDONLY), 0
    while n := os.preadv(fd, [buffer], at): at += n
"""
SHA = """
import hashlib
buffer = bytearray(4 << 20)
for path in files:
    digest, fd, at = hashlib.sha256(), os.open(path, os.O_RDONLY), 0
    while n := os.preadv(fd, [buffer], at):
        digest.update(memoryview(buffer)[:n])
        at += n
"""
SHA256SUM = (
    "\nimport subprocess\nsubprocess.run(['sha256sum', *map(str, files)], check=True, stdout=subprocess.DEVNULL)\n"
)
AUDIT = """
from ddaudit.cli.checkpoint_audit import audit_path
assert audit_path(sys.argv[1], jobs=int(sys.argv[2])).facts.bytes_read > 0
"""
TORCH = """
import torch
for path in files:
    for tensor in torch.load(path, mmap=sys.argv[2] == 'mmap')['model'].values(): assert torch.isfinite(tensor).all()
"""
TAIL = """
import resource
both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
sys.stderr.write(f'CPU {sum(u.ru_utime + u.ru_stime for u in both)}')
"""
POLL_S = 0.01
ANON_MAX_MIB = 300
TENSOR_BYTES = 16 << 20


@dataclass(frozen=True)
class Run:
    """CPU and wall seconds of one process, and its peak of anonymous memory in MiB."""

    cpu_s: float
    wall_s: float
    anon_mib: float


def write(folder: Path, gib: float) -> None:
    """The three checkpoints, of tensors of 16 MiB."""
    import torch

    sys.path.insert(0, str(ROOT))
    from tests.checkpoint import generate

    torch.manual_seed(0)
    tensors = {f"layers.{i}.weight": torch.randn(4096, 1024) for i in range(max(1, round(gib * 64)))}
    for name in ("torch", "safetensors", "dcp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    torch.save({"model": tensors}, folder / "torch" / "m.pt")
    generate.safetensors(tensors, folder / "safetensors" / "model.safetensors")
    generate.dcp(folder / "dcp", {f"model.{n}": t for n, t in tensors.items()}, {}, ranks=4)


def write_sparse(path: Path, gib: float) -> None:
    """A safetensors file whose data are a hole."""
    count = max(1, round(gib * 64))
    header = {
        f"layers.{i}.weight": {
            "dtype": "F32",
            "shape": [4096, 1024],
            "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
        }
        for i in range(count)
    }
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + count * TENSOR_BYTES)


def anonymous_mib(pid: int) -> float:
    """Anonymous memory that a process holds now; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return max((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), default=0.0)


def measure(code: str, *argv: str) -> Run:
    """Runs one method in a fresh interpreter that finds its byte code, as an installed package does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin, peak = time.perf_counter(), 0.0
    command = [sys.executable, "-c", FILES + code + TAIL, *argv]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None:
            peak = max(peak, anonymous_mib(process.pid))
            time.sleep(POLL_S)
        assert process.stderr is not None
        told = process.stderr.read()
    if process.returncode:
        raise SystemExit(told[-2000:])
    return Run(float(told.rsplit("CPU ", 1)[1]), time.perf_counter() - begin, peak)


def compare(kind: str, path: str, rounds: int) -> list[str]:
    """Prints one container's table; returns the limits that it misses."""
    methods: dict[str, tuple[str, ...]] = {
        "bare reads": (BARE, path),
        "audit": (AUDIT, path, "1"),
        "audit --jobs 2": (AUDIT, path, "2"),
        "hashlib sha256": (SHA, path),
        "sha256sum": (SHA256SUM, path),
    }
    if kind == "torch":
        methods["torch.load + isfinite"] = (TORCH, path, "")
        methods["torch.load(mmap) + isfinite"] = (TORCH, path, "mmap")
    runs: dict[str, list[Run]] = {name: [] for name in methods}
    for argv in methods.values():
        measure(*argv)  # page cache and byte code
    for _ in range(rounds):
        for name, argv in methods.items():
            runs[name].append(measure(*argv))
    cpu = {name: statistics.median(r.cpu_s for r in mine) for name, mine in runs.items()}
    wall = {name: statistics.median(r.wall_s for r in mine) for name, mine in runs.items()}
    for name, mine in runs.items():
        line = f"{kind:12} {name:28} cpu {cpu[name]:7.2f} s  ratio {cpu[name] / cpu['bare reads']:6.2f}"
        print(f"{line}  wall {wall[name]:7.2f} s  RssAnon {max(r.anon_mib for r in mine):6.0f} MiB")
    asked = [("audit / bare reads at most 2.3", cpu["audit"] / cpu["bare reads"], -2.3),
             ("sha256 / audit at least 1.3", cpu["hashlib sha256"] / cpu["audit"], 1.3),
             ("wall of 1 / 2 jobs at least 1.5", wall["audit"] / wall["audit --jobs 2"], 1.5)]  # fmt: skip
    if kind == "torch":
        asked.append(("torch.load(mmap) / audit at least 4", cpu["torch.load(mmap) + isfinite"] / cpu["audit"], 4.0))
    for text, have, _ in asked:
        print(f"{kind:12} {text}: {have:.2f}")
    return [
        f"{kind}: {text}: {have:.2f}" for text, have, limit in asked if (have > -limit if limit < 0 else have < limit)
    ]


def memory(folder: Path, sizes_gib: list[float]) -> list[str]:
    """Peaks of anonymous memory for sparse files of growing size; returns the limits that are missed."""
    peaks = []
    for gib in sizes_gib:
        path = folder / "sparse" / f"{gib:g}" / "model.safetensors"
        write_sparse(path, gib)
        peaks.append(measure(AUDIT, str(path.parent), "1").anon_mib)
        path.unlink()
        print(f"sparse       audit of {gib:6.2f} GiB           RssAnon {peaks[-1]:6.0f} MiB")
    missed = [f"RssAnon {p:.0f} MiB" for p in peaks if p > ANON_MAX_MIB]
    return missed + ["RssAnon grows with the size"] * (max(peaks) > 1.5 * min(peaks))


def main(folder: Path, gib: float, rounds: int) -> int:
    if not (folder / "dcp").exists():
        write(folder, gib)
    missed = [m for kind in ("torch", "safetensors", "dcp") for m in compare(kind, str(folder / kind), rounds)]
    missed += memory(folder, [gib / 4, gib, gib * 4])
    print("\n".join(f"missed: {m}" for m in missed) or "every limit is met")
    return int(bool(missed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the checkpoints are made, or lie already")
    parser.add_argument("gib", type=float, nargs="?", default=4.0)
    parser.add_argument("rounds", type=int, nargs="?", default=3)
    options = parser.parse_args()
    sys.exit(main(options.folder, options.gib, options.rounds))
