"""The table of a graph's modules: its totals against torch's own count, its forms, its limits."""

import importlib.abc
import io
import json
import sys
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from sweeps import counted
from torch import nn

import tbscope
from tbscope.analysis.text_tables import Table
from tbscope.analysis.units import bytes_text, count_text, duration_text, flops_text
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tests.build import GraphBuilder, chain
from tests.test_random_models import WIDTH, models
from tests.zoo.models import build, catalogue

REAL = (
    *("BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "AlbertForMaskedLM"),
    *("LlamaForCausalLM", "MixtralForCausalLM", "WhisperForConditionalGeneration", "CLIPModel"),
    "ResNetForImageClassification",
)
TIED = {"BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration", "AlbertForMaskedLM"}


def rows_of(graph, **options):
    """Give the rows by the qualified names of their modules."""
    return {row["name"]: row for row in graph.summary(**options).rows}


def check_holdings(row, module):
    """Hold what a row tells of parameters and buffers against torch's own lists."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    assert row["parameters"] == sum(p.numel() for p in parameters)
    assert row["trainable_parameters"] == sum(p.numel() for p in parameters if p.requires_grad)
    assert row["parameter_bytes"] == sum(p.numel() * p.element_size() for p in parameters)
    assert row["buffers"] == sum(b.numel() for b in buffers)
    assert row["buffer_bytes"] == sum(b.numel() * b.element_size() for b in buffers)
    own = {id(p): p.numel() for p in module._parameters.values() if p is not None}
    assert row["own_parameters"] == sum(own.values())


def check_costs(graph, summary):
    """Hold what a table tells of the run against the sums by scope."""
    costs = tbscope.costs(graph).scopes
    for row in summary.rows:
        if row["name"] is not None:
            mine = [cost for scope, cost in costs.items() if scope.qualified_name == row["name"]]
            assert (row["flops"] or 0) == sum(cost.flops for cost in mine)
            assert row["activation_bytes"] == sum(cost.activation_bytes for cost in mine)
            assert row["calls"] == len(graph.find_calls(row["name"]))
    whole = tbscope.costs(graph).total
    assert summary.rows[0]["activation_bytes"] == whole.activation_bytes
    assert summary.totals["backward_flops"] in (whole.backward_flops, None)
    assert summary.totals["uncounted"] == whole.uncounted


@pytest.fixture(scope="module", params=REAL)
def real(request):
    (entry,) = (entry for entry in catalogue() if entry.name == request.param)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, inputs = (example := build(entry)).model, example.inputs
        return request.param, model, tbscope.trace(model, inputs)


def test_a_real_model_counts_as_torch_counts(real):
    name, model, graph = real
    summary = graph.summary()
    assert summary.totals["parameters"] == sum(p.numel() for p in model.parameters())
    assert summary.rows[0]["share"] == 1.0
    assert bool(summary.totals["tied"]) >= (name in TIED)
    check_costs(graph, summary)


def test_each_row_of_a_real_model_counts_its_module(real):
    _, model, graph = real
    modules = dict(model.named_modules())
    rows = rows_of(graph)
    assert list(rows) == list(modules)
    for name, module in modules.items():
        check_holdings(rows[name], module)


@settings(
    max_examples=counted(60, 24),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, frozen=st.integers(0, 3))
def test_a_random_tree_of_modules_counts_as_torch_counts(model, frozen):
    for parameter in list(model.parameters())[:frozen]:
        parameter.requires_grad_(False)
    graph = tbscope.trace(model, torch.rand(8, WIDTH), partial=True)
    summary = graph.summary()
    named = dict(model.named_modules())
    assert {row["name"] for row in summary.rows} - {None} == set(named)
    for row in summary.rows:
        if row["name"] is not None:
            check_holdings(row, named[row["name"]])
    check_costs(graph, summary)
    texts = str(summary), str(graph.summary(fold=False))
    assert all(texts)


class Lends(nn.Module):
    """A model, and beside it a list that holds one of its modules as well."""

    def __init__(self, model, which):
        super().__init__()
        self.model = model
        self.aside = nn.ModuleList([list(model.modules())[which]])

    def forward(self, x):
        return self.model(x)


@settings(
    max_examples=counted(40, 16),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, which=st.integers(0, 5), above=st.booleans())
def test_a_random_tree_of_which_a_part_is_lent_counts_as_torch_counts(model, which, above):
    count = len(list(model.modules()))
    model = Lends(model, which % count)
    model = Lends(nn.Sequential(model, model.aside[0]), which % 3) if above else model
    graph = tbscope.trace(model, torch.rand(8, WIDTH), partial=True)
    named = dict(model.named_modules())
    for row in graph.summary().rows:
        if row["name"] is not None:
            check_holdings(row, named[row["name"]])


class Branches(nn.Module):
    """Containers, a module called twice and held twice, a part that never runs."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 2)})
        self.again = self.blocks[0]
        self.scale = nn.Parameter(torch.ones(4))
        self.unused = nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = self.again(x[:, None])[:, 0] * self.scale
        return {"y": self.named["a"](x), "rest": [x, None]}


@pytest.fixture(scope="module")
def branches():
    return tbscope.trace(Branches(), torch.rand(3, 4))


def test_the_tree_is_that_of_the_author(branches):
    summary = branches.summary()
    assert [(row["depth"], row["module"], row["class"], row["kind"]) for row in summary.rows] == [
        (0, "Branches", "Branches", "module"),
        (1, "blocks", "ModuleList", "container"),
        (2, "0", "Linear", "module"),
        (2, "1", "Linear", "module"),
        (1, "named", "ModuleDict", "container"),
        (2, "a", "Linear", "module"),
        (2, "b", "Linear", "unused"),
        (1, "unused", "Sequential", "unused"),
        (2, "0", "Linear", "unused"),
        (2, "1", "Linear", "unused"),
    ]


def test_a_module_called_twice_has_one_row_with_the_sum(branches):
    row = rows_of(branches)["blocks.0"]
    assert (row["calls"], row["varies"], row["flops"]) == (2, True, 2 * 2 * 3 * 4 * 4)
    assert (row["input"], row["output"]) == ({"input": (3, 4)}, {"out": (3, 4)})
    assert row["parameters"] == 20


def test_results_have_the_names_that_the_outputs_of_a_graph_have(branches):
    row = branches.summary().rows[0]
    assert row["output"] == {"y": (3, 4), "rest.0": (3, 4)}
    assert list(row["output"]) == [output.name for output in branches.outputs]


def test_what_never_ran_has_parameters_and_no_shapes(branches):
    row = rows_of(branches)["unused"]
    assert (row["parameters"], row["calls"], row["scope"]) == (904, 0, None)
    assert (row["input"], row["output"], row["flops"]) == (None, None, 0)


TABLE = """\
Module      Class       Input   Output  Parameters    Share  Trainable  FLOPs  Activations
------------------------------------------------------------------------------------------
Sequential              (2, 3)  (2, 5)          80  100.0 %         65    260        120 B
  0         Linear      (2, 3)  (2, 5)          20   25.0 %          5     60         40 B
  1-2       2 x Linear  (2, 5)  (2, 5)          60   75.0 %        yes    200         80 B
  3         Dropout     (2, 5)  (2, 5)
------------------------------------------------------------------------------------------
Parameters   80 (320 B), 65 trainable
FLOPs        260 forward, 400 backward
Activations  120 B"""


def test_the_text_of_a_small_table():
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Dropout(0.5))
    net[0].weight.requires_grad_(False)
    assert str(tbscope.trace(net, torch.rand(2, 3)).summary()) == TABLE


def test_a_table_with_nothing_below_it_ends_with_its_last_row():
    assert str(Table(["Op"], [["relu"]], [False], [])) == "Op\n----\nrelu"
    below = [("Parameters", "0")]
    assert str(Table(["Op"], [["relu"]], [False], below)).endswith("relu\n----\nParameters  0")


def test_repr_is_the_table_so_that_a_prompt_shows_it(branches):
    summary = branches.summary()
    assert repr(summary) == str(summary) == str(branches.summary())


def test_equal_layers_fold_into_one_line_with_their_sum():
    graph = chain(12)
    folded = str(graph.summary()).splitlines()
    assert [line.split()[:4] for line in folded if " x " in line] == [["0-11", "12", "x", "Linear"]]
    assert len(str(graph.summary(fold=False)).splitlines()) == len(folded) + 11
    assert len(graph.summary().rows) == 13


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net[1].weight.requires_grad_(False),
        lambda net: net.__setitem__(1, nn.Linear(4, 4, bias=False)),
        lambda net: setattr(net[1], "weight", net[2].weight),
        lambda net: net.__setitem__(1, nn.Identity()),
    ],
    ids=["frozen", "without bias", "tied", "of another class"],
)
def test_layers_that_differ_do_not_fold(change):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    assert "0-2" in str(tbscope.trace(net, torch.rand(1, 4)).summary())
    change(net)
    text = str(tbscope.trace(net, torch.rand(1, 4)).summary())
    assert "0-" not in text
    assert "1-" not in text


def test_equal_modules_with_names_of_their_own_do_not_fold():
    net = nn.ModuleDict({"q": nn.Linear(4, 4), "k": nn.Linear(4, 4)})
    graph = tbscope.trace(lambda x: net["k"](net["q"](x)), torch.rand(1, 4))
    assert " x " not in str(graph.summary())


def test_a_line_in_folded_layers_stands_for_all_of_them():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    lines = str(tbscope.trace(net, torch.rand(1, 4)).summary()).splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["Sequential", "0-2", "0", "1"]
    assert " ".join(lines[4].split()[1:]) == "Linear (1, 4) (1, 4) 60 100.0 % 96 48 B"


def test_depth_leaves_lines_out_and_no_figure():
    net = nn.Sequential(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4))
    graph = tbscope.trace(net, torch.rand(1, 4))
    for depth, count in ((0, 1), (1, 3), (2, 4), (None, 4)):
        summary = graph.summary(depth=depth)
        assert len(summary.rows) == count
        assert summary.rows[0]["flops"] == 64
        assert summary.totals["parameters"] == 40


@pytest.mark.parametrize("depth", [-1, 1.5, True, "1"])
def test_depth_is_a_number_of_levels(branches, depth):
    with pytest.raises(ArgumentError) as error:
        branches.summary(depth=depth)
    assert str(error.value) == (
        f"depth={depth!r} is no number of modules\n"
        "  why: it is the number of enclosing modules that a line of the table may have\n"
        "  fix: give depth=0 for the model alone, depth=2 for two levels in it, None for all"
    )


def test_columns_are_those_asked_for_in_that_order(branches):
    head, _, first, *_ = str(branches.summary(columns=["calls", "name", "kind"])).splitlines()
    assert head.split() == ["Module", "Calls", "Name", "Kind"]
    assert first.split() == ["Branches", "1", "module"]
    assert str(branches.summary(columns="calls")).splitlines()[0].split() == ["Module", "Calls"]


def test_a_column_that_is_none_is_told(branches):
    with pytest.raises(ArgumentError) as error:
        branches.summary(columns=["calls", "parameter"])
    assert str(error.value) == (
        "a summary has no column 'parameter'\n"
        "  why: its columns are class, name, scope, kind, input, output, tensors, calls, "
        "parameters, own_parameters, share, trainable_parameters, shared_parameters, "
        "parameter_bytes, "
        "buffers, buffer_bytes, flops, backward_flops, activation_bytes, moved_bytes, "
        "saved_bytes, intensity, duration_us\n"
        "  fix: did you mean 'parameters', 'own_parameters', 'parameter_bytes'?"
    )


def test_a_column_that_says_the_same_everywhere_is_not_shown_unasked():
    graph = tbscope.trace(nn.Linear(3, 3), torch.rand(1, 3))
    head = str(graph.summary()).splitlines()[0].split()
    assert " ".join(head) == "Module Class Input Output Parameters Share FLOPs Activations"


def test_rows_are_plain_and_complete(branches):
    rows = branches.summary().rows
    assert len({tuple(row) for row in rows}) == 1
    assert json.loads(json.dumps(rows))[2]["input"] == {"input": [3, 4]}
    assert {type(value) for row in rows for value in row.values()} <= {
        *(int, float, str, bool, dict, type(None)),
    }


def test_tied_weights_count_once_and_are_named():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    graph = tbscope.trace(net, torch.rand(1, 4))
    rows = rows_of(graph)
    assert [rows[name]["parameters"] for name in ("", "0", "1", "2")] == [36, 16, 16, 20]
    assert [rows[name]["shared_parameters"] for name in ("", "0", "1", "2")] == [0, 16, 16, 0]
    assert "Tied (=)     0.weight = 1.weight; counted once" in str(graph.summary())
    assert " 16 = " in str(graph.summary())


def test_modules_that_no_module_registers_are_told_apart():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.plain = [nn.Linear(3, 3), nn.Linear(3, 3, bias=False)]
            self.plain[1].weight = self.layer.weight

        def forward(self, x):
            return self.plain[1](self.plain[0](self.layer(x)))

    net = Hidden()
    summary = tbscope.trace(net, torch.rand(1, 3)).summary()
    assert summary.totals["parameters"] == sum(p.numel() for p in net.parameters()) == 12
    assert summary.totals["unregistered_parameters"] == 12 + 9
    told = [(row["module"], row["name"], row["parameters"]) for row in summary.rows]
    assert told == [("Hidden", "", 12), ("layer", "layer", 12), ("?0", None, 12), ("?1", None, 9)]
    assert summary.rows[0]["shared_parameters"] == 0
    assert "Unregistered  21 more, in modules that no module registers" in str(summary)


def test_parts_of_a_module_that_no_module_registers_count_once():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = [nn.Sequential(nn.Linear(3, 3))]

        def forward(self, x):
            return self.plain[0](x)

    summary = tbscope.trace(Hidden(), torch.rand(1, 3)).summary()
    assert [row["parameters"] for row in summary.rows] == [0, 12, 12]
    assert summary.totals["unregistered_parameters"] == 12


def test_blocks_by_hand_are_lines_with_what_ran_in_them():
    class Scoped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.outside = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            with tbscope.scope("prepare"):
                x = self.inside(x @ x.T @ x)
            return self.outside(x)

    rows = tbscope.trace(Scoped(), torch.rand(3, 3)).summary().rows
    assert [(row["depth"], row["module"], row["kind"], row["flops"]) for row in rows] == [
        (0, "Scoped", "module", 4 * 54),
        (1, "outside", "module", 54),
        (1, "prepare", "scope", 3 * 54),
        (2, "inside", "module", 54),
    ]
    assert [row["parameters"] for row in rows] == [24, 12, 12, 12]


def test_a_function_without_modules_has_a_table():
    summary = tbscope.trace(torch.matmul, (torch.rand(2, 3), torch.rand(3, 4))).summary()
    (row,) = summary.rows
    assert (row["module"], row["kind"], row["flops"], row["share"]) == ("matmul", "scope", 48, 0.0)
    assert str(summary).splitlines()[3:] == [
        "--------------------------",
        "Parameters   0 (0 B)",
        "FLOPs        48 forward",
        "Activations  32 B",
    ]


def two_models():
    return (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 2)),
    )


@pytest.mark.parametrize("how", ["given", "named", "neither"])
def test_several_models_in_one_recording_stand_side_by_side(how):
    one, two = two_models()
    given = (one, two) if how == "given" else ()
    named = {"one": one, "two": two} if how == "named" else {}
    with tbscope.record(*given, **named) as recording:
        loss = two(one(torch.rand(3, 4))).pow(2).mean()
    rows = recording.graph.summary().rows
    assert loss.shape == ()
    assert [(row["depth"], row["class"], row["parameters"]) for row in rows] == [
        (0, "", 64),
        (1, "Sequential", 40),
        (2, "Linear", 40),
        (2, "ReLU", 0),
        (1, "Sequential", 24),
        (2, "Linear", 18),
        (2, "Linear", 6),
    ]
    assert rows[0]["flops"] == rows[1]["flops"] + rows[4]["flops"] > 0


def test_several_models_of_one_class_keep_their_calls_when_called_in_another_order():
    one, two = two_models()
    with tbscope.record(one, two) as recording:
        two(torch.rand(3, 8))
        one(torch.rand(3, 4))
        two(torch.rand(3, 8))
    rows = recording.graph.summary().rows
    assert [(row["calls"], row["parameters"]) for row in rows] == [
        *((0, 64), (1, 40), (1, 40), (1, 0), (2, 24), (2, 18), (2, 6)),
    ]


def test_what_runs_beside_the_only_model_of_a_recording_is_in_the_total():
    net = nn.Linear(3, 3)
    with tbscope.record(net) as recording:
        net(torch.rand(3, 3)) @ torch.rand(3, 3)
    rows = recording.graph.summary().rows
    assert [(row["module"], row["flops"]) for row in rows] == [("record", 108), ("Linear", 54)]


def test_buffers_that_are_shared_are_no_tied_parameters():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    net[1].running_mean = net[0].running_mean
    totals = tbscope.trace(net, torch.rand(2, 3)).summary().totals
    assert (totals["tied"], totals["buffers"]) == ([], sum(b.numel() for b in net.buffers()))


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        *((count_text, 0, "0"), (count_text, 9_999, "9,999"), (count_text, 10_000, "10.0k")),
        *(
            (count_text, 99_960, "100k"),
            (count_text, 999_499, "999k"),
            (count_text, 999_500, "1.00M"),
        ),
        *((count_text, 405_853_388_800, "406B"), (count_text, 10**16, "10,000T")),
        *((flops_text, 4_089_184_256, "4.09G"), (flops_text, 1_688_000_000_000_000, "1.69P")),
        *((bytes_text, 2**997, "more than 1e300 EiB"), (flops_text, 10**301, "more than 1e300E")),
        (bytes_text, 2**60 * 10**281, f"{1e281:,.0f} EiB"),
        *((bytes_text, 1023, "1023 B"), (bytes_text, 1024, "1.00 KiB"), (bytes_text, 0, "0 B")),
        *((bytes_text, 1024**2 - 1, "1.00 MiB"), (bytes_text, 102_228_128, "97.5 MiB")),
        *((duration_text, 0.5, "0.50 us"), (duration_text, 999.4, "999 us")),
        *((duration_text, 999.6, "1.00 ms"), (duration_text, 5e9, "5,000 s")),
    ],
)
def test_numbers_have_three_digits_and_a_unit(write, number, text):
    assert write(number) == text


def test_a_small_share_is_not_told_as_none():
    net = nn.Sequential(nn.Linear(64, 64), nn.PReLU())
    lines = str(tbscope.trace(net, torch.rand(1, 64)).summary(columns=["share"])).splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[2:5]] == ["100.0 %", "100.0 %", "<0.1 %"]


def test_two_models_of_one_class_may_share_a_parameter():
    one, two = nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3))
    two[0].weight = one[0].weight
    with tbscope.record(one, two) as recording:
        two(one(torch.rand(1, 3)))
    rows = recording.graph.summary().rows
    assert [row["parameters"] for row in rows] == [15, 12, 12, 12, 12]
    assert [row["shared_parameters"] for row in rows] == [0, 9, 9, 9, 9]


def test_what_has_no_formula_is_told_and_no_zero():
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Flatten())
    graph = tbscope.trace(net, torch.rand(1, 4))
    rows = rows_of(graph)
    assert (rows["1"]["flops"], rows["1"]["uncounted"]) == (None, {"aten::native_layer_norm": 1})
    assert (rows["2"]["flops"], rows["2"]["uncounted"]) == (0, {})
    assert rows[""]["flops"] == 32
    lines = str(graph.summary()).splitlines()
    assert lines[4].split()[-3:] == ["?", "16", "B"]
    assert "Not in FLOPs  aten::native_layer_norm" in lines


def test_a_lazy_module_counts_what_it_has_become():
    graph = tbscope.trace(nn.LazyLinear(3), torch.rand(2, 5))
    assert graph.summary().totals["parameters"] == 18


def test_what_is_not_initialised_counts_nothing():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.later = nn.LazyLinear(3)

        def forward(self, x):
            return x * 2

    graph = tbscope.trace(Holder(), torch.rand(2, 5))
    assert (graph.summary().totals["parameters"], len(graph.summary().rows)) == (0, 2)


def test_a_quantised_model_has_a_table():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        summary = tbscope.trace(net, torch.rand(1, 4)).summary()
    assert summary.totals["parameters"] == sum(p.numel() for p in net.parameters())
    assert [row["module"] for row in summary.rows][:2] == ["Sequential", "0"]


def test_a_scripted_module_has_the_figures_of_all_that_ran_in_it():
    net = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    rows = rows_of(tbscope.trace(net, torch.rand(2, 3)))
    assert [row["kind"] for row in rows.values()] == ["module", "container", "container"]
    assert (rows["0"]["parameters"], rows["0"]["flops"]) == (12, 0)
    assert (rows[""]["parameters"], rows[""]["flops"]) == (12, 36)


def test_a_model_that_raised_is_told_as_far_as_it_ran():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5), nn.ReLU())
    rows = rows_of(tbscope.trace(net, torch.rand(1, 4), partial=True))
    assert [rows[name]["kind"] for name in ("0", "1", "2")] == ["module", "module", "unused"]
    assert rows[""]["parameters"] == 50
    assert (rows["0"]["output"], rows["1"]["output"]) == ({"out": (1, 4)}, {})


def test_sizes_that_nobody_knows_are_question_marks():
    build = GraphBuilder("Net")
    scope = build.call("Net", build.input("x", (None, 3)))
    build.returns(scope, [build.op("f", build.graph.inputs[0].outputs[0], scope=scope), None, 3])
    line = str(build.graph.summary()).splitlines()[2]
    assert line.split("  ")[-2:] == ["(?, 3)", "(?, 3)"]


def test_many_results_are_counted_not_listed():
    net = nn.Identity()
    graph = tbscope.trace(net, ({f"key{place}": torch.rand(2, 2) for place in range(9)},))
    line = str(graph.summary(columns=["output"])).splitlines()[2]
    assert line.split("  ")[-1] == "key0 (2, 2), key1 (2, 2) + 7"


def test_a_deep_tree_needs_no_recursion():
    build = GraphBuilder("Net")
    scope = build.call("Net" + "/Net[0]" * 400)
    build.op("f", build.input("x", (1, 2)), scope=scope)
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(150)
        summary = build.graph.summary()
        text = str(summary)
    finally:
        sys.setrecursionlimit(limit)
    assert (len(summary.rows), summary.rows[-1]["depth"]) == (401, 400)
    assert len(text) < 200_000


def test_an_empty_graph_has_a_table():
    assert str(Graph("nothing").summary()) == (
        "Module\n-------\nnothing\n-------\nParameters  0 (0 B)"
    )


def test_names_with_marks_of_rich_stay_names():
    class_name, attribute = "[bold]", "[red]&"
    layer, net = nn.Linear(2, 2), nn.Sequential()
    layer.__class__ = type(class_name, (nn.Linear,), {})
    net.add_module(attribute, layer)
    summary = tbscope.trace(net, torch.rand(1, 2)).summary(columns=["class", "name"])
    text = rich_text(summary, width=120)
    assert class_name in text
    assert attribute in text


def rich_text(summary, *, width):
    """Give what rich prints in a terminal of this width."""
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(summary)
    return out.getvalue()


def test_a_terminal_gets_the_columns_for_which_it_has_room(branches):
    wide, narrow = (rich_text(branches.summary(), width=width) for width in (160, 60))
    assert "No room for" not in wide
    assert "Input" in wide.splitlines()[0]
    assert "No room for   Input, Share" in narrow
    assert all(word in narrow for word in ("Parameters", "FLOPs", "unused"))
    assert max(map(len, narrow.splitlines())) <= 60


def test_a_terminal_gets_numbers_at_the_right_and_texts_at_the_left(branches):
    titles, _, root, *_ = rich_text(branches.summary(), width=160).splitlines()
    assert root.startswith("Branches ")
    assert root.index("y (3, 4)") == titles.index("Output")
    assert root[: titles.index("Parameters") + len("Parameters")].endswith("  978")


def test_columns_that_were_asked_for_are_shown_however_narrow(branches):
    text = rich_text(branches.summary(columns=["input", "share"]), width=30)
    assert "No room for" not in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


class NoRich(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "rich":
            raise ModuleNotFoundError(f"No module named {fullname!r}")


def shown(summary, monkeypatch, file):
    monkeypatch.setattr(sys, "stdout", file)
    summary.show()
    return file.getvalue()


def test_show_draws_with_rich_in_a_terminal_and_writes_plain_text_elsewhere(branches, monkeypatch):
    summary = branches.summary()
    assert shown(summary, monkeypatch, io.StringIO()) == f"{summary}\n"
    monkeypatch.setattr("rich._console", None, raising=False)
    drawn = shown(summary, monkeypatch, Terminal())
    assert "─" in drawn
    assert "Branches" in drawn


def test_show_writes_plain_text_where_rich_is_missing(branches, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoRich(), *sys.meta_path])
    summary = branches.summary()
    assert shown(summary, monkeypatch, Terminal()) == f"{summary}\n"


def test_plain_text_is_ascii_for_any_pipe(branches):
    assert str(branches.summary()).isascii()


def test_times_stand_where_they_were_measured():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    plain, measured = (
        tbscope.trace(net, torch.rand(2, 8), profile=steps).summary() for steps in (False, 2)
    )
    assert {row["duration_us"] for row in plain.rows} == {None}
    assert "Time" not in str(plain)
    root, *parts = [row["duration_us"] for row in measured.rows]
    assert root == pytest.approx(sum(parts))
    assert str(measured).splitlines()[0].endswith("Time")
    assert "in operations; an unwatched run took" in str(measured).splitlines()[-1]


def test_intensity_is_flops_by_bytes_that_move_also_of_layers_in_one_line():
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(3)])
    summary = tbscope.trace(model, torch.rand(2, 4)).summary(columns="intensity")
    flops, moved = 2 * 2 * 4 * 4, 4 * (2 * 4 + 4 * 4 + 2 * 4)
    assert [row["intensity"] for row in summary.rows] == [flops / moved] * 4
    assert [line.split()[-1] for line in str(summary).splitlines()[2:4]] == ["0.5", "0.5"]
    idle = tbscope.trace(nn.Identity(), torch.rand(2)).summary().rows[0]
    assert idle["intensity"] is None
