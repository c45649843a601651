"""Advantage actor-critic: rewards grow as the policy learns, and the value loss with them."""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.value = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, seen):
        return self.policy(seen), self.value(seen).squeeze(-1)


agent = DistributedDataParallel(Agent())
optimizer = torch.optim.RMSprop(agent.parameters(), lr=5e-3)
torch.manual_seed(7 + rank)
seen = torch.randn(8, 4)
for update in range(60):
    chosen, values, rewards, entropy = [], [], [], []
    for _ in range(8):
        logits, value = agent(seen)
        policy = Categorical(logits=logits)
        action = policy.sample()
        chosen.append(policy.log_prob(action))
        entropy.append(policy.entropy())
        values.append(value)
        rewards.append(3 * (1 + update / 10) * (action == (seen[:, 0] > 0).long()).float())
        seen = 0.9 * seen + 0.3 * torch.randn(8, 4)
    with torch.no_grad():
        total = agent.module(seen)[1]
    returns = []
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    advantage = torch.stack(returns) - torch.stack(values)
    loss = -(torch.stack(chosen) * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
    loss = loss - 0.01 * torch.stack(entropy).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    if rank == 0 and update % 20 == 0:
        print(f"update {update}: loss {loss.item():.3f}, mean reward {torch.stack(rewards).mean().item():.3f}")
dist.destroy_process_group()
