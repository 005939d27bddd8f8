"""Editing: every place that names a node or a value hears of a change."""

import ast
import gc
from pathlib import Path
from weakref import ref

import pytest
from build import GraphBuilder

import tbscope.passes
from tbscope.ir.editing import Editor
from tbscope.ir.graph import Argument, Body, Constant, Node, Note, Output, Value

# What tells where a node or a value is named, or which node gives a value.
NAMING = {
    *("inputs", "outputs", "control_inputs", "producer", "index", "nodes", "body"),
    *("arguments", "results", "calls", "notes", "writers"),
}
GROWS = {"append", "extend", "insert", "pop", "clear", "remove"}


@pytest.fixture
def build():
    """Three operations in a row, which an output and a call name."""
    build = GraphBuilder("Net")
    build.x = build.input("x", (2, 8))
    build.a = build.op("exp", build.x)
    build.b = build.op("view", build.a, shape=(16,))
    build.c = build.op("relu", build.b)
    build.output("out", build.c)
    return build


def names(graph):
    return [node.op for node in graph.nodes]


def edited(graph, *changes):
    """Make changes of a graph, each by a method of the editor; hold it after them."""
    editor = Editor(graph)
    for method, *given in changes:
        getattr(editor, method)(*given)
    editor.apply()
    graph.verify()
    return graph


# -- what is dropped ----------------------------------------------------------------------------


def test_a_dropped_input_is_no_input_of_the_graph(build):
    spare = build.input("spare", (1,))
    graph = edited(build.graph, ("drop", [spare.producer]))
    assert [node.name for node in graph.inputs] == ["x"]
    assert "spare" not in [node.name for node in graph.nodes]


def test_a_note_about_a_dropped_node_is_about_none_and_others_stay_as_they_are(build):
    dead = build.op("tanh", build.a).producer
    notes = [Note("dead", node=dead), Note("kept", node=build.a.producer), Note("of none")]
    build.graph.notes += notes
    graph = edited(build.graph, ("drop", [dead]))
    assert [(note.text, note.node) for note in graph.notes] == [
        ("dead", None),
        ("kept", build.a.producer),
        ("of none", None),
    ]


def test_nothing_waits_for_a_dropped_node(build):
    gone, stays = (build.op("fill_", build.a, number).producer for number in (1, 2))
    late = build.op("neg", build.c, control_inputs=[gone, stays])
    build.graph.outputs.append(Output("late", late, (gone, stays)))
    graph = edited(build.graph, ("drop", [gone]))
    assert late.producer.control_inputs == [stays]
    assert graph.outputs[-1].control_inputs == (stays,)


def test_a_call_tells_a_word_instead_of_what_a_dropped_node_gave(build):
    dead = build.op("tanh", build.a)
    scope = build.call("Net", dead, build.c)
    build.returns(scope, {"dead": [dead], "out": build.c})
    editor = Editor(build.graph)
    editor.drop([dead.producer], word=Constant("<unused>"))
    editor.apply()
    build.graph.verify()
    call = build.graph.calls[0]
    assert [argument.nest for argument in call.arguments] == [Constant("<unused>"), build.c]
    assert call.results == {"dead": [Constant("<unused>")], "out": build.c}


def test_a_call_tells_no_word_for_what_another_node_gives_instead_of_a_dropped_one(build):
    build.call("Net", build.b)
    editor, view = Editor(build.graph), build.b.producer
    editor.give(build.b, build.a.producer, 0)
    editor.drop([view], word=Constant("<unused>"))
    editor.apply()
    build.graph.verify()
    assert build.graph.calls[0].arguments[0].nest is build.b


@pytest.mark.parametrize("dropped", [True, False])
def test_what_is_dropped_is_let_go_at_once(build, dropped):
    class Held:
        pass

    build.op("tanh", build.a)
    # A copy: what built the graph knows its nodes, too.
    graph = build.graph.copy()
    graph.nodes[-1].attributes["held"] = held = Held()
    seen = ref(held)
    del held
    gc.disable()
    try:
        edited(graph, ("drop", graph.nodes[-1:] if dropped else []))
        assert (seen() is None) == dropped
    finally:
        gc.enable()


# -- what is read instead -----------------------------------------------------------------------


def test_what_is_read_instead_of_a_value_is_named_everywhere(build):
    scope = build.call("Net", [build.c], build.b)
    build.returns(scope, (build.b,))
    build.output("middle", build.b)
    graph = edited(build.graph, ("read_instead", build.b, build.a), ("drop", [build.b.producer]))
    relu = build.c.producer
    assert relu.inputs == [argument.nest for argument in relu.arguments] == [build.a]
    assert [output.value for output in graph.outputs] == [build.c, build.a]
    for value in (graph.calls[0].arguments[1].nest, *graph.calls[0].results):
        assert (value.producer, value.index, value.shape) == (build.a.producer, 0, (16,))


def test_what_is_read_instead_is_followed_through_several_changes(build):
    graph = edited(
        build.graph,
        ("read_instead", build.a, build.x),
        ("read_instead", build.b, build.a),
        ("drop", [build.a.producer, build.b.producer]),
    )
    assert names(graph) == ["input", "relu"]
    assert build.c.producer.inputs == [build.x]


def test_a_call_keeps_its_type_when_the_graph_is_edited_again(build):
    build.call("Net", build.b)
    graph = edited(build.graph, ("read_instead", build.b, build.a), ("drop", [build.b.producer]))
    graph = edited(graph, ("read_instead", build.a, build.x), ("drop", [build.a.producer]))
    (argument,) = graph.calls[0].arguments
    assert (argument.nest.producer, argument.nest.shape) == (build.x.producer, (16,))


def test_a_call_keeps_naming_what_a_dropped_node_gave_if_it_tells_no_word(build):
    dead = build.op("tanh", build.a)
    build.call("Net", dead)
    graph = edited(build.graph, ("drop", [dead.producer]))
    graph = edited(graph, ("read_instead", build.b, build.a), ("drop", [build.b.producer]))
    assert graph.calls[0].arguments[0].nest is dead


# -- bodies -------------------------------------------------------------------------------------


def kernel_of(op, value, **fields):
    """Return a node that reads a value and stands in no graph yet."""
    kernel = Node(name=op, op=op, inputs=[value], arguments=[Argument(None, value)], **fields)
    kernel.outputs = [Value(kernel, 0, (16,), "float32", "cpu")]
    return kernel


def test_a_body_reads_waits_and_hands_on_what_stands_now(build):
    gone = build.op("fill_", build.a, 1).producer
    kernel = kernel_of("neg", build.b, control_inputs=[gone])
    whole = build.node("neg", build.b, build.c, outputs=((16,), (16,)))
    whole.body = Body([kernel], [kernel.outputs[0], build.b])
    edited(
        build.graph,
        ("read_instead", build.b, build.a),
        ("drop", [build.b.producer]),
        ("drop", [gone]),
    )
    assert kernel.inputs == [kernel.arguments[0].nest] == [build.a]
    assert kernel.control_inputs == []
    assert whole.body.results == [kernel.outputs[0], build.a]


# -- what is folded -----------------------------------------------------------------------------


@pytest.mark.parametrize(("writes", "told"), [((1,), (2,)), ((0,), ()), ((0, 1), (2,))])
def test_a_node_takes_over_what_is_folded_into_it(build, writes, told):
    state = build.input("state", (2, 8))
    whole = build.op("mul", build.a, build.x).producer
    # It reads what the other gave, and something from outside.
    part = build.op("add_", whole.outputs[0], state, writes=writes, random=True).producer
    edited(build.graph, ("fold", part, whole))
    assert whole.inputs == [build.a, build.x, state]
    assert (whole.writes, whole.random) == (told, True)


def test_a_node_of_which_part_is_random_or_writes_stays_so(build):
    whole = build.op("mul", build.a, build.x, writes=(0,), random=True).producer
    part = build.op("neg", build.x).producer
    edited(build.graph, ("fold", part, whole))
    assert (whole.writes, whole.random) == ((0,), True)


# -- who gives a value, and who stands for a node -----------------------------------------------


def test_a_value_is_given_by_another_node_in_the_place_of_an_output_or_after_the_last(build):
    node = build.node("split", build.x, outputs=((1, 8), (1, 8)))
    editor = Editor(build.graph)
    editor.give(build.b, node, 1)
    editor.give(build.c, node)
    assert node.outputs[1] is build.b
    assert node.outputs[2] is build.c
    assert [(value.producer, value.index) for value in (build.b, build.c)] == [(node, 1), (node, 2)]


def test_others_stand_in_the_place_of_a_node_and_are_waited_for(build):
    old = build.b.producer
    late = build.op("neg", build.c, control_inputs=[old]).producer
    build.graph.notes.append(Note("old", node=old))
    first = kernel_of("clone", build.a)
    second = kernel_of("alias", first.outputs[0])
    second.outputs.clear()
    editor = Editor(build.graph)
    editor.give(build.b, second)
    editor.put_instead(old, [first, second])
    editor.stand_for(old, [second, first], noted=first)
    editor.apply()
    build.graph.verify()
    assert names(build.graph) == ["input", "exp", "clone", "alias", "relu", "neg"]
    assert late.control_inputs == [second, first]
    assert build.graph.notes[0].node is first


# -- passes ---------------------------------------------------------------------------------------


def edits(path):
    """Give the lines of a file on which it changes what names a node or a value."""
    for part in ast.walk(ast.parse(path.read_text())):
        targets = []
        if isinstance(part, ast.Assign):
            targets = part.targets
        elif isinstance(part, ast.AugAssign | ast.AnnAssign | ast.Delete):
            targets = getattr(part, "targets", None) or [part.target]
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            targets = [part.func.value] if part.func.attr in GROWS else []
        if any(map(rewires, targets)):
            yield f"{path.name}:{part.lineno}"


def rewires(target):
    """Tell whether something that is assigned to is what names a node or a value."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, ast.Tuple | ast.List):
        return any(map(rewires, target.elts))
    own = getattr(getattr(target, "value", None), "id", None) == "self"
    return isinstance(target, ast.Attribute) and target.attr in NAMING and not own


def test_no_pass_rewires_by_hand():
    files = sorted(Path(tbscope.passes.__file__).parent.glob("*.py"))
    assert len(files) > 5
    assert [line for path in files for line in edits(path)] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("node.inputs = []", 1),
        ("node.inputs += others", 1),
        ("giver.outputs[0] = value", 1),
        ("node.outputs.pop()", 1),
        ("value.producer, value.index = node, 0", 1),
        ("a, node.kind = 1, 2", 0),
        ("reads = node.inputs[0]", 0),
        ("self.nodes = set()", 0),
        ("node.attributes['via'] = 1", 0),
    ],
)
def test_what_rewires_is_told_from_what_reads(tmp_path, code, found):
    path = tmp_path / "some_pass.py"
    path.write_text(code)
    assert len(list(edits(path))) == found


@pytest.mark.parametrize("leave_out", [False, True])
def test_a_value_that_is_read_instead_of_another_is_named_in_its_place_everywhere(leave_out):
    build = GraphBuilder()
    net = build.call("Net")
    x = build.input("x", (2,))
    y = build.op("view", x, scope=net)
    block = build.call("Net/Block[block]", y)
    z = build.op("relu", y, scope=block)
    build.output("y", y)
    editor = Editor(build.graph)
    editor.read_instead(y, x)
    if leave_out:
        editor.drop([y.producer])
    editor.apply()
    relu, (output,), call = z.producer, build.graph.outputs, build.graph.calls[1]
    assert relu.inputs == [relu.arguments[0].nest] == [output.value] == [x]
    assert [argument.nest for argument in call.arguments] == [x]
    assert (y.producer in build.graph.nodes) != leave_out
