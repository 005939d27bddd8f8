"""Two recordings at once: each tells what it would tell alone."""

import threading

import pytest
import torch
from torch import nn

import tbscope

X = torch.ones(2, 3)


class Net(nn.Module):
    """A layer in a layer; it raises where it is told to, or gives its results one by one."""

    def __init__(self, *, fails=False):
        super().__init__()
        self.layer, self.fails = nn.Linear(3, 3), fails

    def forward(self, x):
        x = self.layer(x)
        if self.fails:
            raise ValueError("in the middle")
        return x.relu()


class OneByOne(nn.Module):
    """Gives its results one by one, each as somebody asks for it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(2):
            x = self.layer(x)
            yield x


def told(graph):
    """Give what a graph tells, with the lines in which its modules were called."""
    return str(graph), [(call.scope.path, str(call.source)) for call in graph.calls]


def recorded(model, run, *, count):
    """Run something in so many recordings at once; give the graph of each."""
    if count == 0:
        run(model)
        return []
    with tbscope.record(model) as recording:
        others = recorded(model, run, count=count - 1)
    return [recording.graph, *others]


def run_all(model):
    assert len(list(model(X))) == 2


def run_failing(model):
    with pytest.raises(ValueError, match="in the middle"):
        model(X)
    X + 1


@pytest.mark.parametrize(
    ("make", "run"),
    [(Net, run_all), (OneByOne, run_all), (lambda: Net(fails=True), run_failing)],
    ids=["returns", "gives one by one", "fails"],
)
def test_two_recordings_at_once_tell_of_modules_what_one_alone_tells(make, run):
    model = make()
    (alone,) = map(told, recorded(model, run, count=1))
    assert "Linear" in str(alone)
    assert [told(graph) for graph in recorded(model, run, count=2)] == [alone, alone]


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_thread_calls_when_the_recording_is_over_is_none_of_it(count):
    begun, over, threads = threading.Event(), threading.Event(), []

    def work(model):
        model(X)
        begun.set()
        over.wait()
        model(X)

    def run(model):
        threads.append(threading.Thread(target=work, args=(model,)))
        threads[0].start()
        begun.wait()

    model = Net()
    graphs = recorded(model, run, count=count)
    before = [told(graph) for graph in graphs]
    over.set()
    threads[0].join()
    assert [told(graph) for graph in graphs] == before
    assert [len(graph.calls) for graph in graphs] == [2] * count
