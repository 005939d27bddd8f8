"""Pins: an outline as text that a file keeps, and that is read in a review.

It is JSON: a block for each module call that differs from all others, one step a line, and the
totals. It holds no weights, no paths, no times and nothing of the machine; the same architecture
gives the same text.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tbscope.comparing.outline import Block, Facts, Held, Outline, Port, Ref, Step, Uncalled
from tbscope.errors import ArgumentError

__all__ = ["FORMAT", "VERSION", "outline_to_pin", "pin_to_outline"]

FORMAT = "tbscope architecture"
VERSION = 1

_Thing = TypeVar("_Thing")
_ROLES = ("in", "state", "step")


def outline_to_pin(outline: Outline) -> str:
    """Return an outline as the text of a pin; the same outline gives the same text."""
    names: dict[Block, str] = {}
    taken: dict[str, int] = {}
    blocks = outline.blocks()
    for block in blocks:
        number = taken[block.label] = taken.get(block.label, 0) + 1
        names[block] = block.label if number == 1 else f"{block.label}~{number}"
    parts = [
        f'"format": {_json(FORMAT)}',
        f'"version": {VERSION}',
        f'"name": {_json(outline.name)}',
        f'"totals": {_json(dict(sorted(outline.totals.items())))}',
        f'"outputs": {_json(_typed(outline.outputs, outline.types))}',
        _listed("ties", [_json(list(names)) for names in outline.ties]),
        _listed("uncalled", [_json(_of_uncalled(one)) for one in outline.uncalled]),
        _listed("blocks", ["".join(_block_lines(block, names)) for block in blocks]),
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def pin_to_outline(text: str) -> Outline:
    """Return the outline that a pin tells.

    Raises:
        ArgumentError: It is no pin, of a later version, or damaged.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _refused(f"it does not say that it is a {FORMAT!r}")
    if data.get("version") != VERSION:
        raise ArgumentError(
            f"this pin is of version {data.get('version')!r}",
            why=f"this tbscope reads version {VERSION}",
            fix="update tbscope, or write the pin anew",
        )
    try:
        return _outline(data)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from error


# -- writing --------------------------------------------------------------------------------


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=True)


def _listed(name: str, entries: Sequence[str]) -> str:
    if not entries:
        return f'"{name}": []'
    return f'"{name}": [\n' + ",\n".join(entries) + "\n]"


def _typed(names: Sequence[str], types: Sequence[str]) -> list[list[str]]:
    return [list(pair) for pair in zip(names, types, strict=True)]


def _of_uncalled(one: Uncalled) -> dict[str, Any]:
    return {
        "name": one.name,
        "class": one.class_name,
        "state": [list(held) for held in one.state],
    }


def _block_lines(block: Block, names: Mapping[Block, str]) -> Iterator[str]:
    head: dict[str, Any] = {"block": names[block], "label": block.label, "class": block.class_name}
    yield f" {_json(head)[:-1]},\n"
    told: dict[str, Any] = {
        "settings": dict(block.facts),
        "arguments": dict(block.arguments),
        "state": [list(held) for held in block.state],
        "again": block.again,
        "inputs": [list(port) for port in block.inputs],
    }
    for name, held in told.items():
        if held:
            yield f"  {_json(name)}: {_json(held)},\n"
    if block.steps:
        steps = ",\n".join(f"   {_json(_of_step(step, names))}" for step in block.steps)
        yield f'  "steps": [\n{steps}\n  ],\n'
    yield f'  "results": {_json([block.results, *map(_of_ref, block.given)])}}}'


def _of_step(step: Step, names: Mapping[Block, str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "step": step.label,
        "op": step.op,
        "block": step.block and names[step.block],
        "place": step.place,
        "settings": dict(step.facts),
        "arguments": [list(argument) for argument in step.arguments],
        "reads": list(map(_of_ref, step.reads)),
        "ports": list(step.ports),
        "takes": list(step.took),
        "gives": list(step.gives),
    }
    return {name: held for name, held in told.items() if held}


def _of_ref(ref: Ref) -> list[Any]:
    told: list[Any] = [ref.role, ref.label]
    if ref.output is not None or ref.inner:
        told.append(ref.output)
    return [*told, *ref.inner]


# -- reading --------------------------------------------------------------------------------


def _outline(data: Mapping[str, Any]) -> Outline:
    blocks: dict[str, Block] = {}
    for told in data["blocks"]:
        blocks[_text(told["block"])] = block = _block(told, blocks)
        block.settle()
    outputs = [(_text(name), _text(kind)) for name, kind in data["outputs"]]
    if not blocks or len(outputs) != len(block.given):
        raise ValueError("the last block gives not what the model gives")
    return Outline(
        _text(data["name"]),
        block,
        tuple(name for name, _ in outputs),
        tuple(kind for _, kind in outputs),
        tuple(
            Uncalled(_text(one["name"]), _text(one["class"]), _many(one["state"], _held))
            for one in data["uncalled"]
        ),
        tuple(_many(names, _text) for names in data["ties"]),
        {_text(name): _number(count) for name, count in data["totals"].items()},
    )


def _block(told: Mapping[str, Any], blocks: Mapping[str, Block]) -> Block:
    results, *given = told["results"]
    return Block(
        _text(told["label"]),
        _text(told["class"]),
        _facts(told.get("settings", {})),
        _facts(told.get("arguments", {})),
        _many(told.get("state", []), _held),
        _many(told.get("inputs", []), lambda port: Port(*map(_text, port))),
        _many(told.get("steps", []), lambda step: _step(step, blocks)),
        _text(results),
        _many(given, _ref),
        told.get("again", False) is True,
    )


def _step(told: Mapping[str, Any], blocks: Mapping[str, Block]) -> Step:
    block = told.get("block")
    return Step(
        _text(told["step"]),
        _text(told["op"]),
        _text(told.get("place", "")),
        None if block is None else blocks[block],
        _facts(told.get("settings", {})),
        tuple((_text(name), _text(text)) for name, text in told.get("arguments", [])),
        _many(told.get("reads", []), _ref),
        _many(told.get("ports", []), _text),
        _many(told.get("takes", []), _text),
        _many(told.get("gives", []), _text),
    )


def _ref(told: Sequence[Any]) -> Ref:
    role, label, *rest = told
    if role not in _ROLES:
        raise ValueError(f"{role!r} is none of {', '.join(_ROLES)}")
    output = rest[0] if rest else None
    return Ref(
        _text(label),
        _many(rest[1:], _text),
        None if output is None else _number(output),
        role,
    )


def _held(told: Sequence[Any]) -> Held:
    name, kind, type_, trainable, numbers = told
    return Held(_text(name), _text(kind), _text(type_), trainable is True, _number(numbers))


def _facts(told: Mapping[str, Any]) -> Facts:
    return tuple((_text(name), _text(text)) for name, text in told.items())


def _many(told: Sequence[Any], read: Callable[[Any], _Thing]) -> tuple[_Thing, ...]:
    if not isinstance(told, list):
        raise TypeError(f"{told!r} is no list")
    return tuple(map(read, told))


def _text(told: Any) -> str:
    if not isinstance(told, str):
        raise TypeError(f"{told!r} is no text")
    return told


def _number(told: Any) -> int:
    if type(told) is not int or told < 0:
        raise TypeError(f"{told!r} is no count")
    return told


def _refused(why: str) -> ArgumentError:
    return ArgumentError(
        "this is no pin of an architecture",
        why=why,
        fix="write one: tbscope.check(model, inputs, pin='net.json', update=True)",
    )
