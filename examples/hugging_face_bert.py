"""A Hugging Face model with keyword arguments: BERT, small, with random weights."""

import torch
from transformers import BertConfig, BertForSequenceClassification

import tbscope

config = BertConfig(
    vocab_size=1000,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=128,
)
model = BertForSequenceClassification(config)
batch = {
    "input_ids": torch.randint(0, 1000, (2, 16)),
    "attention_mask": torch.ones(2, 16, dtype=torch.int64),
}

with tbscope.SummaryWriter("runs/bert") as writer:
    # A mapping from parameters of forward is its keyword arguments; kwargs adds to them.
    graph = writer.add_graph(model, batch, kwargs={"labels": torch.tensor([0, 1])})

for output in graph.outputs:
    print(output.name, output.value.shape)
print("tensorboard --logdir runs/bert")
