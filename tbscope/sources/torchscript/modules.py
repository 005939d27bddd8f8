"""The modules that TorchScript holds, by qualified name, without a module of Python for each."""

from typing import Any

from tbscope.sources.torch.module_internals import script_children, script_class, script_tensors

__all__ = ["ScriptPart", "modules_of"]


class ScriptPart:
    """A module, as TorchScript holds it.

    Args:
        handle: What holds it.
    """

    __slots__ = ("_buffers", "_parameters", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._parameters, self._buffers = script_tensors(handle)

    @property
    def kind(self) -> str:
        """The name of its class, as TorchScript has it."""
        return script_class(self.handle)

    @property
    def training(self) -> bool:
        """Whether it is trained; what is frozen is not."""
        return bool(self.handle.hasattr("training") and self.handle.getattr("training"))


def modules_of(handle: Any) -> dict[str, ScriptPart]:
    """Return the modules in one, itself with the name "", in the order of the tree."""
    found: dict[str, ScriptPart] = {}
    pending = [("", handle)]
    while pending:
        name, handle = pending.pop()
        found[name] = ScriptPart(handle)
        inner = reversed(script_children(handle))
        pending += [(f"{name}.{own}" if name else own, part) for own, part in inner]
    return found
