"""Headers of a DCP save with very many chunks. usage: checkpoint_chunks.py FOLDER [CHUNKS]

Writes metadata of CHUNKS chunks (default 1,000,000: 1,000 tensors by 1,000 ranks) with sparse data files, then audits
it at level "headers" in a process of its own, and prints CPU seconds, wall seconds and peak memory.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

CODE = """
import sys, resource
from ddaudit.cli.checkpoint_audit import audit_path
result = audit_path(sys.argv[1], level='headers')
usage = resource.getrusage(resource.RUSAGE_SELF)
cpu_s = round(usage.ru_utime + usage.ru_stime, 1)
print(result.word, result.facts.tensors, 'tensors; cpu', cpu_s, 's, peak', usage.ru_maxrss >> 10, 'MiB')
"""


def write(folder: Path, chunks: int) -> None:
    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )

    ranks, rows, length = 1000, 4, 2400
    described, stored = {}, {}
    for tensor in range(chunks // ranks):
        name = f"model.layers.{tensor}.weight"
        boxes = [ChunkStorageMetadata(torch.Size([r * rows, 0]), torch.Size([rows, 64])) for r in range(ranks)]
        for rank, box in enumerate(boxes):
            stored[MetadataIndex(name, box.offsets, rank)] = _StorageInfo(f"__{rank}_0.distcp", tensor * length, length)
        described[name] = TensorStorageMetadata(
            TensorProperties(dtype=torch.float32), torch.Size([ranks * rows, 64]), boxes
        )
    folder.mkdir(parents=True)
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(described, {}, stored, StorageMeta(), version="1.0.0")))
    for rank in range(ranks):
        with (folder / f"__{rank}_0.distcp").open("wb") as file:
            file.truncate(chunks // ranks * length)


def main(folder: Path, chunks: int) -> int:
    if not folder.exists():
        write(folder, chunks)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, env=environment)
    print(done.stdout or done.stderr[-2000:], f"wall {time.perf_counter() - begin:.1f} s")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000))
