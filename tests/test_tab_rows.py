"""Rows that are split for the Graphs page are whole in the tab."""

import torch
from torch import nn

import tbscope
from tbscope.plugin.graphs import picture_of_bytes


def test_a_long_row_of_a_log_has_no_boxes_of_ten_in_the_tab():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Linear(2, 2) if at % 2 == 0 else nn.ReLU() for at in range(500))
            )
            self.after = nn.ReLU()

        def forward(self, x):
            return self.after(self.body(x))

    graph = tbscope.trace(Net(), torch.rand(1, 2))
    message = tbscope.to_graph_def(graph)
    names = {node.name for node in message.node}
    assert "body/40-79/61" in names
    picture = picture_of_bytes("net", message.SerializeToString())
    body = next(box for box in picture.boxes if box.name == "body")
    labels = [child.label for child in picture.children(body)]
    assert [label for label in labels if label.isdigit()] == [str(at) for at in range(500)]
    sources = {item.name: [source.name for source in item.sources] for item in picture.items}
    assert "body/60" in sources["body/61"]
