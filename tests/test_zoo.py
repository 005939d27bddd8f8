"""Models of `transformers`, a sample of every kind: the graph says what the oracles say.

The whole zoo is `python -m tests.zoo`.
"""

import pytest
from sweeps import sampled

from tests.zoo.check import check
from tests.zoo.models import build, catalogue

SAMPLE = {
    "text": (
        "BertModel",
        "DistilBertForMaskedLM",
        "GPT2LMHeadModel",
        "LlamaForCausalLM",
        "T5ForConditionalGeneration",
        "BartModel",
        "LongformerModel",
        "XLNetModel",
        "DebertaV2Model",
        "ModernBertModel",
    ),
    "experts": (
        "MixtralForCausalLM",
        "GptOssForCausalLM",
        "DeepseekV3Model",
        "SwitchTransformersModel",
    ),
    "state spaces": ("MambaModel", "Mamba2Model", "JambaModel", "RwkvModel"),
    "vision": (
        "ViTForImageClassification",
        "SwinForImageClassification",
        "ResNetForImageClassification",
        "ConvNextV2Model",
        "DetrForObjectDetection",
        "SegformerForSemanticSegmentation",
        "GLPNForDepthEstimation",
        "SamModel",
        "VideoMAEModel",
    ),
    "audio": (
        "WhisperForConditionalGeneration",
        "Wav2Vec2ForCTC",
        "EncodecModel",
        "ASTForAudioClassification",
    ),
    "multimodal": (
        "CLIPModel",
        "LlavaForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Gemma3ForConditionalGeneration",
        "PaliGemmaForConditionalGeneration",
    ),
    "series": ("PatchTSTModel",),
}


NAMES = [name for names in SAMPLE.values() for name in names]
# In evaluation and in training mode by turns; CI draws every third.
ALTERNATELY = [(name, bool(at % 2)) for at, name in enumerate(NAMES)]
OTHERWISE = [(name, not training) for name, training in ALTERNATELY]


@pytest.fixture(scope="module")
def entries():
    return {entry.name: entry for entry in catalogue()}


@pytest.fixture(scope="module")
def example(request, entries):
    return build(entries[request.param])


@pytest.mark.parametrize(
    ("example", "training"),
    sampled([*ALTERNATELY, *OTHERWISE], ALTERNATELY[::6]),
    indirect=["example"],
)
@pytest.mark.filterwarnings("ignore")
def test_the_graph_of_a_model_says_what_the_oracles_say(example, training):
    verdict = check(example.model, (), example.inputs, training=training)

    assert verdict.wrong == {}
    assert verdict.nodes > verdict.calls > 1
