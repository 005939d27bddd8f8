"""Whatever a drawing leaves out, the figures of all that ran stand in it, each in its box."""

import contextlib
from collections import Counter
from dataclasses import replace

import pytest
import torch
from build import GraphBuilder
from card_facts import facts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_graphs import real_graph
from sweeps import counted
from test_random_models import WIDTH, models

import tbscope
from tbscope.drawing.figures import Figure, profile_figures
from tbscope.ir.graph import Body, Node
from tbscope.pipeline import draw

WAYS = [
    {},
    {"level": "module"},
    {"level": "aten"},
    {"leaves": "box"},
    {"dead": "drop"},
    {"keep": ["*"]},
    {"style": "torch"},
    {"cards": False},
    {"root": True},
]


def figures_of(drawn):
    """Give the memory of each drawn node that has any, by its name."""
    return {
        entry.node_name: sum(memory.total_bytes for memory in entry.memory)
        for device in drawn.stats.step_stats.dev_stats
        for entry in device.node_stats
        if entry.memory and not entry.node_name.startswith("__function_library__")
    }


def told(drawn, figure="weight"):
    """Give what each node and card tells of a figure, by its name."""
    return {
        node.name: facts(node)[figure].i
        for node in drawn.graph_def.node
        if figure in facts(node) and not node.name.startswith("__function_library__")
    }


def weigh(graph):
    """Give a figure with another number for each operation."""
    operations = [node for node in graph.nodes if node.kind == "op"]
    return Figure("weight", {node: at for at, node in enumerate(operations, 1)}, as_bytes=1)


def sums(figure):
    """Give the sum of a figure for each scope, by its path."""
    total = Counter()
    for node, number in figure.numbers.items():
        scope = node.scope
        while scope is not None:
            total[scope.path] += number
            scope = scope.parent
    return total


def net():
    """A block with a view, a dead operation, a leaf and a scope by hand of views alone."""
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (2, 4))
    block = build.call("Net/Block[block]", x)
    y = build.linear("Net/Block[block]/Linear[fc]", x, 4)
    y = build.op("view", y, scope=block, role="view")
    y = build.op("view", y, scope=block, role="view")
    y = build.op("relu", y, scope=block, kernels=["aten::relu"])
    build.op("tanh", y, scope=block, kernels=["aten::tanh"])
    hand = build.hand("Net/Block[block]/shape")
    y = build.op("view", y, scope=hand, role="view")
    build.output("out", build.op("add", y, x, scope=build.scope("Net"), kernels=["aten::add"]))
    return build.graph


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "SwinForImageClassification"])
def test_nothing_is_lost_and_each_module_has_what_ran_in_it(name, way):
    check_sums(real_graph(name), way)


@settings(
    max_examples=counted(60, 24),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, way=st.sampled_from(WAYS), hide=st.booleans())
def test_nothing_is_lost_of_a_random_model(model, way, hide):
    torch.manual_seed(0)
    graph = tbscope.trace(model, torch.randn(4, WIDTH), kernels=True)
    if any(node.kind == "op" for node in graph.nodes):
        with contextlib.suppress(tbscope.ArgumentError):
            # There may be nothing to hide.
            way = {**way, "hide": ["Tanh"]} if hide and draw(graph, (), hide=["Tanh"]) else way
        check_sums(graph, way)


def check_sums(graph, way):
    """Check that figures add up, over all and in each module with a card."""
    figure = weigh(graph)
    drawn = draw(graph, (figure,), **way)
    figures, numbers, expected = figures_of(drawn), told(drawn), sums(figure)
    assert sum(figures.values()) == sum(figure.numbers.values())
    cards = [node for node in drawn.graph_def.node if node.op == "NoOp" and node.name in numbers]
    assert way.get("cards", True) or not cards
    for card in cards:
        box = card.name.rpartition("/")[0]
        inside = [
            size for name, size in figures.items() if name.startswith(f"{box}/" if box else "")
        ]
        assert numbers[card.name] == sum(inside) == expected[facts(card)["scope"].s.decode()]


def test_what_became_part_of_an_operation_adds_to_its_figure():
    graph = net()
    drawn = draw(graph, (weigh(graph),))
    # The views after the layer have no operation in their scope before them: the next one.
    assert figures_of(drawn) == {
        "block/fc": 1,
        "block/relu": 2 + 3 + 4,
        "block/tanh": 5,
        "block/shape/view": 6,
        "add": 7,
    }
    assert told(drawn) == {**figures_of(drawn), "block/Block": 21, "Net": 28}


def test_a_view_adds_to_the_operation_that_gives_what_the_view_gave():
    build = GraphBuilder("Net")
    scope = build.call("Net")
    y = build.op("relu", build.input("x", (2, 4)), scope=scope, kernels=["aten::relu"])
    y = build.op("view", y, scope=scope, role="view")
    build.output("out", build.op("tanh", y, scope=scope, kernels=["aten::tanh"]))
    assert figures_of(draw(build.graph, (weigh(build.graph),))) == {"relu": 1 + 2, "tanh": 3}


def test_what_was_dropped_adds_to_the_next_of_its_scope_or_to_the_last():
    build = GraphBuilder("Net")
    scope = build.call("Net")
    x = build.input("x", (2, 4))
    y = build.op("relu", x, scope=scope, kernels=["aten::relu"])
    build.op("sin", x, scope=scope, kernels=["aten::sin"])
    y = build.op("tanh", y, scope=scope, kernels=["aten::tanh"])
    build.op("cos", y, scope=scope, kernels=["aten::cos"])
    build.output("out", y)
    drawn = draw(build.graph, (weigh(build.graph),), dead="drop")
    assert figures_of(drawn) == {"relu": 1, "tanh": 2 + 3 + 4}


def test_a_module_drawn_as_a_node_has_all_that_ran_in_it_even_if_it_gives_nothing():
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (2, 4))
    build.call("Net/Log[log]", x)
    hand = build.hand("Net/Log[log]/write")
    y = build.op("abs", x, scope=hand, kernels=["aten::abs"])
    build.node("save", y, scope=hand)
    build.output("out", build.op("relu", x, scope=net, kernels=["aten::relu"]))
    drawn = draw(build.graph, (weigh(build.graph),), level="module")
    assert figures_of(drawn) == {"log": 1 + 2, "relu": 3}


def test_an_operation_whose_kernels_hand_on_what_they_read_is_in_its_own_box():
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (2, 4))
    kernel = Node("1.0", "check", kernels=["aten::check"], scope=net)
    y = build.op("pass_on", x, scope=net, kernels=["aten::check", "aten::alias"])
    y.producer.body = Body([kernel], [x])
    build.output("out", build.op("relu", y, scope=net, kernels=["aten::relu"]))
    drawn = draw(build.graph, (weigh(build.graph),), level="aten")
    assert figures_of(drawn) == {"pass_on/check": 1, "relu": 2}


def test_the_figure_of_a_parameter_stands_at_a_reader_of_its_own_module_first():
    build = GraphBuilder("Net")
    net = build.call("Net")
    x, fc = build.input("x", (2, 4)), build.call("Net/Fc[fc]")
    weight = build.parameter("fc.weight", (4, 4), fc)
    y = build.op("norm", x, weight, scope=net, kernels=["aten::norm"])
    y = build.op("relu", y, scope=fc, kernels=["aten::relu"])
    build.output("out", build.op("linear", y, weight, scope=fc, kernels=["aten::linear"]))
    drawn = draw(build.graph, (Figure("weight", {weight.producer: 5}, as_bytes=1),))
    assert figures_of(drawn) == {"fc/linear": 5}


def test_of_what_is_no_sum_a_module_has_the_most():
    graph = net()
    drawn = draw(graph, (replace(weigh(graph), as_bytes=0, most=True),))
    assert drawn.stats.SerializeToString() == b""
    found = told(drawn)
    assert found["block/relu"] == max(2, 3, 4)
    assert (found["block/Block"], found["Net"]) == (6, 7)


def test_a_scope_without_operations_of_its_own_keeps_its_figure_on_its_card():
    build = GraphBuilder("Net")
    build.call("Net")
    x = build.input("x", (2, 4))
    block = build.call("Net/Block[block]", x)
    y = build.op("view", x, scope=block, role="view")
    y = build.linear("Net/Block[block]/Linear[fc]", y, 4)
    build.output("out", build.op("relu", y, scope=build.scope("Net"), kernels=["aten::relu"]))
    drawn = draw(build.graph, (weigh(build.graph),))
    assert figures_of(drawn) == {"block/Block": 1, "block/fc": 2, "relu": 3}
    bare = draw(build.graph, (weigh(build.graph),), cards=False)
    assert figures_of(bare) == {"block/fc": 1 + 2, "relu": 3}


def test_the_figure_of_a_parameter_stands_at_what_reads_it_and_on_its_circle():
    graph = net()
    figure = Figure("weight", {graph.find("block.fc.weight"): 5}, as_bytes=1)
    drawn = draw(graph, (figure,))
    assert figures_of(drawn) == {"block/fc": 5}
    assert told(drawn) == {"block/fc": 5, "block/fc/weight": 5, "block/Block": 5, "Net": 5}
    boxes = draw(graph, (figure,), leaves="box")
    assert figures_of(boxes) == {"block/fc/weight": 5}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Net/Block[block]", "block/Block"),
        ("Net/Block[block]/Linear[fc]", "block/fc"),
        ("Net/Block[block]/shape", "block/shape/shape"),
        ("Net", "Net"),
    ],
)
def test_the_figure_of_a_scope_stands_on_its_card_or_its_node(path, name):
    graph = net()
    (scope,) = (scope for scope in graph.scopes() if scope.path == path)
    for cards in (True, False):
        drawn = draw(graph, (Figure("weight", {scope: 5}, as_bytes=1),), cards=cards)
        assert figures_of(drawn) == {name: 5}


@pytest.mark.parametrize(("dead", "place"), [("drop", "rand"), ("keep", "part/part")])
def test_the_figure_of_a_scope_of_which_nothing_is_drawn_stands_at_the_first_operation_around_it(
    dead, place
):
    build = GraphBuilder("Net")
    part = build.hand("part")
    y = build.op("relu", build.op("rand", 4, shape=(4,)))
    build.op("exp", y, scope=part)
    build.output("out", build.op("tanh", y))
    drawn = draw(build.graph, (Figure("weight", {part: 5}, as_bytes=1),), dead=dead)
    assert figures_of(drawn) == {place: 5}


@pytest.mark.parametrize("unit", ["ms", ""])
def test_a_figure_tells_its_unit_where_it_has_one(unit):
    graph = net()
    drawn = draw(graph, (replace(weigh(graph), unit=unit),))
    (tanh,) = (node for node in drawn.graph_def.node if node.name == "block/tanh")
    assert {name for name in tanh.attr if name.startswith("weight")} == {
        "weight",
        *(["weight.unit"] if unit else []),
    }
    assert tanh.attr["weight.unit"].s.decode() == unit


def test_a_name_that_means_something_else_gets_an_underscore():
    graph = net()
    numbers = {graph.find("block.fc.weight"): 5}
    drawn = draw(graph, (Figure("class", numbers), Figure("in_features", numbers)))
    (fc,) = (node for node in drawn.graph_def.node if node.name == "block/fc")
    assert facts(fc)["class"].s == b"torch.nn.modules.linear.Linear"
    assert fc.attr["class_"].i == fc.attr["in_features_"].i == 5


@pytest.mark.parametrize(("number", "name"), [(5, "flops_"), (8, "flops")])
def test_a_figure_named_like_the_flops_of_an_operation_gets_an_underscore_if_it_differs(
    number, name
):
    build = GraphBuilder("Net")
    y = build.op("mm", build.input("x", (2, 4)), scope=build.call("Net"), flops=8)
    build.output("out", y)
    drawn = draw(build.graph, (Figure("flops", {y.producer: number}),), leaves="box")
    (mm,) = (node for node in drawn.graph_def.node if node.op == "mm")
    found = facts(mm)
    assert (found["flops"].i, found[name].i) == (8, number)
    assert ("flops_" in found) == (name == "flops_")


def test_kernels_have_figures_of_their_own_where_they_are_drawn():
    graph = real_graph("BertModel")
    kernels = [kernel for node in graph.nodes if node.body for kernel in node.body.nodes]
    figure = Figure("weight", {kernel: at for at, kernel in enumerate(kernels, 1)}, as_bytes=1)
    aten = figures_of(draw(graph, (figure,), level="aten"))
    assert len(aten) == len(kernels)
    assert sum(aten.values()) == sum(figures_of(draw(graph, (figure,))).values())


def test_kernels_share_what_was_measured_of_their_operation():
    net = torch.nn.TransformerEncoderLayer(8, 2, 16)
    graph = tbscope.trace(net, torch.rand(3, 2, 8), training=True, kernels=True, profile=1)
    for level in ("op", "aten"):
        drawn = draw(graph, profile_figures(graph), level=level)
        entries = [
            entry for device in drawn.stats.step_stats.dev_stats for entry in device.node_stats
        ]
        # What is empty shares a microsecond with its neighbour.
        time = max(entry.all_start_micros + entry.all_end_rel_micros for entry in entries) - 1
        assert abs(time - graph.profile.operations_us) <= 1
        assert sum(figures_of(drawn).values()) == sum(node.allocated_bytes for node in graph.nodes)


def test_the_figures_of_a_graph_without_operations_stand_on_what_is_drawn():
    build = GraphBuilder("Net")
    x = build.input("x", (2, 4))
    build.op("tanh", x)
    build.output("out", x)
    figure = weigh(build.graph)
    assert figures_of(draw(build.graph, (figure,), dead="drop")) == {"x": 1}


@pytest.mark.parametrize(("around", "place"), [(True, "add"), (False, "Net")])
def test_what_was_dropped_at_the_top_level_adds_to_the_next_there_or_to_the_next_anywhere(
    around, place
):
    build = GraphBuilder("Net")
    x = build.input("x", (2, 4))
    dead = build.op("tanh", x).producer
    y = build.op("relu", x, scope=build.call("Net", x))
    build.output("out", build.op("add", y, x) if around else y)
    drawn = draw(build.graph, (Figure("weight", {dead: 5}, as_bytes=1),), dead="drop", root=True)
    assert figures_of(drawn) == {place: 5}


def test_a_card_is_on_the_first_device_of_its_scope_and_what_is_on_none_on_the_first_of_all():
    build = GraphBuilder("Net")
    net, block = build.call("Net"), build.call("Net/Block[block]")
    head = build.call("Net/Head[head]")
    x = build.input("x", (2,), device="cuda:0")
    y = build.op("relu", x, scope=build.hand("Net/Block[block]/part"), device="cuda:1")
    y = build.op("tanh", y, scope=block, device="cuda:2")
    seed = build.node("seed", scope=net)
    y = build.op("exp", build.op("log", y, scope=head), scope=head)
    build.output("out", y)
    figure = Figure("weight", {net: 1, block: 2, head: 3, seed: 4}, as_bytes=1)
    drawn = draw(build.graph, (figure,), root=True)
    assert {
        entry.node_name: device.device
        for device in drawn.stats.step_stats.dev_stats
        for entry in device.node_stats
        if entry.memory
    } == {
        "Net/Net": "/device:GPU:1",
        "Net/block/Block": "/device:GPU:1",
        "Net/head/Head": "/device:CPU:0",
        "Net/seed": "/device:GPU:0",
    }


def test_all_that_is_drawn_has_a_stat_where_anything_has_a_figure():
    build = GraphBuilder("Net")
    net = build.call("Net")
    y = x = build.input("x", (2,))
    for at in range(3):
        block = build.call(f"Net/Block[b{at}]", x)
        inner = build.call(f"Net/Block[b{at}]/Inner[inner]", x)
        y = build.op("exp", build.op("neg", y, scope=inner), scope=inner)
        y = build.op("add", y, build.parameter(f"b{at}.w", (2,), block), scope=block)
    build.op("cos", y, scope=net)
    build.output("out", y)
    drawn = draw(build.graph, (Figure("weight", {build.graph.nodes[1]: 5}, as_bytes=1),))
    stats = [stat for device in drawn.stats.step_stats.dev_stats for stat in device.node_stats]
    names = [node.name for node in drawn.graph_def.node if "Const" not in node.op]
    assert any(name.startswith("__function_library__") for name in names)
    assert sorted(stat.node_name for stat in stats) == sorted(names)
    # Without any figure there is nothing to colour by.
    none = draw(build.graph, (Figure("weight", {}, as_bytes=1),))
    assert not none.stats.step_stats.dev_stats
