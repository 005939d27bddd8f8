"""Any program gives the graph that a plain log of kernels and their memory allows."""

import warnings

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, reject, settings
from kernel_log import KernelLog, faults
from memory_programs import MODULES, PLAIN, THREADS, WRAPPERS, programs
from sweeps import counted
from torch import nn

import tbscope


def inputs():
    return torch.arange(16.0).reshape(4, 4), torch.arange(4.0)


def forward(model, *args):
    with torch.no_grad():
        return model(*args)


def step(model, *args):
    """Run a model forward and backward."""
    model.zero_grad()
    losses = [each.sum() for each in model(*args) if each.requires_grad]
    if losses:
        loss = torch.stack(losses).sum()
        loss.backward(torch.ones_like(loss))
    return ()


def logged(model, run=forward, *, bodies=False):
    """Give the log of a run of a model."""
    log = KernelLog(opens_passes=run is step, keeps_results=bodies)
    model.attach(log)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    args = inputs()
    try:
        with log.watching():
            log.outputs = [*run(model, *args)]
    finally:
        model.load_state_dict(state)
    return log


def traced(model, *, bodies=False):
    model.attach(None)
    return tbscope.trace(model, inputs(), kernels=bodies)


def recorded(model):
    model.attach(None)
    args = inputs()
    with tbscope.record(model) as recording:
        step(model, *args)
    return recording.graph


def law(kinds, *, loose, run=forward, bodies=False):
    @settings(
        max_examples=counted(250, 8),
        deadline=None,
        suppress_health_check=[*HealthCheck],
        derandomize=True,
        # The explanation of a failure takes minutes.
        phases=[Phase.generate, Phase.shrink],
    )
    @given(model=programs(kinds))
    def holds(model):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                log = logged(model, run, bodies=bodies)
            except (RuntimeError, IndexError):
                reject()
            graph = traced(model, bodies=bodies) if run is forward else recorded(model)
        graph.verify()
        assert faults(log, graph, model, loose=loose) == []

    return holds


@pytest.mark.parametrize(
    ("kinds", "loose"),
    [
        (PLAIN, False),
        ((*PLAIN, *MODULES), False),
        ((*PLAIN, *MODULES, *THREADS), False),
        ((*PLAIN, *MODULES, *WRAPPERS), True),
    ],
    ids=["memory", "modules", "threads", "wrappers"],
)
def test_any_program_gives_the_graph_that_its_kernels_allow(kinds, loose):
    law(kinds, loose=loose)()


def test_the_kernels_of_any_operation_are_linked_as_the_log_allows():
    law((*PLAIN, *MODULES), loose=False, bodies=True)()


def test_any_step_gives_the_graph_that_its_kernels_allow():
    law((*PLAIN, *MODULES), loose=True, run=step)()


# -- the log refuses wrong graphs ------------------------------------------------------------


class Sample(nn.Module):
    """A write through a view, of which another view is read, in a part that is called twice."""

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(4, 4)

    def attach(self, log):
        pass

    def forward(self, x, y):
        whole = self.part(x * 2)
        left, right = whole[:2], whole[1:]
        left.mul_(3)
        whole = whole + 1
        whole.add_(y)
        return self.part(right).sum() + whole, left


def sample():
    """Give the faults of a graph of `Sample` after a change, as a function of the change."""
    model = Sample()
    log, graph = logged(model), traced(model)

    def found(change):
        nodes = {node.op: node for node in graph.nodes if node.kind == "op"}
        change(nodes, {str(scope): scope for scope in graph.scopes()})
        return faults(log, graph, model, loose=False)

    return found


def lose_an_input(nodes, scopes):
    nodes["mul_"].inputs.clear()


def lose_a_control_edge(nodes, scopes):
    last = nodes["linear"]
    assert last.control_inputs == [nodes["mul_"]]
    last.control_inputs.clear()


def add_a_control_edge(nodes, scopes):
    nodes["linear"].control_inputs.append(nodes["add_"])


def read_the_value_before_a_write(nodes, scopes):
    """Let the last sum read the tensor as it was before `add_`."""
    last, write = nodes["add"], nodes["add_"]
    last.inputs[last.inputs.index(write.outputs[0])] = write.inputs[0]


def read_another_view(nodes, scopes):
    nodes["linear"].inputs[0] = nodes["mul_"].outputs[0]


def move_to_the_other_call(nodes, scopes):
    nodes["linear"].scope = scopes["Sample/Linear[part]"]


def move_out_of_the_call(nodes, scopes):
    nodes["linear"].scope = scopes["Sample"]


def lose_a_kernel(nodes, scopes):
    nodes["mul_"].kernels.pop()


def lose_the_last_node(nodes, scopes):
    nodes["add"].kernels.clear()


def repeat_a_kernel(nodes, scopes):
    nodes["linear"].kernels *= 2


def test_the_log_accepts_the_graph_of_a_trace():
    assert sample()(lambda nodes, scopes: None) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lose_an_input, "does not depend on the write of"),
        (lose_a_control_edge, "does not depend on the write of"),
        (add_a_control_edge, "for no reason"),
        (read_the_value_before_a_write, "does not depend on the write of"),
        (read_another_view, "reads an old or wrong value of"),
        (move_to_the_other_call, "is in the scope of another call"),
        (move_out_of_the_call, "ran in 'part'"),
        (lose_a_kernel, "is recorded as"),
        (lose_the_last_node, "on one side only"),
        (repeat_a_kernel, "is recorded as"),
    ],
)
def test_the_log_refuses_a_wrong_graph(change, fault):
    assert any(fault in each for each in sample()(change))


class Normalize(nn.Module):
    """One operation of several kernels."""

    def attach(self, log):
        pass

    def forward(self, x, y):
        return (nn.functional.normalize(x, dim=1),)


def test_the_log_refuses_a_body_whose_kernels_are_not_linked():
    model = Normalize()
    log, graph = logged(model, bodies=True), traced(model, bodies=True)
    assert faults(log, graph, model, loose=False) == []
    (node,) = (node for node in graph.nodes if node.kernels)
    node.body.nodes[-1].inputs.clear()
    assert any("does not depend on" in each for each in faults(log, graph, model, loose=False))
