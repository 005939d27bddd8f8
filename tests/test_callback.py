"""What a callback is asked for, and how it is written: no library that trains is needed."""

import pytest
from build import chain
from cli_runs import graphs_in, tags_in
from test_lightning_callback import told_while

from tbscope import ArgumentError, SummaryWriter
from tbscope.integrations.callback import DrawingCallback


def order(logdir=None, **asked):
    return DrawingCallback(logdir, **{"overlays": (), **asked})


def test_a_graph_and_its_overlays_are_written_to_the_run_that_is_named(tmp_path):
    asked = order(str(tmp_path), run_name="train", tag="step", overlays=["parameters"])
    asked._write(chain(2), list)
    assert [one.name for one in tmp_path.iterdir() if one.is_dir()] == ["train"]
    assert tags_in(tmp_path / "train") == {"step", "step/parameters"}
    order(str(tmp_path / "other"), overlays=["parameters"])._write(chain(2), list)
    assert tags_in(tmp_path / "other") == {"__run_graph__", "parameters"}


def test_the_graph_is_drawn_as_it_is_asked_for(tmp_path):
    drawing = {"style": "torch", "leaves": "box"}
    asked = order(str(tmp_path), overlays=["parameters"], **drawing)
    assert told_while(lambda: asked._write(chain(12), list)) == []
    (graph,) = graphs_in(tmp_path)
    assert any("Linear[0]" in node.name for node in graph.node)
    assert "parameters" in tags_in(tmp_path)


def test_the_writer_is_the_first_that_takes_events(tmp_path):
    with SummaryWriter(tmp_path / "a") as first, SummaryWriter(tmp_path / "b") as second:
        order()._write(chain(2), lambda: [3, first, second])
    assert (len(graphs_in(tmp_path / "a")), graphs_in(tmp_path / "b")) == (1, [])


def test_what_fails_is_one_warning_and_no_error():
    (told,) = told_while(lambda: order()._write(chain(2), lambda: [3, None]))
    assert told.startswith("tbscope drew no training step: ")
    assert "the trainer has no writer of TensorBoard's" in told


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"tag": ""}, "a graph cannot have the tag ''"),
        ({"run_name": ".."}, "a run below the writer's own cannot be called '..'"),
        ({"backward": 1}, "backward"),
        ({"overlays": "flops"}, "overlays='flops' names other overlays than are built in"),
        ({"overlays": ["flops", "no"]}, "overlays=['flops', 'no'] names other overlays"),
        ({"style": "no"}, "'no'"),
    ],
)
def test_what_is_none_is_refused_when_the_callback_is_made(asked, told):
    with pytest.raises(ArgumentError) as refused:
        DrawingCallback(**asked)
    assert told in str(refused.value)


def test_a_callback_draws_all_of_a_step_with_flops_and_parameters_unless_it_is_told():
    plain, other = DrawingCallback(), DrawingCallback("runs", backward=False)
    assert (plain._logdir, plain._backward) == (None, True)
    assert plain._overlays == ("flops", "parameters")
    assert (other._logdir, other._backward) == ("runs", False)
    assert DrawingCallback().graph is None
