"""Scopes by hand: parts of a training step that no module stands for get boxes of their own."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, softmax

import tbscope


class Distillation(nn.Module):
    """A student that learns from labels and from a teacher."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
        self.student = nn.Linear(16, 4)

    @tbscope.scope("soft_targets")
    def soften(self, scores, temperature=2.0):
        return softmax(scores / temperature, dim=-1)

    def forward(self, x, labels):
        with torch.no_grad():
            targets = self.soften(self.teacher(x))
        scores = self.student(x)
        with tbscope.scope("loss"):
            with tbscope.scope("labels"):
                hard = cross_entropy(scores, labels)
            with tbscope.scope("teacher"):
                soft = kl_div(log_softmax(scores, dim=-1), targets, reduction="batchmean")
            return hard + 0.5 * soft


with tbscope.SummaryWriter("runs/distillation") as writer:
    inputs = (torch.rand(8, 16), torch.randint(0, 4, (8,)))
    graph = writer.add_graph(Distillation(), inputs, training=True)
print("\n".join(scope.path for scope in graph.scopes()))
print("tensorboard --logdir runs/distillation")
