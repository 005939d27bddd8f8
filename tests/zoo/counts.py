"""What torch counts in a module, and what the cards, the summary and an overlay tell of it."""

from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import is_lazy

import tbscope
from tbscope.overlays.overlay import make_overlay
from tests.card_facts import facts

__all__ = ["wrong_counts"]

DRAWINGS = ({"leaves": "node"}, {"leaves": "box"}, {"level": "module"})
_KEYS = ("parameter_count", "trainable_parameter_count", "bytes")


def wrong_counts(graph: tbscope.Graph, model: nn.Module) -> Iterator[str]:
    """Tell which cards count other parameters than torch does, each parameter once."""
    registered = dict(model.named_modules())
    for drawing in DRAWINGS:
        for node in tbscope.to_graph_def(graph, **drawing).node:
            name = facts(node)["module"].s.decode()
            # A card without a name is that of the model, or of what no module registers.
            if "class" in node.attr and (name or "/" not in facts(node)["scope"].s.decode()):
                told = tuple(facts(node)[key].i for key in _KEYS)
                counted = _counted(registered[name]) if name in registered else None
                if told != counted:
                    yield f"the card of {name!r} with {drawing} tells {told}, torch {counted}"
    parameters, trainable, _ = _counted(model)
    totals = graph.summary().totals
    summed = totals["parameters"], totals["trainable_parameters"]
    if summed != (parameters, trainable):
        yield f"the summary tells {summed}, torch {parameters, trainable}"
    if not parameters:
        # There is nothing to draw.
        return
    (figure,) = make_overlay(graph, "parameters")
    drawn = sum(figure.numbers.values()) - totals["unregistered_parameters"]
    if drawn != parameters:
        yield f"the overlay sums up to {drawn}, torch to {parameters}"


def _counted(module: nn.Module) -> tuple[int, int, int]:
    """Count numbers in parameters, those of them that are learnt, and bytes of all."""
    parameters = [one for one in module.parameters() if not is_lazy(one)]
    buffers = [one for one in module.buffers() if not is_lazy(one)]
    return (
        sum(one.numel() for one in parameters),
        sum(one.numel() for one in parameters if one.requires_grad),
        sum(one.numel() * one.element_size() for one in (*parameters, *buffers)),
    )
