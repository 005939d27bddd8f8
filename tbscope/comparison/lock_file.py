"""Lock files: an outline as a text file that is kept in version control and read in reviews.

A lock file is JSON: a block for each distinct module call, one step a line, and the totals. It
contains no weights, paths, times or facts about the machine; equal architectures have equal texts.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from tbscope.comparison.structure import Block, BlockStep, Outline, Ref, Uncalled
from tbscope.ir.builder import claim_name
from tbscope.messages import error_text

_FORMAT = "tbscope architecture"
_VERSION = 1


def outline_to_pin(outline: Outline) -> str:
    """Return the text of an outline's lock file; equal outlines have equal texts."""
    taken: set[str] = set()
    names = {block: claim_name(block.label, taken) for block in outline.blocks()}
    uncalled = [
        {"name": module[0], "class": module[1], "state": module[2]} for module in outline.uncalled
    ]
    parts = [
        f'"format": {_json(_FORMAT)}',
        f'"version": {_VERSION}',
        f'"name": {_json(outline.name)}',
        f'"totals": {_json(dict(sorted(outline.totals.items())))}',
        f'"outputs": {_json([*zip(outline.outputs, outline.types, strict=True)])}',
        _listed("ties", map(_json, outline.ties)),
        _listed("uncalled", map(_json, uncalled)),
        _listed("blocks", (_block_text(block, names) for block in names)),
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def pin_to_outline(text: str) -> Outline:
    """Return the outline in a lock file's text.

    Raises:
        ValueError: The text is no lock file, is of another version, or is damaged.
    """
    try:
        data = json.loads(text)
        kind = data.get("format"), data.get("version")
        if kind != (_FORMAT, _VERSION):
            raise ValueError(f"it is {kind}, and this tbscope reads {(_FORMAT, _VERSION)}")
        outline = _outline(data)
        # All texts and numbers are converted, so data of another form is written differently.
        if data != {**data, **json.loads(outline_to_pin(outline))}:
            raise ValueError("it has another form than the pins that tbscope writes")
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no pin of an architecture: {error_text(error)}") from error
    return outline


# -- writing --------------------------------------------------------------------------------


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=True)


def _listed(name: str, entries: Iterable[str]) -> str:
    lines = ",\n".join(entries)
    return f'"{name}": [\n{lines}\n]' if lines else f'"{name}": []'


def _block_text(block: Block, names: Mapping[Block, str]) -> str:
    data = _told(block, names)
    head = {"block": names[block], "label": block.label, "class": block.class_name}
    lines = [_json(head)[1:-1]]
    for key in ("settings", "arguments", "state", "again", "inputs"):
        if data[key]:
            lines.append(f'"{key}": {_json(data[key])}')
    if block.steps:
        steps = ",\n".join(f"   {_json(_step_told(step, names))}" for step in block.steps)
        lines.append(f'"steps": [\n{steps}\n  ]')
    lines.append(f'"results": {_json([block.results, *data["result_refs"]])}')
    return " {" + ",\n  ".join(lines) + "}"


def _step_told(step: BlockStep, names: Mapping[Block, str]) -> dict[str, object]:
    data = {"step": step.label, **_told(step, names)}
    del data["label"]
    return {key: value for key, value in data.items() if value}


def _told(part: BlockStep | Block, names: Mapping[Block, str]) -> dict[str, Any]:
    """Return the fields of a step or block as plain data, with names in place of blocks."""
    data = {
        field.name: _plain(getattr(part, field.name), names) for field in fields(part) if field.init
    }
    data["settings"] = dict(part.settings)
    if isinstance(part, Block):
        data["arguments"] = dict(part.arguments)
    return data


def _plain(content: object, names: Mapping[Block, str]) -> object:
    if isinstance(content, Block):
        return names[content]
    if isinstance(content, Ref):
        output = [] if content.output is None else [content.output]
        return [content.role, content.label, *output, *content.inner]
    return [_plain(item, names) for item in content] if isinstance(content, tuple) else content


# -- reading --------------------------------------------------------------------------------


def _outline(data: Mapping[str, Any]) -> Outline:
    blocks: dict[str, Block] = {}
    for entry in data["blocks"]:
        results, *refs = entry["results"]
        entries = {**entry, "class_name": entry["class"], "results": results, "result_refs": refs}
        blocks[entry["block"]] = block = _made(Block, entries, blocks)
    outputs = _read(tuple[tuple[str, str], ...], data["outputs"], blocks)
    if not blocks or len(outputs) != len(block.result_refs):
        raise ValueError("the results of the last block differ from those of the model")
    uncalled = [[module["name"], module["class"], module["state"]] for module in data["uncalled"]]
    names, types = zip(*outputs, strict=True) if outputs else ((), ())
    return Outline(
        str(data["name"]),
        block,
        names,
        types,
        _read(tuple[Uncalled, ...], uncalled, blocks),
        _read(tuple[tuple[str, ...], ...], data["ties"], blocks),
        {name: int(count) for name, count in data["totals"].items()},
    )


def _made(kind: Any, data: Mapping[str, Any], blocks: Mapping[str, Block]) -> Any:
    hints = get_type_hints(kind)
    return kind(**{key: _read(hints[key], data[key], blocks) for key in hints if key in data})


def _read(kind: Any, data: Any, blocks: Mapping[str, Block]) -> Any:
    """Return a field's value of type `kind`, built from plain data."""
    types = get_args(kind)
    if Block in types:
        return blocks[data]
    if kind is BlockStep:
        return _made(BlockStep, {**data, "label": data["step"]}, blocks)
    if kind is Ref:
        role, label, *rest = data
        output = int(rest[0]) if rest else None
        return Ref(str(label), tuple(map(str, rest[1:])), output, str(role))
    if types[-1:] == (Ellipsis,):
        entries = data.items() if isinstance(data, dict) else data
        return tuple(_read(types[0], entry, blocks) for entry in entries)
    if issubclass(get_origin(kind) or kind, tuple):
        hints = types or get_type_hints(kind).values()
        values = [_read(hint, entry, blocks) for hint, entry in zip(hints, data, strict=True)]
        return tuple(values) if types else kind(*values)
    return kind(data)
