"""Makes a site of these pages: `python -m sphinx -W -b html docs build/site`.

The pages stay as they are read in the repository: README is the first of them, and a link to a file
of the repository becomes a copy of that file. Nothing is asked of the network.
"""

import inspect
import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes

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
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

# The extra `docs` alone makes the site: the classes that callbacks subclass are stubs.
for _library in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks", "transformers"):
    sys.modules[_library] = _stub = ModuleType(_library)
    vars(_stub).update(Callback=type("Callback", (), {}), TrainerCallback=type("Base", (), {}))

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)]*)")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)


_ENTRY = re.compile(r"^\.\. auto\w+:: ([\w.]+)$", re.MULTILINE)
_NAMES = {
    name: path
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for path in _ENTRY.findall(page.read_text(encoding="utf-8"))
    for name in (path, path.rpartition(".")[2])
}
"""The public names as texts write them, `Graph` and `tbscope.Graph`, with their entries."""


def _named(text: str) -> str:
    """Return a page in which each public name as code (`tbscope.trace`) leads to its entry."""
    parts = _CODE.split(text)
    for at in range(1, len(parts), 2):
        name = parts[at].strip("`")
        linked = parts[at + 1].startswith("]") or not name.startswith("tbscope.")
        if parts[at] == f"`{name}`" and name in _NAMES and not linked:
            parts[at] = f"[{parts[at]}](#{name})"
    # The list of all names leads to the pages of the repository, and here to the entries.
    text = "".join(parts)
    return re.sub(
        r"(\[`([\w.]+)`\])\(reference/\w+\.md\)", lambda row: f"{row[1]}(#{_NAMES[row[2]]})", text
    )


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
    source[0] = _named(own)


def _link_names(line: str, own: str) -> str:
    """Return a line of a docstring in which public names and pages are links."""

    def link(code: re.Match[str]) -> str:
        name, _, member = (code[1], "", "") if code[1] in _NAMES else code[1].partition(".")
        path = _NAMES.get(name)
        # `scope` is an attribute more often than the function.
        if path is None or name == "scope" or path == own:
            return code[0]
        return f":py:obj:`{code[1]} <{path}{member and '.' + member}>`"

    line = re.sub(r"(?<![:`])`([\w.]+)`", link, line)
    return re.sub(r"docs/([\w-]+)\.md", r":doc:`/\1`", line)


def _sign(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, result: Any
) -> tuple[str, None] | None:
    """Have a signature name options once, as `**options`; classes that are results have none."""
    if inspect.isclass(thing):
        made = thing.__module__ != name.rpartition(".")[0] or ".integrations." in name
        if signature is None or not made or is_dataclass(thing):
            return None if signature is None else ("", None)
        thing = thing.__init__
    if not inspect.isfunction(thing):
        return None
    # Annotations are those that the function itself declares, without the options of its last.
    declared = thing.__annotations__.keys() - {"return"}
    if not declared:
        return None
    named = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.name in declared
    ]
    rest = [
        inspect.Parameter(option, inspect.Parameter.VAR_KEYWORD)
        for option in declared - {parameter.name for parameter in named}
    ]
    return str(inspect.Signature([*named, *rest])), None


def _skip(app: Any, what: str, name: str, thing: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out the fields of a named tuple, which its docstring describes."""
    return True if str(thing.__doc__).startswith("Alias for field") else None


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
        code = depth or line.lstrip().startswith((">>>", "..."))
        shaped.append(line if code else _link_names(line, name))
    lines[:] = shaped


def _shorten(app: Any, domain: str, kind: str, content: Any) -> None:
    """Have types be names without their modules: links, but beside a Literal, of which none is."""
    for field in content.findall(nodes.field):
        if not re.match(r"(var|r)?type\b", field[0].astext()):
            continue
        short = r"\1" if "Literal[" in field[1].astext() else r"~\g<0>"
        for text in [*field[1].findall(nodes.Text)]:
            plain = re.sub(r"~?\b(?:\w+\.)+(\w+)", short, text).replace("~~", "~")
            text.parent.replace(text, nodes.Text(plain))


def setup(app: Any) -> None:
    """Take part in the making of the site."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-skip-member", _skip)
    # Before the sections of a docstring become lists.
    app.connect("autodoc-process-docstring", _shape, priority=100)
    # After the types of signatures are added.
    app.connect("object-description-transform", _shorten, priority=900)
