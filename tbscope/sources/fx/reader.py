"""The reader: turns the nodes of a program into those of a graph, one after the other.

It runs nothing of the program. What a node gives is told by its metadata, or by its operation
on stand-ins; what it reads, writes and shows, by the schema of its operator.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set, ValuesView
from functools import partial
from typing import Any, TypeAlias

import torch

from tbscope.analysis.notes import Read, find_notes
from tbscope.ir.graph import Argument, Constant, Graph, Module, Node, Source, Value
from tbscope.ir.scope_io import describe_calls
from tbscope.ir.scopes import Scope
from tbscope.sources.fx.aliasing import (
    UNKNOWN,
    Given,
    Held,
    Slot,
    TensorType,
    add_value,
    is_symbol,
    replaced,
    slots_in,
    type_nest,
    types_in,
)
from tbscope.sources.fx.io_names import result_paths
from tbscope.sources.fx.op_costs import (
    Done,
    Workshop,
    gives_tensor,
    shown_slots,
    written_slots,
)
from tbscope.sources.fx.scopes import Places
from tbscope.sources.fx.source_lines import source_of
from tbscope.sources.fx.state import State
from tbscope.sources.torch.calling.argument_values import FILLED, Literals
from tbscope.sources.torch.calling.pytree import children, fields_of, key_text
from tbscope.sources.torch.operations import (
    RANDOM,
    KernelFacts,
    add_signature,
    is_random,
    kernel_facts,
    operation_name,
    positional_names,
    role_of,
)

__all__ = ["ProgramNode", "Reader"]


ProgramNode: TypeAlias = Any
"""A node of a program, as torch.fx has it, or another form of program that is read alike: with
`name`, `target`, `args`, `kwargs`, and `meta` for what its program tells of it."""

# What holds in every run of the program, or hands a number to Python.
_READ_OUT = frozenset({"_local_scalar_dense", "item"})
# Functions and methods that change a container, beside those of tensors that end in `_`.
_CHANGES = frozenset(
    {
        *("append", "extend", "insert", "remove", "reverse", "clear", "pop", "popitem", "popleft"),
        *("appendleft", "extendleft", "update", "setdefault", "setitem", "delitem", "setattr"),
    }
)
# What is asked of a tensor, and not of its values: by functions and methods, and by `getattr`.
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
    """Reads the nodes of one program.

    Args:
        places: The scopes of the program.
        kinds: What each tensor of the program is (see `State`).
        tensors: Its tensors.

    Attributes:
        builder: The door to the graph.
        graph: The graph.
        state: What the program holds.
        read_out: The values that are handed to Python, with their names there and lines.
        between: The calls around the nodes that tell of none, where others tell of them.
    """

    def __init__(
        self, places: Places, kinds: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> None:
        self.places = places
        self.builder = places.builder
        self.graph = places.builder.graph
        self.state = State(places, kinds, tensors)
        self.work = Workshop(self.graph.uncounted)
        self.read_out: list[tuple[Slot, str, Source | None]] = []
        self.held: dict[torch.fx.Node, Held] = {}
        self.between: dict[Any, Mapping[str, Any]] = {}
        # The latest node that was asked for its place, and that.
        self._node: ProgramNode = None
        self._place: tuple[Scope | None, Source | None] | None = None
        # The name of each operator that was met.
        self._operations: dict[KernelFacts, str] = {}
        # The scopes in which an operation stands, also deep inside.
        self._busy: set[Scope | None] = set()
        # What gives back what it got, and may be all of its call, with the scope of that.
        self._pending: list[tuple[Scope | None, Slot]] = []

    # -- the whole ----------------------------------------------------------------------

    def take(
        self, leaves: Iterable[tuple[str, Held]], arguments: Iterable[tuple[str, Held]]
    ) -> None:
        """Add the inputs of the model.

        Args:
            leaves: Each of them, or a nest of several, with its path.
            arguments: What its call is given, by name.
        """
        for path, leaf in leaves:
            for inner, slot in result_paths(leaf, path):
                slot.value = self.state.add_source("input", inner, slot.type)
            # Private attributes of an object are inputs once the program reads them.
            for inner, slot in result_paths(leaf, path, public=False):
                if slot.value is None:
                    slot.make = partial(self.state.add_source, "input", inner, slot.type)
        root = self.places.call_of.get(self.places.root)
        if root is not None:
            there = [
                (name, replaced(held, Slot, lambda slot: slot if slot.value else None))
                for name, held in arguments
            ]
            # As they come in: the program may write into tensors, and change containers.
            root.arguments = [Argument(name, _valued(held, [])) for name, held in there]

    def finish(
        self,
        outputs: Iterable[tuple[str, Slot]],
        result: Held,
        names: Iterable[str],
        *,
        whole: bool = True,
    ) -> Graph:
        """Return the graph of all that was read.

        Args:
            outputs: The results of the program, by path.
            result: What the model gives, in its nest.
            names: The qualified names of the modules, in the order of the tree.
            whole: Whether all that ran is in it.
        """
        graph, places = self.graph, self.places
        self._settle()
        root = places.call_of.get(places.root)
        if root is not None:
            root.results = _valued(result, [])
        for path, slot in outputs:
            self.builder.add_output(path, slot.read(), control_inputs=slot.writers())
        # A program does not tell what its calls were given: it is what enters and leaves them.
        calls = [call for call in graph.calls if call is not root]
        describe_calls(graph, calls, lambda scope: places.runs_in.get(scope, scope.parent))
        own = self.state.own()
        for call in graph.calls:
            call.caller = places.callers.get(call.scope)
            call.parameters = own.get(call.qualified_name or "", ())
        for name in dict.fromkeys(["", *names, *own]):
            graph.modules.append(Module(name, places.class_of(name), own.get(name, ())))
        reads = [Read(slot.read(), by, source) for slot, by, source in self.read_out]
        graph.notes += find_notes(graph, reads=reads, whole=whole)
        return self.builder.finish()

    # -- what nodes gave ----------------------------------------------------------------

    def given(self, node: ProgramNode) -> Given:
        """Return the arguments of a node in plain containers, with slots for other nodes."""
        return self.of(node.args), self.of(node.kwargs)

    def of(self, given: Any) -> Held:
        """Return what is given to a node in plain containers, with slots for other nodes."""
        kind = type(given)
        if kind in _PLAIN:
            return given
        if kind is torch.fx.Node:
            return self.held[given]
        if isinstance(given, tuple):
            return tuple([self.of(entry) for entry in given])
        if isinstance(given, list):
            return [self.of(entry) for entry in given]
        if isinstance(given, dict):
            return {key: self.of(entry) for key, entry in given.items()}
        if kind is slice:
            return slice(self.of(given.start), self.of(given.stop), self.of(given.step))
        return given

    def type_of(self, node: ProgramNode) -> Any:
        """Return what the metadata of a node tell of what it gives; None for nothing."""
        meta = node.meta
        for word in ("val", "example_value", "tensor_meta"):
            told = meta.get(word)
            if told is not None:
                return type_nest(told)
        return None

    def line(self, node: ProgramNode) -> Source | None:
        """Return the line of a node, by its stack trace."""
        trace = node.meta.get("stack_trace")
        return source_of(trace) if type(trace) is str else None

    def where(self, node: ProgramNode) -> tuple[Scope | None, Source | None]:
        """Return the scope and the line of a node."""
        if node is self._node and self._place is not None:
            return self._place
        stack = node.meta.get("nn_module_stack")
        return self.stand(node, self.between.get(node) if not stack and self.between else stack)

    def stand(
        self, node: ProgramNode, stack: Mapping[str, Any] | None
    ) -> tuple[Scope | None, Source | None]:
        """Have a node stand in these calls, also where its metadata tell of others."""
        source = self.line(node)
        place = self.places.scope_of(stack, source), source
        self._node, self._place = node, place
        return place

    def enter(self, node: ProgramNode) -> tuple[Scope | None, Source | None]:
        """Return the scope and the line of a node, which is about to be in the graph."""
        place = self.where(node)
        around = place[0]
        while around not in self._busy:
            self._busy.add(around)
            if around is not None:
                around = around.parent
        self._settle()
        return place

    def _settle(self) -> None:
        """Append what gives back what it got and is all of its call, as that is over now."""
        pending, self._pending = self._pending, []
        # The last of several stands for them.
        for scope, slot in reversed(pending):
            if scope not in self._busy:
                slot.read()

    # -- nodes --------------------------------------------------------------------------

    def call_operator(self, node: ProgramNode) -> Held:
        """Read a node that calls an operator of torch; return what it gives."""
        target: Any = node.target
        given = self.given(node)
        facts = kernel_facts(target)
        told = self.type_of(node)
        if told is None and not facts.writes and "val" not in node.meta:
            # Nobody has told: what it gives on stand-ins tells.
            ran = self.work.run(target, given)
            told = ran.results if ran is not None else UNKNOWN if gives_tensor(facts) else None
        done = None
        if type(told) is TensorType or next(types_in(told), None) is not None:
            done = self.work.done_by(facts, given, told)
        elif not facts.writes:
            # A number made of sizes, a check that holds, or a number that Python reads.
            if facts.label in _READ_OUT:
                line = self.line(node)
                self.read_out += [(slot, "item", line) for slot in slots_in(given)]
            return told
        if facts.writes:
            if "nn_module_stack" not in node.meta:
                self._stand_at_source(node, given)
        elif type(told) is TensorType:
            # Nothing ran, and what came in came out: no operation, but where it is all of a call.
            same = None
            if done is not None and not done.kernels and len(done.shows) == 1:
                same = done.shows[0]
            if same is not None or _stands_nowhere(node):
                append = partial(self._append, node, facts, given, told, done)
                slots = list(dict.fromkeys(slots_in(given)))
                if same is not None:
                    return self._later(node, told, append, slots[same], self.where(node))
                if slots and all(map(_is_state, slots)):
                    return self._later(node, told, append, slots[0])
        return self._append(node, facts, given, told, done)

    def _later(
        self,
        node: ProgramNode,
        told: TensorType,
        append: Callable[[], Slot],
        shown: Slot,
        place: tuple[Scope | None, Source | None] | None = None,
    ) -> Slot:
        """Return the slot of what an operator gives whose node is made once it is read.

        Args:
            node: The node.
            told: What it gives.
            append: Appends the operation; returns what it gives.
            shown: Whose memory that shows.
            place: Where it stands if it is all of its call, and gives back what it got: else there
                is no node. None for what is made of state alone, in the call that reads it.
        """

        def make() -> Value:
            if place is not None and place[0] in self._busy:
                return shown.read()
            before = self._node, self._place
            self._node, self._place = node, place or self._place or (self.places.root, None)
            value = append().read()
            self._node, self._place = before
            return value

        at = 0 if place is None else len(self.graph.nodes)
        slot = Slot(told, make=make, writes=shown.writes, at=at)
        if place is not None:
            self._pending.append((place[0], slot))
        return slot

    def call_function(
        self,
        node: ProgramNode,
        function: Callable[..., Any],
        given: Given,
        told: Any,
        *,
        runs: bool,
    ) -> Held:
        """Read a node that calls any other function on tensors; return what it gives.

        Args:
            node: The node.
            function: What it calls.
            given: What that is given.
            told: What the metadata tell of what it gives; None where they tell nothing.
            runs: Whether it is called on stand-ins, to learn what it does.
        """
        name = operation_name(function)
        if name not in self.graph.signatures:
            add_signature(self.graph.signatures, name, function)
        done = self.work.run(function, given) if runs else None
        if told is None:
            args = given[0]
            asked = len(args) > 1 and args[1] in _ASKED if name == "getattr" else name in _QUESTIONS
            if done is None and asked:
                return Constant(node.name)
            told = UNKNOWN if done is None else done.results
        if done is not None and not done.written and next(types_in(told), None) is None:
            # It asks a tensor for its shape, its type, or the like.
            return told
        self.enter(node)
        arguments, read = self.arguments(given)
        appended = self.append(name, node, arguments, read, done or Done())
        if done is None:
            appended.role = role_of([f"aten::{name}"], reads=bool(read))
            written = read[:1] if name.endswith("_") or name in _CHANGES else []
            shows = dict(enumerate(written)) if name.endswith("_") else {}
            return self.give(appended, told, read, written, shows)
        appended.random = is_random(done.kernels, arguments, positional_names(function))
        return self.give_done(appended, told, read, done)

    def _stand_at_source(self, node: ProgramNode, given: Given) -> None:
        """Have a write of which nobody told the place stand where what it writes was made."""
        last = next(reversed(list(slots_in(given[0]))), None)
        if last is not None and last.value is not None:
            producer = last.value.producer
            self._node, self._place = node, (producer.scope, producer.source)

    def _append(
        self,
        fx_node: ProgramNode,
        facts: KernelFacts,
        given: Given,
        told: Any,
        done: Done | None,
    ) -> Held:
        target: Any = fx_node.target
        name = self._operations.get(facts)
        if name is None:
            name = self._operations[facts] = operation_name(target)
            if name not in self.graph.signatures:
                add_signature(self.graph.signatures, name, target)
        # Before its arguments, whose owners may have a first call here.
        self.enter(fx_node)
        arguments, read = self.arguments(given, facts.filled)
        node = self.append(name, fx_node, arguments, read, done or Done(kernels=(facts.name,)))
        if not RANDOM.isdisjoint([facts.name, *node.kernels]):
            node.random = is_random([facts.name], arguments, positional_names(target)) or (
                facts.name not in RANDOM and is_random(node.kernels, arguments, ())
            )
        if done is not None and done.shows:
            return self.give_done(node, told, read, done)
        node.role = role_of(node.kernels, reads=bool(read))
        if done is None:
            gave = [told] if type(told) is TensorType else list(types_in(told))
            node.flops = self.work.by_name(facts, [each.dtype for each in gave])
            if facts.makes_tensor and not facts.writes:
                node.allocated_bytes = sum([each.size_bytes for each in gave])
        written, shown = written_slots(facts, given), shown_slots(facts, given, told)
        return self.give(node, told, read, written, shown)

    def give_done(self, node: Node, told: Any, read: list[Slot], done: Done) -> Held:
        """Give an operation its outputs, after a run on stand-ins told what it writes and shows."""
        among = list(dict.fromkeys(read))
        written = [among[place] for place in done.written]
        shows = {at: among[place] for at, place in enumerate(done.shows) if place is not None}
        return self.give(node, told, read, written, shows)

    def arguments(
        self, given: Given, filled: frozenset[str] = frozenset()
    ) -> tuple[list[Argument], list[Slot]]:
        """Return the arguments of a node, and the slots among them in order."""
        args, kwargs = given
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
        done: Done,
    ) -> Node:
        """Append an operation that was entered and reads these slots, without outputs."""
        scope, source = self.where(fx_node)
        values = [slot.read() for slot in read]
        writers: dict[Node, None] = {}
        for slot in read:
            if slot.writes:
                writers.update(dict.fromkeys(slot.writers()))
        for value in values:
            writers.pop(value.producer, None)
        node = self.builder.append_op(
            name, scope, values, arguments, list(writers), source, list(done.kernels)
        )
        node.flops, node.gradients, node.role = done.flops, done.gradients, done.role
        node.allocated_bytes = done.allocated_bytes
        return node

    def give(
        self,
        node: Node,
        told: Any,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Held:
        """Give an operation its outputs; return them in their nest.

        Args:
            node: The operation.
            told: What it gives, with a `TensorType` for each tensor.
            read: The slots that it reads.
            written: Those of them into which it writes.
            shows: For results that show memory of what it reads, by position: whose.
        """
        at = len(self.graph.nodes)
        if type(told) is TensorType and not shows and not written:
            # As most operations do.
            return Slot(told, add_value(node, told), at=at)
        shows = shows or {}
        count = 0

        def each(typed: TensorType) -> Slot:
            nonlocal count
            shown, count = shows.get(count), count + 1
            value = add_value(node, typed)
            if shown is None:
                return Slot(typed, value, at=at)
            if shown in written:
                shown.type = typed
                shown.write(node, value, at)
                return shown
            return Slot(typed, value, writes=shown.writes, at=at)

        held = replaced(told, TensorType, each)
        given = list(slots_in(held))
        for slot in written:
            if slot not in given:
                slot.write(node, add_value(node, slot.type), at)
        if written:
            node.writes = tuple([place for place, slot in enumerate(read) if slot in written])
        return held


def _stands_nowhere(node: Any) -> bool:
    """Tell whether a program says of a node that it stands in no call, as of what torch put in."""
    return isinstance(node, torch.fx.Node) and not node.meta.get("nn_module_stack")


def _is_state(slot: Slot) -> bool:
    """Tell whether no node gave a tensor: the program has it, or it is made of such alone."""
    return slot.make is not None and slot.at == 0


_UNNAMED: Any = Constant("<Tensor>")
# A program holds its tensors by name; one that a container of the user's makes has none.
_constant = Literals(lambda _: _UNNAMED).nest
_PLAIN = frozenset({int, float, bool, str, complex, type(None)})
# What no literal of an argument is made shorter of.
_WHOLE = frozenset({float, bool, complex, type(None), Constant})


def _valued(given: Any, read: list[Slot], inside: frozenset[int] = frozenset()) -> Any:
    """Return arguments with values for slots; add the slots to a list.

    Args:
        given: The arguments.
        read: Where the slots are added, in order.
        inside: The containers around them, by `id`.
    """
    kind = type(given)
    if kind is Slot:
        read.append(given)
        return given.read()
    if kind in _WHOLE:
        return given
    if id(given) in inside:
        # A container that holds itself.
        return Constant("...")
    inside |= {id(given)}
    if kind is list or kind is tuple:
        return kind([_valued(entry, read, inside) for entry in given])
    if is_symbol(given):
        return Constant(str(given))
    if kind is not dict and next(slots_in(given), None) is None:
        return _constant(given)
    fields = fields_of(given)
    entries = children(given) if fields is None else fields
    by_key = fields is not None or isinstance(given, Mapping) or hasattr(given, "_fields")
    if not by_key and isinstance(given, slice | Sequence | Set | ValuesView):
        listed = [_valued(entry, read, inside) for _, entry in entries]
        return tuple(listed) if isinstance(given, tuple) else listed
    return {
        key_text(key, position): _valued(entry, read, inside)
        for position, (key, entry) in enumerate(entries)
        if by_key or next(slots_in(entry), None) is not None
    }
