"""A plain Llama, cut into stages and spread over a mesh: models too large for one machine."""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Attention(nn.Module):
    """Attention whose keys and values several heads share."""

    def __init__(self, width, heads, shared):
        super().__init__()
        self.size = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, shared * self.size, bias=False)
        self.wv = nn.Linear(width, shared * self.size, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, tokens, _ = x.shape
        query, key, value = (
            layer(x).view(batch, tokens, -1, self.size).transpose(1, 2)
            for layer in (self.wq, self.wk, self.wv)
        )
        each = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.wo(each.transpose(1, 2).reshape(batch, tokens, -1))


class FeedForward(nn.Module):
    """The gated layer between attentions."""

    def __init__(self, width, inner):
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    """One layer."""

    def __init__(self, width, heads, shared, inner):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads, shared)
        self.ffn_norm = nn.RMSNorm(width)
        self.feed_forward = FeedForward(width, inner)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Some of the layers: all of them, or those of one stage of a pipeline."""

    def __init__(self, size, layers, *, first=True, last=True):
        super().__init__()
        vocabulary, width, heads, shared, inner = size
        self.embeddings = nn.Embedding(vocabulary, width) if first else None
        self.layers = nn.ModuleList([Layer(width, heads, shared, inner) for _ in range(layers)])
        self.norm = nn.RMSNorm(width) if last else None
        self.output = nn.Linear(width, vocabulary, bias=False) if last else None

    def forward(self, x):
        x = x if self.embeddings is None else self.embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.output is None else self.output(self.norm(x))


SMALL = (64, 32, 8, 4, 48)
# Of 405 billion parameters in 126 layers.
LARGE = (128_256, 16_384, 128, 8, 53_248)

PLAN = {
    "attention.wq": ColwiseParallel(),
    "attention.wk": ColwiseParallel(),
    "attention.wv": ColwiseParallel(),
    "attention.wo": RowwiseParallel(),
    "feed_forward.w1": ColwiseParallel(),
    "feed_forward.w2": RowwiseParallel(),
    "feed_forward.w3": ColwiseParallel(),
}


def spread(size, layers, mesh, *, first=True, last=True):
    """Give one stage, with its layers spread over `tp` and its parameters over `dp`."""
    with torch.device("meta"):
        model = Llama(size, layers, first=first, last=last).bfloat16()
    for layer in model.layers:
        parallelize_module(layer, mesh["tp"], PLAN)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    # Of memory that nobody writes into, nothing is taken.
    return model.to_empty(device="cpu")
