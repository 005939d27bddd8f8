"""Classes as colours: what a step does for a module has the colour of the module."""

import torch
from torch import nn
from training_steps import Net, recorded, squares

from tbscope.drawing.categories import label_nodes
from tbscope.passes.collapse_leaves import collapse_leaves


def trained(model, **options):
    optimizer = torch.optim.Adam(model.parameters(), **options)
    squares(model)
    optimizer.step()


def labels_of(step, model=None):
    """Give the labels of the nodes of a step, by scope and operation."""
    torch.manual_seed(0)
    graph = recorded(model or Net(), step).copy()
    collapse_leaves(graph)
    labels = label_nodes(graph, "class")
    return {(str(node.scope), node.op or node.kind): labels.get(node) for node in graph.nodes}


def below(labels, place):
    return {label for (scope, _), label in labels.items() if scope.startswith(place)}


def test_all_that_is_done_for_a_layer_is_of_its_class():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step(model):
        squares(model)
        optimizer.step()

    step(model)
    labels = labels_of(step, model)
    block = "Net/ModuleList[blocks]/Block[1]/LayerNorm[norm]"
    assert labels[block, "LayerNorm"] == "LayerNorm"
    assert below(labels, f"gradients/{block}") == {"LayerNorm"}
    # Also what an optimizer has from before.
    assert labels[f"optimizer/Adam/{block}/weight", "constant"] == "LayerNorm"
    assert below(labels, f"optimizer/Adam/{block}") == {"LayerNorm"}


def test_a_gradient_between_layers_is_of_the_operation_that_it_differentiates():
    labels = labels_of(squares)
    block = "Net/ModuleList[blocks]/Block[1]"
    assert labels[block, "relu"] == "relu"
    assert labels[f"gradients/{block}", "threshold_backward"] == "relu"


def test_what_is_updated_for_a_module_itself_is_of_its_class():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.fc = nn.Parameter(torch.ones(3)), nn.Linear(3, 2)

        def forward(self, x):
            return self.fc(x * self.scale)

    labels = labels_of(lambda model: trained(model, foreach=False), Scaled())
    assert below(labels, "optimizer/Adam/Scaled/scale") == {"Scaled"}
    assert below(labels, "optimizer/Adam/Scaled/Linear[fc]") == {"Linear"}
    assert labels["gradients/Scaled", "mul"] == "mul"


def test_what_an_optimizer_does_for_all_is_of_its_operation():
    labels = labels_of(lambda model: trained(model, foreach=True))
    assert labels["optimizer/Adam", "foreach_lerp_"] == "foreach_lerp_"
