"""Graphs as JSON: what is written is what is read back, and what is no graph is refused."""

import dataclasses
import json
import math
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from build import GraphBuilder, chain
from full_graph import full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_graphs import KINDS, real_graph
from same_graph import differences
from test_random_models import WIDTH, models

import tbscope
from tbscope.formats.json import compact_json, graph_from_json, graph_to_json
from tbscope.ir.graph import (
    Constant,
    Graph,
    Node,
    Note,
    Output,
    Profile,
)

DOC = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")
ODD = [
    *(None, True, False, 0, -1, 2**53, -(2**63), 10**4000, 0.1, -0.0, 1e300),
    *(math.inf, -math.inf, math.nan, 1 + 2j, complex(math.nan, -0.0)),
    *("", "\ud800", "é\n\0", "\U0001f600", Constant("torch.float32"), Constant("")),
    *([], (), {}, [()], ([1], {"a": {}}), {1: "b", None: [2.5], ("c", 1): True}),
    *({"constant": 1}, {"is": 1, "name": 2}, {"tuple": []}, ["list"]),
]


def both_ways(graph):
    """Give the graphs that both texts of a graph are read back to."""
    return graph_from_json(graph_to_json(graph)), graph_from_json(compact_json(graph))


def hold(graph):
    for again in both_ways(graph):
        assert differences(graph, again) == []
        assert str(again) == str(graph)


def test_every_field_of_every_class_survives():
    hold(full())


@pytest.mark.parametrize("version", [1, 2])
def test_a_graph_of_an_earlier_version_is_read(version):
    assert str(graph_from_json(changed("version", to=version))) == str(full())


def everything_in(graph):
    calls, nodes = graph.calls, [*graph.nodes, *(n for o in graph.nodes if o.body for n in [])]
    return [graph, *nodes, *calls, *graph.notes, *graph.outputs, graph.profile]


@pytest.mark.parametrize("kind", [Graph, Node, tbscope.Call, Note, Output, Profile])
def test_the_full_graph_leaves_no_field_at_its_default(kind):
    held = [thing for thing in everything_in(full()) if type(thing) is kind]
    for field in dataclasses.fields(kind):
        default = field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        assert any(getattr(thing, field.name) != default for thing in held), field.name


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:30] if odd != 10**4000 else "huge")
def test_every_constant_survives_wherever_it_stands(odd):
    build = GraphBuilder()
    build.call("Net", odd, hyperparameters={"h": odd})
    value = build.op("op", build.input("x", (1,)), odd, options={"o": odd}, attributes={"a": odd})
    build.output("out", value)
    hold(build.graph)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.complex_numbers(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_nest_survives(nest):
    build = GraphBuilder()
    build.output("out", build.op("op", build.input("x", (1,)), nest))
    hold(build.graph)


@settings(max_examples=20, deadline=None, suppress_health_check=[*HealthCheck], derandomize=True)
@given(model=models, training=st.booleans(), kernels=st.booleans())
def test_a_random_model_survives(model, training, kernels):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hold(tbscope.trace(model, torch.randn(4, WIDTH), training=training, kernels=kernels))


@pytest.mark.parametrize("name", KINDS[:4])
def test_a_real_model_survives_and_so_do_its_figures(name):
    graph = real_graph(name)
    again, _ = both_ways(graph)
    assert differences(graph, again) == []
    assert str(again.summary()) == str(graph.summary())
    assert tbscope.graph_costs(again) == tbscope.graph_costs(graph)
    assert tbscope.to_graph_def(again) == tbscope.to_graph_def(graph)


def test_what_was_measured_survives():
    graph = tbscope.trace(torch.nn.Linear(2, 2), torch.ones(1, 2), profile=1)
    assert any(node.measured for node in graph.nodes)
    hold(graph)


def test_equal_constants_of_different_types_stay_apart():
    build = GraphBuilder()
    for constant in (1, True, 1.0, (1,), (True,)):
        build.node("op", attributes={"a": constant})
    hold(build.graph)
    (again, _) = both_ways(build.graph)
    assert [repr(node.attributes["a"]) for node in again.nodes] == [
        *("1", "True", "1.0", "(1,)", "(True,)")
    ]


@pytest.mark.parametrize("inputs", [(0, 1), (1, 0), (1,), ()])
def test_what_a_node_reads_is_told_where_its_arguments_do_not(inputs):
    build = GraphBuilder()
    ends = [build.input("x", (1,)), build.input("y", (1,))]
    node = build.node("op", *ends)
    node.inputs = [ends[place] for place in inputs]
    hold(build.graph)
    line = graph_to_json(build.graph).partition('"op":"op"')[2].partition("\n")[0]
    assert ('"inputs"' in line) == (inputs != (0, 1))


def test_a_constant_of_another_class_becomes_its_text():
    build = GraphBuilder()
    build.output("out", build.op("op", build.input("x", (1,)), {1, 2}))
    (again, _) = both_ways(build.graph)
    assert again.nodes[1].arguments[1].nest == Constant("{1, 2}")


def test_the_same_graph_gives_the_same_text_of_one_line_for_each_node():
    text = graph_to_json(chain(3))
    assert text == graph_to_json(graph_from_json(text))
    assert sum(line.startswith('{"name":') for line in text.splitlines()) == len(chain(3).nodes) + 1
    assert text.isascii()


# -- what is no graph -----------------------------------------------------------------------


def changed(*path, to):
    """Give the plain data of a graph in which one thing is another; `...` leaves it out."""
    data = place = json.loads(graph_to_json(full()))
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return json.dumps(data)


BAD = {
    "format": (["format"], "tbscope", 'format is not "tbscope.Graph"'),
    "version": (["version"], "1", "version is '1', and should be a number from 1 up"),
    "unknown key": (["colour"], 1, "colour is no field that this version has"),
    "a key of a node": (["nodes", 1, "colour"], 1, "nodes[1].colour is no field"),
    "name": (["name"], None, "name is None, and should be a text"),
    "nodes": (["nodes"], {}, "nodes is {}, and should be a list"),
    "a node": (["nodes", 2], 7, "nodes[2] is 7, and should be an object"),
    "kind": (["nodes", 3, "kind"], "thing", "nodes[3].kind is 'thing', and should be one of op, "),
    "op": (["nodes", 3, "op"], ..., "nodes[3].op is None, and should be a text"),
    "type": (["nodes", 0, "outputs"], [99], "nodes[0].outputs is 99, which names nothing"),
    "negative": (["nodes", 0, "outputs"], [-1], "nodes[0].outputs is -1, which names nothing"),
    "truth as number": (["nodes", 0, "outputs"], [True], "nodes[0].outputs is True, which names"),
    "value": (["nodes", 3, "arguments", 0], [99], "nodes[3].arguments[0].value is 99, which"),
    "argument": (["nodes", 3, "arguments", 0], {"a": 1, "b": 2}, "should have one key"),
    "writes": (["nodes", 5, "writes"], [9], "nodes[5].writes is 9, which names nothing"),
    "flops": (["nodes", 5, "flops"], -3, "nodes[5].flops is -3, and should be a whole number"),
    "hex": (["nodes", 5, "flops"], {"int": "0xzz"}, "nodes[5].flops is {'int': '0xzz'}"),
    "no bits": (["calls", 0, "results"], {"int": hex(10**4300)}, "is {'int': '0x"),
    "no digits": (["calls", 0, "results"], {"int": hex(-(16**4000))}, "is {'int': '-0x1000"),
    "no count": (["nodes", 5, "flops"], 2**1001, "more than can be counted with"),
    "no torch size": (["types", 0], [[2**63], "f", "cpu"], "and should be less than 2**63"),
    "no elements": (["types", 0], [[2**62] * 17, "f", "cpu"], "17 sizes come to more than can be"),
    "no float": (
        ["calls", 0, "results"],
        {"complex": [{"int": hex(10**400)}, 0]},
        "which no complex number holds",
    ),
    "fraction": (["nodes", 5, "flops"], 1.5, "nodes[5].flops is 1.5, and should be a whole"),
    "role": (["nodes", 5, "role"], "master", "nodes[5].role is 'master', and should be one"),
    "kernels": (["nodes", 5, "kernels"], [1], "nodes[5].kernels[0] is 1, and should be a text"),
    "body": (["nodes", 5, "body"], [], "nodes[5].body is [], and should be an object"),
    "size": (["types", 0], [[-2], "f", "cpu"], "types[0].a size is -2, and should be a whole"),
    "row": (["types", 0], [[2]], "types[0] is [[2]], and should be a list of 3"),
    "long row": (["sources", 0], ["a", 1, "f", 2], "sources[0] is ['a', 1, 'f', 2], and should be"),
    "scope around": (["scopes", 1, 0], 5, "scopes[1].parent is 5, which names"),
    "scope around itself": (["scopes", 1, 0], 1, "scopes[1].parent is 1, which names"),
    "scope kind": (["scopes", 1, 4], "room", "scopes[1].kind is 'room', and should be one of"),
    "source": (["sources", 0, 1], "3", "sources[0].line is '3', and should be a whole number"),
    "parameter": (["parameters", 0, 1], "weight", "parameters[0].kind is 'weight'"),
    "run around itself": (["runs", 1, 1], 1, "runs[1].around is 1, which names"),
    "function": (
        ["functions", 0, 2],
        [[1]],
        "functions[0].loops[0] is [1], and should be a list of 2",
    ),
    "input": (["inputs"], [1], "is among the inputs and of the kind"),
    "output": (["outputs", 0, "value"], None, "outputs[0].value is None, which names nothing"),
    "call": (["calls", 0, "scope"], ..., "calls[0].scope is missing"),
    "note": (["notes", 0, "topic"], "x", "notes[0].topic is 'x', and should be one of run"),
    "module": (["modules", 0], ["", "N", 3], "modules[0].parameters is 3, and should be a list"),
    "signature": (["signatures", "all"], [3], "signatures of 'all'[0] is 3, and should be a text"),
    "uncounted": (["uncounted", "aten::a"], 3, "uncounted of 'aten::a' is 3, and should be"),
    "profile": (["profile", "clock"], 3, "clock is 3, and should be a text"),
    "steps": (["profile", "steps"], "5", "profile.steps is '5', and should be a number"),
    "sharding": (["types", 0], [[2], "f", "cpu", 7], "types[0].sharding is 7, which names nothing"),
    "placements": (["shardings", 0, 1], ["Shard(0)"], "has 1 placements along 2 dimensions"),
    "local sizes": (["shardings", 0, 0], None, "shardings[0].has no sizes"),
    "a placement": (
        ["shardings", 0, 1, 0],
        3,
        "shardings[0].placements[0] is 3, and should be a text",
    ),
    "rank of a group": (["groups", 0, 0], [-1], "groups[0].ranks[0] is -1, and should be a whole"),
    "collective": (["nodes", 5, "collective"], 9, "nodes[5].collective is 9, which names nothing"),
    "kind of collective": (
        ["collectives", 0, 0],
        "sum",
        "kind is 'sum', and should be one of all_",
    ),
    "group": (["collectives", 0, 2], 4, "collectives[0].group is 4, which names nothing"),
    "moved": (["collectives", 0, 3], -1, "collectives[0].input_bytes is -1, and should be a whole"),
    "coordinate": (["mesh", 0, 2], 3, "mesh[0].coordinate is 3, which names nothing: there are 3"),
    "world": (["world_size"], "6", "world_size is '6', and should be"),
    "a cycle": (["nodes", 3, "arguments", 0], [3], "before it is given"),
    "two of a name": (["nodes", 0, "name"], "2", "2 nodes are named '2'"),
    "dict key": (["calls", 0, "results"], {"dict": [[{"list": []}, 1]]}, "keys hold no lists"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_with_its_place(name):
    path, to, told = BAD[name]
    with pytest.raises(tbscope.ArgumentError, match=re.escape(told)) as caught:
        graph_from_json(changed(*path, to=to))
    assert caught.value.what == "this describes no graph"
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("path", "most"),
    [
        (["types", 0], [[2**63 - 1], "f", "cpu"]),
        (["types", 0], [[2**62] * 16, "f", "cpu"]),
        (["nodes", 5, "flops"], 2**1000),
        (["calls", 0, "results"], {"int": hex(10**4300 - 1)}),
        (["calls", 0, "results"], {"int": hex(1 - 10**4300)}),
    ],
    ids=["size", "sizes", "count", "number", "below nothing"],
)
def test_the_largest_numbers_are_read_summed_up_and_drawn(path, most):
    graph = graph_from_json(changed(*path, to=most))
    assert str(graph.summary())
    assert tbscope.to_graph_def(graph).node
    assert str(graph_from_json(graph_to_json(graph))) == str(graph)


def test_a_later_version_is_told_as_one():
    with pytest.raises(tbscope.ArgumentError) as caught:
        graph_from_json(changed("version", to=4))
    assert str(caught.value) == (
        "this graph is of version 4 of its format\n"
        "  why: this tbscope knows versions up to 3\n"
        "  fix: pip install --upgrade tbscope"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value, in line 1, column 1"),
        ('{"format": "tbscope.Graph",\n "version": }', "Expecting value, in line 2, column 13"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("[" * 100_000, "its lists stand in each other too deep"),
        (b"\xff{}", "UnicodeDecodeError"),
        ("1" * 5000, "ValueError"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text, told):
    with pytest.raises(tbscope.ArgumentError, match=re.escape(told)):
        graph_from_json(text)


@pytest.fixture
def patient_python():
    """A process in which some library has raised Python's limit of recursion."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def nested(depth):
    """The JSON of a graph whose first call gives a list in `depth - 1` lists."""
    nest = '{"list": [' * depth + "]}" * depth
    return changed("calls", 0, "results", to=0).replace('"results": 0', f'"results": {nest}')


@pytest.mark.parametrize("depth", [101, 900])
def test_a_nest_that_is_too_deep_for_a_graph_is_refused(patient_python, depth):
    assert graph_from_json(nested(100)).calls
    with pytest.raises(tbscope.ArgumentError, match="too deep"):
        graph_from_json(nested(depth))


def test_scopes_whose_paths_grow_beyond_all_bounds_are_refused():
    scopes = [[at - 1 if at else None, "a" * 100, None, 0, "hand", None] for at in range(3000)]
    text = '{"format": "tbscope.Graph", "version": 1, "name": "x", "scopes": %s}'
    assert graph_from_json(text % json.dumps(scopes[:1000])).nodes == []
    with pytest.raises(tbscope.ArgumentError, match=r"scopes\[[0-9]+\] is too deep"):
        graph_from_json(text % json.dumps(scopes))


@pytest.mark.parametrize("form", [str, str.encode])
def test_a_long_text_of_hardly_more_than_brackets_is_refused(form):
    with pytest.raises(tbscope.ArgumentError, match="it opens 3,400,000 lists and objects in"):
        graph_from_json(form("[]," * 3_400_000))


def test_a_number_that_others_cannot_read_is_a_text():
    build = GraphBuilder()
    build.output("out", build.op("op", build.input("x", (1,)), 2**53, 2**53 + 1))
    text = graph_to_json(build.graph)
    assert "9007199254740992" in text
    assert '{"int":"0x20000000000001"}' in text


def test_the_documentation_names_every_field():
    data = json.loads(graph_to_json(full()))
    keys = {*data, *(key for node in data["nodes"] for key in node)}
    for table in ("outputs", "calls", "notes"):
        keys |= {key for entry in data[table] for key in entry}
    assert [key for key in sorted(keys) if f"`{key}`" not in DOC] == []


# -- files ------------------------------------------------------------------------------------


def test_a_graph_is_saved_and_loaded_by_what_the_file_holds(tmp_path):
    graph = full()
    graph.save(tmp_path / "graph.json")
    other = (tmp_path / "graph.json").rename(tmp_path / "graph.onnx")
    assert differences(graph, tbscope.load(other)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["graph.onnx"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    (tmp_path / "there.json").mkdir()
    for path, why in ((tmp_path / "no" / "x.json", "No such file"), (tmp_path / "there.json", "")):
        with pytest.raises(tbscope.ArgumentError, match=f"cannot save a graph as .*\n.*{why}"):
            chain(1).save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["there.json"]


@pytest.mark.parametrize(
    "path", ["graph.pbx", "graph", 3, None, b"x.json", "a\0.json", "\ud800.json"]
)
def test_a_path_that_tells_no_form_is_refused(path):
    with pytest.raises(tbscope.ArgumentError, match="cannot save a graph as"):
        chain(1).save(path)


def test_a_damaged_file_is_refused_by_its_name(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(graph_to_json(chain(1))[:-3])
    with pytest.raises(tbscope.ArgumentError, match=r"no graph can be read from .*x\.json"):
        tbscope.load(path)
