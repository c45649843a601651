"""Started by torchrun once per GPU on two nodes: one agent a node, the others wait, and the store is torchrun's."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.cluster.fleet import environment
from tests.cluster.test_fleet import Site


def test_torchrun_starts_two_processes_a_node_and_each_host_runs_once(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site = Site(tmp_path, port)
    (site.desk / "go").touch()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "roll"]
    launcher += ["--local-addr", "127.0.0.1", "-m", "ddaudit", "run", str(site.book), "-P", f"desk={site.desk}"]
    launcher += ["--pack", str(site.pack), "--device", "cpu", "--out", str(site.out), "--no-progress"]
    nodes = [
        subprocess.Popen(launcher, env=environment(SLURMD_NODENAME=f"t{n}"), stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.PIPE, start_new_session=True)
        for n in range(2)
    ]  # fmt: skip
    site.processes += nodes
    told = [node.communicate(timeout=150) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert sorted(p.name.rpartition(".")[0] for p in site.desk.glob("second.*")) == ["second.t0", "second.t1"]
    assert sum("PASS" in out for out, _ in told) == 1, "one process conducts and reports"
    site.end()
