"""``ddaudit env``: what to paste into a bug report."""

from __future__ import annotations

import sys
from typing import Any

import click

from ddaudit.cli.common import emit_json, envelope, json_option
from ddaudit.cli.terminal import printable

__all__ = ["command"]


@click.command("env")
@json_option
def command(as_json: bool) -> int:
    """Print this machine's facts, redacted, ready to paste."""
    from ddaudit.engine.facts import collect, count_gpus, pick_device

    device, reason = pick_device("auto", count_gpus())
    facts = collect(device, reason, ["ddaudit", *sys.argv[1:]]) | _driver()
    if as_json:
        emit_json(envelope("env", "PASS", 0, facts=facts))
        return 0
    click.echo("```")
    for name, value in facts.items():
        _line(name, value)
    click.echo("```")
    return 0


def _driver() -> dict[str, Any]:
    """What NVML says of driver and devices, or why it says nothing."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        named = {f"GPU {i}": f"{pynvml.nvmlDeviceGetName(h)} {_identity(pynvml, h)}" for i, h in enumerate(handles)}
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "devices": named}
    except pynvml.NVMLError as error:
        return {"driver": f"not measured: NVML says: {error}"}


def _identity(nvml: Any, handle: Any) -> str:
    """UUID and place on the bus, as far as the driver tells."""
    try:
        return f"{nvml.nvmlDeviceGetUUID(handle)} at {nvml.nvmlDeviceGetPciInfo(handle).busId}"
    except nvml.NVMLError as error:
        return f"(not identified: {error})"


def _line(name: str, value: Any) -> None:
    if isinstance(value, dict):
        click.echo(f"{name}:")
        for key, item in value.items():
            click.echo(f"  {printable(str(key))}={printable(str(item))}")
    else:
        click.echo(f"{name}: {printable(str(value))}")
