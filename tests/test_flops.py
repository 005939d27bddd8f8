"""FLOPs: as torch counts them where it does, by hand where it does not."""

import pytest
import torch
import transformers
from card_facts import facts as facts_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import tbscope
from tbscope.analysis.costs import scope_work


def flops_of(model, inputs, **options):
    graph = tbscope.trace(model, inputs, **options)
    return tbscope.costs(graph).total.flops


def counted_by_torch(model, inputs, *, training=False):
    model.train(training)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    return counter.get_total_flops()


SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 50}
IDS = torch.arange(12).reshape(2, 6)
CONFIGS = {
    "bert": (
        transformers.BertConfig(**SIZES, intermediate_size=64, attn_implementation="eager"),
        {"input_ids": IDS},
    ),
    "gpt2": (
        transformers.GPT2Config(
            n_embd=32, n_head=4, n_layer=2, vocab_size=50, attn_implementation="eager"
        ),
        {"input_ids": IDS},
    ),
    "llama": (
        transformers.LlamaConfig(
            **SIZES, intermediate_size=64, num_key_value_heads=2, attn_implementation="eager"
        ),
        {"input_ids": IDS},
    ),
    "t5": (
        transformers.T5Config(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=50,
            attn_implementation="eager",
        ),
        {"input_ids": IDS, "decoder_input_ids": IDS},
    ),
    "resnet": (
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
        {"pixel_values": torch.zeros(1, 3, 32, 32)},
    ),
    "convnext": (
        transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
        {"pixel_values": torch.zeros(1, 3, 32, 32)},
    ),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_real_models_have_the_flops_that_torch_counts(name, training):
    config, inputs = CONFIGS[name]
    model = transformers.AutoModel.from_config(config)
    expected = counted_by_torch(model, inputs, training=training)
    assert expected > 0
    assert flops_of(model, inputs, training=training) == expected


LSTM_BY_HAND = sum(
    2 * 2 * 5 * 3 * 4 * 16 * (wide + 16)  # two directions, 15 rows, 4 gates
    for wide in (8, 32)
)
# 2 x 5 rows: projections in (3 x 16 x 16) and out (16 x 16), scores and their sums.
ATTENTION_BY_HAND = 2 * 10 * 4 * 16 * 16 + 2 * 2 * 2 * 5 * 5 * 16
LAYERS = {
    "lstm": (lambda: nn.LSTM(8, 16, 2, bidirectional=True), [(5, 3, 8)], LSTM_BY_HAND),
    "gru": (lambda: nn.GRU(8, 16), [(5, 3, 8)], 2 * 15 * 3 * 16 * (8 + 16)),
    "projected lstm": (
        lambda: nn.LSTM(8, 16, proj_size=4),
        [(5, 3, 8)],
        2 * 15 * (4 * 16 * (8 + 4) + 16 * 4),
    ),
    "attention": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        [(2, 5, 16)] * 3,
        ATTENTION_BY_HAND,
    ),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        [(2, 5, 16)],
        ATTENTION_BY_HAND + 2 * 10 * 2 * 16 * 32,
    ),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
        [(2, 4, 5, 5)],
        2 * 2 * 4 * 25 * 3 * 9,
    ),
    "matrix by vector": (lambda: Apply(torch.mv), [(3, 4), (4,)], 2 * 3 * 4),
    "dot": (lambda: Apply(torch.dot), [(7,), (7,)], 14),
    "products that are added": (
        lambda: Apply(torch.addbmm),
        [(3, 5), (2, 3, 4), (2, 4, 5)],
        2 * 2 * 3 * 4 * 5,
    ),
    "einsum": (
        lambda: Apply(lambda a, b: torch.einsum("bij,bjk->bik", a, b)),
        [(2, 3, 4), (2, 4, 5)],
        2 * 2 * 3 * 4 * 5,
    ),
}


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_have_the_flops_counted_by_hand(name, device, training, grad):
    make, shapes, expected = LAYERS[name]
    model = make().to(device)
    inputs = tuple(torch.rand(shape, device=device) for shape in shapes)
    assert flops_of(model, inputs, training=training, grad=grad) == expected


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("mask", "causal", "dropout"), [(False, False, 0.0), (True, False, 0.0), (False, True, 0.3)]
)
def test_attention_has_the_same_flops_in_every_backend(device, mask, causal, dropout):
    attend = nn.functional.scaled_dot_product_attention
    model = Apply(
        lambda q, k, v, m=None: attend(q, k, v, attn_mask=m, is_causal=causal, dropout_p=dropout)
    )
    shapes = [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)] + ([(5, 7)] if mask else [])
    inputs = tuple(torch.rand(shape, device=device) for shape in shapes)
    assert flops_of(model, inputs) == 2 * 2 * 4 * 5 * 7 * (8 + 6)


def test_grouped_heads_of_attention_count_for_each_query():
    attend = nn.functional.scaled_dot_product_attention
    model = Apply(lambda q, k: attend(q, k, k, enable_gqa=True))
    inputs = (torch.rand(2, 4, 5, 8), torch.rand(2, 2, 5, 8))
    assert flops_of(model, inputs) == 2 * 2 * 4 * 5 * 5 * 16


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_fast_path_counts_what_a_padding_mask_leaves():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1)
    padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    graph = tbscope.trace(encoder, torch.rand(2, 5, 16), kwargs={"src_key_padding_mask": padding})
    rows = 2 * 7 * (4 * 16 * 16 + 2 * 16 * 32)
    assert tbscope.costs(graph).total.flops == rows + 4 * (5 * 5 + 2 * 2) * 16


def test_a_fake_run_counts_the_same():
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    inputs = torch.rand(2, 5, 16)
    assert flops_of(model, inputs, fake=True) == flops_of(model, inputs)


def test_a_script_module_is_counted_too():
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)))
    assert flops_of(model, torch.rand(2, 3)) == 2 * 2 * (12 + 20)


def test_what_has_no_formula_is_named_and_has_no_figure():
    graph = tbscope.trace(nn.Sequential(nn.Linear(3, 4), nn.GELU()), torch.rand(2, 3))
    linear, gelu = [node for node in graph.nodes if node.kind == "op"]
    assert graph.uncounted == {"aten::gelu": "torch has no formula for it, and none was registered"}
    assert (linear.flops, gelu.flops) == (48, None)
    assert tbscope.costs(graph).total.uncounted == {"aten::gelu": 1}


def test_views_copies_and_integers_count_as_nothing():
    model = Apply(lambda x: (x.view(6).clone().reshape(2, 3).unsqueeze_(0), torch.arange(3) + 1))
    graph = tbscope.trace(model, torch.rand(2, 3))
    assert {node.flops for node in graph.nodes if node.kind == "op"} == {0}
    assert tbscope.costs(graph).total.uncounted == {}


@pytest.fixture
def twice():
    """Give an operator of the user's own, with a formula."""
    with torch.library._scoped_library("tbscope_tests", "DEF") as library:
        library.define("twice(Tensor x, int power) -> Tensor")
        library.impl("twice", lambda x, power: x * 2**power, "CompositeExplicitAutograd")
        packet = torch.ops.tbscope_tests.twice
        yield packet
        flop_registry.pop(packet, None)


def test_a_formula_of_the_users_own_counts(twice):
    model = Apply(lambda x: twice(x, 3))
    assert flops_of(model, torch.rand(2, 5)) == 0

    @register_flop_formula(twice)
    def formula(shape, power, *args, out_shape=None, **kwargs):
        return shape[0] * shape[1] * power

    graph = tbscope.trace(model, torch.rand(2, 5))
    assert (tbscope.costs(graph).total.flops, graph.uncounted) == (30, {})


def test_what_gives_no_tensor_leaves_its_work_to_nobody():
    with torch.library._scoped_library("tbscope_tests", "DEF") as library:
        library.define("counts(Tensor x) -> int[]")
        library.impl("counts", lambda x: [1, 2], "CompositeExplicitAutograd")
        packet = torch.ops.tbscope_tests.counts
        register_flop_formula(packet)(lambda *args, **kwargs: 1000)
        linear = torch.nn.Linear(5, 4)
        assert flops_of(Apply(lambda x: (packet(x), linear(x))[1]), torch.rand(2, 5)) == 80
        flop_registry.pop(packet, None)


def test_a_formula_that_raises_is_told(twice):
    @register_flop_formula(twice)
    def formula(*args, **kwargs):
        raise ValueError("no\nidea")

    graph = tbscope.trace(Apply(lambda x: twice(x, 3)), torch.rand(2, 5))
    assert graph.uncounted == {
        "tbscope_tests::twice": "its formula raised ValueError: no idea",
    }
    assert tbscope.costs(graph).total.uncounted == {"tbscope_tests::twice": 1}


def both_passes(model, inputs):
    """Give what torch counts for the forward pass, and for the backward pass."""
    model.train()
    with FlopCounterMode(display=False) as counter:
        given = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        forward = counter.get_total_flops()
        held = given.values() if isinstance(given, dict) else given
        results = [given] if isinstance(given, torch.Tensor) else held
        sum(result.sum() for result in results if isinstance(result, torch.Tensor)).backward()
        return forward, counter.get_total_flops() - forward


BACKWARD = {
    "mlp": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5)),
        (torch.rand(2, 3),),
    ),
    "first frozen": lambda: (
        nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 5)),
        (torch.rand(2, 3),),
    ),
    "last frozen": lambda: (
        nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5).requires_grad_(False)),
        (torch.rand(2, 3),),
    ),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3, stride=2)),
        (torch.rand(2, 3, 9, 9),),
    ),
    "attention": lambda: (
        nn.MultiheadAttention(16, 4, batch_first=True),
        (torch.rand(2, 5, 16),) * 3,
    ),
    "bert": lambda: (transformers.AutoModel.from_config(CONFIGS["bert"][0]), CONFIGS["bert"][1]),
    "t5": lambda: (transformers.AutoModel.from_config(CONFIGS["t5"][0]), CONFIGS["t5"][1]),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_the_backward_pass_has_the_flops_that_torch_counts(name):
    model, inputs = BACKWARD[name]()
    costs = tbscope.costs(tbscope.trace(model, inputs, training=True)).total
    assert (costs.flops, costs.backward_flops) == both_passes(model, inputs)


def test_nothing_flows_back_through_detach_and_into_frozen_models():
    model = nn.Sequential(nn.Linear(3, 4), Apply(torch.Tensor.detach), nn.Linear(4, 5))
    costs = tbscope.costs(tbscope.trace(model, torch.rand(2, 3))).total
    assert costs.backward_flops == 2 * 2 * 4 * 5
    frozen = tbscope.costs(tbscope.trace(model.requires_grad_(False), torch.rand(2, 3))).total
    assert (frozen.flops, frozen.backward_flops) == (costs.flops, 0)


def test_only_new_storages_count_as_activations():
    def forward(x):
        y = x * 2  # 24 bytes
        y.add_(1)
        z = y.view(6)[1:]
        return torch.cat([z, z])  # 40 bytes

    graph = tbscope.trace(Apply(forward), torch.rand(2, 3))
    assert [node.allocated_bytes for node in graph.nodes if node.kind == "op"] == [24, 0, 0, 0, 40]


@pytest.mark.parametrize("as_tuple", [False, True])
def test_results_that_share_a_storage_count_it_once(as_tuple):
    graph = tbscope.trace(Apply(lambda x: torch.nonzero(x, as_tuple=as_tuple)), torch.ones(2, 3))
    (node,) = [node for node in graph.nodes if node.kind == "op"]
    assert len(node.outputs) == 1 + as_tuple
    assert node.allocated_bytes == 6 * 2 * 8


def test_results_of_their_own_count_each():
    graph = tbscope.trace(Apply(lambda x: x.sort()), torch.rand(2, 3))
    assert tbscope.costs(graph).total.activation_bytes == 6 * (4 + 8)


def test_costs_of_scopes_are_the_sums_of_their_operations():
    model = transformers.AutoModel.from_config(CONFIGS["bert"][0])
    graph = tbscope.trace(model, CONFIGS["bert"][1])
    nodes, scopes, work = tbscope.costs(graph).nodes, tbscope.costs(graph).scopes, scope_work(graph)
    for scope, cost in scopes.items():
        inside = [
            own for node, own in nodes.items() if scope in (node.scope, *node.scope.ancestors())
        ]
        assert cost.flops == sum(own.flops for own in inside) == work[scope].flops
        assert cost.activation_bytes == sum(own.activation_bytes for own in inside)
        assert cost.uncounted == work[scope].uncounted
        assert cost.operations == len(inside)


def test_intensity_is_flops_by_bytes_that_move():
    graph = tbscope.trace(nn.Linear(3, 5, bias=False), torch.rand(4, 3))
    costs = tbscope.costs(graph).total
    assert costs.moved_bytes == 4 * (12 + 15 + 20)
    assert costs.intensity == pytest.approx(2 * 4 * 3 * 5 / costs.moved_bytes)


def test_what_moves_nothing_has_no_intensity():
    costs = tbscope.costs(tbscope.trace(nn.Identity(), torch.rand(4, 3))).total
    assert costs.intensity is None


def test_every_module_is_known_whether_called_or_not():
    model = Apply(torch.relu)
    model.used, model.spare = nn.Linear(3, 4), nn.ModuleList([nn.Linear(5, 6)])
    model.function = model.used.forward
    graph = tbscope.trace(model, torch.rand(2, 3))
    assert [module.name for module in graph.modules] == ["", "used", "spare", "spare.0"]
    owned = [held.name for module in graph.modules for held in module.parameters]
    assert owned == ["weight", "bias", "weight", "bias"]


def facts(graph_def, name):
    node = next(node for node in graph_def.node if node.name == name)
    return {key: value.i or value.s for key, value in facts_of(node).items()}


def test_cards_tell_the_flops_and_what_they_leave_out():
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    drawn = tbscope.to_graph_def(tbscope.trace(model, torch.rand(2, 3)), root=True)
    whole, inner = facts(drawn, "Sequential/Sequential"), facts(drawn, "Sequential/2/Sequential")
    assert (whole["flops"], whole["flops_not_counted"]) == (2 * 2 * (12 + 16), b"aten::gelu x2")
    assert (inner["flops"], inner["flops_not_counted"]) == (2 * 2 * 16, b"aten::gelu")
    assert facts(drawn, "Sequential/0")["flops"] == 48
    gelu = facts(drawn, "Sequential/1")
    assert "flops" not in gelu
    assert gelu["flops_not_counted"] == b"aten::gelu"


@pytest.mark.parametrize("level", ["module", "aten"])
def test_every_level_tells_the_flops_of_its_nodes(level):
    model = Apply(nn.MultiheadAttention(4, 2, batch_first=True))
    inputs = (torch.rand(2, 3, 4),) * 3
    graph = tbscope.trace(model, inputs, training=True, kernels=True)
    drawn = tbscope.to_graph_def(graph, level=level, cards=False, templates=False)
    told = sum(facts_of(node)["flops"].i for node in drawn.node if "flops" in facts_of(node))
    assert told == tbscope.costs(graph).total.flops > 0


class Own(torch.Tensor):
    """A tensor of a class of its own."""


@pytest.mark.parametrize("kind", [torch.Tensor, nn.Parameter, Own])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True)])
def test_the_gradient_of_a_convolution_counts_as_torch_counts_it(asked, transposed, kind):
    size = (2, 8, 10, 9) if transposed else (2, 8, 6, 5)
    weight = torch.rand(4, 8, 3, 3) if transposed else torch.rand(8, 4, 3, 3)
    given = torch.rand(size), torch.rand(2, 4, 8, 7), weight.as_subclass(kind)
    settings = None, [1, 1], [0, 0], [1, 1], transposed, [0, 0], 1, [*asked, False]
    with FlopCounterMode(display=False) as counter:
        torch.ops.aten.convolution_backward(*given, *settings)
    with tbscope.record() as recording, torch.no_grad():
        torch.ops.aten.convolution_backward(*given, *settings)
    node = next(node for node in recording.graph.nodes if node.kernels)
    assert node.flops == counter.get_total_flops()
