"""The palette, by its own laws: distances for several eyes, and contrasts, computed here."""

import re
from itertools import combinations, pairwise
from math import atan2, cbrt, cos, degrees, exp, hypot, radians, sin, sqrt

import pytest
from saved import nested

from tbscope.saving import dot
from tbscope.saving.box_tree import picture_of
from tbscope.saving.depth_limit import Cut
from tbscope.saving.palette import DARK, LIGHT, THEMES, palette_style
from tbscope.saving.viewer_files import viewer_text

_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
# Machado et al. 2009, a severity of 1, for linear RGB.
_EYES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
_APART = {"normal": 12.5, "deuteranopia": 8.8, "protanopia": 7.4}
_AA, _AA_SHAPES = 4.5, 3.0


def parts(colour):
    """Return the parts of `#rrggbb`, from 0 to 1."""
    return [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]


def linear(colour):
    return [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in colour]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


def seen(colour, eyes):
    """Return the linear parts of a colour as some eyes see it."""
    return [min(max(one, 0), 1) for one in times(_EYES[eyes], linear(colour))]


def lab(light):
    white = [sum(row) for row in _XYZ]
    ratios = [one / all_ for one, all_ in zip(times(_XYZ, light), white, strict=True)]
    x, y, z = (cbrt(one) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in ratios)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def ciede2000(one, other):
    """Return how far two colours in Lab are apart (Sharma, Wu and Dalal 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    g = 1 + 0.5 * (1 - sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = a1 * g, a2 * g
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0
    middle = h1 + turn / 2 if c1 * c2 else h1 + h2
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = 2 * sqrt(c1 * c2) * sin(radians(turn / 2))
    t = (
        1
        - 0.17 * cos(radians(middle - 30))
        + 0.24 * cos(radians(2 * middle))
        + 0.32 * cos(radians(3 * middle + 6))
        - 0.20 * cos(radians(4 * middle - 63))
    )
    by_light = (l2 - l1) / (1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2))
    by_chroma = (c2 - c1) / (1 + 0.045 * chroma)
    by_hue = hue / (1 + 0.015 * chroma * t)
    blue = 60 * exp(-((((middle % 360) - 275) / 25) ** 2))
    rotated = -2 * sqrt(chroma**7 / (chroma**7 + 25**7)) * sin(radians(blue))
    return sqrt(by_light**2 + by_chroma**2 + by_hue**2 + rotated * by_chroma * by_hue)


def contrast(one, other):
    """Return the contrast of WCAG 2.2 between two colours."""
    lights = sorted(times(_XYZ, linear(colour))[1] for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def over(colour, share, below):
    """Return a colour that covers another by a share."""
    return [a * share + b * (1 - share) for a, b in zip(colour, below, strict=True)]


def properties(theme):
    """Return the colours of a theme in the style sheet, by name, and its numbers."""
    sheet = viewer_text("style.css")
    start = sheet.index(":root {" if theme == "light" else ':root[data-theme="dark"]')
    rule = sheet[start : sheet.index("}", start)]
    found = re.findall(r"--([\w-]+): (#[0-9a-f]{6}|[\d.]+);", rule)
    return {name: parts(value) if value.startswith("#") else float(value) for name, value in found}


def test_the_distance_is_that_of_its_authors():
    # The first, a middle and the last of the pairs that Sharma, Wu and Dalal give.
    for one, other, distance in (
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ):
        assert ciede2000(one, other) == pytest.approx(distance, abs=1e-4)


@pytest.mark.parametrize("eyes", _EYES)
@pytest.mark.parametrize("theme", THEMES)
def test_any_two_fills_are_apart(theme, eyes):
    fills = [fill for fill, _ in (*THEMES[theme].colours, THEMES[theme].plain)]
    colours = {fill: lab(seen(parts(fill), eyes)) for fill in fills}
    apart = {pair: ciede2000(*map(colours.get, pair)) for pair in combinations(fills, 2)}
    assert len(apart) == 105
    assert min(apart.values()) >= _APART[eyes], min(apart, key=apart.get)


def test_each_theme_has_as_many_colours_as_the_viewer_gives_away():
    count = int(re.search(r"COLOURS = (\d+)", viewer_text("colours.js"))[1])
    assert len(set(LIGHT)) == len(set(DARK)) == count == 14


@pytest.mark.parametrize("theme", THEMES)
def test_labels_can_be_read_on_each_fill_and_rims_be_seen(theme):
    style, colours = properties(theme), THEMES[theme]
    for fill, rim in (*colours.colours, colours.plain, (colours.cold, colours.heat_rim)):
        assert contrast(parts(fill), style["ink"]) >= _AA, fill
        assert contrast(parts(rim), style["back"]) >= _AA_SHAPES, rim


@pytest.mark.parametrize("theme", THEMES)
def test_heads_and_what_is_written_in_open_boxes_can_be_read(theme):
    style, colours = properties(theme), THEMES[theme]
    fills = [parts(fill) for fill, _ in (*colours.colours, colours.plain)]
    fills += [parts(colours.hot)]
    for outer in fills:
        body = over(outer, style["open-a"], style["back"])
        assert contrast(style["soft"], body) >= _AA
        assert contrast(style["line"], body) >= _AA_SHAPES
        for inner in fills:
            inside = over(inner, style["open-a"], body)
            assert contrast(style["ink"], over(inner, 0.55, inside)) >= _AA
            assert contrast(style["soft"], inside) >= _AA


@pytest.mark.parametrize("theme", THEMES)
def test_the_scale_of_numbers_goes_one_way_in_lightness_and_can_be_read_all_along(theme):
    style, colours = properties(theme), THEMES[theme]
    cold, hot = parts(colours.cold), parts(colours.hot)
    scale = [over(hot, step / 100, cold) for step in range(101)]
    for eyes in _EYES:
        lights = [lab(seen(colour, eyes))[0] for colour in scale]
        steps = [after - before for before, after in pairwise(lights)]
        assert all(step > 0 for step in steps) or all(step < 0 for step in steps)
        assert abs(lights[-1] - lights[0]) >= 20
    assert min(contrast(colour, style["ink"]) for colour in scale) >= _AA


@pytest.mark.parametrize("theme", THEMES)
def test_each_text_of_the_style_sheet_can_be_read_on_its_background(theme):
    style = properties(theme)
    back, panel, accent = style["back"], style["panel"], style["accent"]
    for text in ("ink", "soft", "accent", "hit"):
        for behind in (back, panel):
            assert contrast(style[text], behind) >= _AA, text
    # What is chosen in the legend, and what the search shows.
    for share, behind in ((0.18, panel), (0.16, back)):
        chosen = over(accent, share, behind)
        assert contrast(style["ink"], chosen) >= _AA
        assert contrast(style["soft"], chosen) >= _AA
    # The message is written the other way round.
    assert contrast(back, style["ink"]) >= _AA
    for shape in ("line", "accent", "hit"):
        assert contrast(style[shape], back) >= _AA_SHAPES, shape


def test_both_ways_to_dark_have_the_same_colours():
    sheet = viewer_text("style.css")
    system, chosen = re.findall(r"--back: #14171c;(.*?)color-scheme: dark", sheet, re.DOTALL)
    assert system.split() == chosen.split()
    assert palette_style().count("--fill-0: #0068b7") == 2


def test_what_graphviz_draws_has_the_texts_of_the_viewer():
    style = properties("light")
    assert (parts(dot.INK), parts(dot.SOFT)) == (style["ink"], style["soft"])
    text = dot.dot_of(Cut(picture_of(nested())))
    fills = {fill for fill, _ in (*LIGHT, THEMES["light"].plain)}
    nodes = [line for line in text.splitlines() if re.match(r" *n\d+ \[", line)]
    assert {re.search(r'fillcolor="(#\w+)"', line)[1] for line in nodes} <= fills
    assert {*re.findall(r'fontcolor="(#\w+)"', text)} == {dot.INK, dot.SOFT}
    assert re.search("<font[^>]*color", text) is None
