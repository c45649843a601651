"""Fresh round trips with the real frameworks: each save is audited, and compared with its converted form.

usage: checkpoint_roundtrips.py FOLDER [PYTHON ...]. Each framework runs in the first of the given interpreters (by
default this one) that has it; the others are named as not run. None is a dependency of ddaudit. The programs save
what a real job has to: weights, moments, schedule, data position and random state. Exit 0 when all that ran are OK and
identical.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ddaudit.checkpoint.diff import compare_paths
from ddaudit.cli.checkpoint_audit import audit_path

MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 64))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
FSDP2 = (
    MODEL
    + """
import os, sys
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group('gloo')
mesh = init_device_mesh('cpu', (dist.get_world_size(),))
for layer in model: fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
rank, ranks, GLOBAL_BATCH = dist.get_rank(), dist.get_world_size(), 8
order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
for step in range(3):
    model(order[step * GLOBAL_BATCH :][:GLOBAL_BATCH][rank::ranks]).logsumexp(-1).mean().backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
def training_state():
    weights, states = get_state_dict(model, optimizer)
    return {'model': weights, 'optimizer': states, 'scheduler': schedule.state_dict(), 'step': 3, 'world_size': ranks,
            'global_batch_size': GLOBAL_BATCH, 'sampler': {'epoch': 0, 'seed': 5, 'consumed_samples': 3 * GLOBAL_BATCH}}
state = training_state()
dcp.save({**state, 'rng_state': {f'rank_{rank}': torch.get_rng_state()}}, checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""
)
CONVERT = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""
FSDP2_LOAD = FSDP2.replace(
    "state = training_state()",
    """from torch.distributed.checkpoint.state_dict import set_state_dict
state = training_state()
dcp.load(state, checkpoint_id=sys.argv[2])
set_state_dict(model, optimizer, model_state_dict=state['model'], optim_state_dict=state['optimizer'])
schedule.load_state_dict(state['scheduler'])
state = training_state()""",
)
TO_SAFETENSORS = """
import sys, pathlib, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from safetensors.torch import save_file
target = pathlib.Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
dcp_to_torch_save(sys.argv[1], str(target.parent / 'whole.pt'))
whole = torch.load(target.parent / 'whole.pt', weights_only=False)
save_file({k: v.contiguous() for k, v in whole['model'].items()}, target / 'model.safetensors')
torch.save({'model': whole['model']}, target.parent / 'weights.pt')
"""
TRAINER = """
import sys, torch, transformers
config = transformers.LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                  num_key_value_heads=2, vocab_size=64)
model = transformers.LlamaForCausalLM(config)
rows = [{'input_ids': torch.randint(0, 64, (8,)), 'labels': torch.randint(0, 64, (8,))} for _ in range(32)]
args = transformers.TrainingArguments(sys.argv[1], max_steps=4, save_steps=2, per_device_train_batch_size=2,
                                      report_to=[], use_cpu=True, disable_tqdm=True)
transformers.Trainer(model, args, train_dataset=rows).train()
"""
DEEPSPEED = """
import os, sys
os.environ.update(RANK=os.environ.get('RANK', '0'), DS_ACCELERATOR='cpu')
import torch, deepspeed
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 16))
stage = int(sys.argv[2])
config = {'train_micro_batch_size_per_gpu': 2, 'gradient_accumulation_steps': 1, 'bf16': {'enabled': True},
          'optimizer': {'type': 'AdamW', 'params': {'lr': 1e-3, 'torch_adam': True}},
          'scheduler': {'type': 'WarmupLR', 'params': {'warmup_num_steps': 10}},
          'zero_optimization': {'stage': stage}, 'zero_force_ds_cpu_optimizer': False}
deepspeed.init_distributed('gloo')
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(3):
    loss = engine(torch.randn(2, 16, dtype=torch.bfloat16)).float().square().mean()
    engine.backward(loss)
    engine.step()
random_states = [None] * deepspeed.comm.get_world_size()
torch.distributed.all_gather_object(random_states, torch.get_rng_state())
engine.save_checkpoint(sys.argv[1], client_state={
    'sampler': {'epoch': 0, 'consumed_samples': engine.global_samples},
    'rng_state': {f'rank_{rank}': state for rank, state in enumerate(random_states)}})
"""
UNIVERSAL = """
import sys
from deepspeed.checkpoint import ds_to_universal
sys.argv = ['x', '--input_folder', sys.argv[1], '--output_folder', sys.argv[2], '--num_extract_workers', '1',
            '--num_merge_workers', '1', '--inject_missing_state']
if __name__ == '__main__':
    args = ds_to_universal.parse_arguments()
    ds_to_universal.main(args)
"""
MEGATRON = """
import argparse, numpy, os, random, sys, torch, torch.distributed as dist
if __name__ == '__main__':
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.current_device = lambda: 'cpu'
    dist.init_process_group('gloo')
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.dist_checkpointing.optimizer import (
        get_param_id_to_sharded_param_map, optim_state_to_sharding_state)
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    rank, size = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    torch.manual_seed(0)
    model = torch.nn.ParameterDict()
    for i in range(3):
        model[f'decoder_{i}'] = torch.nn.Parameter(torch.randn(16, 8).chunk(size)[rank].clone())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = OptimizerParamScheduler(optimizer, 0.0, 1e-3, 1e-4, 8, 80, 'linear', 0.01, 0.01, 0, 'constant')
    for step in range(3):
        sum(weight.square().sum() for weight in model.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step(increment=4)
    weights = {n: ShardedTensor.from_rank_offsets(n.replace('_', '.layers.') + '.weight', p, (0, rank, size))
               for n, p in model.items()}
    states = optimizer.state_dict()
    steps = [s['step'] for s in states['state'].values()]
    optim_state_to_sharding_state(states, get_param_id_to_sharded_param_map(weights, model.values()), ('step',))
    states['state']['common_step'] = steps[0]
    args = argparse.Namespace(
        world_size=size, data_parallel_size=1, tensor_model_parallel_size=size, pipeline_model_parallel_size=1,
        global_batch_size=4, micro_batch_size=4, consumed_train_samples=12, iteration=3, seed=0)
    streams = [{'random_rng_state': random.getstate(), 'np_rng_state': numpy.random.get_state(),
                'torch_rng_state': torch.get_rng_state(), 'rng_tracker_states': {}}]
    os.makedirs(sys.argv[1], exist_ok=True)
    dist_checkpointing.save({
        'args': args, 'model': weights, 'optimizer': states, 'opt_param_scheduler': schedule.state_dict(),
        'rng_state': ShardedObject('rng_state', streams, (1, size), (0, rank), replica_id=0),
        'iteration': 3, 'checkpoint_version': 3.0, 'num_floating_point_operations_so_far': 0}, sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()
"""
RESHARD = """
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
torch_save_to_dcp(sys.argv[1], sys.argv[2])
"""
LIGHTNING = """
import sys, torch, lightning
from torchdata.stateful_dataloader import StatefulDataLoader
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = torch.nn.Linear(4, 4)
    def training_step(self, batch, index): return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': schedule, 'interval': 'step'}}
    def on_save_checkpoint(self, checkpoint): checkpoint['rng_state'] = {'torch': torch.get_rng_state()}
data = StatefulDataLoader(torch.utils.data.TensorDataset(torch.randn(32, 4)), batch_size=4, shuffle=True)
from lightning.pytorch.callbacks import ModelCheckpoint
saves = ModelCheckpoint(sys.argv[1], every_n_train_steps=3, save_last=True)
lightning.Trainer(max_steps=4, accelerator='cpu', logger=False, enable_progress_bar=False, callbacks=[saves]).fit(
    Module(), data)
"""
ACCELERATE = (
    MODEL
    + """
import sys
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
class Progress:
    def state_dict(self): return {'steps': 3, 'epoch': 0}
    def load_state_dict(self, state): pass
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True))
loader = torch.utils.data.DataLoader(list(range(32)), batch_size=4)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
for index, batch in enumerate(loader):
    with accelerator.accumulate(model):
        model(batch).logsumexp(-1).mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if index == 2: break
accelerator.register_for_checkpointing(Progress())
accelerator.save_state(sys.argv[1])
"""
)


PYTHONS = [sys.executable]


def python_with(package: str) -> str | None:
    """The first interpreter that has the package."""
    test = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return next((p for p in PYTHONS if subprocess.run([p, "-c", test], check=False).returncode == 0), None)


def run(package: str, code: str, *argv: str, ranks: int = 1) -> None:
    """Runs a program with the interpreter that has the package, under torchrun for several ranks."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    program = Path(argv[0]).parent / "program.py"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(code)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    command = [python_with(package) or sys.executable, *launcher, str(program), *argv]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])


def fsdp2(folder: Path) -> bool:
    """Two ranks, four, two again; then one torch file, DCP from it, and safetensors of the weights."""
    two, four, back = (folder / name / "step_3" for name in ("two", "four", "back"))
    torch_file, again, exported = folder / "torch" / "step_3.pt", folder / "dcp1" / "step_3", folder / "st" / "model"
    run("torch", FSDP2, str(two), ranks=2)
    run("torch", FSDP2_LOAD, str(four), str(two), ranks=4)
    run("torch", FSDP2_LOAD, str(back), str(four), ranks=2)
    torch_file.parent.mkdir(exist_ok=True)
    run("torch", CONVERT, str(two), str(torch_file), ranks=0)
    run("torch", RESHARD, str(torch_file), str(again), ranks=0)
    good = [audited(p) for p in (two, four, back, torch_file, again)]
    good += [same(two, other) for other in (four, back, torch_file, again)]
    if python_with("safetensors"):
        run("safetensors", TO_SAFETENSORS, str(two), str(exported), ranks=0)
        good += [audited(exported), same(exported, exported.parent / "weights.pt")]
    return all(good)


def lightning(folder: Path) -> bool:
    run("torchdata", LIGHTNING, str(folder / "lightning"), ranks=0)
    return audited(folder / "lightning" / "last.ckpt")


def accelerate(folder: Path) -> bool:
    run("accelerate", ACCELERATE, str(folder / "accelerate"), ranks=0)
    return audited(folder / "accelerate")


def trainer(folder: Path) -> bool:
    run("transformers", TRAINER, str(folder / "trainer"), ranks=0)
    return audited(folder / "trainer") and not same(folder / "trainer/checkpoint-2", folder / "trainer/checkpoint-4")


def deepspeed(folder: Path) -> bool:
    """ZeRO 1, 2 and 3 by two ranks, and the universal form of each."""
    good = []
    for stage in (1, 2, 3):
        root = folder / f"zero{stage}"
        run("deepspeed", DEEPSPEED, str(root), str(stage), ranks=2)
        good.append(audited(root))
        universal = folder / f"universal{stage}" / "global_step3_universal"
        run("deepspeed", UNIVERSAL, str(root / "global_step3"), str(universal), ranks=0)
        good.append(audited(universal.parent))
    return all(good)


def megatron(folder: Path) -> bool:
    one, two = folder / "one" / "iter_0000003", folder / "two" / "iter_0000003"
    run("megatron", MEGATRON, str(one), ranks=1)
    run("megatron", MEGATRON, str(two), ranks=2)
    return all([audited(one), audited(two), same(one, two)])


def audited(path: Path) -> bool:
    result = audit_path(str(path))
    reasons = [f.text for f in result.findings if f.bad]
    print(f"  {result.word:14} {path.parent.name}/{path.name}: {'; '.join(reasons)[:200]}")
    return result.word == "OK"


def same(a: Path, b: Path) -> bool:
    found = compare_paths(str(a), str(b))
    rest = [d.name for d in found.differences[:5]] + list(found.only_in_a[:5]) + list(found.only_in_b[:5])
    names = " and ".join(f"{p.parent.name}/{p.name}" for p in (a, b))
    print(f"  {'identical' if found.identical else 'different'}: {names} {json.dumps(rest)}")
    return found.identical


TRIPS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "FSDP2 by 2, 4 and 2 ranks, torch file, DCP, safetensors": ("torch", fsdp2),
    "Lightning": ("lightning", lightning),
    "HF Trainer": ("transformers", trainer),
    "Accelerate": ("accelerate", accelerate),
    "DeepSpeed ZeRO 1, 2, 3 and universal": ("deepspeed", deepspeed),
    "Megatron-core, 1 and 2 ranks": ("megatron", megatron),
}


def main(folder: Path, pythons: list[str]) -> int:
    PYTHONS[:] = pythons or PYTHONS
    good = True
    for name, (package, trip) in TRIPS.items():
        if python_with(package) is None:
            print(f"{name}: not run, {package} is not installed")
            continue
        print(name, flush=True)
        try:
            good &= trip(folder / package)
        except RuntimeError as error:
            print(f"  the framework failed: {error}")
            good = False
    return int(not good)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
