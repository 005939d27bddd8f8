"""The graph: names of values, finding, scopes, copies."""

import pytest
from build import GraphBuilder, chain, values_in
from hypothesis import given
from hypothesis import strategies as st

from tbscope.errors import NotFoundError
from tbscope.ir.graph import Argument, Constant, Note, Source, copy_graph
from tbscope.ir.scopes import Scope, ScopePart


def two_calls():
    """Give the builder of a graph in which one linear layer is called twice."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (1, 2))
    y = build.linear("Net/Linear[fc]", x, 2)
    weight, bias = (node.outputs[0] for node in build.graph.nodes if node.kind == "parameter")
    again = build.call("Net/Linear[fc].1", y, qualified_name="fc")
    z = build.op("linear", y, weight, bias, scope=again)
    build.returns(again, z)
    build.returns(net, {"logits": z})
    build.output("logits", z)
    return build


def test_a_value_is_named_after_its_producer():
    build = GraphBuilder()
    assert build.input("past.0.key", (1,)).name == "past.0.key"


def test_each_of_several_outputs_has_its_index_in_its_name():
    build = GraphBuilder()
    split = build.node("split", outputs=((1,), (2,)))
    assert [value.name for value in split.outputs] == ["1#0", "1#1"]
    assert repr(split.outputs[1]) == "Value(%1#1, shape=(2,), dtype='float32')"


def test_a_source_prints_as_a_place_in_the_code():
    assert str(Source("net.py", 12, "forward")) == "net.py:12 in forward"


def test_a_note_ends_in_its_place():
    assert str(Note("a tensor was read")) == "a tensor was read"
    assert (
        str(Note("a tensor was read", Source("n.py", 1, "f"))) == "a tensor was read (n.py:1 in f)"
    )


def test_a_constant_prints_as_its_text():
    assert repr(Constant("torch.float32")) == "torch.float32"


def test_calls_are_found_by_qualified_name_and_by_scope_path():
    graph = two_calls().graph
    first, second = graph.find_calls("fc")
    assert graph.find("fc") is first
    assert graph.find("Net/Linear[fc]") is first
    assert graph.find("Net/Linear[fc].1") is second
    assert repr(second) == "Call('Net/Linear[fc].1')"


def test_nodes_are_found_by_name():
    graph = two_calls().graph
    assert graph.find("fc.weight").kind == "parameter"
    assert graph.find("x") is graph.inputs[0]
    assert graph.find("2").scope.path == "Net/Linear[fc].1"


def test_what_is_not_there_is_not_found():
    graph = two_calls().graph
    assert graph.find_calls("fc2") == []
    with pytest.raises(NotFoundError):
        graph.find("fc2")


def test_a_node_at_the_top_level_has_no_scope_and_any_other_a_path():
    graph = two_calls().graph
    assert graph.inputs[0].scope is None
    assert graph.nodes[-1].scope.path == "Net/Linear[fc].1"


def test_a_graph_says_how_much_it_holds():
    graph = two_calls().graph
    assert repr(graph) == "<Graph Net: 5 nodes, 3 calls>"
    assert repr(graph.nodes[0]) == "<Node %x : Float(1, 2) = input()>"


def test_scopes_come_parents_first_and_each_once():
    graph = two_calls().graph
    assert [scope.path for scope in graph.scopes()] == ["Net", "Net/Linear[fc]", "Net/Linear[fc].1"]


@given(
    st.lists(st.text("ab/", min_size=1, max_size=12).map(lambda text: text.strip("/")), max_size=8)
)
def test_scopes_hold_everything_above_whatever_the_order(paths):
    build = GraphBuilder()
    for path in filter(None, paths):
        build.node("relu", scope=build.scope(path))
    scopes = list(build.graph.scopes())
    assert len(set(scopes)) == len(scopes)
    seen = {None}
    for scope in scopes:
        assert scope.parent in seen
        seen.add(scope)
    assert seen >= {node.scope for node in build.graph.nodes}


def test_the_scopes_of_a_deep_chain_take_one_step_each():
    build = GraphBuilder()
    scope = None
    for _ in range(20_000):
        scope = Scope(ScopePart("B", "b"), parent=scope, kind="container")
        build.node("relu", scope=scope)
    assert sum(1 for _ in build.graph.scopes()) == 20_000


def test_a_copy_prints_as_the_graph_does_and_shares_no_node_value_or_call():
    graph = two_calls().graph
    copy = graph.copy()
    copy.verify()
    assert str(copy) == str(graph)
    assert list(copy.scopes()) == list(graph.scopes())
    assert not set(copy.nodes) & set(graph.nodes)
    assert not {v for n in copy.nodes for v in n.outputs} & {
        v for n in graph.nodes for v in n.outputs
    }
    assert not set(copy.calls) & set(graph.calls)


def test_everything_in_a_copy_that_holds_a_value_holds_the_copied_one():
    build = two_calls()
    x = build.graph.inputs[0].outputs[0]
    nest = [(x, 1), {"k": x}, Constant("torch.float32"), None]
    build.node("op", nest, options={"dim": 1})
    copy = build.graph.copy()
    values = {value for node in copy.nodes for value in node.outputs}
    nests = [argument.nest for node in copy.nodes for argument in node.arguments]
    nests += [call.results for call in copy.calls]
    nests += [argument.nest for call in copy.calls for argument in call.arguments]
    assert {value for nest in nests for value in values_in(nest)} <= values
    new = copy.inputs[0].outputs[0]
    assert copy.nodes[-1].arguments == [
        Argument(None, [(new, 1), {"k": new}, Constant("torch.float32"), None]),
        Argument("dim", 1),
    ]


def test_a_copy_keeps_what_nodes_outputs_and_notes_wait_for():
    build = two_calls()
    graph = build.graph
    node = build.node("relu", control_inputs=[graph.nodes[-1]], source=Source("n.py", 1, "f"))
    node.role, node.random, node.writes = "view", True, (0,)
    graph.notes += [Note("read", None, node), Note("no node")]
    graph.outputs[0] = type(graph.outputs[0])("out", graph.outputs[0].value, (node,))
    copy = graph.copy()
    assert copy.nodes[-1].control_inputs == [copy.nodes[-2]]
    twin = copy.nodes[-1]
    assert (twin.source, twin.role, twin.random, twin.writes) == (node.source, "view", True, (0,))
    assert copy.outputs[0].control_inputs == (copy.nodes[-1],)
    assert copy.notes == [Note("read", None, copy.nodes[-1]), Note("no node")]


def test_changing_a_copy_leaves_the_graph_as_it_was():
    graph = chain(2)
    before = str(graph)
    copy = graph.copy()
    node = copy.nodes[-1]
    node.op, node.scope = "changed", None
    node.inputs.clear()
    node.arguments.clear()
    node.attributes["class"] = "Changed"
    node.outputs[0].shape = (9,)
    assert str(graph) == before
    assert graph.nodes[-1].attributes == {}


@pytest.mark.parametrize("state", [True, False])
def test_a_copy_without_new_state_shares_parameters_and_nothing_else(state):
    build = two_calls()
    weight = next(node for node in build.graph.nodes if node.name == "fc.weight")
    build.call("Net/Tied[tied]", weight.outputs[0], [weight.outputs[0]])
    copy = copy_graph(build.graph, state=state)
    shared = {node.kind for node in set(copy.nodes) & set(build.graph.nodes)}
    assert shared == (set() if state else {"parameter"})
    twin = next(node for node in copy.nodes if node.name == "fc.weight")
    (one,), (other,) = twin.outputs, weight.outputs
    assert (one is other) is not state
    assert [argument.nest for argument in copy.calls[-1].arguments] == [one, [one]]
    assert str(copy) == str(build.graph)
    copy.verify()
