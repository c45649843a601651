"""Shared by all tests: skips are failures in CI, and one healthy run serves every test that only reads one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Nobody looks at the pages of runs that tests start; tests/report renders those whose pictures are tested.
os.environ.setdefault("DDAUDIT_PICTURES", "0")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Where every tool was installed on purpose, a skip hides a missing install step."""
    report = yield
    if report.skipped and os.environ.get("DDAUDIT_NO_SKIP") and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"skipped where skips are failures: {report.longrepr}"
    return report


Run = Callable[..., subprocess.CompletedProcess[str]]


def ddaudit(*argv: str, cwd: Path | None = None, timeout: float = 180, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line of this tree in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    code = "import sys; from ddaudit.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *argv], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )


SMALL = """# Small

```toml runbook
id = "small"
params.plant = { type = "str", default = "" }
```

## One device

```toml step single
probe = "train"
with = { parallel = "single", steps = 10, dtype = "fp64", optimizer = "sgd", capture = true, plant = "$plant" }
checks = ["loss.finite", "loss.start", "batch.effective", "bottleneck.split"]
timeout = "60s"
```

## Two replicas

```toml step data
probe = "train"
with = { parallel = "data", steps = 10, dtype = "fp64", optimizer = "sgd", capture = true }
checks = ["parallel.equals-single", "sync.frequency"]
needs = ["single"]
nproc = 2
timeout = "60s"
```
"""


@pytest.fixture(scope="session")
def small_runbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A runbook of two short steps, for tests of everything around it."""
    path = tmp_path_factory.mktemp("book") / "small.md"
    path.write_text(SMALL)
    return path


@pytest.fixture(scope="session")
def healthy_run(tmp_path_factory: pytest.TempPathFactory, small_runbook: Path) -> Path:
    """The folder of one finished run of the small runbook. Tests that change it copy it first."""
    out = tmp_path_factory.mktemp("runs")
    done = ddaudit("run", str(small_runbook), "--out", str(out), "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    return next(out.iterdir())
