"""A loop with Accelerate: accumulation, clipping, a scheduler."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
data = torch.utils.data.TensorDataset(torch.randn(48, 6), torch.randint(3, (48,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(loss.item())
