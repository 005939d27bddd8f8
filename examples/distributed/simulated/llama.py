"""A step of a Llama as torchtitan trains it, as one of 8 ranks that are simulated in one process.

FSDP2 along 4 of them, tensor and sequence parallel along 2, activation checkpoints, mixed
precision, clipped gradients.

python examples/distributed/simulated/llama.py
tensorboard --logdir runs/llama
"""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import tbscope

VOCABULARY, WIDTH, HEADS, LENGTH = 64, 32, 4, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, False) for _ in range(4))

    def forward(self, x, turns):
        heads = [w(x).unflatten(-1, (-1, WIDTH // HEADS)) for w in (self.wq, self.wk, self.wv)]
        query, key, value = (each.transpose(1, 2) for each in heads)
        query, key = rotated(query, turns), rotated(key, turns)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


def rotated(x, turns):
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 3 * WIDTH, False) for _ in range(2))
        self.w2 = nn.Linear(3 * WIDTH, WIDTH, False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.ffn_norm, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(layers)])
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, False)
        angles = 10_000.0 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        angles = torch.outer(torch.arange(LENGTH), angles)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, tokens):
        # A stage of a pipeline has only some of the parts.
        x = tokens if self.embeddings is None else self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.turns)
        return x if self.output is None else self.output(self.norm(x))


PLAN = {
    "embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    "layers.*.*_norm": SequenceParallel(),
    "layers.*.attention": PrepareModuleInput(
        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
    ),
    "layers.*.feed_forward": PrepareModuleInput(
        input_layouts=Shard(1), desired_input_layouts=Replicate()
    ),
    **{f"layers.*.attention.w{name}": ColwiseParallel() for name in "qkv"},
    **{f"layers.*.feed_forward.w{name}": ColwiseParallel() for name in "13"},
    "layers.*.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
}


def parallelize(model, mesh):
    parallelize_module(model, mesh["tp"], PLAN)
    spread = {"mesh": mesh["dp"], "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}
    for number in range(len(model.layers)):
        model.layers[number] = checkpoint_wrapper(model.layers[number])
        fully_shard(model.layers[number], **spread)
    fully_shard(model.embeddings, **spread)
    fully_shard([model.norm, model.output], reshard_after_forward=False, **spread)
    return fully_shard(model, **spread)


def train(model, optimizer, tokens):
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    with tbscope.fake_world(8, mesh={"dp": 4, "tp": 2}) as mesh:
        model = parallelize(Llama(), mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(VOCABULARY, (2, LENGTH))
        train(model, optimizer, tokens)
        with tbscope.record(model) as recording:
            train(model, optimizer, tokens)
    with tbscope.SummaryWriter("runs/llama") as writer:
        writer.add_graph(recording.graph, color_by="mesh")
        writer.add_overlay("communication_bytes", recording.graph)
    print(recording.graph.summary(depth=2))
