"""What a script watched with a period of its own leaves: little of most updates, and no fault less."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
from torch import nn

from ddaudit.evidence import TrainingTrace
from ddaudit.evidence.events import read_streams
from ddaudit.watch.loaders import DIRECT
from ddaudit.watch.models import Models
from ddaudit.watch.patching import Guard
from ddaudit.watch.recorder import READ_BATCHES
from tests.conftest import ROOT

UPDATES, EVERY = 140, 50
SCRIPT = f"""
import ddaudit.watch.auto, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(320, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
done = passes = 0
while done < {UPDATES}:
    for a, b in loader:
        loss = (net(a) - b).pow(2).mean()
        loss.backward()
        passes += 1
        if done < 100 or passes % 2 == 0:  # two passes an update in the end
            opt.step(); opt.zero_grad(); done += 1
        if done == {UPDATES}: break
"""


@pytest.fixture(scope="module")
def seldom(tmp_path_factory: pytest.TempPathFactory) -> TrainingTrace:
    folder = tmp_path_factory.mktemp("seldom")
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "DDAUDIT_WATCH_EVERY": str(EVERY)}
    subprocess.run([sys.executable, "-c", SCRIPT], cwd=folder, env=env, check=True, timeout=300)
    (events,) = folder.glob("ddaudit-runs/*/events/script")
    trace = TrainingTrace.assemble(read_streams(events))
    assert trace is not None
    return trace


def test_every_update_is_there_with_what_costs_nothing(seldom: TrainingTrace):
    assert list(seldom.steps) == list(range(UPDATES))
    for name in ("loss_raw", "lr", "samples", "zero_grads", "rss_bytes", "step_s"):
        table = seldom.series(name)
        assert table is not None and not np.isnan(table).any(), name


def test_every_sample_is_known_by_its_index(seldom: TrainingTrace):
    index = seldom.array("sample_index")
    assert index is not None and (index[0, :100, :8] >= 0).all()
    first_epoch = index[0, :40, :8].ravel()
    assert sorted(first_epoch.tolist()) == list(range(320))


def test_contents_are_read_in_recorded_updates_and_at_first(seldom: TrainingTrace):
    prints = seldom.array("sample_ids")
    assert prints is not None
    read = (prints[0, :, 0] >= 0).tolist()
    assert all(read[:READ_BATCHES]) and not any(read[max(READ_BATCHES, DIRECT) + 2 : 100]) and read[100]


def test_a_change_of_accumulation_is_counted_and_its_losses_are_followed(seldom: TrainingTrace):
    passes, terms = seldom.series("passes"), seldom.array("loss_terms")
    assert passes is not None and terms is not None
    assert (passes[0, :100] == 1).all() and (passes[0, 101:] == 2).all()
    weighed = ~np.isnan(terms[0, :, 0, 1])
    assert not weighed[10:50].any() and weighed[50] and weighed[102:].all()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


@pytest.mark.parametrize("model", ["built", "copied", "older"])
def test_the_outermost_model_of_an_optimizer_is_found_however_it_came_to_be(model: str):
    models, older = Models(Guard()), build()
    notes = [
        register(models._grown)
        for register in (
            nn.modules.module.register_module_parameter_registration_hook,
            nn.modules.module.register_module_module_registration_hook,
        )
    ]
    try:
        found = {"built": build, "copied": lambda: copy.deepcopy(build()), "older": lambda: older}[model]()
        models.adopt(list(found.parameters()))
    finally:
        for note in notes:
            note.remove()
    assert [id(root) for root in models.roots.values()] == [id(found)]
