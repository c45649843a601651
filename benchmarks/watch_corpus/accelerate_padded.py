"""Accelerate over a data set that no batch size divides: the last batch is filled up from the
first one, and metrics are gathered without what was filled in."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def rows(n, seed):
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, :4].argmax(1))


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.1, 1 - s / 48))
model, optimizer, loader, held, schedule = accelerator.prepare(
    model, optimizer, DataLoader(rows(500, 1), 16, shuffle=True), DataLoader(rows(101, 2), 16), schedule
)
for epoch in range(3):
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    hits = []
    for inputs, labels in held:
        with torch.no_grad():
            guess = model(inputs).argmax(-1)
        guess, labels = accelerator.gather_for_metrics((guess, labels))
        hits.append((guess == labels).float())
    accelerator.print(f"epoch {epoch}: {torch.cat(hits).mean():.3f} of {len(torch.cat(hits))}")
accelerator.end_training()
