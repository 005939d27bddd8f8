"""Results that compute only when they are asked: iterators and coroutines."""

import asyncio
import itertools

import pytest
import torch
from torch import nn

import tbscope

X = torch.ones(2, 3)


class Awaited(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    async def forward(self, x):
        await asyncio.sleep(0)
        return self.linear(x).relu()


class Yielding(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        yield y
        yield y.relu()


class Streaming(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    async def forward(self, x):
        y = self.linear(x)
        yield y
        await asyncio.sleep(0)
        yield y.relu()


class Two(nn.Module):
    """Uses two parts of one kind in turns."""

    def __init__(self, part, use):
        super().__init__()
        self.one, self.two, self.use = part(), part(), use

    def forward(self, x):
        return self.use(self.one(x), self.two(x))


def gathered(one, two):
    async def both():
        return await asyncio.gather(one, two)

    return sum(asyncio.run(both()))


def streamed(one, two):
    async def entries(stream):
        return [entry async for entry in stream]

    async def both():
        return await asyncio.gather(entries(one), entries(two))

    return sum(itertools.chain(*asyncio.run(both())))


def zipped(one, two):
    return sum(a * b for a, b in zip(one, two, strict=True))


def ops(graph):
    return [(node.op, str(node.scope)) for node in graph.nodes if node.kind == "op"]


def drawn(graph):
    return {node.name: list(node.input) for node in tbscope.to_graph_def(graph).node}


@pytest.mark.parametrize(
    ("part", "use"),
    [(Awaited, gathered), (Yielding, zipped), (Streaming, streamed)],
    ids=["coroutine", "generator", "stream"],
)
def test_what_runs_later_stands_in_the_module_that_gave_it(part, use):
    graph = tbscope.trace(Two(part, use), X)
    graph.verify()
    name = part.__name__
    for attribute in ("one", "two"):
        assert ("relu", f"Two/{name}[{attribute}]") in ops(graph)
        assert ("linear", f"Two/{name}[{attribute}]/Linear[linear]") in ops(graph)
        assert drawn(graph)[f"{attribute}/relu"] == [f"{attribute}/linear"]
    assert all(op != name for op, _ in ops(graph))
    results = graph.find("one").results
    relu = next(node for node in graph.nodes if node.op == "relu")
    assert (results if part is Awaited else results[1]) is relu.outputs[0]


class Net(nn.Module):
    """Uses a part in a way that is given."""

    def __init__(self, use, part):
        super().__init__()
        self.use, self.part = use, part

    def forward(self, x):
        return self.use(self, x)


class Mending(nn.Module):
    """Yields another entry for each error that its reader throws in, until its reader closes it."""

    def forward(self, x):
        while True:
            try:
                yield x + 1
            except ValueError:
                x = x * 2
            except GeneratorExit:
                x.sub(3)
                raise


def test_errors_and_the_end_that_a_reader_throws_into_a_module_are_in_its_scope():
    def read(self, x):
        entries = self.part(x)
        next(entries)
        entries.throw(ValueError("again"))
        entries.close()
        return x.neg()

    net = Net(read, Mending())
    graph = tbscope.trace(net, X)
    graph.verify()
    found = [(node.op, str(node.scope)) for node in graph.nodes if node.kind == "op"]
    inside = [(op, "Net/Mending[part]") for op in ("add", "mul", "add", "sub")]
    assert found == [*inside, ("neg", "Net")]


@pytest.mark.parametrize("model", [Awaited, Yielding, Streaming])
@pytest.mark.parametrize("options", [{}, {"fake": True}, {"profile": 1}], ids=str)
def test_a_model_that_gives_something_unfinished_is_run_to_its_end(model, options):
    graph = tbscope.trace(model(), X, **options)
    scope = model.__name__
    assert ops(graph) == [("linear", f"{scope}/Linear[linear]"), ("relu", scope)]
    relu = graph.nodes[-1]
    assert relu.outputs[0] is graph.outputs[-1].value
    assert drawn(graph)[graph.outputs[-1].name] == ["relu"]


def test_a_coroutine_is_run_where_a_loop_runs_already():
    async def drawing():
        loop = asyncio.get_running_loop()
        graph = tbscope.trace(Awaited(), X)
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        return graph

    assert [op for op, _ in ops(asyncio.run(drawing()))] == ["linear", "relu"]


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda x: map(torch.relu, [x, x]), ["out.0", "out.1"]),
        (lambda x: zip([x + 1], [x + 2], strict=True), ["out.0.0", "out.0.1"]),
        (lambda x: enumerate([x + 1]), ["out.0.1"]),
        (lambda x: filter(lambda y: True, [x + 1]), ["out.0"]),
        (lambda x: reversed([x + 1]), ["out.0"]),
        (lambda x: iter([x + 1]), ["out.0"]),
        (lambda x: itertools.chain([x + 1], (x - 1,)), ["out.0", "out.1"]),
        (lambda x: itertools.accumulate([x, x]), ["out.0", "out.1"]),
        (lambda x: {"a": map(torch.relu, [x]), "b": x}, ["a.0", "out.b"]),
        (lambda x: (map(torch.relu, [x]), map(iter, [[x]])), ["out.0.0", "out.1.0.0"]),
    ],
)
def test_iterators_given_back_are_read_like_generators(result, names):
    graph = tbscope.trace(result, X)
    given = [output.name for output in graph.outputs]
    assert [name.removeprefix("out.") for name in given] == [
        name.removeprefix("out.") for name in names
    ]
    assert {str(node.scope) for node in graph.nodes if node.kind == "op"} <= {"lambda"}
    ends = [node for node in tbscope.to_graph_def(graph).node if node.op.startswith("Output")]
    assert len(ends) == len(names)
    assert all(len(node.input) == 1 for node in ends)


class Mapping(nn.Module):
    def forward(self, x):
        return map(torch.relu, [x])


class Holding(nn.Module):
    def forward(self, x):
        return {"kept": x + 1, "later": map(torch.relu, [x])}


def test_what_a_model_gives_to_be_computed_stands_in_the_model():
    assert ops(tbscope.trace(Holding(), X)) == [("add", "Holding"), ("relu", "Holding")]
    assert ops(tbscope.trace(Mapping(), X)) == [("relu", "Mapping")]
    two = tbscope.trace(Two(Mapping, zipped), X)
    assert ops(two)[:2] == [("relu", "Two/Mapping[one]"), ("relu", "Two/Mapping[two]")]


def test_an_iterator_without_end_is_read_so_far_and_told_of():
    graph = tbscope.trace(lambda x: (x + n for n in itertools.count()), X)
    assert len(graph.outputs) == 1000
    assert graph.notes[0].text == (
        "the model gave a generator, which was asked for 1,000 entries: "
        "what it would give after these is not in the graph"
    )


def test_a_shorter_iterator_has_no_note():
    graph = tbscope.trace(lambda x: (x + n for n in range(3)), X)
    assert [note.text for note in graph.notes if "entries" in note.text] == []


class Waiting(nn.Module):
    """Computes nothing, and takes its time."""

    async def forward(self, x):
        await asyncio.sleep(0)
        return x


def test_a_coroutine_that_computes_nothing_is_passed_through():
    graph = tbscope.trace(Two(Waiting, gathered), X)
    passed = [(op, scope) for op, scope in ops(graph) if op == "Waiting"]
    assert passed == [("Waiting", "Two/Waiting[one]"), ("Waiting", "Two/Waiting[two]")]
    assert drawn(graph)["one"] == ["x"]


def test_a_stream_without_end_is_read_so_far():
    async def endless(x):
        while True:
            yield x + 1

    assert len(tbscope.trace(endless, X).outputs) == 1000


def test_an_error_in_a_coroutine_tells_of_its_module():
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.trace(Two(Awaited, gathered), torch.ones(2, 4))
    assert "in Two/Awaited[" in str(raised.value)


class Mixed(nn.Module):
    """Gives back what it was given and what it has, beside what it computes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.ones(2))
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return {"a": x, "b": self.weight, "c": self.mean, "d": self.linear(x)}


@pytest.mark.parametrize("leaves", ["node", "box"])
@pytest.mark.parametrize("options", [{}, {"fake": True}], ids=str)
def test_what_is_handed_back_as_it_came_is_joined_to_its_source(options, leaves):
    graph = tbscope.trace(Mixed(), X, **options)
    assert [output.value.producer.kind for output in graph.outputs[:3]] == [
        "input",
        "parameter",
        "buffer",
    ]
    ends = {
        node.name.removeprefix("out."): list(node.input)
        for node in tbscope.to_graph_def(graph, leaves=leaves).node
        if node.op.startswith("Output")
    }
    assert list(ends.values())[:3] == [["x"], ["weight"], ["mean"]]
    assert list(ends) == ["a", "b", "c", "d"]
