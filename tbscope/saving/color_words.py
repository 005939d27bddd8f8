"""Texts by which a node or a box is coloured, one for each mode of the viewer.

One mode is the stage of a training step. A backward pass is in a box `gradients`, whose boxes have
the names of the boxes that they differentiate; an optimizer step is in a box `optimizer`, whose
boxes have the names of the modules and parameters that they update. So counterparts are found by
name alone, and a box whose name fits nothing has none.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, partial
from typing import NamedTuple

from tbscope.ir.metadata import split_device
from tbscope.ir.scopes import PHASE_BOXES
from tbscope.page.glyphs import Box, Item, box_around
from tbscope.saving.box_tree import ENDS, Glyph, Picture

_STAGES = ("forward", "loss", "backward", "optimizer")
_NUMBER = re.compile(r"\d+")
_PARAMETERS = ("Parameter", "Buffer")


# -- boxes of a training step ------------------------------------------------------------------


_BACKWARD, _OPTIMIZER = PHASE_BOXES["backward"], PHASE_BOXES["optimizer"]
_PHASES = {label: phase for phase, label in PHASE_BOXES.items()}
_LABEL = re.compile(rf"({_BACKWARD}|{_OPTIMIZER})(\.\d+(st|nd|rd|th)?)?")
_FORWARD_LANE, _BACKWARD_LANE, _LAST_LANE = range(3)
# Boxes for the optimizer's class and a parameter group may enclose the names of modules.
_MOST_AROUND = 2
_TITLES = {_BACKWARD: ("Gradients", "Backward of"), _OPTIMIZER: ("Updated by", "Updates")}


class Stages:
    """The stages of one picture.

    Args:
        picture: The picture, with its repeats folded.
    Attributes:
        of: The stage's box for each box: an enclosing box, or itself; None in the forward pass.
        links: The counterparts of a node or a box in other stages, by titles.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.of: dict[Box, Box | None] = {picture.root: None}
        # The node or box of the forward pass (or another stage) for each box of a stage.
        self._forward: dict[Box, Glyph] = {}
        self.links: dict[Glyph, dict[str, list[Glyph]]] = {}
        for box in picture.boxes:
            assert box.parent is not None, "the root alone has no parent"
            around = self.of[box.parent]
            # A stage nested in a backward pass belongs to that pass (a double backward).
            own = not self._is_backward(around) and self._kind(box)
            self.of[box] = box if own else around
        if any(self.of.values()):
            named = {glyph.name: glyph for glyph in picture.glyphs}
            # Two passes: a gradient of a gradient is found after that gradient.
            for box in (*reversed(picture.boxes), *reversed(picture.boxes)):
                forward = None if box in self._forward else self._find(box, named)
                stage = self.of[box]
                if forward is not None and stage is not None:
                    self._forward[box] = forward
                    there, back = _TITLES[self._kind(stage)]
                    self.links.setdefault(forward, {}).setdefault(there, []).append(box)
                    self.links.setdefault(box, {})[back] = [forward]

    def phase(self, box: Box) -> str:
        """Return the phase of a stage's box, "backward" or "optimizer"; empty for any other box."""
        return _PHASES.get(self._kind(box), "")

    def flows_back(self, box: Box) -> bool:
        """Whether a box is in a backward pass, or is its box."""
        return self._is_backward(self.of[box])

    def class_of(self, glyph: Glyph) -> str:
        """Return the class of a node or a box, or of its counterpart in the forward pass."""
        own = self._picture.class_of(glyph)
        forward = self._forward.get(glyph) if isinstance(glyph, Box) and not own else None
        return own if forward is None else self.class_of(forward)

    def words_of(self, glyph: Glyph) -> str:
        """Return the class of a node or a box in words: `Block`, `backward of Block`."""
        if not isinstance(glyph, Box) or glyph not in self._forward:
            return self._picture.class_of(glyph)
        words = self.words_of(self._forward[glyph])
        how = "backward" if self._is_backward(self.of[glyph]) else "update"
        return f"{how} of {words}" if words else ""

    def counterparts(self, glyph: Glyph) -> list[Glyph]:
        """Return all counterparts of a node or a box, those of its forward counterpart included.

        The counterparts of a stage's box are its siblings in its level.
        """
        glyphs: list[Glyph] = []
        near = [glyph]
        if isinstance(glyph, Box):
            near += [self._forward[glyph]] if glyph in self._forward else []
            pending = [*glyph.children.values()] if self.of[glyph] is glyph else []
            while pending:
                child = pending.pop(0)
                if isinstance(child, Box) and child in self._forward and glyph.parent is not None:
                    glyphs.append(self._child_around(self._forward[child], glyph.parent))
                elif isinstance(child, Box):
                    pending += child.children.values()
        for each in near:
            glyphs += (linked for others in self.links.get(each, {}).values() for linked in others)
        return [counterpart for counterpart in dict.fromkeys(glyphs) if counterpart is not glyph]

    def lanes(self, box: Box) -> list[tuple[int, int]]:
        """Return the lane of each child of a box; none for a box without stages.

        Returns:
            For each child, the number of earlier iterations of forward and backward; and the
            column: 0 for the forward pass, 1 for a backward pass, 2 for nodes after it.
        """
        children = self._picture.children(box)
        stages = [child for child in children if isinstance(child, Box) and self.of[child] is child]
        if not stages:
            return []
        lanes: dict[Glyph, tuple[int, int]] = {}
        rounds, column = 0, _FORWARD_LANE
        for child in children:
            if stages and child is stages[0]:
                backward = self._is_backward(stages.pop(0))
                rounds += backward and column != _FORWARD_LANE
                column = _BACKWARD_LANE if backward else _LAST_LANE
            elif column != _FORWARD_LANE:
                begins = bool(stages) and self._is_backward(stages[0])
                rounds += begins
                column = _FORWARD_LANE if begins else _LAST_LANE
            lanes[child] = rounds, column
        for child in children:
            # The outputs are last in the graph: they move to the latest lane of their sources.
            if isinstance(child, Item) and self._picture.class_of(child) == "Output":
                sources = (
                    self._child_around(read.source, box) for read in self._picture.flow(child)
                )
                near = (lanes[source] for source in sources if source in lanes)
                lanes[child] = max(near, default=(rounds, column))
        return [lanes[child] for child in children]

    # -- names -------------------------------------------------------------------------------

    def _kind(self, box: Box) -> str:
        """Return the label of a stage's box; empty for any other box, e.g. of a module."""
        match = _LABEL.fullmatch(box.label)
        return match[1] if match and not self._picture.class_of(box) else ""

    def _is_backward(self, glyph: Glyph | None) -> bool:
        return isinstance(glyph, Box) and self._kind(glyph) == _BACKWARD

    def _find(self, box: Box, named: dict[str, Glyph]) -> Glyph | None:
        """Return the node or box that a box of a stage differentiates or updates, or None."""
        stage = self.of[box]
        if stage is None or stage is box or self._picture.class_of(box):
            return None
        inside = [self._forward[child] for child in box.children.values() if child in self._forward]
        if self._picture.repeats(box):
            around = box_around(inside[0]) if inside else None
            return around if around is not None and self._picture.repeats(around) else None
        prefix = stage.name.removesuffix(stage.label)
        parts = box.name.removeprefix(f"{stage.name}/").split("/")
        for skipped in range(1 if self._is_backward(stage) else _MOST_AROUND + 1):
            *path, last = parts[skipped:] or [""]
            counterpart = named.get(prefix + "/".join([*path, last]))
            if counterpart is not None and self._fits(counterpart, inside):
                return counterpart
            # A parameter that several nodes read is a node beside its module.
            counterpart = named.get(prefix + "/".join(path) + f".{last}")
            if isinstance(counterpart, Item) and self._picture.class_of(counterpart) == "Parameter":
                return counterpart
        return None

    def _fits(self, candidate: Glyph, inside: list[Glyph]) -> bool:
        """Whether a counterpart fits: a node, a module, or a box around those of the children."""
        if (
            isinstance(candidate, Item)
            or self._picture.class_of(candidate)
            or candidate in self._forward
        ):
            return True
        return any(inner.name.startswith(f"{candidate.name}/") for inner in inside)

    def _child_around(self, glyph: Glyph, box: Box) -> Glyph:
        """Return the child of a box that is or contains a glyph; the root if it is elsewhere."""
        child, around = glyph, box_around(glyph)
        while around is not None and around is not box:
            child, around = around, around.parent
        return child


# -- texts -------------------------------------------------------------------------------------


def in_order(mode: str, counts: Mapping[str, int]) -> dict[str, int]:
    """Sort texts with their counts: stages and ranks by their order, others by frequency."""

    def key(counted: tuple[str, int]) -> tuple[int, str]:
        text, count = counted
        if mode == "stage":
            return _STAGES.index(text), text
        number = _NUMBER.search(text) if mode == "rank" else None
        return int(number[0]) if number else -count, text

    return dict(sorted(counts.items(), key=key))


class BoxTexts(NamedTuple):
    """The texts of the contents of a box.

    Attributes:
        shares: The count of each text in the box; a child with a text hides those inside it.
        below: Every text in it, at any depth.
    """

    shares: Counter[str]
    below: dict[str, None]


class Texts:
    """The texts of a picture.

    Args:
        picture: The picture, with its repeats in boxes of their own.
        stages: The boxes of a training step in it.

    Attributes:
        of: Returns the texts of nodes and boxes in a mode, without empty ones.
        inside: Returns the texts of the contents of each box, in a mode.
    """

    def __init__(self, picture: Picture, stages: Stages) -> None:
        self._picture = picture
        self._stages = stages
        # The function from a node or a box to its text, by mode.
        self._text_functions: dict[str, Callable[[Glyph], str]] = {
            "label": partial(picture.mark, of="label"),
            "class": stages.class_of,
            "kind": partial(picture.mark, of="kind"),
            "dtype": lambda glyph: next((output.dtype for output in picture.outputs(glyph)), ""),
            "device": picture.device,
            "trainable": picture.trainable,
            "stage": lambda glyph: self._stage_texts.get(glyph, ""),
            "rank": lambda glyph: self._rank_texts.get(glyph, ""),
        }
        self.of = cache(self._of)
        self.inside = cache(self._sums)

    @cached_property
    def modes(self) -> tuple[str, ...]:
        """The modes in which some node or box has a text."""
        return tuple(mode for mode in self._text_functions if self.of(mode))

    def _of(self, mode: str) -> Mapping[Glyph, str]:
        """Return the texts of nodes and boxes in a mode, without empty ones."""
        glyphs = self._picture.glyphs
        texts = zip(glyphs, map(self._text_functions[mode], glyphs), strict=True)
        return {glyph: text for glyph, text in texts if text}

    def _sums(self, mode: str) -> "dict[Box, BoxTexts]":
        texts = self.of(mode)
        sums: dict[Box, BoxTexts] = {}
        # Boxes come parents first.
        for box in (*reversed(self._picture.boxes), self._picture.root):
            shares = Counter[str]()
            below: dict[str, None] = {}
            for child in box.children.values():
                text = texts.get(child)
                if text:
                    shares[text] += 1
                    below[text] = None
                if isinstance(child, Box):
                    inner = sums[child]
                    below.update(inner.below)
                    if not text:
                        shares.update(inner.shares)
            sums[box] = BoxTexts(shares, below)
        return sums

    # -- ranks -------------------------------------------------------------------------------

    @cached_property
    def _rank_texts(self) -> dict[Glyph, str]:
        """The ranks that run each node, and of each box whose nodes all run on equal ranks."""
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

        A node outside of the model is in the loss if it reads results of the model, in the
        optimizer's stage if it reads gradients (e.g. their norm, an average of the weights), and
        in the forward pass if the model reads it.
        """
        if not any(self._stages.phase(box) for box in self._picture.boxes):
            return {}
        stages: dict[Item, str] = {}
        loose: list[Item] = []
        for item in self._picture.items:
            if self._picture.class_of(item) in ENDS:
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
        """Return the stage of the outermost enclosing box that has one, or of the node itself."""
        stage = "forward" if self._is_module(item) else ""
        box: Box | None = item.box
        while box is not None:
            stage = self._stages.phase(box) or ("forward" if self._is_module(box) else stage)
            box = box.parent
        return stage

    def _is_module(self, glyph: Glyph) -> bool:
        """Whether a box or a node is a part of the model, not a function of the loss."""
        fact = self._picture.fact
        return fact(glyph, "module") is not None or fact(glyph, "parameter_count") is not None

    def _stage_of_sources(self, item: Item, stages: dict[Item, str]) -> str:
        """Return the stage of a node outside of the model, by the stages of its sources."""
        words = {stages.get(source, "") for source in self._sources([item])}
        if words & {"forward", "loss"}:
            return "loss"
        return "optimizer" if words & {"backward", "optimizer"} else ""

    def _sources(self, items: Iterable[Item]) -> set[Item]:
        """Return the sources of some nodes, without parameters and buffers."""
        picture = self._picture
        return {
            read.source
            for item in items
            for read in picture.reads(item)
            if picture.class_of(read.source) not in _PARAMETERS
        }

    def _with_boxes(self, texts: dict[Item, str]) -> dict[Glyph, str]:
        """Add each box whose nodes with a text all have the same text."""
        inside: dict[Box, set[str]] = {}
        for item, text in texts.items():
            inside.setdefault(item.box, set()).add(text)
        for box in reversed(self._picture.boxes):
            if box.parent is not None and box in inside:
                inside.setdefault(box.parent, set()).update(inside[box])
        with_boxes: dict[Glyph, str] = dict(texts.items())
        for box, texts_inside in inside.items():
            if len(texts_inside) == 1:
                with_boxes[box] = min(texts_inside)
        return with_boxes
