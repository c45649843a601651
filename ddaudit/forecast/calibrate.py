"""From what a run measured to a machine: links from the sweep, rates from the steps, and what those leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddaudit.errors import EvidenceProblem
from ddaudit.evidence import CollectiveSweep
from ddaudit.evidence.forecast import Basis
from ddaudit.forecast.fit import fit
from ddaudit.forecast.hardware_file import Hardware, machine_of
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.measured import Measured, RunFacts
from ddaudit.forecast.memory import memory
from ddaudit.forecast.network import Link, Network
from ddaudit.forecast.step import step_terms, work_s

__all__ = ["Calibrated", "calibrate", "described", "with_peaks"]

#: How far each number may be from where it starts (standard deviation of its logarithm). Rates and launches start from
#: the step itself and are left free; links start
#: from the sweep, which waits for nothing between two calls: inside a step, waking a rank up takes longer. What a call
#: costs a CPU rank besides, and its wait there for the others, are in no sweep: both start from the latency that the
#: sweep found and are left free, and the sweep's own numbers then move less.
PRIORS: Mapping[str, float] = {"efficiency": 1.0, "layer_s": 1.5, "fixed_s": 1.5, "inner": 0.5, "alpha": 1.0}
CALLS: Mapping[str, float] = {"call_s": 2.0, "meet_s": 2.0, "alpha": 0.5}
#: How much dearer a hop may be inside a step than in the sweep, whose caches are warm.
COLD = 2.0
#: What a repeated median of a step differs by on a machine that others use too.
NOISE = 0.03
#: Share of a small step that launches take before anything is fitted; the fit decides.
LAUNCH_SHARE = 0.3
FIXED_SHARE = 0.05
#: Other programs are told of where they lengthen a step by more than a repeat of it would differ.
CROWDED = 1.1
#: A fit that misses its own rows by more explains them badly.
DOUBT = 0.2
#: A link where nothing was measured between ranks: loopback of a current host.
LOOPBACK = Link(5e-5, 1e9)
EVERYWHERE = 1 << 20


@dataclass(frozen=True)
class Calibrated:
    """A machine and what it rests on. ``sizes`` are the measured numbers of ranks; ``rows`` the steps used;
    ``factor`` is how far a mid value may be off where no interval follows from bounds."""

    machine: Machine
    basis: Basis
    sizes: tuple[int, ...] = ()
    rows: tuple[Measured, ...] = ()
    factor: float = 1.0
    notes: tuple[str, ...] = ()


def described(hardware: Hardware, width: int) -> Calibrated:
    """A machine that nothing was measured on."""
    note = f"nothing was measured: rates are those of {hardware.name}, whose compute rate may be off by a factor of"
    return Calibrated(
        machine_of(hardware, width),
        "description",
        factor=hardware.rate.efficiency_factor,
        notes=(f"{note} {hardware.rate.efficiency_factor:g}",),
    )


def calibrate(run: RunFacts, kind: str, hardware: Hardware | None = None) -> Calibrated:
    """The machine of a run, fitted to the steps of one kind of parallelism and to those of one device.

    Raises:
        EvidenceProblem: the run holds no training step of that kind or of one device.
    """
    rows = _rows(run.steps, kind)
    if not rows:
        kinds = ", ".join(sorted({m.kind for m in run.steps})) or "none"
        raise EvidenceProblem(
            f"no step to calibrate {kind} from", where=run.folder, expected=f"one of {kind} or of one device;"
            f" the run has: {kinds}", fix=f"ddaudit run scale-out --only {kind if kind != 'auto' else 'single'}"
        )  # fmt: skip
    noted = _crowding(rows, _cores(run)) if rows[0].device == "cpu" else []
    if rows[0].device == "cpu":
        rows = tuple(_alone(m, _cores(run)) for m in rows)
    start = _start(run, rows, hardware)
    start = replace(start, hop_cpu_s=_hop_cpu_s(start, rows))
    machine, residual = _fitted(start, rows)
    machine = with_peaks(machine, run.steps)
    sizes = tuple(sorted({m.ranks for m in rows}))
    notes = [f"calibrated from {', '.join(f'{m.step} (on {m.ranks})' for m in rows)}"]
    if len(sizes) == 1:
        notes.append("one size was measured: bounds only; measure a second for a prediction")
    else:
        doubt = "; too much to trust: measure again on a quiet machine" if residual > DOUBT else ""
        notes.append(f"the fit misses the measured steps by at most {residual:.0%}{doubt}")
    if rows[0].subject.width in run.rates and machine.efficiency <= 1:
        reached = f"{machine.efficiency:.0%} of the {machine.peak_flops / 1e9:.4g} GFLOP/s that they reach alone"
        notes.append(f"matrix products inside a step reach {reached}")
    if machine.cores is not None:
        notes.append(f"all ranks share the {machine.cores} cores of one host")
        notes += noted
    elif run.facts.get("hosts", 1) == 1 and hardware is None:
        notes.append("links between nodes were not measured; they are taken to be as quick as those within one")
    return Calibrated(machine, "two-sizes" if len(sizes) > 1 else "one-size", sizes, rows, 1 + residual, tuple(notes))


def _rows(steps: Sequence[Measured], kind: str) -> tuple[Measured, ...]:
    """Steps of the kind, and of one device in the same precision and model."""
    mine = [m for m in steps if m.kind == kind and m.ranks > 1]
    alone = [m for m in steps if m.kind == "single"]
    if not mine:
        return tuple(alone[:1])
    like = mine[0].subject
    same = [m for m in alone if m.subject.width == like.width and m.subject.shape == like.shape]
    same = [m for m in same if m.subject.states == like.states] or same
    peers = [m for m in mine if m.subject.width == like.width and m.subject.states == like.states]
    return (*same, *peers)


def _start(run: RunFacts, rows: Sequence[Measured], hardware: Hardware | None) -> Machine:
    """The machine before the fit: a rate that explains the quickest step alone, links as the sweep found them."""
    first = min(rows, key=lambda m: m.step_s / (m.subject.layout.global_batch * m.subject.shape.seq_len))
    cpu = first.device == "cpu"
    cores = _cores(run) if cpu else None
    if hardware is not None and not cpu:
        base = machine_of(hardware, first.subject.width)
        network = replace(base.network, inner=_link(run.sweeps) or base.network.inner)
        return replace(base, network=network, layer_s=base.layer_s or 1e-4, fixed_s=FIXED_SHARE * first.step_s)
    shape, layout = first.subject.shape, first.subject.layout
    flops = shape.flops_per_token() * layout.global_batch * shape.seq_len / layout.devices
    link = _link(run.sweeps) or LOOPBACK
    extra_s = link.alpha_s if cpu else 0.0
    rate = flops / (first.step_s * (1 - LAUNCH_SHARE - FIXED_SHARE))
    peak = run.rates.get(first.subject.width, rate)
    return Machine(
        name=f"{first.device} of {run.facts.get('host', 'the run')}, as measured",
        peak_flops=peak,
        network=Network(EVERYWHERE, link, link, trees=not cpu, call_s=extra_s, meet_s=extra_s),
        efficiency=min(1.0, rate / peak),
        layer_s=LAUNCH_SHARE * first.step_s / (shape.layers * layout.accumulation),
        update_s=first.optimizer_s / -(-shape.layers // layout.pp) if cpu else 0.0,
        fixed_s=FIXED_SHARE * first.step_s,
        overlap=_overlap(rows),
        cores=cores,
        sample_s=max(m.input_s / max(1, m.subject.layout.global_batch // m.subject.layout.replicas) for m in rows)
        / max(1, int(run.facts.get("cpus") or 1)),
        memory_bytes=_memory(run),
        spread=max((m.spread for m in rows if m.spread), key=len, default=()),
    )


def _link(sweeps: Sequence[CollectiveSweep]) -> Link | None:
    """Latency and bandwidth of a hop from the all-reduce (else another ring) of the widest group, undoing the ring's
    2 (n - 1) hops and 2 (n - 1) / n of the bytes."""
    for op, rounds in (("all-reduce", 2), ("all-gather", 1), ("reduce-scatter", 1)):
        fits = [(len(group), f) for s in sweeps for (name, group), f in s.fits().items() if name == op]
        if fits:
            ranks, found = max(fits, key=lambda pair: pair[0])
            if found.s_per_byte > 0:
                return Link(found.alpha_s / (rounds * (ranks - 1)), rounds * (ranks - 1) / ranks / found.s_per_byte)
    return None


def _overlap(rows: Sequence[Measured]) -> float:
    """Measured share of communication that ran under compute; 0 where nothing tells."""
    seen = [(m.hidden_s, m.hidden_s + m.wait_s) for m in rows if m.hidden_s is not None and m.ranks > 1]
    return max((hidden / total for hidden, total in seen if total > 0), default=0.0)


def with_peaks(machine: Machine, steps: Sequence[Measured]) -> Machine:
    """The machine with what measured peaks tell: two micro-batch sizes of one layout give by how much activations
    exceed the formulas, and what is left is reserved; one size gives the reserve alone."""
    seen = [m for m in steps if m.peak_bytes is not None]
    if not seen:
        return machine
    first = max(seen, key=lambda m: m.subject.layout.micro_batch)
    peers = [m for m in seen if m.kind == first.kind and m.ranks == first.ranks]
    least = min(peers, key=lambda m: m.subject.layout.micro_batch)
    (high, above), (low, below) = _formula(first), _formula(least)
    kept = (first.peak_bytes or 0.0) - (least.peak_bytes or 0.0) - (above - below)
    kept = kept / (high - low) if high > low and kept > 0 else machine.kept
    rest = min((first.peak_bytes or 0.0) - above - kept * high, (least.peak_bytes or 0.0) - below - kept * low)
    return replace(machine, kept=kept, reserved_bytes=max(0.0, rest))


def _formula(row: Measured) -> tuple[float, float]:
    """(activations and logits, all states) of a step by the formulas, bytes."""
    used = memory(row.subject.shape, row.subject.layout, row.subject.states, row.subject.width)
    varying = used.activations + used.logits
    return varying, used.total - varying


def _memory(run: RunFacts) -> float | None:
    known = run.facts.get("device_memory_bytes") or run.facts.get("memory_bytes")
    return float(known) if known else None


def _cores(run: RunFacts) -> int:
    return max(1, int(run.facts.get("cpus") or 1))


def _alone(row: Measured, cores: int) -> Measured:
    """The step on a machine of its own: other programs hold up a CPU rank and the peers it waits for alike."""
    by = row.crowding(cores)
    return replace(row, step_s=row.step_s / by, optimizer_s=row.optimizer_s / by, input_s=row.input_s / by)


def _crowding(rows: Sequence[Measured], cores: int) -> list[str]:
    most = max(row.crowding(cores) for row in rows)
    if most < CROWDED:
        return []
    return [f"other programs made steps up to {most:.1f}x longer; times are given for a machine of its own"]


def _hop_cpu_s(machine: Machine, rows: Sequence[Measured]) -> float:
    """Seconds of kernel time that one hop of a message costs a CPU rank: what several ranks have more of than one."""
    alone = min((m.system_s for m in rows if m.ranks == 1 and m.system_s is not None), default=0.0)
    many = [m for m in rows if m.ranks > 1 and m.system_s is not None]
    if machine.cores is None or not many:
        return 0.0
    row = min(many, key=lambda m: m.ranks)
    args = (row.subject.shape, row.subject.layout)
    hops = work_s(*args, replace(machine, hop_cpu_s=1.0)) - work_s(*args, replace(machine, hop_cpu_s=0.0))
    found = max(0.0, (row.system_s or 0.0) - alone) / hops if hops > 0 else 0.0
    return min(found, COLD * machine.network.inner.alpha_s)


def _fitted(start: Machine, rows: Sequence[Measured]) -> tuple[Machine, float]:
    """The most probable machine, and the largest share by which it misses a row. CPU ranks tell their work as well."""
    worked = [m for m in rows if m.cpu_s and start.cores is not None]

    def predict(factors: Mapping[str, float]) -> list[float]:
        machine = start.scaled(**factors)
        found = [step_terms(m.subject.shape, m.subject.layout, machine, m.subject.width).total for m in rows]
        return found + [work_s(m.subject.shape, m.subject.layout, machine, m.subject.width) for m in worked]

    truth = [m.step_s for m in rows] + [m.cpu_s or 0.0 for m in worked]
    found = fit(predict, truth, {**PRIORS, **CALLS} if start.cores is not None else PRIORS, noise=NOISE)
    worst = max(abs(r) for r in found.residuals[: len(rows)])
    return start.scaled(**found.factors), worst
