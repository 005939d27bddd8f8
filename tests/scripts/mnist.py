"""MNIST as PyTorch's examples train it."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(576, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        print(epoch, batch_idx, loss.item())


def test(model, device, test_loader):
    model.eval()
    loss = 0
    with torch.no_grad():
        for data, target in test_loader:
            loss += F.nll_loss(model(data), target, reduction="sum").item()
    print("test", loss)


def main():
    torch.manual_seed(1)
    device = torch.device("cpu")
    data = torch.utils.data.TensorDataset(torch.randn(32, 1, 16, 16), torch.randint(10, (32,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        train(model, device, loader, optimizer, epoch)
        test(model, device, loader)
        scheduler.step()


if __name__ == "__main__":
    main()
