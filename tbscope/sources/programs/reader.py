"""The reader: turns the nodes of a program into those of a graph, one after the other.

It runs nothing of the program. What a node gives is told by its metadata, or by its operation
on stand-ins; what it reads, writes and shows, by the schema of its operator.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Constant, Nest, Node, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.programs.arguments import plain, valued
from tbscope.sources.programs.last_nodes import last_nodes
from tbscope.sources.programs.lines import source_of
from tbscope.sources.programs.places import Places
from tbscope.sources.programs.questions import CHANGES, is_question
from tbscope.sources.programs.schemas import gives_tensor, may_show, shown_slots, written_slots
from tbscope.sources.programs.slots import Held, Slot, slots_in
from tbscope.sources.programs.types import (
    UNKNOWN,
    TensorType,
    replaced,
    type_nest,
    types_in,
)
from tbscope.sources.programs.work import Done, Workshop
from tbscope.sources.torch.literals import FILLED
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


class Reader:
    """Reads the nodes of one program.

    Args:
        builder: The door to the graph.
        places: The scopes of the program.

    Attributes:
        read_out: The values that are handed to Python, with their names there and lines.
        between: The calls around the nodes that tell of none, where others tell of them.
        in_one_call: Whether all that is read now stands in one call, whatever its nodes tell.
    """

    def __init__(self, builder: GraphBuilder, places: Places) -> None:
        self.builder = builder
        self.graph = builder.graph
        self.places = places
        self.work = Workshop(builder.graph.uncounted)
        self.read_out: list[tuple[Slot, str, Source | None]] = []
        self.held: dict[torch.fx.Node, Held] = {}
        self.between: dict[Any, Mapping[str, Any]] = {}
        self.in_one_call = False
        self._where: Any = (None, None)
        # The name of each operator that was met.
        self._operations: dict[KernelFacts, str] = {}
        # The scopes in which an operation stands, also deep inside.
        self._busy: set[Scope | None] = set()
        self._last: dict[torch.fx.Graph, dict[tuple[str, ...], torch.fx.Node]] = {}

    # -- what nodes gave ----------------------------------------------------------------

    def of(self, given: Any) -> Held:
        """Return what is given to a node, with slots and constants for other nodes."""
        return plain(given, self.held.__getitem__)

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
        if node is self._where[0]:
            known: tuple[Scope | None, Source | None] = self._where[1]
            return known
        stack = None if self.in_one_call else node.meta.get("nn_module_stack")
        if not stack and not self.in_one_call and self.between:
            stack = self.between.get(node)
        return self.stand(node, stack)

    def stand(
        self, node: ProgramNode, stack: Mapping[str, Any] | None
    ) -> tuple[Scope | None, Source | None]:
        """Have a node stand in these calls, also where its metadata tell of others."""
        source = self.line(node)
        place = self.places.scope_of(stack, source), source
        self._where = node, place
        return place

    # -- nodes --------------------------------------------------------------------------

    def add_source(
        self,
        kind: Any,
        name: str | None,
        typed: TensorType,
        *,
        scope: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Value:
        """Add an input, a parameter, a buffer or a constant; return its value."""
        node = self.builder.append_source(kind, name, scope)
        node.attributes.update(attributes or {})
        return self._give(node, typed)

    def call_operator(self, node: ProgramNode) -> Held:
        """Read a node that calls an operator of torch; return what it gives."""
        target: Any = node.target
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        facts = kernel_facts(target)
        told = self.type_of(node)
        if told is None and not facts.writes and "val" not in node.meta:
            # Nobody has told: what it gives on stand-ins tells.
            ran = self.work.run(target, args, kwargs)
            told = ran.results if ran is not None else UNKNOWN if gives_tensor(facts) else None
        if type(told) is not TensorType and next(types_in(told), None) is None:
            # A number made of sizes, a check that holds, or a number that Python reads.
            done = None
            if not facts.writes:
                if facts.label in _READ_OUT:
                    line = self.line(node)
                    self.read_out += [(slot, "item", line) for slot in slots_in(args)]
                return told
        else:
            done = self._done(facts, args, kwargs, told)
        if facts.writes and "nn_module_stack" not in node.meta:
            self._stand_at_source(node, args)
        elif (
            isinstance(told, TensorType)
            and not facts.writes
            and _stands_nowhere(node)
            and _reads_state(args)
        ):
            return self._once_read(node, facts, args, kwargs, told)
        return self._append(node, facts, args, kwargs, told, done)

    def _once_read(
        self, node: ProgramNode, facts: KernelFacts, args: Any, kwargs: Any, told: TensorType
    ) -> Slot:
        """Return the slot of what is made of state alone, and made in the call that reads it."""

        def make() -> Value:
            reader, place = self._where
            self._where = node, place or (self.places.root, None)
            done = self._done(facts, args, kwargs, told)
            made: Slot = self._append(node, facts, args, kwargs, told, done)
            self._where = reader, place
            return made.read()

        return Slot(told, make=make, memory=next(slots_in(args)).memory)

    def call_function(
        self,
        node: ProgramNode,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        told: Any,
        *,
        runs: bool,
    ) -> Held:
        """Read a node that calls any other function on tensors; return what it gives.

        Args:
            node: The node.
            function: What it calls.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            told: What the metadata tell of what it gives; None where they tell nothing.
            runs: Whether it is called on stand-ins, to learn what it does.
        """
        name = operation_name(function)
        if name not in self.graph.signatures:
            add_signature(self.graph.signatures, name, function)
        done = self.work.run(function, args, kwargs) if runs else None
        if told is None:
            if done is None and is_question(name, args):
                return Constant(node.name)
            told = UNKNOWN if done is None else done.results
        if done is not None and not done.written and next(types_in(told), None) is None:
            # It asks a tensor for its shape, its type, or the like.
            return told
        self.where(node)
        arguments, read = self.arguments(args, kwargs)
        appended = self.append(name, node, arguments, read, done or Done())
        if done is None:
            kernel = f"aten::{name}"
            appended.role = role_of([kernel], reads=bool(read))
            written = read[:1] if name in CHANGES or name.endswith("_") else []
            shows = dict(enumerate(written)) if name.endswith("_") else {}
            return self.give(appended, told, read, written, shows)
        appended.random = is_random(done.kernels, arguments, positional_names(function))
        return self._give_done(appended, told, read, done, [])

    def _stand_at_source(self, node: ProgramNode, args: Any) -> None:
        """Have a write of which nobody told the place stand where what it writes was made."""
        last = next(reversed(list(slots_in(args))), None)
        if last is not None and last.value is not None:
            producer = last.value.producer
            self._where = node, (producer.scope, producer.source)

    def _is_all(self, node: Any) -> bool:
        """Tell whether nothing stands in the call of a node before it, and nothing comes after."""
        scope, _ = self.where(node)
        if scope in self._busy:
            return False
        last = self._last.get(node.graph)
        if last is None:
            last = self._last[node.graph] = last_nodes(node.graph)
        return last.get(tuple(node.meta.get("nn_module_stack") or ())) is node

    def _done(self, facts: KernelFacts, args: Any, kwargs: Any, told: Any) -> Done | None:
        """Return what an operator does; None where its name and its schema tell all."""
        if self.work.is_composite(facts):
            return self.work.run(facts.kernel, args, kwargs)
        return self.work.count(facts, args, kwargs, told)

    def _append(
        self,
        fx_node: ProgramNode,
        facts: KernelFacts,
        args: Any,
        kwargs: Any,
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
        self.where(fx_node)
        arguments, read = self.arguments(args, kwargs, facts.filled)
        if done is not None and not done.kernels and len(done.shows) == 1:
            # Nothing ran, and what came in came out: no operation, but where it is all of a call.
            place = done.shows[0]
            if place is not None and isinstance(told, TensorType) and not self._is_all(fx_node):
                return list(dict.fromkeys(read))[place]
        node = self.append(name, fx_node, arguments, read, done or Done(kernels=(facts.name,)))
        if not RANDOM.isdisjoint([facts.name, *node.kernels]):
            node.random = is_random([facts.name], arguments, positional_names(target)) or (
                facts.name not in RANDOM and is_random(node.kernels, arguments, ())
            )
        written = written_slots(facts, args, kwargs)
        if done is None:
            node.role = role_of(node.kernels, reads=bool(read))
            gave = [told] if type(told) is TensorType else list(types_in(told))
            node.flops = self.work.by_name(facts, [each.dtype for each in gave])
            if facts.makes_tensor and not facts.writes:
                node.allocated_bytes = sum([each.size_bytes for each in gave])
        elif done.shows:
            return self._give_done(node, told, read, done, written)
        else:
            node.role = role_of(node.kernels, reads=bool(read))
        shown = shown_slots(facts, args, kwargs, told) if may_show(facts) else None
        return self.give(node, told, read, written, shown)

    def _give_done(
        self, node: Node, told: Any, read: list[Slot], done: Done, written: list[Slot]
    ) -> Held:
        """Give an operation its outputs, after a run on stand-ins told what it writes and shows."""
        among = list(dict.fromkeys(read))
        written += [among[place] for place in done.written if among[place] not in written]
        shows = {at: among[place] for at, place in enumerate(done.shows) if place is not None}
        return self.give(node, told, read, written, shows)

    def nest(self, held: Held) -> Nest:
        """Return a nest with the values that its slots have now."""
        return valued(held, [])

    def arguments(
        self, args: Any, kwargs: Any, filled: frozenset[str] = frozenset()
    ) -> tuple[list[Argument], list[Slot]]:
        """Return the arguments of a node, and the slots among them in order."""
        read: list[Slot] = []
        arguments = [Argument(None, valued(given, read)) for given in args]
        for key, given in kwargs.items():
            if key in filled and given is not None:
                arguments.append(Argument(key, FILLED))
            elif given is not None:
                arguments.append(Argument(key, valued(given, read)))
        return arguments, read

    def append(
        self,
        name: str,
        fx_node: ProgramNode,
        arguments: list[Argument],
        read: Sequence[Slot],
        done: Done,
    ) -> Node:
        """Append an operation that reads these slots, without outputs."""
        scope, source = self.where(fx_node)
        around = scope
        while around not in self._busy:
            self._busy.add(around)
            if around is not None:
                around = around.parent
        values = [slot.read() for slot in read]
        writers: dict[Node, None] = {}
        for slot in read:
            if slot.memory.writes:
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
            return Slot(told, self._give(node, told), at=at)
        shows = shows or {}
        count = 0

        def each(typed: TensorType) -> Slot:
            nonlocal count
            shown, count = shows.get(count), count + 1
            value = self._give(node, typed)
            if shown is None:
                return Slot(typed, value, at=at)
            if shown in written:
                shown.type = typed
                shown.write(node, value, at)
                return shown
            return Slot(typed, value, memory=shown.memory, at=at)

        held = replaced(told, TensorType, each)
        given = list(slots_in(held))
        for slot in written:
            if slot not in given:
                slot.write(node, self._give(node, slot.type), at)
        if written:
            node.writes = tuple([place for place, slot in enumerate(read) if slot in written])
        return held

    def _give(self, node: Node, typed: TensorType) -> Value:
        value = Value(node, len(node.outputs), typed.shape, typed.dtype, typed.device)
        node.outputs.append(value)
        if typed.symbols:
            before = node.attributes.get("symbolic_shape")
            node.attributes["symbolic_shape"] = (
                typed.symbols if before is None else f"{before}, {typed.symbols}"
            )
        return value


def _stands_nowhere(node: Any) -> bool:
    """Tell whether a program says of a node that it stands in no call, as of what torch put in."""
    return isinstance(node, torch.fx.Node) and not node.meta.get("nn_module_stack")


def _reads_state(args: Any) -> bool:
    """Tell whether an operation reads tensors, and these are what the program holds."""
    slots = list(slots_in(args))
    return bool(slots) and all(slot.make is not None for slot in slots)
