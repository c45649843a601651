"""How the commands of a resume test are read: where checkpoints go and how a script is told to resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddaudit.engine.single import on_one_rank
from ddaudit.errors import UsageProblem
from ddaudit.watch.legs import legs


def test_the_usual_folder_option_gets_a_folder_of_each_leg_and_resume_is_added():
    found = legs(["torchrun", "train.py", "--ckpt-dir", "mine"], None, None)
    assert found.whole(Path("/a")) == ["torchrun", "train.py", "--ckpt-dir", "/a"]
    assert found.resuming(Path("/b"), Path("/b/last.pt")) == ["torchrun", "train.py", "--ckpt-dir", "/b", "--resume"]


def test_the_trainer_of_hugging_face_is_told_which_checkpoint():
    found = legs(["torchrun", "run.py", "--output_dir=x", "--save_steps", "5"], None, None)
    assert found.resuming(Path("/b"), Path("/b/checkpoint-5"))[-2:] == ["--resume_from_checkpoint", "/b/checkpoint-5"]


def test_placeholders_win_over_what_is_usual():
    found = legs(["t", "--ckpt-dir", "kept", "--to", "{ckpt}"], None, ["t", "--from", "{last}"])
    assert found.whole(Path("/a")) == ["t", "--ckpt-dir", "kept", "--to", "/a"]
    assert found.resuming(Path("/a"), Path("/a/x")) == ["t", "--from", "/a/x"]


def test_a_command_that_names_no_folder_is_refused():
    with pytest.raises(UsageProblem, match="where the command saves"):
        legs(["torchrun", "train.py"], None, None)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("torchrun --nproc-per-node 4 t.py --batch-size 8", "torchrun --nproc-per-node 1 t.py --batch-size 32"),
        ("torchrun --nproc_per_node=2 t.py --accum=3", "torchrun --nproc_per_node=1 t.py --accum=6"),
        ("accelerate launch --num_processes 2 t.py", "accelerate launch --num_processes 1 t.py"),
    ],
)
def test_one_rank_gets_the_batch_of_all(given: str, made: str):
    assert on_one_rank(given.split()) == made.split()


def test_a_command_without_a_number_of_ranks_is_refused():
    with pytest.raises(UsageProblem, match="number of ranks"):
        on_one_rank(["python", "train.py"])
