"""One model in training mode and in evaluation mode: two tags of one run."""

import torch
from torch import nn

import tbscope

model = nn.Sequential(
    nn.Conv2d(3, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Dropout(0.1),
    nn.Flatten(),
    nn.Linear(8 * 14 * 14, 10),
)
image = torch.rand(4, 3, 16, 16)

with tbscope.SummaryWriter("runs/train_and_eval") as writer:
    # The first part of a tag is its place in the page's list.
    writer.add_graph(model, image, tag="1 train", training=True)
    writer.add_graph(model, image, tag="2 eval")
    # As runs of their own they stand in the list of runs, beside the scalars of each.
    for run_name in ("train", "eval"):
        writer.add_graph(model, image, training=run_name == "train", run_name=run_name)
print("tensorboard --logdir runs/train_and_eval")
