"""What a forecast may never get wrong: units, conservation of volume, monotonicity, and the limits for one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddaudit.forecast.goodput import best_interval
from ddaudit.forecast.layout import Layout, misfit
from ddaudit.forecast.layouts import candidates, grown
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.memory import States, layer_bytes, memory
from ddaudit.forecast.network import Link, Network
from ddaudit.forecast.shape import Shape, hfu, mfu
from ddaudit.forecast.step import TERMS, step_terms, work_s
from ddaudit.forecast.volumes import volumes

SHAPE = Shape(layers=24, hidden=2048, heads=16, vocab=50304, seq_len=2048)
MOE = replace(SHAPE, experts=8)
MACHINE = Machine(
    "m", 312e12, Network(8, Link(4e-6, 235e9), Link(14e-6, 20e9)), memory_bytes_per_s=2e12, touches=4.0, layer_s=1e-3
)
RANKS = st.sampled_from([1, 2, 4, 8, 16, 64, 512])


def test_flops_of_a_token_are_six_per_parameter_and_the_scores():
    assert SHAPE.flops_per_token() == pytest.approx(6 * SHAPE.active_parameters + 12 * 24 * 2048 * 2048)
    layers = 96 * 24 * 2048**2 * (1 + 2048 / (6 * 2048))  # Narayanan et al. 2021, eq. 3, without the head, per token
    assert SHAPE.layers * SHAPE.layer_flops("full") == pytest.approx(layers)


@pytest.mark.parametrize(
    ("step_s", "gpus", "batch", "published"),
    [(40.0, 256, 768, 53.0), (29.02, 3072, 6144, 48.7), (8.57, 12288, 6144, 41.2)],
)
def test_published_utilisation_follows_from_published_step_times(
    step_s: float, gpus: int, batch: int, published: float
):
    """MegaScale (Jiang et al. 2024), table 2, Megatron-LM's 175B rows."""
    shape = Shape(96, 12288, 128, 51200, 2048)
    tokens = batch * 2048 / step_s
    assert 100 * mfu(shape, tokens, gpus, 312e12) == pytest.approx(published, abs=0.1)
    assert hfu(shape, tokens, gpus, 312e12, "full") > mfu(shape, tokens, gpus, 312e12)


@pytest.mark.parametrize(
    ("size", "states", "kept", "selective"),
    [
        ((48, 6144, 64, 8, 1, 1, 4), 45.56, 59.25, 9.56),
        ((96, 12288, 96, 8, 8, 3, 1), 45.56, 66.84, 12.35),
        ((105, 20480, 128, 8, 35, 3, 1), 31.64, 114.02, 23.08),
        ((128, 25600, 160, 8, 64, 1, 1), 32.96, 131.25, 26.56),
    ],
)
def test_published_memory_follows_from_the_formulas(
    size: tuple[int, ...], states: float, kept: float, selective: float
):
    """Korthikanti et al. 2022, GiB per rank."""
    layers, hidden, heads, tp, pp, chunks, micro = size
    shape = Shape(layers, hidden, heads, 0, 2048)
    layout = Layout(
        tp=tp, pp=pp, virtual_stages=chunks, micro_batch=micro, accumulation=4 * pp, sequence_parallel=False
    )
    used = memory(shape, layout, States(2, 4, 12))
    assert (used.weights + used.gradients + used.optimizer) / 2**30 == pytest.approx(states, rel=0.002)
    assert used.activations / 2**30 == pytest.approx(kept, rel=0.002)
    spared = replace(layout, sequence_parallel=True, recompute="selective")
    assert memory(shape, spared).activations / 2**30 == pytest.approx(selective, rel=0.002)


def test_sharding_divides_the_sixteen_bytes_as_zero_says():
    def states(layout: Layout) -> float:
        used = memory(SHAPE, layout)
        return (used.weights + used.gradients + used.optimizer) / SHAPE.parameters

    assert states(Layout(dp=8)) == pytest.approx(16)
    assert states(Layout(sharded=8, zero_stage=1)) == pytest.approx(4 + 12 / 8)
    assert states(Layout(sharded=8, zero_stage=2)) == pytest.approx(2 + 14 / 8)
    assert states(Layout(sharded=8, zero_stage=3)) == pytest.approx(16 / 8)


@given(ranks=RANKS)
def test_zero_1_and_2_move_what_ddp_moves_and_zero_3_half_as_much_again(ranks: int):
    ddp = volumes(SHAPE, Layout(dp=ranks)).data
    assert volumes(SHAPE, Layout(sharded=ranks, zero_stage=1)).data == pytest.approx(ddp)
    assert volumes(SHAPE, Layout(sharded=ranks, zero_stage=2)).data == pytest.approx(ddp)
    assert volumes(SHAPE, Layout(sharded=ranks)).data == pytest.approx(1.5 * ddp)


@given(ranks=RANKS, pieces=RANKS)
def test_gradient_bytes_on_the_wire_add_up_to_two_buffers_less_one_share(ranks: int, pieces: int):
    """Summed over ranks, an all-reduce of S bytes moves 2 (n - 1) S, however it is cut."""
    whole = volumes(SHAPE, Layout(dp=ranks)).data * ranks
    assert whole == pytest.approx(2 * (ranks - 1) * SHAPE.parameters * 2)
    cut = volumes(SHAPE, Layout(dp=ranks, accumulation=pieces)).data * ranks
    assert cut == pytest.approx(whole)  # accumulation synchronises once


def test_one_rank_sends_nothing_waits_for_nobody_and_has_no_bubble():
    alone = Layout(micro_batch=4, accumulation=2)
    assert volumes(MOE, alone).total == 0
    terms = step_terms(MOE, alone, replace(MACHINE, tail=0.01, spread=((0.0, 0.0), (1.0, 0.5))))
    assert (terms.exposed, terms.bubble, terms.sync, terms.hidden) == (0, 0, 0, 0)


@given(ranks=st.sampled_from([2, 4, 8, 16]), kind=st.sampled_from(["data", "sharded", "tensor", "pipeline", "context"]))
@settings(deadline=None)
def test_terms_are_never_negative_and_sum_to_the_step(ranks: int, kind: str):
    layout = grown(Layout(micro_batch=2, accumulation=16), kind, ranks, "weak", SHAPE)
    assert isinstance(layout, Layout)
    terms = step_terms(SHAPE, layout, MACHINE)
    values = [getattr(terms, name) for name in TERMS]
    assert min(values) >= 0
    assert sum(values) == pytest.approx(terms.total)


@given(ranks=RANKS, more=st.sampled_from([2, 4, 8]))
@settings(deadline=None)
def test_a_slower_wire_or_more_replicas_never_shorten_a_weakly_scaled_step(ranks: int, more: int):
    layout = Layout(sharded=ranks, micro_batch=2)
    here = step_terms(SHAPE, layout, MACHINE).total
    assert step_terms(SHAPE, layout, MACHINE.scaled(outer=1 / more, inner=1 / more)).total >= here * (1 - 1e-9)
    wider = step_terms(SHAPE, replace(layout, sharded=ranks * more), MACHINE)
    assert wider.compute == pytest.approx(step_terms(SHAPE, layout, MACHINE).compute)
    assert wider.total >= (here - step_terms(SHAPE, layout, MACHINE).optimizer) * (1 - 1e-9)


@given(ranks=st.sampled_from([2, 4, 8, 16, 32]), size=st.floats(1e3, 1e10))
def test_an_all_reduce_takes_as_long_as_its_two_halves_unless_a_tree_is_quicker(ranks: int, size: float):
    network = Network(64, Link(1e-6, 1e11), Link(1e-5, 1e10))
    halves = network.seconds("reduce-scatter", size, ranks, ranks) + network.seconds("all-gather", size, ranks, ranks)
    whole = network.seconds("all-reduce", size, ranks, ranks)
    assert whole <= halves * (1 + 1e-9)
    if size > 1e8:
        assert whole == pytest.approx(halves)


@pytest.mark.parametrize(("chunks", "share"), [(1, 7 / 32), (2, 7 / 64)])
def test_the_bubble_is_p_minus_one_over_v_m(chunks: int, share: float):
    layout = Layout(pp=8, accumulation=32, virtual_stages=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
    assert layout.bubble == pytest.approx(share)
    assert replace(layout, schedule="zero-bubble").bubble == 0


def test_scores_are_not_kept_under_selective_recomputation():
    plain, spared = Layout(), Layout(recompute="selective")
    assert layer_bytes(SHAPE, plain) - layer_bytes(SHAPE, spared) == pytest.approx(5 * 16 * 2048**2)


def test_every_candidate_uses_all_devices_and_the_whole_batch_and_can_run():
    for layout in candidates(MOE, 16, 64, 8):
        assert layout.devices == 16
        assert layout.global_batch == 64
        assert misfit(layout, MOE) is None


@given(save=st.floats(0.1, 600), devices=st.integers(1, 16384))
def test_the_best_interval_is_near_youngs_and_beats_its_neighbours(save: float, devices: int):
    found = best_interval(save, 0.0, devices, 0.005)
    assert found is not None
    assert 0 <= found.share <= 1
    if save < found.mtbf_s / 100:
        assert found.interval_s == pytest.approx((2 * save * found.mtbf_s) ** 0.5, rel=0.2)
    assert best_interval(save, 0.0, 2 * devices, 0.005).share <= found.share + 1e-12  # type: ignore[union-attr]


@given(
    unit=st.sampled_from([1e-3, 0.5, 2.0, 60.0]),
    kind=st.sampled_from(["data", "sharded", "tensor", "pipeline", "expert", "context"]),
)
@settings(deadline=None)
def test_a_step_in_another_unit_of_time_is_the_same_step(unit: float, kind: str):
    """All seconds times u and all rates over u give a step of u times the seconds: no term mixes units."""

    def link(one: Link) -> Link:
        return Link(one.alpha_s * unit, one.bytes_per_s / unit)

    network = MACHINE.network
    other = replace(
        MACHINE,
        peak_flops=MACHINE.peak_flops / unit,
        memory_bytes_per_s=MACHINE.memory_bytes_per_s / unit,
        layer_s=MACHINE.layer_s * unit,
        network=replace(network, inner=link(network.inner), outer=link(network.outer)),
    )
    layout = grown(Layout(micro_batch=2, accumulation=8), kind, 8, "weak", MOE)
    assert isinstance(layout, Layout)
    assert step_terms(MOE, layout, other).total == pytest.approx(unit * step_terms(MOE, layout, MACHINE).total)


@pytest.mark.parametrize("kind", ["data", "sharded", "tensor", "pipeline", "context"])
def test_every_kind_on_one_device_is_the_step_of_one_device(kind: str):
    alone = Layout(micro_batch=2, accumulation=4)
    layout = grown(alone, kind, 1, "weak", SHAPE)
    assert isinstance(layout, Layout)
    assert step_terms(SHAPE, layout, MACHINE) == step_terms(SHAPE, alone, MACHINE)


@given(
    cores=st.integers(1, 8), kind=st.sampled_from(["data", "sharded", "tensor", "pipeline"]), wait=st.floats(1e-6, 0.1)
)
@settings(deadline=None)
def test_ranks_that_share_cores_take_at_least_their_work_and_at_most_every_wait_besides(
    cores: int, kind: str, wait: float
):
    network = replace(MACHINE.network, inner=Link(wait, 1e9), outer=Link(wait, 1e9), call_s=1e-4, trees=False)
    machine = replace(MACHINE, cores=cores, hop_cpu_s=wait / 2, network=network)
    layout = grown(Layout(micro_batch=2, accumulation=8), kind, 4, "weak", SHAPE)
    assert isinstance(layout, Layout)
    terms, work = step_terms(SHAPE, layout, machine), work_s(SHAPE, layout, machine)
    alone = step_terms(SHAPE, layout, replace(machine, cores=64)).total
    crowd = max(1.0, 4 / cores)
    assert work <= alone * (1 + 1e-9)
    assert max(alone, crowd * work) <= terms.total * (1 + 1e-9)
    met = 1 + 3 / cores if cores < 4 else 1.0
    assert terms.total <= (met * work + alone - work) * (1 + 1e-9)
    assert (terms.cores > 0) == (cores < 4)
