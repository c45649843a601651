"""Is no sample trained on that the script evaluates with?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ddaudit.api import Finding, Remedy, TrainingTrace, WatchedScript, check, fail, ok, skip

from ._arrays import place
from ._watched import planted
from .watch_data import Reading, reading


@check(
    "script.leak",
    asks="Is no validation sample trained on?",
    plant=planted("validation samples are in the training set", "data.train-val-leak", "leak", split=True),
)
def leak(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Samples that went through a model without gradients against those that were trained on, over all ranks."""
    found = reading(trace, script)
    if found is None or not any(r.evaluated for r in script.ranks):
        yield skip("not measured: no loader was used both for training and for evaluation")
        return
    trained, by_loader, apart = _sets(trace, script, found)
    held = _meant_for_validation(trained, by_loader)
    if not held or not apart:
        yield skip("not measured: the evaluation reads the training data set itself, or nothing comparable")
        return
    shared = len(held & trained)
    kept = {"measured": shared / len(held), "unit": "share of evaluated samples", "limit": 0.05,
            "limit_source": "default: a few samples may be equal by chance"}  # fmt: skip
    if shared / len(held) <= 0.05:
        yield ok(f"{shared} of {len(held)} evaluated samples were trained on", **kept)
        return
    remedy = Remedy(text="Split before shuffling, with one seed on all ranks.")
    text = f"{shared} of {len(held)} evaluated samples were also trained on"
    yield fail("data.train-val-leak", text, where=place(trace, 0), remedy=remedy, **kept)


def _meant_for_validation(trained: set[int], by_loader: Mapping[str, set[int]]) -> set[int]:
    """Evaluated samples. Beside a loader of samples that were not trained on, one of trained samples alone is there to
    measure how well the training data are learnt."""
    shares = {number: len(held & trained) / len(held) for number, held in by_loader.items() if held}
    apart = any(share <= 0.05 for share in shares.values())
    return {i for number, share in shares.items() if share < 0.9 or not apart for i in by_loader[number]}


def _sets(trace: TrainingTrace, script: WatchedScript, found: Reading) -> tuple[set[int], dict[str, set[int]], bool]:
    """Trained samples and those of each evaluated loader in one currency, and whether evaluation reads something other
    than training."""
    table = trace.array("sample_ids")
    held: dict[str, set[int]] = {}
    base = apart = True
    for rank, loader in zip(script.ranks, found.loaders, strict=True):
        for number in rank.evaluated:
            other = next((x for x in rank.loaders if str(x["number"]) == number), None)
            if other is None or other["number"] == loader["number"]:
                continue
            apart = apart and other.get("own_dataset_id") != loader.get("own_dataset_id")
            base = base and found.by_index and other.get("dataset_id") == loader.get("dataset_id")
    for rank, loader in zip(script.ranks, found.loaders, strict=True):
        for number, kept in rank.evaluated.items():
            if number != str(loader["number"]):
                ids = kept["indices" if base else "prints"]
                held.setdefault(number, set()).update(int(i) for i in ids if i >= 0)
    if base:
        return {i for e in found.ids for ids in e.values() for i in ids}, held, apart
    return (set() if table is None else {int(i) for i in np.unique(table) if i >= 0}), held, apart
