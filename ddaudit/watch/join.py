"""Joins the trace of a resumed run with that of the run that saved its checkpoint.

The checkpoint is recognised by the digest of its file, so a renamed or copied one is found too. Nothing is judged here:
the facts say what both traces show together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddaudit.evidence import TrainingTrace, WatchedRank, WatchedScript
from ddaudit.evidence.events import Stream, read_streams
from ddaudit.evidence.script import ResumeFacts

if TYPE_CHECKING:
    import numpy as np

__all__ = ["join"]

MAX_RUNS = 200
#: Updates whose draws tell whether a run uses random numbers; the watcher looks at loaders for so many.
RANDOM_UPDATES = 32


@dataclass(frozen=True)
class _Run:
    trace: TrainingTrace
    script: WatchedScript
    name: str

    def rows(self) -> range:
        return range(len(self.trace.ranks))

    def ids(self, row: int, column: int) -> list[int]:
        """Samples of one update: dataset indices where known, else fingerprints."""
        for name in ("sample_index", "sample_ids"):
            table = self.trace.array(name)
            if table is not None and (table[row] >= 0).any():
                return [int(x) for x in table[row, column] if x >= 0]
        return []

    def epochs(self, row: int, column: int) -> list[int]:
        table = self.trace.array("sample_epoch")
        return [] if table is None else [int(x) for x in table[row, column] if x >= 0]

    def value(self, name: str, row: int, column: int) -> float | None:
        table = self.trace.series(name)
        if table is None or not 0 <= column < table.shape[1] or table[row, column] != table[row, column]:
            return None
        return float(table[row, column])


def join(
    root: Path, run_dir: Path, streams: Sequence[Stream], continues: Path | None, through: Path | None = None
) -> ResumeFacts | None:
    """Facts about resuming, or None when this run loaded nothing that a watched run under ``root`` saved.

    ``through`` is a run of the same command that went on: its updates after the checkpoint are what the resumed run
    should repeat, provided that it equals the interrupted run up to there."""
    mine = _read(streams, run_dir.name)
    if mine is None:
        return None
    loads = [c for rank in mine.script.ranks for c in rank.checkpoints if c["action"] == "load" and not c["update"]]
    digests = {c["digest"] for c in loads if c.get("digest")}
    folders = [continues] if continues is not None else _earlier(root, run_dir)
    for folder in folders:
        other = _read(read_streams(folder / "events" / "script"), folder.name)
        if other is None:
            continue
        saves = [c for rank in other.script.ranks for c in rank.checkpoints if c["action"] == "save"]
        matching = [c for c in saves if c.get("digest") in digests] or (saves[-1:] if continues is not None else [])
        if matching:
            found = _facts(mine, _extended(other, through), matching[-1], loads)
            alike = [c for c in saves if int(c["update"]) == found.saved_update]
            return found.model_copy(update={"ranks_loading_others": _loading_others(alike, loads)})
    return None


def _extended(other: _Run, through: Path | None) -> _Run:
    """The interrupted run with the updates of the one that went on."""
    whole = None if through is None else _read(read_streams(through / "events" / "script"), through.name)
    if whole is None:
        return other
    columns = {step: i for i, step in enumerate(whole.trace.steps)}
    same = [
        not any(_differs(other, whole, row, i, columns[step], "parameters") for row in _common(other, whole))
        for i, step in enumerate(other.trace.steps)
        if step in columns
    ]
    return _Run(whole.trace, other.script, other.name) if same and all(same) else other


def _earlier(root: Path, run_dir: Path) -> list[Path]:
    found = [p for p in root.iterdir() if p != run_dir and (p / "events" / "script").is_dir()] if root.is_dir() else []
    return sorted(found, key=lambda p: p.stat().st_mtime, reverse=True)[:MAX_RUNS]


def _read(streams: Sequence[Stream], name: str) -> _Run | None:
    trace, script = TrainingTrace.assemble(streams), WatchedScript.assemble(streams)
    return None if trace is None or script is None or not trace.steps else _Run(trace, script, name)


def _facts(mine: _Run, other: _Run, save: Mapping[str, Any], loads: Sequence[Mapping[str, Any]]) -> ResumeFacts:
    at = int(save["update"])
    areas = sorted({a for c in loads for a in c.get("areas", ())})
    numbers = {k: v for c in loads for k, v in c.get("numbers", {}).items()}
    columns = {step: i for i, step in enumerate(other.trace.steps)}
    last = columns.get(at - 1, len(columns) - 1)
    overlap = sum(step >= at for step in columns)
    start = mine.script.ranks[0].start_digests if mine.script.ranks else ()
    before = other.trace.array("param_digests")
    parted = _first_difference(mine, other, columns, at)
    held = save.get("parameters") or (None if before is None or (before[0, last] < -1).all() else before[0, last])
    return ResumeFacts(
        earlier=other.name,
        path=str(save["path"]),
        saved_update=at,
        stored_step=_stored_step(numbers),
        areas=tuple(areas),
        earlier_areas=_areas_used(other),
        **_data(mine, other, last),
        position_stored="sampler" in areas or any(_counts_data(key) for key in numbers),
        lr_first=other.value("lr", 0, 0),
        lr_start=tuple(x for i in range(4) if (x := other.value("lr", 0, i)) is not None),
        lr_before=other.value("lr", 0, last),
        lr_saved=save.get("lr"),
        lr_expected=other.value("lr", 0, columns[at]) if at in columns else None,
        lr_after=mine.value("lr", 0, 0),
        lr_soon=tuple(x for i in range(4) if (x := mine.value("lr", 0, i)) is not None),
        lr_pace=_ratio(other.value("lr", 0, last), other.value("lr", 0, last - 1)),
        optimizer_steps_before=max(save.get("optimizer_steps") or [0]) or None,
        optimizer_steps_after=mine.script.ranks[0].notes.get("first_optimizer_step"),
        params_equal=_equal(held, start) if start and held is not None else None,
        rng_equal=_rng_equal(mine, other, columns.get(at)),
        optimizer_equal=_optimizer_equal(mine, save),
        rng_of_rank=_rng_of_rank(mine, other, last),
        overlap_updates=min(overlap, len(mine.trace.steps)),
        first_difference=None if parted is None else parted[0],
        first_differs_in=None if parted is None else parted[1],
    )


def _loading_others(saves: Sequence[Mapping[str, Any]], loads: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Ranks that saved a file of their own and loaded only files that other ranks saved."""
    owners: dict[str, set[int]] = {}
    for save in (c for c in saves if c.get("digest")):
        owners.setdefault(str(save["digest"]), set()).add(int(save["rank"]))
    savers = {rank for ranks in owners.values() for rank in ranks}
    read: dict[int, set[int]] = {}
    for load in (c for c in loads if str(c.get("digest")) in owners):
        read.setdefault(int(load["rank"]), set()).update(owners[str(load["digest"])])
    return tuple(sorted(rank for rank, ranks in read.items() if rank in savers and rank not in ranks))


def _ratio(value: float | None, before: float | None) -> float | None:
    return None if value is None or not before else value / before


def _counts_data(key: str) -> bool:
    word = key.rpartition(".")[2].lower()
    return any(w in word for w in ("batch", "sample", "position", "cursor", "offset", "consumed", "index"))


def _equal(recorded: Sequence[int], start: Sequence[int]) -> bool:
    """The same parameters, in whatever order the optimizer holds them."""
    return sorted(int(x) for x in recorded[: len(start)]) == sorted(start)


def _stored_step(numbers: Mapping[str, int]) -> int | None:
    """The step that a checkpoint says it was saved at, by the usual names."""
    for wanted in ("global_step", "step", "global_steps", "steps", "iteration", "iter", "updates"):
        for key, value in numbers.items():
            if key.rpartition(".")[2] == wanted and "optim" not in key:
                return value
    return None


def _areas_used(run: _Run) -> tuple[str, ...]:
    """Training state that the run had: what a complete checkpoint would hold."""
    rank: WatchedRank = run.script.ranks[0]
    areas = {"model"}
    if any(o["momentum"] and o["state"] for o in rank.optimizers):
        areas.add("optimizer")
    if "schedulers" in rank.notes:
        areas.add("scheduler")
    if rank.notes.get("scaler"):
        areas.add("scaler")
    # A sampler draws its seed once an epoch; dropout and augmentation draw in nearly every update.
    draws = [run.trace.series(n) for n in ("rng_forward_draws", "rng_fetch_digest")]
    if any(t is not None and t.size and float((t[0, :RANDOM_UPDATES] > 0).mean()) > 0.5 for t in draws):
        areas.add("rng")
    return tuple(sorted(areas))


def _rng_equal(mine: _Run, other: _Run, column: int | None) -> bool | None:
    if column is None:
        return None
    pairs = [(mine.value("rng_digest", r, 0), other.value("rng_digest", r, column)) for r in _common(mine, other)]
    known = [a == b for a, b in pairs if a is not None and b is not None]
    return all(known) if known else None


def _optimizer_equal(mine: _Run, save: Mapping[str, Any]) -> bool | None:
    """Compares the rank that saved with itself: shards differ between ranks."""
    rank = next((r for r in mine.script.ranks if r.rank == save.get("rank", 0)), None)
    before, after = save.get("state"), None if rank is None else rank.notes.get("state_loaded")
    return None if before is None or after is None else bool(before == after)


def _rng_of_rank(mine: _Run, other: _Run, last: int) -> tuple[int | None, ...]:
    left = [_rng_left(other, r, last) for r in other.rows()]
    known = {left[r]: r for r in reversed(other.rows())}
    found = []
    for row, rank in enumerate(mine.script.ranks):
        states = [float(x) for x in rank.notes.get("rng_restored", ())]
        own = left[row] if row in other.rows() else None
        found.append(row if own in states and own is not None else next((known[s] for s in states if s in known), None))
    return tuple(found)


def _rng_left(run: _Run, row: int, column: int) -> float | None:
    """Random state after an update. It is recorded in some; between it and the next forward pass few programs draw."""
    recorded = run.value("rng_after", row, column)
    return run.value("rng_digest", row, column + 1) if recorded is None else recorded


def _common(mine: _Run, other: _Run) -> Iterator[int]:
    yield from range(min(len(mine.trace.ranks), len(other.trace.ranks)))


def _first_difference(mine: _Run, other: _Run, columns: Mapping[int, int], at: int) -> tuple[int, str] | None:
    """The first update after the checkpoint in which the runs differ, and in what: cause before effect."""
    for offset in range(len(mine.trace.steps)):
        column = columns.get(at + offset)
        if column is None:
            return None
        for what in ("samples", "learning rate", "loss", "parameters"):
            if any(_differs(mine, other, row, offset, column, what) for row in _common(mine, other)):
                return at + offset, what
    return None


def _differs(mine: _Run, other: _Run, row: int, offset: int, column: int, what: str) -> bool:
    if what == "samples":
        return mine.ids(row, offset) != other.ids(row, column)
    if what == "parameters":
        a, b = mine.trace.array("param_digests"), other.trace.array("param_digests")
        if a is None or b is None or a.shape[2] != b.shape[2]:
            return False
        ours, theirs = a[row, offset], b[row, column]
        return bool((ours > -2).any() and (theirs > -2).any() and not _same(ours, theirs))
    name = "lr" if what == "learning rate" else "loss_raw"
    values = mine.value(name, row, offset), other.value(name, row, column)
    return None not in values and values[0] != values[1]


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool((a == b).all())


def _data(mine: _Run, other: _Run, last: int) -> dict[str, Any]:
    """What of the interrupted epoch was read before the checkpoint, and again after it."""
    rows = list(_common(mine, other))
    epoch = (other.epochs(rows[0], last) or [-1])[-1] if rows else -1
    loader = _loader(other, epoch // 100_000) if epoch >= 0 else None
    batches = loader.get("batches") if loader else None
    if epoch < 0 or not batches:
        return {}
    consumed = {r: [c for c in range(last + 1) if epoch in other.epochs(r, c)] for r in rows}
    micro = other.value("micro_batches", rows[0], last) or 1.0
    read = sum(other.value("micro_batches", rows[0], c) or micro for c in consumed[rows[0]])
    if read >= batches:
        return {"mid_epoch": False, **_restart(mine, other, rows), **_again(mine, other, consumed)}
    left = max(1, round((batches - read) / micro))
    before = {r: [i for c in consumed[r] for i in other.ids(r, c)] for r in rows}
    after = {r: [i for c in range(min(left, len(mine.trace.steps))) for i in mine.ids(r, c)] for r in rows}
    seen = {i for ids in before.values() for i in ids}
    again = {r: sum(i in seen for i in ids) for r, ids in after.items()}
    first = {r: after[r][: len(mine.ids(r, 0))] for r in rows}
    alike = len(rows) > 1 and all(first[r] and first[r] == first[rows[0]] for r in rows)
    apart = len(rows) > 1 and before[rows[0]] != before[rows[1]]
    return {
        "mid_epoch": True,
        "samples_before": sum(map(len, before.values())),
        "samples_after": sum(map(len, after.values())),
        "samples_repeated": sum(again.values()),
        "ranks_repeating": tuple(r for r in rows if again[r]),
        "order_changed": any(after[r][:8] != before[r][:8] for r in rows) if any(again.values()) else False,
        "equal_positions": alike and apart,
    }


def _again(mine: _Run, other: _Run, consumed: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    """At an epoch's end: does every rank begin the epoch that it has just ended? Told only where epochs have orders of
    their own."""
    if not all(consumed.values()) or any(columns[0] == 0 for columns in consumed.values()):
        return {}
    starts = {row: (mine.ids(row, 0), other.ids(row, columns[0])) for row, columns in consumed.items()}
    alike = all(now and now == then for now, then in starts.values())
    fresh = any(then != other.ids(row, 0) for row, (_, then) in starts.items())
    if not alike or not fresh:
        return {}
    again = sum(len(other.ids(row, column)) for row, columns in consumed.items() for column in columns)
    return {"epoch_again": True, "samples_repeated": again}


def _loader(run: _Run, number: int) -> Mapping[str, Any] | None:
    return next((x for x in run.script.ranks[0].loaders if x["number"] == number), None)


def _restart(mine: _Run, other: _Run, rows: Sequence[int]) -> dict[str, Any]:
    """At an epoch's end: does the next epoch repeat the order of the very first one?"""
    if not rows or len(other.trace.steps) < 1:
        return {}
    first_ever, first_now = other.ids(rows[0], 0), mine.ids(rows[0], 0)
    sampler = (_loader(other, 0) or {}).get("sampler", {})
    shuffles = sampler.get("shuffle") is True or "Random" in str(sampler.get("type"))
    return {"order_changed": bool(first_now) and first_now == first_ever and shuffles, "samples_repeated": 0}
