"""Do the script's ranks share out the data: disjoint, whole, in a new order each epoch, and none of it for validation?

Indices are compared where the sampler shows them and the ranks hold one data set; fingerprints of samples otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip, warn

from ._arrays import Table, place, recorded
from ._watched import EPOCH_BASE, compared, differing, near, one_model, planted, readers, unknown, world

SHARDING = Remedy(text="Give every rank its own part: DistributedSampler(dataset, num_replicas=N, rank=rank), once.")
JOINING = Remedy(
    text="Call init_process_group, wrap the model in DistributedDataParallel, and give every rank its own samples."
)


@dataclass(frozen=True)
class Reading:
    """What ranks read. ``ids[rank][epoch]`` are samples in the order trained on; ``whole`` names epochs that were
    read to their end on every rank."""

    loader: Mapping[str, Any]
    loaders: tuple[Mapping[str, Any], ...]
    ids: list[dict[int, list[int]]]
    by_index: bool
    whole: tuple[int, ...]


def reading(trace: TrainingTrace, script: WatchedScript) -> Reading | None:
    """The training loader's epochs; None where no loader was seen."""
    epochs = trace.array("sample_epoch")
    if epochs is None or not script.ranks or not (epochs >= 0).any():
        return None
    number = int(np.bincount(epochs[epochs >= 0] // EPOCH_BASE).argmax())
    loaders = tuple(next((x for x in r.loaders if x["number"] == number), {}) for r in script.ranks)
    by_index = trace.array("sample_index") is not None and _one_dataset(trace, loaders)
    table = trace.array("sample_index" if by_index else "sample_ids")
    if table is None or not all(loaders):
        return None
    ids: list[dict[int, list[int]]] = [{} for _ in trace.ranks]
    width = min(table.shape[2], epochs.shape[2])
    for row, column in np.ndindex(table.shape[:2]):
        keys, found = epochs[row, column, :width], table[row, column, :width]
        for key in np.unique(keys[keys >= 0]):
            if key // EPOCH_BASE == number:
                mine = found[(keys == key) & (found >= 0)]
                ids[row].setdefault(int(key % EPOCH_BASE), []).extend(mine.tolist())
    whole = set.intersection(*(set(x.get("finished", ())) for x in loaders), *(set(e) for e in ids))
    return Reading(loaders[0], loaders, ids, by_index, tuple(sorted(whole)))


def _one_dataset(trace: TrainingTrace, loaders: tuple[Mapping[str, Any], ...]) -> bool:
    """False where the same index gave different samples on different ranks: every rank has a data set of its own."""
    index, prints = trace.array("sample_index"), trace.array("sample_ids")
    if index is None or len({x.get("samples") for x in loaders}) > 1:
        return False
    if prints is None:
        return True
    width = min(index.shape[2], prints.shape[2])
    maps = []
    for row in range(index.shape[0]):
        keep = (index[row, :, :width] >= 0) & (prints[row, :, :width] >= 0)
        maps.append(dict(zip(index[row, :, :width][keep].tolist(), prints[row, :, :width][keep].tolist(), strict=True)))
    common = [(a[i], b[i]) for a, b in itertools.pairwise(maps) for i in a.keys() & b.keys()]
    if len(common) >= 8:
        return sum(x == y for x, y in common) > 0.5 * len(common) or _random_reads(index, prints)
    return True


def _random_reads(index: Table, prints: Table) -> bool:
    """True where one rank itself gets different samples for one index: augmentation hides what is behind it."""
    seen: dict[int, int] = {}
    width = min(index.shape[2], prints.shape[2])
    again = changed = 0
    for i, p in zip(index[0, :, :width].ravel().tolist(), prints[0, :, :width].ravel().tolist(), strict=True):
        if i >= 0 and p >= 0:
            again += i in seen
            changed += i in seen and seen[i] != p
            seen[i] = p
    return again > 8 and changed > 0.5 * again


def _separate(trace: TrainingTrace, script: WatchedScript) -> bool:
    return world(trace) > 1 and (readers(trace, script) or 0) > 1


@check(
    "script.shards",
    asks="Do the script's ranks read disjoint samples that together cover the data set?",
    plant=(
        planted("every rank reads the whole data set", "data.ranks-overlap", "no-sharding"),
        planted("ranks train alone, each on everything", "data.ranks-overlap", "alone", wrap="manual"),
        planted("the sampler's seed depends on the rank", "data.sampler-seed-differs", "sampler-seed"),
        planted("samplers believe in more ranks than there are", "data.partial-coverage", "too-many-replicas"),
        planted("a sharded data set is sharded again", "data.double-sharded", "double-sharded"),
        planted(
            "ranks split training from validation differently", "data.split-differs-between-ranks", "split", split=True
        ),
    ),
)
def shards(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares whole epochs where there are some, single updates otherwise."""
    if not _separate(trace, script):
        yield _one_work(trace, script) or skip("not measured: no two ranks are known to want different data")
        return
    found = reading(trace, script)
    if found is None:
        yield _without_loader(trace)
        return
    split = _splits(found)
    if split is not None:
        yield fail("data.split-differs-between-ranks", split, where=place(trace, 1), remedy=Remedy(
            text="Split with one seed on every rank: torch.Generator().manual_seed(seed)."))  # fmt: skip
        return
    shared, total, same_step = _overlap(trace, found)
    drawn = found.loader["sampler"].get("replacement") or _repeats(found)
    if total == 0 or (drawn and not _in_step(trace, found)):
        yield unknown("which samples the ranks read; samplers that draw with replacement may repeat any")
        return
    seeds = {(x["sampler"].get("seed"), x["sampler"].get("epoch")) for x in found.loaders}
    kept = {"measured": shared / total, "unit": "share of samples", "limit": _allowed(found, trace),
            "limit_source": "padding to equal length repeats at most one batch a rank and epoch"}  # fmt: skip
    if shared / total > _allowed(found, trace):
        partial = same_step < 0.9 and (shared / total < 0.9 or len(seeds) > 1)
        id = "data.sampler-seed-differs" if partial or (len(seeds) > 1 and same_step < 0.9) else "data.ranks-overlap"
        how = "in the same update" if same_step > 0.9 else "within an epoch"
        yield fail(id, f"ranks share {shared / total:.0%} of their samples {how}", where=place(trace, 1, 0),
                   remedy=SHARDING, **kept)  # fmt: skip
        return
    yield _coverage(trace, found) or ok(f"ranks share {shared} of {total} samples", **kept)


def _one_work(trace: TrainingTrace, script: WatchedScript) -> Finding | None:
    """Ranks that never talk, yet train on the same samples to the same gradients: all do the work of one. Ranks that
    split a model talk, and members of an ensemble differ in their gradients."""
    calls, ids = recorded(trace, "collective_calls"), trace.array("sample_ids")
    grads = trace.array("grad_digests")
    if trace.job.parallel == "tensor" or world(trace) < 2 or not one_model(script) or script.ranks[0].wrapped:
        return None
    if calls is None or ids is None or grads is None or np.nansum(calls) > 0 or len(trace.ranks) < world(trace):
        return None
    judged = compared(grads)
    same = judged & ~differing(grads).any(axis=1) & (ids == ids[:1]).all(axis=(0, 2)) & (ids >= 0).any(axis=(0, 2))
    if judged.sum() < 2 or not same[judged].all():
        return None
    return fail(
        "data.ranks-overlap",
        f"{world(trace)} ranks train on the same samples to the same gradients in {int(judged.sum())} updates, and none"
        " calls a collective: all do the work of one",
        measured=1.0,
        unit="share of samples",
        limit=0.5,
        limit_source="replicas see different data",
        where=place(trace, 1, 0),
        remedy=JOINING,
    )


def _allowed(found: Reading, trace: TrainingTrace) -> float:
    size = found.loader.get("samples") or 0
    return 0.02 + (world(trace) * 2 / size if size else 0.0)


def _splits(found: Reading) -> str | None:
    subsets = {x.get("subset_sorted") for x in found.loaders}
    if len(subsets) < 2 or None in subsets or not found.by_index:
        return None
    sets = [{i for ids in epochs.values() for i in ids} for epochs in found.ids]
    if not sets[0] or not sets[1] or len(found.whole) == 0:
        return None
    sizes = {x.get("samples") for x in found.loaders}
    sharded = all(x["sampler"].get("distributed") for x in found.loaders)
    if len(sizes) == 1 and (sharded or sets[0] & sets[1]):
        return f"ranks train on different subsets of one data set of {next(iter(sizes))} samples"
    return None


def _overlap(trace: TrainingTrace, found: Reading) -> tuple[int, int, float]:
    """Samples that two ranks share in an epoch, samples of those epochs, and the share found in the same update."""
    epochs = found.whole or tuple(sorted(set.intersection(*(set(e) for e in found.ids))))[:1]
    shared = total = 0
    for epoch in epochs:
        seen: set[int] = set()
        for mine in (set(_before_padding(found, row, epoch)) for row in range(len(found.ids))):
            shared, total = shared + len(mine & seen), total + len(mine)
            seen |= mine
    # The first rank's share of an epoch cannot repeat anything: only what came after it counts.
    ranks = len(found.ids)
    return shared, total - total // max(ranks, 1), _same_step(trace, found)


def _before_padding(found: Reading, row: int, epoch: int) -> list[int]:
    """Samples of an epoch without the last batch, into which samplers put samples again to make all batches full."""
    ids, loader = found.ids[row].get(epoch, []), found.loaders[row]
    batches = int(loader["batches_read"].get(str(epoch), 0))
    if loader.get("drop_last") or batches < 3 or epoch not in found.whole:
        return ids
    return ids[: -(-len(ids) * (batches - 1) // batches)]


def _repeats(found: Reading) -> bool:
    """True where one rank itself reads samples more than once in an epoch: they are drawn, not shared out."""
    every = [ids for epochs in found.ids for ids in epochs.values()]
    return sum(len(ids) - len(set(ids)) for ids in every) > 0.05 * sum(map(len, every))


def _in_step(trace: TrainingTrace, found: Reading) -> bool:
    """True where ranks read the same samples in the same order in nearly every update."""
    table = trace.array("sample_index" if found.by_index else "sample_ids")
    assert table is not None
    known = (table[:2] >= 0).any(axis=(0, 2))
    return bool(known.any()) and float((table[0] == table[1]).all(axis=1)[known].mean()) > 0.9


def _same_step(trace: TrainingTrace, found: Reading) -> float:
    table = trace.array("sample_index" if found.by_index else "sample_ids")
    assert table is not None
    hits = count = 0
    for column in range(table.shape[1]):
        first, other = ({int(i) for i in table[row, column] if i >= 0} for row in (0, 1))
        hits, count = hits + len(first & other), count + min(len(first), len(other))
    return hits / count if count else 0.0


def _without_loader(trace: TrainingTrace) -> Finding:
    """Scripts that cut batches themselves: inputs of the same update are compared."""
    table = trace.array("sample_ids")
    if table is None or table.shape[0] < 2:
        return unknown("which samples the ranks read: no loader was used and no model's inputs were seen")
    known = [c for c in range(table.shape[1]) if (table[:2, c] >= 0).any(axis=1).all()]
    rows = [[{int(i) for i in table[row, c] if i >= 0} for row in (0, 1)] for c in known]
    shares = [len(a & b) / max(1, min(len(a), len(b))) for a, b in rows]
    varied = len({i for a, _ in rows for i in a}) > 8
    share = float(np.median(shares)) if shares else 0.0
    kept = {"measured": share, "unit": "share of inputs", "limit": 0.5, "limit_source": "replicas see different data"}
    if len(known) < 2 or not varied:
        return unknown("which samples the ranks read: too few inputs were seen")
    if share > 0.5:
        text = f"ranks feed the same inputs in {len(known)} updates"
        return fail("data.ranks-overlap", text, where=place(trace, 1, known[0]),
                    remedy=SHARDING, **kept)  # fmt: skip
    return ok(f"inputs of {len(known)} updates differ between ranks", **kept)


def _coverage(trace: TrainingTrace, found: Reading) -> Finding | None:
    """Part of a data set that no rank reads in a whole epoch, or a data set that was parted before the sampler did."""
    size = found.loader.get("samples")
    distributed = all(x["sampler"].get("distributed") for x in found.loaders)
    if not found.whole or not size or found.loader.get("iterable"):
        return None
    own = trace.array("sample_index") is not None and not found.by_index
    if own and (distributed or _parted_by_index(trace, found, size)):
        text = f"each rank's own part of {size} samples is parted again between the ranks"
        return fail("data.double-sharded", text, measured=len(found.loaders), unit="times sharded", limit=1,
                    where=place(trace, 0), remedy=SHARDING, limit_source="the data is shared out once")  # fmt: skip
    if not found.by_index or "Subset" in str(found.loader["sampler"].get("type")):
        return None
    batch = found.loader.get("batch_size") or 0
    used = [e for e in found.whole if _used(found, e, batch)]
    read = max((len({i for e in found.ids for i in e.get(epoch, ())}) for epoch in used), default=size)
    lost = size - read - 2 * batch * len(found.ids)
    replicas = found.loader["sampler"].get("num_replicas")
    if not distributed or lost <= 0.1 * size:
        return None
    text = f"an epoch covers {read} of {size} samples; the sampler counts {replicas} replicas, {len(found.ids)} train"
    twice = replicas == len(found.ids) and near(read * replicas / size, 1.0, 0.1)  # the loader parts it once more
    id = "data.double-sharded" if twice else "data.partial-coverage"
    return fail(id, text, measured=read / size, unit="share of the data set", limit=0.9,
                limit_source="an epoch covers the data but for dropped last batches", where=place(trace, 0),
                remedy=SHARDING)  # fmt: skip


def _parted_by_index(trace: TrainingTrace, found: Reading, size: int) -> bool:
    """True where ranks that hold different data sets of one size share out the indices of a whole epoch, as if they
    held one and the same."""
    index, epochs = trace.array("sample_index"), trace.array("sample_epoch")
    if index is None or epochs is None:
        return False
    width, number = min(index.shape[2], epochs.shape[2]), int(found.loader["number"])
    index, epochs = index[..., :width], epochs[..., :width]
    for epoch in found.whole:
        chosen = (epochs == EPOCH_BASE * number + epoch) & (index >= 0)
        read = [set(mine[held].tolist()) for mine, held in zip(index, chosen, strict=True)]
        every = set.union(*read)
        if sum(map(len, read)) - len(every) <= 0.1 * size and 0.9 * size <= len(every) <= size:
            return True
    return False


def _used(found: Reading, epoch: int, batch: int) -> bool:
    """False for an epoch of which batches were fetched and left out, as a loop that skips to its position does."""
    pairs = zip(found.loaders, found.ids, strict=True)
    return all(len(ids.get(epoch, ())) > 0.9 * batch * (x["batches_read"].get(str(epoch), 0) - 1) for x, ids in pairs)


@check(
    "script.reshuffled",
    asks="Is the script's order of samples new in each epoch?",
    plant=planted("set_epoch is never called", "data.no-reshuffle", "no-set-epoch"),
)
def script_reshuffled(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares whole epochs of rank 0. An order that is sorted is meant; a shuffled one that repeats is not."""
    found = reading(trace, script)
    orders = [] if found is None else [found.ids[0].get(e, []) for e in found.whole]
    orders = [o for o in orders if len(o) >= 8]
    if found is None or len(orders) < 2 or len({len(o) for o in orders}) > 1:
        yield skip("not measured: needs two whole epochs of one loader")
        return
    same = sum(a == b for a, b in itertools.pairwise(orders))
    shuffled = found.by_index and orders[0] != sorted(orders[0])
    kept = {"measured": same, "unit": "epochs in the order of the one before", "limit": 0,
            "limit_source": "the sampler shuffles"}  # fmt: skip
    if same < len(orders) - 1:
        yield ok(f"{len(orders)} epochs, each in an order of its own", **kept)
    elif shuffled and _shuffles(found.loader["sampler"]):
        where = place(trace, 0)
        remedy = Remedy(text="Call sampler.set_epoch(epoch) at the start of each epoch.")
        text = f"all {len(orders)} epochs have one shuffled order"
        yield warn("data.no-reshuffle", text, where=where, remedy=remedy, **kept)
    elif shuffled:
        yield unknown("every epoch has one order, and nothing says that the sampler is meant to shuffle")
    else:
        yield ok("the data is read in its own order in every epoch, as its sampler says", **kept)


def _shuffles(sampler: Mapping[str, Any]) -> bool:
    """False for a sampler that is told not to shuffle, and for one of the script's own without seed and epoch, which
    may sort by length or difficulty."""
    known = sampler.get("distributed") or "Random" in str(sampler.get("type")) or {"seed", "epoch"} & sampler.keys()
    return sampler.get("shuffle", bool(known)) is not False
