"""Graphs of TorchScript: what they tell is what an eager call of the model tells."""

import inspect
import sys
import warnings

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements
from tests.program_models import example
from tests.script_models import SCRIPTED, TRACED, scripted, traced
from tests.sweeps import sampled
from tests.warm import run_warm

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_tells_what_an_eager_call_tells(name):
    eager = example(name)[3]

    graph = tbscope.from_torchscript(traced(name))

    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    assert [output.name for output in graph.outputs] == [output.name for output in eager.outputs]


@pytest.mark.parametrize("name", SCRIPTED)
def test_a_script_tells_what_an_eager_call_tells(name):
    _, args, _, eager = example(name)

    graph = tbscope.from_torchscript(scripted(name), args)

    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    assert [output.name for output in graph.outputs] == [output.name for output in eager.outputs]


@pytest.mark.parametrize("name", sampled(TRACED, TRACED[::2]))
def test_a_trace_counts_the_flops_of_an_eager_call(name):
    eager, graph = example(name)[3], tbscope.from_torchscript(traced(name))

    assert tbscope.costs(graph).total.flops == tbscope.costs(eager).total.flops > 0


# -- calls ---------------------------------------------------------------------------------


class Nested(nn.Module):
    """Has lists in lists, and a layer that is called twice in a row."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.rows = nn.ModuleList(
            nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]) for _ in range(2)
        )

    def forward(self, x):
        x = self.fc(self.fc(x))
        for row in self.rows:
            for layer in row:
                x = layer(x)
        return x


NESTED = [
    "Nested",
    "Nested/Linear[fc]",
    "Nested/Linear[fc].1",
    *(
        f"Nested/ModuleList[rows]/ModuleList[{row}]/Linear[{layer}]"
        for row in range(2)
        for layer in range(2)
    ),
]


@pytest.mark.parametrize("make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 4))])
def test_each_call_has_a_scope_and_nested_lists_stand_in_their_place(make):
    graph = tbscope.from_torchscript(make(Nested()))

    assert [call.scope.path for call in graph.calls] == NESTED
    assert {call.class_name for call in graph.calls[1:]} == {"torch.nn.modules.linear.Linear"}


def test_scopes_are_those_that_torch_prints():
    trace = traced("ResNetForImageClassification")
    graph = tbscope.from_torchscript(trace)

    printed = [
        node.scopeName().rpartition("/")[2].removeprefix("__module").removeprefix(".")
        for node in trace.inlined_graph.nodes()
        if node.kind() in ("aten::_convolution", "aten::batch_norm", "aten::relu", "aten::linear")
    ]
    ops = {"convolution", "batch_norm", "relu", "linear"}
    ours = [node.scope.qualified_name for node in graph.nodes if node.op in ops]
    assert ours == printed != []


def test_a_method_is_no_call_of_its_module():
    class Helping(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        @torch.jit.export
        def forward2(self, x):
            return self.fc(x) + 1

        def forward(self, x):
            return x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Helping()

        def forward(self, x):
            return self.part.forward2(x) * 2

    graph = tbscope.from_torchscript(torch.jit.script(Net()), torch.ones(1, 4))

    scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert scopes == {
        "linear": "Net/Helping[part]/Linear[fc]",
        "add": "Net",
        "mul": "Net",
    }


@pytest.mark.parametrize("made", ["script", "trace"])
def test_an_operation_knows_its_line(made):
    graph = tbscope.from_torchscript(
        scripted("resnet") if made == "script" else traced("resnet"), *example("resnet")[1]
    )

    eager = example("resnet")[3]
    lines = {node.scope.path: node.source for node in eager.nodes if node.kind == "op"}
    ours = {node.scope.path: node.source for node in graph.nodes if node.kind == "op"}
    assert {source.file for source in ours.values()} == {lines["ResNet"].file}
    assert ours["ResNet/Linear[fc]"] == lines["ResNet/Linear[fc]"]
    assert ours["ResNet"] == lines["ResNet"]


@pytest.mark.parametrize("training", [True, False])
def test_a_script_is_read_in_the_mode_in_which_it_is(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train(training)

    graph = tbscope.from_torchscript(torch.jit.script(model), torch.ones(1, 2))

    assert [node.random for node in graph.nodes if node.op == "dropout"] == [training]
    assert [call.training for call in graph.calls] == [training] * 3


# -- functions, frozen code ----------------------------------------------------------------


def scaled(x, by: int = 2):
    """Do one thing or another, as a number tells."""
    if by > 1:
        x = x * by
    return torch.relu(x)


def test_a_scripted_function_runs_its_defaults():
    graph = tbscope.from_torchscript(torch.jit.script(scaled), torch.ones(3))

    check_whole(graph)
    assert [(node.op, node.scope) for node in graph.nodes if node.kind == "op"] == [
        ("mul", None),
        ("relu", None),
    ]
    other = tbscope.from_torchscript(torch.jit.script(scaled), (torch.ones(3), 1))
    assert [node.op for node in other.nodes if node.kind == "op"] == ["relu"]


def factor(script):
    """Give the number by which a script multiplies an input of 6 rows and 4 columns."""
    graph = tbscope.from_torchscript(script, torch.ones(6, 4))
    (mul,) = (node for node in graph.nodes if node.op == "mul")
    return mul.arguments[1].nest


@pytest.mark.parametrize(
    ("told", "number"),
    [
        *(("x.size(-2)", 6), ("x.stride(-2)", 4), ("x.numel()", 24), ("len(x)", 6)),
        *(("1 if x.is_floating_point() else 2", 1), ("1 if x.is_complex() else 2", 2)),
        *(("1 if x.is_cuda else 2", 2), ("x.dim()", 2), ("max([3, x.size(1)])", 4)),
        ("round(2.5) + x.dim()", 4.0),
    ],
)
def test_what_a_script_asks_of_a_tensor_is_known_as_a_number(told, number):
    script = torch.jit.CompilationUnit(f"def f(x):\n    return x * ({told})\n").f
    assert factor(script) == number


@pytest.mark.parametrize(
    ("change", "number"),
    [("append(x.dim())", 1), ("insert(0, 5)", 5), ("pop(0)", 3)],
)
def test_a_list_of_numbers_is_followed_through_its_changes(change, number):
    body = f"    xs = [1, 3, 2]\n    xs.{change}\n    return x * xs[0]\n"
    assert factor(torch.jit.CompilationUnit(f"def f(x):\n{body}").f) == number


@pytest.mark.parametrize(
    ("make", "number"),
    [
        (lambda n: 10 - n, 4),
        (lambda n: torch.sub(n, 2, alpha=4), -2),
        (lambda n: torch.add(n, 2, alpha=4), 14),
        (lambda n: torch.div(-n, 4, rounding_mode="trunc"), -1),
        (lambda n: torch.div(-n, 4, rounding_mode="floor"), -2),
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_numbers_made_of_sizes_are_known_in_a_trace(make, number):
    trace = torch.jit.trace(lambda x: x * make(x.shape[0]), torch.ones(6, 4))
    assert factor(trace) == number


def test_a_traced_function_tells_its_shapes_without_inputs():
    trace = torch.jit.trace(lambda x, y: (x @ y, x.sum()), (torch.ones(2, 3), torch.ones(3, 4)))

    graph = tbscope.from_torchscript(trace)

    check_whole(graph)
    assert [output.value.shape for output in graph.outputs] == [(2, 4), ()]


@pytest.mark.parametrize("made", ["script", "trace"])
def test_what_frozen_code_runs_stands_in_the_model_with_its_constants(made):
    frozen = torch.jit.freeze(scripted("resnet") if made == "script" else traced("resnet"))

    graph = tbscope.from_torchscript(frozen, example("resnet")[1])

    check_whole(graph)
    assert sum("conv" in node.op for node in graph.nodes) == 5
    assert {str(node.scope) for node in graph.nodes if node.kind == "op"} == {"ResNet"}
    constants = [node for node in graph.nodes if node.kind == "constant"]
    assert {str(node.scope) for node in constants} == {"ResNet"}
    weights = {node.name.partition("_")[0] for node in constants}
    assert {"stem.weight", "layers.1.conv2.weight"} <= weights


# -- state ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet", "buffers", "tied weights"])
def test_modules_and_parameters_are_those_of_the_model(name):
    eager, graph = example(name)[3], tbscope.from_torchscript(traced(name))

    told = {module.name: module.parameters for module in graph.modules}
    known = {module.name: module.parameters for module in eager.modules}
    assert {name: told[name] for name in known} == known


def test_a_write_into_a_buffer_is_told():
    graph = tbscope.from_torchscript(scripted("buffers"), example("buffers")[1])

    written = {
        value.producer.name
        for node in graph.nodes
        for place, value in enumerate(node.inputs)
        if place in node.writes
    }
    assert written == {
        *("steps", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
    }


def test_an_attribute_that_is_set_holds_what_it_was_set_to():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x):
            self.steps = self.steps + 1
            return x * self.steps

    graph = tbscope.from_torchscript(torch.jit.script(Net()), torch.ones(1))

    (add,) = [node for node in graph.nodes if node.op == "add"]
    (mul,) = [node for node in graph.nodes if node.op == "mul"]
    assert mul.inputs[1] is add.outputs[0]


def test_a_layer_reads_its_weights_from_a_list():
    graph = tbscope.from_torchscript(scripted("lstm"), example("lstm")[1])

    (lstm,) = [node for node in graph.nodes if node.op == "lstm"]
    names = [value.producer.name for value in lstm.inputs if value.producer.kind == "parameter"]
    assert names == [f"lstm.{name}_l0" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


# -- control flow --------------------------------------------------------------------------


class Branching(nn.Module):
    """Does one of two things, as a tensor tells."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = x + 1
        if bool(x.sum() > 0):
            y.mul_(2)
            z = self.fc(y)
        else:
            z = y.cos()
        return z + y


def test_both_branches_stand_in_scopes_and_are_merged():
    graph = tbscope.from_torchscript(torch.jit.script(Branching()), torch.ones(2, 4))

    check_whole(graph)
    scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert scopes["linear"] == "Branching/if/Linear[fc]"
    assert scopes["cos"] == "Branching/else"
    (merged,) = [node for node in graph.nodes if node.op == "If"]
    assert merged.scope.path == "Branching"
    assert {value.producer.op for value in merged.inputs} == {"gt", "add", "linear", "cos", "mul_"}
    assert [value.shape for value in merged.outputs] == [(2, 4), (2, 4)]


def test_a_branch_in_a_branch_has_a_scope_in_that_of_the_outer_one():
    class Nested(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                if x.mean() > 1:
                    x = x.cos()
                x = x.sin()
            return x

    class Conditional(nn.Module):
        def forward(self, x):
            def outer(x):
                return torch.cond(x.mean() > 1, torch.cos, torch.tan, (x,)).sin()

            return torch.cond(x.sum() > 0, outer, torch.tan, (x,))

    x = torch.ones(2)
    program = torch.export.export(Conditional(), (x,))
    for graph, body in (
        (tbscope.from_torchscript(torch.jit.script(Nested()), x), "Nested/if"),
        (tbscope.from_export(program), "Conditional/true_graph_0"),
    ):
        check_whole(graph)
        scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
        assert scopes["sin"] == body
        assert scopes["cos"] == f"{body}/{body.partition('/')[2]}"


def test_a_branch_does_not_see_what_the_other_one_wrote():
    graph = tbscope.from_torchscript(torch.jit.script(Branching()), torch.ones(2, 4))

    (cos,) = [node for node in graph.nodes if node.op == "cos"]
    (first, last) = [node for node in graph.nodes if node.op == "add"]
    assert cos.inputs == first.outputs
    assert cos.control_inputs == []
    # After them, the tensor holds what either of them left in it.
    (merged,) = [node for node in graph.nodes if node.op == "If"]
    assert last.inputs == merged.outputs
    assert [merged.inputs[place] for place in merged.writes] == first.outputs


def test_a_number_that_is_known_decides():
    class Net(nn.Module):
        def forward(self, x):
            if x.size(0) > 2:
                return x.sin()
            return x.cos()

    script = torch.jit.script(Net())

    for size, op in ((3, "sin"), (2, "cos")):
        graph = tbscope.from_torchscript(script, torch.ones(size))
        assert [node.op for node in graph.nodes if node.kind == "op"] == [op]
    both = tbscope.from_torchscript(script)
    assert [node.op for node in both.nodes if node.kind == "op"] == ["sin", "cos", "If"]


def test_what_is_given_is_told_from_none():
    class Net(nn.Module):
        def forward(self, x, pair: tuple[torch.Tensor, torch.Tensor] | None = None):
            if pair is None:
                pair = (x.sin(), x.cos())
            return pair[0] + pair[1]

    script = torch.jit.script(Net())

    alone = tbscope.from_torchscript(script, torch.ones(2))
    given = tbscope.from_torchscript(script, (torch.ones(2), (torch.ones(2), torch.ones(2))))

    assert [node.op for node in alone.nodes if node.kind == "op"] == ["sin", "cos", "add"]
    assert [node.op for node in given.nodes if node.kind == "op"] == ["add"]


def test_what_only_raises_is_no_branch():
    class Net(nn.Module):
        def forward(self, x):
            if x.dim() != 2:
                raise ValueError("two dimensions")
            return x.sin()

    graph = tbscope.from_torchscript(torch.jit.script(Net()))

    assert [(node.op, node.scope.path) for node in graph.nodes if node.kind == "op"] == [
        ("sin", "Net")
    ]


@torch.jit.script
class Two:
    def __init__(self, first: torch.Tensor, second: torch.Tensor):
        self.first = first
        self.second = second


def early_tuple(x):
    if x.sum() > 0:
        x = x.abs()
        if x.mean() > 1:
            return x.sin(), x
    return x.cos(), x


def early_dict(x):
    if x.sum() > 0:
        x = x.abs()
        if x.mean() > 1:
            return {"first": [x.sin()], "second": [x]}
    return {"first": [x.cos()], "second": [x]}


def tuple_from_loop(x):
    for turn in range(int(x.sum())):
        if x.mean() > turn:
            return x.sin(), x
    return x.cos(), x


def tuple_or_error(x):
    if x.sum() > 0:
        x = x.abs()
        if x.mean() > 1:
            if x.max() > 2:
                return x.sin(), x
            raise ValueError("too small")
    return x.cos(), x


def early_object(x):
    two = Two(x.exp(), x)
    if x.sum() > 0:
        if x.mean() > 1:
            two = Two(x.sin(), x)
    else:
        two = Two(x.cos(), x)
    return two.first, two.second


def tuple_or_none(x) -> tuple[torch.Tensor, torch.Tensor] | None:
    if x.sum() > 0:
        return x.sin(), x.cos()
    return None


def none_before_tuple(x):
    pair: tuple[torch.Tensor, torch.Tensor] | None = None
    if x.sum() > 0:
        pair = (x.sin(), x)
    if pair is not None:
        return pair
    return x.cos(), x


def none_before_tensor(x):
    first: torch.Tensor | None = None
    if x.sum() > 0:
        first = x.sin()
    if first is None:
        first = x.cos()
    return first, x


def tensor_or_list(x) -> torch.Tensor | list[torch.Tensor]:
    if x.sum() > 0:
        return x.sin()
    return [x.cos()]


@pytest.mark.parametrize(
    "function",
    [
        *(early_tuple, early_dict, tuple_from_loop, tuple_or_error, early_object, tuple_or_none),
        *(none_before_tuple, none_before_tensor, tensor_or_list),
    ],
)
def test_outputs_depend_on_all_branches_that_may_return_them(function):
    graph = tbscope.from_torchscript(torch.jit.script(function))

    check_whole(graph)
    sources = nodes_behind(graph.outputs)
    assert {"sin", "cos"} <= {node.op for node in sources}
    assert len(graph.outputs) == (1 if function is tensor_or_list else 2)


@pytest.mark.parametrize(
    "model",
    [
        *(nn.MultiheadAttention(8, 2), nn.TransformerEncoderLayer(8, 2)),
        *(nn.TransformerDecoderLayer(8, 2), nn.Transformer(8, 2, 1, 1, batch_first=True)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_each_input_of_a_scripted_attention_reaches_an_output(model):
    graph = tbscope.from_torchscript(torch.jit.script(model))

    sources = nodes_behind(graph.outputs)
    assert [node.name for node in graph.nodes if node.kind != "op" and node not in sources] == []


def nodes_behind(outputs):
    """Give the nodes on which outputs depend."""
    found = []
    ahead = [output.value.producer for output in outputs]
    while ahead:
        node = ahead.pop()
        if node not in found:
            found.append(node)
            ahead += [value.producer for value in node.inputs]
    return found


def none_before_loop(x):
    last: torch.Tensor | None = None
    for _ in range(int(x.sum())):
        if last is not None:
            x = x.sin()
        last = x.cos()
    return x, last


def test_a_later_iteration_may_have_what_the_first_has_not():
    graph = tbscope.from_torchscript(torch.jit.script(none_before_loop))

    ops = [node.op for node in graph.nodes if node.kind == "op"]
    assert ops == ["sum", "sin", "If", "cos", "Loop"]


class Looping(nn.Module):
    """Goes on as long as a tensor tells, and gathers what it finds."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        found = [x]
        while bool(x.sum() < 10):
            x = self.fc(x)
            found.append(x)
        return torch.stack(found), x


def test_the_body_of_a_loop_stands_in_a_scope_once():
    graph = tbscope.from_torchscript(torch.jit.script(Looping()), torch.ones(2, 4))

    check_whole(graph)
    (linear,) = [node for node in graph.nodes if node.op == "linear"]
    (loop,) = [node for node in graph.nodes if node.op == "Loop"]
    (stack,) = [node for node in graph.nodes if node.op == "stack"]
    assert linear.scope.path == "Looping/loop/Linear[fc]"
    assert loop.scope.path == "Looping"
    assert linear.outputs[0] in loop.inputs
    assert {value.producer.name for value in stack.inputs} == {"x", linear.name}
    assert graph.outputs[1].value is loop.outputs[0]


def branches(depth):
    """A function of `depth` branches in each other."""
    lines = ["def nested(x, flag: bool):"]
    for at in range(depth):
        lines += [f"{'  ' * (at + 1)}if flag:", f"{'  ' * (at + 2)}x = x.sin()"]
    return torch.jit.CompilationUnit("\n".join([*lines, "  return x", ""])).nested


def test_branches_in_branches_without_end_are_refused():
    assert tbscope.from_torchscript(branches(40)).nodes
    scripted, limit = branches(120), sys.getrecursionlimit()
    # How deep a test begins depends on the process that runs it.
    sys.setrecursionlimit(len(inspect.stack(0)) + 400)
    try:
        with pytest.raises(tbscope.ArgumentError) as caught:
            tbscope.from_torchscript(scripted)
    finally:
        sys.setrecursionlimit(limit)

    assert "its calls and blocks nest deeper than tbscope follows" in str(caught.value)


def test_what_is_forked_stands_in_a_scope():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            future = torch.jit.fork(self.fc, x)
            return torch.jit.wait(future) + x

    graph = tbscope.from_torchscript(torch.jit.script(Net()), torch.ones(1, 4))

    scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert scopes == {"linear": "Net/fork/Linear[fc]", "add": "Net"}


def test_a_block_without_gradients_leaves_no_trace():
    class Net(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                x = x.sin()
            return x + 1

    graph = tbscope.from_torchscript(torch.jit.script(Net()))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["sin", "add"]


# -- inputs --------------------------------------------------------------------------------


def test_shapes_follow_from_other_inputs_than_those_of_the_trace():
    trace = torch.jit.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2))

    as_traced = tbscope.from_torchscript(trace)
    larger = tbscope.from_torchscript(trace, torch.ones(7, 2, device="meta"))

    assert [output.value.shape for output in as_traced.outputs] == [(1, 3)]
    assert [output.value.shape for output in larger.outputs] == [(7, 3)]


def test_element_types_follow_from_other_inputs_than_those_of_the_trace():
    trace = torch.jit.trace(nn.ReLU(), torch.ones(2))
    other = tbscope.from_torchscript(trace, torch.ones(2, dtype=torch.float64))
    assert [output.value.dtype for output in other.outputs] == ["float64"]


def test_what_a_branch_makes_of_another_element_type_has_none_that_is_known():
    body = "    if bool(x.sum() > 0):\n        x = x.double()\n    return x\n"
    script = torch.jit.CompilationUnit(f"def f(x):\n{body}").f
    (output,) = tbscope.from_torchscript(script, torch.ones(2)).outputs
    assert (output.value.producer.op, output.value.dtype) == ("If", "unknown")


def test_a_row_has_its_shape_whichever_it_is():
    script = torch.jit.CompilationUnit("def f(x, y):\n    return x[int(y)] * 2\n").f
    graph = tbscope.from_torchscript(script, (torch.ones(6, 4), torch.ones(())))
    assert [output.value.shape for output in graph.outputs] == [(4,)]


def test_inputs_have_their_paths():
    class Net(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor], by: torch.Tensor):
            return pair[0] * pair[1] + by

    graph = tbscope.from_torchscript(torch.jit.script(Net()))

    assert [node.name for node in graph.inputs] == ["pair.0", "pair.1", "by"]


@pytest.mark.parametrize("inputs", [(torch.ones(1, 4), 1), (1, 2, 3)])
def test_more_inputs_than_it_takes_are_refused(inputs):
    with pytest.raises(tbscope.InputError, match=r"forward\(\) cannot .* too many positional"):
        tbscope.from_torchscript(torch.jit.script(example("called twice")[0].block), inputs)


def test_fewer_inputs_than_it_takes_are_refused():
    script = torch.jit.script(lambda_of_two)

    with pytest.raises(tbscope.InputError) as caught:
        tbscope.from_torchscript(script, torch.ones(1))

    assert str(caught.value) == (
        "lambda_of_two() cannot be called: missing a required argument: 'y'\n"
        "  why: lambda_of_two(x, y) was given (Tensor(1))\n"
        "  fix: give input_to_model=(x, y)"
    )


def lambda_of_two(x, y):
    """Take two inputs."""
    return x + y


# -- what it is given ----------------------------------------------------------------------


def test_load_and_add_graph_know_a_script(tmp_path):
    _, args, _, _ = example("resnet")

    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        drawn = writer.add_graph(scripted("resnet"), args)
        alone = writer.add_graph(traced("resnet"), tag="traced")

    assert str(drawn) == str(tbscope.from_torchscript(scripted("resnet"), *args))
    assert str(alone) == str(tbscope.load(traced("resnet")))


def test_add_graph_runs_a_script_where_only_a_run_can_tell(tmp_path):
    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        graph = writer.add_graph(scripted("resnet"), example("resnet")[1], profile=True)

    assert graph.profile is not None


def test_add_graph_reads_a_script_in_the_mode_that_it_is_told(tmp_path):
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train())

    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        kept = writer.add_graph(script, torch.ones(1, 2), training=None)
        quiet = writer.add_graph(script, torch.ones(1, 2), training=False, tag="quiet")

    drops = [
        [node.random for node in graph.nodes if node.op == "dropout"] for graph in (kept, quiet)
    ]
    assert drops == [[True], [False]]
    assert script.training


def test_from_torchscript_refuses_what_is_no_script():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_torchscript(nn.Linear(2, 2))

    assert str(caught.value) == (
        "from_torchscript was given Linear(in_features=2, out_features=2, bias=True)\n"
        "  why: it takes a result of torch.jit.trace or torch.jit.script, or the path of a file "
        "that torch.jit.save has written\n"
        "  fix: tbscope.from_torchscript(torch.jit.trace(model, x))"
    )


WITHOUT = """
import sys
import torch
for name in [name for name in sys.modules if name.partition(".")[0] == "tbscope"]:
    del sys.modules[name]
script = torch.jit.trace(torch.nn.ReLU(), torch.ones(1))
for name in ("ScriptModule", "ScriptFunction", "load"):
    delattr(torch.jit, name)
import tbscope
print(tbscope.trace(torch.nn.ReLU(), torch.ones(1)))
tbscope.from_torchscript(script)
"""


def test_a_torch_without_torchscript_draws_models_and_says_what_it_lacks():
    done = run_warm("-c", WITHOUT)

    assert "= relu(%input, inplace=False), scope: ReLU" in done.stdout
    assert "no graph can be read of TorchScript" in done.stderr
    assert f"why: torch {torch.__version__} has no torch.jit" in done.stderr


def test_torch_warns_nobody_who_reads_a_script():
    script = traced("resnet")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tbscope.from_torchscript(script)


def test_reading_a_script_leaves_it_as_it_was():
    script, (x, *_) = scripted("buffers"), example("buffers")[1]
    before = str(script.graph), {name: value.clone() for name, value in script.state_dict().items()}

    tbscope.from_torchscript(script, x)

    assert str(script.graph) == before[0]
    assert all(torch.equal(script.state_dict()[name], value) for name, value in before[1].items())


class Several(nn.Module):
    """Has no forward, and methods that are called by their names."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    @torch.jit.export
    def encode(self, x):
        return self.fc(x)


class More(Several):
    @torch.jit.export
    def decode(self, x):
        return self.fc(x) * 2


def test_the_only_method_of_a_module_without_forward_is_drawn():
    graph = tbscope.from_torchscript(torch.jit.script(Several()), torch.ones(2, 4))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear"]
    with pytest.raises(tbscope.ArgumentError, match="it has no forward, and 2 other methods"):
        tbscope.from_torchscript(torch.jit.script(More()), torch.ones(2, 4))


def test_of_a_forward_of_several_kinds_the_first_is_drawn():
    graph = tbscope.from_torchscript(torch.jit.script(nn.LSTM(4, 3)), torch.ones(5, 2, 4))

    assert graph.outputs[0].value.shape == (5, 2, 3)
    assert [node.name for node in graph.inputs] == ["input"]
