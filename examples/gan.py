"""Two models and the code between them in one graph, and each model in one of its own: a GAN."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import tbscope

generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.01)
noise, pictures = torch.randn(16, 8), torch.rand(16, 64)

with tbscope.record(generator=generator, discriminator=discriminator) as recording:
    recording.input(noise=noise, pictures=pictures)
    fakes = generator(noise).detach()
    with tbscope.scope("loss"):
        on_real = discriminator(pictures)
        on_fake = discriminator(fakes)
        loss = binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
        loss = loss + binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
    recording.output(loss=loss)

# The region ran as it would have without `record`: the step can go on from it.
loss.backward()
optimizer.step()

with tbscope.SummaryWriter("runs/gan") as writer:
    writer.add_graph(recording.graph)
    # Beside the whole, each model by itself.
    writer.add_graph(generator, noise, tag="generator")
    writer.add_graph(discriminator, pictures, tag="discriminator")
print(repr(recording.graph))
print("tensorboard --logdir runs/gan")
