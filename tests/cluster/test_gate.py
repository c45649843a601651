"""The gate before work begins: codes that its callers understand, hosts to exclude, and a budget that is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddaudit.cli.exits import Warned, coded, mapped
from ddaudit.launch.place import compress_hosts, expand_hosts
from tests.conftest import ddaudit

BAD = """# Bad

```toml runbook
id = "bad"
```

```toml step a
probe = "command"
with.argv = ["/bin/sh", "-c", "echo v 9"]
with.capture.regex = { v = 'v (?P<value>\\d+)' }
checks = ["measures.within-limits"]
limits.v = { fail_above = 5 }
```

```toml step b
probe = "command"
required = true
with.argv = ["/bin/sh", "-c", "echo v 1"]
with.capture.regex = { v = 'v (?P<value>\\d+)' }
checks = ["measures.within-limits"]
limits.v = { fail_above = 5 }
```
"""


@pytest.mark.parametrize(
    ("caller", "codes"),
    [
        ("slurm", [0, 0, 1, 0, 0, 0]),
        ("nagios", [0, 1, 2, 3, 3, 3]),
        ("bisect", [0, 0, 1, 125, 125, 125]),
    ],
)
def test_each_caller_gets_its_own_codes(caller: str, codes: list[int]):
    outcomes = [0, Warned(0), 1, 2, 3, 4]
    assert [mapped(["run", "--exit-map", caller], code) for code in outcomes] == codes
    assert [mapped(["run", f"--exit-map={caller}"], code) for code in outcomes] == codes


def test_without_a_caller_codes_are_our_own_and_the_watched_commands_words_are_its_own():
    assert [mapped(["run"], code) for code in (0, 1, 2, 3, 4, 130)] == [0, 1, 2, 3, 4, 130]
    assert mapped(["watch", "--", "x", "--exit-map", "nagios"], 1) == 1
    assert mapped(["run", "--exit-map", "bisect"], 130) == 130


def test_a_warning_is_told_apart_from_a_pass():
    assert isinstance(coded("WARN", 0), Warned) and not isinstance(coded("PASS", 0), Warned)


@pytest.mark.parametrize("text", ["n1", "n[1-3,7]", "a,b", "gpu[008-010],login", "r1n[1-2]"])
def test_hosts_are_written_as_slurm_writes_them(text: str):
    assert expand_hosts(compress_hosts(expand_hosts(text))) == expand_hosts(text)
    assert len(compress_hosts(expand_hosts(text))) <= len(text)


def test_a_bad_node_is_excluded_by_name_and_drained_by_its_code(tmp_path: Path):
    (tmp_path / "bad.md").write_text(BAD)
    argv = ["gate", str(tmp_path / "bad.md"), "--exclude", "--exit-map", "slurm", "--out", str(tmp_path / "o")]
    done = ddaudit(*argv, SLURMD_NODENAME="n7")
    assert (done.returncode, done.stdout) == (1, "--exclude=n7\n"), done.stderr


def test_what_the_budget_left_out_is_not_a_pass(tmp_path: Path):
    (tmp_path / "bad.md").write_text(BAD.replace("v 9", "v 1"))
    argv = ["gate", str(tmp_path / "bad.md"), "--budget", "1ms", "--json", "--out", str(tmp_path / "o")]
    done = ddaudit(*argv)
    answer = json.loads(done.stdout)
    assert done.returncode == 3 and answer["verdict"] == "INCONCLUSIVE"
    assert any("budget" in f["text"] for f in answer["findings"])
