"""Each public function is given some hundred values that nobody means, for each of its parameters.

It takes the value, or says in one error of tbscope's what it was given, why that is none, and
what to do. `OF_OPTIONS` and `OF_CALLS` tell which values a parameter takes: one that is taken
silently is a fault.
"""

import inspect
import tempfile

import pytest
import torch
from bad_values import GRAPH, MAKE
from onnx_build import FLOAT, info, model_of, node
from torch import nn

import tbscope
from tbscope.analysis.summary import Summary
from tests.sweeps import sampled

MOST_TEXT = 5000
X = torch.ones(1, 2)


class Net(nn.Module):
    """A model that is given one input, and may be given another."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x, scale=1):
        return self.fc(x) * scale


NET = Net()
SCRIPT = torch.jit.trace(nn.Linear(2, 2), X)
LINEAR = [("", "nets.Net"), ("fc", "torch.nn.modules.linear.Linear")]
ONNX = model_of(
    [node("Relu", ["x"], ["y"], levels=LINEAR)], [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
)


class Sink:
    """Takes events, and forgets them."""

    def add_event(self, event):
        event.SerializeToString()

    def get_logdir(self):
        return ""


def _awaited(name):
    return lambda value: tbscope.watch(Sink(), nn.Linear(2, 2), **{name: value})


def _further(name):
    """Give what an option needs beside it."""
    return {"loss": torch.sum} if name == "backward" else {}


def _traced(name):
    return lambda value: tbscope.trace(NET, X, **_further(name), **{name: value})


def _added(name):
    return lambda value: tbscope.add_graph(Sink(), NET, X, **_further(name), **{name: value})


def _made(name):
    return lambda value: tbscope.add_graph(Sink(), GRAPH, **{name: value})


def _overlaid(name):
    return lambda value: tbscope.add_overlay(Sink(), "flops", GRAPH, **{name: value})


def _drawn(name):
    return lambda value: tbscope.to_graph_def(GRAPH, **{name: value})


def _summed(name):
    return lambda value: GRAPH.summary(**{name: value})


def _compared(name):
    return lambda value: tbscope.diff(NET, NET, X, **{name: value})


def _checked(name):
    return lambda value: tbscope.check(NET, X, max_flops="1G", **{name: value})


def _captured(name):
    return lambda value: tbscope.compile_graphs(NET, X, **{name: value})


def _standing(name):
    def call(value):
        try:
            tbscope.install(**{name: value})
        finally:
            tbscope.uninstall()

    return call


def _in_block(name):
    def call(value):
        with tbscope.installed(**{name: value}):
            pass

    return call


def _regrouped(name):
    return lambda value: tbscope.modules_to_functions(ONNX, **{name: value})


def _saved(suffix, name):
    def call(value):
        with tempfile.TemporaryDirectory() as folder:
            GRAPH.save(f"{folder}/graph{suffix}", **{name: value})

    return call


def _recorded(method):
    def call(value):
        with tbscope.record() as recording:
            getattr(recording, method)(named=value)
        return recording.graph

    return call


def _in_world(*args, **kwargs):
    with tbscope.fake_world(*args, **kwargs):
        return torch.distributed.get_rank()


RUNNING = (
    *("kwargs", "training", "grad", "loss", "backward", "fake", "partial", "profile"),
    *("input_size", "dtypes"),
)
WORLD = ("world_size", "rank", "mesh", "parallelize")
COMPARING = ("kwargs", "training", "fake", "input_size", "dtypes")
GATHERING = ("ranks", "ranks_timeout")
PLACING = ("tag", "step", "run_name")
DRAWING = tuple(tbscope.Drawing.__annotations__)
# The others take what only a graph shows to be none: names, patterns, functions.
WITHOUT_GRAPH = ("root", "level", "leaves", "dead", "templates", "cards", "helpers")

CALLS = {
    "trace(model)": lambda value: tbscope.trace(value, X),
    "trace(input_to_model)": lambda value: tbscope.trace(NET, value),
    **{f"trace({name})": _traced(name) for name in (*RUNNING, *WORLD, "kernels")},
    "trace(input_size alone)": lambda value: tbscope.trace(NET, input_size=value),
    "trace(dtypes of input_size)": lambda value: tbscope.trace(
        NET, input_size=(1, 2), dtypes=value
    ),
    "fake_world(world_size)": _in_world,
    "fake_world(rank)": lambda value: _in_world(4, rank=value),
    "fake_world(mesh)": lambda value: _in_world(4, mesh=value),
    "add_graph(writer)": lambda value: tbscope.add_graph(value, NET, X),
    "add_graph(model)": lambda value: tbscope.add_graph(Sink(), value, X),
    "add_graph(input_to_model)": lambda value: tbscope.add_graph(Sink(), NET, value),
    **{
        f"add_graph({name})": _added(name)
        for name in (
            *("verbose", "use_strict_trace", "on_error", *GATHERING),
            *(*RUNNING, *WORLD, *PLACING, *DRAWING),
        )
    },
    "add_graph(graph, input_to_model)": lambda value: tbscope.add_graph(Sink(), GRAPH, value),
    **{f"add_graph(graph, {name})": _made(name) for name in (*RUNNING, *WORLD)},
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
    "load(thing)": tbscope.load,
    "diff(before)": lambda value: tbscope.diff(value, NET, X),
    "diff(after)": lambda value: tbscope.diff(NET, value, X),
    "diff(input_to_model)": lambda value: tbscope.diff(NET, NET, value),
    **{f"diff({name})": _compared(name) for name in COMPARING},
    "check(model)": lambda value: tbscope.check(value, X, max_flops="1G"),
    "check(input_to_model)": lambda value: tbscope.check(NET, value, max_flops="1G"),
    **{
        f"check({name})": _checked(name)
        for name in (
            *("pin", "update", "max_parameters", "max_activation_bytes", "no_op"),
            *COMPARING,
        )
    },
    "check(max_flops)": lambda value: tbscope.check(NET, X, no_op="view", max_flops=value),
    "check(no_op entry)": lambda value: tbscope.check(NET, X, no_op=[value]),
    "from_export(program)": tbscope.from_export,
    "from_fx(graph_module)": tbscope.from_fx,
    "from_torchscript(script)": tbscope.from_torchscript,
    "from_torchscript(input)": lambda value: tbscope.from_torchscript(SCRIPT, value),
    "compile_graphs(model)": lambda value: tbscope.compile_graphs(value, X),
    **{
        f"compile_graphs({name})": _captured(name)
        for name in ("dynamic", "fullgraph", "training", "grad")
    },
    "compile_backend(backend)": tbscope.compile_backend,
    "from_graph_def(graph_def)": tbscope.from_graph_def,
    "read_log(path)": tbscope.read_log,
    "Graph.save(path)": GRAPH.save,
    "Graph.save(depth)": _saved(".dot", "depth"),
    **{f"Graph.save({name})": _saved(".pb", name) for name in DRAWING},
    "costs(graph)": tbscope.costs,
    "costs(backward)": lambda value: tbscope.costs(GRAPH, backward=value),
    "Summary(graph)": Summary,
    **{f"Graph.summary({name})": _summed(name) for name in ("depth", "columns", "fold")},
    "Graph.summary(column)": lambda value: GRAPH.summary(columns=[value]),
    "Graph.find(name)": GRAPH.find,
    "Graph.find_calls(name)": GRAPH.find_calls,
    "lint(graph_def)": tbscope.lint,
    "Scope.parse(text)": tbscope.Scope.parse,
    "scope(name)": tbscope.scope,
    "scope()(function)": tbscope.scope("loss"),
    "push_scope(name)": tbscope.push_scope,
    "pop_scope(name)": tbscope.pop_scope,
    "record(model)": tbscope.record,
    "record(named=)": lambda value: tbscope.record(named=value),
    "record(backward)": lambda value: tbscope.record(backward=value),
    **{f"install({name})": _standing(name) for name in ("on_error", *WITHOUT_GRAPH)},
    **{f"installed({name})": _in_block(name) for name in ("on_error", *WITHOUT_GRAPH)},
    "record(steps)": lambda value: tbscope.record(steps=value),
    "watch(writer)": lambda value: tbscope.watch(value, nn.Linear(2, 2)),
    "watch(model)": lambda value: tbscope.watch(Sink(), value),
    **{
        f"watch({name})": _awaited(name)
        for name in (
            *("every", "optimizer", "all_ranks", "backward", "tag", "run_name"),
            *("ranks", "ranks_timeout"),
        )
    },
    "merge_ranks(graphs)": tbscope.merge_ranks,
    "merge_ranks(graph)": lambda value: tbscope.merge_ranks([GRAPH, value]),
    "merge_ranks(unfolded)": lambda value: tbscope.merge_ranks([GRAPH], unfolded=value),
    "from_onnx(path_or_proto)": tbscope.from_onnx,
    "modules_to_functions(onnx_model)": tbscope.modules_to_functions,
    **{
        f"modules_to_functions({name})": _regrouped(name)
        for name in ("modules", "domain", "record")
    },
    "modules_to_functions(modules entry)": lambda value: tbscope.modules_to_functions(
        ONNX, ["fc", value]
    ),
    "export_onnx(model)": lambda value: tbscope.export_onnx(value, domain=""),
    "record.input": _recorded("input"),
    "record.output": _recorded("output"),
}
"""Calls each public function with one value, by function and parameter."""

TRUTHS = {"True", "False"}
LISTS = {"list", "tuple"}
WORDS = {"blank", "word", "eval", "no", "number as text", "percent", "bracket", "pattern"}
TEXTS = {*WORDS, "slash", "slashes", "dots", "NUL", "newline", "emoji", "300 characters"}
TAGS = TEXTS - {"blank", "NUL", "newline"}
ANY_TEXT = {*TEXTS, "empty text", "surrogate", "256 KB"}
GRAPHS = {"graph", "empty graph"}
GIVING_FUNCTIONS = {"function of None", "function of text", "function of 256 KB"}
FUNCTIONS = {
    *GIVING_FUNCTIONS,
    *("lambda", "raising function", "function of itself", "raises mutely", "no call"),
    "no getattr of what is called",
}
CLASSES = {
    *("object class", "int class", "str class", "module class", "Graph class", "writer class"),
    "mute class",
}
HALF = {"module list", "bare module"}
NATURALS = {"0", "1", "3", "2**31", "2**53", "2**63-1", "2**63"}
COUNTS = {*NATURALS, "10**5000", "number as text"}
PATTERNS = {*ANY_TEXT - {"empty text"}, "numpy text", "Text"}
NUMBERS = {*NATURALS, *TRUTHS, "0.0", "1.0", "0.5"}
NUMBERS_OF_OTHERS = {
    *("numpy int", "numpy float", "numpy bool", "numpy scalar array", "scalar tensor"),
    "truth tensor",
}
TENSORS = {
    *("tensor", "scalar tensor", "truth tensor", "empty tensor", "meta tensor", "meta scalar"),
    *("sparse tensor", "parameter"),
}


def each(names, taken):
    return dict.fromkeys(names, taken)


OF_OPTIONS = {
    **each(("grad", "fake", "partial", "kernels", "verbose"), TRUTHS),
    **each(("templates", "cards", "fold", "backward", "all_ranks"), TRUTHS),
    **each(("training", "root"), {"None", *TRUTHS}),
    "fullgraph": TRUTHS,
    "dynamic": {"None", *TRUTHS},
    "stage": set(),
    **each(("input_size", "dtypes", "values", "run_name"), {"None"}),
    **each(("style", "labels", "level", "leaves", "dead", "helpers", "on_error"), set()),
    **each(("keep", "hide"), {*LISTS, "set", "frozenset"}),
    "kwargs": {"None", "dict"},
    "loss": {"None", "function of itself", "module"},
    "world_size": {"None", "1", "3"},
    "rank": {"0"},
    "mesh": {"None"},
    "parallelize": {"None"},
    "unfolded": TRUTHS,
    # One process has no others.
    "ranks": set(),
    "ranks_timeout": {"1", "3", "1.0", "0.5"},
    "every": {"None", "1", "3", "2**31", "2**53", "2**63-1", "2**63", "10**5000"},
    "steps": {"None", "1", "3", "2**31", "2**53", "2**63-1", "2**63", "10**5000"},
    "optimizer": {"None"},
    "profile": {*TRUTHS, "1", "3"},
    "use_strict_trace": set(MAKE),
    "tag": {"None", "numpy text", "Text", *TAGS},
    "step": {"None", "0", "1", "3", "2**31", "2**53"},
    "color_by": {"None", "dict", *GIVING_FUNCTIONS},
    "depth": {"None", "10**5000", *NATURALS},
    "columns": {"None", *LISTS},
}
"""Which values each option takes; the others are refused."""

OF_CALLS = {
    "fake_world(world_size)": {"1", "3"},
    "fake_world(rank)": {"0", "1", "3"},
    "fake_world(mesh)": {"None"},
    "watch(model)": {"module", *HALF},
    "watch(run_name)": {
        "None",
        *TEXTS - {"blank", "slash", "slashes", "dots", "NUL", "newline", "300 characters"},
    },
    **each(
        ("trace(model)", "add_graph(model)"),
        {"module", "function of itself", *GIVING_FUNCTIONS},
    ),
    **each(
        ("diff(before)", "diff(after)"),
        {"module", "function of itself", *GIVING_FUNCTIONS, *GRAPHS},
    ),
    "check(model)": {"module", "function of itself", *GIVING_FUNCTIONS},
    "check(pin)": {"None"},
    "check(update)": {"False"},
    **each(
        ("check(max_parameters)", "check(max_flops)", "check(max_activation_bytes)"),
        {"None", *COUNTS},
    ),
    "check(no_op)": {*LISTS, "list of texts", "list of surrogates", *PATTERNS},
    "check(no_op entry)": PATTERNS,
    **each(
        ("diff(input_to_model)", "check(input_to_model)"), {"tensor", "sparse tensor", "parameter"}
    ),
    **each(
        ("trace(input_to_model)", "add_graph(input_to_model)"),
        {"tensor", "sparse tensor", "parameter"},
    ),
    **{f"add_graph(graph, {name})": {"False"} for name in RUNNING},
    **{f"add_graph(graph, {name})": {"None"} for name in WORLD if name != "rank"},
    "add_graph(graph, rank)": {"0"},
    **{
        f"add_graph(graph, {name})": {"None"} for name in ("kwargs", "input_size", "dtypes", "loss")
    },
    "trace(input_size alone)": {"list of numbers"},
    "trace(dtypes of input_size)": {"None", "dict", "list of None"},
    "add_graph(graph, input_to_model)": {"None"},
    "add_overlay(tag)": {"numpy text", "Text", *TAGS},
    "add_overlay(graph)": {"graph"},
    "add_overlay(values key)": {"empty text", "number as text", "node", "call", "scope"},
    **each(
        ("add_overlay(values number)", "add_overlay(values gives)"),
        {*NUMBERS, *NUMBERS_OF_OTHERS},
    ),
    **each(("to_graph_def(graph)", "costs(graph)", "Summary(graph)", "load(thing)"), GRAPHS),
    "to_graph_def(style gives)": {
        *(WORDS - {"blank", "percent"}),
        *("empty text", "dots", "300 characters"),
    },
    "to_graph_def(color_by gives)": {"None", *ANY_TEXT},
    "to_graph_def(color_by label)": {
        *ANY_TEXT,
        *NUMBERS,
        *("-1", "-0.5", "10**5000", "nan", "inf"),
    },
    "compile_graphs(model)": {"module"},
    "compile_graphs(grad)": TRUTHS,
    # Whether it compiles shows when a model runs.
    "compile_backend(backend)": {*FUNCTIONS, *CLASSES},
    "Graph.find(name)": {"empty text", "number as text"},
    "Graph.find_calls(name)": {"numpy text", "Text", *ANY_TEXT},
    "from_torchscript(input)": TENSORS,
    "Scope.parse(text)": {"numpy text", "Text", *(ANY_TEXT - {"dots", "bracket", "pattern"})},
    **each(("scope(name)", "push_scope(name)"), ANY_TEXT - {"empty text"}),
    "pop_scope(name)": {"None", *ANY_TEXT},
    "scope()(function)": {*FUNCTIONS, *CLASSES, *HALF, "module", "half a module"},
    **each(("record(model)", "record(named=)"), {"module", *HALF}),
    **each(("record.input", "record.output"), TENSORS),
    "modules_to_functions(modules)": {
        *("None", "module class"),
        # The model itself has no name.
        *("empty text", "list of empty"),
    },
    "modules_to_functions(modules entry)": {*CLASSES, *ANY_TEXT, "numpy text", "Text"},
    "modules_to_functions(domain)": {
        *(WORDS - {"blank", "percent", "bracket", "pattern"}),
        *("numpy text", "Text"),
    },
    "modules_to_functions(record)": {"None"},
}
"""Which values a parameter takes that is no option."""


RUNS_WITH = {
    *(
        "before)",
        "after)",
        "model)",
        "input_to_model)",
        "kwargs)",
        "input_size)",
        "input_size alone)",
    ),
    "dtypes of input_size)",
}
"""What a model may raise at; the other parameters are refused before it runs."""


READING_LOGS = (
    *("load(thing)", "read_log(path)", "add_graph(model)"),
    *("diff(before)", "diff(after)", "check(model)"),
)
DIRECTORIES = ("slash", "dots")
"""These are directories, and whether there are logs in them is a matter of the machine."""


def taken_by(call):
    option = call.partition("(")[2].rstrip(")")
    return OF_CALLS.get(call, OF_OPTIONS.get(option, set()))


def outcome(call, label):
    """Give "" for a value that is taken, or refused as it should be; else what is wrong."""
    value = MAKE[label]()
    if call == "add_overlay(values key)" and not is_hashable(value):
        return ""
    if call in READING_LOGS and label in DIRECTORIES:
        return ""
    try:
        CALLS[call](value)
    except tbscope.TbscopeError as error:
        if label in taken_by(call):
            return f"{label} is refused: {error}"
        return fault_of(error, call, label)
    except Exception as error:  # noqa: BLE001  That is what is looked for.
        return f"{label} raises {type(error).__name__}"
    return "" if label in taken_by(call) else f"{label} is taken"


def fault_of(error, call, label):
    text = str(error)
    text.encode()
    if isinstance(error, tbscope.TraceError) and not RUNS_WITH.intersection(call.split("(")[1:]):
        return f"{label} reaches the model: {text}"
    if not (error.what and error.why and error.fix):
        return f"{label} is refused without all three parts: {text}"
    if len(text) > MOST_TEXT:
        return f"{label} is refused in {len(text)} characters"
    # What a model raised is told in its own words.
    told = isinstance(error, tbscope.TraceError) or tells(call, text, MAKE[label]())
    return "" if told else f"{label} is refused and not told: {text}"


def tells(call, text, value):
    """Tell whether a message shows a value, or what it holds, or names its class or the option."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        held = [*value, *(value.values() if isinstance(value, dict) else ())][:20]
        if not held or any(start_of(entry) in text for entry in held):
            return True
    names = [type(value).__name__]
    if callable(value):
        names.append(call.partition("(")[2].rstrip(")"))
    if isinstance(value, tbscope.Graph):
        names.append(value.name)
    if inspect.isclass(value) or inspect.isfunction(value):
        names.append(value.__name__.strip("<>"))
    if gives_something(value):
        names.append(start_of(value(None)))
    return start_of(value) in text or any(name in text for name in names)


def gives_something(value):
    """Tell whether a value is one of the functions that give something."""
    return inspect.isfunction(value) and value.__code__.co_argcount == 1


def start_of(value):
    """Give how the text of a value begins; its class, where it has no text."""
    try:
        return repr(value[:10] if isinstance(value, str | bytes) else value)[:10].rstrip("'\"")
    except Exception:  # noqa: BLE001  Some values raise whatever is done with them.
        return type(value).__name__


def is_hashable(value):
    try:
        hash(value)
    except Exception:  # noqa: BLE001  As above.
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS)
def test_a_value_that_nobody_means_is_refused_in_words(call):
    # Calls check their values by few functions: each call takes each third value in turn.
    labels = sampled(MAKE, [*MAKE][[*CALLS].index(call) % 3 :: 3])
    assert [wrong for label in labels if (wrong := outcome(call, label))] == []


def test_the_table_asks_every_public_function():
    asked = {call.partition("(")[0].partition(".")[0] for call in CALLS}
    functions = {
        name
        for name in tbscope.__all__
        if inspect.isfunction(found := getattr(tbscope, name))
        and inspect.signature(found).parameters
    }
    assert functions | {"scope", "Scope", "Summary", "record", "compile_backend"} <= asked


def test_the_table_asks_every_option():
    for function in (tbscope.trace, tbscope.add_graph, tbscope.add_overlay, tbscope.to_graph_def):
        for name in inspect.signature(function).parameters:
            assert f"{function.__name__}({name})" in CALLS
