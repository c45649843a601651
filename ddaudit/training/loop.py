"""The training loop: one :class:`Trainer` per rank, the same for every kind of parallelism."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddaudit.context import ProbeContext
from ddaudit.device import Stopwatch, device_of
from ddaudit.network import interface_bytes
from ddaudit.training import checkpointing, schedule
from ddaudit.training.account import StepAccount
from ddaudit.training.data import Feed, MarkovSource, TextDataset, Window
from ddaudit.training.digest import digest
from ddaudit.training.model import Transformer, shape_of
from ddaudit.training.optimizer import local, scale_
from ddaudit.training.parallel import kind_of
from ddaudit.training.parallel.contract import Place
from ddaudit.training.params import TrainParams, geometry
from ddaudit.training.record import Recorder, describe_job
from ddaudit.training.vitals import Vitals
from ddaudit.training.windows import run_windows

__all__ = ["CAPTURED_UPDATES", "Trainer", "place_of", "train"]

CAPTURED_UPDATES = 3
"""Gradients of updates 0 to 2 are captured: a fault in clearing or skipping shows from the second update on."""


def place_of(params: TrainParams, context: ProbeContext) -> Place:
    """This rank's place on the mesh of its kind; a collective when there is more than one rank.

    Raises:
        UsageProblem: the ranks or the batch do not fit.
    """
    layout = geometry(params, context.world_size)
    device = device_of(context.device, context.local_rank)
    if not dist.is_initialized():
        return Place(0, 1, device, layout, {"dp": 0}, None)
    mesh = init_device_mesh(device.type, tuple(layout.axes.values()), mesh_dim_names=tuple(layout.axes))
    coords = dict(zip(layout.axes, mesh.get_coordinate() or [], strict=True))
    if "dp" not in coords:
        spread = {"expert": coords.get("ep", 0), "hsdp": context.rank}
        coords["dp"] = spread.get(params.parallel, 0)
    return Place(context.rank, context.world_size, device, layout, coords, mesh)


COPIED_PARAMETERS = 50_000_000
"""The norm of an update is measured on models up to this size: it takes a second copy of the weights, which on a
larger one would show in the memory that we report."""


class Trainer:
    """One rank's training. :meth:`prepare`, then :meth:`update` once per optimizer step; :func:`train` does both."""

    optimizer: Optimizer
    scheduler: LRScheduler
    feed: Feed

    def __init__(self, params: TrainParams, place: Place, recorder: Recorder) -> None:
        self.params, self.place, self.recorder = params, place, recorder
        self.watch = Stopwatch(place.device)
        self.parallel = kind_of(params.parallel, params.form)(params, place, self.watch)
        self.shape = shape_of(params)
        self.source = MarkovSource(self.shape.vocab, params.seed)
        self.account = StepAccount(place.device)
        self.vitals = Vitals()
        self.window_code = 0
        self.updates_done = 0
        self.cleared = 0

    def prepare(self) -> None:
        """Builds model, optimizer, schedule and data, and describes the job."""
        model = Transformer.seeded(self.params, self.place.device)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.parallel.build(model)
        self.optimizer = self.make_optimizer()
        self.scheduler = self.make_scheduler()
        self.feed = self.make_feed()
        self.seed_rank()
        self.job = describe_job(self.params, self.place, self.parallel, self.shape, self.parameters, self.source)

    def make_optimizer(self) -> Optimizer:
        return self.parallel.optimizer()

    def make_scheduler(self) -> LRScheduler:
        return schedule.scheduler(self.optimizer, self.params, self.params.warmup_steps)

    def make_feed(self) -> Feed:
        """This replica's data; ranks of one replica read the same."""
        p = self.params
        dataset = TextDataset(self.source, p.seed, p.dataset_samples, self.shape.seq_len, p.ragged)
        return Feed(p, self.place.layout, self.place.coords["dp"], dataset)

    def seed_rank(self) -> None:
        """Seeds dropout: replicas draw differently, ranks that share a replica alike."""
        torch.manual_seed(self.params.seed + 1 + self.place.coords["dp"])

    def window(self) -> Window:
        """The next update's data, on the device."""
        return self.feed.window(self.place.device)

    def update(self) -> dict[str, float]:
        """One optimizer step: read, forward and backward, synchronise, clip, update, tick, clear. Records it."""
        index, watch, parallel = self.updates_done, self.watch, self.parallel
        random = digest(checkpointing.random_state(self.place.device).values())
        self.vitals.begin()
        watch.restart()
        with watch.span("input_s"):
            window = self.window()
        with watch.span("host_s"):
            total = parallel.accumulate(window)
        with watch.span("sync_s"):
            parallel.synchronise()
        with watch.pause(), parallel.ledger.off():
            self.capture("grad", index, parallel.gradients() if index < CAPTURED_UPDATES else {})
            before = self.weights_before()
            lr, ticks = self.optimizer.param_groups[0]["lr"], self.scheduler.last_epoch
        with watch.span("optimizer_s"):
            norms = self.clip()
            self.optimizer.step()
            self.tick(window)
            self.clear_gradients()
        with watch.span("loss_s"):
            loss = float(parallel.global_loss(window, total))
        values = self.account.close(watch, parallel.ledger)
        values |= self.vitals.end(self.feed.workers())
        self.updates_done += 1
        self.feed.advance()
        with parallel.ledger.off():
            values |= self.facts(window, total, before)
        values |= {"loss_nats": loss, "lr": float(lr), **norms}
        if self.params.windows:
            values["window"] = float(self.window_code)
        values |= {"rng_digest": float(random), "scheduler_ticks": float(self.scheduler.last_epoch - ticks)}
        self.recorder.step(index, values, window.sample_ids, self.account.stamps)
        return values

    def weights_before(self) -> dict[str, Tensor]:
        """Copies of the local weights, to measure the update by; empty for a model too large to hold twice."""
        if self.parameters > COPIED_PARAMETERS:
            return {}
        return {name: local(w.detach()).clone() for name, w in self.parallel.named_parameters().items()}

    def clip(self) -> dict[str, float]:
        """Scales gradients down to ``clip_norm`` where their global norm exceeds it; returns the norm before and after.
        The small constant is torch's own (``clip_grad_norm_``)."""
        gradients = self.parallel.gradients()
        norm = float(self.parallel.norm_of(gradients))
        limit = self.params.clip_norm
        if limit is None or not norm > limit:
            return {"grad_norm": norm, "grad_norm_clipped": norm}
        factor = limit / (norm + 1e-6)
        scale_(gradients.values(), torch.tensor(factor))
        return {"grad_norm": norm, "grad_norm_clipped": norm * factor}

    def tick(self, window: Window) -> None:
        """Moves the learning rate on: once per update, however many micro-batches it had."""
        self.scheduler.step()

    def clear_gradients(self) -> None:
        """Drops gradients; counted only when those of the model's own parameters are gone."""
        self.optimizer.zero_grad(set_to_none=True)
        self.cleared += not self.parallel.gradients()

    def facts(self, window: Window, total: Tensor, before: dict[str, Tensor]) -> dict[str, float]:
        """What the update consumed and what it left behind."""
        weights = self.parallel.named_parameters()
        change = {name: local(weights[name].detach()) - old for name, old in before.items()}
        divisors = self.parallel.divisors
        values = {
            "micro_batches": float(len(window.micro_batches)),
            "samples": float(len(window.sample_ids)),
            "tokens": float(window.tokens),
            "epoch": float(window.epoch),
            "zero_grads": float(self.cleared),
            "batch_digest": float(digest(m.inputs for m in window.micro_batches)),
        }
        if change:
            values["update_norm"] = float(self.parallel.norm_of(change))
        if divisors:
            values["loss_divisor"] = sum(divisors) / len(divisors)
        if (square := self.parallel.local_square) is not None:
            values["grad_norm_local"] = float(square) ** 0.5
            self.parallel.local_square = None
        if own := self.parallel.own_tokens(window):
            values["loss_local_nats"] = float(total) / own
        if names := self.parallel.replicated():
            values["param_digest"] = float(digest(local(weights[name]) for name in names))
        divisors.clear()
        self.cleared = 0
        return values

    def capture(self, role: str, index: int, tensors: dict[str, Tensor]) -> None:
        """Records whole tensors when the run asks for it. Gathering is a collective: all ranks pass the same names."""
        if self.params.capture:
            for name, tensor in tensors.items():
                self.recorder.tensor(index, role, name, self.parallel.full(tensor))

    def save_checkpoint(self, folder: Path) -> None:
        """Saves everything a resumed run needs, and records that it did."""
        begin = time.perf_counter()
        checkpointing.save(self.state(), folder, self.planner())
        seconds = time.perf_counter() - begin
        position = self.feed.sampler.position
        self.recorder.checkpoint(folder, self.updates_done, action="save", seconds=seconds, position=position)
        self.recorder.more(self.updates_done - 1, {"checkpoint_s": seconds})
        self.account.reopen()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return checkpointing.training_state(self)

    def planner(self) -> DefaultSavePlanner:
        """Decides which rank writes what."""
        return DefaultSavePlanner()


def train(params: TrainParams, context: ProbeContext) -> None:
    """Trains as ``params`` says and records it; every rank of the step calls it.

    Raises:
        UsageProblem: the parameters do not fit each other or the number of ranks.
    """
    place = place_of(params, context)
    if place.device.type == "cpu" and params.preset == "tiny":
        # Its operations take microseconds: a second thread only spins, and on a busy core costs twenty times the step.
        torch.set_num_threads(1)
    recorder = Recorder(context, place)
    trainer = Trainer(params, place, recorder)
    if params.plant:
        from ddaudit.training.planting import plant

        plant(trainer)
    trainer.prepare()
    resume(trainer, context)
    trainer.vitals.open()
    before = interface_bytes()
    try:
        with trainer.parallel.timing():
            run(trainer, context)
    finally:
        trainer.vitals.close()
        recorder.wires(before)


def run(trainer: Trainer, context: ProbeContext) -> None:
    """Trains to the end, saves where asked, and captures the final parameters."""
    params = trainer.params
    while trainer.updates_done < params.steps:
        trainer.update()
        if trainer.updates_done == params.checkpoint_after:
            trainer.save_checkpoint(context.scratch / f"step-{trainer.updates_done}")
    if params.windows:
        run_windows(trainer)
    trainer.capture("param", params.steps - 1, {n: w.detach() for n, w in trainer.parallel.named_parameters().items()})


def resume(trainer: Trainer, context: ProbeContext) -> None:
    """Loads the checkpoint to resume from, if any (a relative path is taken from the run folder); records the job."""
    source = trainer.params.resume_from
    if source is None:
        trainer.recorder.begin(trainer.job)
        return
    folder = context.run_dir / source
    begin = time.perf_counter()
    checkpointing.load(trainer, folder)
    seconds, done = time.perf_counter() - begin, trainer.updates_done
    trainer.recorder.begin(trainer.job.model_copy(update={"resumed_from_step": done}))
    position = trainer.feed.sampler.position
    trainer.recorder.checkpoint(folder, done, action="load", seconds=seconds, position=position)
