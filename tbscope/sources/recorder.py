"""The recorder: turns what it is told of a run into a graph.

The modes tell it of operations and kernels, the watched module calls of modules,
the scopes by hand of theirs. It follows tensors by identity and by storage, holds
them weakly, and never changes one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import ref

import torch

from tbscope.graph import Argument, Call, Constant, Graph, Node, Note, Output, Source, Value
from tbscope.scopes import Scope, ScopeKind, ScopePart
from tbscope.sources.by_hand import unbalanced
from tbscope.sources.inputs import argument_names
from tbscope.sources.literals import Literals, collect_tensors
from tbscope.sources.locate import Locator
from tbscope.sources.nests import tensor_leaves
from tbscope.sources.operations import READS, KernelFacts
from tbscope.sources.registry import ModulePlace, Registry, TensorPlace
from tbscope.sources.storage import Writes, same_storage

__all__ = ["Frame", "Recorder"]

_OUT = Constant("<out>")


class Frame:
    """A scope that is open: a module call, or a block by hand.

    Attributes:
        scope: The scope; None for the top level of a recording.
        place: The place of the module; None for a block by hand.
        call: The call; None for a block by hand or a container.
        inner: Where what runs directly in this call belongs: its own scope, or the
            innermost block by hand opened in it.
        blocks: The names of the blocks by hand open in this call, with what `inner` was.
        source: Where the module was called.
        begun: How many operations had run when it opened.
    """

    __slots__ = ("begun", "blocks", "call", "inner", "place", "scope", "source")

    def __init__(
        self,
        scope: Scope | None,
        *,
        place: ModulePlace | None = None,
        call: Call | None = None,
        source: Source | None = None,
        begun: int = 0,
    ) -> None:
        self.scope = scope
        self.place = place
        self.call = call
        self.inner = scope
        self.blocks: list[tuple[str, Scope | None]] = []
        self.source = source
        self.begun = begun


class Recorder:
    """Builds the graph of one run.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `Locator`).
        tensors_are_inputs: Whether a tensor that nobody knows, met outside of every
            module, is an input of the recording rather than a constant.
    """

    def __init__(
        self, name: str, *, boundary: Callable[..., Any], tensors_are_inputs: bool = False
    ) -> None:
        self.graph = Graph(name)
        self.registry = Registry()
        self.paused = False
        # The kernels of the operation that runs now; None between operations.
        self.kernels: list[str] | None = None
        # The tensors that those kernels wrote into, with whether they also read them.
        self.written: list[torch.Tensor] = []
        self.failed: tuple[BaseException, Frame] | None = None
        self.modules_called: list[torch.nn.Module] = []
        self.about_to_write: Callable[[torch.Tensor], None] | None = None
        self._boundary = boundary.__code__
        self._tensors_are_inputs = tensors_are_inputs
        self._locator = Locator(self._boundary)
        self._writes = Writes()
        self._values: dict[int, tuple[ref[torch.Tensor], Value]] = {}
        self._order: dict[Node, int] = {}
        self._names: set[str] = set()
        self._count = 0
        self._operations = 0
        self._adopted = 0
        # How often a place was opened, and its latest scope, by parent and key.
        self._opened: dict[tuple[Scope | None, Any], list[Any]] = {}
        self._dtypes: dict[torch.dtype, str] = {}
        self._devices: dict[torch.device, str] = {}
        self._nest = Literals(self.value_of).nest
        self._top = Frame(None)
        self._stack: list[Frame] = [self._top]

    # -- scopes -----------------------------------------------------------------

    def _new_scope(
        self,
        key: Any,
        *,
        parent: Scope | None,
        label: str,
        attribute: str | None,
        kind: ScopeKind,
        qualified_name: str | None,
    ) -> Scope:
        """Open a place once more: a new scope, numbered after those before it."""
        opened = self._opened.get((parent, key))
        if opened is None:
            index = 0
            self._opened[(parent, key)] = opened = [1, None]
        else:
            index = opened[0]
            opened[0] += 1
        scope = Scope(
            ScopePart(label, attribute, index),
            parent=parent,
            kind=kind,
            qualified_name=qualified_name,
        )
        opened[1] = scope
        return scope

    def _scope_of(self, place: ModulePlace) -> Scope:
        """Open the scope of a module that is called now."""
        opened = self._opened.get((parent := self._parent_of(place), place))
        if opened is not None and opened[0] == 1 and opened[1].kind == "container":
            # It stood as a container of what was called in it before: the same scope.
            scope: Scope = opened[1]
            scope.kind = "module"
        else:
            scope = self._new_scope(
                place,
                parent=parent,
                label=place.label,
                attribute=place.attribute,
                kind="module",
                qualified_name=place.qualified_name,
            )
        if place.first_scope is None:
            place.first_scope = scope
        return scope

    def _parent_of(self, place: ModulePlace) -> Scope | None:
        """Give the scope in which a module stands: that of the nearest holder that runs."""
        holder = place.parent
        if holder is None:
            return self._stack[-1].inner
        if holder.frames:
            inner: Scope | None = holder.frames[-1].inner
            return inner
        between = []
        while holder is not None and not holder.frames:
            between.append(holder)
            holder = holder.parent
        scope = holder.frames[-1].inner if holder is not None else self._top.inner
        for container in reversed(between):
            scope = self._container(container, scope)
        return scope

    def _container(self, place: ModulePlace, parent: Scope | None) -> Scope:
        """Give the scope that stands for a module which is not called itself."""
        opened = self._opened.get((parent, place))
        if opened is not None:
            latest: Scope = opened[1]
            return latest
        scope = self._new_scope(
            place,
            parent=parent,
            label=place.label,
            attribute=place.attribute,
            kind="container",
            qualified_name=place.qualified_name,
        )
        if place.first_scope is None:
            place.first_scope = scope
        return scope

    def _home(self, place: ModulePlace) -> Scope:
        """Give the scope in which a module's own parameters stand."""
        if place.first_scope is None:
            self._container(place, self._parent_of(place))
            assert place.first_scope is not None
        return place.first_scope

    @contextmanager
    def container(self, module: torch.nn.Module) -> Iterator[None]:
        """Have what runs in a block stand in a module, though no call of it runs."""
        place = self.registry.add_root(module)
        scope = self._container(place, self._parent_of(place))
        frame = Frame(scope, place=place, begun=self._operations)
        place.frames.append(frame)
        self._stack.append(frame)
        try:
            yield
        finally:
            self._close(frame)

    def open_scope(self, name: str) -> None:
        """Open a block by hand in the call that runs."""
        frame = self._stack[-1]
        frame.blocks.append((name, frame.inner))
        frame.inner = self._new_scope(
            name,
            parent=frame.inner,
            label=name,
            attribute=None,
            kind="hand",
            qualified_name=None,
        )

    def close_scope(self, name: str | None, *, failed: bool = False) -> None:
        """Close the innermost block by hand; after a failure also those left open in it."""
        blocks = self._stack[-1].blocks
        while failed and blocks and blocks[-1][0] != name:
            blocks.pop()
        if not blocks or (name is not None and blocks[-1][0] != name):
            if failed:
                return
            raise unbalanced(name, blocks[-1][0] if blocks else None)
        self._stack[-1].inner = blocks.pop()[1]

    # -- module calls -------------------------------------------------------------

    def enter_call(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> Frame:
        """Open the scope of a module call; give the frame that `leave_call` closes."""
        place = self.registry.module(module)
        if place is None:
            place = self._adopt(module)
        source = self._locator.source(frame, self._stack[-1].source)
        scope = self._scope_of(place)
        call = Call(
            scope,
            place.label,
            place.qualified_name,
            training=module.training,
            source=source,
        )
        given = argument_names(type(module).forward, (module, *args), kwargs)[1:]
        nest = self._nest
        if self._tensors_are_inputs and len(self._stack) == 1:
            self._declare_unknown(given)
        call.arguments = [Argument(name, nest(value)) for name, value in given]
        self.graph.calls.append(call)
        self.modules_called.append(module)
        opened = Frame(
            scope, place=place, call=call, source=source, begun=self._operations
        )
        place.frames.append(opened)
        self._stack.append(opened)
        return opened

    def leave_call(
        self,
        frame: Frame,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        """Close a module call that returned."""
        if frame.blocks:
            name = frame.blocks[-1][0]
            self._close(frame)
            error = unbalanced(None, None)
            raise type(error)(
                f"the scope {name!r} was opened in {frame.scope} and never closed",
                why="push_scope() needs a pop_scope() in the same module call",
                fix=f"call pop_scope({name!r}) before the module returns, "
                f"or use 'with tbscope.scope({name!r}):'",
            )
        if self._operations == frame.begun:
            self._pass_through(frame, args, kwargs, result)
        self._close(frame)
        assert frame.call is not None
        frame.call.results = self._nest(result)

    def fail_call(self, frame: Frame, error: BaseException) -> None:
        """Close a module call that raised; remember the innermost one of each error."""
        if self.failed is None or self.failed[0] is not error:
            self.failed = (error, frame)
        self._close(frame)

    def _close(self, frame: Frame) -> None:
        # A call that never closed (a generator abandoned by its caller) goes with it.
        while (last := self._stack.pop()) is not frame:
            if last.place is not None:
                last.place.frames.remove(last)
        assert frame.place is not None
        frame.place.frames.remove(frame)

    def _pass_through(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Draw a module that ran no operation as what it is: what comes in goes out."""
        given = collect_tensors((args, kwargs), [])
        given_back = collect_tensors(result, [])
        if not given and not given_back:
            return
        assert frame.place is not None and frame.call is not None
        read = given_back or given
        node = self._new_node(frame.place.label, frame.scope, frame.source)
        node.inputs = list(dict.fromkeys(self.value_of(tensor) for tensor in read))
        node.arguments = [Argument(None, value) for value in node.inputs]
        self._append(node)
        self._operations += 1
        for tensor in {id(tensor): tensor for tensor in given_back}.values():
            self._give(node, tensor)

    def _adopt(self, module: torch.nn.Module) -> ModulePlace:
        """Give a place to a module that no known module registers."""
        holder = next((frame.place for frame in reversed(self._stack) if frame.place), None)
        if holder is not None:
            self.registry.refresh(holder)
            place = self.registry.module(module)
            if place is not None:
                self._about_new(module)
                return place
        self._about_new(module)
        if holder is None:
            return self.registry.add_root(module)
        attribute = f"?{self._adopted}"
        self._adopted += 1
        prefix = f"{holder.qualified_name}." if holder.qualified_name else ""
        return self.registry.add_root(
            module, qualified_name=prefix + attribute, attribute=attribute
        )

    def _about_new(self, module: torch.nn.Module) -> None:
        """Hook for those who keep modules as they were; nothing to do by default."""

    # -- operations -----------------------------------------------------------------

    def add_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        kernels: list[str],
        frame: FrameType | None,
    ) -> None:
        """Record one operation that has run.

        Args:
            name: What it is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
            kernels: The ATen kernels that ran inside, by name.
            frame: The frame that called it.
        """
        running = self._stack[-1]
        nest = self._nest
        read: list[torch.Tensor] = []
        values: list[Value] = []
        arguments = [Argument(None, nest(given, read, values)) for given in args]
        for key, given in kwargs.items():
            # What `out=` names is filled, not read: an edge from it would be invented.
            arguments.append(
                Argument(key, _OUT if key == "out" else nest(given, read, values))
            )
        results = collect_tensors(result, [])
        written = self.written
        if written:
            self.written = []
        elif not kernels and all(any(out is given for given in read) for out in results):
            # Nothing ran, and what came in came out: contiguous() of what is so already.
            return
        node = self._new_node(name, running.inner, self._locator.source(frame, running.source))
        node.arguments = arguments
        node.inputs = values
        node.kernels = kernels
        if self._writes.any:
            node.control_inputs = self._earlier_writers(read, values)
        self._append(node)
        self._operations += 1
        for tensor in results:
            self._give(node, tensor)
        if written:
            self._give_written(node, written, read, results, kwargs.get("out"))
        if self._writes.any:
            self._writes.forget_fresh(results, read)

    def add_read(self, name: str, tensor: Any, frame: FrameType | None) -> None:
        """Note that Python read the content of a tensor (`item`, `bool`, `tolist`)."""
        if name not in READS or not isinstance(tensor, torch.Tensor):
            return
        source = self._locator.source(frame, self._stack[-1].source)
        value = self.value_of(tensor)
        node = value.producer
        node.attributes["read_by_python"] = f"{name} at {source}" if source else name
        decided = "Python decided on" if name == "bool" else "Python read"
        note = Note(f"{decided} the value of %{value.name} ({node.op}) by {name}()", source, node)
        if not any(old.text == note.text and old.source == source for old in self.graph.notes):
            self.graph.notes.append(note)

    def add_kernel(
        self,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        frame: FrameType | None,
    ) -> None:
        """Record a kernel that ran outside of every operation (in a ScriptModule, in C++)."""
        self.add_operation(facts.label, args, kwargs, result, [facts.name], frame)

    def will_write(
        self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take note of the tensors that a kernel is about to write into."""
        if facts.flag is not None and not (len(args) > facts.flag and args[facts.flag]):
            return
        for position, name in facts.writes:
            given = args[position] if position < len(args) else kwargs.get(name)
            for tensor in collect_tensors(given, []):
                if self.about_to_write is not None:
                    self.about_to_write(tensor)
                self.written.append(tensor)

    # -- values ---------------------------------------------------------------------

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Give the value that a tensor holds now, made known if nobody knew it."""
        known = self._values.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return self._discover(tensor)

    def add_input(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph under this path."""
        known = self._values.get(id(tensor))
        if known is not None and known[0]() is tensor:
            also = known[1].producer.attributes
            also["also"] = f"{also['also']}, {name}" if "also" in also else name
            return
        node = Node(self._unique(name), "input", "input")
        self.graph.inputs.append(node)
        self._append(node)
        self._give(node, tensor)

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make the value of a tensor an output of the graph under this path."""
        value = self.value_of(tensor)
        taken = {output.name for output in self.graph.outputs}
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}.{number}", number + 1
        self.graph.outputs.append(Output(unique, value))

    def note(self, text: str, source: Source | None = None) -> None:
        """Add a note to the graph."""
        self.graph.notes.append(Note(text, source))

    def live_results(self) -> list[torch.Tensor]:
        """Give the tensors that an operation made, that are still held, and that none read."""
        read = {value for node in self.graph.nodes for value in node.inputs}
        found = []
        for held, value in self._values.values():
            tensor = held()
            if tensor is not None and value not in read and value.producer.kind == "op":
                found.append((self._order[value.producer], value.index, tensor))
        return [tensor for _, _, tensor in sorted(found, key=lambda entry: entry[:2])]

    def unclosed(self) -> str | None:
        """Give the name of the innermost block by hand left open at the top level."""
        return self._top.blocks[-1][0] if self._top.blocks else None

    def _declare_unknown(self, given: list[tuple[str, Any]]) -> None:
        for name, nest in given:
            for path, tensor in tensor_leaves(nest, name):
                known = self._values.get(id(tensor))
                if (known is None or known[0]() is not tensor) and not self.registry.tensor(
                    tensor
                ):
                    self.add_input(path, tensor)

    def _discover(self, tensor: torch.Tensor) -> Value:
        """Make known a tensor that no watched operation gave: a parameter, or a constant."""
        place = self.registry.tensor(tensor)
        if place is None:
            place = self._late_tensor(tensor)
        if place is not None:
            scope: Scope | None = self._home(place.owner)
            node = Node(self._unique(place.qualified_name), place.kind, place.kind, scope)
            node.attributes["requires_grad"] = tensor.requires_grad
        elif self._tensors_are_inputs and len(self._stack) == 1:
            self.add_input("input", tensor)
            return self.value_of(tensor)
        else:
            node = self._constant(tensor)
        self._append(node)
        return self._give(node, tensor)

    def _late_tensor(self, tensor: torch.Tensor) -> TensorPlace | None:
        """Look for a tensor that the running module holds only since it ran."""
        place = self._stack[-1].place
        if place is None:
            return None
        module = place.module
        held = any(entry is tensor for entry in module._parameters.values()) or any(
            entry is tensor for entry in module._buffers.values()
        )
        if not held:
            return None
        self.registry.refresh(place)
        return self.registry.tensor(tensor)

    def _constant(self, tensor: torch.Tensor) -> Node:
        """Make a node for a tensor from outside, named by the attribute that holds it."""
        frame = self._stack[-1]
        name = None
        if frame.place is not None:
            prefix = f"{frame.place.qualified_name}." if frame.place.qualified_name else ""
            for attribute, held in vars(frame.place.module).items():
                if held is tensor:
                    name = self._unique(prefix + attribute)
                    break
        if name is None:
            name = self._number()
        return Node(name, "constant", "constant", frame.inner, source=frame.source)

    def _give(self, node: Node, tensor: torch.Tensor) -> Value:
        """Make a tensor the next output of a node."""
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        device = self._devices.get(tensor.device)
        if device is None:
            device = self._devices[tensor.device] = str(tensor.device)
        outputs = node.outputs
        value = Value(node, len(outputs), shape_of(tensor), dtype, device)
        outputs.append(value)
        self._values[id(tensor)] = (ref(tensor), value)
        return value

    def _give_written(
        self,
        node: Node,
        written: list[torch.Tensor],
        read: list[torch.Tensor],
        results: list[torch.Tensor],
        out: Any,
    ) -> None:
        """Give new values to the tensors that a node wrote into, and remember the write."""
        given = {id(tensor) for tensor in results}
        candidates = collect_tensors(out, list(read))
        for tensor in written:
            target = self._target(tensor, candidates)
            if target is None:
                continue
            if id(target) not in given:
                given.add(id(target))
                self._give(node, target)
            elif not any(target is other for other in candidates):
                # A result that it made and filled itself: nobody has seen it before.
                continue
            value = self._values[id(target)][1]
            self._writes.add(node, self._order[node], value, tensor)

    def _target(
        self, tensor: torch.Tensor, candidates: list[torch.Tensor]
    ) -> torch.Tensor | None:
        """Give the tensor known to the user that a write to this one changes."""
        known = self._values.get(id(tensor))
        if (known is not None and known[0]() is tensor) or self.registry.tensor(tensor):
            return tensor
        for candidate in candidates:
            if candidate is tensor or same_storage(candidate, tensor):
                return candidate
        return None

    def _earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Give the nodes that wrote into what is read here through another view of it."""
        found: dict[Node, None] = {}
        order = self._order
        for tensor, value in zip(read, values, strict=True):
            for write in self._writes.touching(tensor, order[value.producer]):
                found[write.node] = None
        for value in values:
            found.pop(value.producer, None)
        return sorted(found, key=order.__getitem__)

    # -- nodes ----------------------------------------------------------------------

    def _new_node(self, op: str, scope: Scope | None, source: Source | None) -> Node:
        return Node(self._number(), op, "op", scope, source=source)

    def _append(self, node: Node) -> None:
        nodes = self.graph.nodes
        self._order[node] = len(nodes)
        nodes.append(node)

    def _number(self) -> str:
        names = self._names
        while True:
            self._count += 1
            name = str(self._count)
            if name not in names:
                names.add(name)
                return name

    def _unique(self, name: str) -> str:
        names = self._names
        if name in names:
            number = 2
            while f"{name}~{number}" in names:
                number += 1
            name = f"{name}~{number}"
        names.add(name)
        return name


def shape_of(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Give the sizes of a tensor; None for those that are not plain numbers."""
    try:
        shape = tuple(tensor.shape)
    except RuntimeError:
        # A nested tensor of the strided layout has only some of its sizes.
        sizes: list[int | None] = []
        for dim in range(tensor.dim()):
            try:
                sizes.append(int(tensor.size(dim)))
            except RuntimeError:
                sizes.append(None)
        return tuple(sizes)
    for size in shape:
        if type(size) is not int:
            return tuple(_plain(size) for size in shape)
    return shape


def _plain(size: Any) -> int | None:
    if type(size) is int:
        return size
    node = getattr(size, "node", None)
    if node is not None and node.is_nested_int():
        return None
    hint = getattr(node, "hint", None)
    return int(hint) if isinstance(hint, int) else None
