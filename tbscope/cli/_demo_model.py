"""The model of `tbscope demo`: from a picture and the words so far to the next word of its caption.

Ordinary PyTorch code and nothing of tbscope: a small residual network reads the picture, a
small Transformer the caption so far.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Captioner", "make_inputs", "make_model"]


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, channels, height / stride, width / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class PictureEncoder(nn.Module):
    """A picture to a row of feature vectors, one a patch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU())
        self.stage1 = nn.Sequential(
            ResidualBlock(16, 16, stride=1), ResidualBlock(16, 16, stride=1)
        )
        self.stage2 = nn.Sequential(
            ResidualBlock(16, 64, stride=2), ResidualBlock(64, 64, stride=1)
        )
        self.project = nn.Linear(64, width)

    def forward(self, picture: Tensor) -> Tensor:
        """(batch, 3, height, width) to (batch, patches, width)."""
        y = self.stage2(self.stage1(self.stem(picture)))
        return self.project(y.flatten(2).transpose(1, 2))  # type: ignore[no-any-return]


class Captioner(nn.Module):
    """A picture and the words so far to a score for each next word."""

    def __init__(self, words: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.encoder = PictureEncoder(width)
        self.embed = nn.Embedding(words, width)
        layer = nn.TransformerDecoderLayer(width, 4, 4 * width, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 4)
        self.head = nn.Linear(width, words)

    def forward(self, picture: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Return `scores` (batch, length, words) and `features` (batch, patches, width)."""
        features = self.encoder(picture)
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        caption = self.decoder(self.embed(words), features, tgt_mask=mask, tgt_is_causal=True)
        return {"scores": self.head(caption), "features": features}


def make_model() -> Captioner:
    """Build the model with random weights."""
    return Captioner()


def make_inputs() -> tuple[Tensor, Tensor]:
    """Return an example picture and a caption of eight words."""
    return torch.zeros(1, 3, 64, 64), torch.zeros(1, 8, dtype=torch.int64)
