"""Graphs as JSON: what is written is what is read back, and what is no graph is refused."""

import dataclasses
import json
import math
import re
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from build import GraphBuilder, chain
from full_graph import full
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_graphs import KINDS, real_graph
from same_graph import differences
from sweeps import counted
from test_random_models import WIDTH, models

import tbscope
from tbscope.formats.json import compact_json, graph_from_json, graph_to_json
from tbscope.ir.graph import (
    Call,
    Constant,
    Graph,
    Node,
    Note,
    Output,
    Profile,
)

DOC = (Path(__file__).parents[1] / "docs" / "forms.md").read_text(encoding="utf-8")
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


def everything_in(graph):
    calls, nodes = graph.calls, [*graph.nodes, *(n for o in graph.nodes if o.body for n in [])]
    return [graph, *nodes, *calls, *graph.notes, *graph.outputs, graph.profile]


@pytest.mark.parametrize("kind", [Graph, Node, Call, Note, Output, Profile])
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
@settings(max_examples=counted(200, 60), deadline=None, derandomize=True)
def test_every_nest_survives(nest):
    build = GraphBuilder()
    build.output("out", build.op("op", build.input("x", (1,)), nest))
    hold(build.graph)


@settings(
    max_examples=counted(20, 10),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
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
    assert tbscope.costs(again).total == tbscope.costs(graph).total
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


def test_a_constant_of_another_class_becomes_its_text():
    build = GraphBuilder()
    build.output("out", build.op("op", build.input("x", (1,)), {1, 2}))
    (again, _) = both_ways(build.graph)
    assert again.nodes[1].arguments[1].nest == Constant("{1, 2}")


def test_the_same_graph_gives_the_same_text_of_one_line_for_each_table():
    text = graph_to_json(chain(3))
    assert text == graph_to_json(graph_from_json(text))
    tables = ["types", "scopes", "parameters", "nodes", "calls", "modules", "outputs", "graph"]
    keys = [line.partition(":")[0].strip('"') for line in text.splitlines()[1:-1]]
    assert [key for key in keys if key in tables] == [key for key in tables if key in keys]
    assert len(keys) == len(json.loads(text))
    assert text.isascii()


def test_equal_facts_are_written_once_and_read_as_objects_of_their_own():
    graph = tbscope.trace(
        torch.nn.Sequential(*map(torch.nn.Linear, (3, 3, 3), (3, 3, 3))), torch.rand(3)
    )
    tables = json.loads(graph_to_json(graph))
    settings = {"in_features": 3, "out_features": 3, "bias": True}
    assert tables["facts"]["content"].count(settings) == 1
    assert sorted(tables["kernels"]["content"]) == [[], graph.find("0").results.producer.kernels]
    for again in both_ways(graph):
        first, second = again.find("0"), again.find("1")
        assert first.hyperparameters == second.hyperparameters == settings
        assert first.hyperparameters is not second.hyperparameters
        nodes = [call.results.producer for call in (first, second)]
        nodes[0].attributes["mark"] = 1
        nodes[0].kernels.append("mark")
        assert "mark" not in nodes[1].attributes
        assert "mark" not in nodes[1].kernels


def test_a_column_of_defaults_is_left_out():
    data = json.loads(graph_to_json(chain(3)))
    assert not {"flops", "body", "random"} & data["nodes"].keys()
    assert {len(column) for column in data["nodes"].values()} == {len(chain(3).nodes)}


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
    "version": (["version"], "1", "version is '1', and should be a number"),
    "unknown key": (["colour"], 1, "colour is no field that this version has"),
    "a key of nodes": (["nodes", "colour"], 1, "nodes.colour is no field"),
    "name": (["graph", "name", 0], None, "graph.name is None, and should be a text"),
    "no graph": (["graph"], ..., "graph has 0 rows, and should have one"),
    "nodes": (["nodes"], [], "nodes is [], and should be an object"),
    "a column": (["nodes", "op"], 7, "nodes.op is 7, and should be a list of 8"),
    "short column": (["nodes", "kind"], ["op"], "nodes.kind is ['op'], and should be a list of 8"),
    "kind": (["nodes", "kind", 3], "thing", "nodes.kind is 'thing', and should be one of op, "),
    "op": (["nodes", "op"], ..., "nodes.op is None, and should be a text"),
    "type": (["nodes", "outputs", 0], [99], "nodes.outputs is 99, which names nothing"),
    "negative": (["nodes", "outputs", 0], [-1], "nodes.outputs is -1, which names nothing"),
    "truth as number": (["nodes", "outputs", 0], [True], "nodes.outputs is True, which"),
    "value": (["nodes", "arguments", 3, 0], [99], "nodes.arguments is 99, which names"),
    "a later value": (["nodes", "arguments", 3, 0], [6], "nodes.arguments is 6, which names"),
    "argument": (["nodes", "arguments", 3, 0], {"a": 1, "b": 2}, "which is no value and no"),
    "no constant": (["nodes", "arguments", 3, 0], {"set": [1]}, "is {'set': [1]}, which is no"),
    "no nest": (["nodes", "arguments", 3, 0], [], "nodes.arguments is [], which is no"),
    "no number": (["calls", "results", 0], {"int": "0xzz"}, "calls.results is {'int': '0xzz'}"),
    "no float": (["calls", "results", 0], {"complex": [{"int": hex(10**400)}, 0]}, "results is {"),
    "dict key": (["calls", "results", 0], {"dict": [[{"list": []}, 1]]}, "results is {'dict'"),
    "flops": (["nodes", "flops", 6], -3, "nodes.flops is -3, and should be a whole number"),
    "fraction": (["nodes", "flops", 6], 1.5, "nodes.flops is 1.5, and should be a whole"),
    "no count": (["nodes", "flops", 6], 2**101, "nodes.flops is 2535301200456458802993406410"),
    "role": (["nodes", "role", 6], "master", "nodes.role is 'master', and should be one"),
    "kernels": (["nodes", "kernels", 6], [1], "nodes.kernels is 1, and should be a text"),
    "facts": (["nodes", "attributes", 6], 99, "nodes.attributes is 99, which names nothing"),
    "a fact": (["facts", "content", 0], [1], "facts.content is [1], and should be an object"),
    "gradients": (
        ["gradients", "content", 0],
        7,
        "gradients.content is 7, and should be a list",
    ),
    "body": (["nodes", "body", 6], [], "nodes.body is [], and should be a list of 3"),
    "size": (["types", "shape", 0], [-2], "types.shape is -2, and should be a whole"),
    "source": (["sources", "line", 0], "3", "sources.line is '3', and should be a whole number"),
    "scope around": (["scopes", "parent", 1], 5, "scopes.parent is 5, which names"),
    "scope around itself": (["scopes", "parent", 1], 1, "scopes.parent is 1, which names"),
    "scope kind": (["scopes", "kind", 1], "room", "scopes.kind is 'room', and should be one of"),
    "scope part": (["scopes", "part", 1], ["a"], "scopes.part is ['a'], and should be a list"),
    "parameter": (["parameters", "kind", 0], "weight", "parameters.kind is 'weight'"),
    "run around itself": (["runs", "around", 1], 1, "runs.around is 1, which names"),
    "input": (["graph", "inputs", 0], [1], "is among the inputs and of the kind"),
    "output": (["outputs", "value", 0], None, "outputs.value is None, which names nothing"),
    "call": (["calls", "scope"], ..., "calls.scope is None, which names nothing"),
    "note": (["notes", "topic", 0], "x", "notes.topic is 'x', and should be one of run"),
    "module": (["modules", "parameters", 0], 3, "modules.parameters is 3, and should be a list"),
    "signature": (["graph", "signatures", 0, "all"], [3], "graph.signatures is 3, and"),
    "uncounted": (["graph", "uncounted", 0, "aten::a"], 3, "graph.uncounted is 3, and"),
    "clock": (["graph", "profile", 0, 5], 3, "graph.profile.clock is 3, and should be a text"),
    "steps": (["graph", "profile", 0, 0], "5", "graph.profile.steps is '5', and should be a"),
    "sharding": (["types", "sharding", 0], 7, "types.sharding is 7, which names nothing"),
    "placements": (["shardings", "placements", 0], ["S"], "has 1 placements along 2 dimensions"),
    "rank": (["collectives", "ranks", 0], ["1"], "collectives.ranks is '1', and should be a"),
    "collective": (["nodes", "collective", 6], 9, "nodes.collective is 9, which names nothing"),
    "world": (["graph", "world_size", 0], "6", "graph.world_size is '6', and should be"),
    "write": (["nodes", "writes", 6], [99], "writes into its inputs (99,), of which it has"),
    "two of a name": (["nodes", "name", 0], "2", "2 nodes are named '2'"),
    "another value": (["other_values", "producer", 0], 99, "other_values.producer is 99, which"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_with_its_place(name):
    path, to, told = BAD[name]
    with pytest.raises(tbscope.ArgumentError, match=re.escape(told)) as caught:
        graph_from_json(changed(*path, to=to))
    assert caught.value.what == "this describes no graph"
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(("version", "fix"), [(6, "pip install --upgrade tbscope"), (4, "write")])
def test_another_version_is_told_as_one(version, fix):
    with pytest.raises(tbscope.ArgumentError) as caught:
        graph_from_json(changed("version", to=version))
    told = (
        f"this graph is of version {version} of its format\n  why: this tbscope reads version 5\n"
    )
    assert str(caught.value).startswith(f"{told}  fix: {fix}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Expecting value, in line 1, column 1"),
        ('{"format": "tbscope.Graph",\n "version": }', "Expecting value, in line 2, column 13"),
        ('{"a": NaN}', "NaN is no JSON"),
        ("[" * 100_000, "its lists are nested too deep"),
        (b"\xff{}", "UnicodeDecodeError"),
        ("1" * 5000, "ValueError"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text, told):
    with pytest.raises(tbscope.ArgumentError, match=re.escape(told)):
        graph_from_json(text)


def test_a_number_that_others_cannot_read_is_a_text():
    build = GraphBuilder()
    numbers = (2**53, 2**53 + 1, -(2**53) - 1)
    build.output("out", build.op("op", build.input("x", (1,)), *numbers))
    text = graph_to_json(build.graph)
    assert "9007199254740992" in text
    assert '{"int":"0x20000000000001"},{"int":"-0x20000000000001"}' in text


def test_a_number_of_numpy_is_written_as_a_number():
    graph = chain(1)
    graph.nodes[-1].flops = numpy.int64(7)
    assert graph_from_json(graph_to_json(graph)).nodes[-1].flops == 7


def test_the_documentation_names_every_field():
    data = json.loads(graph_to_json(full()))
    keys = {*data, *(key for table in data.values() if type(table) is dict for key in table)}
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
