"""What modules hold together, on cards, in overlays and in the summary, against torch's count."""

import pytest
import torch
from build import GraphBuilder
from card_facts import facts
from torch import nn
from torch.nn import functional

import tbscope
from tbscope.ir.graph import Parameter
from tbscope.ir.module_tree import ModulePart, ModuleTree, numel_of, parameters_below
from tbscope.overlays.overlay import make_overlay


class Tied(nn.Module):
    """Two layers of one weight, one of them called twice, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 5, bias=False)
        self.body = nn.ModuleList([nn.Linear(5, 5), nn.BatchNorm1d(5)])
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.body[0].weight.requires_grad_(False)

    def forward(self, x):
        y = self.body[0](self.body[0](self.embed(x)))
        return self.head(self.body[1](y)[:, :4])


class Attention(nn.Module):
    """A layer whose weight is read and that is never called, and one that is called."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x):
        return self.out(functional.linear(x, self.qkv.weight))


class ReadsOne(nn.Module):
    """One operation, with the weight of a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.qkv = nn.ModuleDict({"deep": nn.Linear(4, 4), "deeper": nn.Linear(4, 1)})
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        with tbscope.scope("block"):
            return functional.linear(x, self.qkv["deep"].weight)


class Idle(nn.Module):
    """Modules that nobody calls or reads, with and without others in them."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()
        self.spare = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.single = nn.Linear(4, 2)

    def forward(self, x):
        return self.relu(x)


class TwoNames(nn.Module):
    """One parameter under two names of one module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.gain = self.scale

    def forward(self, x):
        return x * self.scale


class Blocks(nn.Module):
    """What is called in a block by hand, and a module that no other one registers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), Idle())
        self.more = Attention()
        self.hidden = [nn.Linear(4, 4)]

    def forward(self, x):
        with tbscope.scope("block"):
            x = self.more(self.inner[0](x))
        return self.hidden[0](nn.Sequential(self.inner[1])(x))


class Lazy(nn.Module):
    """Layers that learn their sizes, and one that is not called and never does."""

    def __init__(self):
        super().__init__()
        self.fc = nn.LazyLinear(3)
        self.never = nn.LazyLinear(3)

    def forward(self, x):
        return self.fc(x)


class Reads(nn.Module):
    """What has a layer of its own behind one that others hold as well."""

    def __init__(self, first):
        super().__init__()
        self.first = first
        self.own = nn.Linear(4, 4)

    def forward(self, x):
        return self.own(self.first(x))


class Lent(nn.Module):
    """A part that two hold, one of them in a list; a frozen weight of two layers in both."""

    def __init__(self):
        super().__init__()
        lent = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.a, self.b = Reads(lent), Reads(nn.Sequential(lent, nn.Linear(4, 4)))
        self.b.own.weight = self.a.own.weight
        self.a.own.weight.requires_grad_(False)
        self.named = nn.ModuleDict({"lent": self.a.first[0], "own": nn.Linear(4, 2)})

    def forward(self, x):
        return self.b(self.a(x))


class ListAndAttribute(nn.Module):
    """Layers in a list, one of which is an attribute before it and one behind it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList([self.first, nn.Linear(4, 4), nn.Linear(4, 4)])
        self.last = self.layers[-1]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(self.first(x))


NETS = {
    "tied": Tied,
    "read": Attention,
    "read by a leaf": ReadsOne,
    "unused": Idle,
    "two names": TwoNames,
    "lent": Lent,
    "lent to be read": lambda: nn.Sequential(read := Attention(), Reads(nn.Sequential(read))),
    "list and attribute": ListAndAttribute,
    "blocks": Blocks,
    "list": lambda: nn.Sequential(*[Attention() for _ in range(3)], Idle(), TwoNames(), ReadsOne()),
}
DRAWINGS = ({}, {"leaves": "box"}, {"level": "module"}, {"level": "aten", "dead": "drop"})


def counted(module):
    """Count what torch says that a module holds."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    return (
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
        sum(p.numel() * p.element_size() for p in (*parameters, *buffers)),
    )


def told_by_cards(graph, **drawing):
    """Give what each card tells by the qualified name; that of the root by its empty name."""
    told, root = {}, graph.calls[0].class_name
    for node in tbscope.to_graph_def(graph, **drawing).node:
        name, module = facts(node)["class"].s.decode(), facts(node)["module"].s.decode()
        # What no module registers has no name, as the root.
        if "class" in node.attr and not name.endswith(".Linear") and (module or name == root):
            keys = ("parameter_count", "trainable_parameter_count", "bytes")
            told[module] = tuple(facts(node)[key].i for key in keys)
    return told


@pytest.mark.parametrize("drawing", DRAWINGS, ids=str)
@pytest.mark.parametrize("name", NETS)
def test_a_card_tells_what_torch_counts_in_the_module(name, drawing):
    net = NETS[name]()
    graph = tbscope.trace(net, torch.rand(2, 4), kernels=True)
    told = told_by_cards(graph, **drawing)
    assert "" in told
    registered = dict(net.named_modules())
    assert told == {key: counted(registered[key]) for key in told}


@pytest.mark.parametrize("name", NETS)
def test_summary_and_overlay_count_what_the_card_of_the_model_does(name):
    net = NETS[name]()
    graph = tbscope.trace(net, torch.rand(2, 4))
    parameters, trainable, _ = told_by_cards(graph, leaves="box")[""]
    totals = graph.summary().totals
    assert (totals["parameters"], totals["trainable_parameters"]) == (parameters, trainable)
    (figure,) = make_overlay(graph, "parameters")
    assert sum(figure.numbers.values()) == parameters + totals["unregistered_parameters"]


@pytest.mark.parametrize("name", NETS)
def test_a_row_counts_what_its_module_holds_also_in_a_file(name, tmp_path):
    net = NETS[name]()
    graph = tbscope.trace(net, torch.rand(2, 4))
    graph.save(tmp_path / "net.json")
    modules = dict(net.named_modules())
    for told in (graph, tbscope.load(tmp_path / "net.json")):
        for row in told.summary().rows:
            if row["name"] is not None:
                held = row["parameter_bytes"] + row["buffer_bytes"]
                found = row["parameters"], row["trainable_parameters"], held
                assert found == counted(modules[row["name"]]), row["name"]


def test_what_two_hold_is_shared_and_has_all_of_its_names():
    summary = tbscope.trace(Lent(), torch.rand(2, 4)).summary()
    shared = {row["name"]: row["shared_parameters"] for row in summary.rows}
    assert (shared[""], shared["a"], shared["b"], shared["named.own"]) == (0, 44, 44, 0)
    assert ("a.first.1.bias", "b.first.0.1.bias") in summary.totals["tied"]


def test_what_a_module_holds_again_further_up_is_not_shared():
    summary = tbscope.trace(nn.Sequential(net := Attention(), net), torch.rand(2, 4), partial=True)
    assert {row["shared_parameters"] for row in summary.summary().rows} == {0}


def test_a_leaf_names_what_another_module_lends_it():
    read = nn.Linear(4, 4)

    class Leaf(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([read])

        def forward(self, x):
            return functional.linear(x, self.parts[0].weight)

    graph = tbscope.trace(nn.Sequential(read, Leaf()), torch.rand(2, 4))
    (leaf,) = (node for node in tbscope.to_graph_def(graph).node if node.op == "Leaf")
    told = facts(leaf)
    assert told["parameters"].s == b"parts.0.weight Float(4, 4), parts.0.bias Float(4)"
    assert told["parameter_count"].i == 20


def test_a_leaf_names_what_stands_below_it():
    graph = tbscope.trace(nn.Sequential(ReadsOne(), nn.ReLU()), torch.rand(2, 4))
    nodes = tbscope.to_graph_def(graph, level="module").node
    (leaf,) = (node for node in nodes if node.op == "ReadsOne")
    assert facts(leaf)["parameters"].s.decode() == (
        "shift Float(1), norm.weight Float(4), norm.bias Float(4), "
        "qkv.deep.weight Float(4, 4), qkv.deep.bias Float(4), "
        "qkv.deeper.weight Float(1, 4), qkv.deeper.bias Float(1)"
    )
    assert facts(leaf)["buffers"].s.decode().startswith("norm.running_mean Float(4), ")


def test_what_is_held_below_a_module_has_its_name_from_there_on():
    weight = Parameter("weight", "parameter", (3,), "float32", 12, True)
    net = ModulePart("Net", name="net", own_state=(weight,))
    block = ModulePart("block", parent=net, kind="scope")
    first = ModulePart("A", parent=block, name="net.a", own_state=(weight,))
    for part, name in ((first, "net.a.0"), (first, "net.a.1"), (net, "net.b")):
        ModulePart("B", parent=part, name=name, own_state=(weight,))
    hidden = ModulePart("Hidden", parent=net, kind="module", own_state=(weight,))
    assert (first.unregistered, hidden.unregistered) == (False, True)
    assert [parameter.name for parameter in parameters_below(net)] == [
        "a.weight",
        "a.0.weight",
        "a.1.weight",
        "b.weight",
    ]


def test_what_no_module_registers_is_named_by_its_scope():
    graph = tbscope.trace(Blocks(), torch.rand(2, 4))
    (call,) = (c for c in graph.calls if c.qualified_name is None and c.parameters)
    (figure,) = make_overlay(graph, "own", {f"{call.scope.path}.weight": 2})
    ((place, number),) = figure.numbers.items()
    assert (place.kind, place.scope, number) == ("parameter", call.scope, 2)


def test_each_scope_holds_what_its_module_holds():
    net = Tied()
    parts = ModuleTree(tbscope.trace(net, torch.rand(2, 4))).part_of
    for scope, part in parts.items():
        holds = part.holds
        told = (holds.parameters, holds.trainable, holds.size_bytes)
        assert told == counted(net.get_submodule(scope.qualified_name or "")), scope


def test_what_is_not_initialised_counts_nothing():
    graph = tbscope.trace(Lazy(), torch.ones(2, 4))
    assert graph.summary().totals["parameters"] == 15
    assert told_by_cards(graph, leaves="box")[""] == (15, 15, 60)


def test_parameters_without_a_number_are_told_by_the_name_of_their_module():
    build = GraphBuilder()
    weight = Parameter("weight", "parameter", (3,), "float32", 12, True)
    for path, name in (
        ("Net/A[a]", "a"),
        ("Net/A[a].1", "a"),
        ("Net/B[b]", "b"),
        ("Net/B[b].1", None),
    ):
        build.call(path, qualified_name=name, parameters=(weight,))
    parts = ModuleTree(build.graph).part_of
    # That of the module which none registers is not the model's.
    assert parts[build.scope("Net")].holds.parameters == 6
    assert parts[build.scope("Net/B[b].1")].holds.parameters == 3


@pytest.mark.parametrize(
    ("shape", "numbers"), [((3, 2), 6), ((3, None), 3), ((3, 0), 0), ((), 1), (None, 0)]
)
def test_a_size_that_is_not_known_leaves_the_others_to_count(shape, numbers):
    assert numel_of(Parameter("weight", "parameter", shape, "float32", 0, True)) == numbers


def test_a_parameter_that_no_module_registers_too_is_no_shared_one():
    build = GraphBuilder()
    tied = Parameter("weight", "parameter", (3,), "float32", 12, True, number=7)
    for path, name in (("Net/A[a]", "a"), ("Net/B[?0]", None)):
        build.call(path, qualified_name=name, parameters=(tied,))
    build.scope("Net/B[?0]").qualified_name = None
    tree = ModuleTree(build.graph)
    shared = {path: tree.part_of[build.scope(path)].holds.shared for path in ("Net", "Net/A[a]")}
    assert shared == {"Net": 0, "Net/A[a]": 0}


def test_a_part_that_is_called_after_one_in_it_ran_is_a_module():
    build = GraphBuilder()
    build.op("relu", build.input("x", (1,)), scope=build.scope("Net/A[a]/B[b]"))
    build.op("relu", build.input("y", (1,)), scope=build.scope("Net/A[a].1", "module"))
    part_of = ModuleTree(build.graph).part_of
    first, again = (part_of[build.scope(path)] for path in ("Net/A[a]", "Net/A[a].1"))
    assert (first is again, again.kind) == (True, "module")


def test_what_a_list_holds_in_a_module_of_a_list_is_counted_once():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.plain = nn.Linear(3, 3), [nn.Linear(3, 3)]

        def forward(self, x):
            return self.plain[0](self.own(x))

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = [Inner()]

        def forward(self, x):
            return self.plain[0](x)

    totals = tbscope.trace(Outer(), torch.rand(1, 3)).summary().totals
    assert (totals["parameters"], totals["unregistered_parameters"]) == (0, 24)
