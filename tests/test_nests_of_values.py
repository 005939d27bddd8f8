"""Nests of values, and the ways to walk them."""

from hypothesis import given
from hypothesis import strategies as st

from tbscope.ir.graph import Constant, Node, Value
from tbscope.ir.pytree import Replacements, form_of, map_tree, map_values, values_in, walk

X, Y, Z = (Value(Node(name, "input", "input"), 0, (1,), "float32", "cpu") for name in "xyz")
NESTS = st.recursive(
    st.sampled_from([X, Y, Z, 1, True, "x", None, Constant("c")]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    ),
)
NEST = [X, (1, {"k": Y}), X, Constant("d")]


def test_each_leaf_has_its_path():
    assert list(walk(NEST, "tensors")) == [
        ("tensors.0", X),
        ("tensors.1.0", 1),
        ("tensors.1.1.k", Y),
        ("tensors.2", X),
        ("tensors.3", Constant("d")),
    ]
    assert list(walk((X, [Y]))) == [("0", X), ("1.0", Y)]
    assert list(walk({"k": X})) == [("k", X)]
    assert list(walk(X, "self")) == [("self", X)]


def test_values_come_from_left_to_right_as_often_as_they_stand():
    assert list(values_in(NEST)) == [X, Y, X]
    assert list(values_in("x")) == []
    assert list(values_in(X)) == [X]


ALIKE_AT_A_GLANCE = [1, True, 1.0, 1 + 0j, "1", [1], (1,), (True,), {"a": 1}, {"a": True}, {1: "a"}]


@given(st.sampled_from(ALIKE_AT_A_GLANCE), st.sampled_from(ALIKE_AT_A_GLANCE))
def test_constants_have_one_form_where_they_are_equal_and_of_one_type(one, other):
    assert (form_of({"k": one}) == form_of({"k": other})) == (repr(one) == repr(other))


def test_a_text_has_one_form_whoever_else_holds_it():
    assert form_of({"k": "held"}) == form_of({"k": "".join("held")})


def test_what_is_no_plain_constant_has_no_form():
    assert form_of([1, {"a": "x"}]) is not None
    assert form_of([1, {"a": X}]) is None
    assert form_of([1, {"a": Constant("x")}]) is None


def test_values_are_replaced_where_they_stand():
    assert map_values(NEST, Replacements({X: Z})) == [Z, (1, {"k": Y}), Z, Constant("d")]
    assert NEST[0] is X


def test_leaves_are_changed_where_they_stand():
    changed = map_tree(NEST, lambda leaf: leaf if isinstance(leaf, Value) else str(leaf))
    assert changed == [X, ("1", {"k": Y}), X, "d"]


@given(NESTS)
def test_all_ways_walk_alike(nest):
    leaves = [leaf for _, leaf in walk(nest)]
    assert list(values_in(nest)) == [leaf for leaf in leaves if type(leaf) is Value]
    seen = []
    assert map_tree(nest, lambda leaf: seen.append(leaf) or leaf) == nest
    assert seen == leaves
    assert map_values(nest, Replacements({X: Z})) == map_tree(
        nest, lambda leaf: Z if leaf is X else leaf
    )
