"""What a program holds, by qualified name."""

from types import SimpleNamespace

import torch

from tbscope.sources.fx.scopes import state_of


def test_what_a_damaged_file_holds_in_the_place_of_a_tensor_is_no_parameter():
    bias, mean = torch.ones(2), torch.zeros(2)
    part = SimpleNamespace(
        _parameters={"weight": 3, "bias": bias, "none": None}, _buffers={"mean": mean, "names": "a"}
    )
    kinds, tensors = state_of({"": part, "inner": part})
    assert kinds == {
        "bias": "parameter",
        "mean": "buffer",
        "inner.bias": "parameter",
        "inner.mean": "buffer",
    }
    assert {name: id(tensor) for name, tensor in tensors.items()} == {
        "bias": id(bias),
        "mean": id(mean),
        "inner.bias": id(bias),
        "inner.mean": id(mean),
    }
