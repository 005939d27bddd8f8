from random import Random

import pytest
from chunked import bears_seeds, chunks_of, rename_input
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import longest_chain, lost_exits, read_scene, read_scenes

from tbscope.drawing.chunks import rename
from tbscope.page.constants import CHAIN_LIMIT, LEVEL_LIMIT, LIBRARY, SLOW_LIMIT, STACK_LIMIT
from tbscope.page.glyphs import Box, Item, Series
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures
from tbscope.utils.components import find_cycles
from tests.sweeps import is_sweep


def cut(nodes):
    """Give nodes with their names as the chunks have them."""
    mapping = chunks_of(Hierarchy(nodes))
    names = rename([name for name, _, _ in nodes], mapping)
    return [
        (name, op, [rename_input(text, mapping) for text in inputs])
        for name, (_, op, inputs) in zip(names, nodes, strict=True)
    ]


def around(nodes, first, last):
    """Give nodes between an input that `first` reads and an output that reads `last`."""
    nodes = [(name, op, ["x", *inputs] if name == first else inputs) for name, op, inputs in nodes]
    return [("x", "Input", []), *nodes, ("out", "Output", [last])]


def chain(names, ops=("Linear", "ReLU")):
    """Give nodes that read one another, of these op types in turn."""
    reads = [[], *([name] for name in names)]
    nodes = [(name, ops[at % len(ops)], reads[at]) for at, name in enumerate(names)]
    return around(nodes, names[0], names[-1])


def boxes_of(nodes, above=""):
    """Give the labels of the boxes in a box, in order."""
    hierarchy = Hierarchy(nodes)
    box = hierarchy.boxes[above] if above else hierarchy.root
    return [child.label for child in box.children.values() if child in hierarchy.boxes.values()]


def lost_at_root(hierarchy):
    return lost_exits(hierarchy, read_scene(hierarchy, hierarchy.root))


def assert_drawn_well(nodes):
    hierarchy = Hierarchy(nodes)
    for scene in read_scenes(hierarchy):
        assert len(scene.glyphs) <= LEVEL_LIMIT
        assert longest_chain(scene.glyphs, scene.lines) <= CHAIN_LIMIT
        assert lost_exits(hierarchy, scene) == []
        for shape in scene.glyphs:
            assert not isinstance(shape, Series) or len(shape.members) <= STACK_LIMIT


def assert_drawn_as_well_as_modules_allow(nodes):
    """Hold a level to less where something stands on it that must not be moved."""
    hierarchy = Hierarchy(nodes)
    for scene in read_scenes(hierarchy):
        known = [one for one in scene.glyphs if isinstance(one, Box)]
        loose = [one for one in scene.glyphs if isinstance(one, Item)]
        assert len(scene.glyphs) <= (CHAIN_LIMIT if known else LEVEL_LIMIT)
        # Of 500 in `network` some two thirds are loose where boxes stand between them.
        assert len(loose) <= LEVEL_LIMIT + SLOW_LIMIT
        assert known or lost_exits(hierarchy, scene) == []


def test_a_list_of_forty_layers_is_not_cut_and_one_of_more_is():
    for boxed in ("", "/fc"):
        nodes = chain([f"layers/{at}{boxed}" for at in range(40)])
        assert chunks_of(Hierarchy(nodes)) == {}
        nodes = cut(chain([f"layers/{at}{boxed}" for at in range(61)]))
        names = [f"{at}-{at + 9}{'' if boxed else '_Linear'}" for at in range(0, 60, 10)]
        # The last one alone is worth no box.
        assert [label for label in boxes_of(nodes, "layers") if "-" in label] == names
        assert f"layers/60{boxed}" in [name for name, _, _ in nodes]


def test_a_row_is_split_behind_whole_periods_and_equal_boxes_have_one_structure():
    kinds = ("Linear", "Norm", "ReLU")
    hierarchy = Hierarchy(cut(chain([f"h/{at}" for at in range(60)], ops=kinds)))
    assert list(hierarchy.boxes) == ["h", *(f"h/{at}-{at + 11}_Linear" for at in range(0, 60, 12))]
    structures = Structures(hierarchy).of
    assert len({structures[box] for name, box in hierarchy.boxes.items() if "/" in name}) == 1


def test_boxes_side_by_side_share_one_where_they_are_more_than_a_dozen():
    for count, labels in ((12, [f"step.{at}" for at in range(12)]), (13, ["step.0-12"])):
        steps = [(f"h/step.{at}/exp", "exp", ["stem"]) for at in range(count)]
        read = [name for name, _, _ in steps]
        outer = [("h/m/fc", "Linear", []), ("h/stack", "stack", read)]
        nodes = around([("stem", "Linear", []), *outer, *steps], "stem", "stem")
        assert boxes_of(cut(nodes), "h") == ["m", *labels]


def test_at_most_a_dozen_operations_stand_between_boxes():
    names = [*(f"add.{at}th" for at in range(5)), "m/fc", *(f"add.{at}th" for at in range(5, 13))]
    reads = [[], *([name] for name in names)]
    nodes = [
        (name, "Linear" if "/" in name else "add", inputs)
        for name, inputs in zip(names, reads, strict=False)
    ]
    assert boxes_of(cut(around(nodes, names[0], names[-1]))) == ["m", "add-add"]
    assert boxes_of(cut(around(nodes[:-1], names[0], names[-2]))) == ["m"]


def test_operations_between_boxes_share_boxes_so_small_that_the_page_puts_none_aside():
    parts = range(1, 15)
    nodes = [(f"x{at}th", f"Input[x{at}]", []) for at in parts]
    nodes += [(f"m{at}th/fc", "Linear", [f"x{at}th"]) for at in parts]
    # Four of these read four modules and the sum before: five lines.
    before = [[], *([f"add.{at}th"] for at in parts)]
    nodes += [
        (f"add.{at}th", "add", [f"m{at}th/fc", *read])
        for at, read in zip(parts, before, strict=False)
    ]
    nodes.append(("out", "Output", ["add.14th"]))
    boxes = [name for name in boxes_of(cut(nodes)) if not name.startswith("m")]
    assert boxes == ["add-add", *(f"add-add.{at}" for at in ("2nd", "3rd", "4th", "5th"))]
    assert lost_at_root(Hierarchy(cut(nodes))) == []


def test_the_members_of_a_long_list_stand_in_at_most_twenty_boxes():
    nodes = cut(chain([str(at) for at in range(2000)]))
    labels = boxes_of(nodes)
    assert labels[:2] + labels[-1:] == ["0-99", "100-199", "1900-1999"]
    assert len(labels) == 20
    assert nodes[60][0] == "0-99/50-59_Linear/59"
    assert_drawn_well(nodes)


def test_what_stands_beside_a_long_list_stays_where_it_is():
    names = ["ids", "embed", *(f"block_{at}" for at in range(1, 201)), "norm", "head"]
    nodes = cut(chain(names))
    assert boxes_of(nodes) == [f"block_{at}-{at + 9}" for at in range(1, 200, 10)]
    assert {"ids", "embed", "norm", "head"} <= {name for name, _, _ in nodes}


def test_what_comes_after_a_long_list_is_cut_like_it_if_it_is_much():
    nodes = cut(
        chain([*(f"block_{at}" for at in range(81)), *(f"after.{at}th" for at in range(60))])
    )
    # One alone is worth no box.
    assert {name for name, _, _ in nodes if "/" not in name} == {"x", "after.59th", "out"}


def test_the_calls_of_one_module_stand_in_boxes_that_count_them():
    nodes = cut(chain(["fc", *(f"fc.{at}th" for at in range(2, 5001))], ops=("Linear",)))
    assert boxes_of(nodes)[:2] == ["fc.1-400", "fc.401-800"]
    names = [nodes[1][0], nodes[401][0]]
    assert names == ["fc.1-400/fc.1-20/fc", "fc.401-800/fc.401-420/fc.401th"]
    assert_drawn_well(nodes)


def test_a_series_that_opens_well_is_not_cut():
    names = [f"n_{at}" for at in range(STACK_LIMIT)]
    assert chunks_of(Hierarchy(chain(names, ops=("Linear",)))) == {}
    assert chunks_of(Hierarchy(chain([*names, f"n_{STACK_LIMIT}"], ops=("Linear",)))) != {}


def test_ten_thousand_members_stand_in_chunks_of_chunks():
    nodes = cut(chain([f"list/{at}/fc" for at in range(10_000)]))
    assert boxes_of(nodes, "list")[:2] == ["0-999", "1000-1999"]
    assert boxes_of(nodes, "list/1000-1999")[:2] == ["1000-1099", "1100-1199"]
    assert_drawn_well(nodes)


def test_operations_are_cut_where_few_edges_cross_and_named_by_the_first_and_the_last():
    names, nodes, last = [], [], "x"
    for at in range(1, 101):
        names += [f"relu.{at}th", f"add.{at}th", f"mul.{at}th"]
        nodes += [("relu", [last]), ("add", [last, names[-3]]), ("mul", names[-3:-1])]
        last = names[-1]
    body = [(name, op, inputs) for name, (op, inputs) in zip(names, nodes, strict=True)]
    cut_nodes = cut([("x", "Input", []), *body, ("out", "Output", [last])])
    labels = boxes_of(cut_nodes)
    assert labels[:3] == ["relu-mul", "relu-mul.2nd", "relu-mul.3rd"]
    assert_drawn_well(cut_nodes)


def test_a_level_is_cut_behind_what_nothing_on_it_reads():
    # In three rows of 52 the last one is read outside of the box.
    names = [f"h/op{at}x" for at in range(156)]
    nodes = [
        (name, f"k{at}", [names[at - 1]] if at % 52 else ["x"]) for at, name in enumerate(names)
    ]
    nodes = [("x", "Input", []), *nodes, ("out", "Output", names[51::52])]
    after = [name.rpartition("/")[0] for name, _, _ in cut(nodes)]
    assert all(after[at] != after[at + 1] for at in (52, 104))


def joined_heads(names):
    """Give heads of one trunk that are read together."""
    heads = [(name, f"Head{at}", ["stem"]) for at, name in enumerate(names)]
    joined = ("cat", "cat", [name for name, _, _ in heads])
    return around([("stem", "Linear", []), *heads, joined], "stem", "cat")


def test_a_chunk_is_called_by_two_numbers_and_not_by_one():
    two, one = (
        cut(joined_heads([f"head{at}" if at % step == 0 else f"head{at}." for at in range(40)]))
        for step in (5, 20)
    )
    assert boxes_of(two)[:2] == ["head0-5", "head10-15"]
    assert all("." in label for label in boxes_of(one))


@pytest.mark.parametrize(("numbered", "label"), [(1, "fc.0-op9x"), (2, "fc.0-1")])
def test_a_chunk_is_called_by_numbers_that_a_tenth_of_it_have(numbered, label):
    names = [f"fc.{at}" if at < numbered else f"op{at}x" for at in range(150)]
    assert boxes_of(cut(chain(names)))[0] == label


def test_numbers_that_two_chunks_share_are_in_no_name():
    names = [f"Linear[{at}]" if at < 50 else f"ReLU[{at - 1}]" for at in range(102)]
    shared = boxes_of(cut(chain([f"h/{name}" for name in names])), "h")
    assert shared[:2] == ["Linear[0]-Linear[9]", "Linear[10]-Linear[19]"]


def test_a_module_between_operations_that_are_cut_keeps_its_name():
    nodes = [*joined_heads([f"head{at}" for at in range(40)]), ("head20/weight", "Const", [])]
    mapping = chunks_of(Hierarchy(nodes))
    assert "head20" not in mapping
    assert {"head19", "head21"} <= mapping.keys()


def test_heads_that_are_joined_stay_in_the_flow():
    nodes = joined_heads([f"head{at}" for at in range(40)])
    assert lost_at_root(Hierarchy(nodes))
    nodes = cut(nodes)
    assert boxes_of(nodes) == ["head0-9", "head10-19", "head20-29", "head30-39"]
    assert_drawn_well(nodes)


@pytest.mark.parametrize("count", [10, 11])
def test_boxes_that_run_by_turns_with_operations_stay_beside_their_chunks(count):
    turns = range(count)
    nodes = [("x", "Input", []), *((f"b{at}/in", f"In{at}", ["x"]) for at in turns)]
    ops = [f"op{at}th" for at in range(120)]
    for at, name in enumerate(ops):
        nodes.append(
            (
                name,
                name,
                [*ops[at - 1 : at], *[f"b{at // 10}/in"] * (at % 10 == 0 and at < 10 * count)],
            )
        )
    nodes += [(f"b{at}/out", f"Out{at}", [ops[10 * at + 5]]) for at in turns]
    nodes.append(("out", "Output", [ops[-1]]))
    mapping = chunks_of(Hierarchy(nodes))
    assert "op0th" in mapping
    assert not any(f"b{at}" in mapping for at in turns)


def test_a_mask_that_every_layer_reads_needs_no_chunks():
    nodes = chain([f"layers/{at}" for at in range(40)])
    nodes = [(name, op, [*inputs, "mask"] if "/" in name else inputs) for name, op, inputs in nodes]
    assert chunks_of(Hierarchy([("mask", "Input", []), *nodes])) == {}


def test_many_outputs_stand_in_one_box():
    nodes = chain([f"h/{at}" for at in range(24)])
    nodes += [(f"past.{at}.key", "Output", [f"h/{at}"]) for at in range(24)]
    assert lost_at_root(Hierarchy(nodes))
    nodes = cut(nodes)
    assert boxes_of(nodes) == ["h", "outputs"]
    assert {"x", "outputs/out", "outputs/past.0.key"} <= {name for name, _, _ in nodes}
    assert_drawn_well(nodes)


@pytest.mark.parametrize(("given", "box"), [("x", "past"), ("past", "out.past")])
def test_a_box_of_outputs_that_are_called_like_an_input_says_that_they_are_outputs(given, box):
    names = [f"h/{at}" for at in range(24)]
    nodes = [(given, "Input", [])]
    nodes += [(name, "Linear", [names[at - 1] if at else given]) for at, name in enumerate(names)]
    nodes += [(f"past.{at}.key", "Output", [name]) for at, name in enumerate(names)]
    assert boxes_of(cut(nodes)) == ["h", box]


def test_inputs_stay_where_they_are_and_outputs_have_one_box():
    nodes = chain([f"h/{at}" for at in range(60)])
    nodes = [(f"past.{at}", "Input", []) for at in range(60)] + [
        (name, op, [*inputs, f"past.{name[2:]}"] if "/" in name else inputs)
        for name, op, inputs in nodes
    ]
    nodes += [(f"past.{at}.2nd", "Output", [f"h/{at}"]) for at in range(60)]
    nodes = cut(nodes)
    assert boxes_of(nodes) == ["h", "outputs"]
    assert {f"past.{at}" for at in range(60)} <= {name for name, _, _ in nodes}


def test_circles_follow_the_node_that_they_are_named_after():
    # So many modules cannot all stay on their level.
    nodes = chain([f"{at}" for at in range(CHAIN_LIMIT)])
    nodes += [(f"{at}/weight", "ParameterConst", []) for at in range(CHAIN_LIMIT)]
    mapping = chunks_of(Hierarchy(nodes))
    names = rename(["3/weight", "weight", "x"], mapping)
    assert names == ["0-99/0-9_Linear/3/weight", "weight", "x"]


def modules_in_chunks(nodes):
    """Give the boxes, the nodes with parameters and the ends that stand in another box now."""
    owners = {name.rpartition("/")[0] for name, op, _ in nodes if op == "ParameterConst"}
    after = {name for name, _, _ in cut(nodes)}
    known = owners | {name for name, op, _ in nodes if op in ("Input", "Parameter")}
    return {name for name in known if name not in after}


@pytest.mark.parametrize("count", [100, 150, 300, 900])
def test_modules_that_do_not_repeat_stay_on_their_level_however_many_they_are(count):
    nodes = chain([f"m{at}th" for at in range(count)], ops=[f"K{at}" for at in range(count)])
    nodes += [(f"m{at}th/weight", "ParameterConst", []) for at in range(count)]
    assert cut(nodes) == nodes


@pytest.mark.parametrize(("each", "labels"), [(1, 12), (3, 12)])
def test_modules_with_the_same_operations_after_each_are_a_row_with_a_period(each, labels):
    hierarchy = Hierarchy(cut(turns(60, each)[:-2]))
    assert len(hierarchy.boxes) == labels
    assert {len(box.children) for box in hierarchy.boxes.values()} == {60 * (each + 1) // labels}


def test_boxes_of_the_function_panel_stay_at_the_top_whatever_is_cut():
    functions = [(f"{LIBRARY}f{at}/add", "add", []) for at in range(3)]
    nodes = cut([*turns(60, 3), *functions])
    assert [node for node in nodes if node[0].startswith(LIBRARY)] == functions
    assert len(boxes_of(nodes)) < 60


def test_a_few_operations_beside_many_modules_need_no_box():
    nodes = turns(120, 0)[:-2]
    nodes += [(f"op{at}x", "add", [nodes[-1 - at % 2][0]]) for at in range(3)]
    assert cut(nodes) == nodes


def test_many_inputs_of_one_layer_stand_in_one_box():
    names = [f"in_{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(150)]
    nodes = [(name, "Input", []) for name in names]
    nodes += [("fc", "Linear", names), ("fc/weight", "ParameterConst", [])]
    nodes = cut([*nodes, ("out", "Output", ["fc"])])
    assert boxes_of(nodes) == ["inputs"]
    assert {f"inputs/{name}" for name in names} <= {name for name, _, _ in nodes}
    assert lost_at_root(Hierarchy(nodes)) == []


@pytest.mark.parametrize(("stem", "box"), [("head", "head0-39"), ("head2d", "head2d0x-head2d39x")])
def test_heads_that_are_modules_share_a_box_where_the_page_would_lose_what_joins_them(stem, box):
    names = [f"{stem}{at}{'' if stem == 'head' else 'x'}" for at in range(40)]
    nodes = [*joined_heads(names), *((f"{name}/weight", "ParameterConst", []) for name in names)]
    assert lost_at_root(Hierarchy(nodes))
    assert boxes_of(cut(nodes)) == [box]
    assert lost_at_root(Hierarchy(cut(nodes))) == []


@pytest.mark.parametrize("inner", ["", "/fc"])
def test_heads_that_share_a_box_take_the_parameters_along_that_nothing_else_reads(inner):
    readers = {"own": [3], "both": [4, 7], "shared": [5]}
    nodes = [("x", "Input", []), ("stem", "Linear", ["x"])]
    nodes += [(name, "Parameter", []) for name in readers]
    for at in range(40):
        read = [name for name, heads in readers.items() if at in heads]
        nodes.append((f"head{at}{inner}", f"Head{at}", ["stem", *read]))
        nodes.append((f"head{at}{inner}/weight", "ParameterConst", []))
    nodes.append(("cat", "cat", [*(f"head{at}{inner}" for at in range(40)), "shared"]))
    mapping = chunks_of(Hierarchy([*nodes, ("out", "Output", ["cat"])]))
    moved = {name: new for name, new in mapping.items() if name in readers}
    assert moved == {"own": "head0-39/own", "both": "head0-39/both"}


def test_leaf_modules_without_parameters_are_modules_where_that_is_told():
    nodes = joined_heads([f"head{at}" for at in range(40)])
    heads = {f"head{at}" for at in range(40)}
    told = chunks_of(Hierarchy(nodes), modules=heads)
    assert set(told.values()) == {f"head0-39/{head}" for head in heads}
    assert "head0-9/head0" in chunks_of(Hierarchy(nodes)).values()


def turns(modules, each, *, boxes=False):
    """Give modules with operations between them, all of which join one skip at the end."""
    names = [(f"m{at}th/inner" if boxes else f"m{at}th", f"op{at}") for at in range(modules)]
    nodes, last, skips = [("x", "Input", [])], "x", []
    for module, stem in names:
        nodes.append((module, "Linear", [last]))
        nodes.append((f"{module}/weight", "ParameterConst", []))
        last = module
        for at in range(each):
            nodes.append((f"add.{stem}{at}x", "add", [last]))
            last = nodes[-1][0]
            skips.append(last)
    return [*nodes, ("cat", "cat", skips), ("out", "Output", ["cat"])]


@pytest.mark.parametrize("boxes", [True, False])
def test_no_cut_makes_a_cycle_and_no_module_stands_in_a_chunk(boxes):
    nodes = turns(4, 12, boxes=boxes)
    assert lost_at_root(Hierarchy(nodes))
    hierarchy = Hierarchy(cut(nodes))
    assert find_cycles(hierarchy.links(hierarchy.root)) == []
    assert {f"m{at}th" for at in range(4)} <= hierarchy.root.children.keys()
    assert [name for name in hierarchy.boxes if name.startswith("add")] != []


@pytest.mark.parametrize(("count", "moves"), [(998, False), (999, True)])
def test_a_module_goes_into_a_chunk_only_where_the_page_would_stay_blank(count, moves):
    nodes = chain([f"m{at}th" for at in range(count)], ops=[f"K{at}" for at in range(count)])
    nodes += [(f"m{at}th/weight", "ParameterConst", []) for at in range(count)]
    assert bool(modules_in_chunks(nodes)) is moves


def test_a_parameter_that_is_a_node_keeps_its_name_in_a_level_that_is_cut():
    for op, stays in (("Parameter", True), ("Buffer", True), ("Tensor", False)):
        nodes = [*turns(4, 12), *((f"bias{at}x", op, []) for at in range(4))]
        nodes.append(("other", "add", [f"bias{at}x" for at in range(4)]))
        assert ("bias1x" not in chunks_of(Hierarchy(nodes))) is stays


def test_many_outputs_of_operations_alone_stand_in_one_box_too():
    names = [f"h{at}x" for at in range(120)]
    nodes = chain(names, ops=names)
    nodes += [(f"{'abcdefgh'[at]}b", "Output", [names[at * 14]]) for at in range(8)]
    assert "outputs" in boxes_of(cut(nodes))


def test_modules_and_cards_stay_in_a_level_whose_operations_are_cut():
    heads = [(f"op{at}", f"op{at}", ["stem"]) for at in range(40)]
    joined = ("cat", "cat", [name for name, _, _ in heads])
    nodes = [("stem", "Linear", ["x"]), ("stem/weight", "ParameterConst", []), *heads, joined]
    nodes = [("x", "Input", []), *nodes, ("Net", "NoOp", []), ("out", "Output", ["cat"])]
    assert not {"stem", "Net"} & chunks_of(Hierarchy(nodes)).keys()
    assert_drawn_well(cut(nodes))


def test_a_node_named_like_its_box_stays_in_it():
    nodes = chain([f"list/{at}" for at in range(200)])
    nodes.append(("list", "Card", []))
    assert "list" not in chunks_of(Hierarchy(nodes))
    names = {name for name, _, _ in cut(nodes)}
    assert "list" in names
    assert "list/0-9/0" in names


def test_a_chunk_takes_no_name_that_is_there():
    nodes = chain([f"{at}" for at in range(200)])
    nodes.append(("10-19", "Linear", ["x"]))
    assert boxes_of(cut(nodes))[:2] == ["0-9", "10-19.2nd"]


def test_a_stem_is_the_authors_name_as_it_is():
    nodes = cut(chain([f"decoder_layer.{at}" for at in range(50)]))
    assert boxes_of(nodes) == [f"decoder_layer.{at}-{at + 9}" for at in range(0, 50, 10)]


def test_a_list_whose_numbers_do_not_rise_is_counted_in_the_order_of_execution():
    names = [f"fc{at}" for at in (*range(0, 200, 2), *range(1, 200, 2))]
    nodes = cut(chain(names))
    assert boxes_of(nodes)[:2] == ["fc0-fc18", "fc20-fc38"]
    assert boxes_of(cut(chain(sorted(names, key=lambda name: int(name[2:])))))[0] == "fc0-9"


def test_classes_with_numbers_in_brackets_are_a_list_too():
    names = [f"Net/{('Linear', 'ReLU')[at % 2]}[{at}]" for at in range(120)]
    labels = boxes_of(cut(chain(names)), "Net")
    assert labels[:2] + labels[-1:] == ["0-9", "10-19", "110-119"]


def test_inputs_in_a_box_of_their_own_stay_in_it():
    nodes = [(f"past/{at}", f"Input[{at}]", []) for at in range(120)]
    nodes += around([("fc", "Linear", [name for name, _, _ in nodes])], "fc", "fc")
    assert cut(nodes) == nodes


def test_many_inputs_of_different_names_stand_apart_from_the_layers_that_read_them():
    ends = [(f"{chr(97 + at % 26)}{chr(97 + at // 26)}", "Input", []) for at in range(120)]
    layers = chain([f"fc.{at}th" for at in range(24)])
    layers = [
        (name, op, [*inputs, *(end[0] for end in ends[5 * int(name[3:-2]) :][:5])])
        if name[:2] == "fc"
        else (name, op, inputs)
        for name, op, inputs in layers
    ]
    nodes = cut(ends + layers)
    assert boxes_of(nodes)[0] == "inputs"
    assert {name.split("/")[0] for name, op, _ in nodes if op == "Input"} <= {"inputs"}
    assert lost_at_root(Hierarchy(nodes)) == []


def test_no_box_at_the_top_is_called_like_what_every_object_of_the_page_has():
    nodes = chain(["fc"]) + [(f"length{at}", f"Output[{at}]", ["fc"]) for at in range(20)]
    assert boxes_of(cut(nodes)) == ["outputs"]


def test_seeds_take_no_flow_that_bears_them():
    nodes = [("x", "Input", []), ("m/a", "k", ["x"])]
    nodes += [(f"o_{word}", "Output", ["m/a"]) for word in "abcdef"]
    assert bears_seeds(Hierarchy(nodes), 6)
    assert not bears_seeds(Hierarchy(nodes), 7)
    few = Hierarchy(nodes[:-2])
    assert bears_seeds(few, 100)
    seeds = [(f"__function_library__{at}_template/a", "a", []) for at in range(7)]
    seeded = Hierarchy([*seeds, *nodes])
    assert lost_at_root(seeded)


def test_renaming_without_chunks_gives_the_same_names():
    assert rename(["a/b", "a", ""], {}) == ["a/b", "a", ""]


def network(seed, size, reach, hubs):
    """Give nodes in order, in nested boxes of any width, that read nodes before them."""
    random = Random(seed)
    nodes = [("x", "Input", []), ("y", "Input", [])]
    boxes = random.choice([[""], ["", "a/"], ["", "a/", "a/b/", "c/"]])
    below = random.choice([[""], ["", "", "/in"], ["/in", "/in/deep"]])
    stems = random.choice([[""], ["fc."], ["", "n", "fc.", "relu_"]])
    names = {
        f"{random.choice(boxes)}{random.choice(stems)}{number}{random.choice(below)}": None
        for number in range(size)
    }
    for at, name in enumerate(names):
        steps = [random.randint(1, reach) for _ in range(random.randint(1, 3))]
        inputs = [nodes[max(len(nodes) - step, 0)][0] for step in steps]
        if hubs and random.random() < 0.7:
            inputs.append(nodes[random.randrange(min(hubs, len(nodes)))][0])
        if at and random.random() < hubs / 200:
            inputs += [nodes[random.randrange(len(nodes))][0] for _ in range(random.randint(5, 40))]
        nodes.append((name, random.choice(["add", "Linear"]), inputs))
    for at in range(random.choice([1, 3, 40])):
        nodes.append((f"out.{at}", "Output", [nodes[-1 - random.randrange(size + at)][0]]))
    return nodes


@settings(max_examples=100 if is_sweep() else 30, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    size=st.sampled_from([5, 20, 60, 150, 500]),
    reach=st.sampled_from([1, 3, 30]),
    hubs=st.sampled_from([0, 1, 3, 10]),
)
def test_any_graph_is_drawn_well_and_keeps_its_names_apart_and_its_edges(seed, size, reach, hubs):
    nodes = network(seed, size, reach, hubs)
    after = cut(nodes)
    assert_drawn_as_well_as_modules_allow(after)
    assert modules_in_chunks(nodes) == set()
    assert len({name for name, _, _ in after}) == len({name for name, _, _ in nodes})
    back = {new: old for (new, _, _), (old, _, _) in zip(after, nodes, strict=True)}
    assert [[back[text] for text in inputs] for _, _, inputs in after] == [
        inputs for _, _, inputs in nodes
    ]
    # Where boxes are kept, those of the chunks are, too: and what is between may be cut again.
    if not Hierarchy(nodes).boxes:
        assert chunks_of(Hierarchy(after)) == {}


# A selective scan between modules: it reads eight things of its level.
SCAN = """
x Input
mul Mul x
in_proj/linear Linear mul
{state}
exp Exp {of_exp}
neg Neg exp
chunk Chunk in_proj/linear
copy_ Copy chunk
conv1d/weight Parameter
{conv}
conv/conv1d Conv {of_conv}
x_proj/linear Linear conv/conv1d
split Split x_proj/linear
dt_layernorm/mul Mul split
b_layernorm/mul Mul split
c_layernorm/mul Mul split
dt_proj/weight Parameter
matmul MatMul dt_layernorm/mul dt_proj/weight
scan/add Add matmul dt_proj/weight neg b_layernorm/mul c_layernorm/mul conv/conv1d chunk {of_scan}
update/copy Copy scan/add
out_proj/linear Linear scan/add
out Output out_proj/linear
"""


def scanned(*, state="", of_exp="", conv="", of_conv="chunk conv1d/weight", of_scan=""):
    """Give for each part of a level with a scan the box that it stands in after cutting."""
    text = SCAN.format(state=state, of_exp=of_exp, conv=conv, of_conv=of_conv, of_scan=of_scan)
    words = [line.split() for line in text.split("\n") if line]
    nodes = [(name, op, inputs) for name, op, *inputs in words]
    hierarchy = Hierarchy(nodes)
    assert [glyph.name for glyph in lost_at_root(hierarchy)] == ["update", "out"]
    mapping = chunks_of(hierarchy, boxed={"scan", "update"}, iterations={"conv"})
    names = rename([name for name, _, _ in nodes], mapping)
    after = Hierarchy(
        (name, op, [rename_input(text, mapping) for text in inputs])
        for name, (_, op, inputs) in zip(names, nodes, strict=True)
    )
    assert lost_at_root(after) == []
    return {name: mapping.get(name, name).rpartition("/")[0] for name in hierarchy.root.children}


def test_a_parameter_stands_with_the_one_chunk_that_reads_it_where_that_helps():
    found = scanned(state="A_log Parameter\nD Parameter", of_exp="A_log", of_scan="D")
    assert found["A_log"] == found["exp"] == found["neg"] != ""
    assert found["D"] == found["scan"] == found["matmul"] not in ("", found["exp"])
    assert found["in_proj"] == found["conv1d"] == found["x_proj"] == ""


def test_a_box_in_which_modules_were_called_stands_in_a_chunk_where_nothing_else_helps():
    conv = "squeeze Squeeze conv1d/weight\ngetitem Getitem chunk\ntranspose Transpose getitem"
    found = scanned(conv=conv, of_conv="squeeze transpose")
    assert found["conv"] == found["squeeze"] == found["getitem"] != ""
    assert found["in_proj"] == found["conv1d"] == found["x_proj"] == ""
