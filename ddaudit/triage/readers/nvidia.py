"""``nvidia-smi -q`` text and ``--query-gpu`` CSV: one record a GPU, every value with the line it stands on."""

from __future__ import annotations

import csv
import re

from ddaudit.evidence.incident import Gpu, GpuProcess, Spot
from ddaudit.triage.readers.collect import spot

__all__ = ["bdf", "read_csv", "read_processes", "read_smi"]

_GPU = re.compile(r"^GPU (?P<bdf>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_PAIR = re.compile(r"^(?P<indent>\s+)(?P<key>[^:]+?)\s*: ?(?P<value>.*)$")
_PROCESS = re.compile(
    r"^\|\s+(?P<gpu>\d+)\s+(?:N/A\s+N/A\s+)?(?P<pid>\d+)\s+[CGM+]+\s+(?P<name>\S.*?)\s+(?P<mib>\d+)\s?MiB\s*\|"
    r"|^(?P<pid2>\d+), (?P<name2>[^,]+), (?P<mib2>\d+) MiB"
)
_SECTION = re.compile(r"^(?P<indent>\s+)(?P<key>\S.*?)\s*$")


def bdf(address: str | None) -> str | None:
    """Normal form of a PCI address, without function: ``0000:9a:00``. Also reads NCCL's ``9a000`` and nvidia-smi's
    eight-digit domain."""
    if not address:
        return None
    text = address.lower().strip().removeprefix("pci:")
    if re.fullmatch(r"[0-9a-f]{4,12}", text):
        text = f"{text[:-5] or '0'}:{text[-5:-3]}:{text[-3:-1]}" if len(text) > 5 else f"0:{text[:-3]}:{text[-3:-1]}"
    parts = text.split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    if len(parts) != 3 or not all(re.fullmatch(r"[0-9a-f]+", p) for p in parts):
        return None
    return f"{int(parts[0], 16):04x}:{int(parts[1], 16):02x}:{int(parts[2], 16):02x}"


def read_smi(text: str, name: str, host: str | None) -> list[Gpu]:
    """GPUs of ``nvidia-smi -q``. Keys are ``Section/Key`` with the innermost two section names."""
    gpus: list[Gpu] = []
    values: dict[str, str] = {}
    spots: dict[str, Spot] = {}
    path: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if found := _GPU.match(line):
            values, spots, path = {}, {}, []
            gpus.append(Gpu(host, bdf(found["bdf"]) or found["bdf"], len(gpus), values, spots))
            continue
        if not gpus or not line.strip():
            continue
        pair = _PAIR.match(line)
        section = pair or _SECTION.match(line)
        if section is None:
            continue
        depth = len(section["indent"])
        path = [p for p in path if p[0] < depth]
        key = "/".join([*(p[1] for p in path[-2:]), section["key"].strip()])
        if pair:
            values.setdefault(key, pair["value"].strip())
            spots.setdefault(key, spot(name, number, line))
        path.append((depth, section["key"].strip()))
    return gpus


def read_csv(text: str, name: str, host: str | None) -> list[Gpu]:
    """GPUs of ``nvidia-smi --query-gpu=... --format=csv``; a header with ``pci.bus_id`` or ``index`` names columns."""
    gpus: list[Gpu] = []
    columns: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [c.strip() for c in next(csv.reader([line]), [])]
        if {"index", "pci.bus_id", "gpu_bus_id", "uuid"} & {c.split(" ")[0].lower() for c in cells} and len(cells) > 1:
            columns = [c.split(" [")[0].lower() for c in cells]
            continue
        if not columns or len(cells) != len(columns):
            continue
        row = dict(zip(columns, cells, strict=True))
        address = row.get("pci.bus_id") or row.get("gpu_bus_id") or ""
        index = int(row["index"]) if row.get("index", "").isdigit() else len(gpus)
        where = spot(name, number, line)
        gpus.append(Gpu(host, bdf(address) or address, index, row, dict.fromkeys(row, where)))
    return gpus


def read_processes(text: str, name: str, host: str | None) -> list[GpuProcess]:
    """The process table of plain ``nvidia-smi``, and ``--query-compute-apps=pid,process_name,used_memory``."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if row := _PROCESS.match(line):
            index = int(row["gpu"]) if row["gpu"] else None
            pid, memory = int(row["pid"] or row["pid2"]), int(row["mib"] or row["mib2"])
            program = (row["name"] or row["name2"]).strip()
            found.append(GpuProcess(pid, host, index, program, memory, spot(name, number, line)))
    return found
