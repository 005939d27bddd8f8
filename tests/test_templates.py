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
    assert scopes(seeds(two_blocks(), {})) == ["Others"]
    assert {seed.name.split("/")[1] for seed in seeds(two_blocks(), {})} == {"attn_template"}


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
    inside = f"{LIBRARY}Others_template/m_template"
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
    assert scopes(seeds(hierarchy, classes)) == ["Others", "Block", "Block", "Block"]


def titles_of(first, second):
    """Give the entries of the legend for two structures of these classes."""
    hierarchy = tree(
        *(line for at in "012" for line in block(f"e/{at}")),
        *(line for at in "01" for line in block(f"d/{at}", extra=(f"d/{at}/mul mul",))),
    )
    boxes = [name for name in hierarchy.boxes if name.count("/") == 1]
    found = seeds(hierarchy, {name: first if name[0] == "e" else second for name in boxes})
    return [title for title in scopes(found) if title != "Others"]


def test_all_structures_of_a_class_have_its_name():
    assert titles_of("Encoder", "Decoder") == ["Encoder", "Decoder"]
    assert titles_of("Encoder", "Encoder") == ["Encoder", "Encoder"]


@pytest.mark.parametrize(
    ("first", "second", "titles"),
    [
        ("LayerCrossAttention", "LayerFF", ["CrossAttention", "LayerFF"]),
        ("DecoderLayer", "Attention", ["Decoder", "Attention"]),
        # Another class contains each part.
        ("DecoderLayer", "MyDecoder", ["DecoderLayer", "MyDecoder"]),
        # A part of less than half the name would be another name.
        ("LearnedPositionalEmbedding", "MLP", ["LearnedPositionalEmbedding", "MLP"]),
        # No part begins in a version, or ends between two words.
        ("Ernie4_5_VLMoeAttention", "Qwen2_5OmniMLP", ["MoeAttention", "OmniMLP"]),
        ("Qwen2_5_VLMLP", "Attention", ["Qwen2_5", "Attention"]),
    ],
)
def test_a_class_whose_name_the_page_would_cut_is_called_by_a_part(first, second, titles):
    assert titles_of(first, second) == titles


def test_no_function_is_named_like_an_op_type():
    hierarchy = tree("h/0/a/b attn", "h/1/a/b attn", "x A_template")
    found = seeds(hierarchy, dict.fromkeys(["h/0/a", "h/1/a"], "A"))
    assert {seed.name.partition("/")[0] for seed in found} == {f"{LIBRARY}A_template_2"}
    assert scopes(found) == ["A"]


@pytest.mark.parametrize(
    ("label", "shown"),
    [("fc.2nd", "fc"), ("Conv[0]", "Conv_0_"), ("_own", "own"), ("step.11", "step_11")],
)
def test_a_box_without_class_is_called_by_its_label_and_is_no_entry_of_the_legend(label, shown):
    hierarchy = tree(
        f"h/0/{label}/relu relu", f"h/1/{label}/relu relu", "h/0/m/exp exp", "h/1/m/exp exp"
    )
    found = seeds(hierarchy, dict.fromkeys(["h/0/m", "h/1/m"], "M"))
    assert set(scopes(found)) == {"Others", "M"}
    titles = {name.split("/")[1] for name, _, _ in found if "Others" in name}
    assert titles == {f"{shown}_template"}


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
    assert scopes(seeds(few, classes)) == ["Others", "Block"]
    found = seeds(many, classes)
    assert list(many.root.children) == shapes
    assert scopes(found) == ["Others"]
    parts = [name.split("/")[1] for name, _, _ in found]
    assert list(dict.fromkeys(parts)) == ["attn_template", "m_template", "Block_template"]


@pytest.mark.parametrize("others", [False, True])
def test_the_ten_classes_with_most_parameters_have_an_entry_and_different_hues(others):
    kinds = [(f"K{at}", 100 - at) for at in range(14)]
    nodes, classes, parameters = [], {}, {}
    for kind, count in kinds:
        for copy in "ab":
            box = f"{copy}/{kind}"
            nodes += [f"{box}/in/x {kind}", f"{box}/y y"] if others else [f"{box}/x {kind}"]
            classes[box], parameters[box] = kind, count
    found = seeds(tree(*nodes), classes, parameters=parameters)
    titles = scopes(found)
    # What the boxes around all need has no entry of its own.
    assert set(titles) == {"Others", *(f"K{at}" for at in range(10))}
    hues = hues_of(found)
    listed = [frozenset({f"K{at}", "y"} if others else {f"K{at}"}) for at in range(10)]
    assert len({hues[ops] for ops in listed}) == 10


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


def test_a_legend_that_no_colour_needs_has_ten_entries():
    boxes = [f"h/{kind}_{copy}" for kind in range(70) for copy in "ab"]
    nodes = [f"{box}/{op} {op}{box[:-2]}" for box in boxes for op in "klmn"]
    assert len(seeds(tree(*nodes), dict.fromkeys(boxes, "Block"))) == 40


def test_deep_nests_cost_no_more_nodes_than_the_graph_has():
    path = "/b" * 1000
    hierarchy = tree(*(f"{at}{path[: 2 * n]}/relu relu" for at in "st" for n in range(1001)))
    found = seeds(hierarchy, {})
    assert 1900 < len(found) <= 2002


def hues_of(found):
    """Give which of the ten hues each structure has, by the op types in it."""
    held = {}
    for name, op, _ in found:
        entry, _, inner = name.partition("/")
        if entry == f"{LIBRARY}Others_template":
            # The box of the others takes a hue, too.
            held.setdefault(entry, set())
            entry = f"{entry}/{inner.partition('/')[0]}"
        held.setdefault(entry, set()).add(op)
    return {frozenset(ops): place % 10 for place, ops in enumerate(held.values()) if ops}


def test_the_eleventh_structure_has_another_hue_than_the_one_beside_it():
    # Each in a box of its own, and the fourth also in that of the eleventh.
    parts = [*((part, part) for part in range(12)), (10, 4)]
    nodes = [f"h/{at}/k{kind}/p{part}/x op{part}" for at in range(2) for kind, part in parts]
    nodes += [f"h/{at}/k{kind}/y kind{kind}" for at in range(2) for kind in range(12)]
    hues = hues_of(seeds(tree(*nodes), {}))
    assert hues[frozenset(["op10"])] != hues[frozenset(["op4"])]


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
    made = [
        box
        for box in seeded.boxes.values()
        if box.name.startswith(LIBRARY) and box.name.count("/") == ("Others" in box.name)
    ]
    numbers = [structures.of[box] for box in made]
    assert len(set(numbers)) == len(numbers)
    wanted = {structures.of[seeded.boxes[name]] for name in plain.boxes}
    assert set(numbers) <= wanted
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
