"""The model: same weights everywhere, causal, and as many FLOPs as the formula says."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ddaudit.training.model import MixtureOfExperts, Transformer, shape_of, token_loss
from ddaudit.training.params import TrainParams

CPU = torch.device("cpu")


def ids_for(params: TrainParams, batch: int = 4) -> torch.Tensor:
    shape = shape_of(params)
    return torch.randint(0, shape.vocab, (batch, shape.seq_len), generator=torch.Generator().manual_seed(0))


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = Transformer.seeded(TrainParams(), CPU)
    torch.manual_seed(2)
    two = Transformer.seeded(TrainParams(dtype="fp64"), CPU)
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    assert all((a.double() == b).all() for a, b in pairs)
    other = Transformer.seeded(TrainParams(seed=2), CPU)
    assert not (other.get_parameter("head.weight") == one.get_parameter("head.weight")).all()


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
def test_the_first_guess_is_uniform(dtype: str) -> None:
    params = TrainParams(dtype=dtype)
    ids = ids_for(params)
    with torch.no_grad():
        loss = token_loss(Transformer.seeded(params, CPU)(ids), ids) / ids.numel()
    assert float(loss) == pytest.approx(math.log(32), abs=0.05)


def test_no_position_sees_a_later_one() -> None:
    params = TrainParams(dtype="fp64", experts=4)
    model, ids = Transformer.seeded(params, CPU), ids_for(params)
    changed = ids.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 32
    before, after = model(ids), model(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-12)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)


@pytest.mark.parametrize("experts", [0, 4])
def test_counted_flops_are_six_p_plus_twelve_l_h_s(experts: int) -> None:
    params = TrainParams(experts=experts)
    model, ids = Transformer.seeded(params, CPU), ids_for(params)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        token_loss(model(ids), ids).backward()
    assert counter.get_total_flops() / ids.numel() == shape_of(params).flops_per_token()


def test_a_mixture_sends_every_token_to_its_best_experts() -> None:
    params = TrainParams(dtype="fp64", experts=4)
    layer = next(m for m in Transformer.seeded(params, CPU).modules() if isinstance(m, MixtureOfExperts))
    tokens = torch.randn(1, 10, 32, dtype=torch.float64)
    scores, chosen = layer.gate(tokens[0]).topk(2)
    weights = scores.softmax(dim=-1)
    slow = [
        sum(w * layer.experts[str(int(e))](token) for w, e in zip(weights[i], chosen[i], strict=True))
        for i, token in enumerate(tokens[0])
    ]
    assert torch.allclose(layer(tokens)[0], torch.stack(slow), atol=1e-12)


def test_a_stage_keeps_names_and_weights_of_the_whole() -> None:
    whole = dict(Transformer.seeded(TrainParams(), CPU).named_parameters())
    part = Transformer.seeded(TrainParams(), CPU).keep([2, 3], first=False, last=True)
    mine = dict(part.named_parameters())
    assert {name.split(".")[0] for name in mine} == {"blocks", "norm", "head"}
    assert all((weight == whole[name]).all() for name, weight in mine.items())
    assert not any(name.startswith(("blocks.0", "blocks.1")) for name in mine)
