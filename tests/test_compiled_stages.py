"""The stages behind the capture: forward, backward and joint graphs, and Inductor's kernels."""

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements, leaf_edges, parameters_read
from tests.compiled_models import Linear, Prints
from tests.program_models import example

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(2, 4)


def stages(model, *args, stage, **options):
    """Give the graphs of one captured graph, by stage."""
    graphs = tbscope.compile_graphs(model, *args, stage=stage, **options)
    return {title.partition(", ")[2]: graph for title, graph in graphs.items()}


def kernels(graph):
    """Give the boxes of a graph that are kernels, with the operations in each."""
    found = {}
    for node in graph.nodes:
        scope = node.scope
        while scope is not None and scope.kind != "hand":
            scope = scope.parent
        if node.kind == "op":
            found.setdefault(scope and scope.part.label, []).append(node.op)
    return found


@pytest.mark.parametrize("name", ["resnet", "called twice", "tied weights", "attention", "unet"])
def test_the_forward_stage_tells_what_an_eager_call_tells(name):
    model, args, kwargs, eager = example(name)

    graph = stages(model, *args, stage="forward", training=None, **kwargs)["forward"]

    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    assert [each.name for each in graph.outputs] == [each.name for each in eager.outputs]


def test_each_stage_stands_for_itself_and_the_capture_only_where_it_is_asked_for():
    asked = ("forward", "backward", "dynamo", "joint", "inductor")

    found = stages(Linear(), X, stage=asked)

    behind = {"joint", "forward", "backward", "inductor", "inductor backward"}
    assert next(iter(found)) == ""
    assert set(found) == {"", *behind}
    for graph in found.values():
        check_whole(graph)
    assert list(stages(Linear(), X, stage="forward")) == ["forward"]


def test_the_joint_graph_gives_results_and_gradients_by_name():
    joint = stages(Linear(), X, stage="joint")["joint"]

    outputs = {each.name: each.value for each in joint.outputs}
    assert list(outputs) == ["out", "gradient.fc.weight", "gradient.fc.bias"]
    assert outputs["gradient.fc.weight"].shape == (4, 4)
    assert outputs["out"].producer.phase == "forward"
    assert outputs["gradient.fc.weight"].producer.phase == "backward"
    assert [node.name for node in joint.inputs] == ["x", "gradient.out.0"]
    backward = {node.scope.path for node in joint.nodes if node.phase == "backward"}
    assert backward == {"Linear/backward", "Linear/backward/Linear[fc]"}


def test_the_backward_graph_takes_what_the_forward_graph_saves():
    found = stages(Linear(), X, stage=("forward", "backward"))

    saved = {each.name for each in found["forward"].outputs} - {"out"}
    taken = {node.name for node in found["backward"].inputs}
    assert saved
    assert all(each.startswith("saved.") for each in saved)
    # What is an input of the model has its own name in the backward graph.
    assert {each.removeprefix("saved.") for each in saved} <= {
        each.removeprefix("saved.") for each in taken
    }
    assert [each.name for each in found["backward"].outputs] == [
        "gradient.fc.weight",
        "gradient.fc.bias",
    ]


class Twice(nn.Module):
    """Reads what it is given twice, and computes a GELU, which the backward pass does again."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.both = Both()
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x)
        return self.last(self.both(nn.functional.gelu(y))) + y.sum()


class Both(nn.Module):
    def forward(self, x):
        one, two = x.chunk(2, -1)
        return (one * two).softmax(-1) * one


@pytest.mark.parametrize("stage", ["joint", "backward"])
def test_the_sum_of_gradients_stands_in_what_is_around_all_that_give_them(stage):
    graph = stages(Twice(), X[None], stage=stage)[stage]

    check_whole(graph)
    sums = [node for node in graph.nodes if node.op == "add" and node.phase == "backward"]
    assert [node.scope.path for node in sums] == [
        "Twice/backward/Both[both]",
        # That of what two modules give.
        "Twice/backward",
    ]


def test_what_the_backward_pass_computes_again_stands_beside_it_with_the_tensors():
    graph = stages(Twice(), X[None], stage="backward")["backward"]

    places = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert (places["gelu"], places["split"]) == ("Twice", "Twice/Both[both]")
    assert (places["gelu_backward"], places["cat"]) == (
        "Twice/backward",
        "Twice/backward/Both[both]",
    )
    held = {node.scope.path for node in graph.nodes if node.kind == "parameter"}
    assert held == {"Twice/Linear[last]"}
    alone = stages(nn.Sequential(nn.Linear(4, 4)), X, stage="backward")["backward"]
    assert {call.scope.path for call in alone.calls} == {"Sequential", "Sequential/Linear[0]"}


class Picks(nn.Module):
    def forward(self, x):
        return x.select(1, 0) * x.select(1, 1) * x.select(1, 2)


def test_what_a_pass_of_the_compiler_makes_stands_with_what_it_is_made_of():
    model = nn.Sequential(nn.Linear(4, 4), Picks())
    graph = stages(model, X, stage="inductor", grad=True)["inductor backward"]

    check_whole(graph)
    made = [node for node in graph.nodes if node.op == "select_scatter"]
    assert {(node.phase, node.scope.part.label) for node in made} == {("backward", "Picks")}


def test_a_buffer_that_the_model_writes_into_is_written_in_the_forward_stage():
    graph = stages(nn.BatchNorm1d(4), X, stage="forward", training=True)["forward"]

    written = {node.inputs[place].producer.name for node in graph.nodes for place in node.writes}
    assert written == {"running_mean", "running_var", "num_batches_tracked"}


def test_broken_models_have_the_stages_of_each_graph():
    graphs = tbscope.compile_graphs(Prints(), X, stage=("forward", "backward"))

    assert [title.rpartition(", ")[2] for title in graphs] == ["forward", "backward"] * 2
    assert [title[0] for title in graphs] == ["0", "0", "1", "1"]


def test_a_stage_with_gradients_needs_some():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.compile_graphs(torch.sin, X, stage="backward")

    assert str(caught.value) == (
        "sin has no graph of the stage backward\n"
        "  why: nothing that its graphs give has a gradient\n"
        "  fix: give a model with parameters that require one, and not grad=False; or "
        "stage='forward'"
    )


# -- kernels ---------------------------------------------------------------------------------


def test_kernels_are_boxes_with_the_operations_that_they_compute():
    graph = stages(Linear(), X, stage="inductor")["inductor"]

    check_whole(graph)
    found = kernels(graph)
    fused = next(label for label in found if label.startswith("fused"))
    library = next(label for label in found if label.startswith("library"))
    assert set(found[fused]) == {"relu", "add"}
    assert "addmm" in found[library]
    assert all(part in fused for part in ("add", "relu"))
    modules = {call.scope.path: call.scope.parent.part.label for call in graph.calls[1:]}
    assert modules == {f"Linear/{library}/Linear[fc]": library}


def test_a_model_with_kernels_reads_the_parameters_and_flows_as_before():
    model, args, kwargs, eager = example("attention")

    graph = stages(model, *args, stage="inductor", training=None, **kwargs)["inductor"]

    check_whole(graph)
    read = parameters_read(graph)
    assert set().union(*read.values()) == set().union(*parameters_read(eager).values())
    norm, query = "Attention/LayerNorm[norm]", "Attention/Linear[query]"
    assert (norm, query) in leaf_edges(graph, graph)
    assert len(kernels(graph)) > 3


def test_what_two_kernels_compute_stands_in_the_first_and_tells_of_the_other():
    def model(x):
        y = x.sin() + 1
        return y.sum(0), torch.softmax(y.cos(), 1)

    graph = tbscope.compile_graphs(model, torch.ones(64, 64), stage="inductor")
    (found,) = graph.values()

    shared = [node for node in found.nodes if "also_in" in node.attributes]
    labels = {label for label in kernels(found) if label}
    for node in shared:
        assert set(node.attributes["also_in"].split(", ")) <= labels
    assert shared
    check_whole(found)


def test_kernels_of_the_backward_pass_are_told_too():
    found = stages(Linear(), X, stage="inductor", grad=True)

    backward = found["inductor backward"]
    check_whole(backward)
    assert {node.phase for node in backward.nodes if node.kind == "op"} == {"backward"}
    assert any(label and label.startswith("fused") for label in kernels(backward))
    assert {node.phase for node in found["inductor"].nodes} == {"forward"}
