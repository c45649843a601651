"""Planted faults of the loader: storage, decoding, bursts, restarts and threads of its workers, and uneven samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ddaudit.training.data import IGNORED, Feed, MicroBatch, Window
from ddaudit.training.loop import Trainer
from ddaudit.training.model import MixtureOfExperts, Transformer
from ddaudit.training.planting import around, needs, planter, refeed, reread
from ddaudit.training.planting_time import length_s, work


def _needs_workers(trainer: Trainer, least: int) -> None:
    needs(trainer, trainer.params.num_workers >= least, f"{least} or more loader workers (num_workers)")


def _before_each_sample(trainer: Trainer, act: Callable[[], object]) -> None:
    def slow(draw: Callable[..., list[int]], *args: Any) -> list[int]:
        act()
        return draw(*args)

    around(trainer.source, "draw", slow)


@planter("slow-storage")
def slow_storage(trainer: Trainer) -> None:
    _needs_workers(trainer, 1)
    seconds = length_s(trainer, 5.0)
    _before_each_sample(trainer, lambda: time.sleep(seconds))


@planter("slow-decode")
def slow_decode(trainer: Trainer) -> None:
    _needs_workers(trainer, 1)
    seconds = length_s(trainer, 5.0)
    _before_each_sample(trainer, lambda: work(seconds))


@planter("bursty-workers")
def bursty_workers(trainer: Trainer) -> None:
    _needs_workers(trainer, 2)
    seconds = length_s(trainer, 100.0) / trainer.place.layout.micro_batch

    def burst() -> None:
        worker = get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(seconds)

    _before_each_sample(trainer, burst)


RESPAWN_UPDATES = 100.0
"""Workers live for so many updates divided by ``plant_ms``: 25 means 4 updates."""


@planter("worker-respawn")
def worker_respawn(trainer: Trainer) -> None:
    _needs_workers(trainer, 1)
    every = max(1, round(RESPAWN_UPDATES / (length_s(trainer, 25.0) * 1e3)))

    def forgetful(feed: Feed) -> None:
        def advance(original: Callable[[], None]) -> None:
            original()
            if trainer.updates_done % every == 0:
                feed._iterator = None

        around(feed, "advance", advance)

    refeed(trainer, forgetful)


STORM_THREADS = 16


@planter("worker-storm")
def worker_storm(trainer: Trainer) -> None:
    _needs_workers(trainer, 1)
    seconds = length_s(trainer, 50.0) / trainer.place.layout.micro_batch
    matrices: list[Tensor] = []

    def storm() -> None:
        if not matrices:
            torch.set_num_threads(STORM_THREADS)
            matrices.append(torch.ones(256, 256))
        until = time.process_time() + seconds
        while time.process_time() < until:
            matrices[0] @ matrices[0]

    _before_each_sample(trainer, storm)


@planter("sequence-imbalance")
def sequence_imbalance(trainer: Trainer) -> None:
    needs(trainer, trainer.params.ragged, "samples of uneven length (ragged = true)")
    seconds, full = length_s(trainer, 50.0), trainer.shape.seq_len
    last = trainer.place.coords["dp"] == trainer.place.layout.dp - 1

    def cut(micro: MicroBatch) -> MicroBatch:
        targets = micro.targets.clone()
        targets[:, full if last else full // 4 :] = IGNORED
        return replace(micro, targets=targets, tokens=int((targets != IGNORED).sum()))

    def costly(accumulate: Callable[[Window], Tensor], window: Window) -> Tensor:
        # Unlike the tiny model, where padding costs as much as text: time grows with what lies beyond a quarter.
        ends = [(m.targets != IGNORED).sum(dim=1) for m in window.micro_batches]
        beyond = (torch.cat(ends) - full // 4).clamp(min=0).sum().item()
        expected = sum(len(m.targets) for m in window.micro_batches) * full * 3 / 8
        with trainer.watch.span("forward_s"):
            work(seconds * beyond / expected)
        return accumulate(window)

    reread(trainer, lambda window: replace(window, micro_batches=tuple(cut(m) for m in window.micro_batches)))
    around(trainer.parallel, "accumulate", costly)


@planter("expert-imbalance")
def expert_imbalance(trainer: Trainer) -> None:
    seconds = length_s(trainer, 50.0)

    def collapsed(scores: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
        found = scores(tokens)
        favoured = torch.arange(found.shape[-1]) >= found.shape[-1] - 2
        return found + torch.where(favoured, 100.0, 0.0)

    def busy(apply: Callable[..., Tensor], rows: Tensor, counts: list[int]) -> Tensor:
        work(share * rows.shape[0])
        return apply(rows, counts)

    def skewed(build: Callable[[Transformer], None], model: Transformer) -> None:
        build(model)
        for layer in [m for m in model.modules() if isinstance(m, MixtureOfExperts)]:
            around(layer.gate, "forward", collapsed)
            around(layer.apply_experts, "apply", busy)

    rows = trainer.params.global_batch * trainer.shape.seq_len * trainer.shape.top_k * trainer.shape.layers
    share = seconds / rows
    around(trainer.parallel, "build", skewed)


@planter("cold-cache")
def cold_cache(trainer: Trainer) -> None:
    seconds, seen = length_s(trainer, 4.0), set[bytes]()

    def draw(original: Callable[..., list[int]], *args: Any) -> list[int]:
        symbols = original(*args)
        if (key := bytes(symbols)) not in seen:
            seen.add(key)
            time.sleep(seconds)
        return symbols

    around(trainer.source, "draw", draw)
