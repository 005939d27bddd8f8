"""The recorder: turns what it is told of a run into a graph.

The modes tell it of operations and kernels, the watched module calls of modules,
the scopes by hand of theirs. It changes none of what it sees.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from tbscope.graph import Argument, Call, Constant, Graph, Node, Note, Output, Value
from tbscope.scopes import Scope
from tbscope.sources.literals import Literals, collect_tensors
from tbscope.sources.locate import Locator
from tbscope.sources.nests import tensor_leaves
from tbscope.sources.operations import READS, KernelFacts
from tbscope.sources.registry import TensorPlace
from tbscope.sources.scope_stack import Frame, ScopeStack
from tbscope.sources.signatures import argument_names
from tbscope.sources.storage import same_storage
from tbscope.sources.torch_internals import without_functions
from tbscope.sources.values import Values

__all__ = ["Recorder"]

_OUT = Constant("<out>")
_SHARES_MEMORY = frozenset({"numpy", "array", "dlpack"})


class Recorder:
    """Builds the graph of one run.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `Locator`).
        open_ended: Whether the run is a region of code rather than one call, so that a
            tensor nobody knows is an input where no module runs.

    Attributes:
        graph: What has been recorded so far.
        scopes: The scopes that are open.
        registry: The places of the modules and their tensors.
        paused: Whether it looks away.
        kernels: The kernels of the operation that runs; None between operations.
        written: The tensors that they wrote into.
        failed: The latest error that left a module call, with the innermost such call.
        modules_called: The module of each call of the graph.
        about_to_write: Told of each tensor that a kernel is about to write into.
    """

    def __init__(
        self, name: str, *, boundary: Callable[..., Any], open_ended: bool = False
    ) -> None:
        self.graph = Graph(name)
        self.scopes = ScopeStack()
        self.registry = self.scopes.registry
        self.paused = False
        self.kernels: list[str] | None = None
        self.written: list[torch.Tensor] = []
        self.failed: tuple[BaseException, Frame] | None = None
        self.modules_called: list[torch.nn.Module] = []
        self.about_to_write: Callable[[torch.Tensor], None] | None = None
        self._failing: tuple[BaseException, Node] | None = None
        self._open_ended = open_ended
        self._boundary: CodeType = boundary.__code__
        self._base: int = 0
        self._locator = Locator(self._boundary)
        self._values = Values(self.graph.nodes)
        self._nest = Literals(self.value_of).nest
        self._names: set[str] = set()
        self._output_names: set[str] = set()
        self._numbers: set[str] = set()
        self._count = 0
        self._operations = 0
        self._body_results: list[torch.Tensor] = []
        self._is_method: dict[int, tuple[CodeType, bool]] = {}

    def begin_at(self, frame: FrameType) -> None:
        """Say in which Python frame the region begins; what is around it is not looked at."""
        self._base = id(frame)

    def close(self) -> Graph:
        """Let go of everything but the graph, once the run is over; give the graph."""
        # At once, not when the garbage collector comes by: this refers to itself.
        self._values.forget()
        self.modules_called.clear()
        self.registry.forget()
        return self.graph

    # -- scopes -----------------------------------------------------------------------

    def open_scope(self, name: str) -> None:
        """Open a scope by hand in the call that runs."""
        if not self.paused:
            self.scopes.open_block(name)

    def close_scope(self, name: str | None, *, failed: bool = False) -> None:
        """Close the innermost scope by hand; after a failure also those left open in it."""
        if not self.paused:
            self.scopes.close_block(name, failed=failed)

    def enter_call(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: FrameType,
    ) -> Frame | None:
        """Open the scope of a module call; give the frame that `leave_call` closes.

        None for a wrapper that has no scope of its own.
        """
        scopes = self.scopes
        place = scopes.place_of(module)
        if place.wrapper is module:
            return None
        if place.lazy:
            self._look_away_from_initialisation(module)
        source = self._locator.source(caller, scopes.running.source)
        given = argument_names(module.forward, args, kwargs)
        if self._open_ended and scopes.at_top:
            self._add_unknown(given)
        nest = self._nest
        scope = scopes.call_scope(place)
        arguments = [Argument(name, nest(value)) for name, value in given]
        call = Call(
            scope,
            place.label,
            place.qualified_name,
            arguments,
            None,
            {},
            module.training,
            (),
            source,
        )
        self.graph.calls.append(call)
        self.modules_called.append(module)
        frame = Frame(scope, place, call, source, self._operations)
        scopes.open_call(place, frame)
        return frame

    def _look_away_from_initialisation(self, module: torch.nn.Module) -> None:
        """Have a lazy module make its parameters unseen: that is no part of what it computes."""
        hooks = module._forward_pre_hooks
        for key, hook in hooks.items():
            if getattr(hook, "__func__", None) is LazyModuleMixin._infer_parameters:
                # The hook removes itself once it has run, and this one with it.
                hooks[key] = self._unseen(hook)

    def _unseen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def unseen(*args: Any, **kwargs: Any) -> Any:
            paused, self.paused = self.paused, True
            try:
                return function(*args, **kwargs)
            finally:
                self.paused = paused

        return unseen

    def leave_call(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Close a module call that returned."""
        try:
            self.scopes.check_closed(frame)
            if self._operations == frame.begun:
                self._pass_through(frame, collect_tensors((args, kwargs), []), result)
        finally:
            self.scopes.close_call(frame)
        assert frame.call is not None
        frame.call.results = self._nest(result)

    def fail_call(self, frame: Frame, error: BaseException) -> None:
        """Close a module call that raised; remember the innermost one of each error."""
        if self.failed is None or self.failed[0] is not error:
            self.failed = (error, frame)
        self.scopes.close_call(frame)

    def _pass_through(self, frame: Frame, given: list[torch.Tensor], result: Any) -> None:
        """Draw a module that ran no operation as what it is: what comes in goes out."""
        given_back = collect_tensors(result, [])
        if not given and not given_back:
            return
        assert frame.place is not None
        node = Node(self._number(), frame.place.label, "op", frame.scope, source=frame.source)
        read = given_back or given
        node.inputs = list(dict.fromkeys(self.value_of(tensor) for tensor in read))
        node.arguments = [Argument(None, value) for value in node.inputs]
        self._append(node)
        self._operations += 1
        for tensor in {id(tensor): tensor for tensor in given_back}.values():
            self._values.give(node, tensor)

    @contextmanager
    def body(self, name: str) -> Iterator[None]:
        """Record what a function runs that an operation was given, in a scope of its own."""
        kernels, self.kernels = self.kernels, None
        written, self.written = self.written, []
        self.scopes.open_block(name)
        failed = True
        try:
            yield
            failed = False
        finally:
            self.scopes.close_block(name, failed=failed)
            self.kernels = kernels
            self.written = written

    def enter_body(self, operands: list[torch.Tensor], given: Any) -> None:
        """Make known the parts of its operands that an operation hands to a function.

        Args:
            operands: The tensors that the operation was given.
            given: What it hands on; the slices among it were cut unseen.
        """
        for tensor in collect_tensors(given, []):
            if self._values.get(tensor) is None and self.registry.tensor(tensor) is None:
                with without_functions():
                    whole = [one for one in operands if same_storage(one, tensor)] or operands
                values = [self.value_of(one) for one in whole]
                node = Node(
                    self._number(),
                    "slice",
                    "op",
                    self.scopes.running.inner,
                    values,
                    arguments=[Argument(None, value) for value in values],
                )
                self._append(node)
                self._operations += 1
                self._values.give(node, tensor)

    def leave_body(self, result: Any) -> None:
        """Take note of what a function gave that an operation ran."""
        self._body_results += collect_tensors(result, [])

    # -- operations ---------------------------------------------------------------------

    def add_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        kernels: list[str],
        frame: FrameType,
    ) -> None:
        """Record one operation that has run.

        Args:
            name: What it is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
            kernels: The ATen kernels that ran inside, by name.
            frame: The Python frame that called it.
        """
        results = collect_tensors(result, [])
        written = self.written
        if written:
            self.written = []
        elif not results and result is not None:
            if args:
                self.add_read(name, args[0], frame)
            return
        elif not kernels and _all_given(results, args, kwargs):
            # Nothing ran, and what came in came out: contiguous() of what is so already.
            return
        read: list[torch.Tensor] = []
        values: list[Value] = []
        arguments = []
        for given in args:
            kind = type(given)
            # Most arguments are tensors and numbers; the rest may be nests of them.
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                value = self.value_of(given)
                read.append(given)
                values.append(value)
                arguments.append(Argument(None, value))
            elif kind is int or kind is float or kind is bool:
                arguments.append(Argument(None, given))
            else:
                arguments.append(Argument(None, self._nest(given, read, values)))
        for key, given in kwargs.items():
            if key == "out":
                # What it names is filled, not read: an edge from it would be invented.
                arguments.append(Argument(key, _OUT))
            else:
                arguments.append(Argument(key, self._nest(given, read, values)))
        if self._body_results:
            self._read_bodies(read, values)
        running = self.scopes.running
        scope = self._scope_at(frame, running)
        if running.foreign and id(frame) == running.home:
            # A forward of torch's own: the line that called the module is the user's.
            source = running.source
        else:
            source = self._locator.source(frame, running.source)
        held = self._values
        writers = held.earlier_writers(read, values) if held.written else []
        node = Node(
            self._number(), name, "op", scope, values, [], arguments, writers, source, kernels
        )
        self._append(node)
        self._operations += 1
        for tensor in results:
            held.give(node, tensor)
        if written:
            self._know_places(written)
            candidates = collect_tensors(kwargs.get("out"), list(read))
            held.give_written(node, written, results, candidates)
        if held.written:
            held.forget_fresh(results, read)

    def _read_bodies(self, read: list[torch.Tensor], values: list[Value]) -> None:
        """Have an operation read what its functions gave and none of them took up again."""
        results, self._body_results = self._body_results, []
        taken = {value for node in self.graph.nodes for value in node.inputs}
        for tensor in results:
            value = self.value_of(tensor)
            if value not in taken:
                taken.add(value)
                read.append(tensor)
                values.append(value)

    def add_kernel(
        self,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        frame: FrameType,
    ) -> None:
        """Record a kernel that ran outside of every operation (in a ScriptModule, in C++)."""
        if facts.label != "detach" or collect_tensors(result, []):
            self.add_operation(facts.label, args, kwargs, result, [facts.name], frame)

    def fail_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        frame: FrameType,
    ) -> None:
        """Keep in mind an operation that raised, should its error end the run."""
        self.written = []
        if self._failing is not None and self._failing[0] is error:
            return
        values: list[Value] = []
        nest = self._nest
        node = Node("", name, "op", self._scope_at(frame, self.scopes.running), values)
        node.arguments = [Argument(None, nest(given, [], values)) for given in args]
        node.arguments += [Argument(key, nest(given, [], values)) for key, given in kwargs.items()]
        node.source = self._locator.source(frame, self.scopes.running.source)
        self._failing = (error, node)

    def end_with(self, error: BaseException, text: str) -> None:
        """Close the graph of a run that an error ended, with the operation that raised it.

        Args:
            error: What ended the run.
            text: What it says, on one line.
        """
        node = None
        if self._failing is not None and self._failing[0] is error:
            node = self._failing[1]
            node.name = self._number()
            node.attributes["error"] = text
            self._append(node)
        source = node.source if node is not None else None
        self.graph.notes.append(Note(f"the run ended here: {text}", source, node))

    def add_read(self, name: str, tensor: Any, frame: FrameType) -> None:
        """Note that Python read the content of a tensor (`item`, `bool`, `tolist`)."""
        if name not in READS or not isinstance(tensor, torch.Tensor):
            return
        if name in _SHARES_MEMORY and self.about_to_write is not None:
            # Whatever is written through the array is no operation that anyone could see.
            self.about_to_write(tensor)
        source = self._locator.source(frame, self.scopes.running.source)
        value = self.value_of(tensor)
        node = value.producer
        node.attributes["read_by_python"] = f"{name} at {source}" if source else name
        verb = "decided on" if name == "bool" else "read"
        text = f"Python {verb} the value of %{value.name} ({node.op}) by {name}()"
        self.graph.notes.append(Note(text, source, node))

    def will_write(self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of the tensors that a kernel is about to write into."""
        if facts.flag is not None and not (len(args) > facts.flag and args[facts.flag]):
            return
        for position, name in facts.writes:
            given = args[position] if position < len(args) else kwargs.get(name)
            for tensor in collect_tensors(given, []):
                if self.about_to_write is not None:
                    self.about_to_write(tensor)
                self.written.append(tensor)

    def _know_places(self, written: list[torch.Tensor]) -> None:
        """Make known the parameters and buffers among tensors that were written into."""
        for tensor in written:
            if self.registry.tensor(tensor) is not None:
                self.value_of(tensor)

    def _scope_at(self, frame: FrameType | None, running: Frame) -> Scope | None:
        """Give the scope of an operation that this Python frame calls.

        It is the scope of the call that runs, unless a method of another module was
        called without calling that module (`net.encoder.forward(x)`, `net.encode(x)`):
        then it is the scope that stands for that one.
        """
        while frame is not None:
            if id(frame) == running.home:
                break
            code = frame.f_code
            if code is self._boundary or id(frame) == self._base:
                break
            if self._takes_self(code):
                owner = frame.f_locals.get("self")
                if isinstance(owner, torch.nn.Module):
                    place = self.registry.module(owner)
                    if place is not None and place is running.place:
                        running.home = id(frame)
                        running.foreign = self._locator.is_foreign(code.co_filename)
                        break
                    if place is not None and not place.frames:
                        return self.scopes.container(place)
            frame = frame.f_back
        return running.inner

    def _takes_self(self, code: CodeType) -> bool:
        known = self._is_method.get(id(code))
        if known is None:
            takes = code.co_argcount > 0 and code.co_varnames[0] == "self"
            known = self._is_method[id(code)] = (code, takes)
        return known[1]

    # -- values -------------------------------------------------------------------------

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Give the value that a tensor holds now, made known if nobody knew it."""
        return self._values.get(tensor) or self._discover(tensor)

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph under this path."""
        known = self._values.get(tensor)
        if known is not None:
            also = known.producer.attributes
            also["also"] = f"{also['also']}, {name}" if "also" in also else name
            return
        node = Node(self._unique(name), "input", "input")
        self.graph.inputs.append(node)
        self._append(node)
        self._values.give(node, tensor)

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make what a tensor holds now an output of the graph under this path."""
        value = self.value_of(tensor)
        unique, number = name, 2
        while unique in self._output_names:
            unique, number = f"{name}~{number}", number + 1
        self._output_names.add(unique)
        writers = self._values.earlier_writers([tensor], [value])
        self.graph.outputs.append(Output(unique, value, tuple(writers)))

    def live_results(self) -> list[torch.Tensor]:
        """Give what operations made, somebody still holds, and no other value is made of."""
        read = {value for node in self.graph.nodes if node.outputs for value in node.inputs}
        return [
            tensor
            for tensor, value in self._values.alive()
            if value.producer.kind == "op" and value not in read
        ]

    def _add_unknown(self, given: list[tuple[str, Any]]) -> None:
        """Make inputs of the tensors that come from outside of the region."""
        for name, nest in given:
            for path, tensor in tensor_leaves(nest, name):
                if self._values.get(tensor) is None and self.registry.tensor(tensor) is None:
                    self.add_input(path, tensor)

    def _discover(self, tensor: torch.Tensor) -> Value:
        """Make known a tensor that no watched operation gave."""
        place = self.registry.tensor(tensor)
        if place is None:
            alias = self._values.alias(tensor, self.value_of)
            if alias is not None:
                return alias
            place = self._late_tensor(tensor)
        if place is not None:
            owner, kind = place.owner, place.kind
            scope = owner.first_scope or self.scopes.home(owner)
            facts = {"requires_grad": tensor.requires_grad}
            name = self._unique(place.qualified_name)
            node = Node(name, kind, kind, scope, [], [], [], [], None, [], facts)
        elif self._open_ended and self.scopes.at_top:
            node = Node(self._unique("input"), "input", "input")
            self.graph.inputs.append(node)
        else:
            node = self._constant(tensor)
        self._append(node)
        return self._values.give(node, tensor)

    def _late_tensor(self, tensor: torch.Tensor) -> TensorPlace | None:
        """Look for a tensor that the running module holds only since it ran."""
        place = self.scopes.running.place
        if place is None:
            return None
        module = place.module
        if not any(
            held is tensor
            for table in (module._parameters, module._buffers)
            for held in table.values()
        ):
            return None
        self.registry.refresh(place)
        return self.registry.tensor(tensor)

    def _constant(self, tensor: torch.Tensor) -> Node:
        """Make a node for a tensor from outside, named by the attribute that holds it."""
        running = self.scopes.running
        name = None
        if running.place is not None:
            for attribute, held in vars(running.place.module).items():
                if held is tensor:
                    prefix = running.place.name
                    name = self._unique(f"{prefix}.{attribute}" if prefix else attribute)
                    break
        return Node(
            name or self._number(), "constant", "constant", running.inner, source=running.source
        )

    # -- nodes --------------------------------------------------------------------------

    def _append(self, node: Node) -> None:
        self.graph.nodes.append(node)

    def _number(self) -> str:
        self._count = count = self._count + 1
        name = str(count)
        # Few parameters are named by a number alone.
        if self._numbers and name in self._numbers:
            return self._number()
        return name

    def _unique(self, name: str) -> str:
        names = self._names
        unique = name
        if name in names:
            number = 2
            while (unique := f"{name}~{number}") in names:
                number += 1
        names.add(unique)
        if unique.isdecimal():
            if int(unique) <= self._count:
                return self._unique(f"{name}~")
            self._numbers.add(unique)
        return unique


def _all_given(results: list[torch.Tensor], args: Any, kwargs: Any) -> bool:
    """Tell whether each result is one of the tensors that came in."""
    if not results:
        return True
    given = {id(tensor) for tensor in collect_tensors((args, kwargs), [])}
    return all(id(tensor) in given for tensor in results)
