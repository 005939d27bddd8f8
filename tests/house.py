"""The picture of the house: `python -m tests.house` draws docs/img/architecture.svg.

It is made of the floors that import-linter holds (setup.cfg) and of the first sentence of
each room, so that it cannot tell of a house that is not there.
"""

import ast
import configparser
import html
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "img" / "architecture.svg"

_WIDTH, _HEIGHT, _GAP, _LEFT = 1000, 72, 8, 20
_COLOURS = {"torch": "#fde5d2", "protobuf": "#dcebfa", "plain": "#e7f2e1", "top": "#f1f1f1"}
_LEGEND = {
    "torch": "knows torch",
    "protobuf": "knows TensorFlow's messages or TensorBoard's page",
    "plain": "knows neither",
    "top": "joins the parts",
}


def floors(contract: str = "floors") -> list[list[str]]:
    """Return the rooms of each floor of a contract, the highest floor first."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [[room.strip() for room in line.split("|")] for line in lines if line.strip()]


def first_sentence(room: str) -> str:
    """Return the first sentence of the docstring of a room or a file of tbscope."""
    path = ROOT / "tbscope" / room
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split())


def colour_of(room: str) -> str:
    """Return which side of the house a room stands on, by what it may import."""
    if room == "sources":
        return "torch"
    if room in ("drawing", "graphdef", "page", "rules", "overlays", "writing", "pipeline"):
        return "protobuf"
    return "plain" if room in ("ir", "analysis", "passes", "errors", "messages", "utils") else "top"


def picture() -> str:
    """Return the picture as SVG."""
    parts, top = [], 30
    for rooms in floors():
        width = (_WIDTH - _GAP * (len(rooms) - 1)) / len(rooms)
        for place, room in enumerate(rooms):
            left = _LEFT + place * (width + _GAP)
            parts.append(_box(room, left, top, width))
        top += _HEIGHT + _GAP
    for place, (side, text) in enumerate(_LEGEND.items()):
        left = _LEFT + place * 250 if place < 2 else _LEFT + 600 + (place - 2) * 200
        parts.append(_rectangle(left, top + 8, 16, 16, _COLOURS[side]))
        parts.append(_text(text, left + 24, top + 21, size=13))
    arrow = _text("imports go down only", _LEFT, 20, size=13)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _LEFT} {top + 40}" '
        'font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{arrow}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _box(room: str, left: float, top: float, width: float) -> str:
    name = f"{room}/" if (ROOT / "tbscope" / room).is_dir() else f"{room}.py"
    lines = textwrap.wrap(first_sentence(room), int(width / 6.6))[:3]
    parts = [
        _rectangle(left, top, width, _HEIGHT, _COLOURS[colour_of(room)]),
        _text(name, left + 10, top + 20, size=15, bold=True),
        *(_text(line, left + 10, top + 37 + 15 * at, size=12) for at, line in enumerate(lines)),
    ]
    return "\n".join(parts)


def _rectangle(left: float, top: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'rx="5" fill="{fill}" stroke="#888"/>'
    )


def _text(text: str, left: float, top: float, *, size: int, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    shown = html.escape(text, quote=False)
    return f'<text x="{left:.0f}" y="{top:.0f}" font-size="{size}"{weight}>{shown}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
