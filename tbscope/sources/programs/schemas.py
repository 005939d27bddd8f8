"""What the schema of an operator tells of its arguments: what it writes into, and what it shows."""

import functools
from typing import Any, NamedTuple

from tbscope.sources.programs.slots import Slot, slots_in
from tbscope.sources.programs.types import TensorType, types_in
from tbscope.sources.torch.internals import schema_of
from tbscope.sources.torch.operations import KernelFacts

__all__ = ["gives_tensor", "may_show", "shown_slots", "written_slots"]


def gives_tensor(facts: KernelFacts) -> bool:
    """Tell whether a tensor is among what an operator gives."""
    schema = schema_of(facts.kernel)
    return schema is None or any("Tensor" in str(result.type) for result in schema.returns)


def written_slots(facts: KernelFacts, args: Any, kwargs: Any) -> list[Slot]:
    """Return the slots into which an operator writes, as its schema tells."""
    if not facts.writes or (facts.flag is not None and not any(args[facts.flag : facts.flag + 1])):
        return []
    found: list[Slot] = []
    for position, name in facts.writes:
        given = args[position] if position < len(args) else kwargs.get(name)
        found += [slot for slot in slots_in(given) if slot not in found]
    return found


class _Shown(NamedTuple):
    """What the schema of an operator tells of the memory that it shows.

    Attributes:
        given: Position and name of each argument of which memory may be seen, with the names of
            the sets that it is in.
        gives: For each result the names of the sets of which it may show memory.
    """

    given: tuple[tuple[int, str, tuple[str, ...]], ...]
    gives: tuple[tuple[str, ...], ...]


@functools.lru_cache(maxsize=4096)
def _shown_by(facts: KernelFacts) -> _Shown | None:
    schema = schema_of(facts.kernel)
    if schema is None:
        return None
    given = []
    for position, argument in enumerate(schema.arguments):
        alias = argument.alias_info
        if alias is not None:
            # What is "*" after may be seen in any result: those of `split`.
            given.append((position, argument.name, (*alias.before_set, *alias.after_set)))
    gives = []
    for result in schema.returns:
        alias = result.alias_info
        gives.append(() if alias is None else tuple(alias.before_set) or ("*",))
    return _Shown(tuple(given), tuple(gives))


def may_show(facts: KernelFacts) -> bool:
    """Tell whether an operator may give what shows memory of its arguments."""
    shown = _shown_by(facts)
    return shown is not None and bool(shown.given)


def shown_slots(facts: KernelFacts, args: Any, kwargs: Any, told: Any) -> dict[int, Slot]:
    """Return for each tensor that an operator gives, by position, whose memory it shows."""
    shown = _shown_by(facts)
    if shown is None:
        return {}
    sets: dict[str, Slot] = {}
    for position, key, names in shown.given:
        given = args[position] if position < len(args) else kwargs.get(key)
        slot = given if type(given) is Slot else next(slots_in(given), None)
        if slot is not None:
            for name in names:
                sets[name] = slot
    found: dict[int, Slot] = {}
    for position, names in enumerate(shown.gives):
        slot = None
        for name in names:
            if name in sets:
                slot = sets[name]
                break
        if slot is None:
            continue
        if isinstance(told, TensorType):
            found[0] = slot
        elif len(shown.gives) == 1:
            # A list of views: `split`.
            found.update(dict.fromkeys(range(len(list(types_in(told)))), slot))
        else:
            found[position] = slot
    return found
