"""Template seeds: which they are, in which order, and what they leave alone."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from panel_labels import shown_label

from tbscope.drawing.color_seeds import seeds
from tbscope.page.constants import LIBRARY
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures


def tree(*nodes):
    """Read nodes given as `name op input input ...`."""
    words = [node.split(" ") for node in nodes]
    return Hierarchy([(name, op, inputs) for name, op, *inputs in words])


def block(name, source="", *, extra=()):
    """Give a block of an attention and a linear layer, with a circle in it."""
    return (
        f"{name}/attn/q Linear {source} {name}/attn/q/weight",
        f"{name}/attn/q/weight ParameterConst",
        f"{name}/attn/k Linear {source}",
        f"{name}/attn/matmul matmul {name}/attn/q {name}/attn/k",
        *extra,
        f"{name}/fc Linear {name}/attn/matmul {source}",
    )


def two_blocks():
    return tree("x Input", *block("h/0", "x"), *block("h/1", "h/0/fc"))


def scopes(found):
    """Give the functions in order, as the page shows them."""
    names = dict.fromkeys(seed.name.partition("/")[0] for seed in found)
    return [shown_label(Hierarchy([(f"{name}/x", "", [])]).boxes[name]) for name in names]


def equal(hierarchy, *names):
    found = Structures(hierarchy).of
    return len({found[hierarchy.boxes[name]] for name in names}) == 1


def test_what_is_in_a_repeated_box_comes_before_it():
    classes = {"h/0": "Block", "h/1": "Block", "h/0/attn": "Attention"}
    assert seeds(two_blocks(), classes) == [
        (f"{LIBRARY}Attention_template/q", "Linear", ()),
        (f"{LIBRARY}Attention_template/k", "Linear", ()),
        (
            f"{LIBRARY}Attention_template/matmul",
            "matmul",
            (f"{LIBRARY}Attention_template/q", f"{LIBRARY}Attention_template/k"),
        ),
        (f"{LIBRARY}Block_template/attn/q", "Linear", ()),
        (f"{LIBRARY}Block_template/attn/k", "Linear", ()),
        (
            f"{LIBRARY}Block_template/attn/matmul",
            "matmul",
            (f"{LIBRARY}Block_template/attn/q", f"{LIBRARY}Block_template/attn/k"),
        ),
        (f"{LIBRARY}Block_template/fc", "Linear", (f"{LIBRARY}Block_template/attn/matmul",)),
    ]


def test_what_is_no_module_is_seeded_only_where_boxes_around_it_need_it():
    assert scopes(seeds(two_blocks(), {})) == ["attn"]


def test_what_occurs_once_has_no_seed():
    hierarchy = tree("x Input", *block("h/0", "x"))
    assert seeds(hierarchy, {"h": "Model", "h/0": "Block", "h/0/attn": "Attention"}) == []


def test_what_comes_through_a_circle_is_an_edge_and_waiting_stays_waiting():
    def nodes(name):
        return (
            f"{name}/m/a relu",
            f"{name}/m/c Const {name}/m/a",
            f"{name}/m/b add {name}/m/c ^{name}/m/a",
            f"{name}/m/d mul ^{name}/m/b",
        )

    found = seeds(tree(*nodes("h/0"), *nodes("h/1")), {})
    inside = f"{LIBRARY}m_template"
    assert found == [
        (f"{inside}/a", "relu", ()),
        (f"{inside}/b", "add", (f"{inside}/a",)),
        (f"{inside}/d", "mul", (f"^{inside}/b",)),
    ]


def test_two_structures_of_one_class_have_names_of_their_own():
    extra = [(f"{at}/cross/add add",) for at in ("d/0", "d/1")]
    hierarchy = tree(
        *(line for at in "012" for line in block(f"e/{at}")),
        *(line for at in "01" for line in block(f"d/{at}", extra=extra[int(at)])),
        *(line for at in "23" for line in block(f"d/{at}", extra=(f"d/{at}/mul mul",))),
    )
    classes = {name: "Block" for name in hierarchy.boxes if name.count("/") == 1}
    titles = ["attn", "cross", "Block", "Block_cross", "Block_2"]
    assert scopes(seeds(hierarchy, classes)) == titles


def titles_of(first, second):
    """Give the entries of the legend for two structures of these classes."""
    hierarchy = tree(
        *(line for at in "012" for line in block(f"e/{at}")),
        *(line for at in "01" for line in block(f"d/{at}", extra=(f"d/{at}/mul mul",))),
    )
    boxes = [name for name in hierarchy.boxes if name.count("/") == 1]
    found = seeds(hierarchy, {name: first if name[0] == "e" else second for name in boxes})
    return [title for title in scopes(found) if title != "attn"]


def test_what_the_page_would_cut_is_written_smaller_or_loses_words():
    assert titles_of("EncoderLayer", "DecoderLayer") == ["EncoderLayer   ", "DecoderLayer   "]
    assert titles_of("NewGELUActivation", "MLP") == ["..GELUActivation ", "MLP"]


def test_two_classes_that_lose_what_tells_them_apart_have_numbers():
    found = titles_of("FirstVeryLongActivation", "FinalVeryLongActivation")
    assert found == ["..LongActivation", "..LongActivation_2"]


def test_a_number_stands_right_behind_a_title_that_is_written_smaller():
    assert titles_of("EncoderLayer", "EncoderLayer") == ["EncoderLayer   ", "EncoderLayer_2    "]


@pytest.mark.parametrize(
    ("label", "title"),
    [("crossing_over", "Block_2"), ("crossing", "Block_crossing  "), ("Block", "Block_2")],
)
def test_what_tells_structures_apart_is_a_number_where_the_page_would_cut_it(label, title):
    hierarchy = tree(
        *(line for at in "012" for line in block(f"e/{at}")),
        *(
            line
            for at in "01"
            for line in block(f"d/{at}/{label}", extra=(f"d/{at}/{label}/mul mul",))
        ),
    )
    classes = {name: "Block" for name in hierarchy.boxes if name.count("/") == (name[0] == "d") + 1}
    assert title in scopes(seeds(hierarchy, classes))


def test_no_function_is_named_like_an_op_type():
    hierarchy = tree("h/0/a/b attn", "h/1/a/b attn", "x a_template")
    assert scopes(seeds(hierarchy, {})) == ["a_2"]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        *(("fc.2nd", "fc"), ("Conv[0]", "Conv_0_"), ("_own", "own"), ("100-149", "h_part")),
        *(("step.0-11", "steps"), ("head_0-7", "heads"), ("step.11", "step")),
    ],
)
def test_a_box_without_class_is_called_by_its_label(label, shown):
    hierarchy = tree(f"h/0/{label}/relu relu", f"h/1/{label}/relu relu")
    assert scopes(seeds(hierarchy, {})) == [shown]


def test_chunks_of_operations_have_no_entry_and_share_one_that_tells_of_others():
    parts = ("ops.5-17/relu relu", "parts.18-20/tanh tanh", "attn/exp exp")
    nodes = [f"h/{at}/{part}" for at in "01" for part in parts]
    found = seeds(tree(*nodes), {})
    assert scopes(found) == ["Others", "attn"]
    inside = {name.split("/")[1] for name, _, _ in found if "Others" in name}
    assert inside == {"ops", "parts"}
    # All are there, for the boxes around them to have one colour.
    assert [op for _, op, _ in found] == ["relu", "tanh", "exp"]
    assert scopes(seeds(tree(*(node for node in nodes if "/attn/" not in node)), {})) == ["Others"]


def test_names_are_no_part_of_a_structure():
    hierarchy = tree("a/0 relu", "a/1 mul a/0", "b/x relu", "b/y mul b/x")
    assert equal(hierarchy, "a", "b")


def test_edges_and_what_holds_them_are():
    hierarchy = tree(
        *("a/x relu", "a/y relu", "a/z mul a/x a/y"),
        *("b/x relu", "b/y relu b/x", "b/z mul b/y"),
        *("c/x relu", "c/y relu", "c/z mul c/y c/x"),
    )
    assert not equal(hierarchy, "a", "b")
    assert equal(hierarchy, "a", "c")


def test_the_order_in_which_op_types_appear_is():
    # The page compares it as text, whatever is alike beyond it.
    hierarchy = tree("a/x relu", "a/y mul a/x", "b/y mul b/x", "b/x relu")
    assert not equal(hierarchy, "a", "b")


def test_a_stack_is_something_else_than_its_members():
    hierarchy = tree(*(f"a/{n} Linear" for n in range(5)), *(f"b/{n} Linear" for n in "vwxyz"))
    assert not equal(hierarchy, "a", "b")


def read_by_many(*further):
    """Give a first level of 12 shapes and `further` ones, one of which six others read."""
    blocks = [line for at in range(6) for line in block(f"b{at}/m", "mask")]
    others = [f"y{at}. relu b{at}/m/fc" for at in range(5)]
    return tree("mask Input", *blocks, *others, *further)


def test_seeds_that_would_pull_a_node_out_of_the_flow_share_one_function():
    classes = {f"b{at}": "Block" for at in range(6)}
    few, many = read_by_many(), read_by_many("z relu")
    shapes = list(many.root.children)
    assert scopes(seeds(few, {})) == ["attn", "m"]
    found = seeds(many, classes)
    assert list(many.root.children) == shapes
    assert scopes(found) == ["Classes"]
    parts = [name.split("/")[1] for name, _, _ in found]
    assert list(dict.fromkeys(parts)) == ["attn", "m", "Block"]


def test_titles_in_a_function_that_several_share_have_no_blanks_behind_them():
    found = seeds(read_by_many("z relu"), {f"b{at}": "EncoderLayer" for at in range(6)})
    parts = [name.split("/")[1] for name, _, _ in found]
    assert list(dict.fromkeys(parts)) == ["attn", "m", "EncoderLayer"]


def test_the_ten_most_frequent_have_a_function_of_their_own_where_not_all_can():
    lines = ["mask Input", *(f"y{at}. relu b{at}.0/m/q" for at in range(10))]
    classes = {}
    for at in range(12):
        # The last two kinds come more often than the others.
        for twin, inner in [(0, "m"), (1, "m"), (1, "n")][: 3 if at > 9 else 2]:
            source = " mask" if 2 * at + twin < 5 else ""
            box = f"b{at}.{twin}/{inner}"
            classes[box] = f"K{at}"
            lines += [f"{box}/p k{at}{source}", f"{box}/q relu {box}/p"]
    found = seeds(tree(*lines), classes)
    alone = scopes(found)
    assert len(alone) == 11
    assert {"K10", "K11", "Others"} <= set(alone)
    others = {name.split("/")[1] for name, _, _ in found if name.startswith(f"{LIBRARY}Others")}
    assert len(others) == 2
    assert not others.intersection({f"{LIBRARY}{title}_template" for title in alone})


def test_there_are_no_seeds_where_even_one_function_would_pull_a_node_out():
    assert seeds(read_by_many("v relu", "w mul"), {}) == []


@pytest.mark.parametrize(
    ("count", "more", "expected"),
    [(2480, 0, 7), (2499, 0, 3), (2499, 1, 3), (2499, 2, 0), (2500, 0, 0), (2500, 1, 7)],
)
def test_seeds_do_not_make_a_graph_too_large_to_be_coloured(count, more, expected):
    # Blocks of four nodes that count: attention alone takes three seeds, all of it seven.
    lines = [line for at in range(count) for line in block(f"h/{at}")]
    hierarchy = tree(*lines, *(f"more{at} relu" for at in range(more)))
    found = seeds(hierarchy, dict.fromkeys(hierarchy.boxes, "C"))
    assert len(found) == expected


@pytest.mark.parametrize(("kinds", "expected"), [(70, 280), (200, 300), (1000, 400)])
def test_a_legend_that_no_colour_needs_takes_a_small_part_of_the_graph(kinds, expected):
    boxes = [f"h/{kind}_{copy}" for kind in range(kinds) for copy in "ab"]
    nodes = [f"{box}/{op} {op}{box[:-2]}" for box in boxes for op in "klmn"]
    assert len(seeds(tree(*nodes), dict.fromkeys(boxes, "Block"))) == expected


def test_deep_nests_cost_no_more_nodes_than_the_graph_has():
    path = "/b" * 1000
    hierarchy = tree(*(f"{at}{path[: 2 * n]}/relu relu" for at in "st" for n in range(1001)))
    found = seeds(hierarchy, {})
    assert 1900 < len(found) <= 2002


def hues_of(found):
    """Give which of the ten hues each function has, by the op types in it."""
    held = {}
    for name, op, _ in found:
        held.setdefault(name.partition("/")[0], set()).add(op)
    return {frozenset(ops): place % 10 for place, ops in enumerate(held.values())}


def test_the_eleventh_structure_has_another_hue_than_the_one_beside_it():
    # Each in a box of its own, and the fourth also in that of the eleventh.
    parts = [*((part, part) for part in range(12)), (10, 4)]
    nodes = [f"h/{at}/k{kind}/p{part}/x op{part}" for at in range(2) for kind, part in parts]
    nodes += [f"h/{at}/k{kind}/y kind{kind}" for at in range(2) for kind in range(12)]
    hues = hues_of(seeds(tree(*nodes), {}))
    assert hues[frozenset(["op10"])] != hues[frozenset(["op4"])]


def test_the_most_frequent_of_the_next_structures_has_the_hue_of_the_fewest_boxes():
    # The flat ones have the ten hues, the most frequent one the first.
    counts = {at: 40 - at if at < 5 else 10 - at for at in range(10)}
    nodes = [f"h/f{at}.{copy}/x op{at}" for at, count in counts.items() for copy in range(count)]
    # Each of these holds one whose hue none of them gets.
    nodes += [
        f"h/n{at}.{copy}/{part}"
        for at in range(5)
        for copy in range(6 if at == 0 else 2)
        for part in (f"in/x op{at + 5}", f"y nest{at}")
    ]
    hierarchy = tree(*nodes)
    found = seeds(hierarchy, dict.fromkeys(hierarchy.boxes, "Block"))
    assert hues_of(found)[frozenset(["op5", "nest0"])] == 4


def test_more_structures_than_hues_differ_where_they_are_seen_together():
    parts = [(kind, part) for kind in range(7) for part in range(3)]
    nodes = [f"h/{at}/k{i}/p{j}/x op{i}.{j}" for at in range(3) for i, j in parts]
    hues = hues_of(seeds(tree(*nodes), {f"h/{at}": "Block" for at in range(3)}))
    assert len(hues) == 7 + 21 + 1
    families = [[{f"op{i}.{j}"} for j in range(3)] for i in range(7)]
    kinds = [set.union(*family) for family in families]
    assert len({hues[frozenset(ops)] for ops in (*kinds, set.union(*kinds))}) == 8
    for family in families:
        assert len({hues[frozenset(ops)] for ops in family}) == 3


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(NAMES, st.sampled_from(["relu", "mul"])), max_size=25), st.data())
def test_every_seed_is_like_the_boxes_that_it_stands_for(leaves, data):
    part = [(f"{name}/{at}_", op) for at, (name, op) in enumerate(leaves)]
    at = st.integers(0, max(len(part) - 1, 0))
    edges = data.draw(st.lists(st.tuples(at, at), max_size=30)) if part else []
    nodes = []
    for copy in "st":
        for index, (name, op) in enumerate(part):
            read = [f"{copy}/{part[start][0]}" for start, end in edges if end == index]
            nodes.append((f"{copy}/{name}", op, read))
    plain = Hierarchy(nodes)
    found = seeds(plain, {"s": "S", "t": "S"})
    seeded = Hierarchy([*found, *nodes])
    structures = Structures(seeded)
    made = [box for box in seeded.root.children.values() if box.name.startswith(LIBRARY)]
    numbers = [structures.of[box] for box in made]
    assert len(set(numbers)) == len(numbers)
    wanted = {structures.of[seeded.boxes[name]] for name in plain.boxes}
    assert set(numbers) <= wanted
    assert [structure.depth for structure in numbers] == sorted(
        structure.depth for structure in numbers
    )
    assert all(re.fullmatch(r"\w+", shown_label(box)) for box in made)
    # What is in a repeated box was met before it.
    for place, structure in enumerate(numbers):
        assert set(structure.children) <= set(numbers[:place])


@pytest.mark.parametrize(("op", "count"), [("Output", 0), ("Output[key]", 0), ("relu", 2)])
def test_the_nests_of_inputs_and_outputs_have_no_seeds(op, count):
    nodes = [
        (f"cache/layers/{layer}/own/{part}", op, ["x"])
        for layer in range(3)
        for part in ("key", "value")
    ]
    assert len(seeds(Hierarchy([("x", "Input", []), *nodes]), {})) == count
