"""The pytest fixture for teams who test with pytest: a right script passes, a wrong one fails with its finding."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

TRAIN = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(8):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
TEST = """
import sys

def test_right(ddaudit_watch):
    record = ddaudit_watch([sys.executable, "train.py"], global_batch=8)
    assert any(f.check == "script.batch" for f in record.findings)

def test_wrong(ddaudit_watch):
    ddaudit_watch([sys.executable, "train.py"], global_batch=64)
"""


def test_a_right_script_passes_and_a_wrong_claim_fails_with_its_finding(pytester: pytest.Pytester):
    pytester.makepyfile(train=TRAIN, test_training=TEST)
    registered = any(e.value == "ddaudit.cli.pytest_plugin" for e in entry_points(group="pytest11"))
    done = pytester.runpytest_subprocess(*(() if registered else ("-p", "ddaudit.cli.pytest_plugin")))
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*batch.effective-mismatch*"])
