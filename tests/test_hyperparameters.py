"""What a module's `extra_repr` tells becomes values by name."""

import inspect
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from transformers.models.bert import modeling_bert

import tbscope
from tbscope.sources.torch.calling.hyperparameters import class_source, hyperparameters
from tests.warm import run_warm


class Telling(nn.Module):
    """Tells what it is given, under the names of `__init__`."""

    def __init__(self, text, size=None, scale=None):
        super().__init__()
        self.text = text

    def extra_repr(self):
        return self.text


class Wrapping(nn.LayerNorm):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(3, 8), {"in_features": 3, "out_features": 8, "bias": True}),
        (
            nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
            {
                "in_channels": 3,
                "out_channels": 8,
                "kernel_size": (3, 3),
                "stride": (1, 1),
                "padding": (1, 1),
                "padding_mode": "reflect",
            },
        ),
        (
            nn.Embedding(4, 3, padding_idx=0),
            {"num_embeddings": 4, "embedding_dim": 3, "padding_idx": 0},
        ),
        (nn.LSTM(3, 4, 2), {"input_size": 3, "hidden_size": 4, "num_layers": 2}),
        (nn.ZeroPad2d(1), {"padding": (1, 1, 1, 1)}),
        (nn.Upsample(scale_factor=2), {"scale_factor": 2.0, "mode": "nearest"}),
        (nn.Dropout(0.1), {"p": 0.1, "inplace": False}),
        (nn.ReLU(), {}),
        (nn.Identity(3), {}),
        (nn.LazyLinear(2), {"in_features": 0, "out_features": 2, "bias": True}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_layers_of_torch_tell_their_settings(module, expected):
    assert hyperparameters(module) == expected


def test_leading_values_are_named_after_the_parameters_of_init():
    assert hyperparameters(Telling("1, (2, 3)")) == {"text": 1, "size": (2, 3)}
    assert hyperparameters(Telling("1, scale=2")) == {"text": 1, "scale": 2}


def test_a_class_that_passes_its_arguments_on_is_named_by_the_one_above():
    assert hyperparameters(Wrapping(3))["normalized_shape"] == (3,)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-1.5e-3", -0.0015),
        ("True", True),
        ("None", None),
        ("'a, b=c'", "a, b=c"),
        ("(1, [2, 3])", (1, [2, 3])),
        ("{'a': (1, 2)}", {"a": (1, 2)}),
        ("torch.float32", "torch.float32"),
        ("ReLU(inplace=True)", "ReLU(inplace=True)"),
        ("<function f at 3>", "<function f at 3>"),
        ("a == b", "a == b"),
        ("3x3", "3x3"),
        ("it's", "it's"),
        ("inf", "inf"),
        ("{1, 2}", "{1, 2}"),
        ("b'raw'", "b'raw'"),
        ("", ""),
        ("(((", "((("),
        ("9" * 2_000, "9" * 2_000),
        (r"'\d'", r"\d"),
    ],
)
def test_a_value_is_a_constant_or_its_text(text, value):
    assert hyperparameters(Telling(f"key={text}")) == {"key": value}
    assert type(hyperparameters(Telling(f"key={text}"))["key"]) is type(value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("act=<function gelu at 0x7f10>", {"act": "<function gelu>"}),
        ("thing=<m.Thing object at 0x7f10>, n=3", {"thing": "<m.Thing>", "n": 3}),
        ("<m.Thing object at 0x7f10> in words", {"extra_repr": "<m.Thing> in words"}),
        ("names={'b', 'a'}", {"names": "{'a', 'b'}"}),
        ("names=frozenset({'b', 'a:0'})", {"names": "frozenset({'a:0', 'b'})"}),
        ("all of {'b', 'a'}, {b, a}", {"extra_repr": "all of {'a', 'b'}, {b, a}"}),
        ("mask=0xff10, table={'b': 1, 'a': 2}", {"mask": 0xFF10, "table": {"b": 1, "a": 2}}),
    ],
)
def test_what_differs_between_processes_is_left_out_or_in_order(text, told):
    assert hyperparameters(Telling(text)) == told


@pytest.mark.parametrize(
    "text",
    [
        "in words of its own",
        "words, and more words",
        "key=1, words",
        "key=1, 2",
        "1, 2, 3, 4",
        "1, words",
        "(0): Parameter containing: [torch.float32 of size 2]",
        "a module's own words, it's free",
        "f(x) == 3",
    ],
)
def test_free_text_is_given_whole(text):
    assert hyperparameters(Telling(text)) == {"extra_repr": text}


def test_lines_and_spaces_do_not_matter():
    assert hyperparameters(Telling("a=1,\n  b = (2,\n 3),")) == {"a": 1, "b": (2, 3)}
    assert hyperparameters(Telling("  \n")) == {}


def test_each_module_gets_a_dict_of_its_own():
    first = hyperparameters(nn.Linear(2, 2))
    first["in_features"] = 9
    assert hyperparameters(nn.Linear(2, 2))["in_features"] == 2


def test_equal_texts_of_two_classes_are_two():
    class Other(nn.Module):
        def __init__(self, width):
            super().__init__()

        def extra_repr(self):
            return "1"

    assert hyperparameters(Telling("1")) == {"text": 1}
    assert hyperparameters(Other(1)) == {"width": 1}


def test_what_extra_repr_raises_is_raised():
    class Broken(nn.Module):
        def extra_repr(self):
            return f"{self.missing}"

    with pytest.raises(AttributeError, match="missing"):
        hyperparameters(Broken())


def test_an_extra_repr_that_gives_no_text_is_told():
    with pytest.raises(TypeError) as caught:
        hyperparameters(Telling(None))
    assert str(caught.value) == "extra_repr() returned NoneType instead of a str"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_module_tells_what_it_was():
    assert hyperparameters(torch.jit.script(nn.ReLU())) == {"original_name": "ReLU"}


class TestSources:
    def test_it_is_the_line_of_the_class(self):
        file, line = class_source(Telling)
        assert file == __file__
        assert Path(file).read_text().splitlines()[line - 1] == "class Telling(nn.Module):"

    @pytest.mark.parametrize("cls", [nn.Linear, nn.ReLU, nn.Sequential, nn.LSTM, nn.Transformer])
    def test_it_is_what_inspect_finds(self, cls):
        assert class_source(cls) == (inspect.getsourcefile(cls), inspect.getsourcelines(cls)[1])

    def test_decorators_stand_above_it(self):
        file, line = class_source(modeling_bert.BertModel)
        assert Path(file).read_text().splitlines()[line - 1].startswith("class BertModel(")

    def test_of_two_classes_of_one_name_each_has_its_own(self):
        def make():
            class Same(nn.Module):
                def forward(self):
                    return 1

            return Same

        first = make()

        class Same(nn.Module):
            def forward(self):
                return 2

        lines = Path(__file__).read_text().splitlines()
        numbers = [
            at + 1 for at, line in enumerate(lines) if line.strip() == "class Same(nn.Module):"
        ]
        assert [class_source(first)[1], class_source(Same)[1]] == numbers

    def test_a_class_without_methods_and_a_data_class_have_one_too(self):
        class Empty(nn.ReLU):
            pass

        @dataclass
        class Data:
            width: int

        lines = Path(__file__).read_text().splitlines()
        assert "class Empty" in lines[class_source(Empty)[1] - 1]
        # From Python 3.13 on, a class begins with its decorators.
        begin = class_source(Data)[1] - 1
        assert "class Data" in "".join(lines[begin : begin + 2])

    def test_a_class_from_nowhere_has_none(self):
        assert class_source(int) is None
        assert class_source(type("Made", (nn.Module,), {"__module__": "nowhere"})) is None

    def test_a_class_typed_into_a_prompt_has_the_line_of_its_method(self):
        code = "class Net(nn.Module):\n    size = 1\n    def forward(self): pass\n"
        space = {"nn": nn, "__name__": "nowhere"}
        exec(compile(code, "<prompt>", "exec"), space)
        assert class_source(space["Net"]) == ("<prompt>", 3)

    def test_a_script_has_its_own_classes(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "from torch import nn\n"
            "from tbscope.sources.torch.calling.hyperparameters import class_source\n\n\n"
            "class Net(nn.Module):\n"
            "    def forward(self): pass\n\n\n"
            "print(class_source(Net)[1])\n"
        )
        done = run_warm(script)
        assert done.stdout == "5\n", done.stderr


class Kind(Enum):
    FAST = 1


class Declared(nn.Module):
    shared: str = "of the base"
    __constants__ = ("limit",)
    limit = 3


class Declaring(Declared):
    alpha: float
    sizes: tuple[int, ...]
    kind: Kind
    dtype: torch.dtype
    own: int = 7
    text: str
    weight: tuple[torch.Tensor, int]
    part: nn.Module
    lists: list[int]
    nothing: float | None = None
    unset: int
    counted: ClassVar[int] = 2
    _private: int = 1

    def __init__(self):
        super().__init__()
        self.alpha, self.sizes, self.kind, self.dtype = 0.5, (1, 2), Kind.FAST, torch.float16
        self.text, self.weight, self.lists = "x", (torch.ones(2), 1), [1]
        self.part, self.undeclared = nn.Linear(1, 1), 4


def test_declared_attributes_are_settings():
    expected = {
        "text": "x",
        "alpha": 0.5,
        "sizes": (1, 2),
        "kind": "Kind.FAST",
        "dtype": "torch.float16",
        "own": 7,
    }
    assert hyperparameters(Declaring()) == {"limit": 3, **expected}


def test_what_extra_repr_tells_comes_first_and_is_not_told_twice():
    class Printing(Declaring):
        def extra_repr(self):
            return "width=2, alpha=0.25"

    found = hyperparameters(Printing())
    assert list(found)[:2] == ["width", "alpha"]
    assert found["alpha"] == 0.25
    assert "own" not in found


def test_fields_of_a_dataclass_are_settings():
    @dataclass(eq=False)
    class Scaled(nn.Module):
        factor: float
        axis: int = -1

        def __post_init__(self):
            super().__init__()

    assert hyperparameters(Scaled(2.0)) == {"factor": 2.0, "axis": -1}


def test_models_of_transformers_are_not_flooded():
    sizes = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    config = modeling_bert.BertConfig(num_hidden_layers=1, vocab_size=4, **sizes)
    model = modeling_bert.BertModel(config)
    found = {name for module in model.modules() for name in hyperparameters(module)}
    assert found.isdisjoint({"main_input_name", "base_model_prefix", "input_modalities"})


def test_declared_attributes_are_on_cards():
    class Scaling(nn.Module):
        alpha: float

        def __init__(self):
            super().__init__()
            self.alpha = 0.5

        def forward(self, x):
            return (x * self.alpha).relu()

    graph = tbscope.trace(nn.Sequential(Scaling()), torch.ones(2))
    drawn = tbscope.to_graph_def(graph, templates=False)
    (card,) = [node for node in drawn.node if "alpha" in node.attr]
    assert card.attr["class"].s.endswith(b"Scaling")
    assert graph.calls[1].hyperparameters == {"alpha": 0.5}
