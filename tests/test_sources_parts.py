"""Modules that are called by others than the module that contains them, from every source."""

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements
from tests.sources.compare import (
    IDENTITIES,
    METHODS,
    SEVERAL,
    SIZES,
    VIEWED,
    compare,
    compare_operations,
)
from tests.sources.forms import FORMS
from tests.sources.models import Model

pytestmark = pytest.mark.filterwarnings("ignore")

BY_NAME = {form.name: form for form in FORMS}


class Text(nn.Module):
    """Has an embedding that it does not call itself."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x).relu()


class Around(nn.Module):
    """Calls a part of a module, then something else, and then the module."""

    def __init__(self):
        super().__init__()
        self.text, self.image = Text(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return self.text(self.image(self.text.embed(x))) + x


class Position(nn.Module):
    """A module with several names, which is given two tensors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, query, value):
        return self.fc(value) * query


class Block(nn.Module):
    """Calls a module that belongs to the model, too."""

    def __init__(self, position):
        super().__init__()
        self.fc, self.position = nn.Linear(4, 8), position

    def forward(self, x):
        both = self.fc(x)
        return self.position(both[:, :4], both[:, 4:]).relu()


class Shares(nn.Module):
    """Two blocks with one module."""

    def __init__(self):
        super().__init__()
        self.position = Position()
        self.blocks = nn.ModuleList([Block(self.position), Block(self.position)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Written(nn.Module):
    """Views what was written in place: a program makes the view anew where it is read."""

    def __init__(self):
        super().__init__()
        self.act, self.flatten, self.fc = nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(self.flatten(self.act(x.reshape(3, 2, 2) * 2)))


class Sized(nn.Module):
    """Makes a result as large as the one of another module, by that or by its sizes."""

    def __init__(self, like):
        super().__init__()
        self.fc, self.act, self.head = nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)
        self.like = like

    def forward(self, x):
        y = self.fc(x)
        return self.head(self.like(self.act(y.flatten()), y))


class Book(nn.Module):
    """Computes a table by forward, and by another method."""

    def __init__(self):
        super().__init__()
        self.fc, self.table = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.fc(x) * self.table.tanh()

    def encode(self, x):
        return self.forward(x)


class Reads(nn.Module):
    """Calls a module, or another method of it."""

    def __init__(self, method):
        super().__init__()
        self.book, self.method = Book(), method

    def forward(self, x):
        return (self.book.encode(x) if self.method else self.book(x)) + 1


class Skips(nn.Module):
    """Reads a tensor after an identity was called with it, or the result of that."""

    def __init__(self, skips):
        super().__init__()
        self.one, self.same, self.two = nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 4)
        self.skips = skips

    def forward(self, x):
        x = self.one(x)
        y = self.same(x)
        return self.two(x if self.skips else y) + y


def compared(module, source):
    inputs = {"x": torch.ones(3, 4)}
    model = Model(module.eval(), inputs, tbscope.trace(module, kwargs=inputs, training=None))
    graph = BY_NAME[source].graph(model)
    check_whole(graph)
    return model.eager, graph


@pytest.mark.parametrize("source", BY_NAME)
def test_a_part_that_the_model_calls_is_drawn_beside_its_module(source):
    eager, graph = compared(Around(), source)
    assert disagreements(eager, graph) == {}
    boxes = [{one.name.rpartition("/")[0] for one in tbscope.to_graph_def(each).node}
             for each in (eager, graph)]  # fmt: skip
    assert boxes[1] == boxes[0] > {"text.embed", "text/head"}


@pytest.mark.parametrize("source", BY_NAME)
def test_a_call_gives_nothing_of_what_it_hands_to_a_module_of_another_name(source):
    module = Shares()
    eager, graph = compared(module, source)
    found = compare(eager, graph, BY_NAME[source].differs, module)
    assert found.faults == {}
    assert set(found.kinds) <= {SEVERAL}
    # Without the cause, the same difference is a fault.
    if found.kinds:
        assert compare(eager, graph, BY_NAME[source].differs, Shares()).kinds
        assert compare(eager, graph, BY_NAME[source].differs).faults


@pytest.mark.parametrize("source", BY_NAME)
def test_a_view_of_what_was_written_is_made_anew_after_decompositions(source):
    eager, graph = compared(Written(), source)
    found = compare(eager, graph, BY_NAME[source].differs)
    assert found.faults == {}
    assert found.kinds == ((VIEWED,) if source in ("decomposed", "onnx") else ())


@pytest.mark.parametrize("source", BY_NAME)
@pytest.mark.parametrize(
    ("like", "sources"),
    [
        (lambda x, other: x.reshape_as(other), ("decomposed", "onnx")),
        (lambda x, other: x.reshape(other.shape) + other.new_ones(other.shape), ("decomposed",)),
        (lambda x, other: x.reshape(other.shape), ()),
    ],
)
def test_a_tensor_that_is_read_for_its_size_is_a_number_after_decompositions(source, like, sources):
    eager, graph = compared(Sized(like), source)
    found = compare(eager, graph, BY_NAME[source].differs)
    assert found.faults == {}
    assert found.kinds == ((SIZES,) if source in sources else ())


@pytest.mark.parametrize("source", BY_NAME)
@pytest.mark.parametrize("method", [True, False])
def test_only_an_eager_call_shows_a_method_that_is_not_forward(source, method):
    eager, graph = compared(Reads(method), source)
    form = BY_NAME[source]
    found = [compare(eager, graph, form.differs)]
    if form.asked:
        found.append(compare_operations(eager, graph, form.differs, lambda: eager))
    for each in found:
        assert (each.kinds, each.faults) == ((METHODS,) if method else (), {})


@pytest.mark.parametrize("source", BY_NAME)
@pytest.mark.parametrize("skips", [True, False])
def test_an_input_is_the_result_of_an_identity_in_an_eager_call(source, skips):
    eager, graph = compared(Skips(skips), source)
    found = compare(eager, graph, BY_NAME[source].differs)
    assert found.faults == {}
    assert found.kinds == ((IDENTITIES,) if skips and source == "fx" else ())
