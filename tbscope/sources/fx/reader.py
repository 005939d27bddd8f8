"""Reader: converts the nodes of a program to nodes of a graph, one after the other.

The reader runs nothing of the program. The types of results come from the metadata of a node, or
from a run of its operation on fake tensors. Reads, in-place writes and aliases come from the schema
of the operator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, ValuesView
from functools import partial
from typing import Any, TypeAlias

import torch

from tbscope.analysis.notes import DataRead, find_notes
from tbscope.ir.graph import Argument, Constant, Graph, Module, Nest, Node, Source, Value
from tbscope.ir.scope_io import describe_calls
from tbscope.ir.scopes import Scope
from tbscope.sources.fx.aliasing import (
    CallArguments,
    Content,
    Slot,
    slots_in,
    tree_replace,
    types_in,
    types_of_metadata,
)
from tbscope.sources.fx.op_costs import (
    FakeRunner,
    OpEffects,
    aliased_slots,
    returns_tensor,
    written_slots,
)
from tbscope.sources.fx.scopes import ModuleStack, State
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType, Types, add_value
from tbscope.sources.torch.calling.argument_values import FILLED, ArgumentConverter
from tbscope.sources.torch.calling.pytree import children, fields_of, key_text, tensor_leaves
from tbscope.sources.torch.operations import (
    RANDOM,
    KernelInfo,
    add_signature,
    is_random,
    kernel_info,
    operation_name,
    positional_names,
    role_of,
)
from tbscope.sources.torch.recorded_names import scopes_in_trace
from tbscope.sources.torch.source_location import source_of

_Location: TypeAlias = tuple[Scope | None, Source | None]
"""Scope and line of a node."""

ProgramNode: TypeAlias = Any
"""Node of a program: a torch.fx.Node, or a node of another form of program that is read alike. It
has `name`, `target`, `args`, `kwargs`, and `meta` for the metadata."""

# Operators that pass a number to Python.
_READ_OUT = frozenset({"_local_scalar_dense", "item"})
# Functions and methods that change a container; methods of tensors that write in place end in `_`.
_CHANGES = frozenset(
    {
        *("append", "extend", "insert", "remove", "reverse", "clear", "pop", "popitem", "popleft"),
        *("appendleft", "extendleft", "update", "setdefault", "setitem", "delitem", "setattr"),
    }
)
# Queries of a tensor that do not depend on its values: functions and methods, and attributes that
# `getattr` reads.
_QUESTIONS = frozenset(
    {
        *("size", "dim", "numel", "ndimension", "nelement", "stride", "is_contiguous", "len"),
        *("element_size", "storage_offset", "is_floating_point", "is_complex", "get_device"),
    }
)
_ASKED = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse"),
        *("is_quantized", "is_leaf", "is_meta", "is_nested"),
    }
)


class Reader:
    """Reader of the nodes of one program.

    Args:
        state: The parameters, buffers and constants of the program.

    Attributes:
        places: The scopes of the program.
        builder: The builder of the graph.
        graph: The graph.
        state: The argument `state`.
        work: Runs operations on fake tensors.
        read_out: The values that the program passes to Python, each with its function and line.
        results: The result of each node that has been read.
        between: The enclosing calls of nodes without a module stack, from the stacks of other
            nodes.
        around: The scopes of the user around the operator whose body is read, as in `blocks`.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self.places = state.places
        self.builder = self.places.builder
        self.graph = self.builder.graph
        self.work = FakeRunner(self.graph.uncounted)
        self.read_out: list[tuple[Slot, str, Source | None]] = []
        self.results: dict[torch.fx.Node, Content] = {}
        self.between: dict[ProgramNode, ModuleStack] = {}
        self.around: dict[Any, int] = {}
        # The latest node whose scope and line were looked up, and these.
        self._node: ProgramNode = None
        self._location: _Location | None = None
        # Used scopes: they contain an operation, at any depth.
        self._busy: set[Scope | None] = set()
        # Results of identities, each with the scope of the call of which it may be the only
        # operation.
        self._pending: list[tuple[Scope | None, Slot]] = []

    # -- inputs and outputs ---------------------------------------------------------------

    def take(
        self, leaves: Iterable[tuple[str, Content]], arguments: Iterable[tuple[str, Content]]
    ) -> None:
        """Add the inputs of the model.

        Args:
            leaves: Each input, or a pytree of several, with its path.
            arguments: The arguments of the model's call, by name.
        """
        for path, leaf in leaves:
            for inner, slot in tensor_leaves(leaf, path, public=True, kind=Slot):
                slot.value = self.state.add_source("input", inner, slot.type)
            # A private attribute of an object becomes an input once the program reads it.
            for inner, slot in tensor_leaves(leaf, path, kind=Slot):
                if slot.value is None:
                    slot.make = partial(self.state.add_source, "input", inner, slot.type)
        root = self.places.call_of.get(self.places.root)
        if root is not None:
            # Private attributes are no inputs yet: here they are None.
            # Recorded before any node is read: the program may write into tensors, and change
            # containers.
            for name, content in arguments:
                public = tree_replace(content, Slot, lambda slot: slot if slot.value else None)
                root.arguments.append(Argument(name, _valued(public, [])))

    def finish(
        self,
        outputs: Iterable[tuple[str, Slot]],
        result: Content,
        names: Iterable[str],
        *,
        whole: bool = True,
    ) -> Graph:
        """Return the graph of all nodes that were read.

        Args:
            outputs: The tensors in the result of the program, by path.
            result: The result of the model as a pytree.
            names: The qualified names of the modules, in the order of the tree.
            whole: Whether the graph contains all that ran.
        """
        graph, places = self.graph, self.places
        self._settle()
        root = places.call_of.get(places.root)
        if root is not None:
            root.results = _valued(result, [])
        for path, slot in outputs:
            self.builder.add_output(path, slot.read(), control_inputs=slot.writers())
        # A program does not record arguments and results of its calls: they follow from the edges
        # into each call, and out of it.
        calls = [call for call in graph.calls if call is not root]
        describe_calls(graph, calls, places.caller_of)
        own = self.state.own(dict.fromkeys(["", *names]))
        for call in graph.calls:
            call.parameters = own.get(call.qualified_name or "", ())
        for name in own:
            graph.modules.append(Module(name, places.class_of(name), own[name]))
        reads = [DataRead(slot.read(), by, source) for slot, by, source in self.read_out]
        graph.notes += find_notes(graph, reads=reads, whole=whole)
        return self.builder.finish()

    # -- arguments and metadata of nodes --------------------------------------------------

    def arguments_of(self, node: ProgramNode) -> CallArguments:
        """Return the arguments of a node in plain containers, with slots for other nodes."""
        return self.of(node.args), self.of(node.kwargs)

    def of(self, argument: Content) -> Content:
        """Return an argument of a node in plain containers, with slots for other nodes."""
        kind = type(argument)
        if kind in _PLAIN:
            return argument
        if kind is torch.fx.Node:
            return self.results[argument]
        if isinstance(argument, tuple):
            return tuple([self.of(entry) for entry in argument])
        if isinstance(argument, list):
            return [self.of(entry) for entry in argument]
        if isinstance(argument, dict):
            return {key: self.of(entry) for key, entry in argument.items()}
        if kind is slice:
            return slice(self.of(argument.start), self.of(argument.stop), self.of(argument.step))
        return argument

    def type_of(self, node: ProgramNode) -> Types:
        """Return the types of a node's results from its metadata, or None without metadata."""
        meta = node.meta
        for key in ("val", "example_value", "tensor_meta"):
            metadata = meta.get(key)
            if metadata is not None:
                return types_of_metadata(metadata)
        return None

    def line(self, node: ProgramNode) -> Source | None:
        """Return the line of a node from its stack trace."""
        trace = node.meta.get("stack_trace")
        return source_of(trace) if type(trace) is str else None

    def where(self, node: ProgramNode) -> _Location:
        """Return the scope and the line of a node."""
        if node is self._node and self._location is not None:
            return self._location
        stack = node.meta.get("nn_module_stack")
        return self.stand(node, self.between.get(node) if not stack and self.between else stack)

    def stand(self, node: ProgramNode, stack: ModuleStack | None) -> _Location:
        """Place a node in the calls of a stack, even if its metadata has another stack."""
        source = self.line(node)
        blocks = self.blocks(node)
        if blocks:
            calls = list((stack or {}).items())
            # The outer calls of a node in a part of a split model no longer exist. In a module of
            # an unflattened program, a scope around such calls would be in the innermost one.
            missing = max(len(node.meta.get("nn_module_stack") or ()) - len(calls), 0)
            for block, depth in reversed(blocks.items()):
                if stack or depth >= missing:
                    calls.insert(max(depth - missing, 0), (block, None))
            stack = dict(calls)
        location = self.places.scope_of(stack, source), source
        self._node, self._location = node, location
        return location

    def blocks(self, node: ProgramNode) -> dict[Any, int]:
        """Return the scopes of the user around a node, with the number of calls around each."""
        blocks = scopes_in_trace(node.meta.get("stack_trace"))
        if not blocks:
            return self.around
        depth = len(node.meta.get("nn_module_stack") or ())
        return self.around | {(name, at): max(depth - inside, 0) for name, at, inside in blocks}

    def enter(self, node: ProgramNode) -> _Location:
        """Return the scope and the line of a node that is appended next; mark its scopes used."""
        location = self.where(node)
        around = location[0]
        while around not in self._busy:
            self._busy.add(around)
            if around is not None:
                around = around.parent
        self._settle()
        return location

    def _settle(self) -> None:
        """Append identity operations that are the only operation of a call which has ended."""
        pending, self._pending = self._pending, []
        # The last identity of a call represents all of them.
        for scope, slot in reversed(pending):
            if scope not in self._busy:
                slot.read()

    # -- nodes --------------------------------------------------------------------------

    def call_operator(self, node: ProgramNode) -> Content:
        """Read a node that calls an operator of torch; return its result."""
        target: Any = node.target
        arguments = self.arguments_of(node)
        facts = kernel_info(target)
        types = self.type_of(node)
        if types is None and not facts.writes and "val" not in node.meta:
            # Without metadata, a run on fake tensors has the types.
            effects = self.work.run(target, arguments)
            types = (
                effects.results
                if effects is not None
                else UNKNOWN
                if returns_tensor(facts)
                else None
            )
        done = None
        if type(types) is TensorType or next(types_in(types), None) is not None:
            done = self.work.done_by(facts, arguments)
        elif not facts.writes:
            # No tensor results: arithmetic on sizes, an assertion, or a number that Python reads.
            if facts.label in _READ_OUT:
                line = self.line(node)
                self.read_out += [(slot, "item", line) for slot in slots_in(arguments)]
            return types
        if facts.writes:
            if "nn_module_stack" not in node.meta:
                self._stand_at_source(node, arguments)
        elif type(types) is TensorType:
            # An identity runs no kernel and returns its input: it has a node only if it is all of a
            # call.
            same = None
            if done is not None and not done.kernels and len(done.shows) == 1:
                same = done.shows[0]
            if same is not None or _stands_nowhere(node):
                append = partial(self._append, node, facts, arguments, types, done)
                slots = list(dict.fromkeys(slots_in(arguments)))
                if same is not None:
                    return self._later(node, types, append, slots[same], self.where(node))
                if slots and all(map(_is_state, slots)):
                    return self._later(node, types, append, slots[0])
        return self._append(node, facts, arguments, types, done)

    def _later(
        self,
        node: ProgramNode,
        typed: TensorType,
        append: Callable[[], Slot],
        shown: Slot,
        location: _Location | None = None,
    ) -> Slot:
        """Return the slot for a result of an operator whose node is appended at the first read.

        Args:
            node: The node.
            typed: The type of the result.
            append: Appends the operation; returns its result.
            shown: The slot whose memory the result shares.
            location: The scope and line of an identity, which has a node only if it is all of its
                call. None for an operation on state alone, which is placed in the call that reads
                it.
        """

        def make() -> Value:
            # The call contains another operation: the identity has no node.
            if location is not None and location[0] in self._busy:
                return shown.read()
            before = self._node, self._location
            # An operation on state alone is placed with its reader, which is the latest node.
            self._node, self._location = (
                node,
                location or self._location or (self.places.root, None),
            )
            value = append().read()
            self._node, self._location = before
            return value

        # The number 0 marks state (see `_is_state`).
        at = 0 if location is None else len(self.graph.nodes)
        slot = Slot(typed, make=make, writes=shown.writes, at=at)
        if location is not None:
            self._pending.append((location[0], slot))
        return slot

    def call_function(
        self,
        node: ProgramNode,
        function: Callable[..., object],
        call: CallArguments,
        types: Types,
        *,
        runs: bool,
    ) -> Content:
        """Read a node that calls any other function on tensors; return its result.

        Args:
            node: The node.
            function: The called function.
            call: The arguments of the function.
            types: The types of the results in the metadata, or None without metadata.
            runs: Whether the function runs on fake tensors, which reveals its effects.
        """
        name = self._name_of(function)
        done = self.work.run(function, call) if runs else None
        if types is None:
            args = call[0]
            asked = len(args) > 1 and args[1] in _ASKED if name == "getattr" else name in _QUESTIONS
            if done is None and asked:
                return Constant(node.name)
            types = UNKNOWN if done is None else done.results
        if done is not None and not done.written and next(types_in(types), None) is None:
            # A query of the shape, the type, or the like of a tensor.
            return types
        self.enter(node)
        arguments, read = self.arguments(call)
        appended = self.append(name, node, arguments, read, done or OpEffects())
        if done is None:
            appended.role = role_of([f"aten::{name}"], reads=bool(read))
            # Without a run the name decides: `add_` and `append` write into their first tensor.
            written = read[:1] if name.endswith("_") or name in _CHANGES else []
            shows = dict(enumerate(written)) if name.endswith("_") else {}
            return self.add_outputs(appended, types, read, written, shows)
        appended.random = is_random(done.kernels, arguments, positional_names(function))
        return self.add_run_outputs(appended, types, read, done)

    def _name_of(self, function: Callable[..., object]) -> str:
        """Return the name of an operation; add the names of its arguments to the graph."""
        name = operation_name(function)
        if name not in self.graph.signatures:
            add_signature(self.graph.signatures, name, function)
        return name

    def _stand_at_source(self, node: ProgramNode, arguments: CallArguments) -> None:
        """Place an in-place write without a module stack where the written value was made."""
        last = next(reversed(list(slots_in(arguments[0]))), None)
        if last is not None and last.value is not None:
            producer = last.value.producer
            self._node, self._location = node, (producer.scope, producer.source)

    def _append(
        self,
        fx_node: ProgramNode,
        facts: KernelInfo,
        call: CallArguments,
        types: Types,
        done: OpEffects | None,
    ) -> Content:
        target: Any = fx_node.target
        name = self._name_of(target)
        # Entered before the arguments are read: a module that owns one may have its first call
        # here.
        self.enter(fx_node)
        arguments, read = self.arguments(call, facts.filled)
        node = self.append(name, fx_node, arguments, read, done or OpEffects(kernels=(facts.name,)))
        if not RANDOM.isdisjoint([facts.name, *node.kernels]):
            node.random = is_random([facts.name], arguments, positional_names(target)) or (
                facts.name not in RANDOM and is_random(node.kernels, arguments, ())
            )
        if done is not None:
            return self.add_run_outputs(node, types, read, done)
        node.role = role_of(node.kernels, reads=bool(read))
        node.flops = self.work.by_name(facts, [each.dtype for each in types_in(types)])
        written, shown = written_slots(facts, call), aliased_slots(facts, call, types)
        results = self.add_outputs(node, types, read, written, shown)
        if facts.makes_tensor and not facts.writes:
            node.allocated_bytes = sum([value.size_bytes or 0 for value in node.outputs])
        return results

    def add_run_outputs(
        self, node: Node, types: Types, read: list[Slot], done: OpEffects
    ) -> Content:
        """Add the outputs of an operation, with the writes and aliases of a run on fake tensors."""
        tensors = list(dict.fromkeys(read))
        written = [tensors[index] for index in done.written]
        shows = {
            result_index: tensors[index]
            for result_index, index in enumerate(done.shows)
            if index is not None
        }
        return self.add_outputs(node, types, read, written, shows)

    def arguments(
        self, call: CallArguments, filled: frozenset[str] = frozenset()
    ) -> tuple[list[Argument], list[Slot]]:
        """Return the arguments of a node, and the slots among them in order."""
        args, kwargs = call
        read: list[Slot] = []
        arguments = [Argument(None, _valued(entry, read)) for entry in args]
        for key, entry in kwargs.items():
            if entry is not None:
                nest = FILLED if key in filled else _valued(entry, read)
                arguments.append(Argument(key, nest))
        return arguments, read

    def append(
        self,
        name: str,
        fx_node: ProgramNode,
        arguments: list[Argument],
        read: Sequence[Slot],
        done: OpEffects,
    ) -> Node:
        """Append an operation that was entered and reads these slots, without outputs."""
        scope, source = self.where(fx_node)
        values = [slot.read() for slot in read]
        writers: dict[Node, None] = {}
        for slot in read:
            if slot.writes:
                writers.update(dict.fromkeys(slot.writers()))
        for value in values:
            # An edge from a producer needs no control dependency.
            writers.pop(value.producer, None)
        node = self.builder.append_op(
            name, scope, values, arguments, list(writers), source, list(done.kernels)
        )
        node.flops, node.gradients, node.role = done.flops, done.gradients, done.role
        node.allocated_bytes = done.allocated_bytes
        return node

    def add_outputs(
        self,
        node: Node,
        types: Types,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Content:
        """Add the outputs of an operation; return them in their containers.

        Args:
            node: The operation.
            types: The results, with a `TensorType` for each tensor.
            read: The slots that the operation reads.
            written: The slots among them into which it writes.
            shows: The slot whose memory a result shares, by the position of the result.
        """
        at = len(self.graph.nodes)
        if type(types) is TensorType and not shows and not written:
            # Most operations return one tensor with new memory.
            return Slot(types, add_value(node, types), at=at)
        shows = shows or {}
        count = 0

        def each(typed: TensorType) -> Slot:
            nonlocal count
            shown, count = shows.get(count), count + 1
            value = add_value(node, typed)
            if shown is None:
                return Slot(typed, value, at=at)
            # An operator that returns the tensor into which it writes returns that slot.
            if shown in written:
                shown.type = typed
                shown.write(node, value, at)
                return shown
            return Slot(typed, value, writes=shown.writes, at=at)

        results = tree_replace(types, TensorType, each)
        result_slots = list(slots_in(results))
        for slot in written:
            # A written tensor that is not returned is an additional output.
            if slot not in result_slots:
                slot.write(node, add_value(node, slot.type), at)
        if written:
            node.writes = tuple([index for index, slot in enumerate(read) if slot in written])
        return results


def _stands_nowhere(node: object) -> bool:
    """Whether a node of torch.fx has no module stack, as nodes that torch inserted."""
    return isinstance(node, torch.fx.Node) and not node.meta.get("nn_module_stack")


def _is_state(slot: Slot) -> bool:
    """Whether a tensor has no producer: it is state of the program, or made of state alone."""
    return slot.make is not None and slot.at == 0


_UNNAMED = Constant("<Tensor>")
# The tensors of a program have names; a tensor that a user's container makes has none.
_constant = ArgumentConverter(lambda _: _UNNAMED).nest
_PLAIN = frozenset({int, float, bool, str, complex, type(None)})
# Types of arguments that are never abbreviated.
_WHOLE = frozenset({float, bool, complex, type(None), Constant})


def _valued(content: Content, read: list[Slot], inside: frozenset[int] = frozenset()) -> Nest:
    """Return arguments with values in place of slots; append the slots to a list.

    Args:
        content: The arguments.
        read: The list to which the slots are appended, in order.
        inside: The enclosing containers, by `id`.
    """
    kind = type(content)
    if kind is Slot:
        read.append(content)
        return content.read()
    if kind in _WHOLE:
        return content
    if id(content) in inside:
        # A container that contains itself.
        return Constant("...")
    inside |= {id(content)}
    if kind is list or kind is tuple:
        return kind([_valued(entry, read, inside) for entry in content])
    if kind is not dict and next(slots_in(content), None) is None:
        return _constant(content)
    fields = fields_of(content)
    entries = children(content) if fields is None else fields
    is_keyed = fields is not None or isinstance(content, Mapping) or hasattr(content, "_fields")
    if not is_keyed and isinstance(content, slice | Sequence | Set | ValuesView):
        listed = [_valued(entry, read, inside) for _, entry in entries]
        return tuple(listed) if isinstance(content, tuple) else listed
    return {
        key_text(key, position): _valued(entry, read, inside)
        for position, (key, entry) in enumerate(entries)
        if is_keyed or next(slots_in(entry), None) is not None
    }
