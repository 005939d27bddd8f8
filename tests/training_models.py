"""Real models with whole training steps: what each needs to begin one, and how it is made."""

import copy

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from training_steps import IMAGES, TARGETS

TOKENS = torch.arange(24).reshape(2, 12) % 40
SEQUENCES = torch.linspace(-1, 1, 90).reshape(3, 5, 6)
POINTS = torch.linspace(-1, 1, 32).reshape(8, 4)


class Block(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.drop, self.checkpointed = nn.Dropout(0.2), checkpointed

    def run(self, x):
        return torch.relu(self.drop(self.norm(self.conv(x))))

    def forward(self, x):
        return x + (
            checkpoint(self.run, x, use_reentrant=False) if self.checkpointed else self.run(x)
        )


class ResNet(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 2)
        self.blocks = nn.Sequential(Block(checkpointed), Block(checkpointed))

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class LowRank(nn.Module):
    """A frozen layer with a learnt matrix of low rank beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, 2, dropout=0.1, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        packed = pack_padded_sequence(x, [5, 4, 2], batch_first=True)
        return self.head(self.lstm(packed)[0].data)


def transformer(kind):
    import transformers

    sizes = {"vocab_size": 40, "use_cache": False}
    if kind == "bert":
        sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, intermediate_size=32))
    sizes |= {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 12}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))


class Training:
    """A model with its optimizers; `step` trains it once.

    Args:
        make: Makes the model, or the models.
        step: Given the training, makes a step.
        optimizer: Makes the optimizer of one model.
    """

    def __init__(self, make, step, optimizer=torch.optim.AdamW):
        torch.manual_seed(0)
        made = make()
        self.models = list(made) if isinstance(made, tuple) else [made]
        self.model = self.models[0]
        self.optimizers = [optimizer(model.parameters()) for model in self.models]
        self.optimizer = self.optimizers[0]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self._step = step

    def step(self):
        self._step(self)

    def state(self):
        """Give all that a step changes, as plain nests of tensors and numbers."""
        return copy.deepcopy(
            {
                "models": [model.state_dict() for model in self.models],
                "gradients": [[one.grad for one in model.parameters()] for model in self.models],
                "optimizers": [each.state_dict() for each in self.optimizers],
                "scaler": self.scaler.state_dict(),
                "random": torch.get_rng_state(),
            }
        )


def classify(training):
    training.optimizer.zero_grad()
    nn.functional.cross_entropy(training.model(IMAGES), TARGETS).backward()
    nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
    training.optimizer.step()


def language(training):
    training.optimizer.zero_grad()
    training.model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    training.optimizer.step()


def tag(training):
    training.optimizer.zero_grad()
    training.model(SEQUENCES).pow(2).mean().backward()
    training.optimizer.step()


def adversarial(training):
    generator, discriminator = training.models
    first, second = training.optimizers
    fakes = generator(torch.randn(8, 4))
    second.zero_grad()
    (discriminator(fakes.detach()).mean() - discriminator(POINTS).mean()).backward()
    second.step()
    first.zero_grad()
    (-discriminator(fakes).mean()).backward()
    first.step()


def mixed(training):
    training.optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(training.model(IMAGES).float(), TARGETS)
    training.scaler.scale(loss).backward()
    training.scaler.unscale_(training.optimizer)
    nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
    training.scaler.step(training.optimizer)
    training.scaler.update()


def adapt(training):
    training.optimizer.zero_grad()
    training.model(POINTS).pow(2).mean().backward()
    training.optimizer.step()


def accumulate(training):
    training.optimizer.zero_grad()
    for images in IMAGES.split(2):
        training.model(images).pow(2).mean().div(2).backward()
    training.optimizer.step()


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)


def multilayer(outputs=4):
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, outputs))


TRAININGS = {
    "ResNet": lambda: Training(ResNet, classify, momentum),
    "ResNet, fused Adam": lambda: Training(
        ResNet, classify, lambda given: torch.optim.Adam(given, fused=True)
    ),
    "BERT": lambda: Training(lambda: transformer("bert"), language),
    "GPT-2": lambda: Training(lambda: transformer("gpt2"), language),
    "LSTM, packed": lambda: Training(Tagger, tag),
    "GAN": lambda: Training(lambda: (multilayer(), multilayer(1)), adversarial),
    "bfloat16 and GradScaler": lambda: Training(ResNet, mixed),
    "checkpointing": lambda: Training(lambda: ResNet(checkpointed=True), classify),
    "LoRA": lambda: Training(
        lambda: nn.Sequential(LowRank(nn.Linear(4, 8)), nn.GELU(), LowRank(nn.Linear(8, 4))), adapt
    ),
    "accumulation": lambda: Training(ResNet, accumulate),
    "DDP": lambda: Training(lambda: DistributedDataParallel(ResNet()), classify),
    "DDP, gradients as views": lambda: Training(
        lambda: DistributedDataParallel(ResNet(), gradient_as_bucket_view=True), classify
    ),
}
"""Whole trainings, by name; those called DDP need a group of processes."""
