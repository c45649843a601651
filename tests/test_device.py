"""The device layer imports no torch by itself, and its stopwatch adds spans up and leaves pauses out."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from ddaudit import device
from ddaudit.errors import LaunchProblem

CPU = torch.device("cpu")


def test_importing_the_layer_and_the_probe_leaves_torch_alone() -> None:
    code = "import sys, ddaudit.device, ddaudit.probes.train, ddaudit.training.faults; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_backend_follows_the_device() -> None:
    assert (device.backend("cpu"), device.backend("cuda")) == ("gloo", "nccl")
    assert device.device_of("cpu", 3) == CPU


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
def test_a_rank_without_a_device_is_told_so_in_one_line() -> None:
    with pytest.raises(LaunchProblem, match="local rank 0 has no CUDA device; expected one of the 0"):
        device.device_of("cuda", 0)


def test_spans_of_a_name_add_up_and_pauses_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0, 14.0, 20.0, 21.0, 30.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = device.Stopwatch(CPU)
    with watch.span("forward_s"):
        pass
    with watch.pause():
        pass
    with watch.span("forward_s"):
        pass
    seconds = watch.read()
    assert seconds["forward_s"] == (3.0 - 1.0) + (21.0 - 20.0)
    assert seconds["step_s"] == 30.0 - (14.0 - 10.0)


def test_a_cpu_has_no_memory_counter_and_one_queue() -> None:
    assert device.memory_bytes(CPU, reset=True) is None
    with device.side_stream(CPU) as stream:
        assert stream is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_span_measures_work_on_the_stream() -> None:
    cuda = device.device_of("cuda", 0)
    watch = device.Stopwatch(cuda)
    with watch.span("forward_s"):
        torch.ones(2048, 2048, device=cuda) @ torch.ones(2048, 2048, device=cuda)
    seconds = watch.read()
    assert 0 < seconds["forward_s"] <= seconds["step_s"]
    assert device.memory_bytes(cuda) > 0
