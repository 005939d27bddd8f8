"""The kernels of operations that write, and of those that wait: who waits for which kernel."""

import pytest
import torch
from build import GraphBuilder
from real_graphs import origins
from torch.nn import functional

import tbscope
from tbscope.ir.graph import Argument, Body, Node, Note, Output, Value
from tbscope.passes.detail_level import set_level


def kernels_of(function, *given):
    """Trace a function; give its graph at the level of kernels."""
    before = tbscope.trace(function, given, kernels=True)
    graph = before.copy()
    set_level(graph, "aten")
    graph.verify()
    assert origins(graph) == origins(before)
    return graph


def waits(graph):
    """Give for each node that waits the operations and kernels that it waits for."""
    return {
        node.op: [other.op for other in node.control_inputs]
        for node in graph.nodes
        if node.control_inputs
    }


def normalize_into(y):
    return functional.normalize(y, out=y)


def renorm(y):
    return functional.embedding(torch.tensor([0]), y, max_norm=1.0)


def fill_row(y):
    y[0] = 1


@pytest.mark.parametrize(
    ("write", "writer"),
    [
        # One that ends in `_` fills what the operation made itself; the last one writes.
        (normalize_into, "div"),
        (renorm, "embedding_renorm_"),
        (fill_row, "fill_"),
        (lambda y: functional.normalize(torch.ones(2, 3), out=y), "div"),
        (lambda y: y.add_(1), "add_"),
        (lambda y: torch.exp(y, out=y), "exp"),
    ],
)
def test_a_reader_waits_for_the_kernel_that_wrote(write, writer):
    def function(x):
        y = x.clone()
        view = y.view(-1)
        write(y)
        return view.tanh()

    assert waits(kernels_of(function, torch.rand(2, 3)))["tanh"] == [writer]


def test_a_kernel_waits_for_what_an_operation_before_wrote_through_another_tensor():
    def function(x):
        y = x.clone()
        view = y.view(-1)
        y.add_(1)
        return functional.normalize(view, dim=0)

    assert waits(kernels_of(function, torch.rand(2, 3)))["linalg_vector_norm"] == ["add_"]


def test_a_kernel_that_writes_into_what_it_gives_has_one_value_and_holds_up_no_other():
    graph = kernels_of(functional.dropout2d, torch.rand(2, 3, 4, 4))
    assert [node.op for node in graph.nodes[1:]] == ["new_empty", "bernoulli_", "div_", "mul"]
    assert {len(node.outputs) for node in graph.nodes} == {1}
    # The last one reads the input, which shares no memory with what they wrote.
    assert waits(graph) == {}


@pytest.mark.parametrize("write", [normalize_into, renorm])
def test_an_output_waits_for_the_kernel_that_wrote(write):
    def function(x):
        y = x.clone()
        view = y.view(-1)
        write(y)
        return view

    graph = kernels_of(function, torch.rand(2, 3))
    (writer,) = graph.outputs[0].control_inputs
    assert writer.op in ("div", "embedding_renorm_")


def test_a_kernel_waits_for_what_was_written_into_what_it_reads_and_no_other_does():
    def function(x, weight):
        y = x.clone()
        y[0].zero_()
        return functional.linear(y, weight)

    assert waits(kernels_of(function, torch.rand(2, 3), torch.rand(3, 3))) == {"mm": ["zero_"]}


class Tally(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("tally", torch.ones(2, 3))

    def forward(self, x):
        self.tally.view(-1).add_(x.sum())
        return functional.normalize(self.tally)


def test_what_reads_a_buffer_waits_for_the_write_into_it():
    graph = kernels_of(Tally(), torch.rand(2, 3))
    assert waits(graph) == {"linalg_vector_norm": ["add_"], "div": ["add_"]}


def test_what_an_operation_wrote_into_what_it_made_itself_is_no_write_of_its_own():
    graph = tbscope.trace(lambda x: normalize_into(x.clone()), torch.rand(2, 3), kernels=True)
    body = graph.nodes[-1].body
    assert [kernel.op for kernel in body.nodes if kernel.op[-1] == "_"] == ["clamp_min_"]
    assert [kernel.op for kernel in body.writers] == ["div"]


def test_a_kernel_waits_for_what_was_written_before_its_operation_and_inside():
    def function(x):
        y = x.clone()
        y[0].zero_()
        return renorm(y)

    assert waits(kernels_of(function, torch.rand(2, 3))) == {
        "detach": ["zero_"],
        "embedding": ["zero_", "embedding_renorm_"],
    }


def test_one_kernel_waits_for_another_one_inside_of_an_operation_that_wrote():
    def function(x):
        y = x.clone()
        view = y.view(-1)
        renorm(y)
        return functional.normalize(view, dim=0)

    found = waits(kernels_of(function, torch.rand(2, 3)))
    assert found["linalg_vector_norm"] == found["div"] == ["embedding_renorm_"]


def inner(outer, place, *reads):
    """Give a kernel inside of an operation, with one output."""
    node = Node(f"{outer.name}.{place}", f"kernel{place}", scope=outer.scope)
    node.kernels, node.inputs = [f"aten::kernel{place}"], list(reads)
    node.arguments = [Argument(None, value) for value in reads]
    node.outputs = [Value(node, 0, (2,), "float32", "cpu")]
    return node


def written_twice(how):
    """Give a graph whose operation writes twice, with what reads and what waits for it."""
    build = GraphBuilder()
    x, y = build.input("x", (2,)), build.input("y", (2,))
    both = build.node("both", x, y, outputs=((2,), (2,)), kernels=["aten::a", "aten::b"])
    first = inner(both, 0, x)
    second = inner(both, 1, first.outputs[0] if how == "after" else y)
    if how == "waits":
        second.control_inputs = [first]
    writers = {"none": [], "handed on": [first]}.get(how, [first, second])
    results = [x if how == "handed on" else first.outputs[0], second.outputs[0]]
    both.body = Body([first, second], results, writers)
    build.graph.notes.append(Note("it writes", node=both))
    build.output("read", build.op("tanh", x, control_inputs=[both]))
    build.graph.outputs.append(Output("waits", x, (both,)))
    return build.graph


@pytest.mark.parametrize(
    ("how", "names", "noted"),
    [
        ("apart", ["1.0", "1.1"], "1.0"),
        ("after", ["1.0", "1.1"], "1.0"),
        ("waits", ["1.0", "1.1"], "1.0"),
        ("none", ["1.1"], "1.0"),
        ("handed on", ["1.0"], "1.0"),
    ],
)
def test_all_kernels_that_wrote_are_waited_for(how, names, noted):
    graph = written_twice(how).copy()
    set_level(graph, "aten")
    graph.verify()
    read, waiting = graph.outputs
    assert [node.name for node in read.value.producer.control_inputs] == names
    assert [node.name for node in waiting.control_inputs] == names
    assert graph.notes[0].node.name == noted


def test_two_results_of_one_kernel_are_one_where_kernels_are_drawn():
    build = GraphBuilder()
    twice = build.node("twice", build.input("x", (2,)), outputs=((2,), (2,)), kernels=["aten::a"])
    kernel = inner(twice, 0, *twice.inputs)
    twice.body = Body([kernel], kernel.outputs * 2, [])
    build.output("sum", build.op("add", *twice.outputs))
    graph = build.graph.copy()
    set_level(graph, "aten")
    graph.verify()
    made, add = graph.nodes[1:]
    assert [made.op, add.op] == ["kernel0", "add"]
    assert add.inputs == made.outputs * 2


def test_facts_of_an_operation_stand_at_the_kernel_that_gave_its_result():
    def function(x):
        y = normalize_into(x.clone())
        return y * y.tolist()[0][0]

    graph = kernels_of(function, torch.rand(2, 3))
    told = [node.op for node in graph.nodes if "read_by_python" in node.attributes]
    assert told == ["div"]
    assert "div" in [note.node.op for note in graph.notes if note.node is not None]
