"""Broken and slow GPUs."""

# ruff: noqa: E501 - log lines stand here as programs print them
from __future__ import annotations

from tests.triage.made.label import Label, scenario
from tests.triage.made.world import World


def xid(world: World, rank: int, number: int, rest: str, pid: str = "'<unknown>', name=<unknown>") -> str:
    return f"NVRM: Xid (PCI:0000:{world.bus(rank)}:00): {number}, pid={pid}, {rest}"


def own_cuda_error(world: World, rank: int, text: str, s: float = 300.0) -> None:
    final = f"torch.AcceleratorError: CUDA error: {text}\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    world.traceback(rank, final, s=s)


def older_xid(world: World, host: str, local: int) -> tuple[float, str]:
    """A decoy: another Xid days ago."""
    return (
        -3 * 86400.0,
        f"NVRM: Xid (PCI:0000:{world.buses[local]}:00): 79, pid=991203, name=python3, GPU has fallen off the bus.",
    )


@scenario("gpu.fell-off-bus")
def fell_off(world: World) -> Label:
    guilty = world.rng.randrange(1, world.n)
    world.init()
    end = world.steps(20)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 5000, s=end + 620)
    world.ending({guilty: -9}, s=end + 700)
    local = (guilty + 1) % world.per_host
    lines = [
        (end + 5, xid(world, guilty, 79, "GPU has fallen off the bus.")),
        (end + 5.1, f"NVRM: GPU 0000:{world.bus(guilty)}:00.0: GPU has fallen off the bus."),
        older_xid(world, world.host(guilty), local),
    ]
    world.dmesg(world.host(guilty), lines)
    return Label(guilty, world.host(guilty))


@scenario("gpu.fell-off-bus", "gpu.fell-off-bus/own-error")
def fell_off_own(world: World) -> Label:
    """The rank itself dies of it; nvidia-smi says so; another host has a corrected AER only."""
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    own_cuda_error(world, guilty, "unspecified launch failure", end + 8)
    world.others(guilty, end + 12)
    world.ending({guilty: 1}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (end + 3, "pcieport 0000:95:01.0: AER: Uncorrected (Fatal) error message received"),
            (end + 3.2, xid(world, guilty, 79, "GPU has fallen off the bus.")),
        ],
    )
    other = world.names[0] if world.host(guilty) != world.names[0] else world.names[-1]
    if other != world.host(guilty):
        world.dmesg(
            other,
            [
                (
                    end - 40,
                    "pcieport 0000:48:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
                )
            ],
        )
    return Label(guilty, world.host(guilty))


@scenario("gpu.ecc-uncorrectable")
def ecc(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    own_cuda_error(world, guilty, "uncorrectable ECC error encountered", end + 8)
    world.others(guilty, end + 10)
    world.ending({guilty: 1}, s=end + 20)
    pid = f"{world.pid(guilty)}, name=pt_main_thread"
    world.dmesg(world.host(guilty), [
        (end + 6, xid(world, guilty, 48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 9, subpartition 2.")),
        (end + 6.1, xid(world, guilty, 63, "Row Remapper: New row (0x00000002b70c6e80) marked for remapping, reset gpu to activate.")),
        (end + 6.2, xid(world, guilty, 94, "Contained: SM (0x1). RST: No, D-RST: No", pid)),
        (end + 9, xid(world, guilty, 45, "Ch 00000008", pid)),
    ])  # fmt: skip
    world.smi(world.host(guilty), {guilty % world.per_host: {"DRAM Uncorrectable": "1", "Pending": "Yes"}})
    return Label(guilty, world.host(guilty))


@scenario("gpu.ecc-uncorrectable", "gpu.ecc-uncorrectable/no-kernel-log")
def ecc_alone(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    world.others(guilty, end + 10)
    own_cuda_error(world, guilty, "uncorrectable ECC error encountered", end + 8)
    world.ending({guilty: 1}, s=end + 20)
    return Label(guilty, world.host(guilty))


@scenario("gpu.row-remap-failure")
def remap(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    own_cuda_error(world, guilty, "uncorrectable ECC error encountered", end + 4)
    world.others(guilty, end + 6)
    world.ending({guilty: 1}, s=end + 12)
    world.dmesg(world.host(guilty), [
        (end + 3, xid(world, guilty, 48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 4, subpartition 1.")),
        (end + 3.1, xid(world, guilty, 64, "Row Remapper: Error writing row remap info, no spare rows available in bank")),
    ])  # fmt: skip
    world.smi(
        world.host(guilty), {guilty % world.per_host: {"Remapping Failure Occurred": "Yes", "DRAM Uncorrectable": "2"}}
    )
    return Label(guilty, world.host(guilty))


@scenario("gpu.nvlink-error")
def nvlink(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    own_cuda_error(world, guilty, "uncorrectable NVLink error detected during the execution", end + 4)
    world.others(guilty, end + 6)
    world.ending({guilty: 1}, s=end + 12)
    world.dmesg(world.host(guilty), [
        (end + 2, xid(world, guilty, 74, "NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", f"{world.pid(guilty)}, name=python3")),
        (end + 2.5, xid(world, guilty, 45, "Ch 00000009", f"{world.pid(guilty)}, name=python3")),
    ])  # fmt: skip
    return Label(guilty, world.host(guilty))


@scenario("gpu.nvlink-error", "gpu.nvlink-error/switch", hosts=1, per_host=8)
def nvswitch(world: World) -> Label:
    world.init()
    end = world.steps(12)
    for rank in range(world.n):
        world.watchdog(rank, 777, s=end + 620)
    world.ending({}, s=end + 700)
    world.dmesg(world.names[0], [
        (end + 2, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"),
        (end + 2.1, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 48 Sub-engine instance 00"),
    ])  # fmt: skip
    return Label(None, world.names[0])


@scenario("gpu.gsp-timeout")
def gsp(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(12)
    for rank in range(world.n):
        if rank != guilty:
            world.watchdog(rank, 31000, s=end + 620)
    world.ending({guilty: -9}, s=end + 700)
    pid = f"{world.pid(guilty)}, name=python3"
    world.dmesg(world.host(guilty), [
        (end + 7, xid(world, guilty, 119, "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a0d7 0x1).", pid)),
        (end + 13, xid(world, guilty, 119, "Timeout after 6s of waiting for RPC response from GPU2 GSP! Expected function 10 (FREE) (0xa55a0021 0x0).", pid)),
    ])  # fmt: skip
    return Label(guilty, world.host(guilty))


def slow_rows(world: World, guilty: int, factor: float, s: float) -> None:
    """Per-rank times as some trainers print them."""
    compute = " ".join(
        f"{r}:{(1700 + world.rng.randrange(20)) * (factor if r == guilty else 1):.0f}" for r in range(world.n)
    )
    wait = " ".join(f"{r}:{20 if r == guilty else 20 + (factor - 1) * 1700:.0f}" for r in range(world.n))
    world.say(0, f"  compute ms per rank: {compute}   (allreduce wait ms: {wait})", s)


def slowing(world: World, guilty: int, factor: float = 1.9) -> None:
    """A job whose steps become slow half way; only rank 0 prints."""
    for i in range(60):
        slow = i > 30
        t = world.at(20.0 * i)
        took = 2.31 * (factor if slow else 1) + world.rng.random() * 0.05
        world.say(
            0,
            f"[{t.strftime('%Y-%m-%d %H:%M:%S')}] iteration {5000 + 5 * i}: elapsed {took:.3f} s/it  loss {2.26 - i * 0.001:.3f}",
            20.0 * i,
        )
        if i % 10 == 9:
            slow_rows(world, guilty, factor if slow else 1.0, 20.0 * i)


def rank_map(world: World) -> None:
    rows = "\n".join(f"{r} {world.host(r)} {r % world.per_host} 0000:{world.bus(r)}:00.0" for r in range(world.n))
    world.files["rank_map.txt"] = f"rank host gpu pci\n{rows}\n"


@scenario("gpu.thermal-throttle")
def hot(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rank_map(world)
    slowing(world, guilty)
    world.smi(
        world.host(guilty),
        {
            guilty % world.per_host: {
                "HW Slowdown": "Active",
                "HW Thermal Slowdown": "Active",
                "SW Thermal Slowdown": "Active",
                "GPU Current Temp": "91 C",
                "SM": "705 MHz",
            }
        },
    )
    world.files["bmc_sel.txt"] = (
        f"  1 | {world.t0.strftime('%m/%d/%Y')} | {world.t0.strftime('%H:%M:%S')} | Fan FAN_7A | Lower Critical going low  | Asserted | Reading 0 < Threshold 1900 RPM\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("gpu.thermal-throttle", "gpu.thermal-throttle/csv")
def hot_csv(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rank_map(world)
    slowing(world, guilty, 1.5)
    rows = [
        "index, pci.bus_id, temperature.gpu, clocks.sm [MHz], clocks_event_reasons.hw_thermal_slowdown, clocks_event_reasons.sw_power_cap"
    ]
    for local in range(world.per_host):
        bad = local == guilty % world.per_host
        rows.append(
            f"{local}, 00000000:{world.buses[local].upper()}:00.0, {90 if bad else 61}, {810 if bad else 1755} MHz, {'Active' if bad else 'Not Active'}, Active"
        )
    world.files[f"smi-{world.host(guilty)}.csv"] = "\n".join(rows) + "\n"
    return Label(guilty, world.host(guilty))


@scenario("gpu.power-brake")
def brake(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rank_map(world)
    slowing(world, guilty, 2.4)
    world.smi(
        world.host(guilty),
        {guilty % world.per_host: {"HW Slowdown": "Active", "HW Power Brake Slowdown": "Active", "SM": "345 MHz"}},
    )
    world.files["ipmi-sel.txt"] = "  9 | 07/29/2026 | 13:58:02 | Power Supply PSU3 | Power Supply AC lost | Asserted\n"
    return Label(guilty, world.host(guilty))


@scenario("gpu.pcie-degraded")
def pcie(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rank_map(world)
    slowing(world, guilty, 1.4)
    world.smi(world.host(guilty))
    name = f"nvidia-smi-q.{world.host(guilty)}.txt"
    blocks = str(world.files[name]).split("GPU 00000000")
    index = guilty % world.per_host + 1
    blocks[index] = (
        blocks[index]
        .replace("Current                   : 16x", "Current                   : 4x")
        .replace("Current                   : 5\n", "Current                   : 1\n")
    )
    world.files[name] = "GPU 00000000".join(blocks)
    return Label(guilty, world.host(guilty))


@scenario("gpu.pcie-degraded", "gpu.pcie-degraded/lspci", hosts=1)
def pcie_lspci(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    rank_map(world)
    slowing(world, guilty, 1.4)
    rows = []
    for local in range(world.per_host):
        bad = local == guilty
        rows.append(
            f"{world.buses[local]}:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed {'8GT/s (downgraded), Width x8 (downgraded)' if bad else '32GT/s, Width x16'}"
        )
    world.files[f"lspci-{world.names[0]}.txt"] = "\n".join(rows) + "\n"
    return Label(guilty, world.names[0])


@scenario("gpu.oom")
def oom(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    end = world.steps(15)
    local = guilty % world.per_host
    world.others(guilty, end + 10)
    world.traceback(
        guilty,
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.00 GiB. GPU {local} has a total capacity of 79.11 GiB of which 5.62 GiB is free. Including non-PyTorch memory, this process has 73.48 GiB memory in use. Of the allocated memory 70.90 GiB is allocated by PyTorch, and 1.21 GiB is reserved by PyTorch but unallocated.",
        s=end + 8,
    )
    world.ending({guilty: 1}, s=end + 20)
    world.dmesg(
        world.host(guilty),
        [
            (
                -12 * 86400,
                f"NVRM: Xid (PCI:0000:{world.bus(guilty)}:00): 94, pid=7781, name=python, Contained: SM (0x1). RST: No, D-RST: No",
            )
        ],
    )
    return Label(
        guilty,
        world.host(guilty) if world.style in ("torchrun", "default", "srun", "k8s", "mpirun", "perrank") else None,
    )


@scenario("gpu.memory-held-by-other-process")
def held(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    local = guilty % world.per_host
    world.traceback(
        guilty,
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {local} has a total capacity of 79.11 GiB of which 1.06 GiB is free. Process 88211 has 61.44 GiB memory in use. Including non-PyTorch memory, this process has 16.60 GiB memory in use. Of the allocated memory 15.90 GiB is allocated by PyTorch, and 0.21 GiB is reserved by PyTorch but unallocated.",
        "train.py:40:main model.py:12:build",
        s=40,
    )
    world.others(guilty, 50)
    world.ending({guilty: 1}, s=60)
    world.files[f"nvidia-smi-{world.host(guilty)}.txt"] = (
        f"+---------------------------+\n| Processes:                |\n|  GPU   PID   Type   Process name   GPU Memory |\n|    {local}   88211      C   python3 -m vllm.entrypoints.openai.api_server   62916MiB |\n"
    )
    return Label(guilty, world.host(guilty))


@scenario("app.illegal-memory-access")
def illegal(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    own_cuda_error(world, guilty, "an illegal memory access was encountered", end + 8)
    world.others(guilty, end + 10)
    world.ending({guilty: world.rng.choice((1, -6))}, s=end + 20)
    world.dmesg(world.host(guilty), [
        (end + 7, xid(world, guilty, 31, "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f6c_50000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ", f"{world.pid(guilty)}, name=python3")),
        (end + 7.5, xid(world, guilty, 43, "Ch 00000010", f"{world.pid(guilty)}, name=python3")),
    ])  # fmt: skip
    return Label(guilty, world.host(guilty))


@scenario("app.illegal-memory-access", "app.illegal-memory-access/assert")
def device_assert(world: World) -> Label:
    guilty = world.rng.randrange(world.n)
    world.init()
    end = world.steps(15)
    for thread in range(3):
        world.say(
            guilty,
            f"/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [63,0,0], thread: [{thread},0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
            end + 7,
        )
    own_cuda_error(world, guilty, "device-side assert triggered", end + 8)
    world.others(guilty, end + 10)
    world.ending({guilty: 1}, s=end + 20)
    return Label(guilty, world.host(guilty))
