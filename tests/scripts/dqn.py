"""A DQN as PyTorch's tutorial trains it: replay memory, a target network, clipped gradients."""

import math
import random
from collections import deque, namedtuple

import torch
from torch import nn, optim
from torch.nn import functional as F

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(0)
torch.manual_seed(0)
BATCH_SIZE, GAMMA, TAU = 8, 0.99, 0.005


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 16)
        self.layer2 = nn.Linear(16, 16)
        self.layer3 = nn.Linear(16, n_actions)

    def forward(self, x):
        x = F.relu(self.layer1(x))
        x = F.relu(self.layer2(x))
        return self.layer3(x)


policy_net, target_net = DQN(4, 2), DQN(4, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = deque([], maxlen=100)


def select_action(state, step):
    if random.random() > 0.05 + 0.85 * math.exp(-step / 10):
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]])


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*random.sample(memory, BATCH_SIZE)))
    mask = torch.tensor([s is not None for s in batch.next_state], dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch, action_batch = torch.cat(batch.state), torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_state_values[mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * GAMMA) + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    print(loss.item())


state = torch.randn(1, 4)
for step in range(14):
    action = select_action(state, step)
    next_state = None if step % 6 == 5 else state * 0.9 + action * 0.1
    memory.append(Transition(state, action, next_state, torch.tensor([1.0])))
    state = torch.randn(1, 4) if next_state is None else next_state
    optimize_model()
    target_state, policy_state = target_net.state_dict(), policy_net.state_dict()
    for key in policy_state:
        target_state[key] = policy_state[key] * TAU + target_state[key] * (1 - TAU)
    target_net.load_state_dict(target_state)
print(policy_net.layer3.weight.sum().item())
