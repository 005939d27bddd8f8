"""The models that are measured, each with inputs; all weights are random."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CASES", "COUNTED", "PROFILED", "SCALING", "Case", "find_case"]


@dataclass(frozen=True, slots=True)
class Case:
    """One model to measure.

    Attributes:
        name: What the report calls it.
        make: Gives the model and its positional arguments.
        quick: Whether it is measured with `--quick`, too.
    """

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
    quick: bool = False


class Bottleneck(nn.Module):
    """The block of the deeper residual networks: 1x1, 3x3 and 1x1 convolutions."""

    expansion = 4

    def __init__(self, wide: int, planes: int, stride: int) -> None:
        super().__init__()
        out = planes * self.expansion
        self.conv1 = nn.Conv2d(wide, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU()
        self.downsample = shortcut(wide, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        return self.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class BasicBlock(nn.Module):
    """The block of the shallow residual networks: two 3x3 convolutions."""

    expansion = 1

    def __init__(self, wide: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU()
        self.downsample = shortcut(wide, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def shortcut(wide: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and wide == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """A residual network after He et al., arXiv:1512.03385, table 1."""

    def __init__(self, block: type[Bottleneck | BasicBlock], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        wide = 64
        for stage, depth in enumerate(depths):
            planes = 64 * 2**stage
            blocks = []
            for index in range(depth):
                blocks.append(block(wide, planes, 2 if stage and not index else 1))
                wide = planes * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(wide, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class Unrolled(nn.Module):
    """A recurrent cell called once per step, as beginners write it."""

    def __init__(self, width: int, cell: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.cell = cell(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros_like(x[0])
        for step in x:
            state = self.cell(step, state)
        return self.head(state)


def resnet(block: type[Bottleneck | BasicBlock], *depths: int, size: int = 224) -> Any:
    return lambda: (ResNet(block, depths), (torch.randn(1, 3, size, size),))


def chain(layers: int, width: int = 8) -> Any:
    return lambda: (
        nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))),
        (torch.randn(1, width),),
    )


def unrolled(steps: int, cell: Callable[[int, int], nn.Module] = nn.RNNCell) -> Any:
    return lambda: (Unrolled(8, cell), (torch.randn(steps, 1, 8),))


def tiny_mlp() -> Any:
    layers = nn.Sequential(nn.Linear(28, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    return nn.Sequential(layers, nn.Linear(64, 10)), (torch.randn(1, 28),)


def lstm() -> Any:
    return nn.LSTM(64, 64, num_layers=2, batch_first=True), (torch.randn(1, 32, 64),)


def torch_encoder() -> Any:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), (torch.randn(1, 32, 128),)


# Models of Hugging Face, deep as they are and narrow, since what is compared is what it
# costs to watch them. Without caches, which torch's own does not draw in any way.


def bert() -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=512,
    )
    return BertModel(config), (torch.randint(0, 1000, (1, 32)),)


def bert_base() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig()), (torch.randint(0, 1000, (1, 128)),)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=1000, n_embd=128, n_layer=12, n_head=4, use_cache=False)
    return GPT2LMHeadModel(config), (torch.randint(0, 1000, (1, 32)),)


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=64,
        patch_size=8,
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
    )
    return ViTForImageClassification(config), (torch.randn(1, 3, 64, 64),)


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=1000,
        d_model=128,
        d_kv=32,
        d_ff=512,
        num_layers=6,
        num_heads=4,
        use_cache=False,
    )
    ids = torch.randint(0, 1000, (1, 32))
    return T5ForConditionalGeneration(config), (ids, torch.ones_like(ids), ids[:, :16].clone())


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=1000,
        d_model=128,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    features = torch.randn(1, 80, 100)
    mask = torch.ones(1, 100, dtype=torch.int64)
    return WhisperModel(config), (features, mask, torch.randint(3, 1000, (1, 16)))


CASES = (
    Case("tiny MLP", tiny_mlp, quick=True),
    Case("LSTM, 2 layers", lstm, quick=True),
    Case("TransformerEncoder, 6", torch_encoder, quick=True),
    Case("MLP, 1,000 layers", chain(1000)),
    Case("ResNet-18", resnet(BasicBlock, 2, 2, 2, 2, size=64), quick=True),
    Case("ResNet-50", resnet(Bottleneck, 3, 4, 6, 3), quick=True),
    Case("ResNet-152", resnet(Bottleneck, 3, 8, 36, 3)),
    Case("BERT, 12 layers", bert, quick=True),
    Case("GPT-2, 12 layers", gpt2),
    Case("ViT, 12 layers", vit),
    Case("T5, 6 + 6 layers", t5),
    Case("Whisper, 4 + 4 layers", whisper),
)

SCALING = (
    Case("chain of 30", chain(30)),
    Case("chain of 100", chain(100), quick=True),
    Case("chain of 300", chain(300)),
    Case("chain of 1,000", chain(1000), quick=True),
    Case("chain of 3,000", chain(3000)),
    Case("chain of 10,000", chain(10_000)),
    Case("RNN of 10 steps", unrolled(10)),
    Case("RNN of 100 steps", unrolled(100), quick=True),
    Case("RNN of 1,000 steps", unrolled(1000)),
    Case("RNN of 3,000 steps", unrolled(3000)),
)

_CASES = {case.name: case for case in CASES}
# As wide as they are: it is what they compute that is measured. One is narrow, to show what
# Python between operations then is of a forward.
PROFILED = (
    _CASES["tiny MLP"],
    Case("ResNet-18 at 224", resnet(BasicBlock, 2, 2, 2, 2), quick=True),
    _CASES["ResNet-50"],
    _CASES["ResNet-152"],
    Case("BERT-base", bert_base, quick=True),
    _CASES["BERT, 12 layers"],
)


COUNTED = (
    _CASES["BERT, 12 layers"],
    _CASES["GPT-2, 12 layers"],
    _CASES["ResNet-50"],
    Case("chain of 300", chain(300), quick=True),
    Case("GRU cell of 100 steps", unrolled(100, nn.GRUCell), quick=True),
)
"""The models of which calls are counted."""


def find_case(name: str) -> Case:
    """Give the case of this name; KeyError where there is none."""
    return {case.name: case for case in (*CASES, *SCALING, *PROFILED, *COUNTED)}[name]
