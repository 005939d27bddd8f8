"""The palette: fills and rims of nodes and boxes, in the order of their assignment.

The viewer and the forms that Graphviz draws have the same colours.

A search maximised the smallest distance: any two of the 14 fills of a theme are at least 12.5 apart
in CIEDE2000, and 8.8 for eyes with deuteranopia (7.4 with protanopia), by the matrices of Machado,
Oliveira and Fernandes for a severity of 1, applied to linear RGB. The text of a theme has a
contrast of 4.5 : 1 on each fill and along the whole scale of numbers, and a rim has 3 : 1 on the
background (WCAG 2.2, AA). `tests/test_palette.py` computes all of this.

Source: Machado et al., A Physiologically-based Model for Simulation of Color Vision Deficiency,
IEEE Transactions on Visualization and Computer Graphics 15(6), 2009
"""

from collections.abc import Iterator
from typing import NamedTuple

Colour = tuple[str, str]
"""A fill and its rim, each as `#rrggbb`."""

LIGHT: tuple[Colour, ...] = (
    ("#a7bfff", "#5976b4"),
    ("#f7f7a7", "#787b2e"),
    ("#bf9778", "#966f50"),
    ("#58dfc7", "#0d8675"),
    ("#30afb7", "#00848b"),
    ("#f7d7ff", "#8a6d93"),
    ("#efafb7", "#a3666f"),
    ("#c7af60", "#8a7624"),
    ("#50a7ef", "#177dbd"),
    ("#dff7df", "#667d67"),
    ("#97d797", "#448548"),
    ("#78af97", "#49826a"),
    ("#8fc7d7", "#437f8f"),
    ("#df80af", "#b65688"),
)
"""The colours on white, below dark text."""

DARK: tuple[Colour, ...] = (
    ("#0068b7", "#5997ec"),
    ("#584000", "#b29152"),
    ("#801850", "#de73a3"),
    ("#400050", "#c07dce"),
    ("#104028", "#70a183"),
    ("#9f5020", "#d7804d"),
    ("#706070", "#a291a2"),
    ("#383887", "#958be5"),
    ("#505838", "#929a77"),
    ("#402000", "#ba8d6c"),
    ("#285060", "#749cad"),
    ("#b73050", "#f36880"),
    ("#9f408f", "#d673c3"),
    ("#287058", "#5da389"),
)
"""The colours on black, below light text."""


class Theme(NamedTuple):
    """The colours of a theme.

    Attributes:
        colours: The colours of the first texts.
        fates: The indices of the colours for added, removed and changed nodes.
        plain: The colour of nodes without a text, and of further texts.
        cold: The fill of 0.
        hot: The fill of the largest number; fills between are mixed of both in sRGB.
        heat_rim: The rim of nodes with a number.
    """

    colours: tuple[Colour, ...]
    fates: dict[str, int]
    plain: Colour
    cold: str
    hot: str
    heat_rim: str


# The fates are green, red and yellow, as in other tools; their distances are those of the palette.
THEMES = {
    "light": Theme(
        colours=LIGHT,
        fates={"added": 3, "removed": 6, "changed": 1},
        plain=("#eceef2", "#747d8a"),
        cold="#fff6e3",
        hot="#ee6a2c",
        heat_rim="#a8552a",
    ),
    "dark": Theme(
        colours=DARK,
        fates={"added": 13, "removed": 11, "changed": 1},
        plain=("#2b3038", "#7f8998"),
        cold="#2b2723",
        hot="#a8430f",
        heat_rim="#cf7f4f",
    ),
}


def palette_style() -> str:
    """Return the style sheet that has each colour as a property: `--fill-0`, `--rim-plain`."""
    light, dark = (" ".join(_properties(THEMES[name])) for name in ("light", "dark"))
    return (
        f":root {{ {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
    )


def _properties(theme: Theme) -> Iterator[str]:
    for name, (fill, rim) in [*enumerate(theme.colours), ("plain", theme.plain)]:
        yield f"--fill-{name}: {fill}; --rim-{name}: {rim};"
    for fate, index in theme.fates.items():
        yield f"--fill-{fate}: var(--fill-{index}); --rim-{fate}: var(--rim-{index});"
    yield f"--cold: {theme.cold}; --hot: {theme.hot}; --heat-rim: {theme.heat_rim};"
