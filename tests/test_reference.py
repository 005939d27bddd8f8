"""The reference: each public name has an entry, and its docstring all that a caller needs.

`TBSCOPE_REWRITE_GOLDEN=1 python -m pytest tests/test_reference.py` writes the list of names in
docs/reference.md anew.
"""

import importlib
import inspect
import os
import re
import typing
from pathlib import Path

import pytest

import tbscope

DOCS = Path(__file__).parents[1] / "docs"
LIST = DOCS / "reference.md"
ENTRY = re.compile(
    r"^\.\. auto(?:function|class|exception):: ([\w.]+)$(?:\n   :members:(.*)$)?", re.MULTILINE
)


def find(path):
    """Return the object at a path, and the name of its module."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def entries(page):
    """Return the paths on a page of the reference, with the members that it lists of each."""
    return {
        path: [name for name in re.split(r"[, ]+", members) if name]
        for path, members in ENTRY.findall(page.read_text())
    }


PAGES = [
    DOCS / f"{name}.md" for name in re.findall(r"^(reference/\w+)$", LIST.read_text(), re.MULTILINE)
]
PATHS = {path: members for page in PAGES for path, members in entries(page).items()}
CALLBACKS = "tbscope.integrations."


# -- names ----------------------------------------------------------------------------------


def test_every_page_of_the_reference_is_listed():
    assert sorted(PAGES) == sorted((DOCS / "reference").glob("*.md"))


def test_every_public_name_has_one_entry():
    paths = [path for page in PAGES for path, _ in ENTRY.findall(page.read_text())]
    top = [path for path in paths if path.count(".") == 1]
    assert sorted(top) == sorted(f"tbscope.{name}" for name in tbscope.__all__)
    names = [path.rpartition(".")[2] for path in paths if not path.startswith(CALLBACKS)]
    assert sorted(names) == sorted(set(names))


def test_a_result_is_documented_in_a_module_that_lists_it():
    for path in PATHS:
        module, _, name = path.rpartition(".")
        assert name in importlib.import_module(module).__all__, path


def types_of(entry):
    """Return the types of the public attributes of a class, or of the result of a function."""
    if inspect.isfunction(entry):
        return [entry.__annotations__["return"]]
    if entry is tbscope.SummaryWriter:
        return []
    return [hint for name, hint in typing.get_type_hints(entry).items() if name[0] != "_"]


def test_the_classes_in_attributes_and_results_have_entries():
    documented = {find(path) for path in PATHS if not path.startswith(CALLBACKS)}
    assert {
        path
        for entry in documented
        for kind in types_of(entry)
        for path in re.findall(r"\btbscope(?:\.\w+)+", str(kind))
        if find(path) not in documented
    } == set()


def table(page):
    """Return the list of the names on a page, each with the first sentence of its docstring."""
    title = page.read_text().partition("\n")[0].removeprefix("# ")
    link = page.relative_to(DOCS).as_posix()
    rows = [f"## [{title}]({link})", "", "| name | |", "| --- | --- |"]
    for path in entries(page):
        first = inspect.getdoc(find(path)).partition("\n")[0].replace("|", r"\|")
        name = path.removeprefix("tbscope.") if path.count(".") == 1 else path
        rows.append(f"| [`{name}`]({link}) | {first} |")
    return "\n".join(rows)


def test_the_list_of_names_is_that_of_the_pages():
    between = re.compile(r"(?<=<!-- names -->\n).*(?=<!-- end -->)", re.DOTALL)
    expected = "\n" + "\n\n".join(map(table, PAGES)) + "\n\n"
    if os.environ.get("TBSCOPE_REWRITE_GOLDEN"):
        LIST.write_text(between.sub(lambda _: expected, LIST.read_text()))
    assert between.findall(LIST.read_text()) == [expected]


# -- docstrings -----------------------------------------------------------------------------


def section(text, title):
    """Return a section of a docstring, or an empty text."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)*)", f"{text}\n", re.MULTILINE)
    return found[1] if found else ""


def faults(function, text, *, example):
    """Yield the parts that the docstring of a function lacks."""
    if not re.match(r".+[.!]($|\n)", text):
        yield "a first line that is a sentence"
    hints = function.__annotations__
    named = re.findall(r"^    (\w+): ", section(text, "Args"), re.MULTILINE)
    if sorted(named) != sorted(hints.keys() - {"return"}):
        yield f"Args {sorted(hints.keys() - {'return'})}"
    returns = text.startswith(("Return ", "Yield ")) and not example
    returns |= str(hints["return"]) in ("None", "collections.abc.Iterator[None]")
    if not (returns or section(text, "Returns") or section(text, "Yields")):
        yield "Returns"
    if named and not section(text, "Raises") and example:
        yield "Raises"
    if re.match(r"    [^.`]*?: ", section(text, "Returns")):
        yield "a result that Sphinx reads without a type before a colon"
    for error in re.findall(r"^    (\w+): ", section(text, "Raises"), re.MULTILINE):
        if error not in tbscope.__all__ and error != "IndexError":
            yield f"an error of tbscope's in place of {error}"
    if example and ">>> " not in text:
        yield "an example"


def functions_of(path, members):
    """Yield each function of an entry, with its path and its docstring.

    These are itself, or the methods that are listed, and the constructor of a class like `scope`.
    """
    found = find(path)
    if path.rpartition(".")[2].islower():
        yield path, found.__init__ if inspect.isclass(found) else found, inspect.getdoc(found)
    if not inspect.isclass(found):
        return
    for name, member in vars(found).items():
        function = getattr(member, "__func__", member)
        listed = name in members if members else not name.startswith("_")
        if listed and inspect.isfunction(function) and not path.startswith(CALLBACKS):
            yield f"{path}.{name}", function, inspect.getdoc(function) or ""


def test_docstrings_lack_nothing():
    assert [
        f"{name} lacks {fault}"
        for path, members in PATHS.items()
        for name, function, text in functions_of(path, members)
        for fault in faults(function, text, example=name == path)
    ] == []


def test_a_class_begins_with_a_sentence_and_has_an_example_in_its_docstring_or_section():
    for page in PAGES:
        for part in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE):
            for path, _ in ENTRY.findall(part):
                text = inspect.getdoc(find(path))
                assert re.match(r".+\.($|\n)", text), path
                # The pages on other libraries show the callbacks.
                shown = ">>> " in text or "```python" in part or path.startswith(CALLBACKS)
                assert shown, path


def good(graph: tbscope.Graph, *, depth: int = 3) -> int:
    """Return the depth.

    >>> good(None)
    3

    Args:
        graph: A graph.
        depth: A number.
    Returns:
        The number.
    Raises:
        GraphError: Never.
    """
    return depth


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("Return the depth.\n", "Return the\n", "a first line that is a sentence"),
        ("    depth: A number.\n", "", "Args ['depth', 'graph']"),
        ("Returns:\n    The number.\n", "", "Returns"),
        ("    The number.", "    A: b", "a result that Sphinx reads without a type before a colon"),
        ("Raises:\n    GraphError: Never.", "", "Raises"),
        ("GraphError", "KeyError", "an error of tbscope's in place of KeyError"),
        (">>> good(None)\n3\n", "", "an example"),
    ],
)
def test_a_docstring_without_a_part_is_found(before, after, fault):
    text = inspect.getdoc(good)
    assert list(faults(good, text, example=True)) == []
    assert before in text
    assert list(faults(good, text.replace(before, after), example=True)) == [fault]
