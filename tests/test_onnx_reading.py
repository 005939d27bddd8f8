"""ONNX models as graphs: scopes by metadata, functions, bodies, shapes, parameters."""

import onnx
import pytest
import torch
from onnx import helper
from onnx_build import BOOL, FLOAT, INT, export, info, model_of, node, weight

import tbscope
from tbscope.sources.onnx.body import flops_of

NET, LAYER, LINEAR = ("", "nets.Net"), ("layers.0", "nets.Layer"), ("layers.0.fc", "nets.Linear")


def layer(number, given):
    """Give the nodes of one layer, and the tensors that it holds."""
    around = [NET, (f"layers.{number}", "nets.Layer")]
    inner = [*around, (f"layers.{number}.fc", "nets.Linear")]
    name = f"layers.{number}.fc.weight"
    nodes = [
        node("MatMul", [given, name], [f"m{number}"], levels=inner),
        node("Relu", [f"m{number}"], [f"r{number}"], levels=around),
    ]
    return nodes, weight(name, 3, 3)


def two_layers(**facts):
    (one, first), (two, second) = layer(0, "x"), layer(1, "r0")
    shape = ["batch", 3]
    return model_of(
        [*one, *two],
        [info("x", FLOAT, shape)],
        [info("r1", FLOAT, shape)],
        [first, second],
        **facts,
    )


def scopes(graph):
    return [scope.path for scope in graph.scopes()]


def draws_well(graph):
    """Tell whether a graph keeps all invariants, and its drawings every rule of the page."""
    graph.verify()
    drawings = ({}, {"leaves": "box", "root": True}, {"style": "torch", "level": "module"})
    return [found for how in drawings for found in tbscope.lint(tbscope.to_graph_def(graph, **how))]


def test_modules_are_scopes_by_the_metadata_of_the_exporter():
    graph = tbscope.from_onnx(two_layers())
    assert graph.name == "Net"
    assert scopes(graph) == [
        "Net",
        "Net/ModuleList[layers]",
        "Net/ModuleList[layers]/Layer[0]",
        "Net/ModuleList[layers]/Layer[0]/Linear[fc]",
        "Net/ModuleList[layers]/Layer[1]",
        "Net/ModuleList[layers]/Layer[1]/Linear[fc]",
    ]
    assert [call.class_name for call in graph.find_calls("layers.1.fc")] == ["nets.Linear"]
    assert draws_well(graph) == []


@pytest.mark.parametrize(
    ("names", "label"), [(["0", "1"], "ModuleList"), (["0", "key"], "Module"), (["key"], "Module")]
)
def test_a_holder_that_is_never_called_has_the_class_that_its_parts_suggest(names, label):
    held = [(f"held.{name}", "nets.Layer") for name in names]
    nodes = [
        node("Relu", [f"v{at}"], [f"v{at + 1}"], levels=[NET, level])
        for at, level in enumerate(held)
    ]
    ends = info("v0", FLOAT, [2]), info(f"v{len(held)}", FLOAT, [2])
    graph = tbscope.from_onnx(model_of(nodes, ends[:1], ends[1:]))
    assert scopes(graph)[1] == f"Net/{label}[held]"


HOLDER, PART, OTHER = ("text", "nets.Text"), ("text.embed", "nets.Embed"), ("top", "nets.Top")


@pytest.mark.parametrize(
    ("order", "label"),
    [
        (([NET, PART], [NET, HOLDER], [NET, OTHER]), "Text"),
        (([NET, HOLDER], [NET, OTHER], [NET, PART]), "Text"),
        # Nothing runs in the holder itself.
        (([NET, PART], [NET, OTHER], [NET, OTHER]), "Module"),
    ],
    ids=["before", "after", "never"],
)
def test_a_part_that_is_called_from_outside_stands_in_the_call_of_its_holder(order, label):
    operators = zip(("Relu", "Exp", "Neg"), order, strict=True)
    nodes = [
        node(operator, [f"v{at}"], [f"v{at + 1}"], levels=levels)
        for at, (operator, levels) in enumerate(operators)
    ]
    ends = [info("v0", FLOAT, [3])], [info("v3", FLOAT, [3])]
    graph = tbscope.from_onnx(model_of(nodes, *ends))

    graph.verify()
    (holder,) = [scope for scope in graph.scopes() if scope.qualified_name == "text"]
    assert f"Net/{label}[text]/Embed[embed]" in scopes(graph)
    assert holder.kind == ("module" if label == "Text" else "container")
    assert [call.class_name for call in graph.calls].count("nets.Text") == (label == "Text")
    # The call of the holder neither takes nor gives what its part does for another caller.
    for call in graph.calls:
        if call.class_name == "nets.Text":
            own = [one for one in graph.nodes if one.kind == "op"][order.index([NET, HOLDER])]
            assert [argument.nest for argument in call.arguments] == own.inputs
            assert call.results is own.outputs[0]


def test_equal_layers_are_one_definition_whatever_their_nodes_are_called():
    model = two_layers()
    for number, each in enumerate(model.graph.node):
        each.name = f"node_{number}"
    graph = tbscope.from_onnx(model)
    assert graph.nodes[2].attributes["onnx_name"] == "node_0"
    uses = {each.name: len(each.uses) for each in graph.functions()}
    assert (uses["Layer"], uses["Linear"]) == (2, 2)


def test_parameters_stand_under_their_module_and_calls_tell_what_they_were_given():
    graph = tbscope.from_onnx(two_layers())
    assert (
        graph.find("layers.0.fc.weight").scope.path == "Net/ModuleList[layers]/Layer[0]/Linear[fc]"
    )
    (call,) = graph.find_calls("layers.1")
    assert [argument.nest.name for argument in call.arguments] == ["2"]
    assert call.results is graph.outputs[0].value
    assert [parameter.name for parameter in graph.find("layers.0.fc").parameters] == ["weight"]
    assert graph.summary().rows[0]["parameters"] == 18


def test_a_parameter_of_another_module_is_no_argument():
    model = two_layers()
    model.graph.node[2].input[1] = "layers.0.fc.weight"
    del model.graph.initializer[1]
    (call,) = tbscope.from_onnx(model).find_calls("layers.1.fc")
    assert [argument.nest.producer.op for argument in call.arguments] == ["Relu"]


def test_shapes_are_inferred_and_sizes_with_a_name_are_kept_by_it():
    graph = tbscope.from_onnx(two_layers())
    matmul = next(node for node in graph.nodes if node.op == "MatMul")
    assert matmul.outputs[0].shape == (None, 3)
    assert matmul.attributes["symbolic_shape"] == "(batch, 3)"
    assert graph.inputs[0].attributes["symbolic_shape"] == "(batch, 3)"


@pytest.mark.parametrize("told", [["a", "b"], ["a"], ["b"], []])
def test_types_are_the_same_whether_the_model_tells_all_of_them_or_they_are_inferred(told):
    nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Abs", ["b"], ["y"])]
    model = model_of(nodes, [info("x", FLOAT, [2, 3])], [info("y", FLOAT, [2, 3])])
    model.graph.value_info.extend([info(name, FLOAT, [2, 3]) for name in told])
    graph = tbscope.from_onnx(model)
    values = [value for one in graph.nodes for value in one.outputs]
    assert [(value.shape, value.dtype) for value in values] == [((2, 3), "float32")] * 4
    assert graph.notes == []


def test_sizes_that_are_known_have_no_other_name():
    model = two_layers()
    for entry in (*model.graph.input, *model.graph.output):
        entry.type.tensor_type.shape.dim[0].dim_value = 5
    graph = tbscope.from_onnx(model)
    matmul = next(node for node in graph.nodes if node.op == "MatMul")
    assert matmul.outputs[0].shape == (5, 3)
    assert matmul.flops == 2 * 5 * 3 * 3
    assert "symbolic_shape" not in matmul.attributes


def test_a_module_that_is_left_and_entered_again_has_two_calls():
    around = [NET, LAYER]
    nodes = [
        node("Relu", ["x"], ["a"], levels=around),
        node("Neg", ["a"], ["b"], levels=[NET]),
        node("Relu", ["b"], ["c"], levels=around),
    ]
    model = model_of(nodes, [info("x", FLOAT, [2])], [info("c", FLOAT, [2])])
    graph = tbscope.from_onnx(model)
    assert scopes(graph) == [
        "Net",
        "Net/ModuleList[layers]",
        "Net/ModuleList[layers]/Layer[0]",
        "Net/ModuleList[layers]/Layer[0].1",
    ]


def test_a_parameter_stands_in_the_call_that_reads_it_first():
    around = [NET, LAYER]
    nodes = [
        node("Relu", ["x"], ["a"], levels=around),
        node("Neg", ["a"], ["b"], levels=[NET]),
        node("Relu", ["b"], ["c"], levels=around),
        node("Mul", ["c", "layers.0.scale"], ["d"], levels=around),
    ]
    held = [weight("layers.0.scale", 2)]
    model = model_of(nodes, [info("x", FLOAT, [2])], [info("d", FLOAT, [2])], held)
    found = tbscope.from_onnx(model).find("layers.0.scale")
    assert str(found.scope) == "Net/ModuleList[layers]/Layer[0].1"


def test_modules_in_a_body_are_counted_from_the_operation():
    inner = node("Neg", ["x"], ["t"], levels=[NET, LAYER, LINEAR])
    branch = helper.make_graph([inner], "branch", [], [info("t", FLOAT, [2])])
    nodes = [node("If", ["on"], ["y"], levels=[NET, LAYER], then_branch=branch, else_branch=branch)]
    inputs = [info("x", FLOAT, [2]), info("on", BOOL, [])]
    graph = tbscope.from_onnx(model_of(nodes, inputs, [info("y", FLOAT, [2])]))
    assert "Net/ModuleList[layers]/Layer[0]/If/then_branch/Linear[fc]" in scopes(graph)


def test_a_module_that_goes_on_after_another_one_has_one_call():
    around = [NET, LAYER]
    nodes = [
        node("Relu", ["x"], ["a"], levels=around),
        node("Neg", ["x"], ["b"], levels=[NET]),
        node("Add", ["a", "b"], ["c"], levels=around),
    ]
    model = model_of(nodes, [info("x", FLOAT, [2])], [info("c", FLOAT, [2])])
    assert scopes(tbscope.from_onnx(model)) == [
        "Net",
        "Net/ModuleList[layers]",
        "Net/ModuleList[layers]/Layer[0]",
    ]


@pytest.mark.parametrize("after", [[NET, LAYER, LINEAR], [NET]])
def test_what_tells_nothing_stands_in_what_is_around_both_neighbours(after):
    nodes = [
        node("Relu", ["x"], ["a"], levels=[NET, LAYER]),
        node("Neg", ["a"], ["b"]),
        node("Abs", ["b"], ["c"], levels=after),
    ]
    model = model_of(nodes, [info("x", FLOAT, [2])], [info("c", FLOAT, [2])])
    found = next(node for node in tbscope.from_onnx(model).nodes if node.op == "Neg")
    assert found.scope.path == ("Net/ModuleList[layers]/Layer[0]" if len(after) > 1 else "Net")


def test_what_torch_made_itself_stands_in_the_model():
    nowhere = [("_empty_nn_module_stack_from_metadata_hook", "_empty")]
    nodes = [
        node("Neg", ["x"], ["a"], levels=nowhere),
        node("Relu", ["a"], ["b"], levels=[NET, LAYER]),
    ]
    model = model_of(nodes, [info("x", FLOAT, [2])], [info("b", FLOAT, [2])])
    assert scopes(tbscope.from_onnx(model))[0] == "Net"
    assert tbscope.from_onnx(model).nodes[1].scope.path == "Net"


def functions():
    """Give a function that calls another one twice."""
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
    inner = helper.make_function(
        *("my", "Step", ["a", "b"], ["c"]),
        [node("Mul", ["a", "b"], ["t"]), node("LeakyRelu", ["t"], ["c"])],
        versions,
        ["alpha"],
    )
    inner.node[1].attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    )
    outer = helper.make_function(
        *("my", "Steps", ["a", "b"], ["c", "a"]),
        [
            node("Step", ["a", "b"], ["t"], domain="my", alpha=0.5),
            node("Step", ["t", "b"], ["c"], domain="my", alpha=0.25),
        ],
        versions,
    )
    return [inner, outer]


def test_a_function_is_a_call_with_its_body():
    nodes = [node("Steps", ["x", "w"], ["y", "z"], name="steps", domain="my")]
    shape = info("y", FLOAT, [2, 3]), info("z", FLOAT, [2, 3])
    model = model_of(
        nodes, [info("x", FLOAT, [2, 3])], shape, [weight("w", 3)], functions=functions()
    )
    graph = tbscope.from_onnx(model)
    assert scopes(graph) == ["Steps[steps]", "Steps[steps]/Step", "Steps[steps]/Step.1"]
    assert [call.class_name for call in graph.calls] == ["my::Steps", "my::Step", "my::Step"]
    assert [argument.name for argument in graph.calls[0].arguments] == ["a", "b"]
    given = [dict(node.arguments)["alpha"] for node in graph.nodes if node.op == "LeakyRelu"]
    assert given == [0.5, 0.25]
    # What it hands on as it is, it gives.
    assert graph.outputs[1].value is graph.inputs[0].outputs[0]
    assert all(node.outputs[0].shape == (2, 3) for node in graph.nodes if node.kind == "op")
    assert draws_well(graph) == []


@pytest.mark.parametrize(("given", "told"), [({}, 0.1), ({"alpha": 0.5}, 0.5)])
def test_an_attribute_of_a_function_holds_where_its_call_gives_none(given, told):
    function = helper.make_function(
        *("my", "Leak", ["a"], ["b"]),
        [node("LeakyRelu", ["a"], ["b"])],
        [helper.make_opsetid("", 20)],
        attribute_protos=[helper.make_attribute("alpha", 0.1)],
    )
    function.node[0].attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    )
    call = node("Leak", ["x"], ["y"], domain="my", **given)
    shown = [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
    graph = tbscope.from_onnx(model_of([call], *shown, functions=[function]))
    assert graph.nodes[-1].arguments[-1].nest == told


def test_what_a_call_gives_stands_under_the_name_of_the_attribute_also_in_a_body():
    leak = node("LeakyRelu", ["a"], ["t"])
    leak.attribute.append(
        onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    )
    branch = helper.make_graph([leak], "branch", [], [info("t", FLOAT, [2])])
    choose = node("If", ["on"], ["b"], then_branch=branch, else_branch=branch)
    versions = [helper.make_opsetid("", 20)]
    function = helper.make_function("my", "F", ["on", "a"], ["b"], [choose], versions, ["slope"])
    call = node("F", ["on", "x"], ["y"], domain="my", slope=0.5)
    shown = [info("on", BOOL, []), info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
    graph = tbscope.from_onnx(model_of([call], *shown, functions=[function]))
    given = [dict(each.arguments) for each in graph.nodes if each.op == "LeakyRelu"]
    assert [arguments["alpha"] for arguments in given] == [0.5, 0.5]


def test_a_function_may_tell_types_that_nothing_infers():
    nodes = [node("Made_up", ["a"], ["t"], domain="other"), node("Relu", ["t"], ["b"])]
    versions = [helper.make_opsetid("", 20), helper.make_opsetid("other", 1)]
    function = helper.make_function("my", "F", ["a"], ["b"], nodes, versions)
    function.value_info.append(info("t", FLOAT, [5]))
    call = node("F", ["x"], ["y"], domain="my")
    shown = [info("x", FLOAT, [2])], [info("y", FLOAT, [5])]
    graph = tbscope.from_onnx(model_of([call], *shown, functions=[function], checked=False))
    assert [each.outputs[0].shape for each in graph.nodes] == [(2,), (5,), (5,)]


def test_what_a_call_of_a_function_hands_on_unread_is_no_node():
    call = node("Steps", ["x", "b"], ["y", ""], domain="my")
    pair = [info("x", FLOAT, [2]), info("b", FLOAT, [2])], [info("y", FLOAT, [2])]
    graph = tbscope.from_onnx(model_of([call], *pair, functions=functions()))
    assert "Identity" not in {each.op for each in graph.nodes}


def test_what_a_function_names_hides_nothing_outside():
    nodes = [
        node("Neg", ["x"], ["t"]),
        node("Steps", ["x", "w"], ["y", "z"], domain="my"),
        node("Abs", ["t"], ["end"]),
    ]
    held, facts = [weight("w", 3)], {"functions": functions()}
    model = model_of(nodes, [info("x", FLOAT, [2, 3])], [info("end", FLOAT, [2, 3])], held, **facts)
    graph = tbscope.from_onnx(model)
    assert graph.outputs[0].value.producer.inputs[0].producer.op == "Neg"


def control_flow():
    """Give a model with an If whose branches read outside, in a Loop."""
    shape = ["n", 3]
    then = helper.make_graph(
        [node("Step", ["s", "w"], ["t"], domain="my", alpha=0.5)],
        "a",
        [],
        [info("t", FLOAT, shape)],
    )
    other = helper.make_graph([node("Add", ["s", "w"], ["t"])], "b", [], [info("t", FLOAT, shape)])
    body = helper.make_graph(
        [
            node("Not", ["go"], ["stop"]),
            node("If", ["stop"], ["next"], then_branch=then, else_branch=other),
            node("Identity", ["go"], ["goes"]),
        ],
        "body",
        [info("i", INT, []), info("go", BOOL, []), info("s", FLOAT, shape)],
        [info("goes", BOOL, []), info("next", FLOAT, shape)],
    )
    return model_of(
        [node("Loop", ["count", "on", "x"], ["y"], body=body)],
        [info("x", FLOAT, shape), info("on", BOOL, [])],
        [info("y", FLOAT, shape)],
        [weight("w", 3), weight("count", kind=INT)],
        functions=functions(),
    )


def test_bodies_are_scopes_whose_results_the_operation_reads():
    graph = tbscope.from_onnx(control_flow())
    assert scopes(graph) == [
        *("Loop", "Loop/body", "Loop/body/If", "Loop/body/If/then_branch"),
        *("Loop/body/If/then_branch/Step", "Loop/body/If/else_branch"),
    ]
    loop = next(node for node in graph.nodes if node.op == "Loop")
    carried = dict(loop.arguments)["body"]
    assert [value.producer.op for value in carried] == ["Identity", "If"]
    given = {node.op: node.arguments for node in graph.nodes}
    assert given["iteration"] == []
    # Read in both branches, it is there once.
    assert [node.name for node in graph.nodes if node.kind == "parameter"] == ["w"]
    assert draws_well(graph) == []


def test_a_body_in_a_function_stands_in_the_operation():
    branch = helper.make_graph(
        [node("Neg", ["a"], ["t"])], "branch", [], [info("t", FLOAT, [2, 3])]
    )
    function = helper.make_function(
        *("my", "Choose", ["on", "a"], ["c"]),
        [node("If", ["on"], ["c"], then_branch=branch, else_branch=branch)],
        [helper.make_opsetid("", 20)],
    )
    model = model_of(
        [node("Choose", ["on", "x"], ["y"], domain="my")],
        [info("x", FLOAT, [2, 3]), info("on", BOOL, [])],
        [info("y", FLOAT, [2, 3])],
        functions=[function],
    )
    graph = tbscope.from_onnx(model)
    found = [str(each.scope) for each in graph.nodes if each.op == "Neg"]
    assert found == ["Choose/If/then_branch", "Choose/If/else_branch"]


def test_branches_stand_in_one_order_whatever_the_order_in_the_file():
    model = control_flow()
    drawn = str(tbscope.from_onnx(model))
    (branches,) = [each for each in model.graph.node[0].attribute[0].g.node if each.op_type == "If"]
    turned = list(branches.attribute)[::-1]
    del branches.attribute[:]
    branches.attribute.extend(turned)
    assert str(tbscope.from_onnx(model)) == drawn


def test_numbers_of_32_bits_are_told_as_they_were_written():
    nodes = [node("LeakyRelu", ["x"], ["y"], alpha=0.1)]
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("y", FLOAT, [3])])
    assert dict(tbscope.from_onnx(model).nodes[1].arguments)["alpha"] == 0.1


def test_a_scan_is_given_slices():
    body = helper.make_graph(
        [node("Add", ["s", "one"], ["next"]), node("Relu", ["next"], ["each"])],
        "body",
        [info("s", FLOAT, [3]), info("one", FLOAT, [3])],
        [info("next", FLOAT, [3]), info("each", FLOAT, [3])],
    )
    model = model_of(
        [node("Scan", ["s0", "x"], ["end", "all"], num_scan_inputs=1, body=body)],
        [info("s0", FLOAT, [3]), info("x", FLOAT, [5, 3])],
        [info("end", FLOAT, [3]), info("all", FLOAT, [5, 3])],
    )
    graph = tbscope.from_onnx(model)
    given = [node.inputs[0].name for node in graph.nodes if node.op == "carried"]
    assert given == ["s0", "x"]
    assert draws_well(graph) == []


def test_small_numbers_are_told_where_they_are_read():
    nodes = [
        node("Constant", [], ["axes"], value_ints=[0]),
        node("Unsqueeze", ["x", "axes"], ["a"]),
        node("Reshape", ["a", "sizes"], ["b"]),
        node("Mul", ["b", "half"], ["c"]),
    ]
    held = [
        onnx.numpy_helper.from_array(torch.tensor([3, -1]).numpy(), "sizes"),
        onnx.numpy_helper.from_array(torch.tensor(0.5).numpy(), "half"),
    ]
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("c", FLOAT, [3, 1])], held)
    graph = tbscope.from_onnx(model)
    assert str(graph).splitlines()[1:4] == [
        "  %1 : Float(1, 3) = Unsqueeze(%x, (0,))",
        "  %2 : Float(3, 1) = Reshape(%1, (3, -1))",
        "  %3 : Float(3, 1) = Mul(%2, 0.5)",
    ]
    assert [node.role for node in graph.nodes[1:]] == ["view", "view", None]


def test_a_parameter_of_one_number_is_a_node():
    model = model_of(
        [node("Mul", ["x", "scale"], ["y"])],
        [info("x", FLOAT, [2])],
        [info("y", FLOAT, [2])],
        [weight("scale", 1)],
    )
    entry = info("scale", FLOAT, [1])
    told = entry.metadata_props.add()
    told.key, told.value = "pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"
    model.graph.value_info.append(entry)
    assert [each.kind for each in tbscope.from_onnx(model).nodes] == ["input", "parameter", "op"]


def test_the_flops_of_a_convolution_are_those_of_its_kernel():
    shapes, larger = [(1, 2, 4, 4), (3, 2, 3, 3)], (1, 3, 4, 4)
    assert flops_of("Conv", shapes, larger, {}) == 2 * (3 * 4 * 4) * (2 * 3 * 3)
    assert flops_of("ConvTranspose", [larger, shapes[1]], shapes[0], {}) == 2 * 48 * (2 * 3 * 3)
    assert flops_of("QLinearConv", shapes, larger, {}) is None


def test_a_larger_tensor_is_a_node():
    held = [weight("table", 9, kind=INT), weight("conv.weight", 9)]
    nodes = [
        node("Gather", ["conv.weight", "table"], ["a"]),
        node("Add", ["a", "x"], ["b"]),
    ]
    model = model_of(nodes, [info("x", FLOAT, [9])], [info("b", FLOAT, [9])], held)
    kinds = {node.name: node.kind for node in tbscope.from_onnx(model).nodes}
    assert (kinds["table"], kinds["conv.weight"]) == ("constant", "parameter")


def test_what_draws_random_numbers_is_told():
    nodes = [node("RandomNormalLike", ["x"], ["a"]), node("Dropout", ["a"], ["b"])]
    model = model_of(nodes, [info("x", FLOAT, [3])], [info("b", FLOAT, [3])])
    assert [each.random for each in tbscope.from_onnx(model).nodes] == [False, True, False]


def test_data_in_other_files_is_not_read(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save_model(
        two_layers(), path, save_as_external_data=True, location="gone.bin", size_threshold=0
    )
    (tmp_path / "gone.bin").unlink()
    graph = tbscope.from_onnx(path)
    held = graph.find("layers.0.fc.weight")
    assert held.outputs[0].shape == (3, 3)
    assert scopes(graph) == scopes(tbscope.from_onnx(two_layers()))


def test_shapes_are_inferred_though_what_tells_them_is_in_another_file():
    nodes = [node("Reshape", ["x", "sizes"], ["a"]), node("Relu", ["x"], ["b"])]
    sizes = weight("sizes", 2, kind=INT)
    sizes.ClearField("raw_data")
    sizes.data_location = onnx.TensorProto.EXTERNAL
    sizes.external_data.add(key="location", value="gone.bin")
    outputs = [info("a", FLOAT, None), info("b", FLOAT, None)]
    model = model_of(nodes, [info("x", FLOAT, [3, 2])], outputs, [sizes], checked=False)
    graph = tbscope.from_onnx(model)
    assert graph.notes == []
    assert [output.value.shape for output in graph.outputs] == [(None, None), (3, 2)]


def test_a_model_of_more_than_two_gigabytes_is_read(tmp_path):
    model = two_layers()
    for tensor in model.graph.initializer:
        # 4 GiB each, that nobody has.
        tensor.ClearField("raw_data")
        tensor.dims[:] = [3, 3 * 2**28]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="huge.bin")
    del model.graph.node[1:]
    model.graph.output[0].name = "m0"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "huge.onnx"
    onnx.save_model(model, path)
    graph = tbscope.from_onnx(path)
    assert graph.outputs[0].value.shape == (None, 3 * 2**28)
    assert graph.find("layers.0.fc.weight").outputs[0].size_bytes == 9 * 2**30


def test_every_form_of_a_model_is_the_same_graph(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).eval()
    program = export(model, (torch.rand(1, 2),))
    path = tmp_path / "model.onnx"
    program.save(path)
    forms = [program, program.model, program.model_proto, path, str(path)]
    assert len({str(tbscope.from_onnx(form)) for form in forms}) == 1
    assert "scope: Sequential/Linear[0]" in str(tbscope.from_onnx(path))


def test_the_line_of_the_users_code_is_told():
    model = torch.nn.Sequential(torch.nn.ReLU())

    class Net(torch.nn.Module):
        def forward(self, x):
            return model(x) + 1

    graph = tbscope.from_onnx(export(Net().eval(), (torch.rand(2),)))
    assert {node.source.function for node in graph.nodes if node.kind == "op"} == {"forward"}
    assert all(node.source.file.endswith("test_onnx_reading.py") for node in graph.nodes[1:])
