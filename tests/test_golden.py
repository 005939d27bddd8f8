"""Golden pairs: the printed graph and the GraphDef of each graph of the gallery.

`TBSCOPE_REWRITE_GOLDEN=1 python -m pytest tests/test_golden.py` writes them anew; read
what changed with `git diff tests/golden`.
"""

import os
from pathlib import Path

import pytest
from gallery import GALLERY
from google.protobuf import text_format

from tbscope.ir.graph import graph_to_text
from tbscope.pipeline import to_graph_def

GOLDEN = Path(__file__).parent / "golden"
VARIANTS = [(name, {}) for name in GALLERY] + [
    ("leaf_modules", {"style": "torch"}),
    ("leaf_modules", {"leaves": "box"}),
    ("odd_names", {"style": "torch"}),
]


def check_golden(name, text):
    """Compare a text with the golden one of this name, or write it."""
    path = GOLDEN / name
    if os.environ.get("TBSCOPE_REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GALLERY)
def test_a_graph_prints_as_it_did(name):
    text = graph_to_text(GALLERY[name](), sources=True, parameters=True)
    check_golden(f"{name}.txt", f"{text}\n")


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_graph_is_converted_as_it_was(name, options):
    message = to_graph_def(GALLERY[name](), **options)
    ending = "".join(f"_{option}" for option in options.values())
    check_golden(f"{name}{ending}.pbtxt", text_format.MessageToString(message))


def test_there_is_no_golden_file_too_many():
    expected = {f"{name}.txt" for name in GALLERY}
    expected |= {
        f"{name}{''.join(f'_{v}' for v in opts.values())}.pbtxt" for name, opts in VARIANTS
    }
    found = {path.name for path in GOLDEN.iterdir()}
    assert {name for name in found if not name.startswith("cards_")} == expected
