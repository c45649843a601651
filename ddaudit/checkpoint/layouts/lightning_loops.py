"""What Lightning's loop counters say about a save: an epoch left early, and how often its schedules stepped."""

from __future__ import annotations

from typing import Any

from ddaudit.checkpoint.model import Checkpoint

_FIT = "loops.fit_loop."
_BATCHES = f"{_FIT}epoch_loop.batch_progress."
_ANY = (-(2**60), 2**60)


def check_epoch(made: Checkpoint, flat: dict[str, Any], file: str) -> None:
    """An epoch that counts as completed before its last batch.

    ``save_checkpoint`` after a ``fit()`` that ``max_steps`` ended within an epoch writes this, all batches completed:
    a resume begins the next epoch, at the batch where this one ended. Within a batch (``completed`` trails ``ready``)
    no epoch can be completed: there the counters are of two saves.
    """
    done = flat.get(f"{_FIT}epoch_progress.current.completed")
    ready = flat.get(f"{_FIT}epoch_progress.current.ready")
    batches = made.facts.get("batches_in_epoch")
    if done is None or ready != done or not batches or flat.get(f"{_BATCHES}is_last_batch") is not False:
        return
    key = f"{_FIT}epoch_progress.current.completed"
    if flat.get(f"{_BATCHES}current.completed") == flat.get(f"{_BATCHES}current.ready"):
        text = (
            f"saved after fit() had ended within an epoch: a resume begins the next epoch at its batch {batches}; "
            f"what was left of this one, and the next one's first {batches} batches, are not seen"
        )
        made.fault("step.epoch-left", text, file=file, key=key, measured=batches, unit="batch")
        return
    text = "the epoch counts as completed although its last batch was not reached: the rest of it will be skipped"
    made.fault("step.epoch-completed", text, file=file, key=key)


def find_schedule(made: Checkpoint, flat: dict[str, Any], file: str, *, by_hand: bool) -> None:
    """A schedule steps by batch, by epoch or every n of either; the loop counts the steps of all schedules together.

    Stepped by hand, or replaced while training (stochastic weight averaging), it has no number to be held against.
    """
    counted = flat.get(f"{_FIT}epoch_loop.scheduler_progress.total.completed")
    have = {n: v for n, v in flat.items() if n.startswith("lr_schedulers.") and n.count(".") == 2}
    told = {n: v for n, v in have.items() if n.endswith(".last_epoch") and type(v) is int}
    replaced = any(n.startswith("callbacks.StochasticWeightAveraging") for n in flat)
    if by_hand or replaced:
        made.facts["schedule_lag"] = _ANY
    elif counted and told:
        made.facts["schedule_lag"] = _ANY
        if sum(told.values()) != counted:
            name, value = next(iter(told.items()))
            text = f"{name} is {value}; the loops counted {counted} steps of {len(told)} schedules"
            made.fault("step.schedule-mismatch", text, file=file, key=name, measured=sum(told.values()), limit=counted)
