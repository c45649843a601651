"""How fast ``ddaudit triage`` reads: a gigabyte of mixed logs, a bundle of 1,024 ranks, and one small bundle.

    python benchmarks/triage_speed.py [--mib 1024] [--ranks 1024] [--folder DIR]

Limits: 100 MB/s on one core and 300 MB of memory for the gigabyte, 30 s for 1,024 ranks, 1 s for a small bundle with
start-up; torch is not imported. Exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NOISE = (
    "[2026-03-10 10:{m:02d}:{s:02d}] step {n} loss 2.{n} grad_norm 0.31 lr 3.0e-04 tokens/s 41022 mem 61.9GiB\n"
    "n{h:02d}:41{n:03d}:42 [3] NCCL INFO Channel 04/0 : 3[3] -> 11[3] [send] via NET/IB/3/GDRDMA\n"
    "/opt/conda/lib/python3.11/site-packages/torch/utils/data/dataloader.py:617: UserWarning: This DataLoader "
    "will create 16\n"
    "frame #4: <unknown function> + 0xdc253 (0x7f5f7ae7b7d6 in /lib/x86_64-linux-gnu/libstdc++.so.6)\n"
)
TIMEOUT = (
    "[rank{r}]:[E310 10:40:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {r}] Watchdog caught collective "
    "operation timeout: "
    "WorkNCCL(SeqNum=771, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds\n"
    "[rank{r}]:[E310 10:40:00.123456789 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure "
    "detected by watchdog at work sequence id: 771 PG status: last enqueued work: 775, last completed work: 770\n"
)
BEHIND = (
    "[rank{r}]:[E310 10:40:01.123456789 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a "
    "dump signal due to a collective timeout from  rank 0. Last enqueued NCCL work: 770, last completed NCCL "
    "work: 770.\n"
)


def noise(lines: int, host: int = 0) -> str:
    """Ordinary training output, four lines at a time."""
    return "".join(NOISE.format(m=i // 60 % 60, s=i % 60, n=100 + i % 900, h=host) for i in range(lines // 4))


def big_log(folder: Path, mib: int) -> Path:
    """One log of ``mib`` MiB with a single error at its end."""
    block = noise(20_000).encode()
    with (folder / "train.log").open("wb") as stream:
        while stream.tell() < mib << 20:
            stream.write(block)
        stream.write(b"[rank3]: Traceback (most recent call last):\n")
        stream.write(b"[rank3]:   File \"t.py\", line 3, in main\n[rank3]: KeyError: 'lr'\n")
    return folder


def many_ranks(folder: Path, ranks: int) -> Path:
    """A log a rank; rank 17 did not enqueue the collective that the others time out in."""
    text = noise(400)
    for rank in range(ranks):
        end = BEHIND if rank == 17 else TIMEOUT
        (folder / f"rank_{rank:04d}.log").write_text(text + end.format(r=rank))
    return folder


def many_files(folder: Path, files: int) -> Path:
    """Small files in folders of ten thousand, as a run that writes a file a sample leaves them; one tells the error."""
    for number in range(files):
        part = folder / f"out_{number // 10_000:04d}"
        if number % 10_000 == 0:
            part.mkdir()
        (part / f"sample_{number:07d}.txt").write_text("ok\n")
    (folder / "a_train.log").write_text("[rank3]: Traceback (most recent call last):\n[rank3]: KeyError: 'lr'\n")
    return folder


def measure(folder: Path) -> tuple[float, float, float, dict[str, object]]:
    """(seconds, seconds of CPU, peak memory in MB, incident) of one run of the command in a process of its own."""
    program = (
        "import resource, sys, json\n"
        "from pathlib import Path\n"
        "from ddaudit.triage.answer import investigate\n"
        "found = investigate([Path(sys.argv[1])]).to_json()\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "cpu_s = used.ru_utime + used.ru_stime\n"
        "print(json.dumps([cpu_s, used.ru_maxrss / 1024, 'torch' in sys.modules, found]))\n"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    cpu_s, peak, torch, found = json.loads(done.stdout)
    assert not torch, "torch was imported"
    return seconds, cpu_s, peak, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--files", type=int, default=0, help="also read a folder of so many files (a million)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the generated logs go (default: a temporary folder)"
    )
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        root = Path(name)
        for part in ("big", "ranks", "small"):
            (root / part).mkdir()
        seconds, cpu_s, peak, found = measure(big_log(root / "big", options.mib))
        # One core's rate is the CPU's: another process on the machine lengthens the seconds, not the work.
        rate = options.mib * 1.048576 / cpu_s
        print(
            f"one log of {options.mib} MiB: {seconds:.1f} s, {cpu_s:.1f} s of CPU, {rate:.0f} MB/s, "
            f"peak {peak:.0f} MB, {found['cause']} {found['guilty']}"
        )
        good &= rate >= 100 and peak <= 300 and found["cause"] == "app.exception"
        seconds, cpu_s, peak, found = measure(many_ranks(root / "ranks", options.ranks))
        print(
            f"{options.ranks} ranks: {seconds:.1f} s, {cpu_s:.1f} s of CPU, peak {peak:.0f} MB, "
            f"{found['cause']} {found['guilty']}"
        )
        good &= cpu_s <= 30 and found["guilty"].get("rank") == 17  # type: ignore[attr-defined]
        if options.files:
            (root / "files").mkdir()
            seconds, cpu_s, peak, found = measure(many_files(root / "files", options.files))
            notes = [n for n in found["notes"] if "not read" in n]  # type: ignore[attr-defined]
            print(
                f"{options.files} files: {seconds:.1f} s, {cpu_s:.1f} s of CPU, peak {peak:.0f} MB, "
                f"{found['guilty']} {notes}"
            )

            good &= cpu_s <= 120 and found["guilty"].get("rank") == 3  # type: ignore[attr-defined]
        runs = [measure(many_ranks(root / "small", 8))[:2] for _ in range(3)]
        best, cpu_s = min(runs)
        print(f"8 small logs with start-up: {best:.2f} s, {cpu_s:.2f} s of CPU")
        good &= cpu_s <= 1.0
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
