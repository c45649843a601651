"""Is randomness that must differ between ranks and workers different?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip

from ._arrays import Table, place, recorded
from ._watched import framework, planted, unknown, world


@check(
    "script.randomness",
    asks="Do ranks and loader workers draw different random numbers for dropout and augmentation?",
    plant=(
        planted("every rank draws the same dropout masks", "rng.identical-across-ranks", "same-seed", dropout=True),
        planted("every loader worker augments alike", "data.worker-rng-identical", "worker-seed", workers=2),
    ),
)
def randomness(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Compares the state of the generators just before they are drawn from; a generator nobody draws from may be
    equal."""
    workers = _workers(script)
    if workers is not None:
        names, count = workers
        yield fail(
            "data.worker-rng-identical",
            f"{count} loader workers draw from generators in equal states ({', '.join(names)})",
            measured=count, unit="workers", limit=1, limit_source="each worker augments with numbers of its own",
            remedy=Remedy(text="Seed generators in the worker, from torch.initial_seed() or the worker's id."),
        )  # fmt: skip
        return
    if world(trace) < 2 or trace.job.parallel == "tensor" or len(trace.ranks) < 2:
        yield skip("not measured: one rank, and no two loader workers that draw")
        return
    drawn, state = recorded(trace, "rng_forward_draws"), recorded(trace, "rng_digest")
    fetched = recorded(trace, "rng_fetch_digest")
    looked = 0 if state is None else int((~np.isnan(state)).all(axis=0).sum())
    forward = _alike(state, drawn, looked)
    fetching = _alike(fetched, None, looked)
    kept = {"measured": max(forward, fetching), "unit": "share of updates", "limit": 0.5,
            "limit_source": "independent ranks draw independently"}  # fmt: skip
    if max(forward, fetching) < 0.5:
        yield ok("no two ranks draw from generators in equal states", **kept)
        return
    what = "the forward pass (dropout)" if forward >= fetching else "loading (augmentation)"
    if (name := framework(script)) is not None:
        yield unknown(f"{name} seeds all ranks alike, so {what} draws the same numbers on each; seed by rank to change")
        return
    yield fail(
        "rng.identical-across-ranks",
        f"all ranks draw from torch's generator in the same state in {what}",
        where=place(trace, 1, 0), remedy=Remedy(text="After building the model, seed with seed + rank."), **kept,
    )  # fmt: skip


def _alike(state: Table | None, drawn: Table | None, looked: int) -> float:
    """Share of updates in which every rank drew and all were in one state. States are looked at in ``looked`` updates,
    draws in up to 32 of them."""
    if state is None or state.shape[1] < 2:
        return 0.0
    known = ~np.isnan(state).any(axis=0)
    if drawn is not None:
        known &= np.nan_to_num(drawn).min(axis=0) > 0
    same = known & (state == state[0]).all(axis=0)
    return float(same.sum() / max(1, min(looked or state.shape[1], 32)))


def _workers(script: WatchedScript) -> tuple[list[str], int] | None:
    """Generators that two workers of one loader (or of two ranks) drew from in equal states."""
    first = [w for w in script.workers if w["fetch"] == 0]
    states: dict[tuple[str, int], set[tuple[int, int]]] = {}
    for worker in first:
        for name, digest in worker["drawn"].items():
            states.setdefault((name, int(digest)), set()).add((int(worker["rank"]), int(worker["worker"])))
    # One worker of a rank is seen once an epoch, in the state that its seed gives: only different workers count.
    twins = {key: who for key, who in states.items() if len(who) > 1}
    if not twins:
        return None
    return sorted({name for name, _ in twins}), max(map(len, twins.values()))
