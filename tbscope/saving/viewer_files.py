"""The files of the viewer, for the saved page and for the tab.

TensorBoard requests their names at its start, so this module imports nothing heavy.
"""

from functools import cache
from importlib import resources

from tbscope.saving.palette import palette_style

MODULES = (
    "elements",
    "graph",
    "opened",
    "ways",
    "lanes",
    "ranks",
    "layout",
    "colours",
    "svg",
    "card",
    "search",
    "modules",
    "panels",
    "export",
    "main",
)
"""The modules of the viewer, each after the modules that it imports."""
SCRIPTS = (*MODULES, "embedded")
"""The modules of a saved page."""


@cache
def viewer_text(name: str) -> str:
    """Return a file of the viewer."""
    return resources.files(__package__).joinpath("viewer", name).read_text(encoding="utf-8")


@cache
def viewer_style() -> str:
    """Return the style sheet of the viewer, with the colours of the palette."""
    return palette_style() + viewer_text("style.css")


@cache
def viewer_body() -> str:
    """Return the HTML elements of the viewer, without its data and scripts."""
    page = viewer_text("page.html")
    return page[page.index("<header>") : page.index("</main>") + len("</main>\n")]
