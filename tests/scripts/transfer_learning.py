"""Transfer learning: a frozen backbone, a new head, phases of training and validation."""

import copy

import torch
from torch import nn, optim
from torch.optim import lr_scheduler

torch.manual_seed(0)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 100)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer1(x) + x
        return self.fc(torch.flatten(self.avgpool(x), 1))


model = Backbone()
for param in model.parameters():
    param.requires_grad = False
model.fc = nn.Linear(model.fc.in_features, 2)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.fc.parameters(), lr=0.001, momentum=0.9)
scheduler = lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
loaders = {phase: list(torch.randn(3, 4, 3, 8, 8)) for phase in ("train", "val")}
best, best_loss = copy.deepcopy(model.state_dict()), float("inf")
for epoch in range(2):
    for phase in ("train", "val"):
        model.train(phase == "train")
        running_loss = 0.0
        for inputs in loaders[phase]:
            labels = (inputs.mean((1, 2, 3)) > 0).long()
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = model(inputs)
                _, preds = torch.max(outputs, 1)
                loss = criterion(outputs, labels)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        if phase == "train":
            scheduler.step()
        print(epoch, phase, running_loss)
        if phase == "val" and running_loss < best_loss:
            best, best_loss = copy.deepcopy(model.state_dict()), running_loss
model.load_state_dict(best)
print(model.fc.weight.sum().item())
