"""Two recordings at once: each tells what it would tell alone."""

import asyncio
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.eager.thread_state import abandoned, watching
from tbscope.sources.torch.compat.tensors import dispatch_modes

X = torch.ones(2, 3)
CALL = torch.nn.Module.__call__


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
def test_a_model_that_is_drawn_meanwhile_is_none_of_them(count):
    model, drawn = Net(), OneByOne()

    def run(model):
        model(X)
        tbscope.trace(drawn, X)

    alone = recorded(model, lambda model: model(X), count=count)
    assert [*map(str, recorded(model, run, count=count))] == [*map(str, alone)]


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


# -- left elsewhere, or not in their turn ------------------------------------------------------


class Worker:
    """A thread that does what it is asked to, one thing after another."""

    def __init__(self):
        self._pool = ThreadPoolExecutor(1, "entering")

    def __call__(self, function, *args):
        return self._pool.submit(function, *args).result()

    def end(self):
        self._pool.shutdown()


@pytest.fixture
def entering():
    worker = Worker()
    yield worker
    worker.end()
    # What has gone with the thread goes from the process with the next call anywhere.
    Net()(X)
    assert not abandoned
    assert torch.nn.Module.__call__ is CALL


def traces():
    """Give what watching leaves in this thread and in the process."""
    return (
        torch.nn.Module.__call__,
        torch.autograd._engine_run_backward,
        torch.overrides._len_torch_function_stack(),
        len(dispatch_modes()),
        watching.recorders,
        torch.compile,
        sys.getrecursionlimit(),
        gc.get_threshold(),
        threading.Thread.start,
        abandoned[:],
    )


def draws(net):
    """Tell whether a model runs, and is recorded, traced and watched as ever."""
    net(X).sum().backward()
    with tbscope.record(net) as recording:
        net(X)
    ops = [node.op for node in recording.graph.nodes if node.kind == "op"]
    traced = [node.op for node in tbscope.trace(net, X).nodes if node.kind == "op"]
    return ops == traced == ["linear", "relu"]


@pytest.mark.parametrize("backward", [True, False])
def test_a_recording_that_is_left_in_another_thread_is_refused_and_leaves_nothing(
    entering, backward
):
    net = Net()
    before = traces(), entering(traces)
    recording = tbscope.record(net, backward=backward)
    entering(recording.__enter__)
    entering(net, X)
    with pytest.raises(tbscope.ScopeError) as refused:
        recording.__exit__(None, None, None)
    told = str(refused.value)
    assert f"thread {threading.current_thread().name!r}, and was entered in" in told
    assert "the thread 'entering_0'" in told
    assert "(/" in told
    net(X)
    # The other thread ends its part at its next step.
    entering(net, X)
    assert (traces(), entering(traces)) == before
    assert draws(net)
    assert entering(draws, net)
    with pytest.raises(tbscope.TraceError, match="no graph yet"):
        _ = recording.graph
    with pytest.raises(tbscope.ScopeError, match="this recording is over"):
        entering(recording.__exit__, None, None, None)
    assert (traces(), entering(traces)) == before


def test_a_recording_that_is_left_when_its_thread_has_ended_is_refused_and_leaves_nothing():
    net, before = Net(), traces()
    recording = tbscope.record(net)
    thread = threading.Thread(target=recording.__enter__, name="gone")
    thread.start()
    thread.join()
    with pytest.raises(tbscope.ScopeError, match="entered in the thread 'gone'"):
        recording.__exit__(None, None, None)
    assert traces() == before
    assert draws(net)


def test_a_recording_that_another_thread_leaves_spares_the_one_that_watches_there(entering):
    net = Net()
    recording = tbscope.record(net)
    entering(recording.__enter__)
    with tbscope.record(net) as own:
        with pytest.raises(tbscope.ScopeError):
            recording.__exit__(None, None, None)
        net(X)
    assert [node.op for node in own.graph.nodes if node.kind == "op"] == ["linear", "relu"]


def test_the_error_of_a_region_that_ends_in_another_thread_goes_on_with_a_note(entering):
    recording = tbscope.record(Net())
    entering(recording.__enter__)
    error = ValueError("the user's own")
    assert not recording.__exit__(ValueError, error, None)
    assert "was entered in the thread" in error.__notes__[0]


def test_a_recording_that_is_left_while_its_thread_draws_stays_ended(entering):
    net, half, end = Net(), threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x):
            half.set()
            end.wait()
            return x + 1

    def work():
        tbscope.trace(Waits(), X)
        net(X)
        # The draw puts back the limit of recursion, as it found it.
        return traces()[:6]

    before = entering(traces)[:6]
    recording = tbscope.record(net)
    entering(recording.__enter__)
    with ThreadPoolExecutor(1) as pool:
        worked = pool.submit(entering, work)
        half.wait()
        with pytest.raises(tbscope.ScopeError):
            recording.__exit__(None, None, None)
        end.set()
        assert worked.result() == before


def test_recordings_end_in_the_reverse_order_in_which_they_began():
    net, before = Net(), traces()
    outer, inner = tbscope.record(net), tbscope.record(net)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(tbscope.ScopeError, match="a recording is left in the thread"):
        outer.__exit__(None, None, None)
    net(X)
    inner.__exit__(None, None, None)
    assert [node.op for node in inner.graph.nodes if node.kind == "op"] == ["linear", "relu"]
    assert traces() == before
    assert draws(net)


def test_a_recording_ends_once():
    recording = tbscope.record()
    with pytest.raises(tbscope.ScopeError, match="was not entered"):
        recording.__exit__(None, None, None)
    with recording:
        y = X + 1
    with pytest.raises(tbscope.ScopeError, match="this recording is over"):
        recording.__exit__(None, None, None)
    assert [output.value.shape for output in recording.graph.outputs] == [y.shape]


def test_a_recording_that_nothing_leaves_ends_with_the_last_reference_to_it():
    net, before = Net(), traces()
    recording = tbscope.record(net)
    recording.__enter__()
    net(X)
    del recording
    gc.collect()
    net(X)
    assert traces() == before
    assert draws(net)


def test_a_region_of_a_task_that_ends_amid_that_of_another_is_refused():
    async def both():
        second, over = asyncio.Event(), asyncio.Event()
        found = []

        async def outer():
            recording = tbscope.record(Net())
            recording.__enter__()
            second.set()
            await asyncio.sleep(0)
            with pytest.raises(tbscope.ScopeError, match="a recording is left in the thread"):
                recording.__exit__(None, None, None)
            over.set()

        async def inner():
            await second.wait()
            with tbscope.record(Net()) as recording:
                await over.wait()
            found.append(recording.graph)

        await asyncio.gather(outer(), inner())
        return found

    before = traces()
    assert len(asyncio.run(both())) == 1
    assert traces() == before
