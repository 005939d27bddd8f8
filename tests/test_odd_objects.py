"""Odd objects on their way through a model: what the model runs with, it is drawn with."""

import pytest
import torch
from bad_values import MAKE
from torch import nn

import tbscope
from tbscope.ir.graph import Constant
from tests.sweeps import sampled

X = torch.ones(1, 2)
# What has no size cannot be an input; a module that is only half made, no part of a model.
UNDRAWN = {"uninitialized", "half a module"}


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x, other=None):
        return self.fc(x), other


class Outer(nn.Module):
    def __init__(self, held=None):
        super().__init__()
        self.inner = Inner()
        self.held = held

    def forward(self, x, other=None):
        return self.inner(x, other=other)[0]


class Tells(nn.Linear):
    """A module that tells of itself whatever it was given."""

    def __init__(self, told):
        super().__init__(2, 2)
        self.told = [told]

    def extra_repr(self):
        return self.told[0]


def keyed(value):
    try:
        return {value: 1}
    except Exception:  # noqa: BLE001  What cannot be a key is none here either.
        return {}


FORMS = {
    "an argument": lambda value: (Outer(), (X, value)),
    "in a list": lambda value: (Outer(), (X, [value, X])),
    "in a mapping": lambda value: (Outer(), (X, {"key": value})),
    "a key": lambda value: (Outer(), (X, keyed(value))),
    "a result": lambda value: (Inner(), (X, value)),
    "an attribute": lambda value: (Outer(value), (X,)),
    "told by a module": lambda value: (Tells(value), (X,)),
}


def runs(model, args):
    try:
        model(*args)
    except Exception:  # noqa: BLE001  It does not run by itself.
        return False
    return True


def drawn(form, label, options):
    """Give "" where the model does not run by itself, or is drawn; else what went wrong."""
    model, args = FORMS[form](MAKE[label]())
    if not runs(model, args):
        return ""
    try:
        graph = tbscope.trace(model, args, **options)
        tbscope.to_graph_def(graph)
        str(graph.summary())
    except Exception as error:  # noqa: BLE001  That is what is looked for.
        return f"{label}: {type(error).__name__} from {error.__cause__!r}"
    return "" if "linear" in {node.op for node in graph.nodes} else f"{label}: {graph}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"fake": True}], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_what_a_model_runs_with_it_is_drawn_with(form, options):
    labels = sorted(MAKE.keys() - UNDRAWN)
    # Each object takes two or three of the ways, and one of them on fake tensors.
    turns = len(FORMS) if options else 3
    labels = sampled(labels, labels[[*FORMS].index(form) % turns :: turns])
    if form == "a result":
        # Its entries are part of the result, and raise for whoever asks for them.
        labels = [label for label in labels if label != "map"]
    assert [wrong for label in labels if (wrong := drawn(form, label, options))] == []


class Looks(nn.Module):
    """Looks for attributes in a table of its own, as some models look for their children."""

    def __init__(self, missing):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.missing = missing

    def __getattr__(self, name):
        if name in self.__dict__["_modules"]:
            return self.__dict__["_modules"][name]
        raise self.__dict__["missing"](name)

    def forward(self, x, other=MAKE["no repr"]()):  # noqa: B008  Its repr is asked for.
        return self.fc(x)


class Called:
    """An object that is no module, and looks like a `Looks` for attributes."""

    __getattr__ = Looks.__getattr__

    def __init__(self, missing):
        self._modules = {"fc": nn.Linear(2, 2)}
        self.missing = missing

    def __call__(self, x):
        return self.fc(x)


MODELS_THAT_LOOK = {
    "module": Looks,
    "method": lambda missing: Looks(missing).forward,
    "part": lambda missing: nn.Sequential(Looks(missing), nn.ReLU()),
    "object": Called,
    "method of an object": lambda missing: Called(missing).__call__,
}


@pytest.mark.parametrize("make", MODELS_THAT_LOOK.values(), ids=MODELS_THAT_LOOK)
@pytest.mark.parametrize("options", [{}, {"fake": True}, {"profile": 1}], ids=str)
def test_a_model_may_raise_anything_for_an_attribute_that_it_lacks(make, options):
    usual, own, other = (
        tbscope.trace(make(missing), X, **options)
        for missing in (AttributeError, KeyError, ValueError)
    )
    # An object that raises another error is taken for one without a signature.
    assert str(own).replace("args.0", "x" if make is Called else "args.0") == str(usual)
    assert str(other).replace("args.0", "x") == str(usual)


def test_a_variable_of_the_code_may_refuse_to_be_asked():
    refusing = MAKE["no getattr of what is called"]()
    graph = tbscope.trace(lambda x: x + (refusing is not None), X)
    assert [node.op for node in graph.nodes] == ["input", "add"]


def test_a_list_that_holds_itself_is_cut():
    circle = [X]
    circle.append(circle)
    graph = tbscope.trace(Outer(), (X, circle))
    assert len(str(graph.calls[1].arguments)) < 10_000


def test_numbers_that_python_does_not_print_are_told_by_their_size():
    graph = tbscope.trace(Outer(), (X, [10**5000, -(10**5000), 2**1000]))
    told = str(dict(graph.calls[1].arguments)["other"][:2])
    assert told.count("an int of 16610 bits") == 2
    assert dict(graph.calls[1].arguments)["other"][2] == 2**1000


LONG, SHORT = 10**5000, 10**4


@pytest.mark.parametrize(
    ("number", "told"), [(LONG, "an int of 16610 bits"), (SHORT, "10000")], ids=["long", "short"]
)
def test_a_number_of_any_length_bounds_a_part_and_names_an_entry(number, told, tmp_path):
    def run(x):
        return {number: x[:number], "key": Inner()(x, {number: slice(number, number, number)})[0]}

    graph = tbscope.trace(run, X)
    # An entry has one name, in arguments and at the ends of the graph.
    place = "0" if number == LONG else told
    other = {place: Constant(f"{told}:{told}:{told}")}
    (inner,) = [call for call in graph.calls if call.class_name.endswith("Inner")]
    assert dict(inner.arguments)["other"] == other
    assert [out.name for out in graph.outputs] == [f"out.{place}", "out.key"]
    assert f":{told}" in str(graph)
    graph.save(tmp_path / "graph.json")
    assert str(tbscope.load(tmp_path / "graph.json")) == str(graph)


def test_names_of_a_megabyte_are_cut():
    label = "L" * 2**20
    model = type(label, (Outer,), {})()
    model.add_module("c" * 2**20, nn.Linear(2, 2))

    def run(x):
        with tbscope.scope("s" * 2**20):
            return {"k" * 2**20: model.get_submodule("c" * 2**20)(model(x))}

    graph = tbscope.trace(run, X)
    for style in ("tf", "torch"):
        drawing = tbscope.to_graph_def(graph, style=style)
        assert max(max(map(len, node.name.split("/"))) for node in drawing.node) < 600
        assert drawing.ByteSize() < 200_000
    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.trace(model, torch.ones(1, 3))
    assert len(str(caught.value)) < 5_000
