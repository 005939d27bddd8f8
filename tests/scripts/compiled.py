"""A model that torch.compile compiles."""

import torch
from torch import nn

torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


model = torch.compile(nn.Sequential(Residual(), Residual()), backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for x in torch.randn(5, 4, 8):
    optimizer.zero_grad()
    loss = (model(x) - x.roll(1, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
