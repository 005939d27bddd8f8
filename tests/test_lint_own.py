"""Our own graphs, held against our own rules: no drawing of any model breaks one."""

import inspect
import warnings
from random import Random

import pytest
import torch
from looped_models import Adjoint, Cells, Experts, Packed, Solver, Spiking, Transformed, looped
from real_graphs import real_graph
from sweeps import counted, sampled
from test_random_models import LEAVES, WIDTH, Program
from torch import nn
from torch.nn import functional

import tbscope

DRAWINGS = (
    {},
    {"leaves": "box"},
    {"style": "torch"},
    {"root": True, "dead": "drop"},
    {"level": "module"},
    {"level": "module", "leaves": "box", "style": "torch", "root": False},
    {"level": "aten"},
    {"level": "aten", "leaves": "box", "style": "torch", "dead": "drop"},
    {"keep": ["*"], "templates": False},
    {"cards": False, "color_by": "class"},
    {"helpers": "all"},
    {"labels": "class"},
    {"cards": False, "leaves": "box"},
)
# Which boxes may point at each other, and which not, is told by test_stands.py.
TOLD_ELSEWHERE = {"box-cycle"}
EVERY = {
    "level": ("overview", "module", "op", "aten"),
    "leaves": ("node", "box"),
    "root": (None, True, False),
    "style": ("tf", "torch"),
    "helpers": ("auto", "all", "none"),
    "dead": ("keep", "drop"),
    "color_by": ("kind", "class", "none"),
    "keep": ((), ("*",)),
    "labels": ("name", "class"),
    "templates": (True, False),
    "cards": (True, False),
}
LAYERS = {
    "linear": (lambda: nn.Linear(4, 4), (2, 4)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 2), (2, 4), (2, 4)),
    "conv": (lambda: nn.Conv2d(3, 4, 3), (1, 3, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3), (1, 3, 8, 8)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "group norm": (lambda: nn.GroupNorm(1, 4), (2, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), (2, 4)),
    "lstm": (lambda: nn.LSTM(4, 3, 2, bidirectional=True), (5, 2, 4)),
    "gru": (lambda: nn.GRU(4, 3), (5, 2, 4)),
    "rnn cell": (lambda: nn.RNNCell(4, 3), (2, 4)),
    "lstm cell": (lambda: nn.LSTMCell(4, 3), (2, 4)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), *[(3, 2, 4)] * 3),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (3, 2, 4)),
    "decoder layer": (lambda: nn.TransformerDecoderLayer(4, 2, 8), (3, 2, 4), (3, 2, 4)),
    "transformer": (lambda: nn.Transformer(4, 2, 1, 1, 8), (3, 2, 4), (3, 2, 4)),
    "pool": (lambda: nn.AdaptiveAvgPool2d(2), (1, 3, 8, 8)),
    "indices": (lambda: nn.MaxPool2d(2, return_indices=True), (1, 3, 8, 8)),
    "shuffle": (lambda: nn.PixelShuffle(2), (1, 4, 2, 2)),
    "padding": (lambda: nn.ConstantPad2d(1, 0.0), (1, 3, 4, 4)),
    "softmax": (lambda: nn.LogSoftmax(-1), (2, 4)),
    "gelu": (nn.GELU, (2, 4)),
    "prelu": (nn.PReLU, (2, 4)),
    "fold": (lambda: nn.Unfold(2), (1, 3, 4, 4)),
    "cosine": (nn.CosineSimilarity, (2, 4), (2, 4)),
    "loss": (nn.SmoothL1Loss, (2, 4), (2, 4)),
}
KINDS = (
    *("BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"),
    *("LongformerModel", "MambaModel", "JambaModel", "ViTForImageClassification"),
    *("SwinForImageClassification", "DetrForObjectDetection", "CLIPModel", "Wav2Vec2ForCTC"),
)


class Jagged(nn.Module):
    """Attention over sequences of unequal lengths."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x, offsets):
        nested = torch.nested.nested_tensor_from_jagged(x, offsets)
        heads = [part(nested).unflatten(-1, [2, 4]).transpose(1, 2) for part in self.parts[:3]]
        mixed = functional.scaled_dot_product_attention(*heads)
        return self.parts[3](mixed.transpose(1, 2).flatten(-2)).values()


class Unread(nn.Module):
    """Views of parameters and of constants that nobody reads."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 3))
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        torch.arange(3)[None]
        self.scale.t()[0], self.fc.weight.view(-1)
        return self.fc(x)


def filled(x):
    tensors = [torch.zeros(3).fill_(number) for number in range(60)]
    for one in tensors:
        x = x * one
    return x


def weighted(x):
    return [x * torch.tensor([1.0, 2.0, number]) for number in range(60)]


def equal(layer, count):
    return nn.Sequential(*(layer() for _ in range(count)))


LOOPED = {
    "rk4 of a function that is wrapped": lambda: (Solver("rk4", 6, True), torch.rand(3, 4)),
    "dopri5 of a function that is wrapped": lambda: (Solver("dopri5", 4, True), torch.rand(3, 4)),
    "adjoint": lambda: (Adjoint(6), torch.rand(3, 4)),
    "neurons of two layers": lambda: (Spiking(5, 2), torch.rand(3, 4)),
    "neurons of one layer": lambda: (Spiking(25, 1), torch.rand(3, 4)),
    "a cell fifty times": lambda: (Cells(50, [nn.GRUCell], 1), torch.rand(3, 50, 4)),
    "cells of two kinds": lambda: (Cells(20, [nn.LSTMCell, nn.RNNCell], 3), torch.rand(3, 4)),
    "packed": lambda: (
        Packed(nn.LSTM, 2, 3),
        (torch.rand(3, 5, 4), torch.tensor([3, 5, 2])),
    ),
    "linearize": lambda: (Transformed("linearize", 9), torch.rand(3, 4)),
    "experts by words": lambda: (Experts(20, 1, True), torch.rand(3, 4)),
}
ODD = {
    "filled": lambda: (filled, torch.rand(3)),
    "weighted": lambda: (weighted, torch.rand(3)),
    "unread": lambda: (Unread(), torch.rand(2, 3)),
    "jagged": lambda: (Jagged(), (torch.rand(10, 8), torch.tensor([0, 3, 7, 10]))),
    "110 layers": lambda: (equal(lambda: nn.Linear(2, 2), 110), torch.rand(1, 2)),
    "200 layers": lambda: (equal(nn.ReLU, 200), torch.rand(1, 2)),
    "290 layers": lambda: (equal(lambda: nn.Linear(2, 2), 290), torch.rand(1, 2)),
    "120 blocks": lambda: (
        equal(lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), 120),
        torch.rand(1, 2),
    ),
}


@pytest.fixture(autouse=True)
def quiet():
    """Let models warn of what they are built of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def turn(number, every, drawings=DRAWINGS):
    """Give what one of many models is drawn as: each way to draw has its turn every few models."""
    return sampled(drawings, drawings[number % every :: every])


def findings(model, inputs, drawings):
    """Give what the rules find, in each drawing in which they find something."""
    return broken(tbscope.trace(model, inputs, kernels=True), drawings)


def broken(graph, drawings):
    found = {str(how): tbscope.lint(tbscope.to_graph_def(graph, **how)) for how in drawings}
    told = {
        how: [str(one) for one in some if one.rule not in TOLD_ELSEWHERE]
        for how, some in found.items()
    }
    return {how: some for how, some in told.items() if some}


def random_program(random, depth=2):
    """Give a random module of leaves and others like it, that takes random steps."""
    parts = []
    for _ in range(random.randint(1, 4)):
        if depth and random.random() < 0.4:
            part = random_program(random, depth - 1)
        else:
            part = LEAVES[random.choice(sorted(LEAVES))]()
        parts.append((random.choice(("attribute", "list", "dict", "shared")), part))
    kinds = ("call", "call", "call", "add", "cat", "write", "view")
    count = random.randint(1, 20)
    steps = [(random.choice(kinds), *random.choices(range(8), k=3)) for _ in range(count)]
    return Program(parts, steps, random.choice(("tensor", "tuple", "dict")))


@pytest.mark.parametrize("name", LAYERS)
def test_no_layer_of_torch_breaks_a_rule_alone_or_among_others(name):
    make, *shapes = LAYERS[name]
    number = [*LAYERS].index(name)
    inputs = tuple(torch.rand(shape) for shape in shapes)
    assert findings(make().eval(), inputs, turn(number, 6)) == {}

    def several(*given):
        return [layer(*given) for layer in layers]

    layers = [make().eval() for _ in range(7)]
    assert findings(several, inputs, turn(number, 4, DRAWINGS[:5])) == {}


@pytest.mark.parametrize("seed", sampled(range(60), range(10)))
def test_no_random_model_breaks_a_rule(seed):
    torch.manual_seed(seed)
    model = random_program(Random(seed))
    assert findings(model, torch.rand(4, WIDTH), turn(seed, 5)) == {}


@pytest.mark.parametrize("seed", sampled(range(400), range(12)))
def test_no_random_model_that_loops_breaks_an_error_rule_in_any_random_drawing(seed):
    random = Random(seed)
    torch.manual_seed(seed)
    graph = tbscope.trace(*looped(random), kernels=True)
    for _ in range(counted(4, 2)):
        how = {option: random.choice(choices) for option, choices in EVERY.items()}
        found = tbscope.lint(tbscope.to_graph_def(graph, **how))
        assert [str(one) for one in found if one.severity == "error"] == [], how


@pytest.mark.parametrize("name", LOOPED)
def test_no_model_that_loops_loses_an_output(name):
    drawings = [*turn([*LOOPED].index(name), 4), {"helpers": "none"}]
    assert findings(*LOOPED[name](), drawings) == {}


@pytest.mark.parametrize("name", ODD)
def test_what_once_broke_a_rule_breaks_none(name):
    assert findings(*ODD[name](), turn([*ODD].index(name), 4)) == {}


@pytest.mark.parametrize("name", KINDS)
def test_no_model_of_transformers_breaks_a_rule(name):
    assert broken(real_graph(name), turn([*KINDS].index(name), 6)) == {}


def test_the_drawings_try_every_option():
    tried = {option for how in DRAWINGS for option in how}
    assert tried | {"hide"} == set(inspect.get_annotations(tbscope.Drawing))
