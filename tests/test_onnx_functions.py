"""The nodes of modules become local functions: by the metadata alone, on models built by hand."""

import onnx
import onnx.inliner
import pytest
import torch
from onnx import helper
from onnx_build import FLOAT, feeds_of, info, model_of, node, operators, run, same_numbers, weight

import tbscope

NET = ("", "nets.Net")
SHAPE = [2, 3]


def at(*names):
    """Give the modules around a node, each with a class of its first letters."""
    found = [NET]
    for name in names:
        around = found[-1][0]
        label = "".join(letter for letter in name if letter.isalpha()).capitalize()
        found.append((f"{around}.{name}" if around else name, f"nets.{label}"))
    return found


def built(nodes, held=(), inputs=("x",), **facts):
    last = nodes[-1].output[0]
    given = [info(name, FLOAT, SHAPE) for name in inputs]
    return model_of(nodes, given, [info(last, FLOAT, SHAPE)], held, **facts)


def layers(count, *, op="Relu", **attributes):
    """Give layers that each multiply and activate; their inner modules are Mul."""
    nodes, held, value = [], [], "x"
    for number in range(count):
        name = f"layer{number}"
        nodes += [
            node("Mul", [value, f"{name}.fc.weight"], [f"m{number}"], levels=at(name, "fc")),
            node(op, [f"m{number}"], [f"r{number}"], levels=at(name), **attributes),
        ]
        held.append(weight(f"{name}.fc.weight", 3))
        value = f"r{number}"
    return built(nodes, held)


def checked(model, modules=None, **options):
    """Regroup a model, and hold the result against the model in every way."""
    before = model.SerializeToString()
    result = tbscope.modules_to_functions(model, modules, **options)
    assert model.SerializeToString() == before
    onnx.checker.check_model(result.model, full_check=True)
    tensors = [torch.rand(SHAPE) for _ in model.graph.input]
    feeds = feeds_of(model, tensors)
    same_numbers(result.model, feeds, run(model, feeds))
    inlined = onnx.inliner.inline_local_functions(result.model)
    assert operators(inlined) == operators(model)
    same_numbers(inlined, feeds, run(model, feeds))
    graph = tbscope.from_onnx(result.model)
    found = tbscope.lint(tbscope.to_graph_def(graph))
    # What cannot be a function is a box that its surroundings read by turns.
    assert result.left or found == []
    assert {one.rule for one in found} <= {"box-cycle"}
    assert paths(graph) == paths(tbscope.from_onnx(model))
    return result


def paths(graph):
    """Give where each operation stands."""
    return sorted((each.op, str(each.scope)) for each in graph.nodes if each.kind == "op")


def calls(model):
    return [f"{each.domain}::{each.op_type}" for each in model.graph.node]


def test_equal_modules_are_one_function_that_calls_another():
    result = checked(layers(3))
    assert result.functions == [
        "modules::Fc(%x, %weight) -> (%m0), 3 uses",
        "modules::Layer(%x, %fc.weight) -> (%r0), 3 uses",
    ]
    assert calls(result.model) == ["modules::Layer"] * 3
    assert [list(each.input) for each in result.model.graph.node] == [
        *(["x", "layer0.fc.weight"], ["r0", "layer1.fc.weight"], ["r1", "layer2.fc.weight"]),
    ]
    graph = tbscope.from_onnx(result.model)
    names = [call.qualified_name for call in graph.calls if call.scope.part.label == "Fc"]
    assert names == ["layer0.fc", "layer1.fc", "layer2.fc"]
    outer = next(each for each in result.model.functions if each.name == "Layer")
    assert [each.op_type for each in outer.node] == ["Fc", "Relu"]


@pytest.mark.parametrize(
    ("op", "attributes", "other"),
    [("Relu", {}, "Neg"), ("LeakyRelu", {"alpha": 0.5}, None), ("Softmax", {}, None)],
)
def test_modules_that_differ_anywhere_are_two_functions(op, attributes, other):
    same = layers(2, op=op, **attributes)
    assert len(checked(same, ["nets.Layer"]).functions) == 1
    if other is not None:
        same.graph.node[3].op_type = other
    elif op == "LeakyRelu":
        same.graph.node[3].attribute[0].f = 0.25
    else:
        same.graph.node[3].attribute.append(helper.make_attribute("axis", 0))
    result = checked(same, ["nets.Layer"])
    assert [line.partition("(")[0] for line in result.functions] == [
        *("modules::Layer", "modules::Layer_1"),
    ]


def test_modules_of_two_classes_are_two_functions():
    model = layers(2)
    for each in model.graph.node[2:]:
        each.metadata_props[1].value = each.metadata_props[1].value.replace("Layer", "Block")
    lines = checked(model, ["nets.Layer", "Block"]).functions
    names = [line.partition("(")[0] for line in lines]
    assert names == ["modules::Layer", "modules::Block"]


def test_modules_whose_inner_modules_differ_are_two_functions():
    model = layers(2)
    model.graph.node[3].metadata_props[0].value = repr(["", "layer1", "layer1.act", "r1"])
    model.graph.node[3].metadata_props[1].value = repr(["nets.Net", "nets.Layer", "nets.Act", "a"])
    assert len(checked(model, ["layer0", "layer1"]).functions) == 2


def test_the_same_inputs_in_another_order_are_another_function():
    def pair(first, second):
        return built(
            [
                node("Sub", ["x", "y"], ["a"], levels=at("layer0")),
                node("Mul", ["a", "x"], ["b"], levels=at("layer0")),
                node("Sub", [first, second], ["c"], levels=at("layer1")),
                node("Mul", ["c", first], ["d"], levels=at("layer1")),
                node("Add", ["b", "d"], ["out"], levels=[NET]),
            ],
            inputs=("x", "y"),
        )

    assert len(checked(pair("y", "x")).functions) == 1
    model = pair("x", "y")
    model.graph.node[3].input[1] = "y"
    assert len(checked(model).functions) == 2


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["layer1"], ["Layer"]),
        ({"layer?"}, ["Layer"]),
        ({"layer*"}, ["Fc", "Layer"]),
        ("Fc", ["Fc"]),
        (("nets.Fc", "nets.Layer"), ["Fc", "Layer"]),
        (["*.fc"], ["Fc"]),
        ([""], ["Net"]),
    ],
)
def test_modules_are_chosen_by_names_and_classes(modules, expected):
    result = checked(layers(2), modules)
    assert [line.partition("(")[0] for line in result.functions] == [
        f"modules::{name}" for name in expected
    ]


def test_a_class_chooses_its_modules_alone():
    levels = [NET, ("act", "torch.nn.modules.activation.ReLU")]
    model = built([node("Relu", ["x"], ["y"], levels=levels)])
    assert calls(checked(model, torch.nn.ReLU).model) == ["modules::ReLU"]
    assert calls(checked(model, {torch.nn.ReLU}, domain="my.own-domain").model) == [
        "my.own-domain::ReLU"
    ]
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.modules_to_functions(model, {torch.nn.ReLU6})
    assert str(raised.value) == (
        "modules={<class 'torch.nn.modules.activation.ReLU6'>} means no module of the ONNX model\n"
        "  why: it has modules of the classes Net, ReLU\n"
        "  fix: modules=['act'], or a class"
    )


def test_what_comes_back_through_the_outside_stays_inline_and_is_told():
    def crossed(outside):
        return built(
            [
                node("Neg", ["x"], ["a"], levels=at("layer0")),
                node("Abs", ["a"], ["b"], levels=outside),
                node("Add", ["a", "b"], ["c"], levels=at("layer0")),
                node("Relu", ["c"], ["d"], levels=at("layer1")),
            ]
        )

    result = checked(crossed([NET]))
    assert result.left == ["layer0 (nets.Layer): a leaves it and comes back through nodes outside"]
    assert calls(result.model) == ["::Neg", "::Abs", "::Add", "modules::Layer"]
    assert str(result).endswith("left inline: " + result.left[0])
    whole = checked(crossed(at("layer0")))
    assert (whole.left, calls(whole.model)) == ([], ["modules::Layer", "modules::Layer_1"])


def test_of_two_modules_that_wait_for_each_other_one_stays_inline():
    nodes = [
        node("Neg", ["x"], ["a"], levels=at("layer0")),
        node("Abs", ["x"], ["b"], levels=at("layer1")),
        node("Relu", ["a"], ["c"], levels=at("layer1")),
        node("Exp", ["b"], ["d"], levels=at("layer0")),
        node("Add", ["c", "d"], ["e"], levels=[NET]),
    ]
    result = checked(built(nodes))
    assert len(result.functions) == len(result.left) == 1
    assert "comes back through nodes outside" in result.left[0]


def test_what_stands_between_and_reads_the_results_comes_behind():
    nodes = [
        node("Neg", ["x"], ["a"], levels=at("layer0")),
        node("Abs", ["a"], ["b"], levels=[NET]),
        node("Exp", ["x"], ["c"], levels=at("layer0")),
        node("Add", ["b", "c"], ["d"], levels=[NET]),
    ]
    result = checked(built(nodes))
    assert calls(result.model) == ["modules::Layer", "::Abs", "::Add"]
    assert list(result.model.graph.node[0].output) == ["a", "c"]


def test_what_another_module_made_before_is_a_further_result():
    nodes = [
        node("Neg", ["x"], ["shared"], levels=at("layer0")),
        node("Abs", ["shared"], ["a"], levels=at("layer0")),
        node("Add", ["a", "shared"], ["b"], levels=at("layer1")),
    ]
    result = checked(built(nodes))
    assert [list(each.output) for each in result.model.graph.node] == [["shared", "a"], ["b"]]


def test_a_function_tells_those_types_alone_that_all_its_calls_have():
    def model(other):
        nodes = [
            node("Neg", ["x"], ["a"], levels=at("layer0")),
            node("Abs", ["a"], ["b"], levels=at("layer0")),
            node(other, ["b"], ["c"], levels=[NET]),
            node("Neg", ["c"], ["d"], levels=at("layer1")),
            node("Abs", ["d"], ["e"], levels=at("layer1")),
        ]
        shape = [3, 2] if other == "Transpose" else SHAPE
        made = model_of(nodes, [info("x", FLOAT, SHAPE)], [info("e", FLOAT, shape)])
        return onnx.shape_inference.infer_shapes(made)

    def told(result):
        (function,) = result.model.functions
        return [len(each.type.tensor_type.shape.dim) for each in function.value_info]

    assert told(checked(model("Relu"))) == [2, 2]
    assert told(checked(model("Transpose"))) == [0, 0]


def test_each_call_of_a_function_has_types_of_its_own():
    nodes = [
        node("Neg", ["x"], ["a"], levels=at("layer0")),
        node("Abs", ["a"], ["b"], levels=at("layer0")),
        node("Transpose", ["b"], ["c"], levels=[NET]),
        node("Neg", ["c"], ["d"], levels=at("layer1")),
        node("Abs", ["d"], ["e"], levels=at("layer1")),
    ]
    made = model_of(nodes, [info("x", FLOAT, SHAPE)], [info("e", FLOAT, [3, 2])])
    result = checked(onnx.shape_inference.infer_shapes(made))
    graph = tbscope.from_onnx(result.model)
    shapes = [each.outputs[0].shape for each in graph.nodes if each.op in ("Neg", "Abs")]
    assert shapes == [(2, 3), (2, 3), (3, 2), (3, 2)]


@pytest.mark.parametrize("modules", [["layer0"], None])
def test_an_output_of_the_model_is_one_of_the_function(modules):
    model = layers(1)
    # In the second case that of an inner function, too.
    del model.graph.node[1:]
    model.graph.node.append(node("Relu", ["x"], ["r0"], levels=at("layer0")))
    model.graph.output.append(info("m0", FLOAT, SHAPE))
    result = checked(model, modules)
    assert list(result.model.graph.node[0].output) == ["m0", "r0"]


def test_what_nobody_reads_stays_inline():
    nodes = [
        node("Neg", ["x"], ["unread"], levels=at("layer0")),
        node("Abs", ["x"], ["a"], levels=at("layer1")),
    ]
    assert checked(built(nodes)).left == ["layer0 (nets.Layer): nothing that it gives is read"]


def test_a_body_of_an_operation_reads_what_its_function_is_given():
    def branch(op, name):
        inner = [
            node(op, ["m", "layer0.weight"], [f"{name}0"]),
            node("Neg", [f"{name}0"], [name]),
        ]
        return helper.make_graph(inner, name, [], [info(name, FLOAT, SHAPE)])

    nodes = [
        node("Neg", ["x"], ["m"], levels=[NET]),
        node("ReduceSum", ["m"], ["s"], levels=at("layer0"), keepdims=0),
        node("Cast", ["s"], ["on"], levels=at("layer0"), to=9),
        node("If", ["on"], ["y"], levels=at("layer0"), then_branch=branch("Add", "t"),
             else_branch=branch("Mul", "e")),
    ]  # fmt: skip
    result = checked(built(nodes, [weight("layer0.weight", 3)]))
    assert result.functions == ["modules::Layer(%m, %weight) -> (%y), 1 use"]


def test_modules_with_branches_share_no_function():
    def layer(number, given, op):
        inner = [node(op, [given], [f"t{number}"])]
        branch = helper.make_graph(inner, "b", [], [info(f"t{number}", FLOAT, SHAPE)])
        same = helper.make_graph(
            [node("Neg", [given], [f"e{number}"])], "b", [], [info(f"e{number}", FLOAT, SHAPE)]
        )
        return node("If", ["on"], [f"y{number}"], levels=at(f"layer{number}"), then_branch=branch,
                    else_branch=same)  # fmt: skip

    def model(op):
        cast = [
            node("ReduceSum", ["x"], ["s"], levels=[NET], keepdims=0),
            node("Cast", ["s"], ["on"], levels=[NET], to=9),
        ]
        return built([*cast, layer(0, "x", "Abs"), layer(1, "y0", op)])

    assert len(checked(model("Abs")).functions) == 2
    assert len(checked(model("Exp")).functions) == 2


def test_a_name_that_is_taken_gets_a_number():
    nodes = [
        node("Add", ["x", "layer0.a"], ["a"], levels=at("layer0")),
        node("Mul", ["a", "other.a"], ["b"], levels=at("layer0"), name="layer0"),
    ]
    result = checked(built(nodes, [weight("layer0.a", 3), weight("other.a", 3)]))
    assert result.functions == ["modules::Layer(%x, %a_1, %a_2) -> (%b), 1 use"]


def test_functions_that_are_there_stay():
    versions = [helper.make_opsetid("", 20)]
    own = helper.make_function(
        "modules", "Layer", ["a"], ["b"], [node("Neg", ["a"], ["b"])], versions
    )
    nodes = [
        node("Layer", ["x"], ["a"], levels=at("layer0"), domain="modules"),
        node("Abs", ["a"], ["b"], levels=at("layer0")),
    ]
    model = built(nodes, functions=[own])
    result = tbscope.modules_to_functions(model)
    onnx.checker.check_model(result.model, full_check=True)
    assert [each.name for each in result.model.functions] == ["Layer", "Layer_1"]
    feeds = feeds_of(model, [torch.rand(SHAPE)])
    same_numbers(result.model, feeds, run(model, feeds))


def test_a_model_that_tells_of_no_modules_is_refused():
    model = built([node("Relu", ["x"], ["y"], name="/act/Relu")])
    with pytest.raises(tbscope.ArgumentError, match="dynamo=True"):
        tbscope.modules_to_functions(model)


def test_a_file_is_regrouped_as_what_it_holds_is(tmp_path):
    path = tmp_path / "model.onnx"
    model = layers(2)
    onnx.save_model(layers(2), path, save_as_external_data=True, size_threshold=0, location="data")
    result = tbscope.modules_to_functions(path)
    assert result.functions == tbscope.modules_to_functions(model).functions
    feeds = feeds_of(model, [torch.rand(SHAPE)])
    onnx.load_external_data_for_model(result.model, str(tmp_path))
    same_numbers(result.model, feeds, run(model, feeds))


def with_constants(*tensors):
    """Give layers that each multiply by a tensor of their own."""
    nodes, value = [], "x"
    for number, tensor in enumerate(tensors):
        levels = at(f"layer{number}")
        nodes += [
            node("Constant", [], [f"c{number}"], levels=levels, value=tensor),
            node("Mul", [value, f"c{number}"], [f"m{number}"], levels=levels),
        ]
        value = f"m{number}"
    return built(nodes)


def test_constants_are_equal_by_what_they_hold_and_not_by_their_names():
    alike = checked(with_constants(weight("a", 3), weight("b", 3)))
    assert [line.rpartition(", ")[2] for line in alike.functions] == ["2 uses"]
    other = checked(with_constants(weight("a", 3), weight("a", 2, 3)))
    assert [line.rpartition(", ")[2] for line in other.functions] == ["1 use", "1 use"]


@pytest.mark.parametrize(
    ("origin", "name"), [("layer0.fc.weight", "weight_folded"), ("val_3", "val_3")]
)
def test_a_tensor_that_was_computed_before_is_named_by_what_it_was(origin, name):
    levels = at("layer0", "fc")
    model = built([node("Mul", ["x", "val_7"], ["y"], levels=levels)], [weight("val_7", 3)])
    entry = info("val_7", FLOAT, [3])
    told = entry.metadata_props.add()
    told.key, told.value = "pkg.onnxscript.optimizer.folded_from", repr([origin])
    model.graph.value_info.append(entry)
    (line,) = checked(model, ["Fc"]).functions
    assert line == f"modules::Fc(%x, %{name}) -> (%y), 1 use"
