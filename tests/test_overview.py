"""The overview: equal blocks that follow one another are one node."""

import re

import pytest
import torch
from real_graphs import KINDS, real_graph
from torch import nn

import tbscope
from tbscope.overlays.overlay import make_overlay
from tbscope.passes.detail_level import set_level
from tbscope.pipeline import draw

X = torch.rand(2, 4)


class Block(nn.Module):
    """A residual layer."""

    def __init__(self, width=8):
        super().__init__()
        self.up, self.down = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Net(nn.Module):
    """Layers in a list, between a stem and a head; `between` runs after each of them."""

    def __init__(self, *blocks, between=None):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.layers = nn.ModuleList(blocks)
        self.between = between

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x) if self.between is None else self.between(layer(x))
        return self.head(x)


def stacks(model, x=X):
    """Give the name and the number of blocks of each stack."""
    graph = tbscope.trace(model, x).copy()
    found = set_level(graph, "overview")
    graph.verify()
    return {one.node.scope.part.attribute: one.node.attributes["blocks"] for one in found}


def drawn(model, x=X, **drawing):
    """Give the nodes of the overview by their names, without those of the legend."""
    message = tbscope.to_graph_def(tbscope.trace(model, x), level="overview", **drawing)
    nodes = [node for node in message.node if "__function_library__" not in node.name]
    return {node.name: node for node in nodes}


def test_eighty_layers_are_one_node_that_tells_their_sums():
    model = Net(*(Block() for _ in range(80)))
    node = drawn(model)["layers.0-79"]
    assert node.op == "Block"
    assert node.attr["blocks"].i == 80
    assert node.attr[" parameter_count"].i == 80 * sum(p.numel() for p in Block().parameters())
    flops = tbscope.costs(tbscope.trace(model, X)).total.flops - 2 * 2 * (4 * 4 + 4 * 2)
    assert node.attr["  flops"].s.decode().endswith(f"({flops:,})")


def test_edges_lead_into_the_stack_and_out_of_it():
    nodes = drawn(Net(*(Block() for _ in range(3))))
    assert nodes["layers.0-2"].input[0] == "stem"
    assert nodes["head"].input[0] == "layers.0-2"
    others = {name for name, node in nodes.items() if "Const" not in node.op}
    assert others == {"x", "stem", "layers.0-2", "head", "out", "Net"}


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((Block(), Block()), {"layers.0-1": 2}),
        ((Block(), Block(9)), {}),
        ((Block(),), {}),
        ((Block(9), Block(), Block()), {"1-2": 2}),
        ((Block(), Block(), Block(9), Block(), Block()), {"0-1": 2, "3-4": 2}),
    ],
)
def test_blocks_are_stacked_that_are_equal_and_follow_one_another(blocks, expected):
    assert stacks(Net(*blocks)) == expected


def test_what_the_parent_does_between_blocks_is_in_the_stack():
    nodes = drawn(Net(Block(), Block(), Block(), between=nn.Sigmoid()))
    assert "operations" in "".join(nodes["layers.0-2"].attr)
    assert nodes["layers.0-2"].input[0] == "stem"
    # What follows the last one is outside.
    assert nodes["head"].input[0] == "between.3rd"


def test_blocks_with_other_parameters_between_them_stay():
    assert stacks(Net(Block(), Block(), Block(), between=nn.LayerNorm(4))) == {}


def test_a_run_is_cut_where_another_module_runs():
    class Halves(Net):
        def forward(self, x):
            for at, layer in enumerate(self.layers):
                x = self.stem(layer(x)) if at == 1 else layer(x)
            return x

    assert stacks(Halves(*(Block() for _ in range(4)))) == {"layers.0-1": 2, "layers.2-3": 2}


def test_calls_of_one_module_again_and_again_are_a_stack():
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = Block(), nn.Linear(4, 2)

        def forward(self, x):
            for _ in range(4):
                x = self.block(x)
            return self.head(x)

    nodes = drawn(Loop())
    assert stacks(Loop()) == {"block.0-3": 4}
    assert nodes["block.0-3"].attr[" parameter_count"].i == 76


def test_lists_that_take_turns_make_no_cycle():
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(Block() for _ in range(3))
            self.b = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            y = x
            for a, b in zip(self.a, self.b, strict=True):
                x, y = a(x), b(y)
            return x, y

    assert stacks(Turns()) == {"a.0-2": 3, "b.0-2": 3}


@pytest.mark.parametrize("block", [Block, nn.Sigmoid])
def test_stacks_that_would_read_each_other_are_not_both_made(block):
    class Crossed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(block() for _ in range(2))
            self.b = nn.ModuleList(block() for _ in range(2))

        def forward(self, x):
            return self.b[0](self.a[0](x)), self.a[1](self.b[1](x))

    assert list(stacks(Crossed()).values()) == [2]


def test_blocks_that_do_not_run_and_lists_that_run_twice_are_no_run():
    class Some(Net):
        def forward(self, x):
            return self.layers[2](self.layers[0](x))

    class Twice(Net):
        def forward(self, x):
            for layer in (*self.layers, *self.layers):
                x = layer(x)
            return x

    assert stacks(Some(Block(), Block(), Block())) == {}
    assert stacks(Twice(Block(), Block())) == {}
    assert stacks(Twice(Block())) == {"layers.0.0-1": 2}


def test_the_parameters_of_a_stack_that_is_left_alone_are_circles():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            return self.layers[1](self.layers[0](x)).sigmoid()

    model = nn.Sequential(nn.Linear(4, 4), Encoder(), nn.Linear(4, 4))
    nodes = drawn(model, root=False, hide=["sigmoid"])
    assert nodes["2"].input[0] == "1/layers.0-1"
    assert nodes["1/layers/1/up/weight"].op == "ParameterConst"


def test_blocks_within_equal_blocks_are_part_of_them_and_others_are_stacks():
    def deep():
        return nn.Sequential(Block(), Block(), nn.Linear(4, 4))

    assert stacks(nn.Sequential(deep(), deep(), nn.Tanh())) == {"0-1": 2}
    assert stacks(nn.Sequential(deep(), nn.Tanh())) == {"0-1": 2}


def test_a_stack_that_is_alone_in_a_box_stands_beside_it():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block()), nn.Linear(4, 4))
    nodes = drawn(model, root=False)
    assert nodes["1.0-1"].input[0] == "0"
    assert nodes["2"].input[0] == "1.0-1"


@pytest.mark.parametrize(
    ("work", "name"),
    [(torch.sigmoid, "layers.0-1"), (lambda x: x.view(-1, 2, 4), "1.layers.0-1")],
)
def test_a_view_that_may_be_left_out_is_no_company_for_a_stack(work, name):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            return work(self.layers[1](self.layers[0](x)))

    assert stacks(nn.Sequential(nn.Linear(4, 4), Encoder(), nn.Linear(4, 4))) == {name: 2}


def test_stacks_that_are_alone_in_the_calls_of_one_module_have_the_numbers_of_these():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Sequential(Block(), Block())
            self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.part(self.head(self.part(self.stem(x))))

    assert stacks(Twice()) == {"part.0-1": 2, "part.1.0-1": 2}


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_of_a_real_model_is_found_in_its_overview(name):
    graph = real_graph(name)
    names = "\n".join(node.name for node in tbscope.to_graph_def(graph, level="overview").node)
    lost = [
        node.name
        for node in graph.nodes
        if node.kind in ("parameter", "buffer") and not re.search(node.name, names)
    ]
    assert lost == []


@pytest.mark.parametrize("name", KINDS)
def test_the_overview_of_a_real_model_is_as_sound_as_the_graph_itself(name):
    graph = real_graph(name)
    drawing = tbscope.to_graph_def(graph, level="overview")
    faults = {finding.rule for finding in tbscope.lint(drawing)}
    assert faults <= {finding.rule for finding in tbscope.lint(tbscope.to_graph_def(graph))}
    copy = graph.copy()
    set_level(copy, "overview")
    copy.verify()


@pytest.mark.parametrize("leaves", ["node", "box"])
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "WhisperForConditionalGeneration"])
def test_the_overview_draws_fewer_nodes(name, leaves):
    graph = real_graph(name)

    def count(level):
        message = tbscope.to_graph_def(graph, level=level, leaves=leaves, templates=False)
        return sum("Const" not in node.op for node in message.node)

    assert count("overview") < count("op") / 2


@pytest.mark.parametrize("between", [nn.Sigmoid(), torch.sigmoid])
@pytest.mark.parametrize("built_in", ["flops", "parameter_bytes", "peak", "calls"])
def test_numbers_of_blocks_stand_on_the_stack(built_in, between):
    model = Net(*(Block() for _ in range(3)), between=between)
    graph = tbscope.trace(model, X, profile=built_in == "peak")
    (figure,) = make_overlay(graph, built_in)
    found = draw(graph, (figure,), level="overview")
    told = {node.name: node.attr for node in found.graph_def.node}["layers.0-2"]
    # All but the stem, the head, what follows the last layer, and the model itself.
    others = {"Net", "Net/Linear[stem]", "Net/Linear[head]", "Net/Sigmoid[between].2"}
    places = {target: str(getattr(target, "scope", target)) for target in figure.numbers}
    inside = [figure.numbers[target] for target in places if places[target] not in others]
    assert sum(inside) > 0
    assert told["  flops" if built_in == "flops" else figure.name].i == sum(inside)


def test_a_number_for_a_block_stands_on_the_stack():
    graph = tbscope.trace(Net(*(Block() for _ in range(3))), X)
    figures = make_overlay(graph, "mine", {"layers.1": 5, "layers.2.up": 2})
    found = draw(graph, figures, level="overview")
    told = {node.name: node.attr for node in found.graph_def.node}["layers.0-2"]
    assert told["mine"].i == 7


def test_another_style_goes_with_it():
    nodes = drawn(Net(Block(), Block()), style="torch")
    assert nodes["Net/Block[layers.0-1]"].op == "Block"


def test_a_model_without_equal_blocks_is_as_at_the_level_of_operations():
    graph = tbscope.trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), X)
    assert tbscope.to_graph_def(graph, level="overview") == tbscope.to_graph_def(graph)


@pytest.mark.parametrize("drawing", [{}, {"root": True}, {"style": "torch"}, {"leaves": "box"}])
def test_there_is_no_box_around_everything_for_a_stack_that_is_alone_in_it(drawing):
    alone = tbscope.trace(nn.Sequential(Block(), Block()), X)
    message = tbscope.to_graph_def(alone, level="overview", **drawing)
    assert tbscope.lint(message) == []
    joined = tbscope.trace(nn.Sequential(Block(), Block(), nn.Tanh()), X)
    names = [node.name for node in tbscope.to_graph_def(joined, level="overview", **drawing).node]
    assert any(name.startswith("Sequential/") and "0-1" in name for name in names)
