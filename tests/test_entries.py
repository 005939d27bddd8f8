"""Attribute entries: the bytes that a NodeDef holds of its attributes."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from tbscope.graphdef.attr_bytes import (
    MOST_BYTES,
    FactEntries,
    fact_key,
    kernels_entry,
    outputs_entries,
    scope_entries,
    source_entry,
    to_attr_value,
    too_large_entry,
)
from tbscope.graphdef.wire import (
    Once,
    attribute,
    attribute_head,
    field,
    list_value,
    repeated,
    text_attributes,
    varint,
)
from tbscope.ir.graph import Constant


def made(name, constant):
    """Give the entry of one fact."""
    (entry,) = FactEntries().make({name: constant})
    return entry


def attributes(*entries):
    """Give the attributes that a node reads from entries, each as a line of text."""
    message = NodeDef.FromString(b"".join(entries))
    return {
        key: text_format.MessageToString(value, as_one_line=True).strip()
        for key, value in message.attr.items()
    }


def test_entries_joined_are_the_attributes_of_a_node():
    entries = [*scope_entries(["Net/Linear[fc]"]), source_entry("net.py:3 in forward")]
    entries += [made("in_features", 4), made("bias", True)]
    assert attributes(*entries) == {
        "    scope": 's: "Net/Linear[fc]"',
        "    source": 's: "net.py:3 in forward"',
        "in_features": "i: 4",
        "bias": "b: true",
    }


def test_a_scope_path_can_be_read_back_whole():
    path = "Größe/" + "Block[inner]/" * 200 + "Linear[fc]"
    text = NodeDef.FromString(scope_entries([path])[0]).attr["    scope"].s
    assert text.isascii()
    assert text.decode("unicode_escape") == path


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


SHAPES = st.none() | st.lists(st.none() | st.integers(0, 2**62), max_size=4).map(tuple)


@given(st.lists(st.tuples(SHAPES, st.text()), max_size=3).map(tuple))
def test_the_entries_of_outputs_are_what_protobuf_writes(outputs):
    entries = outputs_entries(outputs)
    attr = NodeDef.FromString(entries).attr
    keys = ("_output_shapes", "dtype") if outputs else ()
    alone = [NodeDef(attr={key: attr[key]}) for key in keys]
    assert b"".join([node.SerializeToString(deterministic=True) for node in alone]) == entries


def test_kernels_are_counted():
    kernels = ("aten::addmm", "aten::tanh", "aten::addmm")
    assert attributes(kernels_entry(kernels)) == {"    kernels": 's: "aten::addmm x2, aten::tanh"'}


def test_kernels_without_end_are_too_large():
    assert kernels_entry(tuple(f"aten::operation_{index}" for index in range(100))) == b""


def test_a_fact_never_takes_the_place_of_an_attribute_with_a_meaning():
    entries = [made("dtype", Constant("torch.int8")), made("_output_shapes", 1)]
    assert attributes(*entries) == {"dtype_": 's: "torch.int8"', "_output_shapes_": "i: 1"}


def test_equal_facts_of_two_types_stay_two():
    one, true, ones, trues = (made("n", n) for n in (1, True, (1,), (True,)))
    assert [attributes(entry)["n"] for entry in (one, true, ones, trues)] == [
        "i: 1",
        "b: true",
        "list { i: 1 }",
        "list { b: true }",
    ]


def test_a_fact_that_is_too_large_has_no_entry_and_can_be_named():
    assert made("table", "a" * 2000) == b""
    assert attributes(too_large_entry(["table"])) == {"_too_large_attrs": 'list { s: "table" }'}


def test_the_longest_text_that_is_kept_is_as_large_as_an_attribute_may_be():
    longest = made("text", "a" * 1021)
    assert NodeDef.FromString(longest).attr["text"].ByteSize() == MOST_BYTES
    assert made("text", "a" * 1022) == b""


def test_what_is_made_once_is_kept():
    made = []
    once = Once(lambda key: made.append(key) or key * 2)
    assert [once["a"], once["b"], once["a"]] == ["aa", "bb", "aa"]
    assert made == ["a", "b"]


CONSTANTS = st.text() | st.integers(-(2**65), 2**65) | st.booleans() | st.none() | st.floats()


@given(st.text(), CONSTANTS | st.lists(CONSTANTS) | st.text("a\u00fc\n", min_size=900))
def test_an_entry_is_what_protobuf_writes(name, constant):
    value = to_attr_value(constant)
    expected = b""
    if value is not None:
        message = NodeDef(attr={fact_key(name): value})
        expected = message.SerializeToString(deterministic=True)
    assert made(name, constant) == expected


@given(st.binary() | st.integers(0, 300).map(bytes) | st.integers(0, 40_000).map(bytes))
def test_a_field_is_what_protobuf_writes(data):
    value = AttrValue(s=data)
    # An entry of NodeDef's `attr` has the same form: a field 5 of fields 1 and 2.
    entry = attribute(attribute_head("key"), value.SerializeToString(deterministic=True))
    assert entry == NodeDef(attr={"key": value}).SerializeToString(deterministic=True)
    assert [entry, entry] == text_attributes(attribute_head("key"), [data, data])


# Lengths take one byte up to 127 and two up to 16,383: of the text, and of what is around it.
@pytest.mark.parametrize("edge", [2**7, 2**14, 2**21])
def test_a_text_is_what_protobuf_writes_where_its_length_takes_one_more_byte(edge):
    head = attribute_head("key")
    for size in range(edge - 24, edge + 3):
        message = NodeDef(attr={"key": AttrValue(s=b"a" * size)})
        expected = message.SerializeToString(deterministic=True)
        assert text_attributes(head, [b"a" * size]) == [expected]
        value = AttrValue(s=b"a" * size).SerializeToString()
        assert attribute(head, value) == expected
        assert field(4, b"a" * size) == NodeDef(device="a" * size).SerializeToString()


@pytest.mark.parametrize("bits", range(7, 64, 7))
def test_a_number_takes_one_more_byte_for_every_seven_bits(bits):
    for number in (2**bits - 1, 2**bits):
        message = AttrValue(i=number if number < 2**63 else number - 2**64)
        assert bytes((3 << 3,)) + varint(number) == message.SerializeToString()
    assert len(varint(2**bits)) == len(varint(2**bits - 1)) + 1


@pytest.mark.parametrize("count", [0, 1, 63, 64, 8191, 8192])
def test_a_list_is_what_protobuf_writes_where_its_length_takes_one_more_byte(count):
    message = AttrValue()
    message.list.SetInParent()
    message.list.s.extend([b""] * count)
    assert b"".join(repeated(2, [b""] * count)) == field(2, b"") * count
    assert list_value(field(2, b"") * count) == message.SerializeToString()


@given(st.integers(0, 2**64 - 1))
def test_a_varint_can_be_read_back(number):
    digits = varint(number)
    assert sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits)) == number
    assert [digit >> 7 for digit in digits] == [1] * (len(digits) - 1) + [0]


@given(st.dictionaries(st.text(), CONSTANTS | st.text(min_size=1100, max_size=1200), max_size=5))
def test_facts_joined_are_their_entries_one_by_one(constants):
    entries = {name: made(name, constant) for name, constant in constants.items()}
    expected = b"".join(entries.values()), [fact_key(name) for name in entries if not entries[name]]
    facts = FactEntries()
    assert facts.join(constants) == facts.join(dict(constants)) == expected


def test_facts_that_differ_only_in_type_are_joined_apart():
    facts = FactEntries()
    joined = [facts.join({"n": n, "dtype": Constant("int8")})[0] for n in (1, True)]
    joined += [facts.join({"n": n})[0] for n in ((1,), (True,), [1.0])]
    assert [attributes(entry)["n"] for entry in joined] == [
        "i: 1",
        "b: true",
        "list { i: 1 }",
        "list { b: true }",
        "list { f: 1.0 }",
    ]
