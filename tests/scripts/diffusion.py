"""A diffusion model of diffusers: noise is predicted by a small UNet."""

import torch
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from torch.nn import functional as F

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(4, 8),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=2,
    attention_head_dim=4,
)
noise_scheduler = DDPMScheduler(num_train_timesteps=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, 1, 4)
for clean_images in torch.randn(4, 2, 1, 8, 8):
    noise = torch.randn(clean_images.shape)
    timesteps = torch.randint(0, 10, (2,))
    noisy_images = noise_scheduler.add_noise(clean_images, noise, timesteps)
    noise_pred = model(noisy_images, timesteps, return_dict=False)[0]
    loss = F.mse_loss(noise_pred, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
    print(loss.item())
