"""What a pack may do to a run: its faults cost its own steps, and are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddaudit.cli.main import main
from ddaudit.engine.judge import judge
from ddaudit.evidence import Measure, Measures
from ddaudit.findings import Status
from ddaudit.registry import check
from ddaudit.runbook.model import PlannedStep

PROBES = '''
from __future__ import annotations
from ddaudit.api import Measures, ProbeContext, probe

@probe("site", produces=[Measures])
def site(context: ProbeContext, params) -> None:
    """Records one number."""
    context.measure("x", 1)
'''

CHECKS = """
from __future__ import annotations
import sys
from ddaudit.api import Measures, check, ok

@check("site.good", asks="?")
def good(measures: Measures):
    yield ok("fine")

@check("site.raises", asks="?")
def raises(measures: Measures):
    yield ok("so far")
    raise LookupError("gone")

@check("site.exits", asks="?")
def exits(measures: Measures):
    sys.exit(0)
    yield ok("never")

@check("site.nothing", asks="?")
def nothing(measures: Measures):
    return None
"""

PAGE = """# T

```toml runbook
id = "t"
params.pack = {{ type = "str", default = "" }}
```

```toml step one
probe = "site"
checks = [{checks}]
```

```toml step between
probe = "command"
with.argv = ["rm", "-rf", "$pack"]
```

```toml step two
probe = "site"
checks = ["site.good"]
```
"""


def ran(folder: Path, checks: str, *options: str, extra: str = "") -> tuple[int, dict[str, Any]]:
    for path, text in (("probes/site.py", PROBES), ("checks/site.py", CHECKS), ("checks/more.py", extra)):
        (folder / "pack" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pack" / path).write_text(text)
    (folder / "t.md").write_text(PAGE.format(checks=checks))
    argv = [
        "run",
        str(folder / "t.md"),
        "--pack",
        str(folder / "pack"),
        "--out",
        str(folder / "runs"),
        "--device",
        "cpu",
    ]
    code = main([*argv, "--no-progress", "-q", *options])
    (record,) = folder.glob("runs/*/record.json")
    return code, json.loads(record.read_text())


def test_checks_that_misbehave_are_errors_and_the_rest_stands(tmp_path: Path) -> None:
    code, record = ran(tmp_path, '"site.*"', "-P", f"pack={tmp_path}/nothing")
    assert (code, [s["state"] for s in record["steps"]]) == (3, ["done"] * 3)
    said = {(f["check"], f["status"]): f["text"] for f in record["findings"] if f["step"] == "one"}
    assert said.keys() == {
        *(("site.good", "PASS"), ("site.raises", "PASS"), ("site.raises", "ERROR")),
        *(("site.exits", "ERROR"), ("site.nothing", "ERROR")),
    }
    assert "raised SystemExit" in said["site.exits", "ERROR"] and "LookupError" in said["site.raises", "ERROR"]
    assert [f["status"] for f in record["findings"] if f["step"] == "two"] == ["PASS"]


def test_a_file_that_exits_on_import_is_an_error_finding_of_the_run(tmp_path: Path) -> None:
    code, record = ran(tmp_path, '"site.good"', "-P", f"pack={tmp_path}/nothing", extra="import sys\nsys.exit(0)\n")
    (broken,) = [f for f in record["findings"] if f["check"] == "pack"]
    assert (code, broken["status"]) == (3, "ERROR") and "SystemExit" in broken["text"] and "more.py" in broken["text"]


def test_a_pack_that_vanishes_while_it_runs_fails_its_steps_alone(tmp_path: Path) -> None:
    code, record = ran(tmp_path, '"site.good"', "-P", f"pack={tmp_path}/pack")
    assert (code, [s["state"] for s in record["steps"]]) == (3, ["done", "done", "failed"])
    told = next(f for f in record["findings"] if f["step"] == "two")
    assert told["status"] == "ERROR" and "no such folder" in told["text"]
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["run", "--resume", str(run)]) == 2, "its pack cannot be loaded again"
    assert main(["report", str(run)]) == 3


def test_a_check_that_catches_everything_still_ends() -> None:
    def stubborn(values: Measures) -> Any:
        while True:
            try:
                sum(range(10_000))
            except Exception:
                continue
        yield None

    step = PlannedStep(id="s", title="S", source="book.md:3", runbook="book")
    evidence = {"measures": Measures(values=(Measure(name="x", value=1.0),))}
    (finding,) = judge(check("t.x", asks="?")(stubborn).spec, evidence, step=step, timeout_s=0.2)
    assert finding.status is Status.ERROR and "did not end" in finding.text


@pytest.mark.parametrize("where", ["--pack", "DDAUDIT_PACKS"])
def test_a_pack_folder_that_is_not_there_is_a_usage_error(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = str(tmp_path / "gone")
    if where == "DDAUDIT_PACKS":
        monkeypatch.setenv(where, gone)
    assert main(["list", "checks", *(["--pack", gone] if where == "--pack" else [])]) == 2
    assert f"{gone}: no such folder" in capsys.readouterr().err


def test_an_installed_pack_that_does_not_load_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import EntryPoint

    from ddaudit import packs

    broken = EntryPoint("site", "no_such_module:folder", "ddaudit.packs")
    monkeypatch.setattr(packs, "entry_points", lambda group: [broken])
    assert main(["list", "checks"]) == 2
    assert "the installed pack 'site' does not load: ModuleNotFoundError" in capsys.readouterr().err
    assert main(["list", "checks", "--packs", "builtin"]) == 0
