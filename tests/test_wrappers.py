"""Tensors inside of others: where they are taken out, and what is told of them."""

import gc
from weakref import ref

import pytest
import torch
from card_facts import facts
from cases import Holder
from composite_models import Like, Scaled, Two
from torch import nn
from torch.func import functional_call, grad, jvp, vmap

import tbscope
from tests.real_graphs import origins

X = torch.ones(3, 4)


def steps(graph):
    """Give each operation with the shape of what it gave."""
    return [(node.op, node.outputs[0].shape) for node in graph.nodes if node.kind == "op"]


def test_vmap_hides_a_dimension_and_gives_it_back():
    graph = tbscope.trace(vmap(lambda row: row * 2), X)
    assert steps(graph) == [
        ("add_batch_dim", (4,)),
        ("mul", (4,)),
        ("remove_batch_dim", (3, 4)),
    ]
    assert graph.outputs[0].value.shape == (3, 4)
    # Both are views, which the drawing tells at the operation between them.
    message = tbscope.to_graph_def(graph)
    assert [node.op for node in message.node] == ["Input", "mul", "Output"]
    assert facts(message.node[1])["then"].s == b"remove_batch_dim(0)"


def test_each_vmap_around_another_has_its_own_dimension():
    graph = tbscope.trace(vmap(vmap(torch.sin)), torch.ones(2, 3, 4))
    assert [shape for _, shape in steps(graph)] == [(3, 4), (4,), (4,), (3, 4), (2, 3, 4)]


def test_grad_hides_nothing_and_adds_no_step():
    graph = tbscope.trace(grad(lambda y: y.sin().sum()), X)
    assert [op for op, _ in steps(graph)] == ["sin", "sum", "grad"]


def test_what_a_module_gives_is_taken_out_in_that_module():
    layer = Holder(lambda self, x: vmap(self.lin)(x))
    graph = tbscope.trace(nn.Sequential(layer, nn.ReLU()), X)
    places = {node.op: str(node.scope) for node in graph.nodes if node.kind == "op"}
    assert places["add_batch_dim"] == places["remove_batch_dim"] == "Sequential/Holder[0]"
    assert places["linear"] == "Sequential/Holder[0]/Linear[lin]"


def test_what_vmap_gave_is_an_output_of_a_recording():
    with tbscope.record() as recording:
        kept = vmap(lambda row: row * 2)(X)
    assert [output.value.shape for output in recording.graph.outputs] == [kept.shape]


def test_what_is_inside_of_others_is_let_go_while_the_run_goes_on():
    alive = []

    def run(x):
        made = vmap(torch.sin)(x)
        seen = ref(made)
        del made
        pair = Two(x * 2, x * 3) * 2
        alive.extend((seen(), ref(pair.a)))
        return x + 1

    gc.disable()
    try:
        tbscope.trace(run, X)
    finally:
        gc.enable()
    assert (alive[0], alive[1]()) == (None, None)


@pytest.mark.parametrize("read", [True, False], ids=["read before", "not read before"])
def test_each_of_two_swapped_tensors_is_what_the_other_was(read):
    def run(self, x):
        before = self.lin(x).sum() if read else x.sum()
        other = torch.eye(4) * x.mean()
        torch.utils.swap_tensors(self.lin.weight, nn.Parameter(other))
        return before, self.lin(x)

    model = Holder(run)
    weight = model.lin.weight.detach().clone()
    graph = tbscope.trace(model, X)
    assert origins(graph)["out.1"] == {"x", "lin.bias"}
    assert ("lin.weight" in origins(graph)["out.0"]) is read
    assert torch.equal(model.lin.weight, weight)


# -- functional_call -----------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [None, grad, vmap], ids=["none", "grad", "vmap"])
def test_a_model_keeps_its_own_parameters_when_others_stood_in_for_them(transform):
    base = nn.Linear(4, 4)
    own = dict(base.named_parameters())
    more = (3,) if transform is vmap else ()
    given = {name: torch.ones(*more, *each.shape) for name, each in own.items()}
    run = lambda p: functional_call(base, p, (X,)).sum()
    tbscope.trace(run if transform is None else transform(run), (given,))
    assert all(base.get_parameter(name) is each for name, each in own.items())


def test_what_stands_in_is_read_and_the_parameters_are_not():
    base = nn.Linear(4, 4)
    given = {name: torch.ones(3, *each.shape) for name, each in base.named_parameters()}
    graph = tbscope.trace(
        lambda p, x: vmap(lambda one: functional_call(base, one, (x,)))(p), (given, X)
    )
    assert origins(graph) == {"out": {"p.weight", "p.bias", "x"}}
    assert not [note for note in graph.notes if "the input" in note.text]


@pytest.mark.parametrize("held", [True, False])
def test_a_constant_in_place_of_a_parameter_is_a_constant(held):
    def run(self, x):
        if held:
            return functional_call(self.lin, {"weight": weight}, (x,))
        return self.lin(x) + weight

    weight = torch.eye(3, 4) if not held else torch.eye(4)
    graph = tbscope.trace(Holder(run), X)
    assert [node.outputs[0].shape for node in graph.nodes if node.kind == "constant"] == [
        weight.shape
    ]
    assert ("lin.weight" in origins(graph)["out"]) is not held


def test_a_constant_in_place_of_a_parameter_deep_inside_is_a_constant():
    base = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    given = {"0.0.weight": torch.eye(4)}
    graph = tbscope.trace(lambda x: functional_call(base, given, (x,)), X)
    assert origins(graph) == {"out": {"x", "0.0.bias"}}


def test_a_parameter_made_of_what_was_computed_is_that():
    def run(x):
        layer = nn.Linear(4, 4)
        layer.weight = nn.Parameter(x.T @ x)
        return layer(x)

    graph = tbscope.trace(run, X)
    linear = next(node for node in graph.nodes if node.op == "linear")
    assert linear.inputs[1].producer.op == "matmul"


def test_parameter_is_as_it_was_after_a_trace():
    before = vars(nn.Parameter)["__new__"]
    during = []

    def run(x):
        during.append(vars(nn.Parameter)["__new__"])
        tbscope.trace(nn.ReLU(), x)
        return x + 1

    tbscope.trace(run, X)
    assert vars(nn.Parameter)["__new__"] is before
    assert isinstance(before, staticmethod)
    assert during[0] is not before
    assert "as_subclass" not in vars(torch.Tensor)


# -- subclasses ----------------------------------------------------------------------------------


def test_a_tensor_of_several_is_made_of_them_and_a_part_is_taken_out():
    graph = tbscope.trace(lambda x, y: (Two(x, y) * 2).b + 1, (X, X + 1))
    assert [op for op, _ in steps(graph)] == ["Two", "mul", "b", "add"]
    assert [value.producer.name for value in graph.nodes[2].inputs] == ["x", "y"]


def test_a_part_that_is_written_into_makes_the_whole_anew_and_one_that_is_read_does_not():
    def run(x, y, write):
        made = Two(x, x) * 2
        made.b.add_(y) if write else made.b + y
        return made * 2

    for write, times in ((True, 2), (False, 1)):
        graph = tbscope.trace(run, (X, X + 1, write))
        assert [op for op, _ in steps(graph)].count("Two") == times
        assert ("y" in origins(graph)["out"]) is write


def test_what_a_subclass_runs_to_tell_its_shape_is_no_part_of_the_model():
    graph = tbscope.trace(lambda x, y: Scaled(x, y) + 1, (X, X + 1))
    assert [op for op, _ in steps(graph)] == ["Scaled", "add"]


def test_what_an_object_that_is_no_tensor_does_with_a_function_is_watched():
    run = lambda x, y: nn.functional.linear(Like(x, y), torch.eye(4)).content
    assert [op for op, _ in steps(tbscope.trace(run, (X, X + 1)))] == ["eye", "mul", "linear"]


def test_attributes_of_a_subclass_without_a_say_in_what_runs_are_no_part_of_it():
    class Marked(torch.Tensor):
        pass

    def run(x, y):
        made = (x * 2).as_subclass(Marked)
        made.mark = y
        return made + 1

    assert origins(tbscope.trace(run, (X, X + 1))) == {"out": {"x"}}


def test_an_operation_that_carries_tangents_stays_whole():
    run = lambda x: jvp(lambda y: torch.nn.functional.linear(y, y), (x,), (x,))
    graph = tbscope.trace(run, X, kernels=True)
    (node,) = [node for node in graph.nodes if node.op == "linear"]
    assert (len(node.kernels) > 1, node.body.nodes) == (True, [])
    plain = tbscope.trace(lambda x: torch.nn.functional.linear(x, x), X, kernels=True)
    assert plain.nodes[1].body.nodes


@pytest.mark.parametrize(
    ("make", "operation", "reads"),
    [
        (
            lambda x, y, _: torch.nested.nested_tensor([x, y], layout=torch.jagged),
            "nested_tensor",
            2,
        ),
        (
            lambda x, y, _: torch.nested.as_nested_tensor([x, y], layout=torch.jagged),
            "nested_tensor",
            2,
        ),
        (
            lambda x, _, at: torch.nested.nested_tensor_from_jagged(x, at),
            "nested_tensor_from_jagged",
            2,
        ),
        (
            lambda x, y, at: torch.nested.narrow(
                torch.stack([x, y]), 1, at[:2], at[1:], layout=torch.jagged
            ),
            "narrow",
            3,
        ),
    ],
)
def test_a_jagged_tensor_is_made_by_one_operation_that_reads_what_it_is_made_of(
    make, operation, reads
):
    given = torch.rand(2, 3), torch.rand(2, 3), torch.tensor([0, 1, 2])
    graph = tbscope.trace(lambda *all_: make(*all_) * 2, given, kernels=True)
    (made,) = (node for node in graph.nodes if node.op == operation)
    assert len(made.inputs) == reads
    assert [node.op for node in graph.nodes[graph.nodes.index(made) :]] == [operation, "mul"]
    assert "meta" not in str(graph)
    again = tbscope.trace(lambda *all_: make(*all_) * 2, given, kernels=True)
    assert str(again) == str(graph)
