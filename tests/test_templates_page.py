"""Equal boxes have equal colours in TensorBoard's page, at every depth, in real models."""

import re
from collections import defaultdict

import pytest
import torch
import transformers
from browser import TensorBoard, write_runs
from sweeps import sampled
from torch import nn

import tbscope
from tbscope.page.constants import LIBRARY

IDS = torch.ones(1, 8, dtype=torch.long)
IMAGE = torch.ones(1, 3, 32, 32)
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}


def bert():
    config = transformers.BertConfig(**SMALL, num_hidden_layers=4, vocab_size=100)
    return transformers.BertForSequenceClassification(config), {"input_ids": IDS}


def bert_decoder():
    """An encoder and a decoder of one class of blocks, with attention across in one."""
    config = transformers.BertConfig(**SMALL, num_hidden_layers=3, vocab_size=100)
    model = transformers.EncoderDecoderModel(
        transformers.EncoderDecoderConfig.from_encoder_decoder_configs(config, config)
    )
    return model, {"input_ids": IDS, "decoder_input_ids": IDS.clone()}


def gpt2():
    sizes = {"n_embd": 32, "n_layer": 6, "n_head": 2, "vocab_size": 100}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **SPECIAL)), {
        "input_ids": IDS
    }


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 4, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, vocab_size=100, decoder_start_token_id=0)
    )
    return model, {"input_ids": IDS, "decoder_input_ids": IDS.clone()}


def vit():
    config = transformers.ViTConfig(**SMALL, num_hidden_layers=3, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config), IMAGE


def resnet():
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [2, 3, 3]}
    config = transformers.ResNetConfig(**sizes, layer_type="bottleneck")
    return transformers.ResNetForImageClassification(config), IMAGE


def swin():
    sizes = {"image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 8}
    config = transformers.SwinConfig(**sizes, depths=[2, 4, 2], num_heads=[1, 2, 4])
    return transformers.SwinForImageClassification(config), IMAGE


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[2, 2, 3, 2])
    return transformers.ConvNextForImageClassification(config), IMAGE


def mixtral():
    config = transformers.MixtralConfig(
        **SMALL,
        num_key_value_heads=1,
        num_hidden_layers=3,
        num_local_experts=4,
        vocab_size=100,
    )
    return transformers.MixtralForCausalLM(config), {"input_ids": IDS}


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return self.down(torch.relu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts that all run, and a gate that weighs them."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(Expert() for _ in range(4))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        parts = [expert(x) * weights[..., i : i + 1] for i, expert in enumerate(self.experts)]
        return x + torch.stack(parts).sum(0)


class Mixtures(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Mixture() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def mixture():
    return Mixtures(), torch.ones(2, 8)


def whisper():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 3 for side in sides} | {f"{side}_ffn_dim": 64 for side in sides}
    sizes |= {f"{side}_attention_heads": 2 for side in sides}
    config = transformers.WhisperConfig(
        **sizes,
        **SPECIAL,
        d_model=32,
        vocab_size=100,
        max_source_positions=50,
        num_mel_bins=8,
        pad_token_id=0,
        decoder_start_token_id=1,
    )
    features = torch.ones(1, 8, 100)
    model = transformers.WhisperForConditionalGeneration(config)
    return model, {"input_features": features, "decoder_input_ids": IDS}


MODELS = (
    bert,
    bert_decoder,
    gpt2,
    t5,
    vit,
    resnet,
    swin,
    convnext,
    mixtral,
    mixture,
    whisper,
)
CHOSEN = sampled(MODELS, [bert_decoder, gpt2, vit, resnet, mixture])
NAMES = [make.__name__ for make in CHOSEN]


def inside_of_boxes(message):
    """Tell what is in each box, by this test's own reading of the GraphDef.

    Two boxes get equal texts if they hold the same operations and boxes with the same
    edges between such, whatever their names are.
    """
    nodes = {node.name: node for node in message.node if "Const" not in node.op}
    children, edges = defaultdict(dict), defaultdict(set)
    for name in nodes:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            children["/".join(parts[:depth])]["/".join(parts[: depth + 1])] = None
    for name, node in nodes.items():
        for given in node.input:
            source = re.sub(r":\d+$", "", given.lstrip("^"))
            if source not in nodes or source == name:
                continue
            a, b = source.split("/"), name.split("/")
            depth = next(at for at in range(len(b)) if a[at] != b[at])
            pair = ("/".join(a[: depth + 1]), "/".join(b[: depth + 1]))
            edges["/".join(a[:depth])].add(pair)
    numbers, inside = {}, {}
    for box in sorted(children, key=lambda box: -box.count("/")):

        def kind(name):
            return inside[name] if name in inside else nodes[name].op

        held = sorted(str(kind(child)) for child in children[box])
        lines = sorted(f"{kind(a)} -> {kind(b)}" for a, b in edges[box])
        text = f"{held} {lines}"
        inside[box] = numbers.setdefault(text, len(numbers))
    return inside


@pytest.fixture(scope="module")
def graphs():
    torch.manual_seed(0)
    made = {}
    for make in CHOSEN:
        model, given = make()
        graph = tbscope.trace(model.eval(), given)
        plain = tbscope.to_graph_def(graph, templates=False)
        made[make.__name__] = (plain, tbscope.to_graph_def(graph))
    return made


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory, graphs):
    logdir = tmp_path_factory.mktemp("logs")
    for name, (plain, seeded) in graphs.items():
        write_runs(logdir, {name: seeded, f"{name}_plain": plain})
    with TensorBoard(logdir) as server:
        yield browser.open(server.url)


TEMPLATES = """
    const map = tbscope.find('tf-graph').graphHierarchy.getNodeMap();
    const boxes = Object.values(map).filter((node) => node.type === 0);
    return Object.fromEntries(
        boxes.filter((box) => box.templateId).map((box) => [box.name, box.templateId]));
"""


def templates(page):
    """Give the template of every box, drawn or not, that the page found."""
    return page._page.evaluate(f"() => {{{TEMPLATES}}}")


def fills(page):
    """Give the colour of every box that is drawn, and whether it is open."""
    return page._page.evaluate(
        """() => {
          const svg = tbscope.find('tf-graph-scene').shadowRoot.querySelector('#svg');
          const drawn = [...svg.querySelectorAll('g.node')]
            .filter((element) => element.__data__.node.type === 0);
          return Object.fromEntries(drawn.map((element) => [element.__data__.node.name, [
            getComputedStyle(element.querySelector(':scope > .nodeshape > rect')).fill,
            Boolean(element.__data__.expanded)]]));
        }"""
    )


def unequal(inside, found):
    """Give pairs of equal boxes that `found` tells apart, one for each kind of box."""
    alike = defaultdict(list)
    for box, number in inside.items():
        if box:
            alike[number].append(box)
    return [
        (first, other)
        for first, *others in alike.values()
        for other in others
        if found.get(first) != found.get(other)
    ]


def blocks(message):
    """Give what is in each box but those that hold inputs or outputs alone, which have no seed."""
    inside = inside_of_boxes(message)
    ends = {box: [] for box in inside}
    for node in message.node:
        for at in [at for at, letter in enumerate(node.name) if letter == "/"]:
            ends.setdefault(node.name[:at], []).append(node.op.partition("[")[0])
    return {box: n for box, n in inside.items() if not {*ends[box]} <= {"Input", "Output"}}


def legend(page):
    """Give what the Functions panel shows, from above, with the template of each."""
    return page._page.evaluate(
        """() => {
          const root = tbscope.find('tf-graph').renderHierarchy.root;
          return root.libraryFunctionsExtract.map((drawn) =>
            [drawn.displayName, drawn.node.templateId]);
        }"""
    )


def test_the_page_reports_no_error(page):
    for name in NAMES:
        assert page.show(name).errors == []


@pytest.mark.parametrize("name", NAMES)
def test_boxes_have_one_colour_exactly_if_they_hold_the_same(page, graphs, name):
    plain, _ = graphs[name]
    inside = blocks(plain)
    page.show(name)
    found = {box: text for box, text in templates(page).items() if box in inside}
    assert unequal(inside, found) == []
    by_template = defaultdict(set)
    for box, template in found.items():
        by_template[template].add(inside[box])
    assert [numbers for numbers in by_template.values() if len(numbers) > 1] == []
    page.expand_all()
    drawn = fills(page)
    assert unequal({box: inside[box] for box in drawn if box in inside}, drawn) == []
    assert {box for box in inside if box} <= set(drawn)


@pytest.mark.parametrize("name", sampled(["gpt2", "t5"], ["gpt2"]))
def test_without_seeds_equal_blocks_have_many_colours(page, graphs, name):
    inside = inside_of_boxes(graphs[name][0])
    page.show(f"{name}_plain")
    assert unequal(inside, templates(page))


def test_differing_blocks_of_one_class_have_different_colours(page):
    page.show("bert_decoder")
    found = templates(page)
    encoder, decoder = (f"{side}/encoder/layer/1" for side in ("encoder", "decoder/bert"))
    assert found[encoder] == found[encoder.replace("1", "2")]
    assert found[decoder] == found[decoder.replace("1", "2")]
    assert found[encoder] != found[decoder]
    assert found[f"{encoder}/attention"] == found[f"{decoder}/attention"]


@pytest.mark.parametrize("name", sampled(["gpt2", "t5", "swin", "mixture"], ["mixture"]))
def test_seeds_change_nothing_in_the_main_graph(page, name):
    drawn = []
    for run in (name, f"{name}_plain"):
        page.show(run).expand_all()
        nodes = {key: node for key, node in page.nodes.items() if not key.startswith(LIBRARY)}
        drawn.append((nodes, sorted(page.edges)))
    seeded, plain = drawn
    assert seeded == plain


def test_the_functions_panel_is_a_legend_of_classes(page):
    page.show("gpt2")
    colours = templates(page)
    assert dict(legend(page)) == {
        "Activation": colours["transformer/h/0/mlp/act"],
        "Attention": colours["transformer/h/0/attn"],
        "MLP": colours["transformer/h/0/mlp"],
        "Block": colours["transformer/h/0"],
    }


def test_a_path_finds_no_seed(page):
    page.show("gpt2")
    assert page.search("h/5/attn/c_attn$") == ["transformer/h/5/attn/c_attn"]
