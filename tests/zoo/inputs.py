"""Example inputs for a model, by the names in its forward and the fields of its configuration.

The call is that of the documentation: keywords, one tensor each. Where the names leave
a choice (an image of its own, in tiles, in a video), there are several candidates.
What a model still misses, it says when it runs: `complete` listens.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.zoo.exceptions import INPUTS
from tests.zoo.fields import SPECIAL_IDS, role_of

__all__ = ["NoInputsError", "example_inputs"]

BATCH = 2
LENGTH = 16
FRAMES = 4

Inputs = dict[str, Any]


class NoInputsError(RuntimeError):
    """No candidate runs; the message is that of the first one."""


def example_inputs(
    model: torch.nn.Module, run: Callable[[Inputs], Any], *, whole: bool = True
) -> Inputs:
    """Give inputs with which a model runs.

    Args:
        model: What is called.
        run: Calls it once; raises what the model raises.
        whole: Whether only inputs of all kinds that the model takes count (not its text alone).
    Raises:
        NoInputsError: No candidate runs.
    """
    first: Exception | None = None
    for candidate in _candidates(model, whole=whole):
        try:
            return _complete(model, candidate, run)
        except Exception as error:  # noqa: BLE001  (Any error of the model rejects a candidate.)
            first = first or error
    if first is None:
        raise NoInputsError("nothing tells what it is called with")
    raise NoInputsError(f"{type(first).__name__}: {first}") from first


def _candidates(model: torch.nn.Module, *, whole: bool = False) -> Iterator[Inputs]:
    """Give inputs to try, the fullest first, then text alone, then the model's own dummies."""
    special = INPUTS.get(type(model).__name__)
    if special:
        yield special(model)
        return
    facts = _Facts(model)
    wanted = [name for name in facts.parameters if facts.is_wanted(name)]
    yield from itertools.islice(facts.combinations(wanted), 24)
    fewer = [name for name in wanted if name not in _DISPENSABLE or name in facts.required]
    if fewer != wanted:
        yield from itertools.islice(facts.combinations(fewer), 24)
    masks = [name for name in facts.parameters if re.search(r"mask$", name) and name not in wanted]
    if masks:
        yield from itertools.islice(facts.combinations([*wanted, *masks]), 6)
        yield from itertools.islice(facts.combinations([*fewer, *masks]), 6)
    if whole:
        return
    text = [name for name in wanted if not _MEDIA.match(name)]
    if text != wanted and text:
        yield from facts.combinations(text)
    if facts.main and facts.main not in wanted:
        yield from facts.combinations([*wanted, facts.main])
    for name in ("input_ids", "pixel_values", "input_features", "input_values"):
        if name in facts.parameters:
            yield from facts.combinations([name])


_MEDIA = re.compile(
    r"pixel|image|audio|video|input_features|feature_attention|spatial|input_values"
)

# Parameters that some models have and cannot use.
_DISPENSABLE = {
    "image_sizes",
    "input_points",
    "mm_token_type_ids",
    "input_values",
    "attention_mask",
}

# Parameters that are given wherever a forward has them.
_USUAL = {
    "input_ids",
    "attention_mask",
    "decoder_input_ids",
    "pixel_values",
    "input_features",
    "input_values",
    "image_grid_thw",
    "image_sizes",
    "spatial_shapes",
    "bbox",
    "input_points",
    "past_values",
    "past_time_features",
    "future_time_features",
    "future_values",
    "mm_token_type_ids",
    "image_merge_sizes",
}


class _Facts:
    """What a model tells of its inputs."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.config = model.config
        self.main = getattr(model, "main_input_name", None)
        parameters = inspect.signature(model.forward).parameters.values()
        self.required = {
            p.name
            for p in parameters
            if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        }
        self.parameters = [
            p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
        self.generator = torch.Generator().manual_seed(0)

    # -- the configuration --------------------------------------------------------------

    def find(self, *names: str, under: str | None = None, default: Any = None) -> Any:
        """Give the first field of one of these names, the nearest to the root first."""
        level = [self.config]
        while level:
            for name in names:
                for config in level:
                    value = getattr(config, name, None)
                    if value is not None and not callable(value):
                        return value
            level = [
                value
                for config in level
                for key, value in vars(config).items()
                if hasattr(value, "model_type") and (under is None or under in key)
            ]
        return default

    def sides(self) -> tuple[int, int]:
        """Give the height and width of an image."""
        size = self.find("image_size", "img_size", "crop_size", "resolution", under=None)
        if isinstance(size, dict):
            size = (size.get("height", 64), size.get("width", 64))
        if isinstance(size, int):
            return (size, size)
        if isinstance(size, list | tuple) and len(size) >= 2 and isinstance(size[0], int):
            return tuple(size[-2:])
        return (self.patch() * 4,) * 2 if self.patch() > 8 else (64, 64)

    def patch(self) -> int:
        patch = self.find("patch_size", "spatial_patch_size", default=1)
        return patch[-1] if isinstance(patch, list | tuple) else int(patch)

    def channels(self) -> int:
        number = self.find(
            "num_channels", "in_channels", "in_chans", "num_input_channels", default=3
        )
        return number if isinstance(number, int) else 3

    def vocabulary(self) -> int:
        return min(int(self.find("vocab_size", "text_vocab_size", default=64)), SPECIAL_IDS)

    def length(self) -> int:
        return LENGTH

    def mels(self) -> int:
        names = ("feature_projection_input_dim", "num_mel_bins", "n_mels", "feature_size")
        names = (*names, "input_feat_size", "input_dim", "num_features")
        return int(self.find(*names, default=80))

    def frames(self) -> int:
        """Give the frames of a spectrogram."""
        window = self.find("n_window")
        return 2 * int(window or self.find("max_source_positions", default=64))

    # -- tensors ------------------------------------------------------------------------

    def noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def tokens(self, *shape: int) -> torch.Tensor:
        """Give token ids that no configuration names as special."""
        special = set(_special_ids(self.config))
        plain = [i for i in range(3, min(self.vocabulary(), 100)) if i not in special] or [0]
        picks = torch.randint(len(plain), shape, generator=self.generator)
        return torch.tensor(plain)[picks]

    def is_wanted(self, name: str) -> bool:
        if name in self.required or name == self.main:
            return True
        if name not in _USUAL:
            return False
        if name == "input_values" and "input_ids" in self.parameters and self.main != name:
            return "input_features" not in self.parameters
        return True

    def combinations(self, names: list[str]) -> Iterator[Inputs]:
        """Give inputs for each choice of shapes."""
        choices = {name: self.choices(name, names) for name in names}
        choices = {name: options for name, options in choices.items() if options}
        for picks in itertools.product(*choices.values()):
            given = {k: v() for k, v in zip(choices, picks, strict=True)}
            yield _together(given)

    def choices(self, name: str, names: list[str]) -> list[Callable[[], Any]]:
        """Give the ways to make one input, the likeliest first."""
        if name == "hidden_states" and "grid_thw" in names:
            return self.pixels(name, names)[:2]
        if name in ("pixel_values", "pixel_values_videos", "high_res_pixel_values"):
            return self.pixels(name, names)
        if name == "input_features":
            frames = self.frames()
            first = [
                lambda: self.noise(BATCH, self.mels(), frames),
                lambda: self.noise(BATCH, frames, self.mels()),
            ]
            in_time = self.find("max_source_positions") is None
            return [
                *(reversed(first) if in_time else first),
                lambda: self.noise(BATCH, 1, 64, self.mels()),
            ]
        if name == "input_values":
            return [
                lambda: self.noise(BATCH, 4000),
                lambda: self.noise(BATCH, 1, 4000),
                lambda: self.noise(BATCH, int(self.find("max_length", default=128)), self.mels()),
                lambda: self.tokens(BATCH, LENGTH),
            ]
        if name == "pixel_attention_mask":
            height, width = self.sides()
            patches = (height // self.patch()) * (width // self.patch())
            return [
                lambda: torch.ones(1, patches, dtype=torch.long),
                lambda: torch.ones(BATCH, 1, height, width, dtype=torch.long),
            ]
        if name == "attention_mask":
            ones = torch.ones(BATCH, self.length(), dtype=torch.long)
            return [lambda: _padded(ones), lambda: torch.ones_like(ones)]
        make = _MAKERS.get(name)
        if make:
            return [lambda: make(self)]
        return [lambda: self.guess(name)] if name in self.required else []

    def pixels(self, name: str, names: list[str]) -> list[Callable[[], Any]]:
        height, width = self.sides()
        channels, patch = self.channels(), self.patch()
        temporal = self.find("temporal_patch_size", "patch_temporal", default=1)
        frames = int(self.find("num_frames", "frames_per_clip", default=FRAMES))
        image = lambda: self.noise(BATCH, channels, height, width)
        video = lambda: self.noise(BATCH, frames, channels, height, width)
        tiles = lambda: self.noise(BATCH, 1, channels, height, width)
        flat = lambda: self.noise(_GRID.prod(), channels * temporal * patch * patch)
        grid = lambda: self.noise(1, (height // patch) * (width // patch), channels * patch * patch)
        swapped = lambda: self.noise(BATCH, channels, frames, height, width)
        rows = lambda: self.noise(_GRID.prod(), channels, patch, patch)
        deep_rows = lambda: self.noise(1, _GRID.prod(), channels, patch, patch)
        three_tiles = lambda: self.noise(BATCH, 3, channels, height, width)
        if "image_grid_thw" in names or "grid_thw" in names:
            return [flat, rows, deep_rows, image]
        if "spatial_shapes" in names:
            return [grid, image]
        if "video" in name or self.find("tubelet_size", "num_frames") is not None:
            return [video, image, swapped, tiles]
        if "image_sizes" in names:
            return [three_tiles, image, tiles]
        return [image, tiles, video, grid]

    def guess(self, name: str) -> Any:
        """Make an input that only its name describes."""
        if name.endswith("ids"):
            return self.tokens(BATCH, LENGTH)
        if "mask" in name:
            return torch.ones(BATCH, LENGTH, dtype=torch.long)
        width = int(self.find("hidden_size", "d_model", default=64))
        return self.noise(BATCH, LENGTH, width)


_GRID = torch.tensor([[1, 4, 4]])
"""Frames, height and width in patches of the image of a model that takes patches in a row."""


def _padded(mask: torch.Tensor) -> torch.Tensor:
    """Give a mask whose last row ends in padding."""
    mask = mask.clone()
    mask[-1, -3:] = 0
    return mask


def _bbox(facts: _Facts) -> torch.Tensor:
    low = torch.randint(0, 200, (BATCH, LENGTH, 2), generator=facts.generator)
    return torch.cat([low, low + 50], dim=-1)


def _series(facts: _Facts) -> torch.Tensor:
    length = int(facts.find("context_length", default=LENGTH))
    lags = facts.find("lags_sequence")
    channels = int(facts.find("num_input_channels", "input_size", default=1))
    length += max(lags) if lags else 0
    return (
        facts.noise(BATCH, length, channels)
        if channels > 1 or not lags
        else facts.noise(BATCH, length)
    )


def _series_length(facts: _Facts) -> int:
    lags = facts.find("lags_sequence")
    return int(facts.find("context_length", default=LENGTH)) + (max(lags) if lags else 0)


def _series_features(facts: _Facts) -> int:
    return int(facts.find("num_time_features", default=0))


_MAKERS: dict[str, Callable[[_Facts], Any]] = {
    "input_ids": lambda f: f.tokens(BATCH, f.length()),
    "decoder_input_ids": lambda f: f.tokens(BATCH, LENGTH // 2),
    "bbox": _bbox,
    "image_grid_thw": lambda _: _GRID.clone(),
    "grid_thw": lambda _: _GRID.clone(),
    "video_grid_thw": lambda _: _GRID.clone(),
    "image_sizes": lambda f: torch.tensor([f.sides()] * BATCH),
    "target_sizes": lambda f: torch.tensor([f.sides()] * BATCH),
    "merge_sizes": lambda f: torch.tensor([f.find("spatial_merge_size", default=2)]),
    "image_merge_sizes": lambda f: torch.tensor([f.find("spatial_merge_size", default=2)]),
    "spatial_shapes": lambda f: torch.tensor([[s // f.patch() for s in f.sides()]]),
    "input_points": lambda f: torch.tensor([[[[8.0, 8.0]]]] * BATCH),
    "input_features_mask": lambda f: torch.ones(BATCH, f.frames(), dtype=torch.long),
    "feature_attention_mask": lambda f: torch.ones(BATCH, f.frames(), dtype=torch.long),
    "pixel_mask": lambda f: torch.ones(BATCH, *f.sides(), dtype=torch.long),
    "past_values": _series,
    "past_time_features": lambda f: f.noise(BATCH, _series_length(f), _series_features(f)),
    "past_observed_mask": lambda f: torch.ones_like(_series(f)),
    "future_values": lambda f: f.noise(BATCH, int(f.find("prediction_length", default=8))),
    "future_time_features": lambda f: f.noise(
        BATCH, int(f.find("prediction_length", default=8)), _series_features(f)
    ),
}


def _together(given: Inputs) -> Inputs:
    """Make masks and batches fit the tensors that they go with."""
    ids = given.get("input_ids")
    mask = given.get("attention_mask")
    if mask is not None and ids is None:
        for name in ("input_features", "input_values"):
            if name in given:
                sizes = given[name].shape
                length = sizes[1] if len(sizes) == 3 and sizes[1] > 100 else sizes[-1]
                given["attention_mask"] = torch.ones(BATCH, length, dtype=torch.long)
                break
        else:
            if not any("ids" in name for name in given):
                del given["attention_mask"]
    return given


def _special_ids(config: Any) -> Iterator[int]:
    """Give the ids of special tokens that a configuration names, at any depth."""
    for name, value in vars(config).items():
        if hasattr(value, "model_type"):
            yield from _special_ids(value)
        elif role_of(name) == "token" or name.endswith(("token_id", "token_index")):
            yield from (
                v for v in (value if isinstance(value, list) else [value]) if type(v) is int
            )


# -- what a model says that it misses -------------------------------------------------------

_COUNTS = re.compile(
    r"(?P<what>\w+) features and (?P<what2>\w+) tokens do not match[,:] "
    r"tokens: (?P<tokens>\d+),? features:? (?P<features>\d+)",
    re.IGNORECASE,
)
_SPOKEN = (
    r"(have to|must|should|need to) (be )?(specif|provid|pass|given)|cannot be .?None|is required"
)
_MISSING = re.compile(r"missing \d+ required .*argument")


def _complete(model: torch.nn.Module, given: Inputs, run: Callable[[Inputs], Any]) -> Inputs:
    """Run; add what the model says that it misses, and run again, a few times."""
    facts = _Facts(model)
    for _ in range(6):
        try:
            run(given)
        except Exception as error:
            better = _repair(facts, given, str(error))
            if better is None:
                raise
            given = better
        else:
            return given
    run(given)
    return given


def _repair(facts: _Facts, given: Inputs, said: str) -> Inputs | None:
    """Give inputs that fix what an error tells; None where it tells nothing of use."""
    counts = _COUNTS.search(said)
    if counts and "input_ids" in given:
        return _with_placeholders(facts, given, counts["what2"].lower(), int(counts["features"]))
    if _MISSING.search(said) or re.search(_SPOKEN, said):
        named = [n for n in re.findall(r"\w+", said) if n in facts.parameters and n not in given]
        for name in dict.fromkeys(named):
            options = facts.choices(name, list(given)) or [lambda name=name: facts.guess(name)]
            return {**given, name: options[0]()}
    return None


def _with_placeholders(facts: _Facts, given: Inputs, what: str, features: int) -> Inputs | None:
    """Put as many placeholder tokens in front of the text as there are features."""
    names = (f"{what}_token_id", f"{what}_token_index")
    token = facts.find(*names) or facts.find("image_token_id", "image_token_index")
    if token is None:
        return None
    ids = given["input_ids"]
    if int((ids == token).sum()) >= features:  # Some messages tell elements, not features.
        features //= int(facts.find("hidden_size", "d_model", under="text", default=1))
    text = torch.stack([row[row != token] for row in ids])
    rows = ids.shape[0] if features % ids.shape[0] == 0 and not _is_flat(given) else 1
    marks = torch.full((rows, features // rows), token)
    ids = torch.cat([text[:rows, :2], marks, text[:rows, 2:]], dim=1)
    better = {**given, "input_ids": ids}
    if "attention_mask" in given:
        better["attention_mask"] = torch.ones_like(ids)
    if "mm_token_type_ids" in facts.parameters:
        better["mm_token_type_ids"] = (ids == token).long()
    return better


def _is_flat(given: Inputs) -> bool:
    return "image_grid_thw" in given or "grid_thw" in given
