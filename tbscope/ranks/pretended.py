"""Which ranks of a run that does not exist a model is traced as, one after the other."""

from collections.abc import Mapping
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ranks.asked import Ranks, check_unfolded
from tbscope.sources.torch.parallelizing import size_of_world
from tbscope.words import shown

__all__ = ["pretended_ranks"]


def pretended_ranks(ranks: Ranks, world: Mapping[str, Any]) -> list[int] | None:
    """Return the ranks as each of which a model is traced; None where it is traced as one.

    Args:
        ranks: Those that are asked for: what is known to be an option.
        world: The options of the run that does not exist.
    Raises:
        ArgumentError: The run has no such ranks, too many to be drawn unfolded, or one of them
            is asked for, too.
    """
    size = size_of_world(world["world_size"], world["mesh"])
    if size is None or ranks == "mine":
        return None
    if world["rank"] != 0:
        raise ArgumentError(
            f"rank={shown(world['rank'])} is given with ranks={shown(ranks)}",
            why="the model is traced as each of these ranks",
            fix=f"leave rank out, or ranks={shown([world['rank']])}",
        )
    wanted = list(range(size)) if isinstance(ranks, str) else sorted(ranks)
    if wanted[-1] >= size:
        raise ArgumentError(
            f"ranks={shown(ranks)} asks for rank {wanted[-1]}",
            why=f"the run has {size}, counted from 0",
            fix="ranks='all'",
        )
    if ranks == "unfolded":
        check_unfolded(len(wanted))
    return wanted
