"""What the schema of an operator tells of its arguments: what it writes into, and what it shows."""

from typing import Any

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
    if not facts.writes or (facts.flag is not None and not _flagged(facts.flag, args)):
        return []
    found: list[Slot] = []
    for position, name in facts.writes:
        given = args[position] if position < len(args) else kwargs.get(name)
        found += [slot for slot in slots_in(given) if slot not in found]
    return found


def _flagged(flag: int, args: Any) -> bool:
    return len(args) > flag and bool(args[flag])


def may_show(facts: KernelFacts) -> bool:
    """Tell whether an operator may give what shows memory of its arguments."""
    schema = schema_of(facts.kernel)
    return schema is not None and any(
        argument.alias_info is not None for argument in schema.arguments
    )


def shown_slots(facts: KernelFacts, args: Any, kwargs: Any, told: Any) -> dict[int, Slot]:
    """Return for each tensor that an operator gives, by position, whose memory it shows."""
    schema = schema_of(facts.kernel)
    if schema is None:
        return {}
    sets: dict[str, Slot] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            slot = next(slots_in(given), None)
            if slot is not None:
                # What is "*" after may be seen in any result: those of `split`.
                for name in (*argument.alias_info.before_set, *argument.alias_info.after_set):
                    sets[name] = slot
    found: dict[int, Slot] = {}
    for position, result in enumerate(schema.returns):
        alias = result.alias_info
        names = () if alias is None else tuple(alias.before_set) or ("*",)
        slot = next((sets[name] for name in names if name in sets), None)
        if slot is None:
            continue
        if isinstance(told, TensorType):
            found[0] = slot
        elif len(schema.returns) == 1:
            # A list of views: `split`.
            found.update(dict.fromkeys(range(len(list(types_in(told)))), slot))
        else:
            found[position] = slot
    return found
