"""Control flow of TorchScript: both branches, and a loop's body, stand in scopes, each once.

What they give is merged by one operation (`If`, `Loop`), which reads what each may give: nobody
knows which branch runs, or how often a loop does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from tbscope.ir.graph import Argument, Value
from tbscope.sources.fx.aliasing import UNKNOWN, Held, Slot
from tbscope.sources.fx.op_costs import Done
from tbscope.sources.torchscript.const_eval import CHANGES
from tbscope.sources.torchscript.reader import ScriptReader, Step
from tbscope.sources.torchscript.types import joined, nodes_of
from tbscope.sources.torchscript.values import (
    UNNAMED,
    Number,
    Rest,
    closed,
    has_slot,
    is_open,
    mapped,
    origins,
)

__all__ = ["Body", "changed_in", "in_a_turn", "merge", "raises"]


class Body(NamedTuple):
    """What may run.

    Attributes:
        label: The name of its scope; empty where nothing runs.
        read: Reads it; returns what it gives.
    """

    label: str
    read: Callable[[], list[Held]]


class _Left(NamedTuple):
    """What a body leaves behind.

    Attributes:
        given: What it gives.
        values: The last value of each slot that was there before, and into which it wrote.
        contents: Each list and dict that it changed, by identity, with what that held last.
    """

    given: list[Held]
    values: dict[Slot, Value]
    contents: dict[int, tuple[Any, Any]]


def merge(
    reader: ScriptReader,
    step: Step,
    bodies: Sequence[Body],
    decided_by: Sequence[Held],
    *,
    always: bool = False,
) -> list[Held]:
    """Read bodies of which one may run, or none; return what they give, merged.

    Args:
        reader: Who reads the program.
        step: The node that runs them.
        bodies: The bodies.
        decided_by: What decides which of them run, and how often.
        always: Whether an operation stands between what they give and who reads it also
            where they give the same: they run more than once.
    """
    left = [_read(reader, step, body) for body in bodies]
    merging = _Merging(reader, step, decided_by)
    merged = [
        merging.merged(list(entries), always=always)
        for entries in zip(*[each.given for each in left], strict=True)
    ]
    # What each list and dict holds that a body changed.
    changed = {key: container for each in left for key, (container, _) in each.contents.items()}
    contents = {
        key: merging.merged([each.contents.get(key, (None, container.copy()))[1] for each in left])
        for key, container in changed.items()
    }
    merging.append(left)
    for key, container in changed.items():
        reader.note(container)
        _refill(container, mapped(contents[key], merging.settled))
    return [mapped(entry, merging.settled) for entry in merged]


def _read(reader: ScriptReader, step: Step, body: Body) -> _Left:
    """Read a body; all that was there before holds afterwards what it held before."""
    scope, _ = reader.where(step)
    first = len(reader.graph.nodes)
    with reader.journal() as journal:
        if body.label:
            with reader.places.body(body.label, scope):
                given = body.read()
        else:
            given = body.read()
    # A slot that is younger than the body is its own.
    older = [
        (thing, before)
        for thing, before in journal.values()
        if type(thing) is not Slot or before[1] <= first
    ]
    values = {thing: thing.read() for thing, _ in older if type(thing) is Slot}
    contents = {id(thing): (thing, thing.copy()) for thing, _ in older if type(thing) is not Slot}
    given = [mapped(held, partial(_as_it_is, values=values)) for held in given]
    for thing, before in older:
        if type(thing) is Slot:
            thing.value, thing.at, thing.type = before
            thing.writes = [each for each in thing.writes if each[0] <= first]
        else:
            _refill(thing, before)
    return _Left(given, values, contents)


def _as_it_is(slot: Held, values: dict[Slot, Value]) -> Held:
    """Return a slot that holds what another one holds now, where that changes next."""
    if type(slot) is not Slot or slot not in values:
        return slot
    return Slot(slot.type, slot.read(), writes=slot.writes, at=slot.at)


def _refill(container: Any, content: Any) -> None:
    container.clear()
    if type(container) is dict:
        container.update(content)
    else:
        container.extend(content)


@dataclass(slots=True)
class _Merged:
    """Stands for a tensor that the operation gives, until it is there."""

    place: int


class _Merging:
    """The one operation that merges what bodies give; made where something has to be merged."""

    def __init__(self, reader: ScriptReader, step: Step, decided_by: Sequence[Held]) -> None:
        self._reader = reader
        self._step = step
        self._decided_by = list(
            dict.fromkeys(slot for held in decided_by for slot in origins(held))
        )
        # What each result is one of.
        self._of: list[list[Slot]] = []
        self._given: list[Slot] = []

    def merged(self, entries: list[Held], *, always: bool = False) -> Held:
        """Return what is known of a thing that is one of these."""
        first = entries[0]
        if not always and all(entry is first for entry in entries):
            return first
        kind = type(first)
        if all(type(entry) is kind for entry in entries):
            if kind is list or kind is tuple:
                return kind(self._merged_list(entries, always=always))
            if kind is dict:
                return self._merged_dict(entries, always=always)
            if kind in _PLAIN and all(entry == first for entry in entries):
                return first
        slots = list(dict.fromkeys(entry for entry in entries if type(entry) is Slot))
        if slots:
            # Beside a tensor, there may be none.
            self._of.append(slots)
            return _Merged(len(self._of) - 1)
        if all(entry is first for entry in entries):
            return first
        return Number(self._step.name, self._slots_behind(entries))

    def _merged_list(self, entries: list[Any], *, always: bool) -> list[Held]:
        known = [closed(entry) for entry in entries]
        lengths = {len(entry) for entry in known}
        merged = [
            self.merged([each[at] for each in known if at < len(each)], always=always)
            for at in range(max(lengths))
        ]
        if len(lengths) > 1 or any(map(is_open, entries)):
            merged.append(Rest(self._slots_behind(entries)))
        return merged

    def _merged_dict(self, entries: list[Any], *, always: bool) -> dict[Any, Held]:
        keys = dict.fromkeys(key for entry in entries for key in entry)
        merged = {
            key: self.merged([each[key] for each in entries if key in each], always=always)
            for key in keys
        }
        if UNNAMED not in merged and any(len(entry) < len(keys) for entry in entries):
            merged[UNNAMED] = [Rest(self._slots_behind(entries))]
        return merged

    def _slots_behind(self, entries: list[Held]) -> tuple[Slot, ...]:
        """Return the tensors of which something is made that is one of these."""
        return tuple(dict.fromkeys([*origins(entries), *self._decided_by]))

    def append(self, left: list[_Left]) -> None:
        """Append the operation, and have it write into what one of the bodies wrote into."""
        targets = list(dict.fromkeys(slot for each in left for slot in each.values))
        if not self._of and not targets:
            return
        reader = self._reader
        reader.enter(self._step)
        merged = [Argument(None, [slot.read() for slot in slots]) for slots in self._of]
        written = [[each.values[slot] for each in left if slot in each.values] for slot in targets]
        arguments = [Argument("decided_by", [slot.read() for slot in self._decided_by])]
        arguments += merged
        arguments += [
            Argument(None, [slot.read(), *values])
            for slot, values in zip(targets, written, strict=True)
        ]
        among = [slot for slots in self._of for slot in slots]
        read = list(dict.fromkeys([*self._decided_by, *targets, *among]))
        node = reader.append(self._step.target, self._step, arguments, read, Done(flops=0))
        for values in written:
            node.inputs += [value for value in values if value not in node.inputs]
        held = reader.give(node, [joined(slots) for slots in self._of], read, targets)
        self._given = list(held)

    def settled(self, held: Held) -> Held:
        """Return the tensor that the operation gives, in the place of what stands for it."""
        return self._given[held.place] if type(held) is _Merged else held


_PLAIN = (bool, int, float, str)


def raises(block: Any) -> bool:
    """Tell whether a block raises, whatever it is given."""
    return any(kind == "prim::RaiseException" for kind, _ in nodes_of(block))


def changed_in(block: Any, values: Mapping[int, Held]) -> list[Any]:
    """Return the lists and dicts from around a block that it changes, each once.

    Args:
        block: The block.
        values: What the values around it hold, by number.
    """
    found: dict[int, Any] = {}
    for kind, node in nodes_of(block):
        for inner in node.blocks():
            found.update((id(held), held) for held in changed_in(inner, values))
        held = values.get(node.inputsAt(0).unique()) if kind in CHANGES else None
        # Which tensor takes the place of which, the loop itself tells.
        if type(held) in (list, dict) and (kind != "aten::_set_item" or not has_slot(held)):
            found[id(held)] = held
    return list(found.values())


def in_a_turn(held: Held, value: Any) -> Held:
    """Return what is known in each turn of a loop of what enters it."""
    if type(held) is Slot:
        told = UNKNOWN._replace(dtype=held.type.dtype, device=held.type.device)
        return Slot(told, held.read(), writes=held.writes, at=held.at)
    if type(held) in (*_PLAIN, Number):
        return Number(value.debugName(), origins(held))
    return held
