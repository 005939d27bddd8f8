"""What options change in TensorBoard's page, what a click there shows, and merged graphs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser import TensorBoard, write_runs
from llama import spread
from nasty_models import NASTY
from real_graphs import real_graph
from sweeps import sampled
from test_merge_ranks import Net as RankNet
from test_merge_ranks import pipeline, plain
from test_page_models import boxes_of, gpt2, resnet
from torch import nn
from torch.nn import functional

import tbscope

FILE = Path(__file__)
NEUTRAL = ["rgb(238, 238, 238)"]
OPEN = ["rgb(240, 240, 240)"]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.query = nn.Linear(8, 8)
        self.out = nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        q = self.query(self.norm(x)).view(2, 5, 2, 4).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.0)
        y = self.out(y.transpose(1, 2).flatten(2))
        return torch.add(x, self.dropout(y), alpha=2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Sequential(nn.Linear(8, 4), nn.Softmax(dim=-1))

    def forward(self, x, mask):
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x.mean(1)), x.argmax(-1)


COLOURS = {
    "class": "class",
    "trainable": "trainable",
    "mapping": {"blocks.0": "first stage", "head": "last stage"},
    "function": lambda node: f"{len(node.inputs)} inputs" if node.kind == "op" else None,
}
OPTIONS = {
    "plain": {},
    "module": {"level": "module"},
    "aten": {"level": "aten"},
    "torch": {"style": "torch"},
    "box": {"leaves": "box"},
    "root": {"root": True},
    "keep": {"keep": ["view"]},
    "hide": {"hide": ["*dropout*"]},
    "bare": {"cards": False, "templates": False},
    **{name: {"color_by": color_by} for name, color_by in COLOURS.items()},
}


def joined():
    """Give graphs of ranks that differ, and do something together."""
    return [RankNet(r, layers=(0, 1)[: 1 + r]).join("all_reduce", (0, 1)).graph() for r in (0, 1)]


def alike():
    """Give one rank of many, whose layers are spread over all of them."""
    with tbscope.fake_world(1024, mesh={"dp": 128, "tp": 8}) as mesh:
        model = spread((64, 32, 8, 8, 48), 2, mesh)
        return tbscope.trace(model, torch.zeros(1, 8, dtype=torch.int64), fake=True)


MERGED = {
    "folded": lambda: [replace(plain(0), rank=rank, world_size=1024) for rank in range(1024)],
    "stages": lambda: pipeline(lanes=2),
    "joined": joined,
}
RANKS = {
    "folded": ["ranks_0-1023_CPU:0"],
    "stages": ["ranks_0-1_CPU:0", "ranks_2-3_CPU:0", "ranks_4-5_CPU:0"],
    "joined": ["ranks_0_CPU:0", "ranks_0-1_CPU:0", "ranks_1_CPU:0"],
}


@pytest.fixture(scope="module")
def messages():
    torch.manual_seed(0)
    given = torch.ones(2, 5, 8), torch.zeros(5, 5)
    graph = tbscope.trace(Net().eval(), given, kernels=True)
    made = {name: tbscope.to_graph_def(graph, **options) for name, options in OPTIONS.items()}
    for make in (gpt2, resnet):
        model, given = make(1)
        graph = tbscope.trace(model.eval(), given, kernels=True)
        for level in ("module", "aten"):
            made[f"{make.__name__} {level}"] = tbscope.to_graph_def(graph, level=level)
    for name, (make, given) in NASTY.items():
        graph = tbscope.trace(make().eval(), given)
        made[f"nasty {name}"] = tbscope.to_graph_def(graph, color_by="class")
    model, given = resnet(1)
    made["search resnet"] = tbscope.to_graph_def(tbscope.trace(model, given, training=True))
    made["labels"] = tbscope.to_graph_def(real_graph("BertModel"), labels="class")
    for name, make in MERGED.items():
        made[f"merged {name}"] = tbscope.to_graph_def(tbscope.merge_ranks(make()))
    first = alike()
    merged = tbscope.merge_ranks(replace(first, rank=rank) for rank in range(1024))
    made["merged alike"] = tbscope.to_graph_def(merged)
    return made


RUNS = [
    *(name for name in OPTIONS if name not in COLOURS),
    *("gpt2 module", "gpt2 aten", "resnet module", "resnet aten"),
    *(f"nasty {name}" for name in NASTY),
]


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory, messages):
    logdir = tmp_path_factory.mktemp("drawings")
    write_runs(logdir, messages)
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


def names_of(message, *ops):
    return {node.name for node in message.node if node.op in ops}


# -- every option, and every nasty model ----------------------------------------------------


@pytest.mark.parametrize("run", sampled(RUNS, [*RUNS[1:8:2], "gpt2 module", "nasty numbered"]))
def test_every_box_opens_one_by_one_and_nothing_goes_wrong(page, messages, run):
    opened = page.show(run).expand_each()
    assert set(opened) >= boxes_of(messages[run])
    drawn = page.nodes
    seen = set(drawn).union(*(node.circles for node in drawn.values()))
    in_graph = {node.name for node in messages[run].node if not node.name.startswith("__")}
    assert in_graph <= seen
    aside = {name for name, node in drawn.items() if node.section == "out-extract"}
    assert aside == names_of(messages[run], "NoOp") & in_graph
    assert tbscope.lint(messages[run]) == []
    assert page.errors == []


@pytest.mark.parametrize("name", sampled(NASTY, ["numbered"]))
def test_nasty_models_are_coloured_and_their_boxes_selected(page, name):
    page.show(f"nasty {name}").expand_all()
    for kind in ("xla_cluster", "device"):
        page.color_by(kind)
        assert all(page.fills.values())
    page.color_by("structure")
    for box in page.boxes:
        page.evaluate("(name) => tbscope.select(name)", box)
    assert page.errors == []


# -- what the options change ----------------------------------------------------------------


def test_a_module_is_one_node_at_the_level_of_modules(page):
    page.show("gpt2 module").expand_all()
    assert page.nodes["transformer/h/0/mlp/act"].op == "NewGELUActivation"
    assert "transformer/h/0/mlp" in page.boxes


def test_an_operation_is_a_box_of_kernels_at_the_level_of_aten(page):
    page.show("resnet aten").expand_all()
    scope = "resnet/embedder/embedder/normalization/batch_norm"
    assert scope in page.boxes
    assert page.nodes[f"{scope}/native_batch_norm"].section == "core"


def test_leaf_modules_are_boxes_where_asked_for(page):
    page.show("box").expand_all()
    assert {"blocks/0/norm", "blocks/1/query", "head/0"} <= page.boxes
    assert ("blocks/0/norm/weight", "blocks/0/norm/layer_norm") in {e[:2] for e in page.edges}


def test_style_torch_names_boxes_as_pytorch_prints_them(page):
    page.show("torch").expand_all()
    assert {"Net/ModuleList[blocks]/Block[0]", "Net/Sequential[head]"} <= page.boxes


def test_the_root_is_a_box_where_asked_for(page):
    page.show("root")
    core = {name for name, node in page.nodes.items() if node.section == "core"}
    assert core == {"x", "mask", "Net", "out.0", "out.1"}


def test_keep_draws_plumbing_and_hide_leaves_out_more(page):
    drawn = {}
    for run in ("plain", "keep", "hide"):
        page.show(run).expand_all()
        drawn[run] = set(page.nodes) - {"__function_library__Block_template"}
    assert drawn["keep"] - drawn["plain"] == {f"blocks/{i}/view" for i in range(2)}
    assert drawn["plain"] - drawn["hide"] == {f"blocks/{i}/dropout" for i in range(2)}
    assert ("blocks/0/out", "blocks/0/add") in {edge[:2] for edge in page.edges}


def test_without_cards_and_templates_only_the_flow_is_drawn(page):
    page.show("bare").expand_all()
    assert {node.section for node in page.nodes.values()} == {"core"}


# -- colours --------------------------------------------------------------------------------


@pytest.mark.parametrize("run", sampled(COLOURS, ["class", "function"]))
def test_nodes_are_coloured_by_category(page, messages, run):
    page.show(run).expand_all()
    colours = {entry["xla_cluster"]: entry["color"] for entry in page.color_by("xla_cluster")}
    drawn, fills = page.nodes, page.fills
    labels = {
        node.name: node.attr["_XlaCluster"].s.decode()
        for node in messages[run].node
        if "_XlaCluster" in node.attr
    }
    assert set(colours) == set(labels.values())
    for name, node in drawn.items():
        if node.kind == "op":
            label = labels.get(name)
            assert fills[name] == ([colours[label]] if label else NEUTRAL), name
    assert all(fills[name] in (OPEN, NEUTRAL) for name, node in drawn.items() if node.expanded)
    assert tbscope.lint(messages[run]) == []
    assert page.errors == []


def test_the_categories_are_those_of_the_model(page):
    legends = {}
    for run in COLOURS:
        legend = page.show(run).color_by("xla_cluster")
        legends[run] = {entry["xla_cluster"] for entry in legend}
    modules = {"LayerNorm", "Linear", "Dropout", "Softmax"}
    # An operation is told by its own name, not by the class of the module in which it ran.
    assert modules | {"scaled_dot_product_attention", "add"} <= legends["class"]
    assert legends["class"].isdisjoint({"Net", "Block"})
    assert legends["trainable"] == {"trainable", "frozen"}
    assert legends["mapping"] == {"first stage", "last stage"}


def test_a_closed_box_has_a_stripe_for_each_category_in_it(page):
    page.show("mapping")
    colours = {entry["xla_cluster"]: entry["color"] for entry in page.color_by("xla_cluster")}
    fills = page.fills
    assert fills["head"] == [colours["last stage"]]
    assert fills["blocks"][0] == colours["first stage"]
    assert fills["x"] == NEUTRAL


def test_nodes_are_coloured_by_device(page):
    page.show("plain").expand_all()
    ((device, colour),) = [entry.values() for entry in page.color_by("device")]
    assert device == "/device:CPU:0"
    assert page.fills["blocks/0/norm"] == page.fills["x"] == [colour]
    assert page.errors == []


# -- what a click shows ---------------------------------------------------------------------


def line_of(text):
    lines = FILE.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_the_card_of_an_operation_tells_its_arguments_and_where_it_stands(page):
    page.show("plain")
    card = page.info_card("blocks/0/scaled_dot_product_attention")
    assert "Operation: scaled_dot_product_attention" in card
    line = line_of("functional.scaled_dot_product_attention(q")
    assert f'source {{"s":"{FILE.name}:{line} in forward"}}' in card
    assert 'dropout_p {"f":0}' in card
    assert 'dtype {"s":"float32"}' in card
    assert 'kernels {"s":"aten::_scaled_dot_product' in card
    assert 'scope {"s":"Net/ModuleList[blocks]/Block[0]"}' in card
    assert "blocks/0/query 2×5×8" in card
    assert "mask 5×5" in card
    assert 'flops {"i":1600}' in card
    card = page.info_card("blocks/0/add")
    assert 'alpha {"i":2}' in card
    assert 'flops_not_counted {"s":"aten::add"}' in card
    assert "flops {" not in card


def test_the_card_of_a_leaf_module_tells_its_class_and_hyperparameters(page):
    card = page.show("plain").info_card("blocks/1/norm")
    assert "Operation: LayerNorm" in card
    assert 'class {"s":"torch.nn.modules.normalization.LayerNorm"}' in card
    assert 'module {"s":"blocks.1.norm"}' in card
    assert 'normalized_shape {"list":{"i":[8]}}' in card
    assert 'eps {"f":0.000001}' in card
    assert 'training {"b":false}' in card
    assert 'parameters {"s":"weight Float(8), bias Float(8)"}' in card
    assert 'parameter_count {"i":16}' in card
    assert 'bytes {"i":64}' in card
    assert "Inputs ( 3 ) blocks/0/add 2×5×8 blocks/1/norm/weight 8 blocks/1/norm/bias 8" in card


def test_each_box_of_a_module_holds_a_card_called_like_its_class(page):
    page.show("plain")
    for box, name, count in (("blocks/0", "Block", 152), ("head", "Sequential", 36)):
        card = page.info_card(f"{box}/{name}")
        assert "Operation: NoOp" in card
        assert f'module {{"s":"{box.replace("/", ".")}"}}' in card
        assert f'parameter_count {{"i":{count}}}' in card
        assert 'training {"b":false}' in card
    card = page.info_card("blocks/0/Block")
    assert f'class {{"s":"{Block.__module__}.Block"}}' in card
    line = line_of("class Block")
    assert f'defined {{"s":"{FILE.name}:{line} in Block"}}' in card
    assert 'trainable_parameter_count {"i":88}' in card
    # Two linear layers of 8 by 8 on 10 rows; in 4 heads, scores and their sums.
    assert f'flops {{"i":{2 * (2 * 10 * 64) + 2 * (2 * 4 * 5 * 5 * 4)}}}' in card
    assert 'flops_not_counted {"s":"aten::add, aten::native_layer_norm"}' in card
    assert 'arguments {"s":"x: Float(2, 5, 8), mask: Float(5, 5)"}' in card
    assert 'results {"s":"Float(2, 5, 8)"}' in card


def test_the_card_of_the_whole_model_stands_under_auxiliary_nodes(page):
    page.show("plain")
    assert page.nodes["Net"].section == "out-extract"
    card = page.info_card("Net")
    assert f'class {{"s":"{Net.__module__}.Net"}}' in card
    assert 'parameter_count {"i":340}' in card
    assert 'results {"s":"(Float(2, 4), Long(2, 5))"}' in card


# -- search ---------------------------------------------------------------------------------


def test_every_key_of_the_state_dict_of_a_resnet_finds_its_node(page):
    keys = resnet(1)[0].state_dict()
    found = page.show("search resnet").search_all(keys)
    assert [key for key in keys if key.replace(".", "/") not in found[key]] == []


def test_every_key_of_the_state_dict_of_a_gpt2_finds_its_node(page):
    model, _ = gpt2(1)
    assert model.lm_head.weight is model.transformer.wte.weight
    found = page.show("gpt2 module").search_all(model.state_dict())
    # A tied parameter stands beside each module that reads it, under its name there.
    assert found["lm_head.weight"] == ["lm_head/weight"]
    assert found["transformer.wte.weight"] == ["transformer/wte/weight"]
    assert [key for key in found if key.replace(".", "/") not in found[key]] == []
    page.show("gpt2 module").expand_all()
    assert page.nodes["lm_head"].circles == ["lm_head/weight"]


# -- labels --------------------------------------------------------------------------------


def test_every_key_finds_its_node_where_boxes_tell_classes(page):
    graph = real_graph("BertModel")
    keys = [node.name for node in graph.nodes if node.kind == "parameter"]
    found = page.show("labels").search_all(keys)
    assert [
        key for key in keys if not any(name.replace("/", ".").endswith(key) for name in found[key])
    ] == []
    assert (
        "encoder_Encoder/layer_ModuleList/0_Layer/attention_Attention/self_SelfAttention/"
        "query_Linear/encoder.layer.0.attention.self.query.bias"
        in (found["encoder.layer.0.attention.self.query.bias"])
    )


def test_the_boxes_of_modules_tell_their_class(page):
    page.show("labels").expand("encoder_Encoder")
    page.expand("encoder_Encoder/layer_ModuleList")
    inside = "encoder_Encoder/layer_ModuleList/"
    held = {name for name in page.nodes if name.startswith(inside)}
    assert held == {f"{inside}0_Layer", f"{inside}1_Layer"}


# -- merged graphs --------------------------------------------------------------------------


@pytest.mark.parametrize("name", MERGED)
def test_the_legend_lists_the_ranks_and_every_box_opens(page, name):
    page.show(f"merged {name}")
    legend = page.color_by("device")
    assert sorted(one["device"] for one in legend) == [
        f"/device:{one}" for one in sorted(RANKS[name])
    ]
    page.expand_all()
    assert page.errors == []
    assert [node for node in page.nodes if node.endswith("Net/0")] or "0" in page.nodes


def test_one_rank_that_stands_for_all_opens_to_its_last_box(page):
    page.show("merged alike")
    assert [one["device"] for one in page.color_by("device")] == ["/device:ranks_0-1023_CPU:0"]
    closed = len(page.nodes)
    page.expand_all()
    assert page.errors == []
    for layer in (0, 1):
        inside = [node for node in page.nodes if f"layers/{layer}/attention/" in node]
        assert any(node.endswith("/wo") or "/wo/" in node for node in inside), inside
        assert any(node.rpartition("/")[2].startswith("all_reduce") for node in inside), inside
    assert len(page.nodes) > closed
