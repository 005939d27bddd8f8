"""Control flow of TorchScript: each branch, and the body of a loop, is read once in its own scope.

The branch that runs and the number of iterations are undecided. So one operation (`If`, `Loop`)
merges the results: it reads each value that a result may be. `merge` first reads all bodies, each
from the same state: after a body, all older slots, lists and dicts are restored, and their last
content in the body is recorded. It then merges the results and the recorded content entry by
entry, and appends the operation, which gives the merged slots their values.

`ScriptReader` is a `Reader` that takes `NodeAdapter`s for the nodes of a program. The type of a
result is in the graph, or follows from running the operation on meta or fake tensors; the schema of
the operator lists the tensors that are read, written and viewed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.graph import Argument, Node, Source, Value
from tbscope.sources.fx.aliasing import Content, Slot, slots_in
from tbscope.sources.fx.op_costs import OpEffects
from tbscope.sources.fx.reader import ProgramNode, Reader
from tbscope.sources.fx.scopes import ModuleStack, State
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType, Types
from tbscope.sources.torch.subclasses import dtype_name
from tbscope.sources.torchscript.operators import MUTATIONS
from tbscope.sources.torchscript.values import (
    UNINITIALIZED,
    UNKNOWN_KEY,
    Contents,
    ScriptBlock,
    ScriptObject,
    ScriptValue,
    UnknownEntries,
    UnknownValue,
    common_type,
    has_slot,
    is_open,
    known_entries,
    mapped,
    nodes_of,
    origins,
)

_Journal: TypeAlias = dict[int, tuple[Content, Content]]
"""Changed slots, lists and dicts with their earlier states, by `id`. The state of a slot is its
value, the number of the node that returned the value, and its type; a container's is a copy."""


class NodeAdapter(NamedTuple):
    """A node of TorchScript, in the form that `Reader` takes.

    Attributes:
        name: Its name in the graph: the name of its first output.
        target: The callee.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        types: The results, with a `TensorType` for each tensor; None if they are unknown.
        meta: The metadata in which `Reader.where` looks up the enclosing module calls.
        source: The source line.
    """

    name: str
    target: Any
    args: Sequence[Content]
    kwargs: Mapping[str, Content]
    types: Types
    meta: Mapping[str, ModuleStack]
    source: Source | None


class ScriptReader(Reader):
    """Reads the nodes of TorchScript's graphs (see `Reader`), and journals changes of state."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self._journals: list[_Journal] = []

    def type_of(self, node: ProgramNode) -> Types:
        """Return the types of a node's results, or None."""
        return node.types

    def line(self, node: ProgramNode) -> Source | None:
        """Return the source line of a node, or None."""
        source: Source | None = node.source
        return source

    def add_outputs(
        self,
        node: Node,
        types: Types,
        read: Sequence[Slot] = (),
        written: Sequence[Slot] = (),
        shows: Mapping[int, Slot] | None = None,
    ) -> Content:
        """Add the outputs of an operation; record the state of each slot before its write."""
        for slot in written:
            self.note(slot)
        return super().add_outputs(node, types, read, written, shows)

    def note(self, content: Content) -> None:
        """Record the state of a slot, list or dict before a change, in the innermost open journal.

        Only the first change in a journal counts.
        """
        if self._journals and id(content) not in self._journals[-1]:
            is_slot = type(content) is Slot
            before = (content.value, content.at, content.type) if is_slot else content.copy()
            self._journals[-1][id(content)] = content, before

    @contextmanager
    def journal(self) -> Iterator[_Journal]:
        """Record the earlier state of slots, lists and dicts that change while a block runs."""
        journal: _Journal = {}
        self._journals.append(journal)
        try:
            yield journal
        finally:
            self._journals.pop()
            if self._journals:
                # Changes in the block are changes in the enclosing one, whose states are older.
                for key, entry in journal.items():
                    self._journals[-1].setdefault(key, entry)

    def constant(self, number: object) -> Slot:
        """Add a number to the graph as a constant without dimensions; return its slot."""
        typed = TensorType((), dtype_name(torch.tensor(number).dtype), "cpu", stride=())
        value = self.state.add_source("constant", None, typed, attributes={"value": number})
        return Slot(typed, value)


class Branch(NamedTuple):
    """A branch, or the body of a loop.

    Attributes:
        label: The name of its scope; empty for a loop without iterations, which has no scope.
        read: Reads the nodes of the body; returns its results.
    """

    label: str
    read: Callable[[], Contents]


class _Effects(NamedTuple):
    """Results and side effects of a body.

    Attributes:
        results: The results.
        values: The last value of each slot that is older than the body and was written by it.
        contents: Each list and dict that the body changed, with its last content, by `id`.
    """

    results: Contents
    values: dict[Slot, Value]
    contents: dict[int, tuple[Content, Content]]


def merge(
    reader: ScriptReader,
    adapter: NodeAdapter,
    bodies: Sequence[Branch],
    decided_by: Sequence[Content],
    *,
    always: bool = False,
) -> Contents:
    """Read alternative bodies; return their merged results.

    Args:
        reader: The reader of the program.
        adapter: The node that runs the bodies.
        bodies: The bodies.
        decided_by: The values that decide which body runs, and how often.
        always: Whether a tensor is merged even if all bodies return the same slot, as a body that
            runs more than once requires.
    """
    effects = [_read(reader, adapter, body) for body in bodies]
    merging = _Merger(reader, adapter, decided_by)
    merged = [
        merging.merged(list(entries), always=always)
        for entries in zip(*[effect.results for effect in effects], strict=True)
    ]
    # A body that left a list or dict unchanged contributes the present content.
    changed = {
        key: container for effect in effects for key, (container, _) in effect.contents.items()
    }
    contents = {
        key: merging.merged(
            [effect.contents.get(key, (None, container.copy()))[1] for effect in effects]
        )
        for key, container in changed.items()
    }
    merging.append(effects)
    for key, container in changed.items():
        # The container changes for the enclosing body, too, if there is one.
        reader.note(container)
        _refill(container, contents[key])
    return merged


def _read(reader: ScriptReader, adapter: NodeAdapter, body: Branch) -> _Effects:
    """Read a body; restore all slots, lists and dicts that are older than the body."""
    scope, _ = reader.where(adapter)
    node_count = len(reader.graph.nodes)
    with reader.journal() as journal:
        if body.label:
            with reader.places.body(body.label, scope):
                results = body.read()
        else:
            results = body.read()
    # Slots made by a node of the body belong to the body, and need no restoring.
    older = [
        (obj, before)
        for obj, before in journal.values()
        if type(obj) is not Slot or before[1] <= node_count
    ]
    values = {obj: obj.read() for obj, _ in older if type(obj) is Slot}
    contents = {id(obj): (obj, obj.copy()) for obj, _ in older if type(obj) is not Slot}
    results = [mapped(content, partial(_as_it_is, values=values)) for content in results]
    for obj, before in older:
        if type(obj) is Slot:
            obj.value, obj.at, obj.type = before
            obj.writes = [write for write in obj.writes if write[0] <= node_count]
        else:
            _refill(obj, before)
    return _Effects(results, values, contents)


def _as_it_is(slot: Content, values: dict[Slot, Value]) -> Content:
    """Return a copy of a slot with its present value, if the slot is about to be restored."""
    if type(slot) is not Slot or slot not in values:
        return slot
    return Slot(slot.type, slot.read(), writes=slot.writes, at=slot.at)


def _refill(container: Content, content: Content) -> None:
    container.clear()
    if type(container) is dict:
        container.update(content)
    else:
        container.extend(content)


class _Merger:
    """The operation that merges results of bodies; appended only if there is a tensor to merge."""

    def __init__(
        self, reader: ScriptReader, adapter: NodeAdapter, decided_by: Sequence[Content]
    ) -> None:
        self._reader = reader
        self._adapter = adapter
        self._decided_by = list(
            dict.fromkeys(slot for content in decided_by for slot in origins(content))
        )
        # Each output, without a value before the operation is appended, and the slots that it may
        # be.
        self._of: dict[Slot, list[Slot]] = {}

    def merged(self, entries: Contents, *, always: bool = False) -> Content:
        """Return the value of a result that is one of several entries.

        The value is the entry itself if all entries are equal, a container of merged entries if
        all are containers of one class, an object of merged attributes if the code has constructed
        all, a new slot if a tensor is among them, else a `UnknownValue`. None beside tensors
        makes them optional.
        """
        entries = [entry for entry in entries if entry is not UNINITIALIZED] or entries
        if None in entries and has_slot(entries):
            result = self.merged([entry for entry in entries if entry is not None], always=True)
            for slot in slots_in(result):
                slot.optional = True
            return result
        first = entries[0]
        is_same = all(entry is first for entry in entries)
        if is_same and not always:
            return first
        kind = type(first)
        if all(type(entry) is kind for entry in entries):
            if kind is list or kind is tuple:
                return kind(self._merged_list(entries, always=always))
            if kind is dict:
                return self._merged_dict(entries, always=always)
            if kind is ScriptObject and all(entry.handle is None for entry in entries):
                attributes = self._merged_dict(
                    [entry.attributes for entry in entries], always=always
                )
                return ScriptObject(None, first.kind, attributes=attributes)
            if kind in _PLAIN and all(entry == first for entry in entries):
                return first
        slots = list(dict.fromkeys(slots_in(entries)))
        if slots:
            output = Slot(common_type(slots), optional=any(slot.optional for slot in slots))
            self._of[output] = slots
            return output
        return first if is_same else UnknownValue(self._adapter.name, self._slots_behind(entries))

    def _merged_list(self, entries: Contents, *, always: bool) -> Contents:
        lists = [known_entries(entry) for entry in entries]
        lengths = {len(entry) for entry in lists}
        merged = [
            self.merged([items[index] for items in lists if index < len(items)], always=always)
            for index in range(max(lengths))
        ]
        if len(lengths) > 1 or any(map(is_open, entries)):
            merged.append(UnknownEntries(self._slots_behind(entries)))
        return merged

    def _merged_dict(self, entries: Contents, *, always: bool) -> dict[object, Content]:
        keys = dict.fromkeys(key for entry in entries for key in entry)
        merged = {
            key: self.merged([each[key] for each in entries if key in each], always=always)
            for key in keys
        }
        if UNKNOWN_KEY not in merged and any(len(entry) < len(keys) for entry in entries):
            merged[UNKNOWN_KEY] = [UnknownEntries(self._slots_behind(entries))]
        return merged

    def _slots_behind(self, entries: Contents) -> tuple[Slot, ...]:
        """Return the tensors on which one of several entries may depend."""
        return tuple(dict.fromkeys([*origins(entries), *self._decided_by]))

    def append(self, left: list[_Effects]) -> None:
        """Append the operation, which writes into every older slot that a body has written into."""
        targets = list(dict.fromkeys(slot for effect in left for slot in effect.values))
        if not self._of and not targets:
            return
        reader = self._reader
        reader.enter(self._adapter)
        merged = [Argument(None, [slot.read() for slot in slots]) for slots in self._of.values()]
        written = [
            [effect.values[slot] for effect in left if slot in effect.values] for slot in targets
        ]
        arguments = [Argument("decided_by", [slot.read() for slot in self._decided_by])]
        arguments += merged
        arguments += [
            Argument(None, [slot.read(), *values])
            for slot, values in zip(targets, written, strict=True)
        ]
        among = [slot for slots in self._of.values() for slot in slots]
        read = list(dict.fromkeys([*self._decided_by, *targets, *among]))
        node = reader.append(
            self._adapter.target, self._adapter, arguments, read, OpEffects(flops=0)
        )
        # `append` adds the restored values of slots; the last values in the bodies are inputs, too.
        for values in written:
            node.inputs += [value for value in values if value not in node.inputs]
        outputs = reader.add_outputs(node, [slot.type for slot in self._of], read, targets)
        for slot, output in zip(self._of, outputs, strict=True):
            slot.value, slot.at, slot.writes = output.value, output.at, output.writes


_PLAIN = (bool, int, float, str)


def raises(block: ScriptBlock) -> bool:
    """Whether a block raises unconditionally: `prim::RaiseException` is one of its own nodes."""
    return any(kind == "prim::RaiseException" for kind, _ in nodes_of(block))


def containers_changed_in(block: ScriptBlock, values: Mapping[int, Content]) -> Contents:
    """Return the lists and dicts of the enclosing frame that a block changes, each once.

    Args:
        block: The block.
        values: The contents of the values in the frame, by number.
    """
    changed: dict[int, Content] = {}
    for kind, node in nodes_of(block):
        for inner_block in node.blocks():
            changed.update(
                (id(container), container)
                for container in containers_changed_in(inner_block, values)
            )
        container = values.get(node.inputsAt(0).unique()) if kind in MUTATIONS else None
        # Tensors that `_set_item` replaces are merged after the body has been read.
        if type(container) in (list, dict) and (
            kind != "aten::_set_item" or not has_slot(container)
        ):
            changed[id(container)] = container
    return list(changed.values())


def in_any_iteration(content: Content, value: ScriptValue) -> Content:
    """Return the value that a loop-carried value has in every iteration.

    A tensor has an unknown shape, as an iteration may change it; a number, a text, or
    None that an iteration may replace, is a `UnknownValue`; any other value stays as it is.

    Args:
        content: The value before the loop.
        value: The input of the loop's block.
    """
    if type(content) is Slot:
        typed = UNKNOWN._replace(dtype=content.type.dtype, device=content.type.device)
        return Slot(typed, content.read(), writes=content.writes, at=content.at)
    optional = content is None and value.type().kind() == "OptionalType"
    if optional or (type(content) in (*_PLAIN, UnknownValue) and content is not UNINITIALIZED):
        return UnknownValue(value.debugName(), origins(content))
    return content
