"""Holds the forecast against published scaling tables: calibrate on the first rows, predict the rest.

``python benchmarks/forecast_exam.py [--check]``; the tables and their sources are in ``benchmarks/published``. What
each part was calibrated on is printed beside its errors; nothing is fitted on a row that is predicted. ``--check``
exits 1 where an error is above its bar.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddaudit.forecast.calibrate import FIXED_SHARE, PRIORS
from ddaudit.forecast.fit import fit
from ddaudit.forecast.hardware_file import load_hardware, machine_of
from ddaudit.forecast.layout import Layout
from ddaudit.forecast.machine import Machine
from ddaudit.forecast.memory import States, memory
from ddaudit.forecast.outlook import Question, answer
from ddaudit.forecast.shape import Shape, mfu
from ddaudit.forecast.step import step_terms
from ddaudit.job import EXAMPLE, parse_job

TABLES = Path(__file__).resolve().parent / "published"
GIB = 1 << 30
Row = Mapping[str, str]

#: Where every published series starts; how far its rows may move each number are the priors that ship with ddaudit
#: (:data:`PRIORS`). Neither was chosen for a table that is predicted here.
A100 = machine_of(load_hardware("a100-hdr"))
#: Times and rates in the papers have two or three digits: half a unit of the last one is up to 1 %.
PUBLISHED = 0.01

failed: list[str] = []


def rows(name: str) -> list[Row]:
    """A table without its comment lines."""
    with (TABLES / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def bar(what: str, value: float, limit: float, unit: str = "%") -> None:
    """Prints an error beside its bar and remembers where it is missed."""
    word = "ok" if value <= limit else "MISSED"
    if value > limit:
        failed.append(what)
    print(f"  {word:>6}  {what}: {value:.2f} {unit}, bar {limit:g}")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# ---------------------------------------------------------------------------------------------------------- MegaScale

#: 530B under weak scaling from 2,240 to 11,200 devices (2.3 doublings): MFU 49.2 to 48.2 (Megatron-LM), 54.3 to 54.3
#: (MegaScale), same paper, table 3. It gives what a doubling costs beyond other terms; none of its rows is predicted.
TAIL = {"megatron-lm": 0.009, "megascale": 0.0}


def megascale_shape() -> Shape:
    return Shape(layers=96, hidden=12288, heads=128, vocab=51200, seq_len=2048)


def megascale_layout(system: str, batch: int, gpus: int) -> Layout:
    """TP 8, PP 8 in 6 chunks; Megatron-LM reduces gradients whole, MegaScale shards optimizer states."""
    replicas = gpus // 64
    plain = system == "megatron-lm"
    return Layout(
        dp=replicas if plain else 1,
        sharded=1 if plain else replicas,
        zero_stage=1,
        tp=8,
        pp=8,
        virtual_stages=6,
        schedule="interleaved",
        accumulation=batch // replicas,
        recompute="selective",
    )


def megascale() -> None:
    """Strong scaling: two rows of each series calibrate, two are predicted."""
    print("\nT2 MegaScale, 175B strong scaling; calibrated: rows 1 and 2 of each series; predicted: rows 3 and 4")
    series: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in rows("megascale.csv"):
        series.setdefault((row["system"], int(row["batch"])), []).append((int(row["gpus"]), float(row["step_s"])))
    ours, line = [], []
    for (system, batch), points in series.items():
        times = predicted_series(system, batch, points)
        errors = [times[i] / points[i][1] - 1 for i in (2, 3)]
        two = two_point(points)
        linear = [points[0][1] * points[0][0] / n for n, _ in points]
        theirs = [two[i] / points[i][1] - 1 for i in (2, 3)]
        ours.append(mean([abs(e) for e in errors]) * 100)
        line.append(mean([abs(e) for e in theirs]) * 100)
        print(
            f"  {system:12} batch {batch:5}: forecast {errors[0]:+.1%} {errors[1]:+.1%};"
            f" two-point {theirs[0]:+.1%} {theirs[1]:+.1%}; linear {linear[3] / points[3][1] - 1:+.1%} at the last"
        )
    print(f"  mean absolute error: forecast {mean(ours):.2f} %, two-point a/N + c {mean(line):.2f} %")
    print("  how much the free choices matter, mean and worst series of the same prediction:")
    for noise in (0.005, PUBLISHED, 0.02, 0.03):
        plain, wider = (t2_errors(series, noise, more) for more in ({}, {"outer": PRIORS["inner"]}))
        told = f"{mean(plain):.2f} and {max(plain):.2f} %; bandwidth between nodes free too: "
        print(f"    a published time off by {noise:.1%}: {told}{mean(wider):.2f} and {max(wider):.2f} %")
    bar("T2 mean of four series", mean(ours), 2.5)
    bar("T2 worst series", max(ours), 5.0)
    bar("T2 mean against the two-point fit", mean(ours), mean(line))


def t2_errors(
    series: Mapping[tuple[str, int], Sequence[tuple[int, float]]], noise: float, more: Mapping[str, float]
) -> list[float]:
    """Mean absolute error in per cent over the predicted rows of each series, with ``more`` numbers free."""
    errors = []
    for (system, batch), points in series.items():
        times = predicted_series(system, batch, points, noise, {**PRIORS, **more})
        errors.append(100 * mean([abs(times[i] / points[i][1] - 1) for i in (2, 3)]))
    return errors


def predicted_series(
    system: str,
    batch: int,
    points: Sequence[tuple[int, float]],
    noise: float = PUBLISHED,
    priors: Mapping[str, float] = PRIORS,
) -> list[float]:
    """All four times of a series from its first two. Megatron-LM did not overlap the data-parallel communication and
    MegaScale does (section 3 of the paper)."""
    start = replace(
        A100,
        fixed_s=FIXED_SHARE * points[0][1],
        tail=TAIL[system],
        overlap=0.0 if system == "megatron-lm" else 1.0,
    )
    shape = megascale_shape()

    def times(factors: Mapping[str, float], upto: int) -> list[float]:
        machine = start.scaled(**factors)
        return [step_terms(shape, megascale_layout(system, batch, n), machine, 2, 4).total for n, _ in points[:upto]]

    found = fit(lambda f: times(f, 2), [t for _, t in points[:2]], priors, noise=noise)
    return times(found.factors, 4)


def two_point(points: Sequence[tuple[int, float]]) -> list[float]:
    """The baseline T = a / N + c through the first two rows."""
    (n1, t1), (n2, t2) = points[:2]
    a = (t1 - t2) / (1 / n1 - 1 / n2)
    return [a / n + t1 - a / n1 for n, _ in points]


# ------------------------------------------------------------------------------------------------------------- vTrain

#: Four models of different width also decide at which width products slow down (started at 128 columns, a tile of a
#: tensor-core product) and how often activations pass the memory.
T6_PRIORS = {"efficiency": 1.0, "layer_s": 1.5, "inner": 0.5, "outer": 0.5, "narrow": 1.0, "touches": 0.5}
T6_START = replace(A100, narrow=128.0)


def vtrain() -> None:
    """Leave one model out: three models calibrate, every row of the fourth is predicted."""
    print("\nT6 vTrain, 109 runs of four models; each model predicted from the other three")
    cases = [(row["billions"], *vtrain_case(row), float(row["ms"]) / 1e3) for row in rows("vtrain_multi.csv")]
    missed = []
    for held in dict.fromkeys(name for name, *_ in cases):
        known = [c for c in cases if c[0] != held]
        asked = [c for c in cases if c[0] == held]

        def times(factors: Mapping[str, float], which: Sequence[tuple[str, Shape, Layout, float]]) -> list[float]:
            machine = T6_START.scaled(**factors)
            return [step_terms(shape, layout, machine).total for _, shape, layout, _ in which]

        found = fit(lambda f, k=known: times(f, k), [c[3] for c in known], T6_PRIORS, noise=0.05, robust=1.5)  # type: ignore[misc]
        predictions = times(found.factors, asked)
        errors = [abs(p / c[3] - 1) for p, c in zip(predictions, asked, strict=True)]
        chosen = min(range(len(asked)), key=lambda i: predictions[i])
        regret = asked[chosen][3] / min(c[3] for c in asked) - 1
        missed.append(mean(errors) * 100)
        print(f"  {held:>5}B: {len(asked):3} rows, mean error {mean(errors):.1%}, chosen layout's regret {regret:.1%}")
    print("  baselines: three-constant roofline 28.5 / 7.2 / 9.9 / 18.9 %; vTrain's own simulator 14.7 % in sample")
    bar("T6 leave-one-model-out mean", mean(missed), 15.0)


def vtrain_case(row: Row) -> tuple[Shape, Layout]:
    batch, micro, tp, dp, pp = (int(row[k]) for k in ("batch", "micro_batch", "tp", "dp", "pp"))
    shape = Shape(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 51200, int(row["seq_len"]))
    layout = Layout(
        dp=dp,
        tp=tp,
        pp=pp,
        micro_batch=micro,
        accumulation=batch // dp // micro,
        recompute="full",
        sequence_parallel=False,
    )
    return shape, layout


# ----------------------------------------------------------------------------------------------------------- Megatron


def megatron_weak() -> None:
    """Weak scaling over ten models: links and widths from vTrain's machine, the rate from the first two rows."""
    print("\nT1 Megatron-LM weak scaling, 1.7B to 1T; calibrated: T6's rows (links, widths), rows 1 and 2 (rate);")
    print("   predicted: rows 3 to 10")
    known = [(*vtrain_case(row), float(row["ms"]) / 1e3) for row in rows("vtrain_multi.csv")]

    def steps(factors: Mapping[str, float]) -> list[float]:
        machine = T6_START.scaled(**factors)
        return [step_terms(shape, layout, machine).total for shape, layout, _ in known]

    same_class = T6_START.scaled(**fit(steps, [c[2] for c in known], T6_PRIORS, noise=0.05, robust=1.5).factors)
    cases = [(vtrain_like(row), float(row["tflops"])) for row in rows("megatron_weak.csv")]

    def rates(factors: Mapping[str, float], upto: int) -> list[float]:
        machine = same_class.scaled(**factors)
        return [achieved(shape, layout, machine) for (shape, layout), _ in cases[:upto]]

    found = fit(lambda f: rates(f, 2), [t for _, t in cases[:2]], {"efficiency": PRIORS["efficiency"]}, noise=PUBLISHED)
    errors = [abs(p / t - 1) for p, (_, t) in zip(rates(found.factors, 10), cases, strict=True)][2:]
    flat = [abs(cases[1][1] / t - 1) for _, t in cases[2:]]
    print(f"  mean error {mean(errors):.1%}, worst {max(errors):.1%}; baseline (second row's rate) {mean(flat):.1%}")


def achieved(shape: Shape, layout: Layout, machine: Machine) -> float:
    """TFLOP/s per device, recomputation counted, as the paper counts."""
    seconds = step_terms(shape, layout, machine).total
    work = shape.flops_per_token("full") * layout.global_batch * shape.seq_len
    return work / seconds / layout.devices / 1e12


def vtrain_like(row: Row) -> tuple[Shape, Layout]:
    shape = Shape(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 51200, 2048)
    tp, pp, gpus, batch = (int(row[k]) for k in ("tp", "pp", "gpus", "batch"))
    dp = gpus // (tp * pp)
    micro = next(m for m in (4, 2, 1) if batch % (dp * m) == 0 and batch // dp // m >= pp)
    layout = Layout(
        dp=dp, tp=tp, pp=pp, micro_batch=micro, accumulation=batch // dp // micro, recompute="full",
        virtual_stages=1, sequence_parallel=False,
    )  # fmt: skip
    return shape, layout


def zero3() -> None:
    """Where ZeRO-3 collapses: the first two rows of each series calibrate, the third is predicted."""
    print("\nT1b SC21 table 2, ZeRO-3 against TP x PP; calibrated: rows 1 and 2 of each series; predicted: row 3")
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows("megatron_zero3.csv"):
        groups.setdefault((row["billions"], row["scheme"]), []).append(row)
    ratios: dict[str, dict[str, tuple[float, float]]] = {}
    for (size, scheme), table in groups.items():
        told = [float(row["tflops"]) for row in table]
        rates = predict_zero3(scheme, table)
        ratios.setdefault(size, {})[scheme] = (rates[2], told[2])
        print(f"  {size:>6}B {scheme:5}: predicted {rates[2]:.0f} TFLOP/s, published {told[2]:.0f}; rows 1, 2 fitted"
              f" {rates[0]:.0f}, {rates[1]:.0f} of {told[0]:.0f}, {told[1]:.0f}")  # fmt: skip
    for size, both in ratios.items():
        mine = both["ptd"][0] / both["zero3"][0]
        theirs = both["ptd"][1] / both["zero3"][1]
        print(f"  {size:>6}B: TP x PP over ZeRO-3 predicted {mine:.2f}x, published {theirs:.2f}x")
        bar(f"T1b {size}B crossover, sign", 0.0 if (mine > 1) == (theirs > 1) else 1.0, 0.0, "wrong")
        bar(f"T1b {size}B crossover, size", abs(mine / theirs - 1) * 100, 20.0)


#: Where the second calibrating row loses more than a tenth of the first one's rate, communication limits it, and
#: what no row measured alone, the bandwidth that this software gets from the links, is left free.
LINK_BOUND = 0.9
FREE_LINK = {**PRIORS, "outer": 2.0}


def predict_zero3(scheme: str, table: Sequence[Row]) -> list[float]:
    cases = [zero3_case(scheme, row) for row in table]
    told = [float(row["tflops"]) for row in table[:2]]
    # FSDP-like gathers run beside compute; Megatron-LM's all-reduce of gradients does not.
    start = replace(A100, overlap=1.0 if scheme == "zero3" else 0.0)
    shape, layout = cases[0]
    start = replace(start, fixed_s=FIXED_SHARE * step_terms(shape, layout, start).total)

    def rates(factors: Mapping[str, float], upto: int) -> list[float]:
        machine = start.scaled(**factors)
        return [achieved(shape, layout, machine) for shape, layout in cases[:upto]]

    found = fit(lambda f: rates(f, 2), told, PRIORS if told[1] > LINK_BOUND * told[0] else FREE_LINK, noise=PUBLISHED)
    return rates(found.factors, 3)


def zero3_case(scheme: str, row: Row) -> tuple[Shape, Layout]:
    shape = Shape(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 51200, 2048)
    gpus, batch, micro = (int(row[k]) for k in ("gpus", "batch", "micro_batch"))
    if scheme == "zero3":
        each = batch // (gpus * micro)
        return shape, Layout(sharded=gpus, micro_batch=micro, accumulation=max(1, each), recompute="full")
    pp = 12 if row["billions"] == "174.6" else 35
    dp = gpus // (8 * pp)
    return shape, Layout(
        dp=dp, tp=8, pp=pp, micro_batch=micro, accumulation=batch // dp // micro, recompute="full",
        sequence_parallel=False,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ memory and arithmetic


def activations() -> None:
    """Korthikanti et al. 2022: nothing is calibrated; formulas against published GiB."""
    print("\nMemory, Korthikanti et al. 2022; nothing calibrated")
    worst = 0.0
    for row in rows("activations.csv"):
        shape = Shape(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 0, 2048)
        tp, pp, chunks, micro = (int(row[k]) for k in ("tp", "pp", "chunks", "micro_batch"))
        base = Layout(
            tp=tp, pp=pp, virtual_stages=chunks, micro_batch=micro, accumulation=4 * pp, sequence_parallel=False
        )
        plain = memory(shape, base, States(2, 4, 12))
        selective = memory(shape, replace(base, sequence_parallel=True, recompute="selective"), States(2, 4, 12))
        found = {
            "states_gib": plain.weights + plain.gradients + plain.optimizer,
            "none_gib": plain.activations,
            "selective_gib": selective.activations,
        }
        errors = {name: value / GIB / float(row[name]) - 1 for name, value in found.items()}
        worst = max(worst, *(abs(e) for e in errors.values()))
        print(f"  {row['billions']:>5}B: " + ", ".join(f"{n[:-4]} {e:+.1%}" for n, e in errors.items()))
    bar("memory, worst row", worst * 100, 5.0)


#: Tokens per second and H100 (989 TFLOP/s) and MFU of llm-foundry's own table (MosaicML, scripts/train/benchmarking).
MPT = {
    "MPT-7B": (Shape(32, 4096, 32, 50368, 2048), 10475.0, 45.71),
    "MPT-70B": (Shape(80, 8192, 64, 50368, 2048), 1058.0, 43.36),
}


def utilisation() -> None:
    """Published MFU from published throughput: arithmetic alone. MegaScale's own rows count a sliding window whose
    width is not published, so only those of plain attention are held against a bar."""
    print("\nMFU, MegaScale table 2 and llm-foundry; nothing calibrated")
    shape = megascale_shape()
    errors: dict[str, list[float]] = {"megatron-lm": [], "megascale": []}
    for row in rows("megascale.csv"):
        found = 100 * mfu(shape, float(row["tokens_per_s"]), int(row["gpus"]), 312e12)
        errors[row["system"]].append(abs(found - float(row["mfu"])))
    plain = errors["megatron-lm"] + [abs(100 * mfu(s, rate, 1, 989e12) - told) for s, rate, told in MPT.values()]
    print(f"  megascale's rows, whole window assumed: off by at most {max(errors['megascale']):.2f} points (no bar)")
    bar("MFU, worst row", max(plain), 0.1, "points")


def torchtitan() -> None:
    """FSDP from 8 to 128 H100: the first row of each series calibrates the rate, the second is predicted."""
    print("\nT4 torchtitan 8B FSDP, 8 -> 128 H100; calibrated: the row of 8; predicted: the row of 128")
    shape = Shape(32, 4096, 32, 128256, 8192, ffn=14336, kv_heads=8, gated=True, tied=False)
    start = machine_of(load_hardware("h100-ndr"))
    table = rows("torchtitan.csv")
    errors = []
    for variant in dict.fromkeys(row["variant"] for row in table):
        pair = [row for row in table if row["variant"] == variant]
        layouts = [Layout(sharded=int(r["gpus"]), micro_batch=2, recompute="selective") for r in pair]

        def rate(factors: Mapping[str, float], which: Layout) -> float:
            seconds = step_terms(shape, which, start.scaled(**factors)).total
            return which.micro_batch * shape.seq_len / seconds

        first: Callable[[Mapping[str, float]], list[float]] = lambda f, at=layouts[0]: [rate(f, at)]  # type: ignore[misc]  # noqa: E731
        found = fit(first, [float(pair[0]["tokens_per_s"])], {"efficiency": PRIORS["efficiency"]}, noise=PUBLISHED)
        error = rate(found.factors, layouts[1]) / float(pair[1]["tokens_per_s"]) - 1
        errors.append(abs(error) * 100)
        flat = float(pair[0]["tokens_per_s"]) / float(pair[1]["tokens_per_s"]) - 1
        print(f"  {variant:8}: {error:+.1%} (linear {flat:+.1%})")
    bar("T4 mean", mean(errors), 5.0)


def search() -> None:
    """CPU time of ``auto`` at 4,096 devices, for the example job."""
    print("\nauto at 4,096 devices")
    job = parse_job(EXAMPLE, "job.toml")
    began = time.process_time()
    found = answer(Question([4096], parallel="auto"), job=job, hardware="h100-ndr")
    print(f"  {found.predictions[0].layout}; {len(found.predictions[0].rejected)} others told")
    bar("auto, CPU time", time.process_time() - began, 2.0, "s")


def main() -> int:
    """Every part in turn."""
    for part in (megascale, vtrain, megatron_weak, zero3, torchtitan, activations, utilisation, search):
        part()
    print(f"\n{'all bars met' if not failed else 'missed: ' + ', '.join(failed)}")
    return 1 if failed and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
