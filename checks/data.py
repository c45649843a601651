"""Do the ranks read the data they should: disjoint, and in a new order each epoch?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Plant, Remedy, TrainingTrace, check, fail, ok, skip, warn

from ._arrays import Table, place, readers, recorded

REMEDY = Remedy(text="Give the loader a DistributedSampler with this rank's number of replicas and rank.")


@check(
    "data.disjoint",
    asks="Do ranks that should see different data share no sample?",
    plant=Plant(
        "two ranks are fed the same shard",
        "data.ranks-overlap",
        ranks=2,
        params={"parallel": "data", "steps": 6},
        planted={"plant": "same-shard"},
        types="data",
    ),
)
def disjoint(trace: TrainingTrace) -> Iterator[Finding]:
    """Compares sample ids between data-parallel coordinates in each update. Ranks of one replica may share theirs."""
    ids, rows = trace.sample_ids, readers(trace)
    replicas: dict[int, int] = {}
    for row in rows:
        if "dp" in trace.ranks[row].coords:
            replicas.setdefault(trace.ranks[row].coords["dp"], row)
    if ids is None or len(replicas) < 2:
        yield skip("not measured: needs sample ids of two or more data-parallel replicas")
        return
    first: tuple[int, int, int] | None = None
    shared = total = 0
    for column in range(ids.shape[1]):
        seen: set[int] = set()
        for row in replicas.values():
            mine = {int(i) for i in ids[row, column] if i >= 0}
            again = len(mine & seen)
            if again and first is None:
                first = (row, column, next(iter(mine & seen)))
            shared, total, seen = shared + again, total + len(mine), seen | mine
    kept = {"measured": shared, "unit": "samples read twice in one update", "limit": 0}
    source = "a global batch holds each sample once"
    if first is None:
        yield ok(f"{len(replicas)} replicas read {total} samples, none twice in an update", limit_source=source, **kept)
        return
    row, column, sample = first
    text = f"replicas share {shared} of {total} samples, first sample {sample} in update {trace.steps[column]}"
    yield fail(
        "data.ranks-overlap",
        text,
        where=place(trace, row, column),
        first_seen_step=trace.steps[column],
        limit_source=source,
        remedy=REMEDY,
        **kept,
    )


@check(
    "data.reshuffled",
    asks="Is the order of samples new in each epoch?",
    plant=Plant(
        "set_epoch is never called",
        "data.no-reshuffle",
        params={"steps": 12, "dataset_samples": 64},
        planted={"plant": "no-reshuffle"},
        types="single",
    ),
)
def reshuffled(trace: TrainingTrace) -> Iterator[Finding]:
    """Compares the order of whole epochs on one rank."""
    epochs = _orders(trace)
    if trace.job.shuffle is False or len(epochs) < 2:
        yield skip("not measured: needs two whole epochs of a shuffled data set")
        return
    same = [b for a, b in zip(sorted(epochs), sorted(epochs)[1:], strict=False) if epochs[a] == epochs[b]]
    kept = {"measured": len(same), "unit": "epochs in the order of the one before", "limit": 0}
    if not same:
        yield ok(f"{len(epochs)} epochs, each in an order of its own", limit_source="the job shuffles", **kept)
        return
    remedy = Remedy(text="Call sampler.set_epoch(epoch) at the start of each epoch.")
    text = f"epoch {same[0]} repeats the order of epoch {same[0] - 1}"
    yield warn(
        "data.no-reshuffle",
        text,
        where=place(trace, readers(trace)[0]),
        limit_source="the job shuffles",
        remedy=remedy,
        **kept,
    )


@check(
    "data.coverage",
    asks="Does an epoch see every sample of the data set?",
    plant=Plant(
        "all replicas read the first one's shard",
        "data.partial-coverage",
        ranks=2,
        params={"parallel": "data", "steps": 9, "dataset_samples": 64},
        planted={"plant": "same-shard"},
        types="data",
    ),
)
def coverage(trace: TrainingTrace) -> Iterator[Finding]:
    """Counts distinct samples over all ranks in each whole epoch; ``drop_last`` may leave out less than one batch."""
    ids, epoch, size = trace.sample_ids, recorded(trace, "epoch"), trace.job.dataset_samples
    if ids is None or epoch is None or size is None or np.nanmax(epoch) < 1 or trace.job.resumed_from_step:
        yield skip("not measured: needs a run over more than one whole epoch of a data set of known size")
        return
    # The last epoch may be cut short by the end of the run.
    whole = [int(e) for e in np.unique(epoch[np.isfinite(epoch)])][:-1]
    seen = {e: len(np.unique(ids[(epoch == e)[:, :, None] & (ids >= 0)])) for e in whole}
    least = min(seen, key=lambda e: seen[e])
    batch = trace.job.global_batch or 1
    wanted = size - size % batch if trace.job.drop_last else size
    kept = {"measured": seen[least], "unit": "samples in an epoch", "limit": wanted}
    source = "the data set's size, less an incomplete last batch" if trace.job.drop_last else "the data set's size"
    if seen[least] >= wanted:
        yield ok(f"each of {len(whole)} whole epochs sees {seen[least]} of {size} samples", limit_source=source, **kept)
        return
    text = f"epoch {least} sees {seen[least]} of {size} samples ({seen[least] / size:.0%})"
    where = place(trace, readers(trace)[0])
    yield fail("data.partial-coverage", text, where=where, limit_source=source, remedy=REMEDY, **kept)


def _orders(trace: TrainingTrace) -> dict[int, tuple[int, ...]]:
    """Whole epochs of the first reading rank: epoch -> sample ids in the order read. The last one may be cut short."""
    ids, epoch, rows = trace.sample_ids, recorded(trace, "epoch"), readers(trace)
    if ids is None or epoch is None or not rows:
        return {}
    row = rows[0]
    orders: dict[int, list[int]] = {}
    for column, number in enumerate(_known(epoch[row])):
        orders.setdefault(number, []).extend(int(i) for i in ids[row, column] if i >= 0)
    longest = max((len(v) for v in orders.values()), default=0)
    return {k: tuple(v) for k, v in orders.items() if len(v) == longest}


def _known(values: Table) -> list[int]:
    return [int(v) for v in values if np.isfinite(v)]
