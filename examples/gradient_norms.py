"""How large the gradients of a GPT-2 are after a step, on its graph: an overlay of one's own."""

import torch
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

import tbscope

# Small, and with random weights, so that nothing is loaded.
config = GPT2Config(n_embd=64, n_layer=6, n_head=4, vocab_size=500, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
ids = torch.randint(0, 500, (4, 32))

with tbscope.SummaryWriter("runs/gradient_norms") as writer:
    graph = writer.add_graph(model, {"input_ids": ids}, profile=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        scores = model(ids).logits
        cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        norms = {name: weight.grad.norm() for name, weight in model.named_parameters()}
        writer.add_overlay("gradient norm", graph, norms, step=step)
        optimizer.step()
    # What tbscope knows itself; the profile of the run has the times.
    for name in ("flops", "parameters", "activation_bytes"):
        writer.add_overlay(name, graph)
print("tensorboard --logdir runs/gradient_norms, graph type Profile, color by Memory")
