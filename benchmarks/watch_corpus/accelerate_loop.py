"""Accelerate: prepared loader, optimizer and scheduler, accumulation, evaluation with gather, save_state and resume."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--per_device_batch_size", type=int, default=16)
    p.add_argument("--gradient_accumulation_steps", type=int, default=2)
    p.add_argument("--max_train_steps", type=int, default=30)
    p.add_argument("--num_warmup_steps", type=int, default=6)
    p.add_argument("--output_dir", default="")
    p.add_argument("--checkpoint_at", type=int, default=0)
    p.add_argument("--resume_from_checkpoint", action="store_true")
    return p.parse_args()


def main():
    args = parse()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps,
                              dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(17)
    g = torch.Generator().manual_seed(2)
    x = torch.randn(640, 10, generator=g)
    y = (x @ torch.randn(10, 3, generator=g)).argmax(1)
    train, val = TensorDataset(x[:512], y[:512]), TensorDataset(x[512:], y[512:])
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3))
    loader = DataLoader(train, batch_size=args.per_device_batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val, batch_size=32)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
    warm, total = args.num_warmup_steps, args.max_train_steps
    ticks = accelerator.num_processes
    sched = LambdaLR(opt, lambda s: min(1.0, (s + 1) / (warm * ticks)) * max(0.05, 1 - s / (total * ticks)))
    model, opt, loader, val_loader, sched = accelerator.prepare(model, opt, loader, val_loader, sched)
    total_batch = args.per_device_batch_size * accelerator.num_processes * args.gradient_accumulation_steps
    accelerator.print(f"Total train batch size (w. parallel, distributed & accumulation) = {total_batch}")
    completed, epoch, skip = 0, 0, 0
    per_epoch = len(loader) // args.gradient_accumulation_steps
    if args.resume_from_checkpoint:
        accelerator.load_state(args.output_dir)
        completed = args.checkpoint_at
        epoch, skip = completed // per_epoch, completed % per_epoch * args.gradient_accumulation_steps
    while completed < total:
        model.train()
        loader.set_epoch(epoch)
        active = accelerator.skip_first_batches(loader, skip) if skip else loader
        skip = 0
        for xb, yb in active:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(xb), yb)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            if accelerator.sync_gradients:
                completed += 1
                if args.output_dir and completed == args.checkpoint_at and not args.resume_from_checkpoint:
                    accelerator.save_state(args.output_dir)
                    accelerator.end_training()
                    return
                if completed >= total:
                    break
        epoch += 1
        model.eval()
        right = 0
        for xb, yb in val_loader:
            with torch.no_grad():
                guess = model(xb).argmax(1)
            guess, yb = accelerator.gather_for_metrics((guess, yb))
            right += (guess == yb).sum().item()
        accelerator.print(f"epoch {epoch} accuracy {right / len(val):.3f}")
    accelerator.end_training()


main()
