"""Graphs of real models, small and with random weights, for the tests of passes."""

import functools
import warnings

import tbscope
from tbscope.ir.graph import Graph, Node
from tests.sweeps import sampled
from tests.zoo.models import Example, build, catalogue

EVERY = (
    *("BertModel", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"),
    *("MixtralForCausalLM", "DebertaV2Model", "LongformerModel", "MambaModel", "JambaModel"),
    *("ViTForImageClassification", "SwinForImageClassification", "ResNetForImageClassification"),
    *("DetrForObjectDetection", "SegformerForSemanticSegmentation", "SamModel", "CLIPModel"),
    *("WhisperForConditionalGeneration", "Wav2Vec2ForCTC", "EncodecModel", "PatchTSTModel"),
    "Qwen2_5_VLForConditionalGeneration",
)
"""Models of twenty-one kinds, by the names of their classes."""

KINDS = tuple(sampled(EVERY, EVERY[::2]))
"""Those that are drawn: all of them in a sweep."""

_ENDS = ("input", "parameter", "buffer")


@functools.cache
def real_model(name: str) -> Example:
    """Give one of `KINDS`; nobody may change it."""
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(entry)


@functools.cache
def real_graph(name: str) -> Graph:
    """Give the graph of one of `KINDS` with its kernels; nobody may change it."""
    example = real_model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tbscope.trace(example.model, example.inputs, kernels=True)


def operations(graph: Graph) -> list[Node]:
    """Give what is drawn as an operation: no circles."""
    return [node for node in graph.nodes if node.kind in ("op", "module")]


def origins(graph: Graph) -> dict[str, set[str]]:
    """Give for each output the inputs, parameters and buffers on which it depends."""
    reached: dict[Node, set[str]] = {}
    for node in graph.nodes:
        found = {node.name} if node.kind in _ENDS else set()
        for source in (*(value.producer for value in node.inputs), *node.control_inputs):
            found |= reached[source]
        reached[node] = found
    return {
        output.name: reached[output.value.producer].union(
            *(reached[node] for node in output.control_inputs)
        )
        for output in graph.outputs
    }
