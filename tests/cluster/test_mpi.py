"""Started by Open MPI, two processes on each of two hosts: one agent a host, the others wait, nothing stays behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import netns
from tests.cluster.fleet import environment, left
from tests.cluster.test_fleet import Site


def remote_shell(folder: Path, hosts: netns.Hosts) -> Path:
    """What mpirun calls in place of ssh: runs a command line on the host of that address."""
    cases = "\n".join(f"{h.address}) space={h.namespace} name={h.name} ;;" for h in hosts.members)
    path = folder / "remote.sh"
    path.write_text(
        f'#!/bin/bash\ncase "$1" in\n{cases}\nesac\nshift\n'
        'exec ip netns exec "$space" unshare --uts sh -c "hostname $name; $*"\n'
    )
    path.chmod(0o755)
    return path


def need() -> str | None:
    """What this machine lacks for the test, or None."""
    return "needs Open MPI" if shutil.which("mpirun") is None else netns.missing()


def test_mpirun_starts_two_processes_a_host_and_each_host_runs_once(tmp_path: Path):
    if (why := need()) is not None:
        pytest.skip(why)
    with netns.hosts(2, tag="m") as hosts:
        site = Site(tmp_path, 0)
        (site.desk / "go").touch()
        (tmp_path / "tmp").mkdir()
        launcher = ["mpirun", "--allow-run-as-root", "--mca", "plm_rsh_agent", str(remote_shell(tmp_path, hosts))]
        launcher += ["--mca", "oob_tcp_if_include", "eth0", "-np", "4"]
        launcher += ["-H", ",".join(f"{h.address}:2" for h in hosts.members)]
        launcher += ["-x", f"MASTER_ADDR={hosts[0].address}", "-x", "PYTHONPATH"]
        launcher += [sys.executable, "-m", "ddaudit", "run"]
        launcher += [str(site.book), "-P", f"desk={site.desk}", "--pack", str(site.pack), "--device", "cpu"]
        launcher += ["--out", str(site.out), "--no-progress"]
        env = environment(TMPDIR=str(tmp_path / "tmp"))
        process = hosts[0].start(launcher, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        site.processes.append(process)
        out, err = process.communicate(timeout=150)
        assert process.returncode == 0, (out, err)
        assert sorted(p.name.rpartition(".")[0] for p in site.desk.glob("second.*")) == ["second.host1", "second.host2"]
        assert out.count("exit code 0") == 1, "one process conducts and reports"
        assert left(hosts.members) == []
        site.end()
