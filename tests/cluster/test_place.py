"""Where a process stands in a run over several hosts, as flags, Slurm, torchrun and MPI tell it."""

from __future__ import annotations

import pytest

from ddaudit.errors import UsageProblem
from ddaudit.launch.place import Asked, Place, expand_hosts, find_place, parse_endpoint

SRUN = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "localhost,n[07-08]", "SLURM_NODEID": "2", "SLURM_LOCALID": "0",
}  # fmt: skip
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "2", "GROUP_RANK": "1", "LOCAL_WORLD_SIZE": "8",
    "LOCAL_RANK": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "MASTER_ADDR": "head",
}  # fmt: skip


def place(environment: dict[str, str], gpus: int = 0, **asked: object) -> Place | None:
    return find_place(Asked(**asked), environment, gpus)  # type: ignore[arg-type]


def test_without_any_word_the_run_stays_on_this_host():
    assert place({}) is None


def test_flags_alone_place_a_node():
    found = place({}, nnodes=3, node_rank=1, endpoint="10.0.0.1:3000", ranks_per_node=4)
    assert found == Place(3, 1, 4, "10.0.0.1", 3000, "command line")
    assert not found.conducts


def test_a_node_has_as_many_ranks_as_gpus_unless_told():
    found = place({}, gpus=8, nnodes=2, node_rank=0, endpoint="h")
    assert found is not None and (found.ranks_per_node, found.port, found.conducts) == (8, 29400, True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"nnodes": 2}, "which of the 2 nodes"),
        ({"nnodes": 2, "node_rank": 2, "endpoint": "h"}, "node rank 2 of 2"),
        ({"nnodes": 2, "node_rank": 0}, "where do the nodes meet"),
        ({"node_rank": 1}, "without --nnodes"),
        ({"nnodes": 2, "node_rank": 0, "endpoint": "h:99999"}, "port from 1 to 65535"),
        ({"nnodes": 2, "node_rank": 0, "endpoint": "a b"}, "HOST:PORT"),
    ],
)
def test_flags_that_do_not_fit_are_refused_in_one_line(asked: dict[str, object], says: str):
    with pytest.raises(UsageProblem, match=says):
        place({}, **asked)


def test_an_srun_task_finds_its_place():
    found = place(SRUN)
    assert found is not None
    assert (found.nnodes, found.node_rank, found.host, found.source) == (3, 2, "localhost", "Slurm")
    assert 20_000 <= found.port < 30_000


def test_two_job_steps_do_not_share_a_port():
    first, second = place(SRUN), place({**SRUN, "SLURM_STEP_ID": "1"})
    assert first is not None and second is not None and first.port != second.port


def test_a_batch_script_outside_srun_stays_on_its_host():
    assert place({"SLURM_JOB_ID": "4711", "SLURM_NNODES": "4", "SLURM_PROCID": "0", "SLURM_NODEID": "0"}) is None


def test_one_task_per_gpu_makes_one_agent_and_waiters():
    found = place({**SRUN, "SLURM_STEP_NUM_TASKS": "24", "SLURM_NODEID": "0", "SLURM_LOCALID": "5"})
    assert found is not None
    assert (found.ranks_per_node, found.local_rank, found.conducts) == (8, 5, False)


def test_torchruns_agents_meet_at_the_store_that_it_serves():
    found = place(TORCHRUN)
    assert found is not None
    assert (found.nnodes, found.node_rank, found.ranks_per_node, found.local_rank) == (2, 1, 8, 3)
    assert found.meeting == ("10.0.0.1", 29500)


def test_torchrun_beats_slurm_and_flags_beat_both():
    found = place({**SRUN, **TORCHRUN}, ranks_per_node=2)
    assert found is not None and (found.source, found.ranks_per_node) == ("torchrun", 2)


def test_half_of_torchruns_variables_are_refused():
    with pytest.raises(UsageProblem, match="not whole"):
        place({k: v for k, v in TORCHRUN.items() if k != "GROUP_RANK"})


def test_an_mpi_rank_finds_its_node():
    found = place(MPI)
    assert found is not None
    assert (found.nnodes, found.node_rank, found.local_rank, found.host) == (2, 1, 1, "head")


def test_mpi_ranks_that_were_not_told_where_to_meet_do_not_each_run_alone():
    """mpirun passes MASTER_ADDR on only when asked to; without it each rank was a run of its own."""
    lost = {k: v for k, v in MPI.items() if k != "MASTER_ADDR"}
    with pytest.raises(UsageProblem, match="where do the nodes meet"):
        place(lost)
    found = place(lost, endpoint="head:3000")
    assert found is not None and (found.nnodes, found.node_rank, found.host, found.port) == (2, 1, "head", 3000)


def test_mpi_ranks_that_are_dealt_out_over_the_nodes_are_refused():
    """Rank 1 is the first of the second node there, and would take itself for another of the first."""
    with pytest.raises(UsageProblem, match="one node after the other"):
        place({**MPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    with pytest.raises(UsageProblem, match="one node after the other"):
        place({**MPI, "OMPI_COMM_WORLD_SIZE": "12"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],gpu-login", ["n08", "n09", "n10", "n12", "gpu-login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_slurms_host_lists_are_expanded(text: str, names: list[str]):
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["", "n[1-", "n[a-b]", "n[1-99999999]", "n[1-999]m[1-999]", "a b", "n;rm"])
def test_damaged_host_lists_are_refused(text: str):
    with pytest.raises(UsageProblem):
        expand_hosts(text)


def test_endpoints_may_be_ipv6():
    assert parse_endpoint("[fe80::1]:77") == ("fe80::1", 77)
