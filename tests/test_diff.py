"""Differences: each single change of a model is told, and nothing else."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import tbscope
from tbscope.comparison.text import folded_names
from tbscope.ir.graph import Graph


class Block(nn.Module):
    """A little of all: layers, a shortcut, operations of its own, constants."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.fc2 = nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.zeros(4))

    def forward(self, x, mask=None, *, factor=2.0):
        y = self.fc2(self.drop(self.act(self.fc1(x))))
        y = y * self.scale + self.shift
        y = torch.clamp(y * factor, -1.0, 1.0)
        if mask is not None:
            y = y - mask
        return self.norm(x + y)


class Net(nn.Module):
    """Four equal blocks in a list, with a head."""

    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 4)

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return {"out": self.head(x), "hidden": x}


X = torch.rand(2, 4)
MASK = torch.rand(2, 4)


def told(before, after, inputs=(X, MASK), others=None):
    """Give what a difference tells, each change as one line."""
    one = before if isinstance(before, Graph) else tbscope.trace(before, inputs)
    other = after if isinstance(after, Graph) else tbscope.trace(after, others or inputs)
    difference = tbscope.diff(one, other)
    difference.graph.verify()
    return [line(change) for change in difference.changes]


def line(change):
    """Give a change as a text: its fate, its kind, its name or names, and what differs."""
    names = [change.before, change.after]
    if change.before == change.after:
        names = [change.name]
    names = [name for name in names if name is not None]
    details = ", ".join(map(str, change.details)) if change.fate == "changed" else ""
    return f"{change.fate} {change.kind} {' -> '.join(names)} {details}".rstrip()


def changed(change):
    """Give a net that is like `Net` but for one change."""
    net = Net()
    change(net)
    return net


def swap(name, make):
    """Give a change that puts another module in the place of one."""

    def change(net):
        above, _, last = name.rpartition(".")
        setattr(net.get_submodule(above), last, make())

    return change


def forward(old, new):
    """Give a change of one line of the code of a block: of the second one alone."""

    def change(net):
        import inspect
        import textwrap

        code = textwrap.dedent(inspect.getsource(Block.forward))
        assert code.count(old) == 1, old
        space = {"torch": torch, "functional": functional}
        exec(code.replace(old, new), space)
        kind = type("Block", (Block,), {"forward": space["forward"], "__module__": __name__})
        net.blocks[1].__class__ = kind

    return change


def made(name, **settings):
    """Give a change of what modules of the net are set to."""

    def change(net):
        for key, value in settings.items():
            setattr(net.get_submodule(name), key, value)

    return change


def widen(net):
    net.blocks[2].fc1, net.blocks[2].fc2 = nn.Linear(4, 16), nn.Linear(16, 4)


def tie(net):
    net.blocks[1].fc1.weight = net.blocks[0].fc1.weight


def freeze(net):
    net.head.weight.requires_grad_(False)


def freeze_all(net):
    net.head.requires_grad_(False)


def to_buffer(net):
    del net.blocks[0].scale
    net.blocks[0].register_buffer("scale", torch.ones(4))


def other_shape(net):
    net.blocks[0].shift = torch.zeros(1)


def rename(net):
    net.blocks[1].proj = net.blocks[1].fc2
    del net.blocks[1].fc2
    forward("self.fc2(", "self.proj(")(net)


def lists(net):
    net.blocks = nn.Sequential(*net.blocks)


SINGLE = {
    "a rate": (
        swap("blocks.1.drop", lambda: nn.Dropout(0.3)),
        ["changed module blocks.1.drop p 0.1 -> 0.3"],
    ),
    "an epsilon": (
        swap("blocks.3.norm", lambda: nn.LayerNorm(4, eps=1e-3)),
        ["changed module blocks.3.norm eps 1e-05 -> 0.001"],
    ),
    "no bias": (
        swap("head", lambda: nn.Linear(4, 2, bias=False)),
        ["changed module head bias True -> False"],
    ),
    "another activation": (
        swap("blocks.0.act", nn.GELU),
        ["changed module blocks.0.act class ReLU -> GELU"],
    ),
    "an activation in place": (
        made("blocks.0.act", inplace=True),
        ["changed module blocks.0.act inplace True added"],
    ),
    "a dtype": (
        lambda net: net.spare.double(),
        ["changed module spare dtype Float -> Double"],
    ),
    "an operation dropped": (
        forward("y * self.scale + self.shift", "y + self.shift"),
        ["removed operation blocks.1.mul()"],
    ),
    "one of two equal operations dropped": (
        forward("torch.clamp(y * factor, -1.0, 1.0)", "torch.clamp(y, -1.0, 1.0)"),
        ["removed operation blocks.1.mul()~2"],
    ),
    "an operation in between": (
        forward("x + y", "x + torch.tanh(y)"),
        ["added operation blocks.1.tanh()"],
    ),
    "a constant": (
        forward("-1.0, 1.0", "-1.0, 2.0"),
        ["changed operation blocks.1.clamp() max 1.0 -> 2.0"],
    ),
    "a constant of another type": (
        forward("-1.0, 1.0", "-1.0, 1"),
        ["changed operation blocks.1.clamp() max 1.0 -> 1"],
    ),
    "arguments swapped": (
        forward("y - mask", "mask - y"),
        ["changed operation blocks.1.sub() reads clamp(), mask -> mask, clamp()"],
    ),
    "arguments swapped of what commutes": (
        forward("x + y", "y + x"),
        ["changed operation blocks.1.add()~2 reads x, sub() -> sub(), x"],
    ),
    "another operation": (
        forward("y - mask", "y / mask"),
        ["changed operation blocks.1.sub() -> blocks.1.div() op sub -> div"],
    ),
    "another operation on other tensors": (
        forward("y - mask", "x / mask"),
        ["removed operation blocks.1.sub()", "added operation blocks.1.div()"],
    ),
    "another edge": (
        forward("x + y", "y + y"),
        ["changed operation blocks.1.add()~2 reads x, sub() -> sub(), sub()"],
    ),
    "another parameter read": (
        forward("y * self.scale + self.shift", "y * self.scale + self.scale"),
        ["changed operation blocks.1.add() reads mul(), shift -> mul(), scale"],
    ),
    "a shortcut cut": (
        forward("self.norm(x + y)", "self.norm(y)"),
        ["removed operation blocks.1.add()~2"],
    ),
    "two modules in another order": (
        forward("self.drop(self.act(self.fc1(x)))", "self.act(self.drop(self.fc1(x)))"),
        ["changed module blocks.1.act moved behind fc1 -> behind drop"],
    ),
    "a module that is not called": (
        forward("self.drop(self.act(self.fc1(x)))", "self.act(self.fc1(x))"),
        ["changed module blocks.1.drop call called -> never"],
    ),
    "a module called twice": (
        forward("self.drop(self.act(self.fc1(x)))", "self.drop(self.drop(self.act(self.fc1(x))))"),
        ["added module blocks.1.drop.1"],
    ),
    "a module wrapped": (
        swap("blocks.1.act", lambda: nn.Sequential(nn.ReLU(), nn.Tanh())),
        ["changed module blocks.1.act wrapped in Sequential", "added module blocks.1.act.1"],
    ),
    "a module under another name": (
        rename,
        ["changed module blocks.1.fc2 -> blocks.1.proj name fc2 -> proj"],
    ),
    "a wider layer": (
        widen,
        [
            "changed module blocks.2.fc1 out_features 8 -> 16",
            "changed module blocks.2.fc2 in_features 8 -> 16",
        ],
    ),
    "a tie": (tie, ["added parameter blocks.0.fc1.weight = blocks.1.fc1.weight"]),
    "a frozen weight": (freeze, ["changed module head weight trainable True -> False"]),
    "a frozen module": (freeze_all, ["changed module head trainable True -> False"]),
    "a parameter that is a buffer": (
        to_buffer,
        ["changed module blocks.0 scale parameter Float(4) -> buffer Float(4)"],
    ),
    "a shape that is broadcast": (
        other_shape,
        ["changed module blocks.0 shift Float(4) -> Float(1)"],
    ),
    "a module that is never called gone": (
        lambda net: delattr(net, "spare"),
        ["removed module spare"],
    ),
    "a block less": (lambda net: net.blocks.__delitem__(2), ["removed module blocks.3"]),
    "a block more": (lambda net: net.blocks.append(Block()), ["added module blocks.4"]),
    "a list of another class": (
        lists,
        [
            f"changed module blocks.{at} place ModuleList[blocks] -> Sequential[blocks]"
            for at in range(4)
        ],
    ),
    "a default": (
        forward("factor=2.0", "factor=3.0"),
        ["changed operation blocks.1.mul()~2 other 2.0 -> 3.0"],
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_change_is_all_that_is_told_also_the_other_way_round(name):
    change, expected = SINGLE[name]
    one, other = (tbscope.trace(net, (X, MASK)) for net in (Net(), changed(change)))
    assert told(one, other) == expected
    there, back = tbscope.diff(one, other), tbscope.diff(other, one)
    assert sorted(map(sides, there.changes)) == sorted(
        sides(one, turned=True) for one in back.changes
    )
    assert (len(there.added), len(there.removed)) == (len(back.removed), len(back.added))


def sides(change, turned=False):
    """Give what a change tells, or what the one the other way round would."""
    fates = {"added": "removed", "removed": "added", "changed": "changed"}
    details = [(one.what, *(one[:0:-1] if turned else one[1:])) for one in change.details]
    names = str(change.before), str(change.after)
    fate = fates[change.fate] if turned else change.fate
    return (fate, change.kind, *(names[::-1] if turned else names), sorted(details))


class Ends(nn.Module):
    """Two ends, the norm in one of them, and outputs in some order."""

    def __init__(self, first, second, order=("a", "b")):
        super().__init__()
        self.first, self.second, self.order = first, second, order

    def forward(self, x):
        found = {"a": self.first(x), "b": self.second(x)}
        return {name: found[name] for name in self.order}


def test_a_module_that_went_to_another_one_is_moved():
    def ends(first, second):
        wide = nn.Linear(4, 8)
        return Ends(nn.Sequential(wide, *first), nn.Sequential(nn.Linear(4, 8), *second))

    one, other = ends([nn.LayerNorm(8)], []), ends([], [nn.LayerNorm(8)])
    expected = "changed module first.1 -> second.1 moved first.1 -> second.1"
    assert told(one, other, (X,)) == [expected]


def test_another_order_of_outputs_is_told():
    one, other = (Ends(nn.ReLU(), nn.Tanh(), order) for order in (("a", "b"), ("b", "a")))
    assert told(one, other, (X,))[-1] == "changed output outputs order a, b -> b, a"


def test_a_module_that_is_not_called_goes_by_the_name_of_what_holds_it():
    class Holder(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            setattr(self, name, nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
            held = getattr(self, name)
            held.spare = nn.Linear(4, 4)
            held.forward = lambda x: held[1](held[0](x))

        def forward(self, x):
            return getattr(self, self.name)(x)

    assert told(Holder("one"), Holder("other"), (X,)) == [
        "changed module one -> other name one -> other"
    ]


def in_a_row(**modules):
    """Give modules with these names that are called in turn, each by its class and its layers."""
    net = nn.Sequential()
    for name, (kind, *layers) in modules.items():
        made = type(kind, (nn.Sequential,), {})(*(getattr(nn, layer)() for layer in layers))
        net.add_module(name, made)
    return net


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ("0", "1", "changed module 0 -> 1 name 0 -> 1, class One -> Other"),
        ("stem", "late", "changed module stem class One -> Unlike"),
    ],
)
def test_a_number_is_weaker_evidence_than_a_name(first, second, change):
    one, other = ("One", "ReLU", "Tanh", "Sigmoid"), ("Other", "ReLU", "Tanh", "ELU", "Softplus")
    before = in_a_row(**{first: one})
    after = in_a_row(**{first: ("Unlike", "Hardtanh", "Mish"), second: other})
    assert change in told(before, after, X)


def test_a_module_that_is_called_again_owns_nothing_a_second_time():
    def share(net):
        net.blocks[1] = net.blocks[0]

    assert told(Net(), changed(share)) == [
        "changed module blocks.1 -> blocks.0.1 name blocks.1 -> blocks.0.1"
    ]


@pytest.mark.parametrize(("count", "rest"), [(4, "d.d"), (5, "and 2 more"), (6, "and 3 more")])
def test_of_many_names_the_first_are_listed_and_the_rest_is_counted(count, rest):
    names = [f"{letter}.{letter}" for letter in "abcdef"[:count]]
    assert folded_names(names) == f"a.a, b.b, c.c, {rest}"


def test_parameters_that_learn_no_more_are_told_in_the_totals():
    difference = tbscope.diff(Net(), changed(freeze), (X, MASK))
    assert difference.totals["trainable_parameters"] == (382, 374)
    assert str(difference).splitlines()[1:] == [
        "~ Linear: head, weight trainable True -> False",
        "trainable parameters: 382 -> 374 (-2.1%)",
    ]


def test_where_an_object_stands_in_memory_is_not_told():
    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.rule = object()

        def extra_repr(self):
            return f"rule={self.rule}"

        def forward(self, x):
            return x + 1

    assert told(Told(), Told(), (X,)) == []


def test_inputs_are_told_by_their_names_and_types():
    one = tbscope.trace(lambda x, y: x + y, (X, MASK))
    other = tbscope.trace(lambda x, z: x + z, (X, torch.rand(1, 4)))
    assert told(one, other) == ["changed input y -> z name y -> z, type Float(2, 4) -> Float(1, 4)"]


def test_a_difference_is_true_where_there_is_one():
    one, other = Net(), changed(swap("blocks.1.drop", lambda: nn.Dropout(0.3)))
    same, difference = tbscope.diff(one, one, (X, MASK)), tbscope.diff(one, other, (X, MASK))
    assert (bool(same), bool(difference)) == (False, True)
    fates = Counter(node.attributes["difference"] for node in difference.graph.nodes)
    assert fates.keys() == {"same", "changed"}
    assert {node.attributes["difference"] for node in same.graph.nodes} == {"same"}
    assert repr(difference) == "<Difference of Net and Net: 1>"
    assert difference.totals["parameters"] == (382, 382)


def test_a_model_is_compared_with_a_graph_that_has_run_on_either_side():
    net = Net()
    graph = tbscope.trace(net, (X, MASK))
    assert not tbscope.diff(graph, net, (X, MASK))
    assert not tbscope.diff(net, graph, (X, MASK))
