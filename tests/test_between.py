"""What a pass over a program puts between two operations stands in the call around both."""

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.head = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))

    def forward(self, x):
        return self.head(self.first(x))


def program():
    return torch.export.export(Net(), (torch.ones(2, 3),)).module()


def linears(module):
    return [node for node in module.graph.nodes if "linear" in str(node.target)]


def put_behind(module, node, target, *, part=None):
    """Put an operation behind a node that tells of no module, as passes do."""
    with module.graph.inserting_after(node):
        if part is None:
            new = module.graph.call_function(target, (node,))
        else:
            module.add_submodule(target, part)
            new = module.graph.call_module(target, (node,))
    new.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    module.recompile()
    return new


def scope_of(graph, op):
    (node,) = [node for node in graph.nodes if node.op == op]
    return str(node.scope)


@pytest.mark.parametrize(("behind", "scope"), [(0, "Net"), (1, "Net/Sequential[head]"), (2, "Net")])
def test_an_operation_stands_in_the_call_around_what_gives_and_what_reads(behind, scope):
    module = program()
    put_behind(module, linears(module)[behind], torch.ops.aten.neg.default)
    graph = tbscope.from_fx(module)
    check_whole(graph)
    assert scope_of(graph, "neg") == scope
    assert "box-cycle" not in {found.rule for found in tbscope.lint(tbscope.to_graph_def(graph))}


def test_operations_in_a_row_stand_there_all():
    module = program()
    first = put_behind(module, linears(module)[1], torch.ops.aten.neg.default)
    put_behind(module, first, torch.ops.aten.abs.default)
    graph = tbscope.from_fx(module)
    assert [scope_of(graph, op) for op in ("neg", "abs")] == ["Net/Sequential[head]"] * 2


def test_a_module_that_is_put_in_is_called_from_there():
    module = program()
    put_behind(module, linears(module)[1], "watch", part=nn.Hardtanh())
    graph = tbscope.from_fx(module)
    check_whole(graph)
    assert scope_of(graph, "Hardtanh") == "Net/Hardtanh[watch]"
    assert "box-cycle" not in {found.rule for found in tbscope.lint(tbscope.to_graph_def(graph))}


def test_what_reads_an_input_or_the_state_alone_is_between_nothing():
    module = program()
    (x,) = [node for node in module.graph.nodes if node.op == "placeholder"]
    put_behind(module, x, torch.ops.aten.neg.default)
    assert scope_of(tbscope.from_fx(module), "neg") == "Net"


def test_what_is_made_of_the_state_alone_stands_in_the_call_that_reads_it():
    module = program()
    put_behind(module, linears(module)[1].args[1], torch.ops.aten.neg.default)
    graph = tbscope.from_fx(module)
    check_whole(graph)
    assert scope_of(graph, "neg") == "Net/Sequential[head]/Linear[0]"


def test_where_nothing_tells_of_a_module_all_stands_in_the_whole():
    module = program()
    for node in module.graph.nodes:
        node.meta.pop("nn_module_stack", None)
    graph = tbscope.from_fx(module)
    assert {str(node.scope) for node in graph.nodes if node.kind == "op"} == {"GraphModule"}


@pytest.mark.parametrize("odd", [{"a": 1}, {3: ("head", "x")}, {"a": ()}, {}])
def test_odd_metadata_is_no_call(odd):
    module = program()
    linears(module)[0].meta["nn_module_stack"] = odd
    put_behind(module, linears(module)[0], torch.ops.aten.neg.default)
    assert scope_of(tbscope.from_fx(module), "neg") == "Net"
