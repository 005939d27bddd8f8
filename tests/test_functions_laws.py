"""What holds of the definitions of every graph: they expand to it, and tell structures apart."""

import warnings
from dataclasses import replace

import pytest
import torch
from build import GraphBuilder
from expansion import expand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_graphs import KINDS, real_graph
from sweeps import counted
from test_random_models import WIDTH, models
from told import told

import tbscope
from tbscope.ir.graph import Argument, Constant, Source, Value
from tbscope.ir.scopes import ScopePart


def hold(graph):
    """Hold a graph against what its definitions give back when they are expanded."""
    functions = graph.functions()
    expanded = expand(functions)
    expanded.verify()
    before, after = told(graph), told(expanded)
    for part, held in before.items():
        assert after[part] == held
    assert not set(expanded.nodes) & set(graph.nodes)
    assert sum(len(one.uses) for one in functions) == len({call.scope for call in graph.calls})
    assert len({one.digest for one in functions}) == len(functions)


@pytest.mark.parametrize("name", KINDS)
def test_the_definitions_of_a_real_model_expand_to_it(name):
    hold(real_graph(name))


@settings(
    max_examples=counted(60, 24),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, training=st.booleans())
def test_the_definitions_of_a_random_model_expand_to_it(model, training):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = tbscope.trace(model, (torch.randn(4, WIDTH),), training=training, kernels=True)
    hold(graph)


def layers(count=2):
    """Give a graph of equal layers, each with one of everything that a body can have."""
    build = GraphBuilder("Net")
    build.call("Net")
    value, cache = build.input("x", (2, 4)), build.input("cache", (4,))
    for number in range(count):
        path = f"Net/Layer[{number}]"
        scope = build.call(
            path, value, Argument("eps", 0.5), hyperparameters={"size": 3}, training=True
        )
        x = build.linear(f"{path}/Linear[fc]", value, 4)
        split = build.node("split", x, 2, outputs=((2, 2), (2, 2)), scope=scope)
        first, second = split.outputs
        view = build.op("view", first, (4,), scope=scope, role="view")
        writes = build.node("copy_", cache, view, outputs=((4,),), scope=scope, writes=(0,))
        with_hand = build.hand(f"{path}/loss")
        drop = build.op("dropout", second, scope=with_hand, random=True, phase="backward")
        less = build.node(
            "sub",
            first,
            drop,
            options={"alpha": 1.0, "out": [cache, None]},
            outputs=((2, 2),),
            scope=scope,
            control_inputs=[writes],
            attributes={"via": "view"},
        )
        value = build.op("cat", less.outputs[0], drop, scope=scope, shape=(2, 4))
        build.returns(scope, (value, {"rest": drop}))
    build.output("out", value)
    return build.graph


def in_last(graph, op):
    """Give the last operation of that name, which is one of the last layer."""
    return [node for node in graph.nodes if node.op == op][-1]


def last_call(graph, label="Layer"):
    return [call for call in graph.calls if call.scope.part.label == label][-1]


def swapped(graph):
    node = in_last(graph, "cat")
    node.inputs = node.inputs[::-1]
    node.arguments = node.arguments[::-1]


def other_output(graph):
    node = in_last(graph, "view")
    (value,) = node.inputs
    node.inputs = [value.producer.outputs[1]]
    node.arguments[0] = Argument(None, node.inputs[0])


def other_edge(graph):
    node = in_last(graph, "dropout")
    node.inputs = [in_last(graph, "linear").outputs[0]]
    node.arguments = [Argument(None, node.inputs[0])]


def captured(graph):
    node = in_last(graph, "dropout")
    node.inputs = [graph.inputs[0].outputs[0]]
    node.arguments = [Argument(None, node.inputs[0])]


def argument(graph, name, nest, op="sub"):
    arguments = in_last(graph, op).arguments
    (at,) = (at for at, one in enumerate(arguments) if one.name == name)
    arguments[at] = Argument(name, nest)


def one_more_output(graph):
    node = in_last(graph, "cat")
    node.outputs.append(Value(node, 1, (2, 4), "float32", "cpu"))


def in_another_scope(graph):
    in_last(graph, "dropout").scope = last_call(graph).scope


def hand_named_otherwise(graph):
    in_last(graph, "dropout").scope.part = ScopePart("gain")


MUTATIONS = {
    "op": lambda graph: setattr(in_last(graph, "sub"), "op", "add"),
    "kind": lambda graph: setattr(in_last(graph, "sub"), "kind", "module"),
    "role": lambda graph: setattr(in_last(graph, "view"), "role", "copy"),
    "no role": lambda graph: setattr(in_last(graph, "view"), "role", None),
    "random": lambda graph: setattr(in_last(graph, "dropout"), "random", False),
    "phase": lambda graph: setattr(in_last(graph, "dropout"), "phase", "forward"),
    "write": lambda graph: setattr(in_last(graph, "copy_"), "writes", ()),
    "write into another": lambda graph: setattr(in_last(graph, "copy_"), "writes", (1,)),
    "control edge": lambda graph: setattr(in_last(graph, "sub"), "control_inputs", []),
    "control edge from elsewhere": lambda graph: setattr(
        in_last(graph, "sub"), "control_inputs", [in_last(graph, "view")]
    ),
    "control edge from outside": lambda graph: setattr(
        in_last(graph, "sub"), "control_inputs", [graph.inputs[0]]
    ),
    "attribute": lambda graph: in_last(graph, "sub").attributes.update(via="cast"),
    "one more attribute": lambda graph: in_last(graph, "sub").attributes.update(then="view"),
    "order of inputs": swapped,
    "output index": other_output,
    "edge": other_edge,
    "edge from outside": captured,
    "number of outputs": one_more_output,
    "constant": lambda graph: argument(graph, "alpha", 2.0),
    "type of a constant": lambda graph: argument(graph, "alpha", 1),
    "truth of a constant": lambda graph: argument(graph, "alpha", True),
    "constant in a nest": lambda graph: argument(
        graph, "out", [graph.inputs[1].outputs[0], Constant("None")]
    ),
    "kind of a nest": lambda graph: argument(graph, "out", (graph.inputs[1].outputs[0], None)),
    "name of an argument": lambda graph: setattr(
        in_last(graph, "sub"),
        "arguments",
        [
            one._replace(name="beta" if one.name == "alpha" else one.name)
            for one in in_last(graph, "sub").arguments
        ],
    ),
    "scope": in_another_scope,
    "class": lambda graph: setattr(last_call(graph), "class_name", "models.Other"),
    "class of an inner call": lambda graph: setattr(
        last_call(graph, "Linear"), "class_name", "models.Other"
    ),
    "hyper-parameter": lambda graph: setattr(last_call(graph), "hyperparameters", {"size": 5}),
    "type of a hyper-parameter": lambda graph: setattr(
        last_call(graph), "hyperparameters", {"size": 3.0}
    ),
    "hyper-parameter of an inner call": lambda graph: setattr(
        last_call(graph, "Linear"), "hyperparameters", {}
    ),
    "training flag": lambda graph: setattr(last_call(graph), "training", False),
    "constant of the call": lambda graph: last_call(graph).arguments.__setitem__(
        1, Argument("eps", 0.25)
    ),
    "argument of the call": lambda graph: last_call(graph).arguments.pop(),
    "result": lambda graph: setattr(last_call(graph), "results", None),
    "order of results": lambda graph: setattr(
        last_call(graph), "results", tuple(reversed(last_call(graph).results))
    ),
    "parameters of the module": lambda graph: setattr(last_call(graph, "Linear"), "parameters", ()),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_layer_that_differs_in_one_thing_shares_no_definition(name):
    graph, mutated = layers(), layers().copy()
    MUTATIONS[name](mutated)
    before, after = graph.functions(), mutated.functions()
    assert len(before.find("Layer").uses) == 2
    assert [len(one.uses) for one in after if one.name.startswith("Layer")] == [1, 1]
    layer = after.uses[last_call(mutated).scope].definition
    assert layer.digest != before.find("Layer").digest
    # The other layer is as it was; what holds both is not.
    assert after.find("Layer").digest == before.find("Layer").digest
    assert after.find("Net").digest != before.find("Net").digest
    assert after.main.digest != before.main.digest
    hold(mutated)


def other_types(graph):
    for node in graph.nodes:
        for value in node.outputs:
            value.shape, value.dtype, value.device = (7, 7), "float16", "cuda:1"


def other_run(graph):
    for node in graph.nodes:
        node.source, node.kernels = Source("net.py", 3, "forward"), ["aten::add"]
        node.flops, node.allocated_bytes = 12, 34
        node.measure(duration_us=5.6)
        if node.kind == "op":
            node.attributes["read_by_python"] = "item at net.py:3"


def other_names(graph):
    for at, node in enumerate(graph.nodes):
        node.name = f"n{at}" if node.kind == "op" else node.name


def other_parameters(graph):
    call = last_call(graph, "Linear")
    call.parameters = tuple(
        one._replace(shape=(9,), size_bytes=1, requires_grad=False) for one in call.parameters
    )


def other_place(graph):
    call = last_call(graph)
    call.source = call.defined = Source("net.py", 3, "forward")
    call.scope.part = replace(call.scope.part, attribute="last")


ALIKE = {
    "types": other_types,
    "what was measured, sources, kernels": other_run,
    "names": other_names,
    "facts of parameters": other_parameters,
    "where it is held and called": other_place,
}


@pytest.mark.parametrize("name", ALIKE)
def test_layers_that_differ_in_what_is_no_structure_share_their_definition(name):
    graph, other = layers(), layers()
    ALIKE[name](other)
    before, after = graph.functions(), other.functions()
    assert len(after.find("Layer").uses) == 2
    assert after.find("Layer").digest == before.find("Layer").digest
    hold(other)


def test_a_scope_by_hand_of_another_name_is_another_structure():
    graph = layers()
    hand_named_otherwise(graph)
    assert [len(one.uses) for one in graph.functions() if "Layer" in one.name] == [1, 1]


def test_what_stands_in_no_call_counts_for_the_graph_alone():
    graph, other = layers(), layers()
    build_of = other.outputs[0]
    other.outputs = [replace(build_of, name="other")]
    assert graph.functions().main.digest == layers().functions().main.digest
    assert graph.functions().main.digest != other.functions().main.digest
    other.outputs = [replace(build_of, control_inputs=(in_last(other, "copy_"),))]
    assert graph.functions().main.digest != other.functions().main.digest
    hold(other)


def test_a_digest_is_the_same_in_every_process():
    graph = layers()
    assert graph.functions().find("Layer").digest == layers(7).functions().find("Layer").digest
    assert graph.functions().find("Linear").digest == "23269cabdada4bf3fe1370e320234a61"
