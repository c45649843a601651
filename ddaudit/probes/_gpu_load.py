"""Work for the GPUs while the ``devices`` probe looks: matrix products and host-to-device copies on every visible one.

Run as a script with ``SECONDS``, so that the probe itself never holds a CUDA context. Prints one
line once all devices are at work, and ends by itself after ``SECONDS``.
"""

from __future__ import annotations

import sys
import time

__all__ = ["main"]

SIZE = 4096
COPY_BYTES = 64 << 20


def main(seconds: float) -> int:
    """Keeps the devices busy. Returns 1 where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return 1
    end = time.monotonic() + seconds
    work = []
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        left = torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16)
        held = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
        work.append((left, held, torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)))
    said = False
    while time.monotonic() < end:
        for left, held, target in work:
            left @ left
            target.copy_(held, non_blocking=True)
        for left, _, _ in work:
            torch.cuda.synchronize(left.device)
        if not said:
            sys.stdout.write(f"bf16 matrix products of {SIZE} and copies on {len(work)} device(s)\n")
            sys.stdout.flush()
            said = True
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
