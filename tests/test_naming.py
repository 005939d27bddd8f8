"""Names of scopes, nodes and outputs, in both styles and in a user's own."""

import re

import pytest
from build import GraphBuilder, chain
from hypothesis import given
from hypothesis import strategies as st

from tbscope.drawing.naming import GraphDefNames, append_state_keys, name_graph
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Node
from tbscope.ir.placement.partition import Placement
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.page.op_types import RESERVED
from tbscope.passes.collapse_leaves import collapse_leaves

TENSORFLOW_RULE = re.compile(r"^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")
SAFE_RULE = re.compile(r"^[A-Za-z0-9_.\[\](),-]+(/[A-Za-z0-9_.\[\](),-]+)*$")


def every_name(names):
    """Give all names that stand in a GraphDef, and those of scopes that no node has."""
    of_nodes = [*names.nodes.values(), *names.outputs]
    scopes = [name for name in names.scopes.values() if name]
    return of_nodes + [name for name in scopes if name not in of_nodes]


def names_of(build, style="tf", boxed_ends=False):
    names = name_graph(build.graph, style, root=True, boxed_ends=boxed_ends)
    return [names.nodes[node] for node in build.graph.nodes] + names.outputs


def small_net():
    build = GraphBuilder("Net")
    build.call("Net")
    build.call("Net/Sequential[layer1]")
    y = build.linear("Net/Sequential[layer1]/Linear[0]", build.input("x", (1, 2)), 2)
    y = build.op("relu", y, scope=build.scope("Net"))
    y = build.op("relu", y, scope=build.scope("Net"))
    build.output("logits", build.op("mean", y, scope=build.hand("Net/loss")))
    return build


def test_style_tf_names_a_module_by_its_attributes():
    assert names_of(small_net()) == [
        "x",
        "Net/layer1/0/weight",
        "Net/layer1/0/bias",
        "Net/layer1/0/linear",
        "Net/relu",
        "Net/relu.2nd",
        "Net/loss/mean",
        "logits",
    ]


@pytest.mark.parametrize(
    ("attribute", "name"),
    [("\u65e5\u672c", "Net/Linear"), ("_", "Net/Linear"), ("h\xf6he", "Net/h_he"), ("1", "Net/1")],
)
def test_style_tf_names_a_module_by_its_class_where_its_attribute_leaves_nothing(attribute, name):
    build = GraphBuilder("Net")
    build.call("Net")
    build.output("out", build.linear(f"Net/Linear[{attribute}]", build.input("x", (1, 2)), 2))
    assert f"{name}/linear" in names_of(build)


def test_style_torch_names_a_module_as_it_prints():
    assert names_of(small_net(), "torch") == [
        "x",
        "Net/Sequential[layer1]/Linear[0]/weight",
        "Net/Sequential[layer1]/Linear[0]/bias",
        "Net/Sequential[layer1]/Linear[0]/linear",
        "Net/relu",
        "Net/relu.2nd",
        "Net/loss/mean",
        "logits",
    ]


def test_a_function_of_the_user_gives_whole_names():
    names = names_of(small_net(), lambda scope: f"model/{scope.qualified_name or 'all'}")
    assert names == [
        "x",
        "model/layer1.0/weight",
        "model/layer1.0/bias",
        "model/layer1.0/linear",
        "model/all/relu",
        "model/all/relu.2nd",
        "model/all.2nd/mean",
        "logits",
    ]


def test_a_function_of_the_user_may_leave_out_the_box_of_the_model():
    names = names_of(small_net(), lambda scope: "/".join(map(str, scope.parts[1:])))
    assert names[1] == "Sequential[layer1]/Linear[0]/weight"
    assert names[4:] == ["relu", "relu.2nd", "loss/mean", "logits"]


def test_no_operation_takes_the_name_of_a_box_that_a_function_of_the_user_only_implies():
    build = GraphBuilder()
    x = build.op("relu", build.input("x", (1,)), scope=build.call("Net"))
    for op in "abc":
        build.op(op, x)
    names = name_graph(build.graph, lambda scope: "a/b/c", root=True)
    found = [names.nodes[node] for node in build.graph.nodes]
    assert found == ["x", "a/b/c/relu", "a.2nd", "b", "c"]


def test_a_leaf_module_has_the_name_of_its_scope():
    build = small_net()
    collapse_leaves(build.graph)
    assert "Net/layer1/0" in names_of(build)
    assert "Net/layer1/0/linear" not in names_of(build)


def test_a_later_call_ends_in_its_number():
    build = GraphBuilder()
    x = build.input("x", (1,))
    for path in ("Net/ReLU[act]", "Net/ReLU[act].1", "Net/ReLU[act].2"):
        x = build.op("relu", x, scope=build.call(path))
    assert names_of(build)[1:] == ["Net/act/relu", "Net/act.2nd/relu", "Net/act.3rd/relu"]
    assert names_of(build, "torch")[2] == "Net/ReLU[act].1/relu"


def test_an_operation_never_takes_the_name_of_a_module():
    build = GraphBuilder()
    x = build.op("relu", build.input("x", (1,)), scope=build.call("Net"))
    build.op("gelu", x, scope=build.call("Net/ReLU[relu]"))
    assert names_of(build) == ["x", "Net/relu.2nd", "Net/relu/gelu"]


@pytest.mark.parametrize("kind", ["module", "container"])
def test_a_module_keeps_its_name_beside_a_scope_by_hand(kind):
    build = GraphBuilder()
    x = build.op("add", build.input("x", (1,)), scope=build.hand("Net/fc"))
    build.op("linear", x, scope=build.scope("Net/Linear[fc]", kind))
    assert names_of(build) == ["x", "Net/fc.2nd/add", "Net/fc/linear"]


def test_a_parameter_keeps_its_name_beside_an_operation():
    build = GraphBuilder()
    net = build.call("Net")
    build.op("weight", build.input("x", (1,)), scope=net)
    build.parameter("weight", (1,), net)
    assert names_of(build) == ["x", "Net/weight.2nd", "Net/weight"]


def test_an_output_named_like_an_input_or_a_scope_says_that_it_is_one():
    build = GraphBuilder()
    x = build.input("x", (1,))
    y = build.op("relu", x, scope=build.call("Net"))
    build.output("x", x)
    build.output("Net", y)
    assert names_of(build) == ["x", "Net/relu", "out.x", "out.Net"]


def test_an_input_named_like_the_model_says_that_it_is_one():
    build = GraphBuilder()
    build.op("relu", build.input("Net", (1,)), scope=build.call("Net"))
    assert names_of(build) == ["in.Net", "Net/relu"]


def test_a_parameter_that_a_second_model_has_too_loses_the_number():
    build = GraphBuilder()
    build.parameter("weight", (1,), build.call("A"))
    build.parameter("weight~2", (1,), build.call("B"))
    assert names_of(build) == ["A/weight", "B/weight"]


def test_a_constant_is_named_by_the_attribute_that_holds_it():
    build = GraphBuilder()
    net = build.call("Net")
    build.parameter("block.mask", (1,), net, kind="constant")
    build.node("constant", kind="constant", scope=net, outputs=((1,),))
    assert names_of(build) == ["Net/mask", "Net/constant"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a b", "a_b"), ("a/b", "a_b"), ("größe", "gr__e"), ("_x", "x"), ("__proto__", "proto__")],
)
def test_what_tensorflow_forbids_in_a_name_is_replaced(given, shown):
    build = GraphBuilder()
    build.input(given, (1,))
    assert names_of(build) == [shown]


def test_two_names_that_become_the_same_are_told_apart():
    build = GraphBuilder()
    for name in ("a b", "a_b", "a:b"):
        build.input(name, (1,))
    assert names_of(build) == ["in.a_b", "a_b", "in.a_b.2nd"]


@pytest.mark.parametrize("reserved", ["constructor", "toString", "length", "__proto__", "__root__"])
@pytest.mark.parametrize("style", ["tf", "torch"])
def test_no_name_starts_with_a_key_of_every_javascript_object(reserved, style):
    build = GraphBuilder()
    x = build.input(reserved, (1,))
    scope = Scope(ScopePart(reserved))
    build.output(reserved, build.op(reserved, x, scope=scope))
    build.op(reserved, x)
    for name in every_name(name_graph(build.graph, style, root=True)):
        assert name.partition("/")[0] not in RESERVED


def test_a_style_that_is_none_is_named():
    with pytest.raises(ArgumentError) as caught:
        name_graph(small_net().graph, "tensorflow")
    assert str(caught.value) == (
        "no naming style is 'tensorflow'\n"
        "  why: a style is 'tf', 'torch', or a function of a Scope that gives its name\n"
        "  fix: style='tf' for names like 'Net/layer1/0'"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "it returned NoneType, and a name is a str"),
        (
            "/Net",
            "a name is made of A-Z a-z 0-9 _ . - \\ > ( ) [ ] , in parts with / between them",
        ),
        (
            "constructor/fc",
            "TensorBoard's page breaks on 'constructor' as the first part of a name",
        ),
        (
            "__function_library__f",
            "TensorBoard's page breaks on '__function_library__f' as the first part of a name",
        ),
    ],
)
def test_a_style_function_that_gives_no_name_is_told_why(given, why):
    with pytest.raises(ArgumentError) as caught:
        name_graph(small_net().graph, lambda scope: given)
    assert str(caught.value) == (
        f"the style function returned {given!r} for the scope Net\n"
        f"  why: {why}\n"
        "  fix: give a name like 'Net/layer1/0', or '' for the top level"
    )


def test_ten_thousand_operations_of_one_scope_are_named_in_order():
    build = GraphBuilder()
    net = build.call("Net")
    nodes = [build.node("relu", scope=net) for _ in range(10_000)]
    names = name_graph(build.graph, root=True)
    assert names.nodes[nodes[-1]] == "Net/relu.10000th"


words = st.sampled_from(
    ["a", "a b", "a_b", "_a", "fc", "relu", "relu.2nd", "x", "length", "ä", "-"]
)


@st.composite
def graphs(draw):
    """Give graphs whose words collide as often as they can."""
    build = GraphBuilder()
    scopes = [None]
    for _ in range(draw(st.integers(0, 6))):
        attribute, index = draw(st.none() | words), draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["module", "hand"]))
        part = ScopePart(draw(words), attribute, index)
        scopes.append(Scope(part, parent=draw(st.sampled_from(scopes)), kind=kind))
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["op", "constant", "parameter", "input"]))
        scope = None if kind == "input" else draw(st.sampled_from(scopes))
        name = f"{number}.{draw(words)}"
        build.graph.nodes.append(Node(name, draw(words), kind, scope))
    build.graph.inputs = [node for node in build.graph.nodes if node.kind == "input"]
    for word in draw(st.lists(words)):
        value = build.op("end", shape=())
        build.output(word, value)
    return build.graph


@given(graphs(), st.booleans(), st.booleans())
def test_every_name_is_legal_for_tensorflow_and_there_once(graph, root, boxed):
    found = every_name(name_graph(graph, "tf", root=root, boxed_ends=boxed))
    assert len(set(found)) == len(found)
    assert all(map(TENSORFLOW_RULE.match, found))


@given(graphs(), st.booleans())
def test_every_name_of_style_torch_is_safe_and_there_once(graph, root):
    found = every_name(name_graph(graph, "torch", root=root))
    assert len(set(found)) == len(found)
    assert all(map(SAFE_RULE.match, found))


@given(graphs(), st.lists(st.sampled_from(["", "a", "a/b", "end", "relu", "x"]), min_size=1))
def test_every_name_is_there_once_whatever_a_style_function_gives(graph, given):
    turns = iter(given * 100)
    names = name_graph(graph, lambda scope: next(turns))
    of_nodes = [*names.nodes.values(), *names.outputs]
    assert len(set(of_nodes)) == len(of_nodes)
    assert not set(of_nodes) & set(names.scopes.values())


# -- the root ---------------------------------------------------------------------------


def test_the_scope_that_holds_all_is_left_out_of_names():
    build = small_net()
    names = name_graph(build.graph)
    assert [names.nodes[node] for node in build.graph.nodes] == [
        "x",
        "layer1/0/weight",
        "layer1/0/bias",
        "layer1/0/linear",
        "relu",
        "relu.2nd",
        "loss/mean",
    ]
    assert names.scopes[build.scope("Net")] == ""


@pytest.mark.parametrize(
    ("attribute", "root", "name"),
    [("0", None, "Net"), ("0", False, ""), ("fc", None, ""), ("fc", False, "")],
)
def test_a_root_of_boxes_that_are_called_by_a_number_alone_is_kept_unless_told_otherwise(
    attribute, root, name
):
    build = GraphBuilder()
    net = build.call("Net")
    build.linear(f"Net/Linear[{attribute}]", build.input("x", (1, 2)), 2)
    assert name_graph(build.graph, root=root).scopes[net] == name


def test_style_torch_prints_the_root_unless_told_otherwise():
    build = small_net()
    scope = build.scope("Net/Sequential[layer1]")
    assert name_graph(build.graph, "torch").scopes[scope] == "Net/Sequential[layer1]"
    assert name_graph(build.graph, "torch", root=False).scopes[scope] == "Sequential[layer1]"


def test_two_models_both_keep_their_boxes():
    build = GraphBuilder()
    for model in ("Net[generator]", "Net[discriminator]"):
        build.op("relu", build.input("x", ()), scope=build.call(model))
    assert list(name_graph(build.graph).scopes.values()) == ["generator", "discriminator"]


def test_a_model_keeps_its_box_where_operations_stand_beside_it():
    build = GraphBuilder()
    y = build.op("relu", build.input("x", ()), scope=build.call("Net"))
    build.op("mean", y)
    assert list(name_graph(build.graph).scopes.values()) == ["Net"]


def test_a_model_that_is_drawn_as_a_node_keeps_its_name():
    build = GraphBuilder()
    build.op("Linear", build.input("x", ()), scope=build.call("Net"), kind="module")
    names = name_graph(build.graph)
    assert [names.nodes[node] for node in build.graph.nodes] == ["x", "Net"]
    build.op("relu", build.input("y", ()), scope=build.scope("Net"))
    assert name_graph(build.graph).scopes[build.scope("Net")] == "Net"


def test_a_model_that_a_recording_named_keeps_its_name():
    build = GraphBuilder()
    build.op("relu", build.input("x", ()), scope=build.call("Net[critic]"))
    assert list(name_graph(build.graph).scopes.values()) == ["critic"]


def test_a_module_below_the_root_that_is_named_like_nothing_legal_gets_a_name():
    build = GraphBuilder()
    build.call("Net")
    build.op("relu", build.input("x", ()), scope=build.call("Net/ReLU[__proto__]"))
    build.op("relu", build.input("y", ()), scope=build.call("Net/ReLU[constructor]"))
    assert list(name_graph(build.graph).scopes.values()) == ["", "proto__", "Constructor"]


# -- nests of inputs and outputs ----------------------------------------------------------


def ends(paths, results=(), *, boxed=False):
    """Give the names of inputs and outputs with these paths."""
    build = GraphBuilder()
    values = [build.input(path, ()) for path in paths]
    for path in results:
        build.output(path, values[0])
    return names_of(build, boxed_ends=boxed)


def test_few_tensors_of_one_argument_stand_side_by_side():
    paths = ["ids", "cache.0.key", "cache.0.value", "cache.1.key", "cache.1.value"]
    assert ends(paths) == paths


@pytest.mark.parametrize(("head", "boxed"), [("cache_of_1", True), ("cache_of1", False)])
def test_few_tensors_have_a_box_where_the_page_would_show_the_same_of_each(head, boxed):
    paths = [f"{head}.key", f"{head}.value"]
    separator = "/" if boxed else "."
    assert ends(paths) == [f"{head}{separator}key", f"{head}{separator}value"]
    assert ends(["x"], paths)[1:] == [f"{head}{separator}key", f"{head}{separator}value"]


def test_a_nest_of_one_tensor_has_no_box_however_long_its_name_is():
    assert ends(["encoder_outputs.state"]) == ["encoder_outputs.state"]


def test_many_tensors_of_one_argument_have_a_box():
    paths = [f"cache.{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    assert ends(["ids", *paths])[:3] == ["ids", "cache/0/key", "cache/0/value"]


def test_the_results_of_a_plain_tuple_have_no_box_but_a_nest_in_it_has():
    results = [*(f"out.{number}" for number in range(6)), *(f"out.6.{n}" for n in range(5))]
    assert ends(["x"], results)[6:9] == ["out.5", "out.6/0", "out.6/1"]


def test_the_box_of_a_nest_gives_way_to_an_input_of_its_name():
    states = [f"states.{number}" for number in range(5)]
    assert ends(["states"], states)[:2] == ["states", "out.states/0"]


def test_the_box_of_a_nest_keeps_its_name_for_paths_to_be_found():
    paths = [f"past_key_values.{number}" for number in range(5)]
    assert ends(paths, boxed=True)[0] == "past_key_values/0"


# -- inputs and outputs in boxes of their own ------------------------------------------------


def test_an_input_whose_name_the_page_would_cut_has_a_box():
    paths = ["input_ids", "pixel_values"]
    assert ends(paths, boxed=True) == ["input_ids", "pixel_values/pixel_values"]
    assert ends(paths) == paths


def test_an_output_whose_name_the_page_would_cut_has_a_box():
    results = ["logits", "last_hidden_state", "encoder_last_hidden_state"]
    assert ends(["x"], results, boxed=True)[1:] == [
        "logits",
        "last_hidden_state/last_hidden_state",
        "encoder_last_hidden_state/encoder_last_hidden_state",
    ]


@pytest.mark.parametrize(
    ("also", "name"),
    [("b", "a_and_b"), ("b, c, d", "a_and_b_and_c_and_d"), ("b, c, d, e", "a_and_4_more")],
)
def test_an_input_that_was_given_several_times_is_called_by_four_names_at_most(also, name):
    build = GraphBuilder()
    build.input("a", ()).producer.attributes["also"] = also
    assert names_of(build) == [name]


@pytest.mark.parametrize(
    ("key", "name"), [("fc.weight", "Net/step.0/fc.weight"), ("a b.weight", "Net/step.0/weight")]
)
def test_a_parameter_in_another_box_tells_its_key_where_that_is_a_legal_name(key, name):
    build = GraphBuilder("Net")
    node = build.parameter(key, (2,)).producer
    names = GraphDefNames(nodes={node: "Net/step.0/weight"})
    append_state_keys(build.graph, names)
    assert names.nodes[node] == name


@pytest.mark.parametrize(("leaves", "root"), [(True, ""), (False, "Chain")])
def test_modules_with_numbers_for_names_need_a_box_around_them_unless_they_are_nodes(leaves, root):
    graph = chain(2)
    if leaves:
        collapse_leaves(graph)
    assert name_graph(graph).scopes[graph.calls[0].scope] == root


def test_a_member_that_stands_beside_its_list_gives_way_to_a_module_of_its_name():
    build = GraphBuilder("Net")
    root = build.call("Net")
    held, member = build.scope("Net/ModuleList[a b]"), build.call("Net/ModuleList[a b]/Block[1]")
    module = build.call("Net/Block[a_b].1")
    stands = Placement([root, held, member, module], beside={member: held})
    names = name_graph(build.graph, root=True, placement=stands).scopes
    assert (names[member], names[module]) == ("Net/a_b.1", "Net/a_b.2nd")


def test_a_box_of_an_input_has_the_authors_name():
    # This one is whole, and the page would cut this one on a box, too.
    for name in ("decoder_input_ids", "attention_mask"):
        assert ends([name], boxed=True) == [f"{name}/{name}"]


def test_an_output_named_like_an_input_in_a_box_has_another_box():
    assert ends(["pixel_values"], ["pixel_values"], boxed=True) == [
        "pixel_values/pixel_values",
        "out.pixel_values/pixel_values",
    ]
    assert ends(["min_hidden"], ["min_hidden"], boxed=True)[1] == "out.min_hidden/min_hidden"
