"""Stages: what becomes of a captured graph behind the capture, on the way to kernels.

The forward and the backward pass in torch's own operators, both in one graph, and the kernels
that Inductor makes of them. What they take and give is told by what the captured graph takes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tbscope.sources.compiled.copies import BACKWARD, BOX, KERNEL, Given, is_forward
from tbscope.sources.programs.types import type_nest
from tbscope.sources.torch.compiler_internals import (
    Kernels,
    aot_place,
    copy_to_compile,
    fuse,
    partition_ahead,
)

__all__ = ["STAGES", "Lowered", "lowered"]

STAGES = ("dynamo", "joint", "forward", "backward", "inductor")
"""The stages of a graph, from what is captured to what runs."""

# So many operations the name of a kernel tells.
_MOST_WORDS = 6
_NUMBERED = re.compile(r"(?P<kind>primals_|tangents_|arg)(?P<number>\d+)(?:_1)?")


@dataclass(slots=True)
class Lowered:
    """A captured graph in a later stage.

    Attributes:
        stage: Which one, for a reader (`forward`, `inductor backward`).
        module: Its nodes.
        given: What it takes, in order.
        outputs: The names of what it gives, in order; a number for a result of the captured
            graph.
    """

    stage: str
    module: torch.fx.GraphModule
    given: list[Given]
    outputs: list[str | int]


def lowered(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    stages: Sequence[str],
    given: Sequence[Given],
    copy: Callable[[torch.fx.GraphModule], torch.fx.GraphModule],
) -> list[Lowered]:
    """Return a captured graph in the stages that are asked for.

    Args:
        module: The graph; it stays as it is.
        example_inputs: What it takes.
        stages: Some of `STAGES`.
        given: What it takes, by name.
        copy: Returns a copy of a graph, with modules told by their qualified names.
    """
    found: list[Lowered] = []

    def add(stage: str, part: torch.fx.GraphModule) -> None:
        if stage in stages:
            found.append(_lowered(stage, part, given, copy))

    def add_kernels(told: Kernels) -> None:
        stage = "inductor backward" if told.backward else "inductor"
        one = _lowered(stage, told.module, given, copy)
        _group(one.module, told.kernels)
        found.append(one)

    if {"joint", "forward", "backward"} & set(stages):
        partition_ahead(copy_to_compile(module), example_inputs, told=add)
    if "inductor" in stages:
        fuse(copy_to_compile(module), example_inputs, add_kernels)
    return found


def _lowered(
    stage: str,
    part: torch.fx.GraphModule,
    given: Sequence[Given],
    copy: Callable[[torch.fx.GraphModule], torch.fx.GraphModule],
) -> Lowered:
    twin = copy(part)
    if stage in ("forward", "inductor"):
        # What the backward pass could as well have computed.
        for node in twin.graph.nodes:
            node.meta.pop(BACKWARD, None)
    operations = [node for node in twin.graph.nodes if node.op == "call_function"]
    if stage == "joint" or (stage == "backward" and any(map(is_forward, operations))):
        # In the boxes of the forward pass, it would read what these give, and give it to them.
        for node in twin.graph.nodes:
            if BACKWARD in node.meta and not is_forward(node):
                _stand_in(node, "backward")
    places = [node for node in part.graph.nodes if node.op == "placeholder"]
    own = {node: _given(node, given) for node in places}
    return Lowered(stage, twin, list(own.values()), _outputs(part, given, own))


def _given(node: torch.fx.Node, given: Sequence[Given]) -> Given:
    """Return what a graph takes: what the captured graph takes, a gradient, or what was kept."""
    kind, place = aot_place(node.meta.get("desc"))
    numbered = _NUMBERED.fullmatch(node.name)
    if not kind and numbered is not None:
        kind = "tangent" if numbered["kind"] == "tangents_" else "input"
        place = int(numbered["number"]) - (numbered["kind"] != "arg")
    told = type_nest(node.meta.get("val"))
    if kind == "input" and place is not None and place < len(given):
        return Given(given[place].kind, given[place].name, told, given[place].tensor)
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return Given("number", node.name, told)
    if kind == "tangent":
        return Given("input", f"gradient.out.{place}", told)
    return Given("input", f"saved.{node.name}", told)


def _outputs(
    part: torch.fx.GraphModule, given: Sequence[Given], own: Mapping[Any, Given]
) -> list[str | int]:
    output = next(node for node in reversed(part.graph.nodes) if node.op == "output")
    leaves = output.args[0] if isinstance(output.args[0], tuple | list) else [output.args[0]]
    described = output.meta.get("desc") or [None] * len(leaves)
    names: list[str | int] = []
    for at, (leaf, told) in enumerate(zip(leaves, described, strict=False)):
        kind, place = aot_place(told)
        if kind == "result":
            names.append(int(place))
        elif kind == "gradient" and place is not None and place < len(given):
            names.append(f"gradient.{given[place].name}")
        elif kind == "saved":
            names.append(f"saved.{own[leaf].name if leaf in own else leaf}")
        else:
            names.append(f"out.{at}")
    return names


def _group(module: torch.fx.GraphModule, kernels: list[tuple[list[str], bool]]) -> None:
    """Have each node tell of the first kernel that computes it, and of the others."""
    nodes = {node.name: node for node in module.graph.nodes if node.op == "call_function"}
    for number, (names, library) in enumerate(kernels):
        own = [nodes[name] for name in names if name in nodes]
        words = dict.fromkeys(_word(node) for node in own)
        kind = "library" if library else "fused" if len(own) > 1 else "kernel"
        label = "_".join([kind, *list(words)[:_MOST_WORDS], str(number)])
        for node in own:
            if KERNEL in node.meta:
                # It is computed once more where that is cheaper than to keep it.
                node.meta[KERNEL].append(label)
            else:
                node.meta[KERNEL] = [label]
                _stand_in(node, label)


def _stand_in(node: torch.fx.Node, box: str) -> None:
    """Have a node stand in a box around the modules."""
    node.meta["nn_module_stack"] = {BOX + box: None, **node.meta["nn_module_stack"]}


def _word(node: torch.fx.Node) -> str:
    """Return the operation that a node was a part of before it was taken apart."""
    told = node.meta.get("original_aten") or node.target
    return str(getattr(told, "__name__", told)).partition(".")[0].strip("_")
