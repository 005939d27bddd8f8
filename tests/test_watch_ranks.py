"""`watch(ranks=...)`: one rank draws what several record of a step, and no training stops."""

import json
from pathlib import Path

import pytest
import torch
from once import made_once

import tbscope
from tests.rank_watching import Net
from tests.warm import run_warm

ROOT = Path(__file__).parents[1]
PROGRAMS = ("plain", "some", "again", "one_fails", "first_fails", "cannot_be_drawn")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Give what each rank told of each program."""
    return made_once(tmp_path_factory, "watch_ranks", run_programs)


def run_programs(_folder):
    done = run_warm("-m", "tests.rank_processes", "tests.rank_watching", *PROGRAMS, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def drawn(ranks):
    """Give which ranks each graph shows that the first rank has written; the others write none."""
    assert [one["parts"] for one in ranks[1:]] == [[], []]
    return ranks[0]["parts"]


@pytest.mark.parametrize(("name", "ranks"), [("plain", [0, 1, 2]), ("some", [0, 2])])
def test_the_first_rank_draws_what_all_recorded_of_the_step(told, name, ranks):
    assert drawn(told[name]) == [[ranks]]
    assert [one["drew"] for one in told[name]] == [True, False, False]
    assert [(one["over"], one["warned"]) for one in told[name]] == [(True, [])] * 3


def test_a_later_step_is_gathered_by_all_and_drawn_where_it_is_another_one(told):
    assert drawn(told["again"]) == [[[0, 1, 2]], [[0, 1, 2]]]
    first, second = told["again"][0]["notes"]
    assert second[0].startswith("before call 3 the structure changed: relu -> [2, 4] in Net")
    assert not any("changed" in note for note in first)
    assert [(one["over"], one["warned"]) for one in told["again"]] == [(False, [])] * 3


@pytest.mark.parametrize(
    ("name", "lost", "ranks"), [("one_fails", 1, [0, 2]), ("first_fails", 0, [1, 2])]
)
def test_a_rank_that_records_nothing_is_named_and_the_others_are_drawn(told, name, lost, ranks):
    assert drawn(told[name]) == [[ranks]]
    text = f"rank {lost} is not drawn: TraceError: ScopeError: pop_scope()"
    assert told[name][0]["notes"][0][0].startswith(text)
    assert told[name][0]["warned"][0].startswith(f"tbscope: {text}")
    assert [len(one["warned"]) for one in told[name]] == [1, int(lost == 1), 0]


def test_a_step_that_cannot_be_drawn_is_one_warning(told):
    assert drawn(told["cannot_be_drawn"]) == []
    (text,) = told["cannot_be_drawn"][0]["warned"]
    assert text.startswith("tbscope drew no step of Net: ArgumentError: the function given as col")
    assert [one["warned"] for one in told["cannot_be_drawn"][1:]] == [[], []]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_training_goes_on_as_without(told, name):
    for rank, one in enumerate(told[name]):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4 if name == "again" else 3):
            model.more = step >= 2
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (rank + 1)).sum().backward()
            optimizer.step()
        assert json.loads(one["weight"]) == model.layer.weight.tolist()


def test_a_run_of_one_process_draws_itself_and_what_cannot_be_is_refused(tmp_path):
    model = Net()
    with tbscope.SummaryWriter(tmp_path) as writer:
        watched = writer.watch(model, ranks="all", backward=False)
        model(torch.ones(2, 4))
        assert [part.ranks for part in watched.graph.parts] == [(0,)]
        for wrong in ({"ranks": "both"}, {"ranks": [1]}, {"ranks_timeout": 0}):
            with pytest.raises(tbscope.ArgumentError):
                writer.watch(model, **wrong)
        with pytest.raises(tbscope.ArgumentError) as caught:
            writer.watch(model, ranks="all", all_ranks=True)
    assert str(caught.value) == (
        "all_ranks=True is given with ranks='all'\n"
        "  why: all_ranks draws a graph in each rank, ranks= those of several in one rank\n"
        "  fix: leave one of the two out"
    )
    with pytest.raises(tbscope.WriterError):
        tbscope.watch(None, model, ranks="all")
