"""Models with everything that TensorBoard's page could trip over, to be drawn in it."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Reserved(nn.Module):
    """Modules called like what every JavaScript object has, and like marks of the page."""

    NAMES = (
        *("constructor", "toString", "valueOf", "hasOwnProperty", "isPrototypeOf", "__proto__"),
        *("__root__", "__function_library__", "a/b", "/slash", "slash/", "two//", "a:0", "^hat"),
        *("größe", "層", "an apostrophe'", 'quotes"', "curly{}", "x y", "<b>", "100%", "(net)"),
    )

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
            # torch itself takes no name that the class has.
            self._modules[name] = inner

    def forward(self, x: Tensor) -> Tensor:
        for inner in self._modules.values():
            x = x + inner(x)
        return x


class constructor(nn.Module):  # noqa: N801
    """Classes whose names are no good op types."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Summary(constructor):
    pass


class NoOp(constructor):
    pass


class Assign(constructor):
    pass


class Const(constructor):
    pass


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pad = nn.ConstantPad2d(1, 0.0)
        made = (constructor(), Summary(), NoOp(), Assign(), Const(), nn.Identity())
        self.each = nn.ModuleList(made)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pad(x)
        for one in self.each:
            x = one(x)
        return x


class Numbered(nn.Module):
    """Layers that the page would fold into one stack, of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        for at in range(1, 8):
            self.add_module(f"fc{at}", nn.Linear(at + 1, at + 2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.tanh(layer(x))
        return x


class Twice(nn.Module):
    """Two tensors of one operation read side by side, one tensor read twice, shared calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.fc.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = torch.chunk(self.fc(self.fc(x)), 2, -1)
        joined = torch.cat([second, first], -1)
        return joined, self.tied(joined) + joined * joined, x


class Writes(nn.Module):
    """Writes through views, which later readers wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x)
        y[:, 0] = 1.0
        y[:, 1].mul_(2.0)
        self.count.add_(y.sum(0))
        return y * self.count


class Shapes(nn.Module):
    """Scalars, empty tensors, complex numbers, unknown sizes and unused inputs."""

    def forward(self, x: Tensor, unused: Tensor, *, scale: float = 2.0) -> dict[str, object]:
        found = torch.nonzero(x > 0)
        spectrum = torch.fft.rfft(x)
        return {
            "scalar": (x * scale).sum(),
            "empty": torch.cat([x[:0], x[:0]]),
            "nested": [found, {"deep": (spectrum.abs(),)}],
            "none": None,
        }


class Alone(nn.Module):
    """One operation in a box of its own, on constants and on parameters of others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 4))
        self.inner = Inner(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        sized, y = self.inner(x, self.table)
        return sized @ y + functional.linear(x, self.table)


class Inner(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        sized = functional.interpolate(table[None, None], scale_factor=2.0)
        return sized[0, 0, :4, :4], self.body(x)


NASTY = {
    "reserved": (Reserved, (torch.ones(1, 2),)),
    "classes": (Classes, (torch.ones(1, 1, 2, 2),)),
    "numbered": (Numbered, (torch.ones(1, 2),)),
    "twice": (Twice, (torch.ones(1, 4),)),
    "writes": (Writes, (torch.ones(3, 4),)),
    "shapes": (Shapes, (torch.ones(2, 4), torch.ones(3))),
    "alone": (Alone, (torch.ones(4, 4),)),
}
