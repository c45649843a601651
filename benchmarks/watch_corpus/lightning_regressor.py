"""Lightning: accumulation, step-wise scheduler, checkpoint callback, resume by ckpt_path."""
import argparse
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Regressor(L.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.SiLU(), nn.Linear(32, 1))
        self.steps = steps

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=1e-2)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, self.steps)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dir", default=None)
    p.add_argument("--max-steps", type=int, default=32)
    p.add_argument("--ckpt-path", default=None)
    p.add_argument("--until", type=int, default=None)
    a = p.parse_args()
    L.seed_everything(3, verbose=False)
    g = torch.Generator().manual_seed(4)
    x = torch.randn(640, 6, generator=g)
    data = TensorDataset(x, x.prod(1, keepdim=True) + x[:, :1])
    train, val = torch.utils.data.random_split(data, [512, 128], torch.Generator().manual_seed(1))
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_steps=a.until or a.max_steps, accumulate_grad_batches=2,
        default_root_dir=a.dir, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Regressor(a.max_steps), DataLoader(train, 8, shuffle=True, drop_last=True), DataLoader(val, 32),
                ckpt_path=a.ckpt_path)
    if a.until:
        trainer.save_checkpoint(f"{a.dir}/last.ckpt")


main()
