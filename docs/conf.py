"""Makes a site of these pages: `python -m sphinx -W -b html docs build/site`.

The pages stay as they are read in the repository: README is the first of them, and a link to a file
of the repository becomes a copy of that file. Nothing is asked of the network.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import tbscope

ROOT = Path(__file__).parents[1]

project = "tbscope"
author = "The tbscope authors"
copyright = "the tbscope authors"  # noqa: A001  Sphinx wants this name.
release = version = tbscope.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
# The anchors of the forge: a heading in small letters.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_title = f"tbscope {release}"
html_copy_source = False

# Docstrings are Google's, with Markdown's single backticks.
default_role = "code"
napoleon_custom_sections = [("Source", "notes")]
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

# The extra `docs` alone makes the site: the classes that callbacks subclass are stubs.
for _library in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks", "transformers"):
    sys.modules[_library] = _stub = ModuleType(_library)
    vars(_stub).update(Callback=type("Callback", (), {}), TrainerCallback=type("Base", (), {}))

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)]*)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


def _relinked(text: str, place: Any) -> str:
    """Return a page whose links lead to where a function says, code apart."""
    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(lambda link: place(link[1]), prose) for prose in parts[::2]]
    return "".join(parts)


def _from_root(target: str) -> str:
    """Return where a link of README or of the changelog leads from docs/."""
    return _from_page(
        target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
    )


def _from_page(target: str) -> str:
    """Return where a link of a page leads in the site, which holds two files of the root."""
    for path, page in _PAGES.items():
        target = target.replace(f"../{path}", page)
    return target


_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}


def _read(app: Any, docname: str, source: list[str]) -> None:
    """Have two files of the root be pages, and the links of the others lead there."""
    own = _relinked(source[0], _from_page)
    for path, page in _PAGES.items():
        if page == f"{docname}.md":
            text = (ROOT / path).read_text(encoding="utf-8")
            # What the page itself says is for those who read it in the repository.
            own = _relinked(text, _from_root) + own.partition("<!-- site -->")[2]
    source[0] = own


def _shape(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Have the examples in a docstring be code: lines that are indented behind an empty one."""
    shaped: list[str] = []
    depth = 0
    for number, line in enumerate(lines):
        own = len(line) - len(line.lstrip())
        before = lines[number - 1] if number else ""
        if line.strip() and not depth and own >= 4 and number and not before.strip():
            shaped += [".. code-block:: python", ""]
            depth = own
        elif line.strip() and own < depth:
            depth = 0
        shaped.append(line)
    lines[:] = shaped


def setup(app: Any) -> None:
    """Take part in the making of the site."""
    app.connect("source-read", _read)
    # Before the sections of a docstring become lists.
    app.connect("autodoc-process-docstring", _shape, priority=100)
