"""A backend that takes down what another one compiles, and the tags under which it is drawn."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements
from tests.compiled_models import Linear, Prints

pytestmark = pytest.mark.filterwarnings("ignore")

X = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_backend_hands_on_to_another_one_and_takes_down_its_graphs():
    model, handed_on = Linear(), []

    def own(module, inputs):
        handed_on.append(len(inputs))
        return lambda *args: [each * 0 for each in module(*args)]

    backend = tbscope.compile_backend(own)
    given = torch.compile(model, backend=backend)(X)

    assert handed_on == [4]
    assert torch.equal(given, torch.zeros(2, 4))
    graph = backend.graphs.overview
    check_whole(graph)
    assert disagreements(tbscope.trace(model, X), graph) == {}
    assert [node.name for node in graph.inputs] == ["x"]
    assert list(backend.graphs) == ["0 Linear.forward"]


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_a_backend_of_a_name_trains_as_it_does_alone(name):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    alone = torch.compile(model, backend=name)(X)

    backend = tbscope.compile_backend(name)
    compiled = torch.compile(model, backend=backend)
    given = compiled(X)
    given.sum().backward()

    assert torch.allclose(given, alone)
    assert model[0].weight.grad is not None
    assert list(backend.graphs) == ["0 Sequential.forward"]


def test_graphs_come_as_the_model_meets_new_sizes_with_the_guard_that_failed():
    backend = tbscope.compile_backend("eager")
    compiled = torch.compile(Linear(), backend=backend)
    compiled(X)
    assert len(backend.graphs) == 1

    compiled(torch.ones(3, 4))
    compiled(torch.ones(5, 4))

    _, again = backend.graphs
    assert backend.graphs.recompiled == {
        again: "tensor 'x' size mismatch at index 0. expected 2, actual 3"
    }
    assert backend.graphs[again].inputs[0].outputs[0].shape == (None, 4)
    assert any("it ran 2 times" in note.text for note in backend.graphs[again].notes)
    overview = backend.graphs.overview
    check_whole(overview)
    assert [node.name for node in overview.inputs] == ["x", "x~2"]
    assert [each.name for each in overview.outputs] == ["0.out.0", "1.out.0"]


def test_breaks_are_taken_down_without_those_of_other_models():
    backend = tbscope.compile_backend("eager")
    compiled = torch.compile(Prints(), backend=backend)

    torch.compile(Prints(), backend="eager")(X)
    compiled(X)

    (gap,) = backend.graphs.breaks
    assert (gap.after, gap.source.line) == (1, Prints.forward.__code__.co_firstlineno + 2)
    check_whole(backend.graphs.overview)


def test_a_backend_that_has_seen_nothing_says_so():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.compile_backend("eager").graphs  # noqa: B018

    assert str(caught.value) == (
        "the backend has captured no graph yet\n"
        "  why: torch.compile calls it when the model first runs\n"
        "  fix: call the compiled model once before, as compiled(x)"
    )


def test_a_backend_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.compile_backend("inductr")

    what, why, fix = str(caught.value).split("\n")
    assert what == "compile_backend was given 'inductr', which is no backend"
    assert why.startswith("  why: torch knows ")
    assert "inductor" in why
    assert fix == "  fix: tbscope.compile_backend('inductor')"


# -- tags ------------------------------------------------------------------------------------


def tags_of(log_dir):
    return EventAccumulator(str(log_dir)).Reload().Tags()["tensors"]


@pytest.mark.parametrize("tag", [None, "broken"])
def test_each_graph_is_written_under_a_tag_of_its_own(tmp_path, tag):
    graphs = tbscope.compile_graphs(Prints(), X)

    with tbscope.SummaryWriter(tmp_path) as writer:
        drawn = writer.add_graph(graphs, tag=tag)

    assert drawn is graphs.overview
    own = tag or "compiled"
    assert [each.strip() for each in tags_of(tmp_path)] == [
        own,
        *(f"{own}/{title}" for title in graphs),
    ]
    assert tbscope.load(graphs) is graphs.overview


def test_options_hold_for_each_graph_and_a_bad_one_leaves_nothing_behind(tmp_path):
    graphs = tbscope.compile_graphs(Linear(), X)

    with tbscope.SummaryWriter(tmp_path) as writer:
        with pytest.raises(tbscope.ArgumentError, match="is given with the graph"):
            writer.add_graph(graphs, X)
        with pytest.raises(tbscope.ArgumentError, match="level"):
            writer.add_graph(graphs, level="none")
        assert tags_of(tmp_path) == []
        writer.add_graph(graphs, level="module", step=3)

    log = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for tag in log.Tags()["tensors"] for event in log.Tensors(tag)] == [3, 3]
