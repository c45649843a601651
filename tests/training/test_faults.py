"""The table of faults and the code that plants them agree, and say no in one line where a fault cannot occur."""

from __future__ import annotations

import pytest
import torch

from ddaudit.errors import UsageProblem
from ddaudit.training import (
    planting,
    planting_data,
    planting_load,
    planting_resume,
    planting_state,
    planting_sync,
    planting_time,
    planting_workers,
)
from ddaudit.training.faults import FAULTS, KINDS, applicable, params_for, require
from ddaudit.training.loop import Trainer
from ddaudit.training.parallel.contract import Place
from ddaudit.training.params import VARIANTS, TrainParams, geometry


def test_every_fault_has_code_and_every_code_a_fault() -> None:
    modules = (
        planting_data,
        planting_load,
        planting_resume,
        planting_state,
        planting_sync,
        planting_time,
        planting_workers,
    )
    assert all(module.planter is planting.planter for module in modules)
    assert set(planting.PLANTS) == set(FAULTS)


def test_every_fault_can_occur_somewhere_and_says_why_not_elsewhere() -> None:
    for name, fault in FAULTS.items():
        cells = {(kind, form): applicable(name, kind, form) for kind in KINDS for form in VARIANTS[kind]}
        assert None in cells.values(), name
        refused = {kind: why for (kind, _), why in cells.items() if why is not None}
        assert all(why.startswith(f"n/a for {kind}") and len(why) > 25 for kind, why in refused.items()), name
        assert set(fault.kinds) <= set(KINDS)


def test_a_fault_that_cannot_occur_is_refused_with_its_reason() -> None:
    with pytest.raises(UsageProblem, match="'grad-sum' is n/a for tensor: no gradient is averaged over replicas"):
        require("grad-sum", "tensor", "")


def test_every_cell_that_is_not_refused_can_be_planted() -> None:
    planted, refused = [], []
    for name in FAULTS:
        for kind in KINDS:
            for form in VARIANTS[kind]:
                if applicable(name, kind, form) is None:
                    params = TrainParams(parallel=kind, variant=form, plant=name, **params_for(name, kind))
                    layout = geometry(params, 1)
                    place = Place(0, 1, torch.device("cpu"), layout, {"dp": 0}, None)
                    try:
                        planting.plant(Trainer(params, place, None))
                        planted.append((name, kind, form))
                    except UsageProblem as problem:
                        refused.append((name, kind, form, str(problem)))
    assert refused == []
    assert {name for name, _, _ in planted} == set(FAULTS)


def test_an_unknown_fault_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageProblem, match="did you mean 'grad-sum'"):
        applicable("gradsum", "data")
