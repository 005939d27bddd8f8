"""Has torch's exporters ask once in a process for what they ask anew at each export.

That is what torch, or onnxscript, knows of operators, and more than half of the time that a small
model takes. It stays the same: what a test adds to it is not in the next export.
"""

import copy
import functools
import importlib

__all__ = ["remember_operators"]


def remember_operators():
    """Change torch in this process, where it is of a release that is made like that."""
    _change("torch.onnx._internal.exporter._registration", "ONNXRegistry", _remember_registries)
    _change("torch._export.utils", "_materialize_cpp_cia_ops", _materialize_what_is_new)


def _change(module, name, change):
    """Replace or change a thing in a module of torch that other releases may not have."""
    try:
        found = importlib.import_module(module)
        thing = getattr(found, name)
    except (ImportError, AttributeError):
        return
    setattr(found, name, change(thing))


def _remember_registries(kind):
    """Have the registry of ONNX's functions filled once, and give copies of it."""
    filled = functools.cache(kind.from_torchlib)

    def from_torchlib(*given, **named):
        registry = copy.copy(filled(*given, **named))
        # An export adds the functions that it is given.
        registry.functions = {name: [*known] for name, known in registry.functions.items()}
        return registry

    kind.from_torchlib = staticmethod(from_torchlib)
    return kind


def _materialize_what_is_new(materialize):
    """Have operators looked up only where libraries have added some."""
    import torch

    known = []

    def materialize_what_is_new():
        found = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if found != known:
            known[:] = found
            materialize()

    return materialize_what_is_new
