"""The files of the viewer, for the saved page and for the tab.

TensorBoard requests their names at its start, so this module imports nothing heavy.
"""

import re
from functools import cache
from importlib import resources

from tbscope.saving.palette import palette_style

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"^ *(?://.*|/\*\*(?:.|\n)*?\*/)\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)

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
TAB = (*MODULES, "compare", "tab")
"""The modules of the tab."""


@cache
def viewer_text(name: str) -> str:
    """Return a file of the viewer."""
    return resources.files(__package__).joinpath("viewer", name).read_text(encoding="utf-8")


@cache
def joined(names: tuple[str, ...]) -> str:
    """Return modules as the text of one, without comments, which are a tenth of it."""
    modules = (_COMMENT.sub("", viewer_text(f"{name}.js")) for name in names)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules)


@cache
def viewer_style() -> str:
    """Return the style sheet of the viewer, with the colours of the palette."""
    return palette_style() + viewer_text("style.css")


@cache
def viewer_body() -> str:
    """Return the HTML elements of the viewer, without its data and scripts."""
    page = viewer_text("page.html")
    return page[page.index("<header>") : page.index("</main>") + len("</main>\n")]
