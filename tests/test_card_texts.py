"""The texts of the cards of ten models, as golden files.

`TBSCOPE_REWRITE_GOLDEN=1 python -m pytest tests/test_card_texts.py` writes them anew; read
what changed with `git diff tests/golden`.
"""

import re

import pytest
import torch
from card_facts import facts
from google.protobuf import text_format
from test_golden import check_golden

import tbscope
from tests.gallery_models import SIGHTS

OWN = [sight for sight in SIGHTS if sight.make.__module__ == "tests.gallery_own"][-10:]
# Lines of files, and kernels, which differ between machines and releases of torch.
_ELSEWHERE = {"source", "defined", "kernels", "_output_shapes", "_XlaCluster"}


def card_texts(message):
    """Give the first card of each op type and set of attributes, with its text."""
    texts = {}
    for node in message.node:
        shown = {key: value for key, value in facts(node).items() if key not in _ELSEWHERE}
        if not node.name.startswith("__function_library__"):
            lines = [
                f"  {key}: {text_format.MessageToString(value._value, as_one_line=True).strip()}"
                for key, value in sorted(shown.items())
            ]
            head = f"{node.name}: {node.op}"
            texts.setdefault((node.op, *sorted(shown)), "\n".join([head, *lines]))
    return "\n".join([*texts.values(), ""])


@pytest.mark.parametrize("sight", OWN, ids=lambda sight: sight.name)
def test_the_cards_of_a_model_say_what_they_said(sight):
    torch.manual_seed(0)
    model, inputs, _ = sight.make()
    message = tbscope.to_graph_def(tbscope.trace(model.eval(), kwargs=inputs))
    texts = card_texts(message)
    assert not re.search(r"^ *arg[0-9]", texts, re.M), "an argument without the name of a parameter"
    check_golden(f"cards_{sight.name}.txt", texts)


def test_there_are_ten():
    assert len(OWN) == 10
