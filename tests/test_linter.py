"""The rules of the page: for each a GraphDef that breaks it, and one that just does not."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gallery import GALLERY
from tensorboard.compat.proto.graph_pb2 import GraphDef
from test_page_models import bert, gpt2, resnet, t5, vit, whisper
from torch.utils.tensorboard._pytorch_graph import graph as torch_graph

import tbscope
from tbscope.errors import ArgumentError
from tbscope.rules.linter import RULES, Finding, lint

DOCS = Path(__file__).parent.parent / "docs" / "lint.md"


def message(*nodes, shapes=1, **devices):
    """Make a GraphDef of nodes given as `name op input input ...`, each with scalar outputs."""
    graph_def = GraphDef()
    for node in nodes:
        name, op, *inputs = node.split(" ")
        made = graph_def.node.add(name=name, op=op, input=inputs, device=devices.get(name, ""))
        if shapes:
            outputs = made.attr["_output_shapes"].list
            for _ in range(shapes):
                outputs.shape.add()
    return graph_def


def with_attribute(key="note", **value):
    """Make a GraphDef of one node with this attribute."""
    graph_def = message("x In")
    for field, given in value.items():
        if isinstance(given, list):
            getattr(graph_def.node[0].attr[key].list, field).extend(given)
        else:
            setattr(graph_def.node[0].attr[key], field, given)
    return graph_def


def with_library(*nodes, name="f"):
    """Make a GraphDef with a function in its library."""
    graph_def = message(*nodes)
    graph_def.library.function.add().signature.name = name
    return graph_def


def chain(length, name):
    """Make a chain; `name` is formatted with a number."""
    nodes = [name.format(0) + " In"]
    nodes += [f"{name.format(i)} Op {name.format(i - 1)}" for i in range(1, length)]
    return message(*nodes)


def stack(*facts, op="Op", **more):
    """Make siblings that fold, each with such an attribute `size`, and others."""
    graph_def = message("x In", *(f"n{i} {op} x" for i in range(len(facts))))
    for node, fact in zip(graph_def.node[1:], facts, strict=True):
        node.attr["size"].i = fact
        for key, text in more.items():
            node.attr[key].s = text.format(fact).encode()
    return graph_def


def wide_stack(count):
    return message("x In", *(f"n{i} Op x" for i in range(count)))


def gathered(layers, read):
    """Make a chain, a node that reads some of it, and an output of that."""
    nodes = ["n0x In", *(f"n{i}x Op n{i - 1}x" for i in range(1, layers))]
    before = " ".join(f"n{i}x" for i in range(read))
    return message(*nodes, f"cat Cat {before}", "out Out cat")


def lone(box):
    """Make a box with one operation beside a circle, and more where asked for."""
    nodes = ["x In", "box/w Const", "box/op Op x box/w", "out Out box/op"]
    return message(*nodes[:3], *box, nodes[3])


PAIRS = {
    "empty-graph": (GraphDef(), message("x In")),
    "broken-name": (message(" Op"), message("x Op")),
    "reserved-name": (message("x In", "toString/a Op x"), message("x In", "a/toString Op x")),
    "duplicate-name": (message("x In", "x Op"), message("x In", "x/x Op")),
    "scope-constant": (message("x Const", "x/y Op x"), message("x In", "x/y Op x")),
    "odd-character": (message("a{b}/c Op"), message("a[b](c),-._\\/c Op")),
    "non-ascii": (message("größe Op"), message("groesse Op")),
    "reserved-op": (message("x valueOf"), message("x ValueOf")),
    "swallowed-op": (
        message("x In", "y ConstantPad2d x", "z Op y"),
        message("x In", "y constantPad2d x", "c Const ^x", "z Op y c"),
    ),
    "no-op": (message("x In", "y NoOp x"), message("x In", "y NoOp ^x", "z NoOp")),
    "dangling-input": (message("x In y"), message("x In", "y Op x  x:0 ^x", shapes=2)),
    "self-input": (message("x In x"), message("x In y", "y Op x")),
    "collapsed-edges": (
        message("x In", "y Op x x:1", shapes=2),
        message("x In", "y Op x  x:1", shapes=2),
    ),
    "missing-shape": (
        message("x In", "c Const", "y Op c x:1"),
        message("x In", "c Const", "y Op c:1 x:1  ^x", shapes=2),
    ),
    "large-attribute": (with_attribute(s=b"x" * 1022), with_attribute(s=b"x" * 1021)),
    "attribute-text": (with_attribute(s=[b"a\nb"]), with_attribute(s=[b"'a' \"b\" \\n ~"])),
    "wide-level": (chain(301, "n{}x"), chain(300, "n{}x")),
    "box-cycle": (
        message("x In", "a/p Op x", "b/q Op a/p", "a/r Op b/q"),
        message("x In", "a/p Op x", "b/q Op a/p", "c/r Op b/q"),
    ),
    "false-series": (stack(1, 1, 1, 2, 1), stack(1, 1, 1, 1, 1)),
    "lone-node": (lone([]), lone(["box/more Op box/op"])),
    "lost-output": (gathered(13, 5), gathered(12, 5)),
}


def found(graph_def):
    return {finding.rule for finding in lint(graph_def)}


def test_each_rule_has_a_pair():
    assert PAIRS.keys() == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_that_is_broken_is_told(rule):
    broken, _ = PAIRS[rule]
    findings = [finding for finding in lint(broken) if finding.rule == rule]
    assert findings
    for finding in findings:
        assert finding.message.isascii()
        assert finding.message.isprintable()
        assert finding.fix.isascii()
        assert finding.fix
        assert not finding.message.endswith(".")


@pytest.mark.parametrize("rule", PAIRS)
def test_a_rule_that_is_kept_is_not(rule):
    _, kept = PAIRS[rule]
    assert rule not in found(kept)


def test_a_finding_reads_as_one_line():
    (finding,) = lint(message("x In", "y Op x nothing:1"))
    assert finding == Finding(
        rule="dangling-input",
        node="y",
        message="the input 'nothing:1' names no node, and its edge is not drawn",
        fix="name a node, or leave the input out",
        severity="error",
    )
    assert str(finding) == (
        "dangling-input: y: the input 'nothing:1' names no node, and its edge is not drawn"
    )


@pytest.mark.parametrize(
    ("graph_def", "line"),
    [
        (message("a::x Op"), "broken-name: a::x: the name has a ':', and an input of it is read "
         "as one of 'a::x:0'"),
        (message("a:0 Op"), "broken-name: a:0: the name has a ':', and an input of it is read "
         "as one of 'a'"),
        (chain(301, "n{}x"), "wide-level: : the top level contains 301 shapes, and takes long to "
         "open"),
        (wide_stack(310), "wide-level: n[0-309]: the box 'n[0-309]' contains 310 shapes, "
         "and takes long to open"),
        (stack(3, 3, 3, 3, 4), "false-series: n[0-4]: 5 siblings of op 'Op' are folded into a "
         "stack, and they differ in 'size'"),
        (message("x ListConstruct y", "y In", "z Op x"), "swallowed-op: x: the op 'ListConstruct' "
         "reads 'y', and is drawn as a small circle, as a constant is"),
        (message("x In", "y OneSummary x", "z Op y"), "swallowed-op: y: the op 'OneSummary' is "
         "read by others, and is drawn as a small icon, as a summary is"),
        (message("c ListConst", "y Op c:2", shapes=3), "swallowed-op: c: the op 'ListConst' "
         "gives 3 outputs, and is drawn as a small circle, as a constant is"),
        (message("x In", "y Op x x:1 ^x", shapes=2), "collapsed-edges: y: 2 inputs come after one "
         "of the same node, as 'x:1', and the page draws no edge for it"),
        (message("x In", "y Op x:2"), "missing-shape: x: output 2 is read and has no shape among "
         "the 1 in '_output_shapes', and its edges have neither label nor width"),
        (message("x In", "y Op __proto__"), "reserved-name: y: the input '__proto__' is a key of "
         "every JavaScript object, and the page fails"),
        (message("x In", "x/(x) In", "x/y In"), "duplicate-name: x/(x): 2 nodes have this name on "
         "the page, and it shows the last one with the edges of all"),
    ],
)  # fmt: skip
def test_a_message_tells_the_values(graph_def, line):
    assert line in map(str, lint(graph_def))


def test_what_is_cut_off_is_told_with_what_was_put_aside():
    (finding,) = (one for one in lint(gathered(13, 5)) if one.node == "out")
    assert finding.rule == "lost-output"
    assert finding.message == (
        "in the top level, it is not connected any more since 'cat' is put aside, "
        "and no drawn line leads to it from where data comes in"
    )


def test_an_operation_with_nothing_but_circles_is_put_aside_in_its_box():
    assert [(f.rule, f.node) for f in lint(lone([]))] == [("lone-node", "box/op")]
    assert lint(lone(["box/more Op box/op"])) == []


@pytest.mark.parametrize(
    "kept",
    [
        stack(1, 2, 3, 4),
        stack(1, 2, 3, 4, 5, module="cell"),
        stack(1, 1, 1, 1, 1, module="layers.{}", scope="{}", source="a.py:{}", name="{}"),
        message("x In", *(f"n{i}x Op x" for i in range(9))),
    ],
    ids=["too few", "calls of one module", "told apart by their names", "not numbered"],
)
def test_siblings_that_are_alike_or_not_folded_are_no_false_series(kept):
    assert "false-series" not in found(kept)


def test_siblings_of_other_shapes_or_attributes_are_a_false_series():
    graph_def = stack(1, 1, 1, 1, 1)
    graph_def.node[3].attr["_output_shapes"].list.shape[0].dim.add(size=2)
    assert any("'_output_shapes'" in finding.message for finding in lint(graph_def))
    graph_def = stack(1, 1, 1, 1, 1)
    graph_def.node[3].attr["new"].b = True
    assert any("'new'" in finding.message for finding in lint(graph_def))


@pytest.mark.parametrize("name", ["m/n{}x", "n{}"])
@pytest.mark.parametrize(
    ("length", "loss"), [(1000, "takes long to open"), (1001, "may stay blank")]
)
def test_of_more_than_a_thousand_shapes_the_page_may_draw_none(name, length, loss):
    (finding,) = lint(chain(length + (name == "n{}"), name))
    assert finding.message.endswith(f" contains {length} shapes, and {loss}")


def test_numbers_at_the_top_and_what_looks_like_an_attribute_do_no_harm():
    assert lint(message("10 In", "9 Op 10", "layers/0 Op 9", "m/constructor Op layers/0")) == []


def test_what_is_wrong_with_a_box_is_told_once():
    graph_def = message("a b/x In".replace(" b", "\u00a0b"), "a\u00a0b/y Op")
    assert [finding.node for finding in lint(graph_def)] == ["a\u00a0b"]
    graph_def = message("a&b/c/x In", "a&b/c/y Op a&b/c/x")
    assert [finding.node for finding in lint(graph_def)] == ["a&b"]


@pytest.mark.parametrize("name", ["x:0", "x::y", "^x", "/x", "x//y", "", "\n", "ß/ß", "x" * 5000])
@pytest.mark.parametrize("op", ["Op", "Const", "XSummary", "", "NoOp", "assign"])
def test_nothing_that_is_written_breaks_the_linter(name, op):
    graph_def = GraphDef()
    graph_def.node.add(name=name, op=op, input=[name, f"^{name}", f"{name}:1", "", "\n", "x/y"])
    graph_def.node.add(name="x/y", op=op, input=[name])
    assert all(str(finding).isascii() or "ß" in name for finding in lint(graph_def))


def test_anything_with_the_fields_of_a_graph_def_is_taken():
    node = SimpleNamespace(name="/x", op="Op", input=["y"], attr={}, device="gpu:1")
    findings = lint(SimpleNamespace(node=[node]))
    assert [finding.rule for finding in findings] == ["broken-name", "dangling-input"]
    assert findings[-1].fix == "name a node, or leave the input out"


@pytest.mark.parametrize(
    ("given", "kind", "fix"),
    [
        (
            b"",
            "bytes",
            "lint(GraphDef.FromString(data)), with tensorboard.compat.proto.graph_pb2.GraphDef",
        ),
        (None, "NoneType", "lint(tbscope.trace(model, inputs))"),
        (
            type("Nodes", (), {"node": []}),
            "type",
            "lint(tbscope.trace(model, inputs))",
        ),
        (
            SimpleNamespace(node=[1]),
            "SimpleNamespace",
            "lint(tbscope.trace(model, inputs))",
        ),
    ],
)
def test_what_is_no_graph_def_is_refused(given, kind, fix):
    with pytest.raises(ArgumentError) as caught:
        lint(given)
    assert str(caught.value) == (
        f"cannot lint an object of type {kind}\n"
        "  why: it is no GraphDef: it has no list 'node' of entries with name, op, input, attr "
        "and device\n"
        f"  fix: {fix}"
    )


def test_the_graph_that_torch_writes_breaks_rules():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.ReLU())
    graph_def, _ = torch_graph(model, torch.ones(1, 3, 8, 8))
    rules = found(graph_def)
    assert {"swallowed-op", "missing-shape"} <= rules


def test_a_graph_is_checked_as_its_drawing_and_a_file_as_its_graph_def(tmp_path):
    graph = tbscope.trace(torch.nn.Sequential(*map(torch.nn.Dropout, [0.5] * 400)), torch.ones(1))
    assert {finding.rule for finding in lint(graph)} == {"wide-level"}
    assert lint(graph) == lint(tbscope.to_graph_def(graph))
    graph_def = message("a!b In")
    (tmp_path / "net.pb").write_bytes(graph_def.SerializeToString())
    assert lint(str(tmp_path / "net.pb")) == lint(tmp_path / "net.pb") == lint(graph_def) != []


@pytest.mark.parametrize("name", GALLERY)
def test_our_graphs_made_by_hand_break_none(name):
    assert lint(tbscope.to_graph_def(GALLERY[name]())) == []


@pytest.mark.parametrize("made", [resnet, bert, gpt2, t5, vit, whisper])
def test_our_graphs_of_real_models_break_none(made):
    model, given = made()
    inputs = {"kwargs": given} if isinstance(given, dict) else {"input_to_model": given}
    graph = tbscope.trace(model.eval(), **inputs)
    assert lint(tbscope.to_graph_def(graph)) == []


def test_the_documentation_lists_the_rules():
    told = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| .+\. \|$", DOCS.read_text(), re.MULTILINE)
    assert told == [(rule.name, rule.severity) for rule in RULES]
