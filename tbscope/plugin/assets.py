"""The files of the tab: those of the viewer, and the frame around it."""

from collections.abc import Callable
from functools import partial
from importlib import resources

from tbscope.saving.viewer_files import MODULES, viewer_body, viewer_style, viewer_text

__all__ = ["ASSETS"]


def _own(name: str) -> str:
    return resources.files(__package__).joinpath("page", name).read_text(encoding="utf-8")


ASSETS: dict[str, Callable[[], str]] = {
    **{f"{name}.js": partial(viewer_text, f"{name}.js") for name in MODULES},
    "dagre.js": partial(viewer_text, "dagre/dagre.min.js"),
    "style.css": viewer_style,
    "body.html": viewer_body,
    **{name: partial(_own, name) for name in ("index.js", "tab.js", "compare.js", "tab.css")},
}
"""The text of each file that the page of the tab asks for, by name."""
