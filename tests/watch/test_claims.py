"""What a script says of itself, read from options, names and printouts."""

from __future__ import annotations

import pytest

from ddaudit.watch.claims import classify, printed


@pytest.mark.parametrize(
    ("name", "help_text", "kind"),
    [
        ("batch_size", "mini-batch size, the total over all processes", "global_batch"),
        ("batch_size", "per process", "micro_batch"),
        ("batch_size", "rows", None),
        ("per_device_train_batch_size", "", "micro_batch"),
        ("total_batch_size", "", "global_batch"),
        ("eval_batch_size", "total", None),
        ("gradient_accumulation_steps", "", "accumulation"),
        ("accum", "", "accumulation"),
        ("accuracy", "", None),
        ("warmup_iters", "", "warmup_updates"),
        ("warmup_ratio", "", "warmup_share"),
        ("num_warmup_epochs", "", "warmup_epochs"),
        ("max_train_steps", "", "updates"),
    ],
)
def test_names_and_help_tell_the_kind_of_a_claim(name: str, help_text: str, kind: str | None):
    assert classify(name, help_text) == kind


@pytest.mark.parametrize(
    ("line", "numbers"),
    [
        ("global batch size 64, peak lr 0.025", [64]),
        ("48 optimizer steps, warmup 8, effective batch 256", [256]),
        ("total train batch size (parallel, accumulated) = 512; optimization steps = 60", [512, 60]),
        ("effective batch size: 4 x 8 x 2 = 64", [4, 8, 2, 64]),
        ("total batch size per device 8", []),
        ("epoch 3 batch 17 loss 0.3", []),
    ],
)
def test_a_printed_claim_gives_all_its_numbers(line: str, numbers: list[int]):
    """A product names its factors first: the claim is one of the numbers."""
    assert printed(line) == numbers
