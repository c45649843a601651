"""The ``train`` probe: trains the reference model under one kind of parallelism and records a training trace."""

from __future__ import annotations

from ddaudit.context import ProbeContext
from ddaudit.evidence import TrainingTrace
from ddaudit.registry import probe
from ddaudit.training.params import TrainParams

__all__ = ["train"]


@probe("train", produces=(TrainingTrace,), params=TrainParams, where="ranks")
def train(context: ProbeContext, params: TrainParams) -> None:
    """Trains a small transformer on data of known entropy and records every update of every rank.

    Expects the ranks' process group to be up; a single rank may come without one. Records facts only: times, losses,
    batches, synchronisations, digests, and, with ``capture``, whole gradients of the first updates.

    Raises:
        UsageProblem: the parameters do not fit each other or the number of ranks.
    """
    from ddaudit.training.process import process_group

    with process_group(context, needed=params.parallel != "single"):
        from ddaudit.training.loop import train as run

        run(params, context)
