"""Values that nobody means: what the table of bad values gives to every public function."""

import threading
from collections import UserDict, deque
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import tbscope


class RefusalError(Exception):
    """What objects raise that refuse to be asked."""


def _refuse(*_, **__):
    raise RefusalError("not to be asked")


def refusing(*names):
    """Make a class whose objects raise in each of these methods."""
    return type("Refusing" + "".join(names).replace("_", ""), (), dict.fromkeys(names, _refuse))


class MuteError(Exception):
    """An error that cannot be printed."""

    __str__ = __repr__ = _refuse


class Text(str):
    """A text that cannot be printed or compared."""

    __slots__ = ()
    __repr__ = __str__ = __eq__ = _refuse
    __hash__ = str.__hash__


class Lookup(UserDict):
    """A mapping that lets nobody look."""

    __getitem__ = __iter__ = keys = items = _refuse


def _exhausted():
    each = (text for text in ("view",))
    next(each)
    return each


def _circle():
    circle = []
    circle.append(circle)
    return circle


def _deep():
    deep = ()
    for _ in range(5000):
        deep = (deep,)
    return deep


GRAPH = tbscope.trace(nn.Linear(2, 2), torch.ones(1, 2))

MAKE = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "3": lambda: 3,
    "2**31": lambda: 2**31,
    "2**53": lambda: 2**53,
    "2**63-1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "10**5000": lambda: 10**5000,
    "0.0": lambda: 0.0,
    "1.0": lambda: 1.0,
    "0.5": lambda: 0.5,
    "-0.5": lambda: -0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "Decimal": lambda: Decimal("1.5"),
    "empty text": lambda: "",
    "blank": lambda: " ",
    "word": lambda: "nonsense",
    "eval": lambda: "eval",
    "no": lambda: "no",
    "number as text": lambda: "1",
    "slash": lambda: "/",
    "slashes": lambda: "a//b",
    "dots": lambda: "..",
    "NUL": lambda: "a\0b",
    "newline": lambda: "a\nb",
    "surrogate": lambda: "a\ud800b",
    "emoji": lambda: "\N{SNOWMAN}",
    "300 characters": lambda: "n" * 300,
    "256 KB": lambda: "m" * 2**18,
    "percent": lambda: "%s {0} %(x)d",
    "bracket": lambda: "Net/Linear[0",
    "pattern": lambda: "[",
    "bytes": lambda: b"view",
    "256 KB of bytes": lambda: b"\xff" * 2**18,
    "bytearray": lambda: bytearray(b"x"),
    "memoryview": lambda: memoryview(b"x"),
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "list of None": lambda: [None],
    "list of numbers": lambda: [1, 2],
    "list of texts": lambda: ["nonsense"],
    "list of surrogates": lambda: ["a\ud800b"],
    "list of empty": lambda: [""],
    "list of lists": lambda: [[]],
    "size": lambda: (1, 3, 8, 8),
    "long list": lambda: [0] * 10**4,
    "circle": _circle,
    "deep": _deep,
    "dict of text": lambda: {"nonsense": "x"},
    "dict of numbers": lambda: {1: 2},
    "dict of None": lambda: {None: None},
    "dict of surrogates": lambda: {"a\ud800b": 1},
    "Lookup": Lookup,
    "range": lambda: range(3),
    "slice": lambda: slice(1),
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "iterator": lambda: iter([]),
    "generator": lambda: (text for text in ("view",)),
    "exhausted": _exhausted,
    "map": lambda: map(_refuse, [1]),
    "object": object,
    "object class": lambda: object,
    "int class": lambda: int,
    "str class": lambda: str,
    "module class": lambda: nn.Linear,
    "Graph class": lambda: tbscope.Graph,
    "writer class": lambda: tbscope.SummaryWriter,
    "exception": lambda: ValueError("x"),
    "mute exception": MuteError,
    "mute class": lambda: MuteError,
    "module of Python": lambda: np,
    "namespace": SimpleNamespace,
    "path": lambda: Path("nowhere"),
    "lock": threading.Lock,
    "open file": lambda: open("/dev/null"),  # noqa: SIM115
    "lambda": lambda: lambda: None,
    "raising function": lambda: _refuse,
    "function of None": lambda: lambda _: None,
    "function of text": lambda: lambda _: "a\ud800b",
    "function of 256 KB": lambda: lambda _: "m" * 2**18,
    "function of itself": lambda: lambda thing: thing,
    "raises mutely": lambda: lambda *_: (_ for _ in ()).throw(MuteError()),
    "numpy int": lambda: np.int64(1),
    "numpy float": lambda: np.float32(0.5),
    "numpy bool": lambda: np.True_,
    "numpy text": lambda: np.str_("nonsense"),
    "numpy array": lambda: np.zeros(3),
    "numpy objects": lambda: np.array([None, "x"]),
    "numpy scalar array": lambda: np.array(1),
    "tensor": lambda: torch.ones(2, 2),
    "scalar tensor": lambda: torch.tensor(1),
    "truth tensor": lambda: torch.tensor(True),
    "empty tensor": lambda: torch.empty(0),
    "meta tensor": lambda: torch.empty(2, 2, device="meta"),
    "meta scalar": lambda: torch.empty((), device="meta"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "uninitialized": nn.parameter.UninitializedParameter,
    "dtype": lambda: torch.int64,
    "device": lambda: torch.device("cpu"),
    "module": lambda: nn.Linear(2, 2),
    "module list": lambda: nn.ModuleList([nn.Linear(2, 2)]),
    "bare module": nn.Module,
    "half a module": lambda: nn.Module.__new__(nn.Linear),
    "graph": lambda: GRAPH,
    "empty graph": lambda: tbscope.Graph("Net"),
    "node": lambda: GRAPH.nodes[-1],
    "call": lambda: GRAPH.calls[0],
    "scope": lambda: GRAPH.calls[0].scope,
    "value": lambda: GRAPH.outputs[0].value,
    "Text": lambda: Text("nonsense"),
    "no repr": refusing("__repr__", "__str__"),
    "no eq": refusing("__eq__", "__ne__"),
    "no hash": refusing("__hash__"),
    "no bool": refusing("__bool__"),
    "no len": refusing("__len__"),
    "no iter": refusing("__iter__"),
    "no next": refusing("__iter__", "__next__"),
    "no index": refusing("__index__", "__int__", "__float__"),
    "no getattr": refusing("__getattr__"),
    "no getattr of what is called": refusing("__getattr__", "__call__"),
    "no table": type("Tableless", (), {"__dict__": property(_refuse)}),
    "no call": refusing("__call__"),
    "no path": refusing("__fspath__"),
    "no contains": refusing("__contains__", "__len__", "__iter__", "__getitem__"),
}
"""Makes each value anew, by its label."""
