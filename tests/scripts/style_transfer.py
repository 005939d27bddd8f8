"""Neural style transfer as PyTorch's tutorial does it: LBFGS changes the pixels of a picture."""

import copy

import torch
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(0)
style_img, content_img = torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12)
cnn = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()
).eval()


class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()

    def forward(self, input):
        self.loss = F.mse_loss(input, self.target)
        return input


def gram_matrix(input):
    a, b, c, d = input.size()
    features = input.view(a * b, c * d)
    return torch.mm(features, features.t()).div(a * b * c * d)


class StyleLoss(nn.Module):
    def __init__(self, target_feature):
        super().__init__()
        self.target = gram_matrix(target_feature).detach()

    def forward(self, input):
        self.loss = F.mse_loss(gram_matrix(input), self.target)
        return input


model, content_losses, style_losses = nn.Sequential(), [], []
for i, layer in enumerate(copy.deepcopy(cnn).children()):
    model.add_module(f"{type(layer).__name__}_{i}", nn.ReLU() if i % 2 else layer)
    if i == 0:
        style_losses.append(StyleLoss(model(style_img).detach()))
        model.add_module("style_loss", style_losses[-1])
    if i == 2:
        content_losses.append(ContentLoss(model(content_img).detach()))
        model.add_module("content_loss", content_losses[-1])
input_img = content_img.clone().requires_grad_(True)
model.eval()
model.requires_grad_(False)
optimizer = optim.LBFGS([input_img], max_iter=3)
run = [0]
while run[0] <= 24:

    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        model(input_img)
        style_score = sum(sl.loss for sl in style_losses) * 1000000
        content_score = sum(cl.loss for cl in content_losses)
        loss = style_score + content_score
        loss.backward()
        run[0] += 1
        return style_score + content_score

    print(optimizer.step(closure).item())
print(input_img.sum().item())
