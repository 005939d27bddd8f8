"""Stages: forward, backward and optimizer of a training step, and which boxes belong together.

A backward pass is in a box `gradients`, in which a box is called as what it differentiates; a step
of an optimizer is in a box `optimizer`, in which a box is called as what it updates. So names alone
lead from one to the other, and where they do not fit, nothing is claimed.
"""

import re

from tbscope.ir.scopes import PHASE_BOXES
from tbscope.page.glyphs import Box, Item, box_around
from tbscope.saving.picture import Glyph, Picture

__all__ = ["Stages"]

_BACKWARD, _OPTIMIZER = PHASE_BOXES["backward"], PHASE_BOXES["optimizer"]
_PHASES = {label: phase for phase, label in PHASE_BOXES.items()}
_LABEL = re.compile(rf"({_BACKWARD}|{_OPTIMIZER})(\.\d+(st|nd|rd|th)?)?")
_FORWARD_LANE, _BACKWARD_LANE, _LAST_LANE = range(3)
# The class of an optimizer, and a group of parameters, may be around the names of modules.
_MOST_AROUND = 2
_TITLES = {_BACKWARD: ("Gradients", "Backward of"), _OPTIMIZER: ("Updated by", "Updates")}


class Stages:
    """The stages of one picture.

    Args:
        picture: The picture, with its repeats folded.
    Attributes:
        of: The box of the stage that a box is in, or is; None for the forward pass.
        links: The counterparts of a node or a box in other stages, by titles.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self.of: dict[Box, Box | None] = {picture.root: None}
        # The node or the box that each box of a stage belongs to.
        self._forward: dict[Box, Glyph] = {}
        self.links: dict[Glyph, dict[str, list[Glyph]]] = {}
        for box in picture.boxes:
            assert box.parent is not None, "the root alone has no parent"
            around = self.of[box.parent]
            # What is differentiated again stays in the pass that does so.
            own = not self._is_backward(around) and self._kind(box)
            self.of[box] = box if own else around
        if any(self.of.values()):
            glyphs: list[Glyph] = [*picture.boxes, *picture.items]
            named = {one.name: one for one in glyphs}
            # What is a gradient of a gradient is known once that is.
            for box in (*reversed(picture.boxes), *reversed(picture.boxes)):
                forward = None if box in self._forward else self._find(box, named)
                stage = self.of[box]
                if forward is not None and stage is not None:
                    self._forward[box] = forward
                    there, back = _TITLES[self._kind(stage)]
                    self.links.setdefault(forward, {}).setdefault(there, []).append(box)
                    self.links.setdefault(box, {})[back] = [forward]

    def phase(self, box: Box) -> str:
        """Return the phase whose box this is: "backward", "optimizer", or empty for another."""
        return _PHASES.get(self._kind(box), "")

    def flows_back(self, box: Box) -> bool:
        """Whether a box is in a backward pass, or is one."""
        return self._is_backward(self.of[box])

    def class_of(self, glyph: Glyph) -> str:
        """Return the class of a node or a box, or of what it is a gradient or an update of."""
        own = self._picture.class_of(glyph)
        forward = self._forward.get(glyph) if isinstance(glyph, Box) and not own else None
        return own if forward is None else self.class_of(forward)

    def words_of(self, glyph: Glyph) -> str:
        """Return the class of a node or a box in words: `Block`, `backward of Block`."""
        if not isinstance(glyph, Box) or glyph not in self._forward:
            return self._picture.class_of(glyph)
        found = self.words_of(self._forward[glyph])
        how = "backward" if self._is_backward(self.of[glyph]) else "update"
        return f"{how} of {found}" if found else ""

    def counterparts(self, glyph: Glyph) -> list[Glyph]:
        """Return all counterparts of a node or a box: those of its forward pass, too.

        Those of the box of a stage are beside it in its level.
        """
        found: list[Glyph] = []
        near = [glyph]
        if isinstance(glyph, Box):
            near += [self._forward[glyph]] if glyph in self._forward else []
            pending = [*glyph.children.values()] if self.of[glyph] is glyph else []
            while pending:
                one = pending.pop(0)
                if isinstance(one, Box) and one in self._forward and glyph.parent is not None:
                    found.append(self._child_around(self._forward[one], glyph.parent))
                elif isinstance(one, Box):
                    pending += one.children.values()
        for each in near:
            found += (other for others in self.links.get(each, {}).values() for other in others)
        return [one for one in dict.fromkeys(found) if one is not glyph]

    def lanes(self, box: Box) -> list[tuple[int, int]]:
        """Return the lane of each child of a box; none for a box without stages.

        Returns:
            How many rounds of forward and backward come before; and the column: 0 for what runs
            forward, 1 for a backward pass, 2 for what follows it.
        """
        children = self._picture.children(box)
        stages = [one for one in children if isinstance(one, Box) and self.of[one] is one]
        if not stages:
            return []
        found: dict[Glyph, tuple[int, int]] = {}
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
            found[child] = rounds, column
        for child in children:
            # The outputs of a graph are its last nodes, whatever they are outputs of.
            if isinstance(child, Item) and self._picture.class_of(child) == "Output":
                sources = (
                    self._child_around(read.source, box) for read in self._picture.flow(child)
                )
                near = (found[one] for one in sources if one in found)
                found[child] = max(near, default=(rounds, column))
        return [found[child] for child in children]

    # -- names -------------------------------------------------------------------------------

    def _kind(self, box: Box) -> str:
        """Return the label of a stage for its box; empty for another, as for a module's."""
        found = _LABEL.fullmatch(box.label)
        return found[1] if found and not self._picture.class_of(box) else ""

    def _is_backward(self, glyph: Glyph | None) -> bool:
        return isinstance(glyph, Box) and self._kind(glyph) == _BACKWARD

    def _find(self, box: Box, named: dict[str, Glyph]) -> Glyph | None:
        """Return what a box of a stage is a gradient or an update of; None for nothing."""
        stage = self.of[box]
        if stage is None or stage is box or self._picture.class_of(box):
            return None
        inside = [self._forward[one] for one in box.children.values() if one in self._forward]
        if self._picture.repeats(box):
            around = box_around(inside[0]) if inside else None
            return around if around is not None and self._picture.repeats(around) else None
        prefix = stage.name.removesuffix(stage.label)
        parts = box.name.removeprefix(f"{stage.name}/").split("/")
        for skipped in range(1 if self._is_backward(stage) else _MOST_AROUND + 1):
            *path, last = parts[skipped:] or [""]
            found = named.get(prefix + "/".join([*path, last]))
            if found is not None and self._fits(found, inside):
                return found
            # A parameter that several nodes read is a node beside its module.
            found = named.get(prefix + "/".join(path) + f".{last}")
            if isinstance(found, Item) and self._picture.class_of(found) == "Parameter":
                return found
        return None

    def _fits(self, found: Glyph, inside: list[Glyph]) -> bool:
        """Whether a name is that of a module; of another box if it is around such modules."""
        if isinstance(found, Item) or self._picture.class_of(found) or found in self._forward:
            return True
        return any(one.name.startswith(f"{found.name}/") for one in inside)

    def _child_around(self, glyph: Glyph, box: Box) -> Glyph:
        """Return the child of a box that something is, or is in; the root if it is elsewhere."""
        one, around = glyph, box_around(glyph)
        while around is not None and around is not box:
            one, around = around, around.parent
        return one
