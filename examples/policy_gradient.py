"""Reinforcement learning: an episode, its returns, and the step that learns, as one graph."""

import torch
from torch import nn
from torch.distributions import Categorical

import tbscope

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def act(state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Push a ball to the left or to the right; give its next state and the reward."""
    push = torch.tensor([0.0, 1.0, 0.0, 0.5]) * (2.0 * float(action) - 1.0)
    state = 0.9 * state + 0.1 * push
    return state, -float(state.square().sum())


with tbscope.record(policy) as recording:
    state = torch.ones(4)
    chances, rewards = [], []
    for _ in range(5):
        chosen = Categorical(logits=policy(state))
        action = chosen.sample()
        chances.append(chosen.log_prob(action))
        state, reward = act(state, action)
        rewards.append(reward)
    with tbscope.scope("loss"):
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(chances) * (returns - returns.mean())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with tbscope.SummaryWriter("runs/policy_gradient") as writer:
    writer.add_graph(recording.graph)
print(recording.graph.summary(depth=1))
print("tensorboard --logdir runs/policy_gradient")
