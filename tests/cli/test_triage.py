"""``ddaudit triage`` and ``bundle`` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ddaudit
from tests.triage.test_made_incidents import make


def test_an_incident_is_a_fail_with_who_what_and_proof(tmp_path):
    label = make("gpu.ecc-uncorrectable", 0, tmp_path)
    done = ddaudit("triage", str(tmp_path), "--json")
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 1
    assert told["verdict"] == "FAIL" and told["command"] == "triage"
    assert told["incident"]["cause"] == "gpu.ecc-uncorrectable"
    assert told["incident"]["guilty"]["rank"] == label.rank
    assert {"file", "line", "text"} <= set(told["incident"]["evidence"][0])


def test_no_incident_passes_and_undecided_is_inconclusive(tmp_path):
    make("none", 0, tmp_path / "a")
    make("unknown.collective-timeout", 0, tmp_path / "b")
    assert ddaudit("triage", str(tmp_path / "a")).returncode == 0
    undecided = ddaudit("triage", str(tmp_path / "b"))
    assert undecided.returncode == 3
    assert "Unsure" in undecided.stdout and "logs of" in undecided.stdout


def test_the_terminal_gets_ten_lines(tmp_path):
    make("app.exception", 0, tmp_path)
    lines = ddaudit("triage", str(tmp_path)).stdout.splitlines()
    assert len(lines) == 10
    assert [line.split()[0] for line in lines[1:4]] == ["Cause", "Why", "Proof"]


def test_a_bundle_is_written_once_and_read_back(tmp_path):
    make("app.exception", 0, tmp_path / "logs")
    assert ddaudit("bundle", str(tmp_path / "logs"), "-o", str(tmp_path / "x.tar.gz")).returncode == 0
    assert ddaudit("triage", str(tmp_path / "x.tar.gz")).returncode == 1
    assert ddaudit("bundle", str(tmp_path / "logs"), "-o", str(tmp_path / "x.tar.gz")).returncode == 2


def test_a_wrong_call_is_one_line(tmp_path):
    for argv in (
        ["triage"],
        ["triage", str(tmp_path / "gone")],
        ["triage", str(tmp_path), "--since", "soon"],
        ["bundle"],
    ):
        done = ddaudit(*argv)
        assert done.returncode in (2, 3) and "Traceback" not in done.stderr, argv


def test_triage_does_not_import_torch(tmp_path):
    make("app.exception", 0, tmp_path)
    program = (
        "import sys; from ddaudit.cli.main import main; main(['triage', sys.argv[1]]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True).returncode == 0


def test_a_pack_of_the_environment_adds_to_the_catalogue(tmp_path, monkeypatch):
    table = tmp_path / "ours" / "triage" / "site.toml"
    table.parent.mkdir(parents=True)
    table.write_text(
        '[[cause]]\nid = "site.license"\ntitle = "No licence"\ndo_now = "Call procurement."\n'
        '[[signature]]\nid = "site-license"\ncause = "site.license"\nrole = "root"\nlayer = "app"\n'
        'find = ["LICENSE EXPIRED"]\nregex = "LICENSE EXPIRED"\nsample = "LICENSE EXPIRED"\nmeans = "It ran out."\n'
    )
    (tmp_path / "train.log").write_text(
        "[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: LICENSE EXPIRED\n"
    )
    monkeypatch.setenv("DDAUDIT_PACKS", str(tmp_path / "ours"))
    told = json.loads(ddaudit("triage", str(tmp_path / "train.log"), "--json").stdout)["incident"]
    assert told["cause"] == "site.license" and told["guilty"] == {"rank": 1}
    alone = json.loads(ddaudit("triage", str(tmp_path / "train.log"), "--packs", "builtin", "--json").stdout)[
        "incident"
    ]
    assert alone["cause"] == "app.exception"
