"""Rows: shapes by the names of arguments and results, and what varies from call to call."""

import pytest
from build import GraphBuilder

from tbscope.analysis.costs import Costs
from tbscope.analysis.summary import add_rows, costs_row, part_row
from tbscope.ir.graph import Argument, Call
from tbscope.ir.module_tree import ModulePart

BUILD = GraphBuilder()


def tensor(*shape):
    return BUILD.input(f"x{len(BUILD.graph.nodes)}", shape)


def row(*calls):
    """Give the row of a part with calls of these arguments and results."""
    part = ModulePart("Net", kind="module")
    scope = BUILD.scope("Net")
    for given, gave in calls:
        arguments = [Argument(name, nest) for name, nest in given.items()]
        part.calls.append(Call(scope, "Net", "", arguments, gave))
    return part_row(part, Costs(), depth=0, all_parameters=0)


@pytest.mark.parametrize(
    ("given", "gave", "varies"),
    [
        ((2, 3), (2, 3), False),
        ((4, 3), (2, 3), True),
        ((2, 3), (4, 3), True),
        ((4, 3), (4, 3), True),
    ],
)
def test_a_row_varies_by_its_inputs_or_by_its_results(given, gave, varies):
    first = ({"x": tensor(2, 3)}, tensor(2, 3))
    assert row(first)["varies"] is False
    assert row(first, first, ({"x": tensor(*given)}, tensor(*gave)))["varies"] is varies
    other = ({"x": tensor(*given)}, tensor(*gave))
    assert add_rows([row(first), row(other)])["varies"] is varies
    assert add_rows([row(first, other), row(first, other)])["varies"] is varies


def test_what_is_first_given_is_told():
    told = row(({"x": tensor(2)}, tensor(3)), ({"x": tensor(4)}, tensor(5)))
    assert (told["input"], told["output"], told["calls"]) == ({"x": (2,)}, {"out": (3,)}, 2)
    nothing = row()
    assert (nothing["input"], nothing["output"], nothing["varies"]) == (None, None, False)


def test_an_argument_without_a_name_has_its_position():
    part = ModulePart("Net")
    given = [Argument(None, tensor(1)), Argument(None, 5), Argument(None, tensor(2))]
    part.calls.append(Call(BUILD.scope("Net"), "Net", "", given))
    told = part_row(part, Costs(), depth=0, all_parameters=0)["input"]
    assert told == {"0": (1,), "2": (2,)}


def test_results_are_named_as_the_outputs_of_a_graph():
    gave = {"logits": tensor(1), "past": [(tensor(2), None), {"key": tensor(3)}]}
    assert row(({}, gave))["output"] == {"logits": (1,), "past.0.0": (2,), "past.1.key": (3,)}
    assert row(({}, (tensor(1), tensor(2))))["output"] == {"out.0": (1,), "out.1": (2,)}


def test_flops_of_which_none_could_be_counted_are_no_zero():
    costs = Costs(flops=0, moved_bytes=4)
    assert (costs_row(costs)["flops"], costs_row(costs)["intensity"]) == (0, 0.0)
    costs.uncounted["aten::gelu"] = 1
    told = costs_row(costs)
    assert [told[name] for name in ("flops", "backward_flops", "intensity")] == [None] * 3
    costs.flops = 8
    assert (costs_row(costs)["flops"], costs_row(costs)["intensity"]) == (8, 2.0)


def test_a_row_of_several_parts_tells_sums():
    part = ModulePart("Net", kind="module")
    part.holds.parameters = 3
    costs = Costs(flops=8, moved_bytes=4, duration_us=1.5)
    one = part_row(part, costs, depth=1, all_parameters=12)
    both = add_rows([one, {**one, "flops": None, "duration_us": None}])
    assert (both["parameters"], both["share"], both["flops"]) == (6, 0.5, 8)
    assert (both["duration_us"], both["intensity"], both["depth"]) == (1.5, 1.0, 1)
    unknown = add_rows([{**one, "flops": None}] * 2)
    assert (unknown["flops"], unknown["intensity"]) == (None, None)
    assert one["flops"] == 8
