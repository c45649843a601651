"""What was seen of a watched script beside its updates: loaders, wrappers, optimizers, claims, checkpoints, its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from ddaudit.evidence.base import JsonEvidence
from ddaudit.evidence.events import Stream

__all__ = ["OtherRun", "ResumeFacts", "WatchedRank", "WatchedScript"]


class ResumeFacts(BaseModel):
    """What an earlier watched run and this one tell together about a checkpoint that one saved and the other loaded.

    ``None`` means "not known". ``samples`` are those of the interrupted epoch only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    earlier: str
    path: str
    saved_update: int
    stored_step: int | None = None
    """The step number that the checkpoint itself holds."""
    areas: tuple[str, ...] = ()
    earlier_areas: tuple[str, ...] = ()
    """Areas of training state that the earlier run had at all."""
    samples_before: int | None = None
    samples_repeated: int | None = None
    samples_after: int | None = None
    order_changed: bool | None = None
    ranks_repeating: tuple[int, ...] = ()
    mid_epoch: bool | None = None
    epoch_again: bool = False
    """Whether the resumed run began the last epoch that was trained to its end, in that epoch's own order."""
    ranks_loading_others: tuple[int, ...] = ()
    """Ranks that saved a file of their own and loaded only files that other ranks saved."""
    equal_positions: bool | None = None
    """Whether all ranks went on with the same samples, where before they read different ones."""
    position_stored: bool = False
    """Whether the checkpoint holds a position in the data: a sampler's or loader's state, or a count of batches."""
    lr_first: float | None = None
    """Learning rate of the very first update of the earlier run."""
    lr_start: tuple[float, ...] = ()
    """Learning rates of the earlier run's first four updates: what a schedule that starts anew goes through again."""
    lr_before: float | None = None
    lr_saved: float | None = None
    """Learning rate that the optimizer held when the checkpoint was saved: a scheduler may have ticked since the last
    update."""
    lr_expected: float | None = None
    lr_after: float | None = None
    lr_soon: tuple[float, ...] = ()
    """Learning rates of the first four updates after resume: a schedule that starts anew shows after its first tick."""
    lr_pace: float | None = None
    """Learning rate of the last update before the checkpoint over that of the one before it."""
    optimizer_steps_before: int | None = None
    optimizer_steps_after: int | None = None
    params_equal: bool | None = None
    """Whether the first update after resume began with the parameters that were saved."""
    rng_equal: bool | None = None
    optimizer_equal: bool | None = None
    """Whether the optimizer began with the state that it had when the checkpoint was saved."""
    rng_of_rank: tuple[int | None, ...] = ()
    """For each rank: whose random state (as it was after the last update before the checkpoint) it put back; None where
    it put none back or one that no rank had then."""
    overlap_updates: int = 0
    """Updates that both runs made after the checkpoint, so that they can be compared one by one."""
    first_difference: int | None = None
    """First of those updates in which the two runs differ."""
    tested: bool = False
    """Whether the runs were made to be compared: then any difference counts."""
    first_differs_in: str | None = None
    """In what: "samples", "learning rate", "loss" or "parameters", cause before effect."""


class OtherRun(BaseModel):
    """A second watched run of the script to compare with: of another branch, or on one device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    ranks: int
    samples: float | None = None
    """Samples per update over all ranks; None where ranks are not known to read different data."""
    optimizer: str | None = None
    peak_lr: float | None = None
    warmup_updates: int | None = None
    """Updates before the learning rate first reaches its peak."""
    losses: tuple[float, ...] = ()
    """Loss of each update as the script computes it, mean over ranks; NaN where it was none."""


class WatchedRank(BaseModel):
    """The summary that one rank wrote last. See :mod:`ddaudit.watch.report` for the mappings' keys."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int
    world_size: int
    frameworks: tuple[str, ...] = ()
    loaders: tuple[Mapping[str, Any], ...] = ()
    wrapped: tuple[Mapping[str, Any], ...] = ()
    optimizers: tuple[Mapping[str, Any], ...] = ()
    primary: int | None = None
    parameters: tuple[str, ...] = ()
    replicated: tuple[bool, ...] = ()
    """For each of ``parameters``: whether this rank holds a whole copy, not a shard."""
    unreduced: tuple[str, ...] = ()
    start_digests: tuple[int, ...] = ()
    claims: tuple[Mapping[str, Any], ...] = ()
    counters: Mapping[str, Sequence[Sequence[int]]] = {}
    checkpoints: tuple[Mapping[str, Any], ...] = ()
    evaluated: Mapping[str, Mapping[str, Sequence[int]]] = {}
    graphs_alive: int = 0
    collectives: Mapping[str, Sequence[float]] = {}
    reductions: tuple[Mapping[str, float], ...] = ()
    """Per DDP wrapper: ``comm_s`` of a backward pass from the first bucket to the last, and its ``exposed_s``."""
    hooks: Mapping[str, float] = {}
    """``calls`` of hooks and the ``cpu_s`` they took."""
    broken_hooks: Mapping[str, str] = {}
    threads: int = 0
    notes: Mapping[str, Any] = {}


class WatchedScript(JsonEvidence):
    """The script as a whole. ``expected`` are claims given on ddaudit's own command line."""

    kind: ClassVar[str] = "script"

    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: str | None = None
    hang_s: float | None = None
    """Seconds without progress after which the script was ended; None where it ended by itself."""
    stacks: Mapping[str, tuple[str, ...]] = {}
    guards: Mapping[str, str] = {}
    """Rank -> the place where it waited, for places that only some ranks reach by a condition on the rank."""
    cores: int | None = None
    expected: Mapping[str, int] = {}
    ranks: tuple[WatchedRank, ...] = ()
    workers: tuple[Mapping[str, Any], ...] = ()
    resume: ResumeFacts | None = None
    baseline: OtherRun | None = None
    """The run given as ``--baseline``."""
    single: OtherRun | None = None
    """The same command on one rank (``--compare-single``)."""

    @classmethod
    def assemble(cls, streams: Sequence[Stream]) -> Self | None:
        ranks: dict[int, tuple[int, dict[str, Any]]] = {}
        for stream in streams:
            for event in stream.of("watched"):
                updates = max((o["updates"] for o in event.get("optimizers", ())), default=0)
                held = ranks.get(event["rank"])
                if held is None or updates >= held[0]:
                    ranks[event["rank"]] = (updates, {k: v for k, v in event.items() if k not in ("event", "t")})
        told = [e["script"] for s in streams for e in s.of("script")]
        script: dict[str, Any] = told[-1] if told else {}
        if not ranks and not script:
            return None
        workers = [e for s in streams for e in s.of("worker")]
        return cls(
            **script,
            ranks=tuple(WatchedRank.model_validate(ranks[r][1]) for r in sorted(ranks)),
            workers=tuple({k: v for k, v in w.items() if k not in ("event", "t")} for w in workers[:512]),
        )
