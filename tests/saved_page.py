"""The page that `graph.save("graph.html")` writes, in a real browser, used as its reader does."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from browser import Browser

# Names stand in the data of the page, by number; shapes have the number.
_SCRIPT = """
() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const name = (at) => data.words[data.index.name[at]];
  const things = [...document.querySelectorAll('#world .thing')].map((one) => {
    const body = one.tagName === 'circle' ? one : one.querySelector(':scope > .body');
    const style = getComputedStyle(body);
    const {x, y, width, height} = body.getBoundingClientRect();
    return {
      name: name(Number(one.dataset.at)), circle: one.tagName === 'circle',
      open: one.classList.contains('open'), box: one.classList.contains('box'),
      selected: one.classList.contains('selected'), hit: one.classList.contains('hit'),
      picked: one.classList.contains('picked'), spoken: one.getAttribute('aria-label'),
      fill: style.fill, x, y, width, height,
    };
  });
  const lines = [...document.querySelectorAll('#world .line')].map((one) => ({
    start: name(Number(one.dataset.start)), end: name(Number(one.dataset.end)),
    width: Number(one.getAttribute('stroke-width')), waits: one.classList.contains('waits'),
    arrow: one.hasAttribute('marker-end'), near: one.classList.contains('near'),
    title: one.querySelector('title').textContent,
    ends: [one.getPointAtLength(0), one.getPointAtLength(one.getTotalLength())].map((point) => {
      const {x, y} = new DOMPoint(point.x, point.y).matrixTransform(one.getScreenCTM());
      return [x, y];
    }),
  }));
  const sizes = [...document.querySelectorAll('#world .sizes')].map((one) => one.textContent);
  return {things, lines, sizes};
}
"""


class Drawn(NamedTuple):
    """All that is drawn at a moment.

    Attributes:
        things: What is drawn of each box and node, by name; small circles apart.
        circles: The same of small circles.
        lines: The lines, each with the names of its ends in its level.
        sizes: The texts beside lines.
    """

    things: dict[str, Any]
    circles: dict[str, Any]
    lines: list[Any]
    sizes: list[str]

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The ends of each line."""
        return [(line["start"], line["end"]) for line in self.lines]


class SavedPage:
    """A saved page that is open in a browser.

    Attributes:
        page: The page of playwright's.
        errors: What it threw or reported.
        asked: The addresses that it asked for, itself among them.
    """

    def __init__(self, browser: Browser, path: Path, *, at: str = "", dark: bool = False) -> None:
        self._browser = browser
        self.page = browser.new_page(dark=dark)
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = path.as_uri()
        self.page.goto(self.address + at)

    def put_away(self) -> None:
        """Give the page back, for another test."""
        self._browser.take_back(self.page)

    @property
    def drawn(self) -> Drawn:
        """What is drawn now."""
        told = self.page.evaluate(_SCRIPT)
        things = [thing for thing in told["things"] if not thing["circle"]]
        circles = [thing for thing in told["things"] if thing["circle"]]
        assert len({thing["name"] for thing in things}) == len(things)
        return Drawn(
            {thing["name"]: thing for thing in things},
            {thing["name"]: thing for thing in circles},
            told["lines"],
            told["sizes"],
        )

    def _place(self, name: str) -> tuple[float, float]:
        """Give the place in the head of what is drawn, left of its middle."""
        drawn = self.drawn
        thing = drawn.things.get(name) or drawn.circles[name]
        return thing["x"] + thing["width"] / 2, thing["y"] + min(thing["height"] / 2, 8)

    def click(self, name: str) -> None:
        """Click on a box or a node."""
        self.page.mouse.click(*self._place(name))

    def open(self, name: str) -> None:
        """Double-click on a box, which opens or closes it."""
        self.page.mouse.dblclick(*self._place(name))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def card(self) -> str:
        """The text of the card."""
        return re.sub(r"[ \t]+", " ", self.page.inner_text("#card"))

    @property
    def selected(self) -> list[str]:
        """The names of what is marked as selected."""
        drawn = self.drawn
        return [
            one["name"]
            for one in [*drawn.things.values(), *drawn.circles.values()]
            if one["selected"]
        ]

    @property
    def message(self) -> str:
        """What the page says at its top; empty for nothing."""
        return self.page.inner_text("#message") if self.page.is_visible("#message") else ""

    @property
    def zoom(self) -> float:
        """How large it is drawn."""
        text = self.page.get_attribute("#world", "transform") or ""
        return float(re.search(r"scale\(([^)]+)\)", text)[1])  # type: ignore[index]
