"""The invariants: one break for each, beside the graph that keeps it."""

import pytest
from build import GraphBuilder, chain
from hypothesis import given
from hypothesis import strategies as st

from tbscope.errors import GraphError
from tbscope.graphdef.attr_bytes import shape_bytes
from tbscope.ir.graph import Call, Node, Output, Value
from tbscope.ir.invariants import INVARIANTS
from tbscope.ir.metadata import Collective, Gradient, Sharding
from tbscope.ir.scopes import Scope, ScopePart


def net():
    """Give the builder of a small graph that keeps them all.

    Nodes 0 to 4: the input, weight, bias, `%1` (linear) and `%2` (relu by hand).
    """
    build = GraphBuilder("Net")
    build.call("Net")
    y = build.linear("Net/Sequential[layers]/Linear[0]", build.input("x", (1, 2)), 3)
    build.output("out", build.op("relu", y, scope=build.hand("Net/post")))
    return build


def broken(graph):
    """Give what verify says is broken, line by line."""
    with pytest.raises(GraphError) as caught:
        graph.verify()
    return caught.value.why.split("\n       ")


def test_a_graph_as_sources_make_it_keeps_every_invariant():
    net().graph.verify()
    chain(3).verify()
    GraphBuilder().graph.verify()


def test_every_invariant_is_described_in_a_sentence():
    assert all(check.__doc__.endswith(".") for check in INVARIANTS.values())


def test_the_message_tells_the_first_few_and_counts_them_all():
    graph = chain(4)
    for node in graph.nodes:
        for value in node.outputs:
            value.device = ""
    with pytest.raises(GraphError) as caught:
        graph.verify()
    assert str(caught.value) == (
        "the graph of Chain breaks the invariants of a graph in 13 places\n"
        "  why: types: %x has no device\n"
        "       types: %0.weight has no device\n"
        "       types: %0.bias has no device\n"
        "       types: %1 has no device\n"
        "       types: %1.weight has no device\n"
        "       and 8 more\n"
        "  fix: print(graph) shows its content; an unchanged graph of tbscope.trace or "
        "tbscope.record never breaks one: report it as a bug"
    )


def test_a_name_that_two_nodes_have():
    graph = net().graph
    graph.nodes[4].name = "0.weight"
    graph.nodes[1].name = "0.weight"
    assert broken(graph) == ["names: 2 nodes are named '0.weight'"]


def test_a_node_without_a_name():
    graph = net().graph
    graph.nodes[4].name = ""
    assert broken(graph) == ["names: a node of op 'relu' has no name"]


def test_a_name_that_two_outputs_have():
    build = net()
    build.graph.outputs.append(Output("out", build.graph.nodes[3].outputs[0]))
    assert broken(build.graph) == ["output names: 2 outputs are named 'out'"]


def test_a_value_that_names_another_producer():
    graph = net().graph
    graph.nodes[4].outputs[0].producer = graph.nodes[0]
    assert broken(graph) == [
        "ownership: output 0 of %2 (relu, in Net/post) names %x (input) as its producer"
    ]


def test_a_value_with_the_index_of_another():
    graph = net().graph
    graph.nodes[4].outputs[0].index = 1
    assert broken(graph) == ["ownership: output 0 of %2 (relu, in Net/post) has the index 1"]


def test_an_edge_from_no_node_of_the_graph():
    graph = net().graph
    graph.nodes[4].inputs = [Value(Node("9", "relu"), 0, (1,), "float32", "cpu")]
    assert broken(graph) == [
        "edges: %2 (relu, in Net/post) reads %9, which no node of the graph gives"
    ]


def test_an_edge_from_a_value_that_its_node_gives_no_more():
    graph = net().graph
    (old,) = graph.nodes[3].outputs
    graph.nodes[3].outputs = [Value(graph.nodes[3], 0, (1, 3), "float32", "cpu")]
    assert graph.nodes[4].inputs == [old]
    assert broken(graph) == [
        "edges: %2 (relu, in Net/post) reads %1, which no node of the graph gives"
    ]


def test_waiting_for_a_node_that_is_not_in_the_graph():
    graph = net().graph
    other = Node("9", "add_")
    graph.nodes[4].control_inputs = [other]
    graph.outputs[0] = Output("out", graph.outputs[0].value, (other,))
    assert broken(graph) == [
        "edges: %2 (relu, in Net/post) waits for %9 (add_), which is not in the graph",
        "edges: the output 'out' waits for %9 (add_), which is not in the graph",
    ]


def test_an_output_from_no_node_of_the_graph():
    graph = net().graph
    graph.outputs[0] = Output("out", Value(Node("9", "relu"), 0, (1,), "float32", "cpu"))
    assert broken(graph) == ["edges: the output 'out' is %9, which no node of the graph gives"]


@pytest.mark.parametrize("places", [(3,), (-1,), (0, 3)])
def test_a_write_and_a_gradient_of_an_input_that_the_node_has_not(places):
    graph = net().graph
    linear = graph.nodes[3]
    linear.writes, linear.gradients = (0, 2), (Gradient(1, (0, 2)),)
    graph.verify()
    linear.writes, linear.gradients = places, (Gradient(1, places),)
    of, scope = f"its inputs {places}, of which it has 3", linear.scope
    assert broken(graph) == [
        f"positions: %1 (linear, in {scope}) writes into {of}",
        f"positions: %1 (linear, in {scope}) has a gradient of {of}",
    ]


def test_a_value_that_is_read_before_it_is_given():
    graph = net().graph
    graph.nodes[3], graph.nodes[4] = graph.nodes[4], graph.nodes[3]
    assert broken(graph) == ["order: %2 (relu, in Net/post) reads %1 before it is given"]


def test_a_node_that_reads_what_it_gives():
    graph = net().graph
    graph.nodes[4].inputs = list(graph.nodes[4].outputs)
    assert broken(graph) == ["order: %2 (relu, in Net/post) reads %2 before it is given"]


def test_a_node_that_waits_for_a_later_one():
    graph = net().graph
    graph.nodes[3].control_inputs = [graph.nodes[4]]
    assert broken(graph) == [
        "order: %1 (linear, in Net/Sequential[layers]/Linear[0]) waits for "
        "%2 (relu, in Net/post), which does not come before it"
    ]


def test_a_node_that_waits_for_itself():
    graph = net().graph
    node = graph.nodes[-1]
    node.control_inputs = [node]
    (line,) = broken(graph)
    assert line.startswith("order:")
    assert "which does not come before it" in line


def test_a_kind_that_is_none():
    graph = net().graph
    graph.nodes[4].kind = "operation"
    assert broken(graph) == [
        "kinds: %2 (relu, in Net/post) is of the kind 'operation', which is none"
    ]


def test_a_parameter_that_reads_values():
    graph = net().graph
    graph.nodes[1].inputs = list(graph.inputs[0].outputs)
    assert broken(graph) == [
        "kinds: %layers.0.weight (parameter, in Net/Sequential[layers]/Linear[0]) "
        "is of the kind 'parameter' and reads values"
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g: g.inputs.clear(), "%x (input) is of the kind 'input' and not among the inputs"),
        (lambda g: g.inputs.append(g.inputs[0]), "a node is twice among the inputs"),
        (
            lambda g: g.inputs.append(g.nodes[4]),
            "%2 (relu, in Net/post) is among the inputs and of the kind 'op'",
        ),
        (
            lambda g: g.inputs.append(Node("y", "input", "input")),
            "%y (input) is among the inputs and not among the nodes",
        ),
        (
            lambda g: setattr(g.nodes[0], "scope", g.calls[0].scope),
            "%x (input, in Net) is of the kind 'input' and not at the top level",
        ),
    ],
)
def test_inputs_that_are_not_the_nodes_of_that_kind(change, said):
    graph = net().graph
    change(graph)
    assert broken(graph) == [f"inputs: {said}"]


@pytest.mark.parametrize("shape", [(), (0,), (1, 2), (None, 3), None])
def test_a_shape_is_a_tuple_of_sizes_or_none_for_an_unknown_rank(shape):
    graph = net().graph
    graph.nodes[4].outputs[0].shape = shape
    graph.verify()


@pytest.mark.parametrize("shape", ["", [1, 2], 3])
def test_a_shape_that_is_no_tuple(shape):
    graph = net().graph
    graph.nodes[4].outputs[0].shape = shape
    assert broken(graph) == [f"types: %2 has the shape {shape!r}, which is no tuple"]


@pytest.mark.parametrize("size", [-1, 2.0, True, "2", 2**63])
def test_a_size_that_is_none(size):
    graph = net().graph
    graph.nodes[4].outputs[0].shape = (1, size)
    assert broken(graph) == [f"types: %2 has the shape {(1, size)!r}, where {size!r} is no size"]


def test_the_largest_size_is_drawn():
    graph = net().graph
    graph.nodes[4].outputs[0].shape = (2**63 - 1,)
    graph.verify()
    assert shape_bytes((2**63 - 1,))


def test_a_shape_of_which_no_size_is_one_is_told_once():
    graph = net().graph
    graph.nodes[4].outputs[0].shape = (-1, -2)
    assert broken(graph) == ["types: %2 has the shape (-1, -2), where -1 is no size"]


def test_a_module_that_no_call_called():
    graph = net().graph
    del graph.calls[0]
    assert broken(graph) == ["calls: the scope Net is that of a module, and no call has it"]


def test_two_calls_of_one_scope():
    graph = net().graph
    graph.calls.append(Call(graph.calls[1].scope, "torch.nn.Linear", "layers.0"))
    assert broken(graph) == [
        "calls: 2 calls have the scope Net/Sequential[layers]/Linear[0] and the number 0"
    ]
    graph.calls[-1].number = 1
    graph.verify()


@pytest.mark.parametrize("kind", ["container", "hand", "op", "function", "rank"])
def test_a_call_of_what_is_no_module(kind):
    graph = net().graph
    graph.calls[0].scope.kind = kind
    assert broken(graph) == [f"calls: the scope Net is of the kind {kind!r}, and a call has it"]


def test_a_scope_of_a_kind_that_is_none():
    graph = net().graph
    graph.nodes[4].scope.kind = "block"
    assert broken(graph) == ["calls: the scope Net/post is of the kind 'block', which is none"]


@pytest.mark.parametrize("kind", ["container", "hand", "op", "function", "rank"])
def test_scopes_of_every_kind_but_a_module_stand_without_a_call(kind):
    graph = net().graph
    graph.nodes[4].scope.kind = kind
    graph.verify()


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_nodes_and_scopes_are_of_a_known_phase(phase):
    graph = net().graph
    node, scope = graph.nodes[4], graph.nodes[3].scope
    node.phase = scope.phase = phase
    graph.verify()
    node.phase, scope.phase = "sideways", "backwards"
    assert broken(graph) == [
        "phases: %2 (relu, in Net/post) is of the phase 'sideways', which is none",
        f"phases: the scope {scope} is of the phase 'backwards', which is none",
    ]


def test_two_scopes_of_one_path():
    graph = net().graph
    post = graph.nodes[4].scope
    graph.nodes[3].scope = Scope(ScopePart("post"), parent=post.parent, kind="hand")
    assert broken(graph) == ["paths: 2 scopes have the path Net/post"]
    graph.nodes[3].scope = Scope(ScopePart("post", None, 1), parent=post.parent, kind="hand")
    graph.verify()


@given(st.lists(st.text(max_size=3), max_size=6))
def test_names_are_kept_just_where_they_are_distinct_and_none_is_empty(names):
    build = GraphBuilder()
    for name in names:
        build.node("relu").name = name
    if len(set(names)) == len(names) and "" not in names:
        build.graph.verify()
    else:
        assert all(text.startswith("names: ") for text in broken(build.graph))


@given(st.data())
def test_any_order_but_a_right_one_is_refused(data):
    graph = chain(3)
    graph.nodes = data.draw(st.permutations(graph.nodes))
    place = {node: index for index, node in enumerate(graph.nodes)}
    edges = [(v.producer, node) for node in graph.nodes for v in node.inputs]
    wrong = [edge for edge in edges if place[edge[0]] > place[edge[1]]]
    if wrong:
        assert all(text.startswith(("order: ", "and ")) for text in broken(graph))
    else:
        graph.verify()


def test_a_graph_that_is_wrong_everywhere_is_refused_in_linear_time():
    graph = chain(5000)
    graph.nodes.reverse()
    assert broken(graph)[-1] == "and 14995 more"


def test_collectives_are_of_a_known_kind_and_join_ranks_of_the_run():
    graph = net().graph
    graph.world_size = 4
    graph.nodes[4].collective = Collective("send", ranks=(0, 3), peer=3)
    graph.verify()
    graph.nodes[4].collective = Collective("share", ranks=(0, 3), peer=4)
    assert broken(graph) == [
        "collectives: %2 (relu, in Net/post) is a collective of the kind 'share', which is none",
        "collectives: %2 (relu, in Net/post) joins rank 4, and the run has 4",
    ]


def test_a_shard_has_as_many_dimensions_as_the_whole_and_a_placement_along_each_of_a_mesh():
    graph = net().graph
    value = graph.nodes[4].outputs[0]
    value.sharding = Sharding((1, 2), ("Shard(1)",), ("tp",))
    graph.verify()
    value.sharding = Sharding((1,), ("Shard(1)",), ("dp", "tp"))
    assert broken(graph) == [
        "shardings: %2 has 1 placements along 2 dimensions",
        "shardings: %2 has the shape (1, 3), and here (1,) of it",
    ]
