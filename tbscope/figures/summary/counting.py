"""Counting of what parts hold: parameters and buffers, each once in all that hold it."""

from collections.abc import Iterable

from tbscope.figures.summary.holdings import numbers_in
from tbscope.figures.summary.part import Part
from tbscope.ir.graph import Parameter

__all__ = ["count_parameters", "own_parameters", "parameter_key"]


def parameter_key(part: Part, parameter: Parameter) -> int | str:
    """Return the key of a parameter among all others; tied ones have the same."""
    if parameter.number >= 0:
        return parameter.number
    return f"{part.label if part.name is None else part.name}.{parameter.name}"


def count_parameters(parts: list[Part]) -> None:
    """Count what each part holds, and what stands below it, each parameter once.

    What no module registers is counted in its own part and not above: neither does a model.
    """
    first: dict[int | str, tuple[Part, Parameter]] = {}
    several: dict[int | str, list[tuple[Part, Parameter]]] = {}
    for part in parts:
        if part.held or part.borrowed:
            for key, parameter in _by_key(part, (*part.held, *part.borrowed)).items():
                # Few are held by several parts, of which most are the calls of one module.
                known = first.setdefault(key, (part, parameter))
                if known[0] is not part:
                    several.setdefault(key, [known]).append((part, parameter))
    for key, (part, parameter) in first.items():
        if key not in several:
            part.holds.add(parameter)
    for part in reversed(parts):
        if _hands_up(part):
            assert part.parent is not None
            part.parent.holds.add_all(part.holds)
    for held in several.values():
        _add_shared(held)


def own_parameters(part: Part) -> int:
    """Count the numbers in a part's own parameters."""
    own = _by_key(part, part.held).values()
    return sum(numbers_in(parameter) for parameter in own if parameter.kind == "parameter")


def _by_key(part: Part, parameters: Iterable[Parameter]) -> dict[int | str, Parameter]:
    """Return parameters of a part, each once."""
    return {parameter_key(part, parameter): parameter for parameter in parameters}


def _hands_up(part: Part) -> bool:
    """Tell whether what a part holds counts in the one around it."""
    above = part.parent
    return above is not None and (not part.unregistered or above.unregistered)


def _add_shared(held: list[tuple[Part, Parameter]]) -> None:
    """Count a parameter that several parts hold, once in all that hold one of them."""
    parameter = held[0][1]
    modules: dict[Part, set[int]] = {}
    for part, _ in held:
        above: Part | None = part
        while above is not None:
            modules.setdefault(above, set()).add(_module_of(part))
            above = above.parent if _hands_up(above) else None
    # What a module holds that no module registers is not of the model.
    registered = {_module_of(part) for part, _ in held if part.name is not None}
    everyone = registered or {_module_of(part) for part, _ in held}
    for part, inside in modules.items():
        part.holds.add(parameter)
        if parameter.kind == "parameter" and not inside >= everyone:
            part.holds.shared += numbers_in(parameter)


def _module_of(part: Part) -> int:
    """Return a number that the parts of all calls of one module share."""
    return id(part.held or part.borrowed)
