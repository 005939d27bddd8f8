"""Mixed precision as PyTorch's recipe has it: autocast, GradScaler, OneCycleLR."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=6)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
loss_fn = nn.MSELoss()
for input, target in zip(torch.randn(6, 8, 16), torch.randn(6, 8, 4)):
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        output = net(input)
        loss = loss_fn(output, target.to(output.dtype))
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.5)
    scaler.step(opt)
    scaler.update()
    scheduler.step()
    opt.zero_grad()
    print(loss.item(), scaler.get_scale())
