"""Scopes of the user are in the graph of every source, as in the graph of an eager call."""

import io

import pytest
import torch
from torch import nn
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint

import tbscope
from tbscope.sources.torch import captured_scopes, recorded_names

X = torch.ones(2, 4)
ODD = 'odd / [name]\n"q" ü tbscope.scope ["x", 0, 0]'


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        with tbscope.scope("deep"):
            return self.fc(x).relu()


@tbscope.scope("decorated")
def decorated(x, times=3):
    return x.sin() if times == 1 else decorated(x, times - 1)


class Net(nn.Module):
    """Scopes in modules, around them, in each other, in a loop, twice, by push and pop."""

    def __init__(self):
        super().__init__()
        self.first = Block()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        with tbscope.scope("outer"):
            x = self.first(x) + 1
            for block in self.blocks:
                with tbscope.scope("step"):
                    x = block(x) * 2
        x = decorated(x)
        with tbscope.scope("empty"):
            pass
        with tbscope.scope("same"):
            x = x * 2
        with tbscope.scope("same"):
            x = x * 2
        tbscope.push_scope("pushed")
        x = x.abs()
        tbscope.pop_scope()
        with tbscope.scope(ODD):
            return x.neg()


class Raising(nn.Module):
    """An error leaves two scopes and one that was pushed."""

    def forward(self, x):
        try:
            with tbscope.scope("left"):
                x = x.cos()
                with tbscope.scope("inner"):
                    tbscope.push_scope("pushed")
                    x = x.exp()
                    raise ValueError
        except ValueError:
            return x.tan()


def captured(model):
    graphs = tbscope.compile_graphs(model, X, fullgraph=True)
    (title,) = graphs
    return graphs[title]


def saved(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


CAPTURES = {
    "export": lambda model: tbscope.from_export(torch.export.export(model, (X,), strict=False)),
    "strict export": lambda model: tbscope.from_export(
        torch.export.export(model, (X,), strict=True)
    ),
    "decomposed": lambda model: tbscope.from_export(
        torch.export.export(model, (X,)).run_decompositions({})
    ),
    "saved": lambda model: tbscope.from_export(saved(torch.export.export(model, (X,)))),
    "module of a program": lambda model: tbscope.from_fx(
        torch.export.export(model, (X,)).module(), X
    ),
    "symbolic": lambda model: tbscope.from_fx(torch.fx.symbolic_trace(model), X),
    "compiled": captured,
}


def places(graph):
    """Give the scope of each operation, by order."""
    return [str(node.scope) for node in graph.nodes if node.kind == "op"]


@pytest.mark.parametrize("model", [Net, Raising])
@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES)
def test_each_source_has_the_scopes_of_an_eager_call(model, capture):
    expected = places(tbscope.trace(model(), X))
    assert places(capture(model())) == expected
    assert len(set(expected)) > 2


def test_calls_are_in_the_scopes_around_them():
    scopes = {str(call.scope) for call in CAPTURES["export"](Net()).calls}
    assert "Net/outer/step.1/ModuleList[blocks]/Block[1]/deep/Linear[fc]" in scopes


def test_parts_of_a_split_model_have_the_scopes_of_their_nodes():
    whole = torch.fx.symbolic_trace(Net())
    order = {node: number for number, node in enumerate(whole.graph.nodes)}
    split = split_module(whole, Net(), lambda node: int(order[node] > 4))
    found = places(tbscope.from_fx(split, X))
    part = "GraphModule/GraphModuleImpl[submod_0]"
    assert found[:2] == [f"{part}/outer/deep/Linear[first_fc]", f"{part}/outer/Block[first]/deep"]


def test_an_unflattened_program_has_the_scopes_inside_of_its_modules():
    program = torch.export.unflatten(torch.export.export(Net(), (X,)))
    found = places(tbscope.from_fx(program, X))
    block = "Net/Block[first]"
    assert found[:3] == [f"{block}/Linear[fc]", f"{block}/deep", "Net/outer"]


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def part(self, x):
        with tbscope.scope("inside"):
            return self.fc(x).relu()

    def forward(self, x):
        with tbscope.scope("outside"):
            x = checkpoint(self.part, x, use_reentrant=False)
        with tbscope.scope("choice"):
            return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("capture", ["export", "compiled"])
def test_bodies_are_in_the_scope_of_their_operator(capture):
    found = places(CAPTURES[capture](Branches()))
    assert found[:2] == ["Branches/outside/inside/Linear[fc]", "Branches/outside/inside"]
    assert {scope.rpartition("/")[0] for scope in found[2:]} == {"Branches/choice", "Branches"}


def test_a_program_with_scopes_runs_and_unfolds_as_without_them():
    model = Net()
    program = torch.export.export(model, (X,))
    assert torch.equal(program.module()(X), model(X))
    assert torch.equal(torch.export.unflatten(program)(X), model(X))
    assert not any("tbscope" in name for name in program.graph_module.code.split())


def test_compiled_code_with_scopes_has_the_gradients_of_the_eager_code():
    model = Net()
    model(X).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, backend="aot_eager", fullgraph=True)(X).sum().backward()
    assert all(
        torch.allclose(parameter.grad, grad)
        for parameter, grad in zip(model.parameters(), expected, strict=True)
    )


def test_a_scope_is_not_captured_twice_where_a_trace_runs_beside():
    with tbscope.record() as recording:
        program = torch.export.export(Raising(), (X,), strict=False)
    assert places(tbscope.from_export(program)) == places(tbscope.trace(Raising(), X))
    assert recording.graph is not None


def test_a_torch_of_another_form_captures_no_scopes_and_no_error(monkeypatch):
    monkeypatch.setattr(captured_scopes, "captured_program", lambda: None)
    for capture in ("export", "compiled", "symbolic"):
        assert set(places(CAPTURES[capture](Raising()))) == {"Raising"}


@pytest.fixture(scope="module")
def program():
    pytest.importorskip("onnxscript")
    return torch.onnx.export(Net().eval(), (X,), dynamo=True, verbose=False)


def test_scopes_are_in_the_onnx_file_that_torch_makes(program, tmp_path):
    program.save(tmp_path / "net.onnx")
    assert places(tbscope.from_onnx(tmp_path / "net.onnx")) == places(tbscope.trace(Net(), X))


def test_modules_with_scopes_share_a_function(program):
    record = tbscope.trace(Net().eval(), X)
    result = tbscope.modules_to_functions(program, ["Block"], record=record)
    assert result.functions == ["modules::Block(%x, %fc.weight, %fc.bias) -> (%relu_1), 3 uses"]
    assert result.left == []
    assert places(tbscope.from_onnx(result.model)) == places(record)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('["a", 1, 0]', [("a", 1, 0)]),
        (r'["\"\\\n\u00fc", 12, 3]', [('"\\\nü', 12, 3)]),
        ('["", 1, 0]', []),
        ('["a", -1, 0]', []),
        ('["a", 1]', []),
        ('["a", 1, 0, 0]', []),
        (r'["\q", 1, 0]', []),
        ('["a\tb", 1, 0]', []),
        (f'["a", {"9" * 10}, 0]', []),
        ('{"a": 1}', []),
        ("", []),
    ],
)
def test_only_marks_of_our_own_are_read(line, found):
    trace = f'  File "net.py", line 1, in forward\n    tbscope.scope {line}\n'
    assert recorded_names.scopes_in_trace(trace) == []
    assert recorded_names.scopes_in_trace(f"tbscope.scope {line}\n{trace}") == found


def test_a_node_of_a_file_is_in_a_limited_number_of_scopes():
    assert len(recorded_names.scopes_in_trace('tbscope.scope ["a", 1, 0]\n' * 10_000)) == 100
