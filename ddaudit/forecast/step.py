"""The time of one update, by term."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddaudit.forecast.layout import Layout
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.memory import layer_bytes
from ddaudit.forecast.shape import Shape
from ddaudit.forecast.stragglers import expected_excess
from ddaudit.forecast.volumes import expert_share

__all__ = ["TERMS", "Terms", "core_bounds", "step_terms", "work_s"]

#: Terms in the order in which tables and charts show them, with what they hold.
TERMS: dict[str, str] = {
    "compute": "forward, backward and recomputation",
    "bubble": "idle while the pipeline fills and drains",
    "tensor": "exposed tensor-parallel communication",
    "pipeline": "activations between stages",
    "expert": "exposed all-to-alls of experts",
    "context": "exposed ring of keys and values",
    "data": "exposed synchronisation of gradients and weights",
    "host": "devices waiting for the host to launch",
    "optimizer": "the update itself",
    "input": "waiting for the loader",
    "sync": "waiting for the slowest rank",
    "cores": "waiting for a core that other ranks of the host use",
}


@dataclass(frozen=True)
class Terms:
    """Seconds of one update by term; ``hidden`` is communication that compute covers, no part of the total."""

    compute: float = 0.0
    bubble: float = 0.0
    tensor: float = 0.0
    pipeline: float = 0.0
    expert: float = 0.0
    context: float = 0.0
    data: float = 0.0
    host: float = 0.0
    optimizer: float = 0.0
    input: float = 0.0
    sync: float = 0.0
    cores: float = 0.0
    hidden: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in TERMS))

    @property
    def exposed(self) -> float:
        """Communication that nothing covers."""
        return self.tensor + self.pipeline + self.expert + self.context + self.data

    @property
    def largest(self) -> str:
        return max(TERMS, key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class _Micro:
    """One micro-batch on one pipeline stage: seconds of its parts."""

    compute: float
    tensor: float
    expert: float
    context: float
    host: float
    hidden: float

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.expert + self.context + self.host


def step_terms(shape: Shape, layout: Layout, machine: Machine, width: int = 2, gradient_width: int = 0) -> Terms:
    """Seconds of one update of ``layout`` on ``machine``; ``width`` bytes a number, ``gradient_width`` of gradients.

    m micro-batches pass the slowest stage, (p - 1) / v more fill and drain the pipeline, and what the gradients'
    synchronisation takes beyond the compute that can cover it is added (docs/forecast.md; Narayanan et al.
    2021, section 2.2; Li et al. 2020 for DDP).
    """
    terms = _alone(shape, layout, machine, width, gradient_width)
    if not _crowd(layout, machine):
        return terms
    _, mid, _ = core_bounds(shape, layout, machine, terms, (width, gradient_width))
    return replace(terms, cores=mid - terms.total)


def _alone(shape: Shape, layout: Layout, machine: Machine, width: int, gradient_width: int) -> Terms:
    """The terms of a rank with a core of its own."""
    layers = -(-shape.layers // layout.pp)
    micro = _micro(shape, layout, machine, layers, width, head=False)
    last = _micro(shape, layout, machine, max(1, shape.layers // layout.pp), width, head=True)
    count = layout.accumulation
    slowest = max(micro, last, key=lambda part: part.total) if layout.pp > 1 else last
    bubble = layout.bubble * count * micro.total
    hop = _hop(shape, layout, machine, width)
    ends = 2 * layout.virtual_stages if layout.pp > 1 else 0
    pipeline = ends * hop * (count + (layout.pp - 1) / layout.virtual_stages) if ends else 0.0
    exposed, hidden = _data(shape, layout, machine, slowest, (width, gradient_width or width))
    busy = count * slowest.compute + bubble
    parts = {name: count * getattr(slowest, name) for name in ("tensor", "expert", "context", "host", "hidden")}
    slower = 1 + (machine.contention - 1) * min(1.0, hidden / busy if busy else 0.0)
    parts |= {"compute": count * slowest.compute * slower, "bubble": bubble, "pipeline": pipeline, "data": exposed}
    parts["hidden"] += hidden
    parts["optimizer"] = _optimizer(shape, layout, machine, width) + machine.fixed_s + layers * machine.update_s
    return _with_waits(Terms(**parts), layout, machine)


def _micro(shape: Shape, layout: Layout, machine: Machine, layers: int, width: int, *, head: bool) -> _Micro:
    tokens = layout.micro_batch * shape.seq_len / layout.cp
    rate = machine.rate(shape.hidden / layout.tp)
    each = shape.layer_flops(layout.recompute) * tokens / layout.tp / rate
    if machine.touches and machine.memory_bytes_per_s:
        each += machine.touches * layer_bytes(shape, layout, width) / machine.memory_bytes_per_s
    size = tokens * shape.hidden * width
    network, near = machine.network, machine.network.node_size
    calls = 6 if layout.recompute == "full" else 4
    tensor = calls * network.seconds("all-reduce", size, layout.tp, min(layout.tp, near))
    shown = tensor * (1 - machine.hides_tensor)
    expert = 0.0
    if shape.experts and layout.ep > 1:
        inside = max(1, near // (layout.tp * layout.cp))
        expert = 4 * network.seconds("all-to-all", size * shape.top_k, layout.ep, inside)
    context = _ring(shape, layout, machine, size, each)
    busy = each + shown + expert + context
    launch = machine.layer_s * _launches(shape, layout)
    host = _larger(busy, launch) - busy if machine.cores is None else launch
    top = shape.head_flops * tokens / layout.tp / rate if head else 0.0
    parts = (layers * shown, layers * expert, layers * context, layers * host)
    return _Micro(layers * each + top, *parts, hidden=layers * (tensor - shown))


def _launches(shape: Shape, layout: Layout) -> float:
    """Launches of a layer in units of a dense one: half are attention's, half those of each expert on the rank."""
    return 0.5 + 0.5 * max(1.0, shape.experts / layout.ep)


def _larger(one: float, other: float) -> float:
    """A smooth maximum: near the crossing some parts wait and others do not."""
    top = max(one, other)
    return top * ((one / top) ** 4 + (other / top) ** 4) ** 0.25 if top else 0.0


def work_s(shape: Shape, layout: Layout, machine: Machine, width: int = 2, gradient_width: int = 0) -> float:
    """CPU seconds that one rank of a host spends on an update: everything but waiting."""
    terms = _alone(shape, layout, machine.at_work(), width, gradient_width)
    fill = (layout.pp - 1) / layout.virtual_stages
    return terms.total - terms.bubble - terms.pipeline * fill / (layout.accumulation + fill)


def _crowd(layout: Layout, machine: Machine) -> float:
    """Ranks per core of a node; 0 where every rank has a core, or a device, of its own."""
    if machine.cores is None:
        return 0.0
    here = min(layout.devices, machine.network.node_size)
    return here / machine.cores if here > machine.cores else 0.0


def core_bounds(
    shape: Shape, layout: Layout, machine: Machine, terms: Terms, widths: tuple[int, int]
) -> tuple[float, float, float]:
    """(least, likely, most) seconds of a step of more ranks than cores; ``terms`` are those of a rank alone.

    Least: n / c ranks on every core, and no less than one rank alone takes. Likely: a rank shares its core with
    (n - 1) / c others, where the scheduler places ranks without knowing when they meet; an idle stage of a pipeline
    leaves its core to others, while ranks that meet in a collective wait together, and nobody fills that. Most: nobody
    fills a bubble either.
    """
    crowd = _crowd(layout, machine)
    if not crowd:
        return terms.total, terms.total, terms.total
    alone, work = terms.total - terms.cores, work_s(shape, layout, machine, *widths)
    waits = max(0.0, alone - work)
    idle = min(waits, terms.bubble)
    met = work * (1 + crowd - 1 / (machine.cores or 1))
    least, most = max(alone, crowd * work), met + waits
    return least, min(most, max(least, met + waits - idle)), most


def _ring(shape: Shape, layout: Layout, machine: Machine, size: float, each: float) -> float:
    """Exposed part of passing key and value round the context ring in one layer: a hop hides under the attention of
    the block before it, about the layer's share of scores (Liu et al. 2023, Ring Attention)."""
    if layout.cp == 1:
        return 0.0
    kv = 2 * (shape.kv_heads or shape.heads) / shape.heads / layout.tp
    near = machine.network.node_size // layout.tp
    hop = 3 * machine.network.seconds("send-recv", size * kv, 2, 2 if near >= layout.cp else 1)
    scores = 12.0 * shape.hidden * shape.seq_len / shape.layer_flops()
    return (layout.cp - 1) * max(0.0, hop - each * scores / layout.cp)


def _hop(shape: Shape, layout: Layout, machine: Machine, width: int) -> float:
    """One activation to the next stage; stages lie on different nodes unless the whole pipeline fits in one."""
    if layout.pp == 1:
        return 0.0
    size = layout.micro_batch * shape.seq_len / layout.cp * shape.hidden * width
    size /= layout.tp if layout.sequence_parallel else 1
    near = 2 if layout.devices <= machine.network.node_size else 1
    return machine.network.seconds("send-recv", size, 2, near)


def _data(
    shape: Shape, layout: Layout, machine: Machine, micro: _Micro, widths: tuple[int, int]
) -> tuple[float, float]:
    """(exposed, hidden) seconds of synchronising gradients and weights over the data-parallel ranks.

    ZeRO-3 gathers every layer in forward and backward of every micro-batch, under all of the compute; other stages
    reduce once, under the last micro-batch's backward pass (two thirds of it). The first gather and the last reduction
    have nothing to hide under.
    """
    width, gradient_width = widths
    dense, routed = expert_share(shape, layout)
    near = max(1, machine.network.node_size // (layout.tp * layout.cp))
    shards, network = layout.sharded, machine.network
    total, gathers = 0.0, 2 * layout.accumulation if layout.zero_stage == 3 else 1
    calls = -(-shape.layers // layout.pp) if shards > 1 and layout.zero_stage == 3 else 1
    for whole, over, copies in ((dense, shards, layout.dp), (routed, max(1, shards // layout.ep), layout.dp)):
        if not whole or over * copies == 1:
            continue
        count, here = whole / calls, min(near, over)
        once = network.seconds("reduce-scatter", count * gradient_width, over, here)
        once += gathers * network.seconds("all-gather", count * width, over, here)
        once += network.seconds("all-reduce", count * gradient_width / over, copies, max(1, near // over))
        total += calls * once
    if not total:
        return 0.0, 0.0
    full = shards > 1 and layout.zero_stage == 3
    cover = micro.total * (layout.accumulation if full else 2 / 3) * machine.overlap
    tail = total / (-(-shape.layers // layout.pp) * (gathers + 1 if full else 1)) * (1.0 if machine.overlap else 0.0)
    exposed = min(total, max(_larger(total, cover) - cover, tail))
    return exposed, total - exposed


def _optimizer(shape: Shape, layout: Layout, machine: Machine, width: int) -> float:
    """The update reads and writes weights, gradients, master copy and two moments: about 28 bytes a parameter in mixed
    precision, of the parameters whose states this rank holds."""
    if not machine.memory_bytes_per_s:
        return 0.0
    dense, routed = expert_share(shape, layout)
    held = dense / layout.sharded + routed / max(1, layout.sharded // layout.ep)
    return held * (24 + 2 * width) / machine.memory_bytes_per_s


def _with_waits(terms: Terms, layout: Layout, machine: Machine) -> Terms:
    """Adds waiting for the loader and for the slowest rank."""
    busy = terms.total
    here = min(layout.devices, machine.network.node_size)
    samples = layout.micro_batch * layout.accumulation * max(1.0, here / (layout.tp * layout.pp * layout.cp))
    starved = max(0.0, samples * machine.sample_s - busy)
    sync = busy * (expected_excess(machine.spread, layout.devices) + growth(machine.tail, layout.devices))
    return replace(terms, input=starved, sync=sync)


def growth(tail: float, devices: int) -> float:
    """Share that ``tail`` per doubling adds at so many devices."""
    return tail * max(0, devices - 1).bit_length()
