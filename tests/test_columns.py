"""Columns: each figure in a few characters, each column where it has something to tell."""

import pytest

from tbscope.analysis.costs import Costs
from tbscope.analysis.summary import part_row
from tbscope.analysis.summary_columns import chosen_columns
from tbscope.analysis.units import bytes_text, count_text, duration_text, flops_text
from tbscope.ir.module_tree import ModulePart


def row(**told):
    return part_row(ModulePart("Net", kind="module"), Costs(), depth=0, all_parameters=0) | told


def cell(column, **told):
    (found,) = chosen_columns([column], [])
    return found.text(row(**told))


@pytest.mark.parametrize(
    ("write", "number", "text"),
    [
        (count_text, 9_999, "9,999"),
        (count_text, 10_000, "10.0k"),
        (count_text, 999_499, "999k"),
        (count_text, 999_500, "1.00M"),
        (flops_text, 9_999, "9,999"),
        (flops_text, 10_000, "10.0k"),
        (flops_text, 2_000_000_000, "2.00G"),
        (bytes_text, 1023, "1023 B"),
        (bytes_text, 1024, "1.00 KiB"),
        (bytes_text, 1024 * 1023, "1,023 KiB"),
        (bytes_text, 1024 * 1024 - 1, "1.00 MiB"),
        (duration_text, 9.994, "9.99 us"),
        (duration_text, 9.996, "10.0 us"),
        (duration_text, 99.96, "100 us"),
        (duration_text, 1e10, "10,000 s"),
    ],
)
def test_numbers_change_their_unit_where_they_are_rounded_up_to_it(write, number, text):
    assert write(number) == text


@pytest.mark.parametrize(
    ("column", "told", "text"),
    [
        ("input", {"input": None}, ""),
        ("input", {"input": {}}, "-"),
        ("input", {"input": {"x": (2,)}}, "(2,)"),
        ("input", {"input": {"x": (2, None)}, "varies": True}, "(2, ?) ..."),
        ("output", {"output": {"out": None}}, "(*)"),
        ("output", {"output": {"out.0": (1, 2)}, "varies": True}, "(1, 2) ..."),
        ("output", {"output": {"logits": (1, 2)}}, "logits (1, 2)"),
        ("output", {"kind": "unused"}, "not called"),
        ("parameters", {"parameters": 0}, ""),
        ("parameters", {"parameters": 5}, "5"),
        ("parameters", {"parameters": 5, "shared_parameters": 1}, "5 ="),
        ("share", {"parameters": 0, "share": 0.5}, ""),
        ("share", {"parameters": 1, "share": 0.001}, "0.1 %"),
        ("share", {"parameters": 1, "share": 0.0009}, "<0.1 %"),
        ("trainable_parameters", {"parameters": 0}, ""),
        ("trainable_parameters", {"parameters": 5, "trainable_parameters": 5}, "yes"),
        ("trainable_parameters", {"parameters": 5, "trainable_parameters": 2}, "2"),
        ("trainable_parameters", {"parameters": 5, "trainable_parameters": 0}, "frozen"),
        ("flops", {"flops": None}, "?"),
        ("flops", {"flops": 0}, ""),
        ("class", {"class": "Net", "module": "Net", "name": ""}, ""),
        ("class", {"class": "Net", "module": "Net", "name": "net"}, "Net"),
        ("class", {"class": "Net", "module": "other", "name": ""}, "Net"),
        ("duration_us", {"duration_us": None}, ""),
        ("duration_us", {"duration_us": 0.0}, "0.00 us"),
        ("intensity", {"intensity": None}, ""),
        ("intensity", {"intensity": 2.345}, "2.35"),
    ],
)
def test_a_cell_tells_what_there_is(column, told, text):
    assert cell(column, **told) == text


def test_shapes_that_have_no_room_are_counted():
    # Each takes six characters and two to part them: four have room in 36, and a fifth not.
    shapes = {f"out.{at}": (1, 10) for at in range(6)}
    assert cell("output", output=shapes) == ", ".join(["(1, 10)"] * 4) + " + 2"
    first = {"out.0": tuple(range(100, 120)), "out.1": (1,)}
    assert cell("output", output=first).endswith("119) + 1")


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("calls", {"calls": 2}),
        ("trainable_parameters", {"parameters": 2, "trainable_parameters": 1}),
        ("flops", {"flops": None}),
        ("flops", {"flops": 1}),
        ("duration_us", {"duration_us": 0.0}),
        ("input", {"input": {"x": (1,)}}),
        ("activation_bytes", {"activation_bytes": 1}),
    ],
)
def test_a_column_is_shown_unasked_where_one_row_has_something_to_tell(column, told):
    plain = row(calls=1, flops=0)
    assert column not in [shown.name for shown in chosen_columns(None, [plain, plain])]
    assert column in [shown.name for shown in chosen_columns(None, [plain, row(**told)])]


def test_other_columns_are_shown_to_those_who_ask():
    told = row(moved_bytes=5, buffers=5, own_parameters=5, intensity=1.0)
    assert [column.name for column in chosen_columns(None, [told])] == ["class"]
    assert [column.title for column in chosen_columns("moved_bytes", [told])] == ["Moved"]
