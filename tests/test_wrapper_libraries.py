"""Models in the wrappers of other libraries: docs/frameworks.md tells what holds.

The extra `wrappers` of setup.cfg brings the libraries; what is not there is skipped.
"""

import copy

import pytest
import torch
import transformers
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements

pytestmark = pytest.mark.filterwarnings("ignore")

IDS = {"input_ids": torch.arange(6).view(1, 6)}
X = torch.ones(2, 4)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def layers():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def lora(**options):
    peft = pytest.importorskip("peft")
    wanted = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}
    return peft.get_peft_model(llama(), peft.LoraConfig(**wanted)).eval()


def merged():
    model = lora()
    model.merge_adapter()
    return model


def unloaded():
    return lora().merge_and_unload()


def prompted():
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        llama(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    ).eval()


def module_of_lightning():
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = layers()
            self.example_input_array = X

        def forward(self, x):
            return self.net(x)

    return Lit().eval()


def module_of_fabric():
    fabric = pytest.importorskip("lightning").Fabric(accelerator="cpu", devices=1)
    return fabric.setup(layers())


def dispatched():
    accelerate = pytest.importorskip("accelerate")
    return accelerate.dispatch_model(llama(), {"": "cpu"}, force_hooks=True)


def offloaded():
    return pytest.importorskip("accelerate").cpu_offload(llama(), torch.device("cpu"))


def quantised():
    quantisation = pytest.importorskip("torchao.quantization")
    model = layers()
    quantisation.quantize_(model, quantisation.Int8WeightOnlyConfig())
    return model


# What makes a model, with its inputs.
WRAPPED = {
    "lora": (lora, IDS),
    "lora, merged": (merged, IDS),
    "lora, merged and taken off": (unloaded, IDS),
    "a module of Lightning": (module_of_lightning, X),
    "a module of Fabric": (module_of_fabric, X),
    "dispatched": (dispatched, IDS),
    "offloaded": (offloaded, IDS),
    "int8": (quantised, X),
}


def state_of(model):
    """Give what a trace may not change: tensors, flags, and the names of attributes."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    flags = {
        name: (module.training, sorted(vars(module))) for name, module in model.named_modules()
    }
    return {name: (id(each), each.requires_grad) for name, each in tensors.items()}, flags


@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_model_is_drawn_whole_and_left_as_it_was(name):
    make, given = WRAPPED[name]
    model = make()
    before = state_of(model)

    graph = tbscope.trace(model, given)

    check_whole(graph)
    assert state_of(model) == before
    modules = dict(model.named_modules())
    assert graph.calls[0].class_name.endswith(type(model).__qualname__)
    assert {call.qualified_name for call in graph.calls} <= set(modules)
    named = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert {node.name for node in graph.nodes if node.kind == "parameter"} <= named
    table = graph.summary().rows[0]
    assert table["parameters"] == sum(each.numel() for each in model.parameters())
    assert table["trainable_parameters"] == sum(
        p.numel() for p in model.parameters() if p.requires_grad
    )


@pytest.mark.parametrize("name", [name for name in WRAPPED if name != "offloaded"])
def test_a_program_of_a_wrapped_model_tells_what_an_eager_call_tells(name):
    make, given = WRAPPED[name]
    model = make()
    eager = tbscope.trace(model, given, training=None)
    inputs = ((), copy.copy(given)) if isinstance(given, dict) else ((given,), {})

    program = torch.export.export(model, *inputs, strict=False)

    for graph in (tbscope.from_export(program), tbscope.from_fx(program.module())):
        check_whole(graph)
        assert disagreements(eager, graph) == {}


def test_adapters_are_modules_beside_the_layer_that_they_adapt():
    graph = tbscope.trace(lora(), IDS)

    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    inside = [call for call in graph.calls if (call.qualified_name or "").startswith(f"{layer}.")]
    assert [call.qualified_name.removeprefix(f"{layer}.") for call in inside] == [
        *("base_layer", "lora_dropout.default", "lora_A.default", "lora_B.default")
    ]
    assert str(inside[2].scope.part) == "Linear[default]"
    assert inside[2].scope.parent.path.endswith("Linear[q_proj]/ModuleDict[lora_A]")
    assert graph.find(f"{layer}.lora_A.default.weight").attributes["requires_grad"] is True
    assert graph.find(f"{layer}.base_layer.weight").attributes["requires_grad"] is False


def test_merged_adapters_are_said_to_have_not_run():
    notes = [note.text for note in tbscope.trace(merged(), IDS).notes]

    assert any("lora_A" in text and "nothing ran" in text for text in notes)
    assert not any("lora_A" in note.text for note in tbscope.trace(unloaded(), IDS).notes)


def test_a_prompt_is_joined_with_what_the_model_embeds():
    graph = tbscope.trace(prompted(), IDS)

    graph.verify()
    (joined,) = [node for node in graph.nodes if node.op == "cat" and node.scope.parent is None]
    assert joined.outputs[0].shape == (1, 9, 16)
    assert graph.find("prompt_encoder.default.embedding.weight").attributes["requires_grad"]
    # The embedding is called from outside of the model that holds it, before that runs.
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def test_a_module_of_lightning_is_drawn_with_its_example():
    graph = tbscope.trace(module_of_lightning())

    assert [node.outputs[0].shape for node in graph.inputs] == [(2, 4)]


def test_a_quantised_parameter_is_as_large_as_it_is_kept():
    graph = tbscope.trace(quantised(), X)

    weight = graph.find("0.weight")
    assert "qdata: int8 (4, 4)" in weight.attributes["holds"]
    sizes = {own.name: own.size_bytes for own in graph.find("0").parameters}
    assert sizes["weight"] < 4 * 4 * 4 + 4 * 4
    assert tbscope.trace(layers(), X).find("0").parameters[0].size_bytes == 4 * 4 * 4


@pytest.mark.parametrize("make", [lora, quantised])
def test_a_compiled_model_in_a_wrapper_has_the_calls_of_an_eager_one(make):
    model, given = make(), IDS if make is lora else X
    eager = tbscope.trace(model, given)

    graph = tbscope.trace(torch.compile(model, backend="eager"), given)

    assert disagreements(eager, graph) == {}
