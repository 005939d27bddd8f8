"""Each public function is given some hundred values that nobody means, for each of its parameters.

It takes the value, or says in one error of tbscope's what it was given, why that is none, and
what to do. `TAKES` tells which values a parameter takes: one that is taken silently is a fault.
"""

import torch
from bad_values import GRAPH
from torch import nn

import tbscope

MOST_TEXT = 3000
X = torch.ones(1, 2)


class Net(nn.Module):
    """A model that is given one input, and may be given another."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x, scale=1):
        return self.fc(x) * scale


NET = Net()


class Sink:
    """Takes events, and forgets them."""

    def add_event(self, event):
        event.SerializeToString()

    def get_logdir(self):
        return ""


def _traced(name):
    return lambda value: tbscope.trace(NET, X, **{name: value})


def _added(name):
    return lambda value: tbscope.add_graph(Sink(), NET, X, **{name: value})


def _made(name):
    return lambda value: tbscope.add_graph(Sink(), GRAPH, **{name: value})


def _overlaid(name):
    return lambda value: tbscope.add_overlay(Sink(), "flops", GRAPH, **{name: value})


def _drawn(name):
    return lambda value: tbscope.to_graph_def(GRAPH, **{name: value})


def _summed(name):
    return lambda value: GRAPH.summary(**{name: value})


def _recorded(method):
    def call(value):
        with tbscope.record() as recording:
            getattr(recording, method)(named=value)
        return recording.graph

    return call


RUNNING = ("kwargs", "training", "grad", "fake", "partial", "profile", "input_size", "dtypes")
PLACING = ("tag", "step", "run_name")
DRAWING = tuple(tbscope.Drawing.__annotations__)

CALLS = {
    "trace(model)": lambda value: tbscope.trace(value, X),
    "trace(input_to_model)": lambda value: tbscope.trace(NET, value),
    **{f"trace({name})": _traced(name) for name in (*RUNNING, "kernels")},
    "add_graph(writer)": lambda value: tbscope.add_graph(value, NET, X),
    "add_graph(model)": lambda value: tbscope.add_graph(Sink(), value, X),
    "add_graph(input_to_model)": lambda value: tbscope.add_graph(Sink(), NET, value),
    **{
        f"add_graph({name})": _added(name)
        for name in ("verbose", "use_strict_trace", "on_error", *RUNNING, *PLACING, *DRAWING)
    },
    "add_graph(graph, input_to_model)": lambda value: tbscope.add_graph(Sink(), GRAPH, value),
    **{f"add_graph(graph, {name})": _made(name) for name in RUNNING},
    "add_overlay(writer)": lambda value: tbscope.add_overlay(value, "flops", GRAPH),
    "add_overlay(tag)": lambda value: tbscope.add_overlay(Sink(), value, GRAPH, "flops"),
    "add_overlay(graph)": lambda value: tbscope.add_overlay(Sink(), "flops", value),
    **{
        f"add_overlay({name})": _overlaid(name)
        for name in ("values", "on_error", "step", "run_name", *DRAWING)
    },
    "add_overlay(values key)": lambda value: tbscope.add_overlay(Sink(), "t", GRAPH, {value: 1}),
    "add_overlay(values number)": lambda value: tbscope.add_overlay(
        Sink(), "t", GRAPH, {"weight": value}
    ),
    "add_overlay(values gives)": lambda value: tbscope.add_overlay(
        Sink(), "t", GRAPH, lambda _: value
    ),
    "to_graph_def(graph)": tbscope.to_graph_def,
    **{f"to_graph_def({name})": _drawn(name) for name in DRAWING},
    "to_graph_def(style gives)": lambda value: tbscope.to_graph_def(GRAPH, style=lambda _: value),
    "to_graph_def(color_by gives)": lambda value: tbscope.to_graph_def(
        GRAPH, color_by=lambda _: value
    ),
    "to_graph_def(color_by label)": lambda value: tbscope.to_graph_def(
        GRAPH, color_by={"weight": value}
    ),
    "to_graph_def(keep entry)": lambda value: tbscope.to_graph_def(GRAPH, keep=[value]),
    "verify(graph)": tbscope.verify,
    "node_costs(graph)": tbscope.node_costs,
    "node_costs(backward)": lambda value: tbscope.node_costs(GRAPH, backward=value),
    "scope_costs(graph)": tbscope.scope_costs,
    "scope_costs(costs)": lambda value: tbscope.scope_costs(GRAPH, value),
    "graph_costs(graph)": tbscope.graph_costs,
    "graph_costs(costs)": lambda value: tbscope.graph_costs(GRAPH, value),
    "Summary(graph)": tbscope.Summary,
    **{
        f"Graph.summary({name})": _summed(name) for name in ("depth", "columns", "per_call", "fold")
    },
    "Graph.summary(column)": lambda value: GRAPH.summary(columns=[value]),
    "Graph.find(name)": GRAPH.find,
    "Graph.find_calls(name)": GRAPH.find_calls,
    "Graph.scope_path(node)": GRAPH.scope_path,
    "lint(graph_def)": tbscope.lint,
    "parse_scope_path(text)": tbscope.parse_scope_path,
    "print_scope_path(parts)": tbscope.print_scope_path,
    "print_scope_path(part)": lambda value: tbscope.print_scope_path((value,)),
    "scope(name)": tbscope.scope,
    "scope()(function)": tbscope.scope("loss"),
    "push_scope(name)": tbscope.push_scope,
    "pop_scope(name)": tbscope.pop_scope,
    "record(model)": tbscope.record,
    "record(named=)": lambda value: tbscope.record(named=value),
    "Recording(models)": tbscope.Recording,
    "Recording(named_models)": lambda value: tbscope.Recording((), value),
    "Recording.input": _recorded("input"),
    "Recording.output": _recorded("output"),
}
