"""The vocabulary of a training trace: every series and list that a rank may record, with unit and meaning."""

from __future__ import annotations

import math

__all__ = ["LISTS", "SERIES", "WATCHED"]

#: Series of a trace, axes (rank, step): name -> (unit, meaning). ``step`` counts optimizer updates from 0.
SERIES: dict[str, tuple[str, str]] = {
    "loss_nats": ("nat/token", "mean loss over the global batch, as this rank knows it after any reduction"),
    "loss_local_nats": ("nat/token", "mean loss over this rank's own tokens of the step"),
    "lr": ("1", "learning rate used by this update (first parameter group)"),
    "grad_norm": ("1", "global gradient L2 norm before clipping, as this rank computed it"),
    "grad_norm_clipped": ("1", "global gradient L2 norm that the optimizer saw"),
    "update_norm": ("1", "L2 norm of the parameters' change in this update"),
    "micro_batches": ("1", "forward/backward passes accumulated into this update"),
    "samples": ("1", "samples this rank fed into this update"),
    "tokens": ("1", "target tokens this rank fed into this update"),
    "loss_divisor": ("1", "what each micro-batch loss was divided by"),
    "grad_syncs": ("1", "rounds of gradient synchronisation in this update (1 = every parameter reduced once)"),
    "grad_sync_calls": ("1", "gradient collectives issued in this update (several buckets make one round)"),
    "grad_sync_bytes": ("byte", "payload of those collectives"),
    "zero_grads": ("1", "times gradients were cleared since the previous update"),
    "scheduler_ticks": ("1", "learning-rate scheduler steps since the previous update"),
    "epoch": ("1", "epoch of the first sample of this update"),
    "step_s": ("s", "wall time of the whole step"),
    "input_s": ("s", "blocked waiting for the next batch, including host-to-device copies"),
    "forward_s": ("s", "forward passes"),
    "backward_s": ("s", "backward passes, including communication they hide or expose"),
    "sync_s": ("s", "exposed gradient synchronisation outside forward and backward"),
    "comm_wait_s": ("s", "blocked in collectives, wire time and waiting for the last peer together"),
    "comm_hidden_s": ("s", "in which collectives ran under the backward pass and blocked nobody"),
    "stage_wait_s": ("s", "part of comm_wait_s: blocked for activations or gradients of another pipeline stage"),
    "exchange_s": ("s", "exchanging activations and gradients between pipeline stages, outside forward and backward"),
    "optimizer_s": ("s", "clipping, optimizer update, scheduler, clearing gradients"),
    "loss_s": ("s", "reducing token counts and the loss that is logged"),
    "host_s": ("s", "the loop's own work around forward and backward passes: the host before it launches them"),
    "runqueue_s": ("s", "ready to run but waiting for a core, in the whole step"),
    "runqueue_input_s": ("s", "part of runqueue_s that lies in input_s"),
    "runqueue_host_s": ("s", "part of runqueue_s that lies in host_s"),
    "runqueue_phases_s": ("s", "part of runqueue_s that lies in all other spans"),
    "runqueue_comm_s": ("s", "part of runqueue_phases_s that lies in blocking collectives"),
    "window": ("code", "A/B window in which the step lay (0 normal, -1 the first step of one)"),
    "gc_s": ("s", "CPU time of the garbage collector in this step: pauses, less waiting for a core in them"),
    "gc_begin_s": ("s", "when the first of them began, since the start of the step"),
    "system_s": ("s", "CPU time that the kernel spent for the process in this step"),
    "minor_faults": ("1", "memory pages that the kernel had to provide in this step"),
    "throttled_s": ("s", "time for which the CPU quota of the rank's cgroup held it back, since the previous step"),
    "threads": ("1", "threads of the process and of its loader workers after the step"),
    "workers": ("1", "loader workers that were alive after the step"),
    "workers_started": ("1", "loader workers that were started in this step"),
    "workers_cpu_s": ("s", "CPU time of the loader workers since the previous step"),
    "own_cpu_s": ("s", "CPU time of the process and its loader workers since the previous step"),
    "cores_busy_s": ("s", "CPU time that anybody used on the cores of this rank since the previous step"),
    "core_mask": ("bits", "cores that this rank may use, one bit each (of the first 52)"),
    "between_s": ("s", "wall time since the previous step was recorded"),
    "extra_collectives": ("1", "collectives of this step that exchange no gradients, activations or weights"),
    "expert_tokens": ("1", "token rows that reached the experts of this rank in this step"),
    "overhead_s": ("s", "bookkeeping of the recorder before and in the step; no part of step_s"),
    "timer_s": ("s", "CPU time of the timers in this step: calls times the measured cost of one"),
    "checkpoint_s": ("s", "writing a checkpoint"),
    "cpu_s": ("s", "CPU time of the rank's process in this step"),
    "rss_bytes": ("byte", "resident memory of the process after the step"),
    "device_bytes": ("byte", "peak memory allocated on the device in this step"),
    "param_digest": (
        "digest",
        "digest of the parameters that this rank replicates, after the update (exact 2^53 integer)",
    ),
    "buffer_digest": ("digest", "digest of the buffers that this rank replicates, after the update"),
    "rng_digest": ("digest", "digest of this rank's random state before the step"),
    "batch_digest": ("digest", "digest of the token ids this rank read in this update"),
}

#: Further series that only a watched script records.
WATCHED: dict[str, tuple[str, str]] = {
    "loss_raw": ("1", "mean of the losses on which backward was called, in whatever unit the script computes"),
    "loss_bad": ("1", "1 where one of those losses was NaN or infinite"),
    "passes": ("1", "backward calls since gradients were cleared, whatever they were for"),
    "changed": ("1", "1 where the update changed a bit of some parameter"),
    "synced_passes": ("1", "backward calls whose DDP wrapper was set to reduce"),
    "last_synced": ("1", "1 where the last backward call before the update was set to reduce"),
    "bypassed": ("1", "backward calls for which the wrapped module was called without its wrapper"),
    "clips": ("1", "calls of torch's gradient clipping"),
    "early_clips": ("1", "of those, calls while gradients were still multiplied by a gradient scaler"),
    "clip_norm": ("1", "gradient norm that clipping returned"),
    "clip_limit": ("1", "norm or value that clipping was asked for"),
    "unscaled": ("1", "1 where a gradient scaler was asked to unscale before the update"),
    "norm_digest": ("digest", "digest of running statistics of normalisation layers when the forward pass begins"),
    "rng_forward_draws": ("1", "1 where the forward pass drew from torch's generator"),
    "rng_fetch_digest": ("digest", "digest of the generators that fetching a batch drew from, before it drew"),
    "scale": ("1", "factor by which a gradient scaler multiplied the losses"),
    "run_wait_s": ("s", "time in which the main thread could have run and no core was free"),
    "graphs_alive": ("1", "losses of earlier passes whose autograd graph is still alive"),
    "collective_calls": ("1", "collectives that the script itself called since the previous update"),
    "collective_bytes": ("byte", "payload of those collectives"),
}
SERIES |= WATCHED

#: Arrays of a watched script beside :data:`SERIES`: name -> (unit, axes, value that stands for "not recorded").
LISTS: dict[str, tuple[str, tuple[str, ...], float]] = {
    "sample_ids": ("sample", ("rank", "step", "slot"), -1),
    "sample_index": ("sample", ("rank", "step", "slot"), -1),
    "sample_epoch": ("epoch", ("rank", "step", "slot"), -1),
    "param_digests": ("digest", ("rank", "step", "parameter"), -2),
    "grad_digests": ("digest", ("rank", "step", "parameter"), -2),
    "grad_slices": ("1", ("rank", "step", "role", "element"), math.nan),
    "loss_terms": ("1", ("rank", "step", "pass", "field"), math.nan),
}
