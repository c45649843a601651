"""Question 6 for a user's script: did the resumed run go on exactly where the checkpoint left off?"""

from __future__ import annotations

from collections.abc import Iterator

from ddaudit.api import Finding, Remedy, ResumeFacts, TrainingTrace, WatchedScript, Where, check, fail, ok, skip

from ._watched import framework, near, planted

MISSING = {
    "optimizer": ("ckpt.optimizer-missing", "the optimizer's state"),
    "scheduler": ("ckpt.scheduler-missing", "the scheduler's state"),
    "scaler": ("ckpt.scaler-missing", "the gradient scaler's state"),
    "rng": ("ckpt.rng-missing", "random states, and dropout or augmentation draw numbers"),
}


@check(
    "script.resume",
    question="checkpoint",
    asks="Does the resumed run go on with the data, the optimizer and the learning rate that were saved?",
    plant=planted(
        "the optimizer is not saved", ("ckpt.optimizer-missing", "resume.optimizer-reset"), "no-optimizer", resume=True
    ),
)
def resume(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Joins this run with the watched run that saved the checkpoint it loaded, and looks at both sides of the seam."""
    facts = script.resume
    if facts is None:
        yield skip("not measured: this run loaded no checkpoint that a watched run under the same --out saved")
        return
    found = [*_missing(facts, script), *_data(facts), *_state(facts)]
    found = found or list(_tested(facts))
    yield from found
    if not found:
        text = (
            f"resumed from {facts.earlier} at update {facts.saved_update}: no sample repeated, learning rate"
            f" {_number(facts.lr_before)} before and {_number(facts.lr_after)} after, optimizer at step"
            f" {facts.optimizer_steps_after or '?'}"
            f"{_repeated(facts)}"
        )
        yield ok(text, measured=0, unit="faults", limit=0, limit_source="resuming continues exactly")


def _repeated(facts: ResumeFacts) -> str:
    if not facts.overlap_updates or facts.first_difference is not None:
        return ""
    return f", {facts.overlap_updates} updates equal to the uninterrupted run"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"


def _finding(id: str, text: str, facts: ResumeFacts, advice: str, **kept: object) -> Finding:
    return fail(
        id, text, where=Where(file=facts.path, step=facts.saved_update), remedy=Remedy(text=advice),
        limit_source="resuming continues exactly", **kept,
    )  # fmt: skip


def _missing(facts: ResumeFacts, script: WatchedScript) -> Iterator[Finding]:
    for area in facts.earlier_areas:
        if area not in MISSING or area in facts.areas or (area == "rng" and framework(script)):
            continue
        if area == "scheduler" and not _lr_off(facts) and _jumps(facts) is None:
            continue  # the schedule may be a function of the stored step
        if area == "rng" and facts.rng_equal:
            continue
        id, what = MISSING[area]
        text = f"the checkpoint of update {facts.saved_update} was resumed without {what}"
        yield _finding(id, text, facts, f"Save and load {what} with the model.", measured=0, unit=area, limit=1)
    steps = facts.optimizer_steps_before, facts.optimizer_steps_after
    if steps[0] and steps[1] and steps[0] > 2 and steps[1] <= 1 and "optimizer" in facts.areas:
        text = f"the optimizer counts step {steps[1]} after resume where it counted {steps[0]} before"
        yield _finding("resume.optimizer-reset", text, facts, "Load the optimizer's state after making it.",
                       measured=steps[1], unit="steps", limit=steps[0] + 1)  # fmt: skip


def _data(facts: ResumeFacts) -> Iterator[Finding]:
    again, after = facts.samples_repeated or 0, facts.samples_after or 0
    if facts.mid_epoch and facts.equal_positions:
        text = "after resume all ranks read the same samples, before they did not"
        advice = "Save and load every rank's own loader state."
        yield _finding("ckpt.sampler-shards-missing", "one rank's position in the data serves all ranks", facts, advice)
        yield _finding("resume.loader-state-of-rank0", text, facts, advice,
                       measured=again, unit="samples")  # fmt: skip
        return
    if facts.mid_epoch and again > 0.02 * max(after, 1):
        if facts.ranks_repeating and set(facts.ranks_repeating) <= set(facts.ranks_loading_others):
            yield _other_position(facts, again)
            return
        ranks = ", ".join(map(str, facts.ranks_repeating))
        id = "resume.data-order-changed" if facts.order_changed else "resume.data-repeated"
        text = (
            f"after resume rank(s) {ranks} read {again} samples again; {facts.samples_before} had been trained on"
            " earlier in the same epoch"
        )
        advice = "Save the position in the epoch and skip to it."
        yield _finding(id, text, facts, advice, measured=again, unit="samples", limit=0)
        if facts.position_stored:
            text = "the checkpoint holds a position in the data, and the resumed run does not start there"
            yield _finding("ckpt.sampler-position-ignored", text, facts, advice, measured=again, unit="samples")
        else:
            text = "the checkpoint was saved within an epoch and holds no position in the data"
            yield _finding("ckpt.sampler-missing", text, facts, advice, measured=again, unit="samples")
    elif facts.mid_epoch is False and facts.order_changed:
        text = "after resume the epoch has the order of the very first one"
        yield _finding("resume.data-order-changed", text, facts, "Give the epoch number to the sampler on resume.")
    elif facts.mid_epoch is False and facts.epoch_again:
        text = f"the checkpoint was saved at an epoch's end, and the resumed run trains on its {again} samples again"
        yield _finding("resume.data-repeated", text, facts, "Store the number of the epoch that comes next.",
                       measured=again, unit="samples", limit=0)  # fmt: skip


def _other_position(facts: ResumeFacts, again: int) -> Finding:
    """Every rank saved where its own loader stood, and some went on from where another's did."""
    ranks = ", ".join(map(str, facts.ranks_repeating))
    text = (
        f"rank(s) {ranks} saved a file of their own, loaded one that another rank saved, and read {again} samples again"
    )
    advice = "Load on every rank the file that it saved: the position in the data is its own."
    return _finding("resume.loader-state-of-rank0", text, facts, advice, measured=again, unit="samples", limit=0)


def _lr_off(facts: ResumeFacts) -> bool:
    """True when the first learning rate is neither the one that the earlier run went on with nor near the last."""
    after = facts.lr_after
    if after is None or (facts.lr_expected is None and facts.lr_before is None):
        return False
    if facts.lr_expected is not None:
        return abs(after - facts.lr_expected) > 1e-3 * max(abs(facts.lr_expected), 1e-12)
    held = [x for x in (facts.lr_before, facts.lr_saved) if x is not None]
    return all(abs(after - x) > 0.5 * max(abs(x), abs(after)) for x in held)


def _jumps(facts: ResumeFacts) -> float | None:
    """A learning rate among the first after resume that is far from the last one, though that one moved slowly, and is
    one with which the schedule began: a milestone soon after resume leads to a rate that was not there before."""
    before, pace = facts.lr_before, facts.lr_pace
    if not before or pace is None or not 0.9 < pace < 1.1 or _lr_off(facts):
        return None
    far = (x for x in facts.lr_soon[1:] if not 0.5 < x / before < 2.0)
    return next((x for x in far if any(near(x, start, 1e-3) for start in facts.lr_start)), None)


def _state(facts: ResumeFacts) -> Iterator[Finding]:
    if (later := _jumps(facts)) is not None:
        text = (
            f"the learning rate goes from {_number(facts.lr_before)} to {_number(later)} within four updates of resume"
        )
        yield _finding("resume.lr-reset", text, facts, "Load the scheduler's state: it starts its schedule anew.",
                       measured=later, unit="1", limit=facts.lr_before)  # fmt: skip
    if _lr_off(facts):
        expected = facts.lr_before if facts.lr_expected is None else facts.lr_expected
        first = facts.lr_first is not None and abs((facts.lr_after or 0.0) - facts.lr_first) <= 1e-6 * facts.lr_first
        id = "resume.lr-reset" if first else "resume.lr-jump"
        text = f"the learning rate is {_number(facts.lr_after)} after resume; {_number(expected)} would continue"
        yield _finding(id, text, facts, "Load the scheduler's state, or set it to the stored step.",
                       measured=facts.lr_after, unit="1", limit=expected)  # fmt: skip
    yield from _exact(facts)
    own = bool(facts.rng_of_rank) and all(whose == rank for rank, whose in enumerate(facts.rng_of_rank))
    if facts.rng_equal is False and own and facts.tested:
        text = "random states are put back, then drawn from before the first update (a new loader draws a seed)"
        yield _finding("resume.rng-changed", text, facts, "Make the loader's iterator first, then load the states.")
    elif facts.rng_equal is False and "rng" in facts.areas and not own and not _strangers(facts):
        yield _finding("resume.rng-changed", "random states after resume are not those that were saved", facts,
                       "Load every rank's own random state last, right before training goes on.")  # fmt: skip


def _tested(facts: ResumeFacts) -> Iterator[Finding]:
    """Runs that were made to be compared: whatever differs first is the finding."""
    if not facts.tested or facts.first_differs_in is None:
        return
    names = {"samples": "resume.data-order-changed", "learning rate": "resume.lr-jump"}
    text = (
        f"the resumed run differs from the uninterrupted one in update {facts.first_difference}, first in its"
        f" {facts.first_differs_in}; the checkpoint is of update {facts.saved_update}"
    )
    advice = "Save and restore sampler, loader, schedule, optimizer and random states of every rank."
    after = (facts.first_difference or 0) - facts.saved_update
    id = names.get(facts.first_differs_in, "resume.not-exact")
    yield _finding(id, text, facts, advice, measured=after, unit="updates after the save")


def _strangers(facts: ResumeFacts) -> list[int]:
    """Ranks that put back the random state of another rank."""
    return [rank for rank, whose in enumerate(facts.rng_of_rank) if whose is not None and whose != rank]


def _exact(facts: ResumeFacts) -> Iterator[Finding]:
    """State that was put back, and is not what was there when the checkpoint was saved."""
    if facts.optimizer_equal is False and "optimizer" in facts.areas:
        text = "the optimizer resumes with other moments than it had when the checkpoint was saved"
        advice = "Save the optimizer after its last update, together with the model, and load it into the same one."
        yield _finding("resume.optimizer-state-wrong", text, facts, advice)
    if others := _strangers(facts):
        text = (
            f"rank(s) {', '.join(map(str, others))} resume with the random state of rank {facts.rng_of_rank[others[0]]}"
        )
        yield _finding("resume.rng-changed", text, facts, "Save every rank's random state and load its own.",
                       measured=len(others), unit="ranks", limit=0)  # fmt: skip
    if facts.params_equal is False:
        text = "the first update after resume began with other parameters than those saved"
        yield _finding("resume.not-exact", text, facts, "Load the model before the optimizer and leave it alone.")
    elif facts.first_differs_in in ("loss", "parameters") and facts.rng_equal and facts.optimizer_equal:
        text = (
            f"{facts.first_differs_in} part from the uninterrupted run in update {facts.first_difference}, though"
            " samples, learning rate, optimizer and random states go on as saved"
        )
        yield _finding("resume.not-exact", text, facts, "Look for state outside the checkpoint: buffers, EMA, masks.",
                       measured=facts.first_difference, unit="update")  # fmt: skip


@check(
    "script.checkpoint",
    question="checkpoint",
    asks="Is what the script saves whole: the parts of all ranks?",
    plant=planted("rank 0 saves its own shards only", "ckpt.optimizer-shards-missing", "shards", sharded=True),
)
def checkpoint(trace: TrainingTrace, script: WatchedScript) -> Iterator[Finding]:
    """Shards saved by fewer ranks than hold them are lost; a distributed checkpoint is written by all ranks."""
    saves = [(r.rank, c) for r in script.ranks for c in r.checkpoints if c["action"] == "save"]
    if not saves:
        yield skip("not measured: the script saved no checkpoint")
        return
    parts = ("model-shards", "optimizer-shards")
    savers = {area: {rank for rank, c in saves if area in c.get("areas", ())} for area in parts}
    ranks = {r.rank for r in script.ranks}
    lost = [area for area in parts if savers[area] and savers[area] != ranks]
    kept = {"measured": len(lost), "unit": "areas in part", "limit": 0, "limit_source": "a checkpoint holds all shards"}
    if not lost:
        yield ok(f"{len(saves)} saved file(s), none with the shards of some ranks only", **kept)
        return
    which = ", ".join(map(str, sorted(savers[lost[-1]])))
    yield fail(
        "ckpt.optimizer-shards-missing",
        f"rank(s) {which} of {len(ranks)} saved their own shards only ({', '.join(lost)})",
        where=Where(file=saves[-1][1]["path"], rank=saves[-1][0]),
        remedy=Remedy(text="Save with torch.distributed.checkpoint, or gather full state first."), **kept,
    )  # fmt: skip
