"""Faults of the sample checkpoint that prove the checkpoint checks can fail; the twin has none."""

from __future__ import annotations

from ddaudit.api import Plant


def _sample(name: str, fault: str, *expect: str) -> Plant:
    return Plant(
        name=name,
        expect=tuple(f"checkpoint.{e}" for e in expect),
        probe="checkpoint",
        params={"sample": "none"},
        planted={"sample": fault},
    )


incomplete_set = _sample("one rank's file is missing", "lost-rank", "complete.rank-file-missing")
cut_file = _sample("the file is cut by 500 bytes", "cut", "file.truncated")
zero_tail = _sample("the file's last pages were never written", "zero-tail", "file.zero-tail")
damaged_byte = _sample("one bit of a weight is flipped", "bit-flip", "integrity.crc")
not_a_number = _sample("one weight is NaN", "nan", "values.not-finite-model")
mixed_prefix = _sample("some weights carry module., others do not", "mixed-prefix", "weights.mixed-prefix")
dangling_pointer = _sample("latest names a step that is not there", "dangling", "pointer.dangling")
payload = _sample("the pickle calls os.system", "payload", "security.code")
lost_optimizer = _sample("the optimizer was not saved", "no-optimizer", "optimizer.absent")
no_squares = _sample("Adam without its second moments", "no-squares", "optimizer.state-missing")
old_optimizer = _sample("one parameter's optimizer step is old", "old-optimizer", "step.optimizer-mismatch")
lost_sampler = _sample("the sampler was not saved", "no-sampler", "sampler.missing")
lost_schedule = _sample("the schedule was not saved", "no-schedule", "schedule.missing")
lost_scaler = _sample("an fp16 run without its loss scale", "no-scaler", "scaler.missing")
lost_rank_rng = _sample("the random state of rank 1 is missing", "no-rng-key", "rng.incomplete")
other_values = Plant(
    name="a copy with one value changed",
    expect="checkpoint.differs",
    probe="checkpoint-diff",
    params={"sample": "none"},
    planted={"sample": "old-optimizer"},
)
