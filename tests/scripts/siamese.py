"""A siamese network, called three times for each triplet loss."""

import torch
from torch import nn

torch.manual_seed(0)


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return nn.functional.normalize(self.fc(self.cnn(x)))


class Trainer:
    def __init__(self, network):
        self.network = network
        self.loss = nn.TripletMarginLoss(margin=1.0)
        self.optimizer = torch.optim.RMSprop(network.parameters(), lr=0.001)

    def step(self, anchor, positive, negative):
        self.optimizer.zero_grad()
        embedded = self.network(anchor), self.network(positive), self.network(negative)
        loss = self.loss(*embedded)
        loss.backward()
        self.optimizer.step()
        return loss.item()


trainer = Trainer(SiameseNetwork())
for images in torch.randn(4, 3, 4, 1, 8, 8):
    print(trainer.step(*images))
