"""Makes a model's configuration small, by the names and the ratios of its fields.

No architecture is known here by name. A field has a *role* (a number of layers, a
width, a token id, …), told by its name; the role tells what becomes of its value. The
same rules for all sub-configurations keep what must fit together fitting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.zoo.fields import SPAN, SPECIAL_IDS, TAPS, VOCABULARY, role_of

__all__ = ["PLANS", "Plan", "shrink"]


@dataclass(frozen=True)
class Plan:
    """One way to make a configuration small.

    Attributes:
        scale: Widths are divided by it; None sets each width by its role instead, so that
            sub-configurations whose defaults do not fit together do.
        grid: Patches along a side of an image; None keeps the image's size.
        layers: How many layers of each stack are kept, where all are of one kind.
        heads: What numbers of attention heads are divided by, where widths are scaled.
        head_width: The width of a head, where widths are set.
        least: The smallest width that scaling gives.
        fill: Whether fields that a default configuration leaves open are filled.
    """

    scale: int | None = 16
    grid: int | None = 4
    layers: int = 2
    heads: int = 1
    head_width: int = 16
    fill: bool = False
    least: int = 4

    @property
    def count(self) -> int:
        """How many heads there are, where widths are set."""
        return 4 if self.head_width < 64 else 2


PLANS = (
    Plan(),
    Plan(scale=None),
    Plan(scale=8),
    Plan(scale=64, heads=8),
    Plan(scale=4),
    Plan(scale=16, grid=8),
    Plan(scale=None, grid=8),
    Plan(scale=32, heads=4),
    Plan(scale=None, head_width=128),
    Plan(scale=None, head_width=64),
    Plan(scale=8, grid=None),
    Plan(scale=2),
    Plan(scale=8, grid=16),
    Plan(scale=8, least=32),
    Plan(scale=None, fill=True),
    Plan(scale=16, fill=True),
    Plan(scale=None, head_width=128, fill=True),
    Plan(layers=4),
    Plan(scale=None, layers=4),
    Plan(scale=1, grid=8),
    Plan(scale=1, grid=None),
)
"""The plans in the order in which they are tried; the first that gives a running model wins."""

# Widths that are set by their role, where a plan has no scale.
FIXED = {"inner": 128, "rank": 16}


def shrink(config: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Give a small configuration.

    Args:
        config: The default one as plain data, sub-configurations as dicts inside.
        plan: How small, and in which way.
    Returns:
        New data of the same form.
    """
    return _Shrinker(plan).config(config)


class _Shrinker:
    """Holds what all sub-configurations share: the map of special token ids."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ids: dict[int, int] = {}
        self.side = 0

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        small = dict(config)
        level = _Level(config, self.plan)
        for one in (config, *(value for value in config.values() if isinstance(value, dict))):
            side = one.get("image_size")
            if not self.side and type(side) is int:
                self.side = _Level(one, self.plan).image(side)
        for name, value in config.items():
            if value is None and self.plan.fill:
                small[name] = _filling(name, config)
            elif name == "per_layer_config" and value:
                small[name] = level.overrides(value, self)
            elif name == "out_features":
                small[name] = None
            elif isinstance(value, dict):
                if value.get("model_type") == "timm_backbone":
                    small[name] = _backbone(value)
                elif "model_type" in value or name.endswith("config"):
                    small[name] = self.config(value)
                elif name.startswith("rope_"):
                    small[name] = self.rope(value, config)
            elif name in level.per_layer:
                small[name] = type(value)(value[index] for index in level.picked)
            else:
                small[name] = self.field(name, value, level)
        return small

    def field(self, name: str, value: Any, level: "_Level") -> Any:
        """Give what one field becomes."""
        role = role_of(name)
        if isinstance(value, bool) or role is None or role == "keep":
            return value
        if role == "layer_index":
            return level.indices(value, name)
        if role == "depths":
            return _each(value, lambda depth: min(depth, 2))
        if role == "layers":
            return level.layers(value)
        if role == "image" and isinstance(value, list | tuple) and value:
            side = min(value)
            return type(value)(size * level.image(side) // side for size in value)
        if role == "pinpoints":
            return self.pinpoints(value)
        change = getattr(self, role)
        return _each(value, lambda number: change(number, name, level))

    def channels(self, number: int, name: str, level: "_Level") -> int:
        return self.scaled(number, "width", level)

    def pinpoints(self, value: Any) -> Any:
        """Give tiled sizes in the small image's side, as many sides as there were."""
        if not self.side or not value:
            return value
        large = min(min(size) for size in value)
        return [[side * self.side // large for side in size] for size in value]

    def vocab(self, number: int, name: str, level: "_Level") -> int:
        return min(number, VOCABULARY)

    def codes(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 64)

    def token(self, number: int, name: str, level: "_Level") -> int:
        if number < SPECIAL_IDS:
            return number
        return self.ids.setdefault(number, SPECIAL_IDS + len(self.ids))

    def period(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 2)

    def offset(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 1)

    def few(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 1)

    def tokens(self, number: int, name: str, level: "_Level") -> int:
        return 4 if self.plan.grid and number > 100 else number

    def experts(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 8)

    def top_k(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 2)

    def groups(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 2)

    def positions(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 64 if "source" in name else 512)

    def window(self, number: int, name: str, level: "_Level") -> int:
        return number if number <= 32 else max(number // 16, 16)

    def times(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 2)

    def queries(self, number: int, name: str, level: "_Level") -> int:
        return min(number, 20)

    def image(self, number: int, name: str, level: "_Level") -> int:
        return level.image(number)

    def grid(self, number: int, name: str, level: "_Level") -> int:
        return number if self.plan.grid is None else min(number, self.plan.grid)

    def heads(self, number: int, name: str, level: "_Level") -> int:
        if self.plan.scale is None and not level.staged:
            return min(number, self.plan.count)
        return _divide(number, self.plan.heads)

    def key_heads(self, number: int, name: str, level: "_Level") -> int:
        if self.plan.scale is None:
            most = max((v for n, v in level.numbers if role_of(n) == "heads"), default=number)
            return min(number, self.plan.count if number >= most else self.plan.count // 2)
        return _divide(number, self.plan.heads)

    def width(self, number: int, name: str, level: "_Level") -> int:
        return self.scaled(number, "width", level)

    def inner(self, number: int, name: str, level: "_Level") -> int:
        return self.scaled(number, "inner", level)

    def head_width(self, number: int, name: str, level: "_Level") -> int:
        if self.plan.scale is None:
            width = self.plan.head_width
            return 2 * width if name == "qk_head_dim" else min(number, width)
        return max(number * self.plan.heads // self.plan.scale, 2) if number >= 16 else number

    def rank(self, number: int, name: str, level: "_Level") -> int:
        return self.scaled(number, "rank", level)

    def scaled(self, number: int, role: str, level: "_Level") -> int:
        if number < 16:
            return number
        if self.plan.scale is None and not level.staged:
            return min(number, FIXED.get(role, self.plan.count * self.plan.head_width))
        return max(number // (self.plan.scale or 16), self.plan.least)

    def rope(self, rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """Scale the sections of a rotary embedding to the width of a head."""
        small = dict(rope)
        for name, value in rope.items():
            if isinstance(value, dict):
                small[name] = self.rope(value, config)
            elif name == "mrope_section":
                small[name] = _sections(value, self.half_head(config) or sum(value))
            elif name in ("long_factor", "short_factor"):
                small[name] = value[: self.half_head(config) or len(value)]
        return small

    def half_head(self, config: dict[str, Any]) -> int:
        level = _Level(config, self.plan)
        width = config.get("head_dim")
        if not width and config.get("num_attention_heads"):
            hidden = self.field("hidden_size", config.get("hidden_size", 0), level)
            return (
                hidden
                // self.field("num_attention_heads", config["num_attention_heads"], level)
                // 2
            )
        return self.field("head_dim", width, level) // 2 if width else 0


class _Level:
    """What the fields of one configuration tell together: its layers and its image."""

    def __init__(self, config: dict[str, Any], plan: Plan) -> None:
        self.plan = plan
        self.numbers = [(n, v) for n, v in config.items() if type(v) is int]
        self.staged = any(
            role_of(name) == "depths" and isinstance(value, list | tuple)
            for name, value in config.items()
        )
        self.stages = {
            len(value)
            for name, value in config.items()
            if role_of(name) == "depths" and isinstance(value, list | tuple)
        }
        self.patch = config.get("patch_size")
        counts = [v for n, v in self.numbers if role_of(n) == "layers" and v > 1]
        self.per_layer = {
            name: value
            for name, value in config.items()
            if isinstance(value, list | tuple)
            and len(value) in counts
            and len(value) not in self.stages
            and role_of(name) != "layer_index"
            and not self.staged
        }
        special = config.get("per_layer_config")
        if special and counts:
            special = {int(key): value for key, value in special.items()}
            self.per_layer["per_layer_config"] = [special.get(i) for i in range(max(counts))]
        taps = [v for n, v in config.items() if SPAN.search(n) and isinstance(v, list | tuple)]
        self.depth = max(counts, default=0)
        self.least = max([plan.layers, *map(len, taps)])
        self.picked = self._picked()

    def _picked(self) -> list[int]:
        """Give the layers that are kept: one of each kind, at least two."""
        if not self.per_layer:
            return list(range(self.least))
        length = max(map(len, self.per_layer.values()))
        self.per_layer = {n: v for n, v in self.per_layer.items() if len(v) == length}
        kinds = list(zip(*(map(repr, value) for value in self.per_layer.values()), strict=True))
        first = [index for index, kind in enumerate(kinds) if kind not in kinds[:index]][:6]
        rest = [index for index in range(length) if index not in first]
        return sorted(first + rest[: max(self.least - len(first), 0)])

    def overrides(self, special: dict[Any, Any], shrinker: "_Shrinker") -> dict[int, Any]:
        """Give the fields of single layers, by their new numbers."""
        special = {int(key): value for key, value in special.items()}
        return {
            new: {name: shrinker.field(name, value, self) for name, value in special[old].items()}
            for new, old in enumerate(self.picked)
            if old in special
        }

    def layers(self, value: Any) -> Any:
        if isinstance(value, list | tuple) or (value in self.stages and self.staged):
            return value
        return min(value, len(self.picked)) if isinstance(value, int) else value

    def indices(self, value: Any, name: str) -> Any:
        """Give the layers of a list by their new numbers, the last one of those of a kind."""
        if self.staged:
            return value
        last = len(self.picked)
        if not isinstance(value, list | tuple):
            return max(-last, min(value, last - 1)) if type(value) is int else value
        if not value or not all(type(index) is int for index in value):
            return value
        if not self.depth:  # The layers are those of another configuration.
            return type(value)(-1 - place for place in range(len(value)))
        if last >= self.depth:
            return value
        if len(value) == self.depth:
            return type(value)(min(value[index], last - 1) for index in self.picked)
        if not TAPS.search(name):
            return type(value)([last - 1])
        if min(value) < 0:
            return type(value)(dict.fromkeys(max(index, -last) for index in value))
        kept = (
            -(-index * last // self.depth) if "out" in name else index * last // self.depth
            for index in value
        )
        return type(value)(dict.fromkeys(kept))

    def image(self, number: int) -> int:
        """Give the side of an image of `plan.grid` patches."""
        patch = self.patch[-1] if isinstance(self.patch, list | tuple) else self.patch
        if self.plan.grid is None:
            return number
        if not isinstance(patch, int):
            return min(number, 16 * self.plan.grid)
        return min(number, max(patch * self.plan.grid, 32))


def _filling(name: str, config: dict[str, Any]) -> Any:
    """Give a value for a field that a default configuration leaves open; None if it may."""
    heads = config.get("num_attention_heads") or 4
    hidden = 64 if config.get("hidden_size") else None
    return {
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "head_dim": 16 if hidden else None,
        "num_key_value_heads": min(heads, 4),
        "vocab_size": VOCABULARY,
        "pad_token_id": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "moe_topk": 2,
        "image_token_id": 100,
        "audio_token_id": 101,
        "audio_token_index": 101,
        "image_token_index": 100,
        "prediction_length": 4,
        "context_length": 8,
        "attn_layer_indices": [1],
    }.get(name)


def _backbone(config: dict[str, Any]) -> dict[str, Any]:
    """Give a backbone of transformers' own in place of one of the library timm."""
    indices = config.get("out_indices") or [4]
    return {
        "model_type": "resnet",
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "out_indices": [index for index in indices if 0 < index <= 4] or [4],
    }


def _each(value: Any, change: Callable[[int], int]) -> Any:
    """Change a number, or each number of a nest of lists."""
    if isinstance(value, list | tuple):
        return type(value)(_each(entry, change) for entry in value)
    return change(value) if type(value) is int and value > 0 else value


def _divide(number: int, by: int) -> int:
    return number // by if number % by == 0 else number


def _sections(sections: list[int], half: int) -> list[int]:
    """Share the pairs of a head out over sections, in about their old ratio."""
    total = sum(sections)
    small = [max(section * half // total, 1) for section in sections]
    small[0] += half - sum(small)
    return small
