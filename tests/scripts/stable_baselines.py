"""PPO of stable-baselines3, which trains by `evaluate_actions`."""

import gymnasium
import numpy
import torch
from stable_baselines3 import PPO


class Line(gymnasium.Env):
    """A point on a line, which is to stay near 0."""

    observation_space = gymnasium.spaces.Box(-5, 5, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.normal(size=2).astype(numpy.float32), 0
        return self.state, {}

    def step(self, action):
        self.steps += 1
        self.state = (self.state + 0.1 * (2 * action - 1)).clip(-5, 5).astype(numpy.float32)
        return self.state, -float(abs(self.state).sum()), False, self.steps >= 8, {}


model = PPO("MlpPolicy", Line(), n_steps=16, batch_size=8, n_epochs=2, seed=0, device="cpu")
model.learn(total_timesteps=32)
parameters = model.policy.parameters()
print(torch.cat([parameter.flatten() for parameter in parameters]).double().sum().item())
