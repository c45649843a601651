"""Hardware description files: what a forecast assumes where nothing was measured."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddaudit.errors import UsageProblem
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.network import Link, Network

__all__ = ["Hardware", "known_hardware", "load_hardware", "machine_of"]

FOLDER = Path(__file__).resolve().parent / "hardware"
MAX_BYTES = 64 << 10

Positive = Annotated[float, Field(gt=0, le=1e24)]
Seconds = Annotated[float, Field(ge=0, le=3600)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Device(_Strict):
    peak_flops_16: Positive
    peak_flops_32: Positive
    memory_gib: Positive
    memory_bytes_per_s: Positive


class _Network(_Strict):
    node_size: Annotated[int, Field(ge=1, le=65536)]
    inner_bytes_per_s: Positive
    outer_bytes_per_s: Positive
    inner_alpha_s: Seconds = 0.0
    outer_alpha_s: Seconds = 0.0


class _Rate(_Strict):
    efficiency: Share
    efficiency_factor: Annotated[float, Field(ge=1, le=10)] = 1.3
    touches: Annotated[float, Field(ge=0, le=100)] = 0.0
    layer_s: Seconds = 0.0
    overlap: Annotated[float, Field(ge=0, le=1)] = 0.0
    tail: Annotated[float, Field(ge=0, le=1)] = 0.0


class Hardware(_Strict):
    """A description file. Bandwidths are of one rank in one direction; ``efficiency_factor`` is how far the compute
    rate may be off either way before it was measured."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    device: _Device
    network: _Network
    rate: _Rate
    sources: dict[str, str] = Field(default_factory=dict)


def known_hardware() -> list[str]:
    """Names of the description files that ship with ddaudit."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_hardware(name: str) -> Hardware:
    """Reads a description: one that ships with ddaudit by name, else a TOML file.

    Raises:
        UsageProblem: no such file, not TOML, or a value that no machine has (such as a bandwidth of zero).
    """
    path = FOLDER / f"{name}.toml" if name in known_hardware() else Path(name)
    try:
        if not path.is_file():
            raise UsageProblem(
                "no such hardware file", where=name, expected=f"a TOML file, or one of {', '.join(known_hardware())}"
            )
        if path.stat().st_size > MAX_BYTES:
            raise UsageProblem("is too large for a hardware file", where=name, expected=f"at most {MAX_BYTES} bytes")
        return Hardware.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageProblem(f"cannot be read: {error.strerror}", where=name) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageProblem(f"wrong TOML: {str(error)[:200]}", where=name) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageProblem(
            f"{key}: {first['msg']}", where=name, fix="give the value of your machine; docs/forecast.md lists the keys"
        ) from None


def machine_of(hardware: Hardware, width: int = 2) -> Machine:
    """The machine of a description, for numbers of ``width`` bytes."""
    device, network, rate = hardware.device, hardware.network, hardware.rate
    return Machine(
        name=hardware.name,
        peak_flops=device.peak_flops_16 if width <= 2 else device.peak_flops_32,
        network=Network(
            network.node_size,
            Link(network.inner_alpha_s, network.inner_bytes_per_s),
            Link(network.outer_alpha_s, network.outer_bytes_per_s),
        ),
        efficiency=rate.efficiency,
        touches=rate.touches,
        layer_s=rate.layer_s,
        overlap=rate.overlap,
        tail=rate.tail,
        memory_bytes=device.memory_gib * (1 << 30),
        memory_bytes_per_s=device.memory_bytes_per_s,
        reserved_bytes=2.0 * (1 << 30),
        sources=dict(hardware.sources),
    )
