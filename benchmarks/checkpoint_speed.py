"""Speed and memory of the full audit against plain reads and torch. usage: checkpoint_speed.py FOLDER [GIB] [ROUNDS]

Writes a DCP save of four ranks, a torch file and a safetensors file of GIB each (default 4) below FOLDER, warms the
page cache, then runs every method in a process of its own, interleaved, ROUNDS times (default 3), and prints the
median CPU seconds as ratios to bare reads of 4 MiB, and the peak of anonymous memory.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

BARE = """
import os, sys, pathlib
buffer = bytearray(4 << 20)
for path in (p for p in pathlib.Path(sys.argv[1]).rglob('*') if p.is_file()):
    fd, at = os.open(path, os.O_RDONLY), 0
    while n := os.preadv(fd, [buffer], at): at += n
"""
SHA = """
import hashlib, os, sys, pathlib
buffer = bytearray(4 << 20)
for path in (p for p in pathlib.Path(sys.argv[1]).rglob('*') if p.is_file()):
    digest, fd, at = hashlib.sha256(), os.open(path, os.O_RDONLY), 0
    while n := os.preadv(fd, [buffer], at):
        digest.update(memoryview(buffer)[:n])
        at += n
"""
AUDIT = """
import sys
from ddaudit.cli.checkpoint_audit import audit_path
print(audit_path(sys.argv[1], jobs=int(sys.argv[2])).word)
"""
TORCH = """
import sys, pathlib, torch
for path in pathlib.Path(sys.argv[1]).rglob('*.pt'):
    for tensor in torch.load(path, mmap=True)['model'].values(): assert torch.isfinite(tensor).all()
"""
TAIL = """
import resource
peak = max(int(l.split()[1]) for l in open('/proc/self/status') if l.startswith('RssAnon')) / 1024
usage = resource.getrusage(resource.RUSAGE_SELF)
sys.stderr.write(f'CPU {usage.ru_utime + usage.ru_stime} ANON {peak}')
"""


def write(folder: Path, gib: float) -> None:
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.checkpoint import generate

    torch.manual_seed(0)
    count = max(1, round(gib * 64))
    tensors = {f"layers.{i}.weight": torch.randn(4096, 1024) for i in range(count)}  # 16 MiB each
    for name in ("torch", "safetensors", "dcp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    torch.save({"model": tensors}, folder / "torch" / "m.pt")
    generate.safetensors(tensors, folder / "safetensors" / "model.safetensors")
    generate.dcp(folder / "dcp", {f"model.{n}": t for n, t in tensors.items()}, {}, ranks=4)


def measure(code: str, *argv: str) -> tuple[float, float, float]:
    begin = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code + TAIL, *argv], capture_output=True, text=True, env=environment)
    wall = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    words = done.stderr.rsplit("CPU ", 1)[1].split()
    return float(words[0]), wall, float(words[2])


def main(folder: Path, gib: float, rounds: int) -> int:
    if not (folder / "dcp").exists():
        write(folder, gib)
    for kind in ("torch", "safetensors", "dcp"):
        path = str(folder / kind)
        methods = {
            "bare": (BARE, path),
            "audit": (AUDIT, path, "1"),
            "audit, 2 jobs": (AUDIT, path, "2"),
            "sha256": (SHA, path),
        }
        if kind == "torch":
            methods["torch.load(mmap) + isfinite"] = (TORCH, path)
        results: dict[str, list[tuple[float, float, float]]] = {name: [] for name in methods}
        measure(BARE, path)
        for _ in range(rounds):
            for name, argv in methods.items():
                results[name].append(measure(*argv))
        bare = statistics.median(r[0] for r in results["bare"])
        for name, found in results.items():
            cpu, wall, anon = (statistics.median(r[i] for r in found) for i in range(3))
            line = f"{kind:12} {name:30} cpu {cpu:7.2f} s  ratio {cpu / bare:5.2f}  wall {wall:7.2f} s"
            print(line, f" RssAnon {anon:6.0f} MiB")
    return 0


if __name__ == "__main__":
    given = sys.argv[1:] + [""] * 3
    sys.exit(main(Path(given[0]), float(given[1] or 4), int(given[2] or 3)))
