"""A WGAN with gradient penalty: two steps of the critic for each of the generator."""

import torch
from torch import autograd, nn

torch.manual_seed(0)
latent, n_critic = 6, 2
generator = nn.Sequential(nn.Linear(latent, 16), nn.LeakyReLU(0.2), nn.Linear(16, 12), nn.Tanh())
critic = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(critic.parameters(), lr=0.0002, betas=(0.5, 0.999))


def compute_gradient_penalty(D, real_samples, fake_samples):
    alpha = torch.rand(real_samples.size(0), 1)
    interpolates = alpha * real_samples + (1 - alpha) * fake_samples
    interpolates = interpolates.detach().requires_grad_(True)
    d_interpolates = D(interpolates)
    fake = torch.ones_like(d_interpolates)
    gradients = autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=fake,
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


for i, real in enumerate(torch.randn(8, 4, 12)):
    optimizer_D.zero_grad()
    z = torch.randn(4, latent)
    fake = generator(z)
    penalty = compute_gradient_penalty(critic, real, fake)
    d_loss = -critic(real).mean() + critic(fake).mean() + 10 * penalty
    d_loss.backward()
    optimizer_D.step()
    optimizer_G.zero_grad()
    if i % n_critic == 0:
        g_loss = -critic(generator(z)).mean()
        g_loss.backward()
        optimizer_G.step()
    print(i, d_loss.item(), g_loss.item())
