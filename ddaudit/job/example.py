"""The job file that ``ddaudit new job`` writes, that docs/job.md explains, and that plants change in one place."""

from __future__ import annotations

__all__ = ["EXAMPLE"]

EXAMPLE = """\
# A planned job. `ddaudit run --job job.toml` judges it before a device is touched. Leave out what you do not know.

name = "1.3B, four times the batch"
goal = "larger-batch"           # capacity | larger-batch | wall-clock | memory-fit

micro_batch     = 8             # B_local: samples of one forward pass on one replica
accumulation    = 4             # A: forward passes per update; pipeline micro-batches count
seq_len         = 2048          # tokens per sample
dataset_samples = 1_048_576
drop_last       = true          # the loader drops an incomplete micro-batch
epochs          = 2             # or steps = ...: updates of the whole run

optimizer    = "adamw"
lr           = 6e-4             # the peak
schedule     = "cosine"
decay_steps  = 8192             # updates until the schedule ends, warm-up included
warmup_steps = 500              # or warmup_tokens = ...

precision         = "bf16-mixed"  # fp32 | bf16 | fp16 | bf16-mixed | fp16-mixed | fp64
device_memory_gib = 80

[layout]                        # world_size = dp * sharded * tp * pp * cp
dp      = 1                     # whole copies (DDP)
sharded = 8                     # ranks that share one copy (FSDP2; zero_stage = 1 or 2 for ZeRO) and see different data
tp      = 1                     # tensor
pp      = 1                     # pipeline stages
ep      = 1                     # expert: across the dp * sharded ranks, adds none
cp      = 1                     # context

[model]
layers          = 24
hidden          = 2048
heads           = 16
ffn             = 8192
vocab           = 50304
tied_embeddings = true

[baseline]                      # a run of this model that is known to train well
micro_batch  = 8
accumulation = 4
lr           = 3e-4
schedule     = "cosine"
warmup_steps = 1000
steps        = 32768

[baseline.layout]
sharded = 2
"""
