"""Sharing: what reads parameters that others read, too, is coloured by who holds them."""

import torch
from torch import nn

import tbscope


class Net(nn.Module):
    """A decoder tied to the embedding, a layer that is called twice, and one for itself."""

    def __init__(self, *, tied=True):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.inner = nn.Linear(4, 4)
        self.own = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.own(self.inner(self.inner(self.embed(x)))))


def labels(model, **drawing):
    message = tbscope.to_graph_def(
        tbscope.trace(model, torch.zeros(1, 2, dtype=torch.long)), color_by="storage", **drawing
    )
    found = {node.name: node.attr["_XlaCluster"].s.decode() for node in message.node}
    return {name: label for name, label in found.items() if label and "Const" not in name}


def test_modules_with_tied_parameters_have_one_label():
    found = labels(Net())
    assert found["embed"] == found["head"] == "embed, head"
    assert found["inner"] == found["inner.1"] == "inner"
    assert "own" not in found


def test_without_a_tie_each_has_its_own_parameters():
    found = labels(Net(tied=False))
    assert not {"embed", "head"} & set(found)
    assert "inner" in found


def test_operations_of_a_tied_module_that_is_a_box_are_labelled():
    assert labels(Net(), leaves="box")["head/linear"] == "embed, head"


def test_a_parameter_that_the_parent_reads_too_is_shared():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.fc(x.float()[..., :1].expand(1, 4)) + self.fc.weight.sum() + self.scale

    found = labels(Reads())
    assert found["fc"] == found["sum"] == "fc"
    assert set(found) == {"fc", "sum", "fc/weight"}


def test_a_parameter_that_is_tied_to_one_nobody_reads_is_shared_all_the_same():
    class Half(Net):
        def forward(self, x):
            return self.embed(x)

    assert labels(Half())["embed"] == "embed, head"
    assert not labels(Half(tied=False))
