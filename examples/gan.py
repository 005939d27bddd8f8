"""A step of a GAN in one graph, gradients and optimizers included, and each model in its own."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tbscope

generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=0.001)
of_discriminator = torch.optim.SGD(discriminator.parameters(), lr=0.01)
noise, pictures = torch.randn(16, 8), torch.rand(16, 64)

# The region runs as it would without `record`: both models are trained once.
with tbscope.record(generator=generator, discriminator=discriminator) as recording:
    recording.input(noise=noise, pictures=pictures)
    fakes = generator(noise)
    with tbscope.scope("loss"):
        on_real = discriminator(pictures)
        on_fake = discriminator(fakes.detach())
        loss = binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
        loss = loss + binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
    of_discriminator.zero_grad()
    loss.backward()
    of_discriminator.step()
    with tbscope.scope("fooled"):
        judged = discriminator(fakes)
        fooled = binary_cross_entropy_with_logits(judged, torch.ones_like(judged))
    of_generator.zero_grad()
    fooled.backward()
    of_generator.step()
    recording.output(loss=loss, fooled=fooled)

with tbscope.SummaryWriter("runs/gan") as writer:
    writer.add_graph(recording.graph)
    # Beside the whole, each model by itself.
    writer.add_graph(generator, noise, tag="generator")
    writer.add_graph(discriminator, pictures, tag="discriminator")
print("tensorboard --logdir runs/gan")
