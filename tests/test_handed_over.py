"""Work that a model hands over to other threads: it is drawn as if the model had done it."""

import asyncio
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool

import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.eager.thread_state import watching

X = torch.ones(2, 3)
OPTIONS = [{}, {"fake": True}, {"kernels": True}, {"grad": True}, {"profile": 1}]


class Slow(nn.Module):
    """Waits, the first ones longest, so that what is handed over last is done first."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        time.sleep(0.004 * float(self.linear.bias.shape[0] - self.turn))
        return self.linear(x).relu()

    turn = 0


class Handing(nn.Module):
    """Hands its two branches over in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.first, self.second = Slow(), Slow()
        self.second.turn = 2
        self.way = way

    def forward(self, x):
        one, other = self.way([self.first, self.second], x)
        return one + other


def by_submit(branches, x):
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(branch, x) for branch in branches]]


def by_map(branches, x):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda branch: branch(x), branches))


def by_threads(branches, x):
    found = {}
    threads = [
        threading.Thread(target=lambda branch=branch: found.update({branch: branch(x)}))
        for branch in branches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[branch] for branch in branches]


def by_a_class_of_threads(branches, x):
    class Worker(threading.Thread):
        def run(self):
            self.found = self.branch(x)

    workers = [Worker() for _ in branches]
    for worker, branch in zip(workers, branches, strict=True):
        worker.branch = branch
        worker.start()
    for worker in workers:
        worker.join()
    return [worker.found for worker in workers]


def by_a_pool_of_processes_that_are_threads(branches, x):
    with ThreadPool(2) as pool:
        return pool.map(lambda branch: branch(x), branches)


def by_starmap(branches, x):
    with ThreadPool(2) as pool:
        return pool.starmap(lambda branch, x: branch(x), [(branch, x) for branch in branches])


def by_imap(branches, x):
    with ThreadPool(2) as pool:
        return list(pool.imap(lambda branch: branch(x), branches))


def by_apply(branches, x):
    with ThreadPool(2) as pool:
        return [given.get() for given in [pool.apply_async(branch, (x,)) for branch in branches]]


def by_fork(branches, x):
    return [torch.jit.wait(future) for future in [torch.jit.fork(one, x) for one in branches]]


def by_futures_of_torch(branches, x):
    first = torch.futures.Future()
    first.set_result(branches[0](x))
    return first.wait(), first.then(lambda _: branches[1](x)).wait()


def by_a_loop(branches, x):
    async def both():
        return await asyncio.gather(*[asyncio.to_thread(branch, x) for branch in branches])

    return asyncio.run(both())


WAYS = [
    by_fork,
    by_futures_of_torch,
    by_a_loop,
    by_submit,
    by_map,
    by_threads,
    by_a_class_of_threads,
    by_a_pool_of_processes_that_are_threads,
    by_starmap,
    by_imap,
    by_apply,
]

ONE, OTHER = "Handing/Slow[first]", "Handing/Slow[second]"
EDGES = {
    f"linear in {ONE}/Linear[linear]": ["x", "first.linear.weight", "first.linear.bias"],
    f"relu in {ONE}": [f"linear in {ONE}/Linear[linear]"],
    f"linear in {OTHER}/Linear[linear]": ["x", "second.linear.weight", "second.linear.bias"],
    f"relu in {OTHER}": [f"linear in {OTHER}/Linear[linear]"],
    "add in Handing": [f"relu in {ONE}", f"relu in {OTHER}"],
}


def edges(graph):
    """Give what each operation reads, in whatever order they ran."""
    names = {
        node: f"{node.op} in {node.scope}" if node.kind == "op" else node.name
        for node in graph.nodes
    }
    return {
        name: [names[value.producer] for value in node.inputs]
        for node, name in names.items()
        if node.kind == "op"
    }


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_work_of_other_threads_stands_where_it_was_handed_over(way, options):
    graph = tbscope.trace(Handing(way), X, **options)
    graph.verify()
    assert edges(graph) == EDGES
    assert sum(node.kind == "op" for node in graph.nodes) == len(EDGES)
    assert sorted(call.scope.path for call in graph.calls) == [
        "Handing",
        *(path for slow in (ONE, OTHER) for path in (slow, f"{slow}/Linear[linear]")),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_what_threads_do_is_in_the_graph_def(way):
    drawn = tbscope.to_graph_def(tbscope.trace(Handing(way), X))
    nodes = {node.name: list(node.input) for node in drawn.node if "__" not in node.name}
    assert nodes["first/linear"][0] == nodes["second/linear"][0] == "x"
    assert nodes["add"] == ["first/relu", "second/relu"]
    assert nodes["out"] == ["add"]


def test_each_call_of_a_module_that_threads_call_at_once_has_a_box_of_its_own():
    def way(branches, x):
        def last_is_first(x, turn):
            time.sleep(0.01 * (2 - turn))
            return branches[0](x * 2)

        with ThreadPoolExecutor(3) as pool:
            given = list(pool.map(last_is_first, [x, x + 1, x + 2], range(3)))
        return given[0] + given[1], given[2]

    graph = tbscope.trace(Handing(way), X)
    graph.verify()
    linears = [node for node in graph.nodes if node.op == "linear"]
    assert sorted(node.scope.parent.part.index for node in linears) == [0, 1, 2]
    assert len({node.scope for node in linears}) == 3
    doubled = [node.inputs[0].producer for node in linears]
    assert [node.op for node in doubled] == ["mul"] * 3
    read = [node.inputs[0].producer.op for node in doubled]
    assert sorted(read) == ["add", "add", "input"]
    # The first box, of whichever call came first, has the parameters.
    weight = next(node for node in graph.nodes if node.name == "first.linear.weight")
    (first,) = (node.scope for node in linears if node.scope.parent.part.index == 0)
    assert weight.scope is first
    results = [node.op for node in graph.nodes if node.op == "relu"]
    assert len(results) == 3


def test_a_worker_that_is_fed_by_a_queue_is_drawn():
    def fed(x):
        given, found = queue.Queue(), queue.Queue()

        def work():
            while (task := given.get()) is not None:
                found.put(task * 2)

        thread = threading.Thread(target=work)
        thread.start()
        given.put(x + 1)
        given.put(None)
        thread.join()
        return found.get() - 3

    graph = tbscope.trace(fed, X)
    assert [node.op for node in graph.nodes] == ["input", "add", "mul", "sub"]
    assert graph.nodes[2].inputs == graph.nodes[1].outputs
    assert graph.nodes[3].inputs == graph.nodes[2].outputs


def test_a_thread_that_goes_on_after_the_call_has_a_note():
    begin, end, threads = threading.Event(), threading.Event(), []

    def leaving(x):
        def work():
            torch.relu(x)
            begin.set()
            end.wait()
            torch.tanh(x)

        threads.append(threading.Thread(target=work, name="late"))
        threads[0].start()
        begin.wait()
        return x + 1

    graph = tbscope.trace(leaving, X)
    end.set()
    threads[0].join()
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["relu", "add"]
    assert "aten::tanh" not in graph.uncounted
    assert graph.notes[0].text == (
        "the thread 'late' had not done its work when the call was over: "
        "what it did after is not in the graph"
    )
    assert str(graph.notes[0].source).endswith(" in leaving")


def test_an_error_in_another_thread_tells_where_it_arose():
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.trace(Handing(by_submit), torch.ones(2, 4))
    assert "in Handing/Slow[first]/Linear[linear]" in str(raised.value)


def in_threads(work, depth):
    """Run work in a thread of a thread, and so on."""
    if depth == 0:
        work()
    else:
        thread = threading.Thread(target=in_threads, args=(work, depth - 1))
        thread.start()
        thread.join()


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_thread_of_the_model_switches_and_writes_is_as_before(depth):
    def switching(branches, x):
        def work():
            branches[0].eval()
            branches[0].linear.bias.data.add_(1)

        in_threads(work, depth)
        return branches[0](x), x

    model = Handing(switching)
    bias = model.first.linear.bias.detach().clone()
    tbscope.trace(model, X, training=True)
    assert all(module.training for module in model.modules())
    assert torch.equal(model.first.linear.bias, bias)


def test_what_a_thread_makes_of_itself_is_as_fake_as_the_rest():
    kinds = []

    def way(branches, x):
        with ThreadPoolExecutor(1) as pool:
            kinds.append(pool.submit(lambda: type(torch.ones(1)).__name__).result())
        return x, x

    tbscope.trace(Handing(way), X, fake=True)
    assert kinds == ["FakeTensor"]


def test_work_that_a_trace_amid_a_recording_hands_over_is_no_part_of_the_recording():
    model = Handing(by_submit)
    with tbscope.record() as recording:
        X.sin()
        graph = tbscope.trace(model, X)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(torch.cos, X).result()
    assert [node.op for node in graph.nodes if node.kind == "op"].count("relu") == 2
    assert [node.op for node in recording.graph.nodes if node.kind == "op"] == ["sin", "cos"]


def test_threads_and_pools_are_as_before():
    start, submit, mapped = threading.Thread.start, ThreadPoolExecutor.submit, ThreadPool.imap
    tbscope.trace(Handing(by_threads), X)
    assert threading.Thread.start is start
    assert ThreadPoolExecutor.submit is submit
    assert ThreadPool.imap is mapped


def test_a_thread_that_was_started_has_nothing_of_ours():
    threads = []

    def starting(x):
        threads.append(threading.Thread(target=partial(torch.relu, x)))
        threads[0].start()
        threads[0].join()
        return x + 1

    graph = tbscope.trace(starting, X)
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["relu", "add"]
    assert "run" not in vars(threads[0])


def test_a_worker_that_was_there_before_is_as_it_was_when_its_work_is_done():
    model, seen = nn.Linear(3, 3), []

    def work(x):
        seen.append(len(watching.recorders))
        return model(x)

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(lambda: dict(vars(watching))).result()
        tbscope.trace(lambda x: pool.submit(work, x).result(), X)
        assert seen == [1]
        assert pool.submit(lambda: dict(vars(watching))).result() == before


def test_the_line_that_hands_work_over_is_that_of_its_operations():
    def model(x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(torch.relu, x).result()

    (node,) = [node for node in tbscope.trace(model, X).nodes if node.op == "relu"]
    line = model.__code__.co_firstlineno + 2
    assert (node.source.line, node.source.function) == (line, "model")


def test_a_thread_that_runs_a_method_of_a_tensor_is_watched():
    with tbscope.record() as recording:
        # It is written in C, and has no module.
        thread = threading.Thread(target=X.relu)
        thread.start()
        thread.join()
    assert [node.op for node in recording.graph.nodes if node.kind == "op"] == ["relu"]


def test_a_thread_of_a_pool_is_watched_no_longer_than_its_work():
    with ThreadPoolExecutor(1) as pool:
        # The thread is there before the run.
        pool.submit(int).result()
        tbscope.trace(lambda x: pool.submit(torch.neg, x).result(), X)
        assert pool.submit(lambda: dict(vars(watching))).result() == {}


class Shifting(nn.Module):
    """Adds a tensor of its own in another thread."""

    def __init__(self):
        super().__init__()
        self.shift = torch.ones(3)

    def forward(self, x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: x + self.shift).result()


def test_a_tensor_that_the_thread_of_a_running_module_finds_is_no_input():
    model = Shifting()
    with tbscope.record(model) as recording:
        model(X)
    assert [node.name for node in recording.graph.inputs] == ["x"]
    assert [node.name for node in recording.graph.nodes if node.kind == "constant"] != []
