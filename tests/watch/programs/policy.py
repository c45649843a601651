"""REINFORCE: no loader, episodes of a bandit, an entropy bonus, a critic beside the actor, rewards gathered."""

import torch
import torch.distributed as dist
from common import mlp, start
from torch.nn.parallel import DistributedDataParallel as DDP

rank, world = start()
actor, critic = DDP(mlp()), DDP(mlp(classes=1))
opt = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
torch.manual_seed(rank + 1)
for _ in range(24):
    state = torch.randn(16, 12)
    choice = torch.distributions.Categorical(logits=actor(state))
    action = choice.sample()
    reward = (action == state[:, :4].argmax(1)).float()
    value = critic(state).squeeze(1)
    advantage = (reward - value).detach()
    loss = -(choice.log_prob(action) * advantage).mean() + 0.5 * (reward - value).pow(2).mean()
    loss = loss - 0.01 * choice.entropy().mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
    opt.step()
    mean = reward.mean()
    dist.all_reduce(mean)
