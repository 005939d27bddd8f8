"""What stands beside the nodes of a graph: the calls of modules, its outputs, its notes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tbscope.ir.facts import Parameter, Source
from tbscope.ir.nodes import Argument, Nest, Node, Value
from tbscope.ir.runs import Run
from tbscope.ir.scopes import Scope

__all__ = ["Call", "Note", "Output"]


@dataclass(slots=True, eq=False)
class Call:
    """One invocation of a module: its arguments, its results, and what it was set to.

    Attributes:
        scope: Where its operations run.
        class_name: The full name of the module's class (`torch.nn.modules.linear.Linear`).
        qualified_name: The module's name in `named_modules()`; None where no module
            registers it.
        arguments: What forward was given, in the order of its parameters.
        results: What the call gave, tensors as values.
        hyperparameters: What the module's `extra_repr` tells, by name.
        training: The module's training flag during the call.
        parameters: Its own parameters and buffers, not those of its children.
        source: Where it was called; None where that is not known.
        defined: Where its class is defined; None where that is not known.
        number: Which of the calls in its scope it is: above 0 for one that runs again where
            an earlier call ran, as in the backward pass of a checkpoint.
        run: The run of the user's function that called it; None where none is known.
        step: Where in the code of that function it was called (see `Node.step`).
        caller: The scope from which it was called, where the module of that does not contain its
            module; None for any other, and where it is not known.
        called_as: The path of its module in that of the caller (`act`, `layers.1`); empty where
            there is no caller, or the caller has the module from elsewhere.
    """

    scope: Scope
    class_name: str
    qualified_name: str | None
    arguments: list[Argument] = field(default_factory=list)
    results: Nest = None
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    training: bool = False
    parameters: tuple[Parameter, ...] = ()
    source: Source | None = None
    defined: Source | None = None
    number: int = 0
    run: Run | None = None
    step: int = 0
    caller: Scope | None = None
    called_as: str = ""

    def __repr__(self) -> str:
        return f"Call({self.scope.path!r})"


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that the model gave back.

    Attributes:
        name: Its path in the result (`logits`, `out.0`).
        value: What it holds.
        control_inputs: Nodes that wrote into it later, through another view of its storage.
        given: What came out, where a pass left views between it and `value` out of the
            graph: it tells the shape and the dtype.
        via: These views, as text.
    """

    name: str
    value: Value
    control_inputs: tuple[Node, ...] = ()
    given: Value | None = None
    via: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Something about a run that the drawing alone does not tell.

    Attributes:
        text: One sentence.
        source: Where in the user's code; None where that is not known.
        node: The node it is about; None where it is about none.
        topic: What kind of thing it tells: how the run went, what Python read of tensors, what
            was not used, what is random, or what FLOPs leave out.
    """

    text: str
    source: Source | None = None
    node: Node | None = None
    topic: Literal["run", "python", "unused", "random", "flops"] = "run"

    def __str__(self) -> str:
        return f"{self.text} ({self.source})" if self.source else self.text
