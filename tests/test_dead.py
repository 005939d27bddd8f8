"""Operations that nothing depends on."""

import pytest
import torch
from build import GraphBuilder
from real_graphs import KINDS, operations, origins, real_graph
from torch import nn

import tbscope
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Constant, Note
from tbscope.passes.collapse_modules import collapse_modules
from tbscope.passes.dead_code import mark_dead


def net():
    """Give a builder, the scope of its called root, and its input."""
    build = GraphBuilder("Net")
    return build, build.call("Net"), build.input("x", (2,))


def dropped(graph):
    """Drop what is dead from a copy; give the operations that are left."""
    copy = graph.copy()
    mark_dead(copy, "drop")
    copy.verify()
    return [node.op for node in operations(copy)]


def marked(graph):
    copy = graph.copy()
    mark_dead(copy)
    return [node.op for node in copy.nodes if "unused" in node.attributes]


def test_what_no_output_depends_on_is_marked_or_dropped():
    build, scope, x = net()
    lost = build.op("neg", build.op("exp", x, scope=scope), scope=scope)
    build.op("abs", lost, scope=scope)
    build.output("out", build.op("relu", x, scope=scope))
    assert marked(build.graph) == ["exp", "neg", "abs"]
    assert dropped(build.graph) == ["relu"]


def test_with_it_go_the_parameters_that_it_alone_has_read():
    build, scope, x = net()
    shared = build.parameter("shared", (2,), scope)
    own = build.parameter("own", (2,), scope)
    build.op("mul", x, own, shared, scope=scope)
    unread = build.input("unread", (2,))
    build.op("abs", unread, scope=scope)
    build.output("out", build.op("add", x, shared, scope=scope))
    copy = build.graph.copy()
    mark_dead(copy, "drop")
    assert [node.name for node in copy.nodes] == ["x", "shared", "unread", "3"]


def test_calls_name_what_is_gone():
    build, scope, x = net()
    weights = build.op("softmax", x, scope=scope)
    inner = build.call("Net/Log[log]", weights)
    build.returns(inner, {"seen": [weights]})
    y = build.op("relu", x, scope=inner)
    build.returns(scope, (y, weights))
    build.output("out", y)
    copy = build.graph.copy()
    mark_dead(copy, "drop")
    log = copy.find("log")
    assert (str(log.arguments[0].nest), str(log.results)) == ("<unused>", "{'seen': [<unused>]}")
    assert copy.calls[0].results[1] == Constant("<unused>")


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": ()},
        {"outputs": ((2,),), "attributes": {"error": "boom"}},
        {"outputs": ((2,),), "writes": (0,)},
    ],
)
def test_what_is_run_for_more_than_what_it_gives_stays(fields):
    build, scope, x = net()
    build.node("act", x, scope=scope, **fields)
    build.output("out", build.op("relu", x, scope=scope))
    assert dropped(build.graph) == ["act", "relu"]


def test_what_others_wait_for_and_what_a_note_is_about_stays():
    build, scope, x = net()
    y = build.op("clone", x, scope=scope)
    first = build.op("getitem", y, 0, scope=scope, shape=())
    fill = build.op("zero_", y, scope=scope, writes=(0,)).producer
    noted = build.op("max", x, scope=scope)
    build.graph.notes.append(Note("Python read it", node=noted.producer))
    build.output("out", build.op("add", first, 1, scope=scope, control_inputs=[fill]))
    assert dropped(build.graph) == ["clone", "getitem", "zero_", "max", "add"]


def test_a_write_into_what_the_run_made_itself_is_dead_with_it():
    def function(x):
        scratch = torch.zeros(2)
        scratch[0] = 1
        return x + 1

    assert dropped(tbscope.trace(function, torch.rand(2))) == ["add"]


class Counter(torch.nn.Module):
    """Counts in a buffer, through a view of it."""

    def __init__(self, view):
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.view = view

    def forward(self, x):
        self.view(self.count, x)[0] += 1
        return x * 2


@pytest.mark.parametrize("view", [lambda count, x: count.view(2, 1), torch.Tensor.view_as])
def test_a_write_into_a_buffer_through_a_view_stays(view):
    ops = dropped(tbscope.trace(Counter(view), torch.rand(2)))
    assert {"add_", "mul"} <= set(ops)
    assert {"view", "view_as"} & set(ops)


@pytest.mark.parametrize("view", [lambda count, x: count.view(2, 1), torch.Tensor.view_as])
def test_a_module_that_counts_through_a_view_stays(view):
    graph = tbscope.trace(torch.nn.Sequential(Counter(view), Counter(view)), torch.rand(2))
    graph.outputs.clear()
    collapse_modules(graph)
    assert [node.op for node in graph.nodes if node.writes] == ["Counter", "Counter"]
    assert [
        [node.inputs[at].name for at in node.writes] for node in graph.nodes if node.writes
    ] == [
        ["0.count"],
        ["1.count"],
    ]
    assert marked(graph) == []


@pytest.mark.parametrize(
    ("reads_more", "left"), [(False, ["flat", "fill_", "relu"]), (True, ["relu"])]
)
def test_what_reads_one_thing_may_give_a_view_of_it_and_what_reads_more_gives_something_new(
    reads_more, left
):
    build, scope, x = net()
    state = build.parameter("state", (2,), scope, kind="buffer")
    y = build.op("flat", state, *([x] if reads_more else []), scope=scope)
    build.op("fill_", y, 1, scope=scope, writes=(0,))
    build.output("out", build.op("relu", x, scope=scope))
    assert dropped(build.graph) == left


def test_an_operation_that_writes_only_into_what_it_made_itself_is_dead():
    def function(x):
        torch.nn.functional.dropout(x, training=True)
        return x + 1

    assert dropped(tbscope.trace(function, torch.rand(2))) == ["add"]


def test_the_batches_that_are_counted_in_training_stay():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.ReLU())
    graph = tbscope.trace(model, torch.rand(3, 2), training=True)
    assert marked(graph) == []


def test_dead_is_keep_or_drop():
    with pytest.raises(ArgumentError) as caught:
        tbscope.to_graph_def(tbscope.Graph("Net"), dead="hide")
    assert str(caught.value) == (
        "dead cannot be 'hide'\n"
        "  why: dead is 'keep' or 'drop'\n"
        "  fix: dead='keep', or leave dead out"
    )


@pytest.mark.parametrize("name", KINDS)
def test_no_output_of_a_model_changes_when_what_is_dead_goes(name):
    before = real_graph(name)
    graph = before.copy()
    mark_dead(graph, "drop")
    graph.verify()
    assert origins(graph) == origins(before)
    again = graph.copy()
    mark_dead(again)
    assert not [node for node in again.nodes if "unused" in node.attributes]


def test_the_layer_that_a_model_computes_in_vain_is_found():
    unused = {node.op for node in marked_nodes("EncodecModel")}
    assert "embedding" in unused
    assert marked_nodes("ViTForImageClassification") == []


def marked_nodes(name):
    graph = real_graph(name).copy()
    mark_dead(graph)
    return [node for node in graph.nodes if "unused" in node.attributes]


# -- what is filled by `out=` ---------------------------------------------------------------------


class Filling(nn.Module):
    """Fills something by `out=`, and gives something else."""

    def __init__(self, target):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.memo = torch.zeros(4)
        self.target = target

    def forward(self, x):
        torch.add(x, 1, out=self.target(self, x))
        return x.cos()


OUTSIDE = torch.zeros(4)


def normalise(self, x):
    """Give what is new, of an operation that writes into views of a buffer."""
    means, variances = self.seen[:2], self.seen[2:]
    return nn.functional.batch_norm(x.view(2, 2), means, variances, training=True).view(4)


TARGETS = {
    "a buffer": (lambda self, x: self.seen, "seen"),
    "a view of one": (lambda self, x: self.seen.view(2, 2).view(4), "seen"),
    "an attribute": (lambda self, x: self.memo, "memo"),
    "one that was filled": (lambda self, x: torch.neg(x, out=self.memo), "memo"),
    "a tensor from outside": (lambda self, x: OUTSIDE, "a constant"),
    "an input": (lambda self, x: x, "x"),
    "one that was written into": (lambda self, x: x.mul_(2).view(4), "x"),
    "a new one": (lambda self, x: torch.empty(4), None),
    "a computed one": (lambda self, x: self.seen + 1, None),
    "a view of a new one": (lambda self, x: x.clone().view(4), None),
    "one beside what was written": (normalise, None),
}


@pytest.mark.parametrize(("target", "fills"), TARGETS.values(), ids=TARGETS)
def test_what_fills_something_from_before_is_run_for_that(target, fills):
    graph = tbscope.trace(Filling(target), torch.rand(4))
    (add,) = (node for node in graph.nodes if node.kernels == ["aten::add"] and node.arguments[2:])
    assert add.attributes.get("fills") == fills
    assert ("add" in dropped(graph)) is (fills is not None)


@pytest.mark.parametrize("level", ["op", "aten", "module"])
def test_what_fills_a_buffer_is_drawn_at_each_level(level):
    class Two(Filling):
        def forward(self, x):
            torch.linalg.multi_dot([x, torch.eye(4), torch.eye(4)], out=self.seen)
            return x.cos()

    graph = tbscope.trace(nn.Sequential(Two(None), nn.ReLU()), torch.rand(4), kernels=True)
    drawn = tbscope.to_graph_def(graph, level=level, dead="drop")
    assert [node.attr["fills"].s for node in drawn.node if "fills" in node.attr] == [b"0.seen"]
