"""Writes what a training rank knows as events, in the form that ``TrainingTrace`` assembles."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from ddaudit.context import ProbeContext
from ddaudit.device import memory_bytes
from ddaudit.evidence import CheckpointWritten, Job, RankPlace
from ddaudit.network import interface_bytes
from ddaudit.training.data import MarkovSource
from ddaudit.training.model import ModelShape
from ddaudit.training.parallel.contract import Parallel, Place
from ddaudit.training.params import TrainParams

__all__ = ["Recorder", "describe_job"]


def describe_job(
    params: TrainParams, place: Place, parallel: Parallel, shape: ModelShape, parameters: int, source: MarkovSource
) -> Job:
    """The facts of a run. ``parameters`` counts the whole model, whatever a rank holds of it."""
    layout = place.layout
    same = ("global_batch", "steps", "dataset_samples", "drop_last", "optimizer", "schedule", "warmup_steps")
    return Job(
        parallel=params.parallel,
        variant=params.form,
        implementation=parallel.implementation,
        world_size=place.world_size,
        dp=layout.dp,
        micro_batch=layout.micro_batch,
        accumulation=layout.accumulation,
        seq_len=shape.seq_len,
        shuffle=True,
        lr=params.base_lr,
        clip_norm=params.clip_norm,
        dtype=params.dtype,
        seed=params.seed,
        vocab=shape.vocab,
        parameters=parameters,
        flops_per_token=shape.flops_per_token(),
        layers=shape.layers,
        hidden=shape.width,
        heads=shape.heads,
        experts=shape.experts,
        entropy_nats=source.entropy_nats,
        loss_start_nats=math.log(shape.vocab),
        grad_syncs_per_step=parallel.syncs_needed if parallel.sync_ranks() > 1 else 0.0,
        planted=params.plant or None,
        **{name: getattr(params, name) for name in same},
    )


class Recorder:
    """Events of one rank."""

    def __init__(self, context: ProbeContext, place: Place) -> None:
        self.context, self.place = context, place
        self._process = psutil.Process()
        self._groups: object = None

    def begin(self, job: Job) -> None:
        """Records the job and this rank's place."""
        place = RankPlace(
            rank=self.place.rank,
            host=self.context.host,
            pid=os.getpid(),
            device=str(self.place.device),
            coords=self.place.coords,
        )
        self.context.events.emit("job", job=job.model_dump(mode="json", exclude_none=True))
        self.context.events.emit("rank", place=place.model_dump(mode="json"))

    def step(
        self, update: int, values: Mapping[str, float], sample_ids: Sequence[int], stamps: Mapping[str, Any]
    ) -> None:
        """Records one update, adding what only the process knows."""
        own: dict[str, float] = {"rss_bytes": float(self._process.memory_info().rss)}
        peak = memory_bytes(self.place.device, reset=True)
        if peak is not None:
            own["device_bytes"] = float(peak)
        told = dict(stamps)
        if "groups" in told and told["groups"] == self._groups:
            del told["groups"]  # the ranks of a large group, once and not in every step
        self._groups = list(told.get("groups", self._groups or ())) or None
        self.context.events.emit("step", step=update, values={**values, **own}, sample_ids=list(sample_ids), **told)

    def more(self, update: int, values: Mapping[str, float]) -> None:
        """Adds series to an update that was recorded already."""
        self.context.events.emit("step", step=update, values=dict(values))

    def tensor(self, update: int, role: str, name: str, values: Tensor) -> None:
        """Records a whole logical tensor; half precision is widened, which is exact."""
        wide = values.detach().cpu()
        wide = wide.float() if wide.dtype == torch.bfloat16 else wide
        self.context.events.tensor(wide.numpy(), step=update, role=role, name=name, replicated=True)

    def wires(self, before: Mapping[str, tuple[int, int]]) -> None:
        """Records what each interface of the host carried since ``before``, once a host."""
        if self.context.local_rank == 0:
            now = interface_bytes()
            gained = {
                name: [max(0, n - o) for n, o in zip(now[name], before[name], strict=True)]
                for name in before
                if name in now
            }
            self.context.events.emit("wires", host=self.context.host, bytes=gained)

    def checkpoint(self, path: Path, update: int, *, action: str, seconds: float, position: int | None) -> None:
        """Records a checkpoint that was saved or loaded."""
        root = self.context.run_dir.resolve()
        resolved = path.resolve()
        shown = resolved.relative_to(root) if resolved.is_relative_to(root) else resolved
        written = CheckpointWritten(
            path=str(shown),
            rank=self.place.rank,
            update=update,
            action=action,
            seconds=seconds,
            sampler_position=position,
        )
        self.context.events.emit("checkpoint", checkpoint=written.model_dump(mode="json"))
