"""Arguments and results as text: no address and no order of a process is in a graph."""

import copy
import functools
import io
import os
import pickle
import re
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import tbscope
from tbscope.ir.graph import Constant
from tbscope.sources.torch.calling.argument_values import ArgumentConverter

ADDRESS = re.compile(r"0x[0-9a-f]{6,}|\d{11,}")


class Thing:
    """Shown by its address, as any object whose class has no `repr`."""


class Numbered:
    def __repr__(self):
        return f"Numbered({id(self)})"


@dataclass
class Holder:
    thing: object


class Told(nn.Module):
    """Takes anything, and tells of what has an address."""

    def forward(self, x, *args, **kwargs):
        return x * 2, *args

    def extra_repr(self):
        return f"thing={Thing()}, n=3, names={ {'b', 'a', 'c'} }, act={self.forward}, f={len}"


class Net(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.l, self.told, self.work = nn.Linear(4, 4), Told(), work

    def forward(self, x):
        return self.work(self, x)


def _saved_and_loaded(tensor):
    file = io.BytesIO()
    torch.save({"x": tensor}, file)
    file.seek(0)
    return torch.load(file)["x"]


def _rebuilt(tensor):
    function, args = tensor.__reduce_ex__(2)[:2]
    return function(*args)


def _given(net, x):
    things = Thing(), Numbered(), {"b", "a"}, {Thing(): 1, Numbered(): 2, id(x): 3}, io.BytesIO()
    more = (number for number in [1]), iter([1]), threading.Lock(), functools.partial(print, x)
    return net.told(x, *things, *more, slice(Thing()), k=Holder(Thing()), f=lambda: 1)[0]


def _named(net, x):
    return {Thing(): net.l(x), (Thing(), 1): x * 2, id(net): x * 3, x: x * 4}


WORK = {
    "deepcopy of a dict": lambda net, x: copy.deepcopy({"a": x, "b": [x + 1, x]})["b"][0] + 1,
    "deepcopy of a tensor": lambda net, x: net.l(copy.deepcopy(x, {})),
    "deepcopy by hand": lambda net, x: net.l(x.__deepcopy__({})),
    "deepcopy of a module": lambda net, x: copy.deepcopy(net.l)(x),
    "copy": lambda net, x: net.l(copy.copy(x)),
    "pickle": lambda net, x: net.l(pickle.loads(pickle.dumps(x))),
    "save": lambda net, x: net.l(_saved_and_loaded(x)),
    "reduce": lambda net, x: net.l(_rebuilt(x)),
    "vmap": lambda net, x: torch.vmap(functools.partial(torch.add, x[0]))(x),
    "apply_": lambda net, x: x.clone().apply_(lambda value: value * 2),
    "arguments": _given,
    "keys": _named,
}


def texts(name):
    graph = tbscope.trace(Net(WORK[name]), torch.ones(2, 4))
    calls = [(call.arguments, call.results, call.hyperparameters) for call in graph.calls]
    return f"{graph}\n{calls}\n{tbscope.to_graph_def(graph)}"


@pytest.mark.parametrize("name", WORK)
def test_no_address_is_in_a_graph(name):
    assert ADDRESS.findall(texts(name)) == []


def test_two_processes_tell_the_same():
    script = f"from {__name__} import *; print([texts(name) for name in WORK])"
    # This process has another one, or one by chance.
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"

    told = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert told == f"{[texts(name) for name in WORK]}\n"


def test_the_error_that_ends_a_partial_graph_has_no_address():
    def work(net, x):
        raise ValueError(f"no such thing: {Thing()}")

    graph = tbscope.trace(Net(work), torch.ones(2, 4), partial=True)

    texts = str([graph.notes, [node.attributes for node in graph.nodes], graph])
    assert "no such thing" in texts
    assert ADDRESS.findall(texts) == []


def test_a_deep_copy_reads_its_tensor_alone_and_writes_nothing():
    def work(net, x):
        first, second = copy.deepcopy([x, x + 1])
        return net.l(first) + second

    graph = tbscope.trace(Net(work), torch.ones(2, 4))

    copies = [node for node in graph.nodes if node.op == "deepcopy"]
    assert [len(node.inputs) for node in copies] == [1, 1]
    assert [(len(node.outputs), node.writes) for node in copies] == [(1, ()), (1, ())]
    assert [node.kind for node in graph.nodes if node.kind == "constant"] == []


def test_a_deep_copy_that_its_memo_holds_is_no_operation():
    def work(net, x):
        memo = {}
        x.__deepcopy__(memo)
        return net.l(x.__deepcopy__(memo))

    graph = tbscope.trace(Net(work), torch.ones(2, 4))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["deepcopy", "linear"]


def nest(given):
    return ArgumentConverter(lambda tensor: tuple(tensor.shape)).nest(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({Thing(): 1, "a": 2}, {"0": 1, "a": 2}),
        ({"1": 1, Thing(): 2}, {"1": 1, "1.1": 2}),
        ({2**32: 1, 2**32 - 1: 2}, {"0": 1, "4294967295": 2}),
        ({("u", "to", "v"): 1, ("u", Thing()): 2}, {"u,to,v": 1, "1": 2}),
        ({torch.ones(2): 1, torch.float32: 2, None: 3}, {"0": 1, "torch.float32": 2, "None": 3}),
        (slice(Thing(), 2), Constant("<Thing>:2")),
        (slice(1, None, Holder(Thing())), Constant("1::<Holder>")),
    ],
)
def test_a_key_has_its_text_or_its_place(given, told):
    assert nest(given) == told
