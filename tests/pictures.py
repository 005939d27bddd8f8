"""Draws the picture of the README: `python -m tests.pictures`.

A BERT of Hugging Face's transformers, from a small config with random weights, in
TensorBoard's own page.
"""

import tempfile
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

import tbscope
from tests.browser import Browser, TensorBoard

_FOLDER = Path(__file__).parent.parent / "docs" / "img"
_OPENED = (
    "BertModel",
    "BertModel/encoder",
    "BertModel/encoder/layer",
    "BertModel/encoder/layer/0",
    "BertModel/encoder/layer/0/output",
)


def main() -> None:
    """Draw the picture anew."""
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            hidden_size=64,
            intermediate_size=128,
            num_attention_heads=4,
            num_hidden_layers=2,
            vocab_size=1000,
        )
    )
    words = {"input_ids": torch.randint(1000, (1, 16))}
    with tempfile.TemporaryDirectory() as folder:
        with tbscope.SummaryWriter(folder) as writer:
            writer.add_graph(model, words)
        with TensorBoard(Path(folder)) as server, Browser() as browser:
            page = browser.open(server.url, size=(1360, 900))
            for box in _OPENED:
                page.expand(box)
            page.info_card("BertModel/encoder/layer/0/output/LayerNorm")
            page.take_picture(_FOLDER / "first-look.png")
            if page.errors:
                raise SystemExit(f"the page reported: {page.errors}")


if __name__ == "__main__":
    main()
