"""Levels of detail: modules, operations, kernels; one trace written at several of them."""

from collections import Counter

import pytest
import torch
from build import GraphBuilder
from real_graphs import KINDS, operations, origins, real_graph

import tbscope
from tbscope.drawing.info_cards import leaf_facts
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Note
from tbscope.ir.metadata import Collective
from tbscope.ir.module_tree import ModuleTree
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.detail_level import set_level
from tbscope.passes.hide_views import hide_plumbing


def at(graph, level):
    """Give a copy of a graph at a level."""
    copy = graph.copy()
    set_level(copy, level)
    copy.verify()
    return copy


def ops(graph):
    return [node.op for node in operations(graph)]


def net():
    """Give a builder, the scope of its called root, and its input."""
    build = GraphBuilder("Net")
    return build, build.call("Net"), build.input("x", (2,))


# -- modules ----------------------------------------------------------------------------------


def gelu(build, x, path="Net/GELU[act]"):
    """Add the call of a module that runs three operations, one in a scope by hand."""
    scope = build.call(path, x, training=True)
    scale = build.parameter(f"{path[-4:-1]}.scale", (2,), scope)
    y = build.op("tanh", x, scope=build.hand(f"{path}/inner"), kernels=["aten::tanh"])
    y = build.op("mul", build.op("mul", y, scale, scope=scope), x, scope=scope)
    build.returns(scope, y)
    return y


def test_a_leaf_module_is_one_node_whatever_runs_inside():
    build, scope, x = net()
    y = gelu(build, build.op("neg", x, scope=scope))
    build.output("out", build.op("exp", y, scope=scope))
    graph = at(build.graph, "module")
    assert ops(graph) == ["neg", "GELU", "exp"]
    node = operations(graph)[1]
    assert (node.kind, node.scope.path, node.kernels) == ("module", "Net/GELU[act]", ["aten::tanh"])
    assert [value.name for value in node.inputs] == ["1", "act.scale"]
    assert node.attributes == {"operations": "tanh, mul x2"}
    assert leaf_facts(graph, {}, ModuleTree(graph).part_of)[node] == {
        "operations": "tanh, mul x2",
        "class": "models.GELU",
        "module": "act",
        "training": True,
    }
    assert str(node) == "%2 : Float(2) = GELU(%1, scale=%act.scale), scope: Net/GELU[act]"
    assert graph.find("act").results is node.outputs[0]


def test_operations_between_leaf_modules_and_modules_with_others_inside_stay():
    build, scope, x = net()
    block = build.call("Net/Block[b]", x)
    y = gelu(build, build.op("neg", x, scope=block), "Net/Block[b]/GELU[act]")
    build.returns(block, y)
    build.output("out", build.op("exp", y, scope=scope))
    assert ops(at(build.graph, "module")) == ["neg", "GELU", "exp"]


@pytest.mark.parametrize(
    ("collective", "left"),
    [(None, ["neg", "Head", "exp"]), (Collective("reduce"), ["neg", "mul", "reduce", "exp"])],
)
def test_a_leaf_module_that_communicates_stays_open(collective, left):
    build, scope, x = net()
    head = build.call("Net/Head[head]", x)
    y = build.op("mul", build.op("neg", x, scope=scope), 2, scope=head)
    y = build.op("reduce", y, scope=head, collective=collective)
    build.returns(head, y)
    build.output("out", build.op("exp", y, scope=scope))
    assert ops(at(build.graph, "module")) == left


@pytest.mark.parametrize("place", [0, 1, None])
def test_a_leaf_module_is_random_where_one_of_its_operations_is(place):
    build, scope, x = net()
    noise = build.call("Net/Noise[noise]", x)
    y = build.op("neg", x, scope=scope)
    for number in range(2):
        y = build.op("dropout", y, scope=noise, random=number == place)
    build.returns(noise, y)
    build.output("out", y)
    module = operations(at(build.graph, "module"))[1]
    assert (module.op, module.random) == ("Noise", place is not None)


def test_a_leaf_module_gives_its_results_and_whatever_else_is_read():
    build, scope, x = net()
    inner = build.call("Net/Pair[p]", x)
    hidden = build.op("neg", x, scope=inner)
    first, second = build.node("split", hidden, scope=inner, outputs=((1,), (1,))).outputs
    build.returns(inner, (second, x, first))
    build.output("out", build.op("cat", [first, hidden, second], scope=scope))
    graph = at(build.graph, "module")
    pair, cat = operations(graph)
    assert [value.shape for value in pair.outputs] == [(1,), (1,), (2,)]
    assert [value.index for value in cat.inputs] == [1, 2, 0]


def test_notes_and_what_waits_follow_the_module():
    build, scope, x = net()
    y = build.op("clone", x, scope=scope)
    inner = build.call("Net/Fill[f]", y)
    part = build.op("getitem", y, 0, scope=inner, shape=())
    fill = build.op("zero_", part, scope=inner, attributes={"read_by_python": "item"}).producer
    build.graph.notes.append(Note("Python read it", node=fill))
    build.output("out", build.op("add", y, 1, scope=scope, control_inputs=[fill]))
    graph = at(build.graph, "module")
    _, module, add = operations(graph)
    assert add.control_inputs == [module]
    assert graph.notes[0].node is module
    assert module.attributes["read_by_python"] == "item"


@pytest.mark.parametrize(("reads_more", "writes"), [(False, (0,)), (True, ())])
def test_a_leaf_module_writes_what_its_operations_may_have_written(reads_more, writes):
    build, scope, x = net()
    inner = build.call("Net/Fill[f]", x)
    # What reads one thing may give a view of it.
    more = [build.input("z", (2,))] if reads_more else []
    y = build.op("step", x, *more, scope=inner)
    y = build.op("fill_", y, 1, scope=inner, writes=(0,))
    build.output("out", build.op("exp", y, scope=scope))
    (module, _) = operations(at(build.graph, "module"))
    assert (module.op, module.writes) == ("Fill", writes)


def test_a_module_that_is_the_whole_graph_stays_open():
    build, scope, x = net()
    build.output("out", build.op("exp", build.op("neg", x, scope=scope), scope=scope))
    assert ops(at(build.graph, "module")) == ["neg", "exp"]


def test_leaves_that_take_turns_stay_open():
    build, scope, x = net()
    one, two = build.call("Net/A[a]", x), build.call("Net/B[b]", x)
    y = build.op("neg", x, scope=one)
    y = build.op("exp", y, scope=two)
    y = build.op("abs", y, scope=one)
    build.output("out", build.op("relu", y, scope=scope))
    assert ops(at(build.graph, "module")) == ["neg", "B", "abs", "relu"]


@pytest.mark.parametrize("name", KINDS)
def test_every_leaf_call_of_a_model_is_one_node(name):
    before = real_graph(name)
    graph = at(before, "module")
    per_scope = Counter(node.scope for node in operations(graph) if node.scope is not None)
    modules = [node for node in operations(graph) if node.kind == "module"]
    assert len(modules) > 3
    for node in modules:
        assert per_scope[node.scope] == 1
    after = origins(graph)
    assert all(names <= after[output] for output, names in origins(before).items())
    hide_plumbing(graph)
    collapse_leaves(graph)
    graph.verify()
    assert len(operations(graph)) <= len(operations(before))


# -- kernels ----------------------------------------------------------------------------------


class Attend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = torch.einsum("bij,bkj->bik", self.fc(x), x)
        y[:, 0] = 1
        return y.relu().reshape(-1)


def test_the_kernels_of_an_operation_stand_in_a_scope_of_its_name():
    graph = at(tbscope.trace(Attend(), torch.rand(2, 3, 4), kernels=True), "aten")
    inside = [node for node in graph.nodes if str(node.scope or "") == "Attend/Linear[fc]/linear"]
    # torch 2.15 ends with `_unsafe_view`, a view that autograd takes for a copy.
    assert [node.op.removeprefix("_unsafe_") for node in inside] == ["view", "t", "addmm", "view"]
    addmm = inside[2]
    assert addmm.kernels == ["aten::addmm"]
    assert addmm.attributes == {"operation": "linear"}
    assert addmm.scope.kind == "op"
    transpose = inside[1]
    assert [value.name for value in transpose.inputs] == ["fc.weight"]
    assert transpose.outputs[0] in addmm.inputs
    assert transpose.outputs[0].shape == (4, 4)


def test_kernels_tell_their_arguments_by_the_names_of_their_schemas():
    graph = at(tbscope.trace(Attend(), torch.rand(2, 3, 4), kernels=True), "aten")
    bmm = next(node for node in graph.nodes if node.op == "bmm")
    assert [argument.name for argument in bmm.arguments] == ["self", "mat2"]
    assert bmm.source is not None
    assert {node.op for node in graph.nodes} >= {"bmm", "fill_", "relu", "reshape"}


def test_what_an_operation_wrote_into_is_read_from_the_kernel_that_wrote():
    def function(x):
        y = x.clone()
        y[:, 0] = x[:, 1] * 2
        return y + 1

    graph = at(tbscope.trace(function, torch.rand(2, 3), kernels=True), "aten")
    add = operations(graph)[-1]
    assert (add.op, add.inputs[0].producer.op) == ("add", "copy_")
    assert add.inputs[0].shape == (2, 3)
    assert add.inputs[0].producer.scope.path == "function/setitem"


def test_operations_of_one_name_get_scopes_of_their_own():
    def function(x):
        with tbscope.scope("linear"):
            y = torch.nn.functional.linear(x, x)
        return torch.nn.functional.linear(torch.nn.functional.linear(y, x), x)

    graph = at(tbscope.trace(function, torch.rand(3, 3), kernels=True), "aten")
    assert list(dict.fromkeys(str(node.scope or "") for node in operations(graph))) == [
        "function/linear/linear",
        "function/linear.1",
        "function/linear.2",
    ]


def test_an_operation_of_one_kernel_stays_a_node():
    graph = at(tbscope.trace(torch.nn.ReLU(), torch.rand(2), kernels=True), "aten")
    assert ops(graph) == ["relu"]


def test_operations_whose_kernels_cannot_be_followed_stay_nodes():
    def function(x):
        return torch.vmap(lambda row: torch.nn.functional.linear(row, x))(x)

    graph = tbscope.trace(function, torch.rand(2, 2), kernels=True)
    assert [node.body.nodes for node in graph.nodes if len(node.kernels) > 1] == [[]]
    assert str(at(graph, "aten")) == str(graph)


@pytest.mark.parametrize("shape", [(2, 3), (3,)])
def test_an_operation_that_gives_back_what_it_read_is_opened_like_others(shape):
    given = tuple(torch.ones(size) for size in (shape, (3,), (3,)))
    graph = tbscope.trace(torch.atleast_2d, given, kernels=True)
    (node,) = operations(graph)
    made = [kernel.outputs[0] for kernel in node.body.nodes]
    assert node.body.results == ([node.inputs[0], *made] if len(shape) == 2 else made)
    assert set(ops(at(graph, "aten"))) == {"unsqueeze"}


def test_what_is_made_of_a_number_waits_for_the_kernel_that_gave_it():
    def function(x, n):
        return x.view(n, -1).sum() + torch.nn.functional.one_hot(n).sum()

    given = torch.rand(4), torch.tensor(2)
    before = tbscope.trace(function, given, kernels=True)
    graph = at(before, "aten")
    assert origins(graph) == origins(before) == {"out": {"x", "n"}}
    view = next(node for node in graph.nodes if node.op == "view")
    assert [node.op for node in view.control_inputs] == ["_local_scalar_dense"]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_and_training_change_nothing_of_what_is_followed(grad, training):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    given = torch.rand(2, 3, 8)
    before = tbscope.trace(layer, given, kernels=True, grad=grad, training=training)
    graph = at(before, "aten")
    assert all(node.body.nodes for node in before.nodes if len(node.kernels) > 1)
    assert origins(graph) == origins(before)


@pytest.mark.parametrize("name", KINDS)
def test_the_kernels_of_a_model_depend_on_what_its_operations_do(name):
    before = real_graph(name)
    several = [node for node in before.nodes if len(node.kernels) > 1]
    assert all(node.body.nodes for node in several)
    graph = at(before, "aten")
    assert origins(graph) == origins(before)
    assert sum(len(node.kernels) for node in operations(graph)) == sum(
        len(node.kernels) for node in operations(before)
    )
    collapse_leaves(graph)
    graph.verify()


def test_one_graph_is_written_at_every_level_and_stays_as_it_is():
    before = real_graph("GPT2LMHeadModel")
    text = str(before)
    counts = [len(operations(at(before, level))) for level in ("module", "op", "aten")]
    assert counts == sorted(set(counts))
    assert str(before) == text
    assert str(at(before, "op")) == text
    assert str(at(before.copy(), "aten")) == str(at(before, "aten"))


def test_kernels_that_were_not_recorded_are_asked_for():
    graph = tbscope.trace(torch.nn.Linear(2, 2), torch.rand(3, 2))
    assert all(node.body is None for node in graph.nodes)
    with pytest.raises(ArgumentError) as caught:
        set_level(graph, "aten")
    assert str(caught.value) == (
        "the graph of Linear cannot be drawn at the level 'aten'\n"
        "  why: the kernels inside its operations were not recorded\n"
        "  fix: trace it with tbscope.trace(model, input, kernels=True)"
    )


def test_a_level_is_one_of_four():
    with pytest.raises(ArgumentError) as caught:
        tbscope.to_graph_def(tbscope.Graph("Net"), level="layer")
    assert str(caught.value) == (
        "level cannot be 'layer'\n"
        "  why: level is 'overview', 'module', 'op' or 'aten'\n"
        "  fix: level='overview', or leave level out"
    )
