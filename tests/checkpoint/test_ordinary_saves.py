"""What real optimizers and schedules save is no alarm, or DEGRADED with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddaudit.checkpoint import master
from tests.checkpoint import generate as g
from tests.checkpoint.audit import audit, ids

STEPS = 3


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of two layers after ``STEPS`` updates."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4, bias=False))
    optimizer = make(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def whole(**parts: Any) -> dict[str, Any]:
    return {
        "global_step": STEPS,
        "micro_batch_size": 4,
        "grad_accum_steps": 1,
        "world_size": 1,
        "sampler": {"epoch": 0, "seed": 5, "next_index": STEPS * 4},
        "rng": {"torch": torch.get_rng_state()},
        **parts,
    }


def adafactor() -> dict[str, Any]:
    model, optimizer = trained(torch.optim.Adafactor)
    schedule = {"last_epoch": STEPS, "base_lrs": [0.01]}
    return whole(model=model.state_dict(), optimizer=optimizer.state_dict(), scheduler=schedule)


def plateau() -> dict[str, Any]:
    """ReduceLROnPlateau counts evaluations, and its threshold and best are infinite before the first."""
    model, optimizer = trained(adam)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return whole(model=model.state_dict(), optimizer=optimizer.state_dict(), scheduler=schedule.state_dict())


def two_optimizers() -> dict[str, Any]:
    """A generator that was updated once for each update of its discriminator."""
    (one, first), (two, second) = trained(adam), trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    return whole(
        generator=one.state_dict(),
        discriminator=two.state_dict(),
        optimizer_g=first.state_dict(),
        optimizer_d=second.state_dict(),
        scheduler={"last_epoch": STEPS, "base_lrs": [0.001]},
    )


@pytest.mark.parametrize("make", [adafactor, plateau, two_optimizers])
def test_what_an_ordinary_script_saves_is_no_alarm(make: Callable[[], dict[str, Any]], tmp_path: Path):
    result = audit(g.save(make(), tmp_path / "checkpoint.pt"))
    reasons = [f.text for f in result.findings if f.bad]
    assert result.word in ("OK", "DEGRADED"), reasons
    assert bool(reasons) is (result.word == "DEGRADED")


def test_a_folder_of_accelerate_is_no_alarm(tmp_path: Path):
    result = audit(g.accelerate(tmp_path / "checkpoint_0"))
    assert result.word in ("OK", "DEGRADED"), ids(result)


def test_weights_beyond_the_limit_are_said_not_to_be_held_against_their_masters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    root = g.deepspeed(tmp_path)
    told = [f.text for f in audit(root).findings if "master weights" in f.text]
    assert not told
    monkeypatch.setattr(master, "_MASTER_MAX_BYTES", 100)
    told = [f.text for f in audit(root).findings if "master weights" in f.text]
    assert len(told) == 1 and told[0].startswith("not measured: 2 weights")


@pytest.mark.parametrize("name", ["legacy", "dist"])
def test_megatrons_adam_without_its_squares_is_noticed(name: str, tmp_path: Path):
    params = g.weights()
    state = {i: {"exp_avg": p * 0.1} for i, p in enumerate(params.values())}
    if name == "legacy":
        groups = [{"lr": 0.1, "params": list(range(len(params)))}]
        folder = g.megatron(tmp_path, optimizer={"state": state, "param_groups": groups})
    else:
        folder = g.megatron_dist(tmp_path / "iter_0000006")
        metadata = g.edit_metadata(folder)
        for table in (metadata.state_dict_metadata, metadata.storage_data):
            for key in [k for k in table if "exp_avg_sq" in str(getattr(k, "fqn", k))]:
                del table[key]
        g.write_metadata(folder, metadata)
    result = audit(folder)
    assert result.word == "WRONG" and "optimizer.state-missing" in ids(result), ids(result)


@pytest.mark.parametrize(("rows", "bad"), [(0, True), (1, False)])
def test_zeros_from_a_page_on_are_an_unfinished_copy_and_unused_rows_are_none(rows: int, bad: bool, tmp_path: Path):
    path = g.safetensors({"emb.weight": torch.randn(128, 25)}, tmp_path / "model.safetensors")
    assert ids(audit(path)) == set()
    raw = path.read_bytes()
    start = len(raw) - 128 * 100
    begin = start + -(-(8192 - start) // 100) * 100 if rows else 8192
    path.write_bytes(raw[:begin] + bytes(len(raw) - begin))
    assert ("file.zero-tail" in ids(audit(path))) is bad
