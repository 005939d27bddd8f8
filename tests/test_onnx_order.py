"""Functions have inputs and results in the order of the module's call, as the record tells it."""

import re

import onnx
import onnx.inliner
import onnx_ir
import pytest
import torch
from onnx_build import export, feeds_of, operators, run, same_numbers
from torch import nn

import tbscope


class Mix(nn.Module):
    """Reads its arguments in an order of its own."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, a, b, pair=None, *, scale, mask=None):
        first, second = pair["first"], pair["rest"][0]
        y = self.fc(second) - b * scale + first.exp()
        if mask is not None:
            y = y * mask
        return {"second": y.tanh(), "first": (a + y, b - a)}


class Twice(nn.Module):
    """Calls two of them, with arguments swapped, by keyword and nested."""

    def __init__(self):
        super().__init__()
        self.one, self.other = Mix(), Mix()

    def forward(self, x, y, *, z, w):
        given = self.one(y, x, scale=2.0, pair={"first": z, "rest": [w]})
        again = self.other(
            b=given["first"][1],
            a=given["second"],
            pair={"rest": [given["first"][0]], "first": x},
            mask=y,
            scale=2.0,
        )
        return again["first"][0], again["second"], again["first"][1]


def prepared(model):
    """Give a model in evaluation mode, no two weights of which are equal."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model.eval()


def tensors(count, *shape):
    return [torch.rand(shape) for _ in range(count)]


def exported(model, args, kwargs=None, modules=None):
    """Make modules functions; hold the result against the plain export in every way."""
    program, record = export(model, args, kwargs), tbscope.trace(model, args, kwargs=kwargs)
    result = tbscope.modules_to_functions(program, modules, record=record)
    message = onnx_message(result)
    onnx.checker.check_model(message, full_check=True)
    plain = program.model_proto
    feeds = feeds_of(plain, [*args, *(kwargs or {}).values()])
    expected = run(plain, feeds)
    same_numbers(message, feeds, expected)
    inlined = onnx.inliner.inline_local_functions(message)
    assert operators(inlined) == operators(plain)
    return result, plain


def onnx_message(result):
    import onnx_ir

    return onnx_ir.to_proto(result.model)


def called(result, name):
    return [list(each.input) for each in onnx_message(result).graph.node if each.op_type == name]


def test_arguments_swapped_by_keyword_and_nested_are_in_the_order_of_forward():
    x, y, z, w = tensors(4, 2, 4)
    result, plain = exported(prepared(Twice()), (x, y), {"z": z, "w": w}, modules={Mix})
    assert result.functions == [
        "modules::Mix(%a, %b, %pair.first, %pair.rest.0, %fc.weight, %fc.bias, %val_0) -> "
        "(%tanh, %add_1, %sub_1), 1 use",
        "modules::Mix_1(%a, %b, %pair.rest.0, %pair.first, %mask, %fc.weight, %fc.bias, %val_0)"
        " -> (%tanh_1, %add_3, %sub_3), 1 use",
    ]
    both = tbscope.export_onnx(prepared(Twice()), (x, y), {"z": z, "w": w}, modules={Mix})
    assert both.functions == result.functions
    assert called(result, "Mix")[0][:4] == ["y", "x", "z", "w"]
    assert called(result, "Mix_1")[0][:5] == ["tanh", "sub_1", "add_1", "x", "y"]
    # Without a record it is the order in which they are read.
    alone = tbscope.modules_to_functions(plain, {Mix})
    assert list(alone.model.graph.node[0].input)[:4] == ["w", "x", "z", "y"]


class Again(nn.Module):
    """Calls a module three times on one line, and another one like it."""

    def __init__(self):
        super().__init__()
        self.block, self.other = (
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU()) for _ in range(2)
        )

    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return self.other(x)


@pytest.fixture(scope="module")
def again():
    """The module, its plain export and the record of its run."""
    model, (x,) = prepared(Again()), tensors(1, 2, 4)
    return model, x, export(model, (x,)), tbscope.trace(model, x)


def test_each_call_of_a_module_is_a_call_of_its_function(again):
    model, x, _, _ = again
    result, _ = exported(model, (x,), modules=["Sequential"])
    assert [line.rpartition(", ")[2] for line in result.functions] == ["4 uses"]
    assert called(result, "Sequential") == [
        *[[value, "block.0.weight", "block.0.bias", "block.1.weight", "block.1.bias"]
          for value in ("x", "relu", "relu_1")],
        ["relu_2", "other.0.weight", "other.0.bias", "other.1.weight", "other.1.bias"],
    ]  # fmt: skip


def test_a_file_tells_neither_where_a_call_ends_nor_what_a_record_is_of(again):
    _, _, program, record = again
    message = program.model_proto
    alone = tbscope.modules_to_functions(message, ["Sequential"])
    assert [line.rpartition(", ")[2] for line in alone.functions] == ["1 use", "1 use"]
    with pytest.raises(tbscope.ArgumentError, match="record= is given with ModelProto"):
        tbscope.modules_to_functions(message, ["Sequential"], record=record)


def test_hyper_parameters_are_attributes_of_the_calls(again):
    _, _, program, record = again
    result = tbscope.modules_to_functions(program, {nn.Linear}, record=record)
    assert result.functions == [
        "modules::Linear(%input, %weight, %bias; in_features, out_features, bias)"
        " -> (%linear), 4 uses"
    ]
    call = next(each for each in onnx_message(result).graph.node if each.op_type == "Linear")
    given = {each.name: onnx.helper.get_attribute_value(each) for each in call.attribute}
    assert given == {"in_features": 4, "out_features": 4, "bias": 1}


def test_hyper_parameters_of_every_kind_are_numbers_texts_or_lists():
    model = prepared(nn.Sequential(nn.Conv2d(2, 2, (3, 1), padding="same", stride=1)))
    result, _ = exported(model, tuple(tensors(1, 1, 2, 5, 5)))
    call = onnx_message(result).graph.node[0]
    given = {each.name: onnx.helper.get_attribute_value(each) for each in call.attribute}
    assert given["kernel_size"] == [3, 1]
    assert given["padding"] == b"same"


def test_inner_scopes_are_kept_in_functions_that_several_modules_share(again):
    model, _, program, record = again
    result = tbscope.modules_to_functions(program, ["Sequential"], record=record)
    graph = tbscope.from_onnx(result.model)
    names = [call.qualified_name for call in graph.calls]
    assert names == ["", *["block", "block.0", "block.1", "block.2"] * 3, *OTHER]
    assert {call.class_name for call in graph.find_calls("block.1")} == {
        "torch.nn.modules.normalization.LayerNorm"
    }
    assert graph.find("other.0.weight").scope.path == "Again/Sequential[other]/Linear[0]"
    assert model.block[0].weight.shape == graph.find("block.0.weight").outputs[0].shape


OTHER = ["other", "other.0", "other.1", "other.2"]


def test_one_tensor_given_twice_is_one_input():
    class Sum(nn.Module):
        def forward(self, a, b, c):
            return a * 2 + b - c

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.sum = Sum()

        def forward(self, x, y):
            return self.sum(y, x, y)

    result, _ = exported(Net().eval(), tuple(tensors(2, 3)), modules={Sum})
    assert [each[:2] for each in called(result, "Sum")] == [["y", "x"]]


def test_an_argument_is_found_though_the_exporter_left_a_view_of_it_out():
    class Sub(nn.Module):
        def forward(self, a, b):
            return b * 2 - a

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.sub = Sub()

        def forward(self, x, y):
            return self.sub(y.detach(), x.detach())

    args = tuple(tensors(2, 3))
    result, _ = exported(Net().eval(), args, modules={Sub})
    assert [each[:2] for each in called(result, "Sub")] == [["y", "x"]]
    assert result.functions[0].startswith("modules::Sub(%a, %b,")


def test_a_module_that_is_registered_twice_is_one_function():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = self.b = nn.Linear(3, 3)

        def forward(self, x):
            return self.b(self.a(x))

    result, _ = exported(prepared(Net()), tuple(tensors(1, 2, 3)))
    assert result.functions == [
        "modules::Linear(%input, %weight, %bias; in_features, out_features, bias)"
        " -> (%linear), 2 uses"
    ]


def test_a_parameter_that_is_an_argument_stands_where_it_is_given():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.own = nn.Parameter(torch.ones(3))

        def forward(self, weight, x):
            return x * weight + self.own

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.weight = Scale(), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.scale(self.weight, x)

    result, _ = exported(prepared(Net()), tuple(tensors(1, 3)), modules={Scale})
    assert called(result, "Scale") == [["weight", "x", "scale.own"]]
    assert result.functions[0].startswith("modules::Scale(%weight, %x, %own)")


def test_a_model_is_left_as_it_was_and_written_where_it_is_wanted(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train()
    model[1].eval()
    path = tmp_path / "model.onnx"
    result = tbscope.export_onnx(model, torch.ones(1, 2), path=path)
    assert [module.training for module in model.modules()] == [True, True, False]
    assert onnx.load(path) == onnx_message(result)
    assert [line.partition("(")[0] for line in result.functions] == ["modules::Linear"]


def test_sizes_with_names_stay_free(tmp_path):
    path = tmp_path / "model.onnx"
    model = prepared(Again())
    dynamic = ({0: "batch"},)
    tbscope.export_onnx(model, torch.rand(2, 4), path=path, dynamic_shapes=dynamic)
    x = torch.rand(5, 4)
    message = onnx.load(path)
    onnx.checker.check_model(message, full_check=True)
    same_numbers(message, feeds_of(message, [x]), [model(x).detach().numpy()])
    assert tbscope.from_onnx(path).inputs[0].attributes["symbolic_shape"] == "(batch, 4)"


def test_a_model_that_cannot_be_exported_is_told():
    class Odd(nn.Module):
        def forward(self, x):
            return x[: int(x.sum())].tolist() and x

    with pytest.raises(tbscope.TraceError, match="Odd cannot be exported to ONNX"):
        tbscope.export_onnx(Odd().eval(), torch.ones(3))


class Eigen(nn.Module):
    def forward(self, x):
        return torch.linalg.eig(x)[0].real


class Decides(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "options", "reason"),
    [
        (Decides(), {}, "Could not guard on data-dependent expression"),
        (Eigen(), {}, "No ONNX function found for .*linalg_eig"),
        (nn.ReLU(), {"dynamic_shapes": {"none": {0: "b"}}}, "When `dynamic_shapes` is specified"),
    ],
)
def test_the_error_of_an_export_begins_with_the_reason_of_torch(model, options, reason):
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.export_onnx(model, torch.ones(3, 3), **options)

    assert re.match(rf"\w+: {reason}", raised.value.why)
    assert "u001b" not in raised.value.why


def test_an_export_takes_inputs_as_a_trace_does():
    x, model = torch.ones(2, 3), nn.Sequential(nn.ReLU())
    results = [
        tbscope.export_onnx(model, x),
        tbscope.export_onnx(model, {"input": x}),
        tbscope.export_onnx(model, kwargs={"input": x}),
        tbscope.export_onnx(model, input_size=(2, 3)),
    ]
    assert len({str(result) for result in results}) == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": "no/such/model.onnx"}, "no model can be written to path='no/such/model.onnx'"),
        ({"domain": ""}, "domain='' cannot be that of functions"),
        ({"modules": 3}, "modules=3 selects no modules"),
        ({"dynamo": False}, "dynamo=False exports a model without its modules"),
        ({"training": "eval"}, "training='eval'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_model_runs(options, text):
    class Never(nn.Module):
        def forward(self, x):
            raise AssertionError

    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.export_onnx(Never(), torch.ones(1), **options)
    assert str(raised.value).startswith(text)


class Gate(nn.Module):
    """Differs from others in constants: an input, an attribute of an operator, or neither."""

    slope: float
    scale: float

    def __init__(self, slope, scale, hidden=None):
        super().__init__()
        self.slope, self.scale, self.hidden = slope, scale, hidden or slope
        self.act = nn.LeakyReLU(slope)

    def forward(self, x):
        return nn.functional.leaky_relu(self.act(x * self.scale), self.hidden)


def gates(*settings):
    """Give the functions of gates in a row, and the references in the body of the first one."""
    model = nn.Sequential(*(Gate(*one) for one in settings)).eval()
    (x,) = tensors(1, 2, 4)
    feeds = {"input": x.numpy()}
    result = tbscope.export_onnx(model, (x,), modules=[Gate, nn.LeakyReLU])
    message = onnx_ir.to_proto(result.model)
    onnx.checker.check_model(message, full_check=True)
    assert abs(run(message, feeds)[0] - model(x).numpy()).max() < 1e-6
    graph = tbscope.from_onnx(message)
    slopes = [node.arguments[-1].nest for node in graph.nodes if node.op == "LeakyRelu"]
    expected = [slope for one in model for slope in (one.slope, one.hidden)]
    assert slopes == pytest.approx(expected)
    body = next(one for one in message.functions if one.name == "Gate")
    return result.functions, [item.ref_attr_name for node in body.node for item in node.attribute]


@torch.no_grad()
def test_modules_that_differ_in_constants_alone_share_a_function():
    functions, references = gates((0.1, 2.0), (0.1, 3.0), (0.2, 4.0), (0.3, 4.0))
    assert functions == [
        "modules::LeakyReLU(%input; negative_slope) -> (%leaky_relu), 4 uses",
        "modules::Gate(%x, %val_0; slope, scale) -> (%leaky_relu_1), 4 uses",
    ]
    assert references == ["slope", "slope"]


@torch.no_grad()
def test_a_constant_that_no_attribute_of_the_call_has_is_of_another_function():
    functions, references = gates((0.1, 2.0), (0.2, 2.0, 0.7), (0.3, 2.0))
    assert [one.rpartition(", ")[2] for one in functions] == ["3 uses", "2 uses", "1 use"]
    assert references == ["slope", "slope"]
    assert gates((0.1, 2.0), (0.1, 3.0))[1] == ["", ""]


@torch.no_grad()
def test_a_call_shares_no_attribute_that_equals_a_constant_by_chance():
    # The first two calls share `slope`; a third has the slope of the first, and another constant.
    functions, _ = gates((0.1, 2.0), (0.2, 3.0), (0.1, 2.0, 0.2), (0.2, 3.0, 0.1))
    assert [one.rpartition(", ")[2] for one in functions] == ["4 uses", "2 uses", "1 use", "1 use"]


def test_a_model_that_is_one_layer_has_no_functions(tmp_path):
    path = tmp_path / "linear.onnx"
    regrouped = tbscope.export_onnx(nn.Linear(3, 5), torch.rand(1, 3), path=path)
    assert regrouped.functions == []
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Gemm"]
