"""What a backward pass reads of what the forward pass has made, in bytes."""

import pytest
from build import GraphBuilder

from tbscope.analysis.costs import has_backward, saved_bytes

ROWS, BYTES = (4, 2), 32


class Step:
    """A forward operation, and one that its gradient is computed by, which reads `kept`."""

    def __init__(self, keep=lambda build, made: made, **backward):
        build = GraphBuilder("Net")
        x = build.input("x", ROWS)
        self.weight = build.parameter("weight", ROWS)
        self.made = build.op("tanh", x, self.weight, kernels=["aten::tanh"])
        kept = keep(build, self.made)
        fields = {"phase": "backward", "kernels": ["aten::tanh_backward"], **backward}
        self.gradient = build.op(fields.pop("op", "tanh_backward"), kept, **fields)
        self.build = build

    def saved(self):
        return {node.op: count for node, count in saved_bytes(self.build.graph).items()}


def test_what_a_gradient_reads_is_saved_by_who_made_it():
    step = Step()
    assert step.saved() == {"tanh": BYTES}
    assert has_backward(step.build.graph)


def test_a_view_is_counted_with_what_it_shows_and_once():
    def keep(build, made):
        view = build.op("t", made, kernels=["aten::t"], role="view")
        build.op("mul", made, view, phase="backward", kernels=["aten::mul"])
        return view

    assert Step(keep).saved() == {"tanh": BYTES}


def test_what_a_module_hands_on_is_counted_with_who_made_it():
    assert Step(lambda build, made: build.op("Identity", made)).saved() == {"tanh": BYTES}


def test_a_copy_is_saved_itself():
    keep = lambda build, made: build.op("clone", made, kernels=["aten::clone"])
    assert Step(keep).saved() == {"clone": BYTES}


def test_a_loss_at_which_a_pass_begins_is_not_saved():
    assert Step(op="ones_like").saved() == {}
    assert Step(op="zeros", role="maker").saved() == {}


def test_parameters_inputs_and_gradients_are_not_saved():
    assert Step(lambda build, made: build.graph.nodes[0].outputs[0]).saved() == {}
    step = Step()
    step.build.op("mul", step.gradient, step.weight, phase="backward", kernels=["aten::mul"])
    assert step.saved() == {"tanh": BYTES}


@pytest.mark.parametrize("shape", [(0, 2), (None, 2)])
def test_an_empty_tensor_and_one_of_unknown_size_add_no_bytes(shape):
    step = Step(lambda build, made: build.op("pick", made, shape=shape, kernels=["aten::pick"]))
    assert step.saved() == {"pick": 0}


def test_a_graph_without_a_pass_has_none():
    step = Step(phase="forward")
    assert not has_backward(step.build.graph)
    assert step.saved() == {}
