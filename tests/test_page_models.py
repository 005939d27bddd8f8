"""The proof with real models: traced, converted, served and drawn in TensorBoard's page."""

import functools
import json
import urllib.request
from typing import NamedTuple

import pytest
import torch
import transformers
from browser import DrawnNode, TensorBoard, write_runs
from browser_data import LevelData, read_levels
from sweeps import sampled
from torch import nn
from torch.nn.modules import module as torch_module

import tbscope
from tbscope.page.constants import LIBRARY

IDS = torch.ones(1, 8, dtype=torch.long)
IMAGE = torch.ones(1, 3, 32, 32)
BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2}


def resnet(depth=2):
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [depth] * 2}
    config = transformers.ResNetConfig(**sizes, layer_type="basic")
    return transformers.ResNetForImageClassification(config), IMAGE


def bert():
    config = transformers.BertConfig(**BERT, num_hidden_layers=2, vocab_size=100)
    return transformers.BertForSequenceClassification(config), {"input_ids": IDS}


def gpt2(layers=3):
    sizes = {"n_embd": 32, "n_layer": layers, "n_head": 2, "vocab_size": 100}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **SPECIAL)), {
        "input_ids": IDS
    }


def t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, vocab_size=100, decoder_start_token_id=0)
    )
    return model, {"input_ids": IDS, "decoder_input_ids": IDS.clone()}


def vit():
    config = transformers.ViTConfig(**BERT, num_hidden_layers=2, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(config), IMAGE


def whisper():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 2 for side in sides} | {f"{side}_ffn_dim": 64 for side in sides}
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


def llama():
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, hidden_size=32, intermediate_size=64, vocab_size=100)
    return transformers.LlamaForCausalLM(config), {"input_ids": IDS}


def mixtral():
    config = transformers.MixtralConfig(
        **BERT, num_key_value_heads=1, num_hidden_layers=1, num_local_experts=4, vocab_size=100
    )
    return transformers.MixtralForCausalLM(config), {"input_ids": IDS}


def swin():
    sizes = {"image_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 8}
    config = transformers.SwinConfig(**sizes, depths=[2, 2], num_heads=[1, 2])
    return transformers.SwinForImageClassification(config), IMAGE


def detr():
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": 1 for side in sides} | {f"{side}_ffn_dim": 16 for side in sides}
    sizes |= {f"{side}_attention_heads": 2 for side in sides}
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic"
    )
    config = transformers.DetrConfig(
        **sizes, d_model=16, num_queries=5, backbone_config=backbone, use_timm_backbone=False
    )
    return transformers.DetrForObjectDetection(config), IMAGE


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]


def lstm():
    return nn.LSTM(4, 8, 2, batch_first=True), torch.ones(2, 5, 4)


def attention():
    return Attention(), torch.ones(2, 5, 8)


def transformer():
    model = nn.Transformer(8, 2, 2, 2, 16, batch_first=True)
    return model, (torch.ones(2, 5, 8), torch.zeros(2, 5, 8))


class Expected(NamedTuple):
    """What the page shall draw of a model.

    Attributes:
        edges: The lines of the first look, with what stands at them.
        inside: Boxes deep inside.
    """

    edges: set
    inside: set


def lines(text):
    """Read edges as `start > end: label`, one a line; a name may begin several in a row."""
    edges = set()
    for line in filter(None, map(str.strip, text.splitlines())):
        ends, _, label = line.partition(": ")
        start, end = ends.split(" > ")
        edges.add((start, end, label))
    return edges


MODELS = {
    resnet: Expected(
        lines("""
            pixel_values > resnet: 1×3×32×32
            resnet > classifier: 1×16×1×1
            classifier > logits: 1×2
        """),
        {"resnet/embedder", "resnet/encoder/stages/1/layers/0"},
    ),
    bert: Expected(
        lines("""
            input_ids > bert: 1×8
            bert > dropout: 1×32
            dropout > classifier: 1×32
            classifier > logits: 1×2
        """),
        {"bert/encoder/layer/1/attention/self", "bert/pooler"},
    ),
    gpt2: Expected(
        lines("""
            input_ids > transformer: 1×8
            transformer > past_key_values: 6 tensors
            transformer > lm_head: 1×8×32
            lm_head > logits: 1×8×100
        """),
        {"transformer/h/2/attn", "transformer/h/0/mlp", "past_key_values"},
    ),
    t5: Expected(
        lines("""
            input_ids > encoder: 1×8
            encoder > encoder_last_hidden_state: 1×8×32
            encoder > decoder: 2 tensors
            decoder_input_ids > decoder: 1×8
            decoder > past_key_values: 4 tensors
            decoder > mul: 1×8×32
            mul > lm_head: 1×8×32
            lm_head > logits: 1×8×100
        """),
        {"decoder/block/0/layer/1/EncDecAttention"},
    ),
    vit: Expected(
        lines("""
            pixel_values > vit: 1×3×32×32
            vit > classifier: 1×17×32
            classifier > logits: 1×2
        """),
        {"vit/embeddings/patch_embeddings"},
    ),
    whisper: Expected(
        lines("""
            input_features > model: 1×8×100
            decoder_input_ids > model: 1×8
            model > encoder_last_hidden_state: 1×50×32
            model > past_key_values: 8 tensors
            model > proj_out: 1×8×32
            proj_out > logits: 1×8×100
        """),
        {"model/decoder/layers/1/encoder_attn"},
    ),
    llama: Expected(
        lines("""
            input_ids > model: 1×8
            model > lm_head: 1×8×32
            lm_head > logits: 1×8×100
            model > past_key_values: 4 tensors
        """),
        {"model/layers/1/self_attn", "model/rotary_emb"},
    ),
    mixtral: Expected(
        lines("""
            input_ids > model: 1×8
            model > lm_head: 1×8×32
            lm_head > logits: 1×8×100
            model > past_key_values: 2 tensors
        """),
        {"model/layers/0/mlp/experts", "model/layers/0/mlp/gate"},
    ),
    swin: Expected(
        lines("""
            pixel_values > swin: 1×3×32×32
            swin > classifier: 1×16×1
            classifier > logits: 1×2
        """),
        {"swin/encoder/layers/1/blocks/1/attention"},
    ),
    detr: Expected(
        lines("""
            pixel_values > model: 1×3×32×32
            model > encoder_last_hidden_state: 1×64×16
            model > last_hidden_state: 1×5×16
            model > class_labels_classifier: 1×5×16
            class_labels_classifier > logits: 1×5×3
            model > bbox_predictor: 1×5×16
            bbox_predictor > sigmoid: 1×5×4
            sigmoid > pred_boxes: 1×5×4
        """),
        {"model/backbone/model/encoder/stages/0", "model/decoder/layers/0/encoder_attn"},
    ),
    lstm: Expected(
        lines("""
            input > lstm: 2×5×4
            lstm > out.0: 2×5×8
            lstm > out.1.0: 2×2×8
            lstm > out.1.1: 2×2×8
        """),
        set(),
    ),
    attention: Expected(
        lines("""
            x > attn: 3 tensors
            attn > out: 2×5×8
        """),
        {"attn"},
    ),
    transformer: Expected(
        lines("""
            src > encoder: 2×5×8
            encoder > decoder: 4 tensors
            tgt > decoder: 4 tensors
            decoder > out: 2×5×8
        """),
        {"decoder/layers/1/multihead_attn", "encoder/layers/0"},
    ),
}
FEW = (resnet, gpt2, attention)
CHOSEN = sampled(MODELS, FEW)
NAMES = [make.__name__ for make in CHOSEN]


class Calls(NamedTuple):
    """What torch's own hooks tell of a run.

    Attributes:
        ran: The qualified names of the modules that ran.
        handed: Pairs of modules of which the second was given a tensor that the first gave.
    """

    ran: set
    handed: set


def tensors(nest):
    if isinstance(nest, dict):
        nest = nest.values()
    if isinstance(nest, torch.Tensor) or not hasattr(nest, "__iter__") or isinstance(nest, str):
        return [nest] if isinstance(nest, torch.Tensor) else []
    return [tensor for one in nest for tensor in tensors(one)]


def watch(model, given):
    """Run a model and tell its calls, by hooks of torch's own.

    They are the global ones: with hooks of their own, some modules take another way.
    """
    names = {module: name for name, module in model.named_modules()}
    ran, makers, handed = [], {}, set()

    def note(module, args, kwargs, result):
        name = names[module]
        ran.append(name)
        for one in tensors((args, kwargs)):
            maker, _, version = makers.get(id(one), (name, one, None))
            # A tensor that was written into since comes from elsewhere.
            if version == one._version:
                handed.add((maker, name))
        # What is kept keeps its id.
        makers.update({id(one): (name, one, one._version) for one in tensors(result)})

    handle = torch_module.register_module_forward_hook(note, with_kwargs=True)
    with handle, torch.no_grad():
        if isinstance(given, dict):
            model(**given)
        else:
            model(*(given if isinstance(given, tuple) else (given,)))
    # Of a removed hook that took keywords, torch keeps that it did.
    torch_module._global_forward_hooks_with_kwargs.pop(handle.id)
    once = {name for name in ran if ran.count(name) == 1}
    return Calls(set(ran), {pair for pair in handed if once.issuperset(pair)})


class Visit(NamedTuple):
    """What was seen of one model in the page.

    Attributes:
        first: The edges of the first look.
        seconds: How long each box took to open, one by one.
        levels: What the page holds of each box.
        nodes: All that is drawn once every box is open.
        edges: The edges then.
        errors: What the page reported meanwhile.
    """

    first: set
    seconds: dict[str, float]
    levels: dict[str, LevelData]
    nodes: dict[str, DrawnNode]
    edges: list
    errors: list[str]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    return {make.__name__: (model.eval(), given) for make in CHOSEN for model, given in [make()]}


@pytest.fixture(scope="module")
def messages(models):
    graphs = {name: tbscope.trace(model, given) for name, (model, given) in models.items()}
    return {name: tbscope.to_graph_def(graph) for name, graph in graphs.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory, messages):
    logdir = tmp_path_factory.mktemp("models")
    write_runs(logdir, messages)
    with TensorBoard(logdir) as server:
        yield server


@pytest.fixture(scope="module")
def visit(browser, server):
    page = browser.open(server.url)

    @functools.cache
    def visit(name):
        page.show(name)
        first = {(edge.start, edge.end, edge.label) for edge in page.edges}
        seconds = page.expand_each()
        levels = read_levels(page)
        return Visit(first, seconds, levels, page.nodes, page.edges, [*page.errors])

    return visit


def boxes_of(message):
    """Give the boxes that a GraphDef makes: what stands before a slash, circles apart."""
    boxes = set()
    for node in message.node:
        above = node.name.rpartition("/")[0]
        while above and "Const" not in node.op and not above.startswith(LIBRARY):
            boxes.add(above)
            above = above.rpartition("/")[0]
    return boxes


def reached(starts, links):
    """Give all that can be reached along links written as `from > to`."""
    pairs = [link.split(" > ") for link in links]
    found, pending = set(starts), list(starts)
    while pending:
        start = pending.pop()
        new = {end for begin, end in pairs if begin == start} - found
        found |= new
        pending += new
    return found


def apart(first, second):
    """Give the box that holds both, and what in it holds each."""
    a, b = first.split("/"), second.split("/")
    depth = next(at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return "/".join(a[:depth]), "/".join(a[: depth + 1]), "/".join(b[: depth + 1])


def test_the_server_lists_every_model(server):
    with urllib.request.urlopen(f"{server.url}/data/plugin/graphs/info") as answer:
        assert set(json.load(answer)) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_look_is_the_model_between_its_inputs_and_outputs(visit, messages, name):
    expected = next(shall for make, shall in MODELS.items() if make.__name__ == name)
    assert visit(name).first == expected.edges
    assert expected.inside <= set(visit(name).seconds)
    ends = {
        kind: {
            node.name.partition("/")[0]
            for node in messages[name].node
            if node.op.partition("[")[0] == kind
        }
        for kind in ("Input", "Output")
    }
    root = visit(name).levels[""]
    assert ends["Output"] <= reached(ends["Input"] - set(root.aside), root.lines)


@pytest.mark.parametrize("name", NAMES)
def test_every_box_opens_one_by_one(visit, messages, name):
    seconds = visit(name).seconds
    assert set(seconds) == boxes_of(messages[name])
    assert {box for box, node in visit(name).nodes.items() if node.expanded} == set(seconds)
    slowest = max(seconds, key=seconds.get, default="")
    print(f"{name}: {len(seconds)} boxes, the slowest in {seconds.get(slowest, 0):.2f} s")
    assert visit(name).errors == []


def stands_for(shape, module):
    """Tell whether a drawn name is that of a module, in boxes that part a full level.

    Such a box is a run of a function, a round of a loop, or a cut by the order of execution.
    """
    parts = iter(shape.split("/"))
    named = module.split("/")
    return shape.endswith(named[-1]) and all(part in parts for part in named)


@pytest.mark.parametrize("name", NAMES)
def test_every_module_that_runs_is_drawn_under_its_name(visit, models, name):
    ran = {module.replace(".", "/") for module in watch(*models[name]).ran} - {""}
    drawn = visit(name).nodes
    assert [module for module in ran if not any(stands_for(shape, module) for shape in drawn)] == []
    assert not [shape for shape, node in drawn.items() if node.kind == "series"]


@pytest.mark.parametrize("name", NAMES)
def test_what_one_module_gives_to_another_is_an_edge(visit, models, name):
    levels = visit(name).levels
    handed = watch(*models[name]).handed
    for maker, reader in handed:
        # This one is given a tensor for its dtype alone.
        if reader != "model.rotary_emb" and not f"{maker}.".startswith(f"{reader}."):
            box, start, end = apart(maker.replace(".", "/"), reader.replace(".", "/"))
            assert levels[box].links.get(f"{start} > {end}", [0])[0], (maker, reader)
    assert handed or name in ("lstm", "attention")


@pytest.mark.parametrize("name", NAMES)
def test_every_edge_is_drawn_and_has_a_label(visit, name):
    seen = visit(name)
    for level in seen.levels.values():
        assert set(level.lines) == set(level.links)
    assert [edge for edge in seen.edges if not edge.label and not edge.control] == []


@pytest.mark.parametrize("name", NAMES)
def test_only_cards_stand_beside_the_flow(visit, messages, name):
    cards = {node.name for node in messages[name].node if node.op == "NoOp"}
    levels = visit(name).levels.items()
    aside = {shape for box, level in levels if not box.startswith(LIBRARY) for shape in level.aside}
    assert aside == {card for card in cards if not card.startswith(LIBRARY)}
    assert {visit(name).nodes[card].section for card in aside} == {"out-extract"}


@pytest.mark.parametrize("name", NAMES)
def test_it_breaks_no_rule_of_the_page(messages, name):
    assert tbscope.lint(messages[name]) == []


def test_a_block_of_gpt2_is_drawn_as_in_its_paper(visit):
    inner = {
        (edge.start.removeprefix("transformer/h/1/"), edge.end.removeprefix("transformer/h/1/"))
        for edge in visit("gpt2").edges
        if {edge.start.rpartition("/")[0], edge.end.rpartition("/")[0]} == {"transformer/h/1"}
        and edge.label == "1×8×32"
    }
    assert inner == {
        ("ln_1", "attn"),
        ("attn", "add"),
        ("add", "ln_2"),
        ("ln_2", "mlp"),
        ("mlp", "add.2nd"),
        ("add", "add.2nd"),
    }
