"""Texts: by which words a node or a box may be coloured, one for each mode of the viewer."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

from tbscope.ir.facts import split_device
from tbscope.page.glyphs import Box, Item
from tbscope.saving.picture import Glyph, Picture
from tbscope.saving.stages import Stages

__all__ = ["Texts", "in_order"]

_STAGES = ("forward", "loss", "backward", "optimizer")
_NUMBER = re.compile(r"\d+")
_ENDS = ("Input", "Output")
_PARAMETERS = ("Parameter", "Buffer")


def in_order(mode: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Return texts with their counts: stages and ranks as they follow, others by frequency."""

    def key(counted: tuple[str, int]) -> tuple[int, str]:
        text, count = counted
        if mode == "stage":
            return _STAGES.index(text), text
        number = _NUMBER.search(text) if mode == "rank" else None
        return int(number[0]) if number else -count, text

    return dict(sorted(counts.items(), key=key))


class Inside(NamedTuple):
    """The texts of all that is in a box.

    Attributes:
        shares: How often each text is in the box, down to what has one.
        below: Every text in it, at any depth.
    """

    shares: dict[str, int]
    below: dict[str, None]


class Texts:
    """The texts of a picture.

    Args:
        picture: The picture, with its repeats in boxes of their own.
        stages: The boxes of a training step in it.
    """

    def __init__(self, picture: Picture, stages: Stages) -> None:
        self._picture = picture
        self._stages = stages
        # The function that gives the text of a node or a box, by mode.
        self._given: dict[str, Callable[[Glyph], str]] = {
            "label": partial(picture.mark, of="label"),
            "class": stages.class_of,
            "kind": partial(picture.mark, of="kind"),
            "dtype": lambda glyph: next((one.dtype for one in picture.outputs(glyph)), ""),
            "device": picture.device,
            "trainable": picture.trainable,
            "stage": lambda glyph: self._stage_texts.get(glyph, ""),
            "rank": lambda glyph: self._rank_texts.get(glyph, ""),
        }
        self._known: dict[str, dict[Glyph, str]] = {}
        self._inside: dict[str, dict[Box, Inside]] = {}

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes in which something has a text."""
        return tuple(mode for mode in self._given if self.of(mode))

    def of(self, mode: str) -> Mapping[Glyph, str]:
        """Return the texts of nodes and boxes in a mode, without empty ones."""
        if mode not in self._known:
            glyphs: list[Glyph] = [*self._picture.boxes, *self._picture.items]
            found = zip(glyphs, map(self._given[mode], glyphs), strict=True)
            self._known[mode] = {glyph: text for glyph, text in found if text}
        return self._known[mode]

    def inside(self, mode: str, box: Box) -> "Inside":
        """Return the texts of all that is in a box, in a mode."""
        if mode not in self._inside:
            self._inside[mode] = self._sum(self.of(mode))
        return self._inside[mode][box]

    def _sum(self, texts: Mapping[Glyph, str]) -> "dict[Box, Inside]":
        sums: dict[Box, Inside] = {}
        # Boxes come parents first.
        for box in (*reversed(self._picture.boxes), self._picture.root):
            shares: dict[str, int] = {}
            below: dict[str, None] = {}
            for child in box.children.values():
                text = texts.get(child)
                if text:
                    shares[text] = shares.get(text, 0) + 1
                    below[text] = None
                if isinstance(child, Box):
                    inner = sums[child]
                    below.update(inner.below)
                    if not text:
                        for one, count in inner.shares.items():
                            shares[one] = shares.get(one, 0) + count
            sums[box] = Inside(shares, below)
        return sums

    # -- ranks -------------------------------------------------------------------------------

    @cached_property
    def _rank_texts(self) -> dict[Glyph, str]:
        """The ranks that run each node, and those of each box whose nodes are of the same."""
        picture = self._picture
        return self._with_boxes(
            {
                item: ranks
                for item in picture.items
                if (ranks := split_device(picture.device(item))[0])
            }
        )

    # -- stages ------------------------------------------------------------------------------

    @cached_property
    def _stage_texts(self) -> dict[Glyph, str]:
        """The stage of each node of a training step, and of each box with nodes of one stage.

        What is computed outside of the model is a part of the loss if it reads results of the
        model, of the optimizer's stage if it reads gradients (their norm, an average of the
        weights), and of the forward pass if the model reads it.
        """
        if not any(self._stages.phase(box) for box in self._picture.boxes):
            return {}
        stages: dict[Glyph, str] = {}
        loose: list[Item] = []
        for item in self._picture.items:
            if self._picture.class_of(item) in _ENDS:
                continue
            stage = self._stage_around(item)
            if stage:
                stages[item] = stage
            elif not item.embedded:
                loose.append(item)
        for item in loose:
            stages[item] = self._stage_of_sources(item, stages)
        read_by_the_model = self._sources(
            item for item in self._picture.items if stages.get(item) == "forward"
        )
        for item in reversed(loose):
            if item in read_by_the_model:
                stages[item] = "forward"
                read_by_the_model |= self._sources([item])
        return self._with_boxes({item: stage for item, stage in stages.items() if stage})

    def _stage_around(self, item: Item) -> str:
        """Return the stage that the outermost telling box around a node has, or the node."""
        stage = "forward" if self._is_module(item) else ""
        box: Box | None = item.box
        while box is not None:
            stage = self._stages.phase(box) or ("forward" if self._is_module(box) else stage)
            box = box.parent
        return stage

    def _is_module(self, glyph: Glyph) -> bool:
        """Whether a box or a node is a part of the model: no function of the loss is."""
        fact = self._picture.fact
        return fact(glyph, "module") is not None or fact(glyph, "parameter_count") is not None

    def _stage_of_sources(self, item: Item, stages: dict[Glyph, str]) -> str:
        """Return the stage of a node outside of the model, by what it reads."""
        found = {stages.get(source, "") for source in self._sources([item])}
        if found & {"forward", "loss"}:
            return "loss"
        return "optimizer" if found & {"backward", "optimizer"} else ""

    def _sources(self, items: Iterable[Item]) -> set[Glyph]:
        """Return what some nodes read, but for parameters."""
        picture = self._picture
        return {
            read.source
            for item in items
            for read in picture.reads(item)
            if picture.class_of(read.source) not in _PARAMETERS
        }

    def _with_boxes(self, texts: dict[Glyph, str]) -> dict[Glyph, str]:
        """Add each box around nodes that have one text, if it has nodes of no other."""
        inside: dict[Box, set[str]] = {}
        for glyph, text in texts.items():
            assert isinstance(glyph, Item), "a box has the text of its nodes"
            inside.setdefault(glyph.box, set()).add(text)
        for box in reversed(self._picture.boxes):
            if box.parent is not None and box in inside:
                inside.setdefault(box.parent, set()).update(inside[box])
        return {**texts, **{box: min(found) for box, found in inside.items() if len(found) == 1}}
