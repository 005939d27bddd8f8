"""Attribute entries: the bytes that a NodeDef holds of its attributes."""

from google.protobuf import text_format
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from tbscope.graph import Constant
from tbscope.graphdef.entries import (
    FactEntries,
    Once,
    kernels_entry,
    outputs_entries,
    scope_entry,
    source_entry,
    too_large_entry,
)


def attributes(*entries):
    """Give the attributes that a node reads from entries, each as a line of text."""
    message = NodeDef.FromString(b"".join(entries))
    return {
        key: text_format.MessageToString(value, as_one_line=True).strip()
        for key, value in message.attr.items()
    }


def test_entries_joined_are_the_attributes_of_a_node():
    facts = FactEntries()
    entries = [scope_entry("Net/Linear[fc]"), source_entry("net.py:3 in forward")]
    entries += [facts.get("in_features", 4), facts.get("bias", True)]
    assert attributes(*entries) == {
        "scope": 's: "Net/Linear[fc]"',
        "source": 's: "net.py:3 in forward"',
        "in_features": "i: 4",
        "bias": "b: true",
    }


def test_a_scope_path_can_be_read_back_whole():
    path = "Größe/" + "Block[inner]/" * 200 + "Linear[fc]"
    assert NodeDef.FromString(scope_entry(path)).attr["scope"].s.decode() == path


def test_a_node_with_several_outputs_lists_their_dtypes():
    assert attributes(outputs_entries((((2, 3), "float32"), ((), "int64")))) == {
        "_output_shapes": "list { shape { dim { size: 2 } dim { size: 3 } } shape { } }",
        "dtype": 'list { s: "float32" s: "int64" }',
    }


def test_a_node_with_one_output_has_one_dtype():
    assert attributes(outputs_entries(((None, "float32"),))) == {
        "_output_shapes": "list { shape { unknown_rank: true } }",
        "dtype": 's: "float32"',
    }


def test_kernels_are_counted():
    kernels = ("aten::addmm", "aten::tanh", "aten::addmm")
    assert attributes(kernels_entry(kernels)) == {"kernels": 's: "aten::addmm x2, aten::tanh"'}


def test_kernels_without_end_are_too_large():
    assert kernels_entry(tuple(f"aten::operation_{index}" for index in range(100))) == b""


def test_a_fact_never_takes_the_place_of_an_attribute_with_a_meaning():
    facts = FactEntries()
    entries = [facts.get("dtype", Constant("torch.int8")), facts.get("_output_shapes", 1)]
    assert attributes(*entries) == {"dtype_": 's: "torch.int8"', "_output_shapes_": "i: 1"}


def test_equal_facts_of_two_types_stay_two():
    facts = FactEntries()
    one, true, ones, trues = (facts.get("n", given) for given in (1, True, (1,), (True,)))
    assert [attributes(entry)["n"] for entry in (one, true, ones, trues)] == [
        "i: 1",
        "b: true",
        "list { i: 1 }",
        "list { b: true }",
    ]


def test_a_fact_that_is_too_large_has_no_entry_and_can_be_named():
    assert FactEntries().get("table", "a" * 2000) == b""
    assert attributes(too_large_entry(["table"])) == {"_too_large_attrs": 'list { s: "table" }'}


def test_what_is_made_once_is_kept():
    made = []
    once = Once(lambda key: made.append(key) or key * 2)
    assert [once["a"], once["b"], once["a"]] == ["aa", "bb", "aa"]
    assert made == ["a", "b"]
