"""The models of docs/gallery.md that are written by hand: ten families, as papers tell of them."""

import torch
from torch import nn
from torch.nn import functional

__all__ = ["MAKERS"]

_IMAGE = torch.linspace(-1, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)
_WORDS = torch.arange(1, 9).reshape(1, 8)
_WIDTH = 32


class ConvNorm(nn.Sequential):
    """A convolution, a norm, an activation."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )


# -- detection ------------------------------------------------------------------------------


class FeaturePyramid(nn.Module):
    """Brings maps of all sizes to one width, each with what the smaller ones know."""

    def __init__(self, widths):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(width, _WIDTH, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=1) for _ in widths)

    def forward(self, maps):
        found, above = [], None
        for lateral, smooth, one in zip(
            reversed(self.lateral), reversed(self.smooth), reversed(maps), strict=True
        ):
            wide = lateral(one)
            above = wide if above is None else wide + functional.interpolate(above, scale_factor=2)
            found.append(smooth(above))
        return found[::-1]


class Head(nn.Module):
    """Tells classes and boxes of every place of a map."""

    def __init__(self, classes=5):
        super().__init__()
        self.tower = nn.Sequential(ConvNorm(_WIDTH, _WIDTH), ConvNorm(_WIDTH, _WIDTH))
        self.classes = nn.Conv2d(_WIDTH, classes, 1)
        self.boxes = nn.Conv2d(_WIDTH, 4, 1)

    def forward(self, x):
        x = self.tower(x)
        return self.classes(x).flatten(2), self.boxes(x).exp().flatten(2)


class Detector(nn.Module):
    """One look at an image: a trunk, a pyramid, one head for every size."""

    def __init__(self):
        super().__init__()
        self.stem = ConvNorm(3, 8, 2)
        widths = (16, 24, 32)
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNorm(before, width, 2), ConvNorm(width, width))
            for before, width in zip((8, 16, 24), widths, strict=True)
        )
        self.pyramid = FeaturePyramid(widths)
        self.head = Head()

    def forward(self, image):
        x = self.stem(image)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        told = [self.head(one) for one in self.pyramid(maps)]
        scores = torch.cat([scores for scores, _ in told], -1)
        return {"scores": scores.sigmoid(), "boxes": torch.cat([boxes for _, boxes in told], -1)}


def detector():
    return Detector(), {"image": _IMAGE}, (_IMAGE,)


# -- diffusion ------------------------------------------------------------------------------


class ResBlock(nn.Module):
    """Two convolutions that are told the time."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(_WIDTH, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    """Tells the noise in an image: down, through the middle, and up again."""

    def __init__(self, widths=(16, 32, 64)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.SiLU(), nn.Linear(_WIDTH, _WIDTH))
        self.enter = nn.Conv2d(3, widths[0], 3, padding=1)
        before = (widths[0], *widths)
        self.down = nn.ModuleList(map(ResBlock, before, widths))
        self.pool = nn.AvgPool2d(2)
        self.middle = ResBlock(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            ResBlock(here + width, below)
            for here, width, below in zip(
                (widths[-1], *reversed(widths[:-1])),
                reversed(widths),
                (*reversed(widths[:-1]), widths[0]),
                strict=True,
            )
        )
        self.leave = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, noisy, step):
        angles = step[:, None] * torch.linspace(0, 3, _WIDTH // 2).exp()
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        x, skips = self.enter(noisy), []
        for block in self.down:
            x = block(x, time)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x, time)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2)
            x = block(torch.cat([x, skips.pop()], 1), time)
        return self.leave(x)


def diffusion():
    noisy, step = _IMAGE, torch.tensor([7.0])
    return UNet(), {"noisy": noisy, "step": step}, (noisy, step)


# -- graph nets -----------------------------------------------------------------------------


class MessagePassing(nn.Module):
    """Each node hears from its neighbours, and thinks again."""

    def __init__(self):
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * _WIDTH, _WIDTH), nn.ReLU())
        self.update = nn.GRUCell(_WIDTH, _WIDTH)

    def forward(self, nodes, edges):
        start, end = edges
        said = self.message(torch.cat([nodes[start], nodes[end]], -1))
        heard = torch.zeros_like(nodes).index_add(0, end, said)
        return self.update(heard, nodes)


class GraphNet(nn.Module):
    """Tells one number of a graph."""

    def __init__(self, rounds=3):
        super().__init__()
        self.embed = nn.Linear(8, _WIDTH)
        self.rounds = nn.ModuleList(MessagePassing() for _ in range(rounds))
        self.gate, self.read = nn.Linear(_WIDTH, 1), nn.Linear(_WIDTH, 1)

    def forward(self, nodes, edges):
        x = self.embed(nodes)
        for each in self.rounds:
            x = each(x, edges)
        return (self.gate(x).sigmoid() * self.read(x)).sum(0)


def graph_net():
    nodes = torch.linspace(-1, 1, 48).reshape(6, 8)
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    return GraphNet(), {"nodes": nodes, "edges": edges}, (nodes, edges)


# -- state spaces ---------------------------------------------------------------------------


class StateSpace(nn.Module):
    """A linear system with a state for each channel, as a long convolution."""

    def __init__(self, states=8):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(_WIDTH, states))
        self.read = nn.Parameter(torch.randn(_WIDTH, states))
        self.through = nn.Parameter(torch.ones(_WIDTH))

    def kernel(self, length):
        times = torch.arange(length, dtype=torch.float32)
        powers = (-self.decay.exp()[..., None] * times).exp()
        return (self.read[..., None] * powers).sum(1)

    def forward(self, x):
        length = x.shape[-1]
        spectrum = torch.fft.rfft(self.kernel(length), 2 * length)
        y = torch.fft.irfft(torch.fft.rfft(x, 2 * length) * spectrum, 2 * length)
        return y[..., :length] + x * self.through[:, None]


class StateLayer(nn.Module):
    """A state space between a norm and a gate."""

    def __init__(self):
        super().__init__()
        self.norm, self.space = nn.LayerNorm(_WIDTH), StateSpace()
        self.mix = nn.Linear(_WIDTH, 2 * _WIDTH)

    def forward(self, x):
        y = self.space(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + functional.glu(self.mix(functional.gelu(y)))


class StateModel(nn.Module):
    """Says what a long signal is."""

    def __init__(self, layers=4):
        super().__init__()
        self.enter, self.leave = nn.Linear(1, _WIDTH), nn.Linear(_WIDTH, 10)
        self.layers = nn.Sequential(*(StateLayer() for _ in range(layers)))

    def forward(self, signal):
        return self.leave(self.layers(self.enter(signal)).mean(1))


def state_space():
    signal = torch.linspace(-1, 1, 100).reshape(1, 100, 1)
    return StateModel(), {"signal": signal}, (signal,)


# -- speech ---------------------------------------------------------------------------------


class Conformer(nn.Module):
    """Half a feed-forward part, attention, convolution, the other half."""

    def __init__(self):
        super().__init__()
        self.before, self.after = self._half(), self._half()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.attention = nn.MultiheadAttention(_WIDTH, 4, batch_first=True)
        self.conv = nn.Sequential(
            nn.Conv1d(_WIDTH, 2 * _WIDTH, 1),
            nn.GLU(1),
            nn.Conv1d(_WIDTH, _WIDTH, 7, padding=3, groups=_WIDTH),
            nn.BatchNorm1d(_WIDTH),
            nn.SiLU(),
            nn.Conv1d(_WIDTH, _WIDTH, 1),
        )
        self.norm = nn.LayerNorm(_WIDTH)

    def _half(self):
        inner = 4 * _WIDTH
        return nn.Sequential(
            nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, inner), nn.SiLU(), nn.Linear(inner, _WIDTH)
        )

    def forward(self, x):
        x = x + self.before(x) / 2
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.conv(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return self.norm(x + self.after(x) / 2)


class Speech(nn.Module):
    """Letters of a spectrogram, for a loss that knows no places."""

    def __init__(self, layers=3):
        super().__init__()
        self.subsample = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
        )
        self.project = nn.Linear(8 * 20, _WIDTH)
        self.layers = nn.ModuleList(Conformer() for _ in range(layers))
        self.letters = nn.Linear(_WIDTH, 30)

    def forward(self, spectrogram):
        x = self.subsample(spectrogram[:, None])
        x = self.project(x.transpose(1, 2).flatten(2))
        for layer in self.layers:
            x = layer(x)
        return self.letters(x).log_softmax(-1)


def speech():
    sound = torch.linspace(-1, 1, 64 * 80).reshape(1, 64, 80)
    return Speech(), {"spectrogram": sound}, (sound,)


# -- mixtures of experts --------------------------------------------------------------------


class Expert(nn.Sequential):
    """A small feed-forward part."""

    def __init__(self):
        super().__init__(nn.Linear(_WIDTH, 64), nn.GELU(), nn.Linear(64, _WIDTH))


class Mixture(nn.Module):
    """Sends each word to two of its experts; one further is for all."""

    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(_WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))
        self.shared = Expert()

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        y = self.shared(x)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            y = y + share * expert(x)
        return y


class MixtureLayer(nn.Module):
    """Attention and a mixture, each around a residual."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.mixture = Mixture()

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mixture(self.norm2(x))


class MixtureModel(nn.Module):
    """A language model, whose head is its embedding."""

    def __init__(self, layers=3):
        super().__init__()
        self.embed = nn.Embedding(100, _WIDTH)
        self.layers = nn.ModuleList(MixtureLayer() for _ in range(layers))
        self.head = nn.Linear(_WIDTH, 100, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def mixture():
    return MixtureModel(), {"words": _WORDS}, (_WORDS,)


# -- images and words -----------------------------------------------------------------------


class Captioner(nn.Module):
    """Looks at an image, and says the next word."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, _WIDTH, 16, 16)
        self.places = nn.Parameter(torch.zeros(1, 16, _WIDTH))
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 64, batch_first=True)
        self.vision = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.embed = nn.Embedding(100, _WIDTH)
        layer = nn.TransformerDecoderLayer(_WIDTH, 4, 64, batch_first=True)
        self.language = nn.TransformerDecoder(layer, 2)
        self.next_word = nn.Linear(_WIDTH, 100)

    def forward(self, image, words):
        seen = self.vision(self.patches(image).flatten(2).transpose(1, 2) + self.places)
        mask = torch.ones(words.shape[1], words.shape[1]).triu(1).bool()
        return self.next_word(self.language(self.embed(words), seen, tgt_mask=mask))


def captioner():
    given = {"image": _IMAGE, "words": _WORDS}
    return Captioner(), given, (_IMAGE, _WORDS)


# -- a decoder, step by step ----------------------------------------------------------------


class Attention(nn.Module):
    """Looks at what was read, from where the decoder is."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.score = nn.Linear(_WIDTH, 1)

    def forward(self, state, read):
        scores = self.score((self.query(state)[:, None] + self.key(read)).tanh())
        return (scores.softmax(1) * read).sum(1)


class Translator(nn.Module):
    """Reads words, and says others one by one, by a loop of its own."""

    def __init__(self, steps=12):
        super().__init__()
        self.steps = steps
        self.source, self.target = nn.Embedding(100, _WIDTH), nn.Embedding(100, _WIDTH)
        self.reader = nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        self.attention = Attention()
        self.cell = nn.GRUCell(2 * _WIDTH, _WIDTH)
        self.say = nn.Linear(_WIDTH, 100)

    def forward(self, words):
        read, state = self.reader(self.source(words))
        state = state[0]
        word, said = words.new_zeros(len(words)), []
        for _ in range(self.steps):
            context = self.attention(state, read)
            state = self.cell(torch.cat([self.target(word), context], -1), state)
            scores = self.say(state)
            word = scores.argmax(-1)
            said.append(scores)
        return torch.stack(said, 1)


def translator():
    return Translator(), {"words": _WORDS}, (_WORDS,)


# -- two that play against each other -------------------------------------------------------


class Generator(nn.Sequential):
    """Makes an image of noise."""

    def __init__(self):
        layers = []
        for inputs, outputs in ((_WIDTH, 32), (32, 16), (16, 8)):
            layers += [
                nn.ConvTranspose2d(inputs, outputs, 4, 2, 1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
            ]
        super().__init__(*layers, nn.Conv2d(8, 3, 3, padding=1), nn.Tanh())


class Discriminator(nn.Sequential):
    """Tells how real an image looks."""

    def __init__(self):
        layers = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.LeakyReLU(0.2)]
        super().__init__(*layers, nn.Flatten(), nn.Linear(32 * 64, 1))


class AdversarialStep(nn.Module):
    """The losses of both, for one batch."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = Generator(), Discriminator()

    def forward(self, noise, real):
        fake = self.generator(noise)
        fooled = self.discriminator(fake)
        told_real, told_fake = self.discriminator(real), self.discriminator(fake.detach())
        return {
            "generator_loss": functional.softplus(-fooled).mean(),
            "discriminator_loss": (
                functional.softplus(-told_real) + functional.softplus(told_fake)
            ).mean(),
        }


def adversarial():
    noise = torch.linspace(-1, 1, 8 * 8 * _WIDTH).reshape(1, _WIDTH, 8, 8)
    return AdversarialStep(), {"noise": noise, "real": _IMAGE}, (noise, _IMAGE)


# -- an autoencoder that draws lots ---------------------------------------------------------


class Autoencoder(nn.Module):
    """A variational one: an image, a normal distribution, a draw of it, an image."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(ConvNorm(3, 8, 2), ConvNorm(8, 16, 2), nn.Flatten())
        self.mean, self.log_variance = nn.Linear(16 * 256, 8), nn.Linear(16 * 256, 8)
        self.decoder = nn.Sequential(
            nn.Linear(8, 16 * 256),
            nn.Unflatten(1, (16, 16, 16)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def sample(self, mean, log_variance):
        return mean + torch.randn_like(mean) * (log_variance / 2).exp()

    def forward(self, image):
        x = self.encoder(image)
        mean, log_variance = self.mean(x), self.log_variance(x)
        again = self.decoder(self.sample(mean, log_variance))
        divergence = (mean**2 + log_variance.exp() - log_variance - 1).sum(-1) / 2
        return {"image": again, "loss": functional.mse_loss(again, image) + divergence.mean()}


def autoencoder():
    return Autoencoder(), {"image": _IMAGE}, (_IMAGE,)


MAKERS = (
    *(detector, diffusion, graph_net, state_space, speech),
    *(mixture, captioner, translator, adversarial, autoencoder),
)
"""Each gives a model, what it is called with by name, and the same by position."""
