"""Sources of graphs beside an eager call: what differs has a name that docs/sources.md explains.

`python -m tests.sources` compares all models; here stand those that show each difference.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements
from tests.sources.compare import (
    ASKS,
    CALLS_IN_ONE,
    DEAD,
    IDENTITIES,
    KINDS,
    METHODS,
    OPERATION_KINDS,
    SEVERAL,
    SIZES,
    TIED,
    UNREGISTERED,
    VIEWED,
    compare,
    compare_operations,
)
from tests.sources.forms import FORMS, Form, TorchError
from tests.sources.models import NAMES, Model, model_of
from tests.sweeps import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

PAGE = (Path(__file__).parents[1] / "docs" / "sources.md").read_text(encoding="utf-8")
BY_NAME = {form.name: form for form in FORMS}

# By model and source: the names of the differences.
SHOWN = {
    ("BertModel", "export"): (),
    ("BertModel", "onnx"): (),
    ("LlamaForCausalLM", "export"): (),
    ("LlamaForCausalLM", "module"): (),
    ("ViTForImageClassification", "decomposed"): (),
    ("GPT2LMHeadModel", "onnx"): (TIED,),
    ("ModernBertModel", "onnx"): (CALLS_IN_ONE,),
    ("MambaModel", "export"): (UNREGISTERED,),
    ("HubertModel", "torchscript"): (),
}


@pytest.mark.parametrize(("name", "source"), sampled(SHOWN, [*SHOWN][1::2]))
def test_a_source_of_a_real_model_tells_what_an_eager_call_tells(name, source):
    model, form = model_of(name), BY_NAME[source]

    graph = form.graph(model)

    check_whole(graph)
    found = compare(model.eager, graph, form.differs)
    assert found.faults == {}
    assert found.kinds == SHOWN[name, source]


class Asks(nn.Module):
    """Runs other code when it is traced, and computes what nothing reads."""

    def forward(self, x):
        x.sin().mul_(2)
        exporting = torch.compiler.is_exporting() or torch.jit.is_tracing()
        return x.exp() if exporting else x.tanh()


class Plain(nn.Module):
    """Computes by kernels that torch chooses by whether a weight requires gradients."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.fc(x.transpose(1, 2)).relu()


@pytest.mark.parametrize(
    ("module", "source", "kinds"),
    [
        (Asks(), "export", (ASKS,)),
        (Asks(), "module", (ASKS,)),
        (Asks(), "torchscript", (DEAD, ASKS)),
        (Plain(), "export", ()),
        (Plain(), "module", ()),
        (Plain(), "torchscript", ()),
    ],
)
def test_a_difference_of_operations_has_a_name_if_it_is_gone_without_its_cause(
    module, source, kinds
):
    inputs = {"x": torch.ones(2, 4, 3)}
    model = Model(module, inputs, tbscope.trace(module, kwargs=inputs, training=None))
    form = BY_NAME[source]
    graph = form.graph(model)

    def differences(allowed, answered):
        return compare_operations(model.eager, graph, allowed, answered)

    found = differences(form.differs, lambda: form.answered(model))
    assert (found.kinds, found.faults) == (kinds, {})
    # Without the cause, the same difference is a fault.
    for kind in kinds:
        allowed = [each for each in form.differs if each != kind]
        assert "operations" in differences(allowed, lambda: form.answered(model)).faults
    if ASKS in kinds:
        assert "operations" in differences(form.differs, lambda: model.eager).faults


class Numbers(nn.Module):
    """Repeats by a size, or by the same number."""

    def __init__(self, cause):
        super().__init__()
        self.cause = cause

    def forward(self, x):
        return x.repeat_interleave(x.shape[0] if self.cause else 2, 0)


class Constants(Numbers):
    """Computes with a number alone, or with the input, too."""

    def forward(self, x):
        number = torch.tensor(4.0)
        return x * (number if self.cause else number + x).sqrt()


class Strides(Numbers):
    """Normalises a transposed tensor, or one of the same shape that is contiguous."""

    def __init__(self, cause):
        super().__init__(cause)
        self.norm, self.fc = nn.BatchNorm1d(4), nn.Linear(3, 2)

    def forward(self, x):
        x = x.transpose(1, 2).contiguous() if not self.cause else x.reshape(2, 3, 4).transpose(1, 2)
        return self.fc(self.norm(x))


class Chosen(Numbers):
    """Drops nothing of rows whose number the data decides, or which are known."""

    def forward(self, x):
        x = x[x > 0] if self.cause else x[:1]
        return torch.nn.functional.dropout(x, training=False) + 1


class Sparse(Numbers):
    """Multiplies by a sparse matrix, or by a dense one."""

    def forward(self, x):
        matrix = x[0].T @ x[0]
        return (matrix.to_sparse_csr() if self.cause else matrix) @ x[0].T


@pytest.mark.parametrize(
    ("made", "name", "source"),
    [
        (Chosen, "Sizes that the data decides", "export"),
        (Chosen, "Sizes that the data decides", "module"),
        (Sparse, "Sparse tensors", "torchscript"),
        (Numbers, "Numbers of a trace", "torchscript"),
        (Constants, "Constants of a trace", "torchscript"),
        (Strides, "Strides", "export"),
    ],
)
def test_a_difference_of_torchs_own_is_explained_and_gone_without_its_cause(made, name, source):
    assert f"- **{name}.**" in PAGE
    for cause in (True, False):
        module, inputs = made(cause).eval(), {"x": torch.ones(2, 3, 4)}
        model = Model(module, inputs, tbscope.trace(module, kwargs=inputs, training=None))
        graph = BY_NAME[source].graph(model)
        found = compare_operations(model.eager, graph, (), lambda model=model: model.eager)
        assert list(found.faults) == (["operations"] if cause else [])
        if name in OPERATION_KINDS:
            form = BY_NAME[source]
            found = compare_operations(model.eager, graph, form.differs, lambda m=model: m.eager)
            assert (found.kinds, found.faults) == ((name,) if cause else (), {})


def test_every_difference_of_operations_is_explained_by_its_name():
    assert [kind for kind in OPERATION_KINDS if f"- **{kind}.**" not in PAGE] == []


def test_every_difference_is_explained_by_its_name_and_shown_by_a_model():
    assert [kind for kind in KINDS if f"- **{kind}.**" not in PAGE] == []
    # Small models of tests/test_sources_parts.py show the others.
    assert {kind for kinds in SHOWN.values() for kind in kinds} == set(KINDS) - {
        *(SEVERAL, VIEWED, SIZES, IDENTITIES, METHODS)
    }
    assert {kind for form in FORMS for kind in form.differs} == {*KINDS, *OPERATION_KINDS}


def test_many_models_of_many_families_are_compared():
    assert len(set(NAMES)) == len(NAMES) >= 20
    assert {name for name, _ in SHOWN} <= set(NAMES)


def test_what_torch_cannot_make_is_said_to_be_so():
    def fails(model):
        raise ValueError("no such thing")

    with pytest.raises(TorchError, match="ValueError: no such thing"):
        Form("none", fails, lambda made, model: made).graph(None)


class Written(nn.Module):
    """Calls a GRU that transposes what it gives, and may write into that."""

    def __init__(self, writes):
        super().__init__()
        self.rnn = nn.GRU(4, 4, batch_first=True)
        self.writes = writes

    def forward(self, x):
        y, _ = self.rnn(x)
        if self.writes:
            y[:, 0] = 0
        return y


@pytest.mark.parametrize("writes", [True, False])
def test_a_write_into_a_view_shows_what_it_was_made_of_after_decompositions(writes):
    model, x = Written(writes).eval(), torch.ones(2, 3, 4)
    program = torch.export.export(model, (x,), strict=False)
    eager = tbscope.trace(model, x, training=None)

    assert disagreements(eager, tbscope.from_export(program)) == {}
    found = disagreements(eager, tbscope.from_export(program.run_decompositions()))
    assert list(found) == (["shapes"] if writes else [])
    assert "- **Writes into views.**" in PAGE


# -- what the comparison notices -------------------------------------------------------------


class Shared(nn.Module):
    """Calls one layer twice in a row, and reads one weight in two."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x):
        return nn.Sigmoid()(self.two(self.one(self.one(x))))


def _eager():
    return tbscope.trace(Shared(), torch.ones(2, 3))


def _rename(graph):
    for node in graph.nodes:
        if node.name == "one.weight":
            node.name = "two.weight"


def _forget_a_call(graph):
    graph.calls = [call for call in graph.calls if call.scope.part.index == 0]
    (first,) = [call.scope for call in graph.calls if call.qualified_name == "one"]
    for node in graph.nodes:
        if node.scope is not None and node.scope.part.index == 1:
            node.scope = first


def _forget_the_unregistered(graph):
    (root,) = [call.scope for call in graph.calls if call.scope.parent is None]
    graph.calls = [call for call in graph.calls if call.class_name.rpartition(".")[2] != "Sigmoid"]
    for node in graph.nodes:
        if node.op == "sigmoid":
            node.scope = root


CHANGES = {TIED: _rename, CALLS_IN_ONE: _forget_a_call, UNREGISTERED: _forget_the_unregistered}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_difference_has_its_name_where_it_may_be_and_is_a_fault_elsewhere(kind):
    eager, other = _eager(), _eager()
    CHANGES[kind](other)

    assert compare(eager, other, KINDS).kinds == (kind,)
    assert compare(eager, other, KINDS).faults == {}
    assert compare(eager, other, [each for each in KINDS if each != kind]).faults


def _another_parameter(graph):
    for node in graph.nodes:
        if node.name == "one.bias":
            node.name = "one.other"


def _another_edge(graph):
    two = next(node for node in graph.nodes if node.scope and node.scope.part.attribute == "two")
    two.inputs[0] = graph.inputs[0].outputs[0]


def _another_class(graph):
    graph.calls[1].class_name = "torch.nn.Bilinear"


def _no_call(graph):
    graph.calls = [call for call in graph.calls if call.qualified_name != "two"]


def _another_shape(graph):
    value = graph.outputs[0].value
    call = next(call for call in graph.calls if call.qualified_name == "two")
    call.results = copy.copy(value)
    call.results.shape = (7, 7)


@pytest.mark.parametrize(
    ("change", "aspect"),
    [
        (_another_parameter, "parameters"),
        (_another_edge, "dataflow"),
        (_another_class, "calls"),
        (_no_call, "calls"),
        (_another_shape, "shapes"),
    ],
)
def test_any_other_difference_is_a_fault(change, aspect):
    eager, other = _eager(), _eager()
    assert compare(eager, other, KINDS) == compare(eager, eager, ())
    change(other)

    assert aspect in compare(eager, other, KINDS).faults
