"""The machine that a forecast assumes: what a description file says, and what measurements replaced."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ddaudit.forecast.network import Link, Network

__all__ = ["Machine"]

#: Factors of :meth:`Machine.scaled` that are no fields of the machine but numbers of its links.
LINKS = ("inner", "outer", "alpha", "call_s", "meet_s")


@dataclass(frozen=True)
class Machine:
    """A machine in numbers, all per device.

    Attributes:
        peak_flops: dense FLOP/s in the job's precision.
        efficiency: share of the peak that wide matrix products reach.
        narrow: columns of a rank's slice (hidden / tp) at which products run at half that share; 0 for none.
        layer_s: seconds that a host needs to launch one dense layer forward and backward; it never takes less.
        update_s: seconds that the update of one layer's parameters takes to launch.
        touches: how often each byte of a layer's activations passes the device's memory in an update: norms, dropout,
            softmax and activation functions take bandwidth, not FLOPs, and weigh more in narrow models.
        fixed_s: seconds an update takes whatever its batch and layout.
        memory_bytes: memory of a device; None when not known.
        memory_bytes_per_s: bandwidth of that memory.
        reserved_bytes: what context, communicators and fragmentation take.
        kept: measured activations over those of the formulas; 1 where peaks of two micro-batch sizes were not measured.
        network: links within and between nodes.
        overlap: share of the time with compute under way that data-parallel communication can use.
        hides_tensor: share of tensor-parallel communication that runs under compute.
        contention: factor on compute that communication runs under (at least 1).
        cores: CPU ranks of a node that can compute at full speed at once, each of which launches and computes in turn;
            None for devices that compute by themselves while the host launches ahead.
        hop_cpu_s: part of a link's latency in which a CPU rank is at work (system calls); the rest is waiting.
        sample_s: seconds in which a host's loader makes one sample; 0 when not known.
        spread: (quantile, excess) pairs: by what share of a step one rank of one step comes late.
        tail: share by which a step grows as the devices double, beyond every other term (stragglers, congestion).
        sources: where each number came from, by name.
    """

    name: str
    peak_flops: float
    network: Network
    efficiency: float = 0.5
    narrow: float = 0.0
    layer_s: float = 0.0
    update_s: float = 0.0
    touches: float = 0.0
    fixed_s: float = 0.0
    memory_bytes: float | None = None
    memory_bytes_per_s: float = 0.0
    reserved_bytes: float = 0.0
    kept: float = 1.0
    overlap: float = 0.0
    hides_tensor: float = 0.0
    contention: float = 1.0
    cores: int | None = None
    hop_cpu_s: float = 0.0
    sample_s: float = 0.0
    spread: tuple[tuple[float, float], ...] = ()
    tail: float = 0.0
    sources: dict[str, str] = field(default_factory=dict)

    def rate(self, columns: float) -> float:
        """FLOP/s of products whose slice has that many columns."""
        return self.peak_flops * self.efficiency * (columns / (columns + self.narrow) if self.narrow else 1.0)

    def scaled(self, **factors: float) -> Machine:
        """The same machine with some numbers multiplied: fields of its own, ``inner`` and ``outer`` for the bandwidths
        of its links, ``alpha`` for their latencies, ``call_s`` and ``meet_s`` for those of a call."""
        own = {name: getattr(self, name) * by for name, by in factors.items() if name not in LINKS}
        alpha = factors.get("alpha", 1.0)
        links = {"inner": self.network.inner, "outer": self.network.outer}
        inner, outer = (
            Link(link.alpha_s * alpha, link.bytes_per_s * factors.get(name, 1.0)) for name, link in links.items()
        )
        calls = {name: getattr(self.network, name) * factors.get(name, 1.0) for name in ("call_s", "meet_s")}
        return replace(self, network=replace(self.network, inner=inner, outer=outer, **calls), **own)

    def at_work(self) -> Machine:
        """The same machine with only what takes a core: messages cost their work, and nobody waits for anybody."""
        network = self.network
        inner, outer = (Link(self.hop_cpu_s, link.bytes_per_s) for link in (network.inner, network.outer))
        busy = replace(network, inner=inner, outer=outer, meet_s=0.0, measured={})
        return replace(self, network=busy, overlap=0.0, sample_s=0.0, spread=(), tail=0.0, hides_tensor=0.0)
