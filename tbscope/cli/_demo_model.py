"""The model of `tbscope demo`: it looks at a picture and names the next word of its caption.

Ordinary PyTorch code and nothing of tbscope: a small residual network reads the picture, a
small Transformer reads the caption so far.
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
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, channels, height / stride, width / stride)."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class PictureEncoder(nn.Module):
    """A picture to a row of feature vectors, one a patch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.stage1 = nn.Sequential(
            ResidualBlock(16, 16, stride=1), ResidualBlock(16, 16, stride=1)
        )
        self.stage2 = nn.Sequential(
            ResidualBlock(16, 32, stride=2), ResidualBlock(32, 32, stride=1)
        )
        self.stage3 = nn.Sequential(
            ResidualBlock(32, 64, stride=2), ResidualBlock(64, 64, stride=1)
        )
        self.project = nn.Linear(64, width)

    def forward(self, picture: Tensor) -> Tensor:
        """(batch, 3, height, width) to (batch, patches, width)."""
        y = self.stage3(self.stage2(self.stage1(self.stem(picture))))
        return self.project(y.flatten(2).transpose(1, 2))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Attention of several heads, from one sequence to another or to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, *, causal: bool = False) -> Tensor:
        """(batch, length, width) to the same."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), self.key(memory), self.value(memory))
        )
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return self.out(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Looks at the words so far, then at the picture, then thinks."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.words = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.picture = Attention(width, heads)
        self.norm3 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        y = self.norm1(x)
        x = x + self.words(y, y, causal=True)
        x = x + self.picture(self.norm2(x), features)
        return x + self.mlp(self.norm3(x))  # type: ignore[no-any-return]


class CaptionDecoder(nn.Module):
    """The words so far and the picture's features to a score for each next word."""

    def __init__(self, words: int, width: int, *, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.position = nn.Embedding(64, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, features: Tensor) -> Tensor:
        """(batch, length) of whole numbers to (batch, length, width)."""
        x = self.embed(words) + self.position(torch.arange(words.shape[1]))
        for layer in self.layers:
            x = layer(x, features)
        return self.norm(x)  # type: ignore[no-any-return]


class Captioner(nn.Module):
    """A picture and the words so far to a score for each next word."""

    def __init__(self, words: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.encoder = PictureEncoder(width)
        self.decoder = CaptionDecoder(words, width, layers=4)
        self.head = nn.Linear(width, words)

    def forward(self, picture: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Return `scores` (batch, length, words) and `features` (batch, patches, width)."""
        features = self.encoder(picture)
        return {"scores": self.head(self.decoder(words, features)), "features": features}


def make_model() -> Captioner:
    """Build the model with random weights."""
    return Captioner()


def make_inputs() -> tuple[Tensor, Tensor]:
    """Return an example picture and a caption of eight words."""
    return torch.zeros(1, 3, 64, 64), torch.zeros(1, 8, dtype=torch.int64)
