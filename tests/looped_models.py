"""Models that call their modules again and again, and join what each round gave."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn


class Field(nn.Module):
    """The right side of a differential equation; also a small network of others."""

    def __init__(self, width: int = 4, gives: int = 4) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, gives))

    def forward(self, *given: Tensor) -> Tensor:
        return self.net(torch.cat(given, -1))


class Wrapped(nn.Module):
    """Calls a function that another module owns, as solvers do; no module registers it."""

    def __init__(self, function: nn.Module, note: int) -> None:
        super().__init__()
        self.function, self.note = [function], note

    def extra_repr(self) -> str:
        return f"note={self.note}"

    def forward(self, y: Tensor) -> Tensor:
        y.abs()
        return self.function[0](y)


SLOPES = {
    "euler": [[]],
    "midpoint": [[], [1 / 2]],
    "rk4": [[], [1 / 3], [-1 / 3, 1], [1, -1, 1]],
    "dopri5": [
        [],
        [1 / 5],
        [3 / 40, 9 / 40],
        [44 / 45, -56 / 15, 32 / 9],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    ],
}


class Solver(nn.Module):
    """Integrates by a method of Runge and Kutta, its function wrapped anew or not."""

    def __init__(self, method: str, steps: int, wrapped: bool) -> None:
        super().__init__()
        self.field, self.method, self.steps, self.wrapped = Field(), method, steps, wrapped

    def step(self, y: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        slopes: list[Tensor] = []
        for row in SLOPES[self.method]:
            at = y
            for part, slope in zip(row, slopes, strict=True):
                at = at + dt * part * slope
            field = Wrapped(self.field, len(slopes) % 2) if self.wrapped else self.field
            slopes.append(field(at))
        total = sum(slopes) / len(slopes)
        return y + dt * total, (slopes[-1] - slopes[0]).abs().max()

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        times = torch.linspace(0, 1, self.steps + 1)
        states, errors = [y], []
        for start, end in pairwise(times):
            y, error = self.step(states[-1], end - start)
            states.append(y)
            errors.append(error)
        return torch.stack(states), torch.stack(errors)


class Adjoint(nn.Module):
    """Integrates there, and the gradient back."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.field, self.steps = Field(), steps

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.steps):
            y = y + self.field(y) / self.steps
        adjoint = torch.ones_like(y)
        for _ in range(self.steps):
            back, pulled = torch.func.vjp(self.field, y)
            y, adjoint = y - back / self.steps, adjoint + pulled(adjoint)[0] / self.steps
        return y, adjoint


class Neuron(nn.Module):
    """A leaky neuron that spikes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("beta", torch.tensor(0.9))
        self.threshold = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor, membrane: Tensor) -> tuple[Tensor, Tensor]:
        reset = (membrane > self.threshold).float().detach()
        membrane = self.beta.clamp(0, 1) * membrane + x - reset * self.threshold
        return (membrane > self.threshold).float(), membrane


class Spiking(nn.Module):
    """Layers of neurons, of which the last one's spikes and membranes are given back."""

    def __init__(self, steps: int, layers: int) -> None:
        super().__init__()
        self.steps = steps
        self.fc = nn.ModuleList([nn.Linear(4, 4) for _ in range(layers)])
        self.neurons = nn.ModuleList([Neuron() for _ in range(layers)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        membranes = [torch.zeros_like(x) for _ in self.neurons]
        spikes, traces = [], []
        for _ in range(self.steps):
            spike = x
            for at, (fc, neuron) in enumerate(zip(self.fc, self.neurons, strict=True)):
                spike, membranes[at] = neuron(fc(spike), membranes[at])
            spikes.append(spike)
            traces.append(membranes[-1])
        return torch.stack(spikes), torch.stack(traces)


class Cells(nn.Module):
    """Recurrent cells, one on the other, with as many outputs as are asked for."""

    def __init__(self, steps: int, kinds: list[type[nn.Module]], outputs: int) -> None:
        super().__init__()
        self.steps, self.outputs = steps, outputs
        self.cells = nn.ModuleList([kind(4, 4) for kind in kinds])
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        states: list[Any] = [None] * len(self.cells)
        seen, heads = [], []
        for step in range(self.steps):
            given = x if x.dim() == 2 else x[:, step]
            for at, cell in enumerate(self.cells):
                states[at] = cell(given, states[at])
                given = states[at][0] if isinstance(cell, nn.LSTMCell) else states[at]
            seen.append(given)
            if self.outputs > 1:
                heads.append(self.head(given))
        found = [torch.stack(seen), *([torch.stack(heads)] if heads else [])]
        return (*found, *(states if self.outputs > 2 else ()))


class Packed(nn.Module):
    """A recurrent network over sequences of unequal lengths."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, projected: int) -> None:
        super().__init__()
        more = {"proj_size": projected} if projected and kind is nn.LSTM else {}
        self.rnn = kind(4, 6, layers, batch_first=True, bidirectional=True, **more)

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        found, state = self.rnn(packed)
        return rnn.pad_packed_sequence(found, batch_first=True), state


class Memory(nn.Module):
    """A neural Turing machine: a controller that reads and writes a memory by content."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.LSTMCell(8, 8)
        self.key, self.erase, self.add = (nn.Linear(8, 4) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        memory, read, state = torch.full((len(x), 5, 4), 0.1), torch.zeros_like(x), None
        reads, weights = [], []
        for _ in range(self.steps):
            state = self.cell(torch.cat([x, read], 1), state)
            hidden = state[0]
            key = self.key(hidden)[:, None]
            weight = functional.cosine_similarity(memory, key, -1).softmax(-1)[..., None]
            read = (weight * memory).sum(1)
            kept = 1 - weight * self.erase(hidden).sigmoid()[:, None]
            memory = memory * kept + weight * self.add(hidden)[:, None]
            reads.append(read)
            weights.append(weight)
        return torch.stack(reads, 1), torch.stack(weights, 1), memory


class Beam(nn.Module):
    """A beam search."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.cell, self.out = steps, nn.GRUCell(4, 4), nn.Linear(4, 9)
        self.words = nn.Embedding(9, 4)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        words, scores = torch.zeros(len(state), dtype=torch.long), torch.zeros(len(state))
        found, trace = torch.zeros(len(state), 0, dtype=torch.long), []
        for _ in range(self.steps):
            state = self.cell(self.words(words), state)
            every = (self.out(state).log_softmax(-1) + scores[:, None]).view(-1)
            scores, places = every.topk(len(state))
            words, before = places % 9, places // 9
            state, found = state[before], torch.cat([found[before], words[:, None]], 1)
            trace.append(scores)
        return found, scores, torch.stack(trace)


class Tree(nn.Module):
    """Calls itself for both halves."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth, self.gate, self.leaf = depth, nn.Linear(8, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: list[Tensor] = []

        def node(x: Tensor, depth: int) -> Tensor:
            if not depth:
                return self.leaf(x).tanh()
            left, right = node(x * 1.1, depth - 1), node(x - 0.1, depth - 1)
            gate = self.gate(torch.cat([left, right], -1)).sigmoid()
            found.append(gate * left + (1 - gate) * right)
            return found[-1]

        return node(x, self.depth), torch.stack(found)


class Generated(nn.Module):
    """Layers whose weights another network makes of an embedding each."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.codes = nn.ParameterList([nn.Parameter(torch.rand(4)) for _ in range(layers)])
        self.make = nn.Linear(4, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = []
        for code in self.codes:
            made = self.make(code)
            x = functional.linear(x, made[:16].view(4, 4), made[16:]).relu()
            found.append(x)
        return x, torch.cat(found, -1)


class Experts(nn.Module):
    """A mixture of experts, called by numbers or by words, in several layers."""

    def __init__(self, experts: int, layers: int, words: bool) -> None:
        super().__init__()
        names = [chr(97 + at) if words else f"e{at}" for at in range(experts)]
        self.gates = nn.ModuleList([nn.Linear(4, experts) for _ in range(layers)])
        self.experts = nn.ModuleList(
            [nn.ModuleDict({name: Field() for name in names}) for _ in range(layers)]
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        balance = torch.zeros(())
        for gate, experts in zip(self.gates, self.experts, strict=True):
            share = gate(x).softmax(-1)
            found = torch.stack([expert(x) for expert in experts.values()], 1)
            x = x + (share[..., None] * found).sum(1)
            balance = balance + share.mean(0).pow(2).sum()
        return x, balance


class Messages(nn.Module):
    """A network on a graph that passes messages, by one module or by one for each round."""

    def __init__(self, rounds: int, shared: bool) -> None:
        super().__init__()
        count = 1 if shared else rounds
        self.rounds = rounds
        self.message = nn.ModuleList([Field(8) for _ in range(count)])
        self.update = nn.ModuleList([nn.GRUCell(4, 4) for _ in range(count)])

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        seen = [x]
        for at in range(self.rounds):
            message = self.message[at % len(self.message)](x[edges[0]], x[edges[1]])
            gathered = torch.zeros_like(x).index_add(0, edges[1], message)
            x = self.update[at % len(self.update)](gathered, x)
            seen.append(x)
        return x, torch.cat(seen, -1)


class Sampler(nn.Module):
    """Removes noise step by step, with guidance or without."""

    def __init__(self, steps: int, guided: bool) -> None:
        super().__init__()
        self.steps, self.guided, self.net = steps, guided, Field(5)
        self.register_buffer("kept", torch.linspace(0.99, 0.01, steps + 1))

    def noise(self, x: Tensor, time: float) -> Tensor:
        found = self.net(x, torch.full_like(x[:, :1], time))
        if self.guided:
            plain = self.net(x, torch.zeros_like(x[:, :1]))
            found = plain + 2 * (found - plain)
        return found

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        seen = []
        for step in reversed(range(self.steps)):
            noise, now, then = self.noise(x, step), self.kept[step + 1], self.kept[step]
            clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
            x = then.sqrt() * clean + (1 - then).sqrt() * noise
            seen.append(clean)
        return x, torch.stack(seen)


class Flow(nn.Module):
    """Coupling layers, and the logarithm of their determinant."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Field(2) for _ in range(layers)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        seen, total = [], torch.zeros(len(x))
        for layer in self.layers:
            left, right = x.chunk(2, -1)
            scale, shift = layer(left).chunk(2, -1)
            x = torch.cat([right * scale.tanh().exp() + shift, left], -1)
            total = total + scale.tanh().sum(-1)
            seen.append(x)
        return x, total, seen


FUNCTIONS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "jacrev": lambda net, x: torch.func.jacrev(net)(x[0]),
    "jacfwd": lambda net, x: torch.func.jacfwd(net)(x[0]),
    "vjp": lambda net, x: torch.func.vjp(net, x)[1](x),
    "jvp": lambda net, x: torch.func.jvp(net, (x,), (x,)),
    "linearize": lambda net, x: torch.func.linearize(net, x)[1](x),
    "hessian": lambda net, x: torch.func.hessian(lambda one: net(one).sum())(x[0]),
    "vmap": lambda net, x: torch.vmap(torch.func.grad(lambda one: net(one).sum()))(x),
}


class Transformed(nn.Module):
    """What a transform of functions makes of a network."""

    def __init__(self, kind: str, layers: int) -> None:
        super().__init__()
        self.kind = kind
        self.net = nn.Sequential(*(Field() for _ in range(layers)))

    def forward(self, x: Tensor) -> Any:
        return FUNCTIONS[self.kind](self.net, x)


def looped(random: Random) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Give a random one of these models, and its inputs."""
    x, many = torch.rand(3, 4), random.choice([2, 3, 5, 6, 8, 12, 16, 25])
    few, flag = random.randint(1, 3), random.random() < 0.5
    cells = random.choices([nn.RNNCell, nn.GRUCell, nn.LSTMCell], k=few)
    packed = x[:, None].expand(3, 5, 4).contiguous(), torch.tensor([3, 5, 2])
    edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])
    steps = random.choice([many, 40, 60])
    series = torch.rand(3, steps, 4)
    family: list[tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = [
        (partial(Solver, random.choice(sorted(SLOPES)), min(many, 12), flag), (x,)),
        (partial(Adjoint, many), (x,)),
        (partial(Spiking, many, few), (x,)),
        (partial(Cells, steps, cells, random.randint(1, 3)), (series if flag else x,)),
        (partial(Packed, random.choice([nn.LSTM, nn.GRU, nn.RNN]), few, 3 * flag), packed),
        (partial(Memory, many), (x,)),
        (partial(Beam, many), (x,)),
        (partial(Tree, few + 1), (x,)),
        (partial(Generated, many), (x,)),
        (partial(Experts, many, few, flag), (x,)),
        (partial(Messages, many, flag), (x, edges)),
        (partial(Sampler, many, flag), (x,)),
        (partial(Flow, many), (x,)),
        (partial(Transformed, random.choice(sorted(FUNCTIONS)), few), (x,)),
    ]
    make, inputs = random.choice(family)
    return make(), inputs
