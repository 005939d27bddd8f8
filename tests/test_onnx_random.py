"""Random graphs in random modules: whatever becomes functions computes the same."""

import random
import re

import onnx
import onnx.inliner
import onnx_ir
import pytest
import torch
from onnx_build import FLOAT, feeds_of, info, model_of, node, operators, run, same_numbers, weight
from sweeps import sampled

import tbscope

SHAPE = [2, 3]
NET = ("", "nets.Net")


def a_place(draw):
    """Give the modules around a node: none beside the model, one, or two."""
    levels = [NET]
    for depth in range(draw.choice([0, 1, 1, 2, 2])):
        name = f"{levels[-1][0]}.m{draw.randrange(2)}".strip(".")
        levels.append((name, f"nets.Level{depth}"))
    return levels


def a_model(seed):
    """Give a model whose nodes stand in modules at random, now in one and then in another."""
    draw = random.Random(seed)
    held = [weight(f"m{number}.weight", *SHAPE) for number in range(2)]
    values, nodes = ["x", "y"], []
    levels = None
    for number in range(draw.randrange(4, 16)):
        read = [draw.choice([*values[-4:], *values[:2], *(one.name for one in held)])
                for _ in range(2)]  # fmt: skip
        op = draw.choice(["Add", "Mul", "Sub", "Tanh", "Sin"])
        given = read[:1] if op in ("Tanh", "Sin") else read
        if number == 0:
            levels = [NET, ("m0", "nets.Level0")]
        elif draw.random() < 0.5:
            levels = a_place(draw) if draw.random() < 0.9 else None
        nodes.append(node(op, given, [f"v{number}"], levels=levels))
        values.append(f"v{number}")
    # Each value is read, so that nothing is left aside.
    nodes.append(node("Sum", values, ["all"], levels=[NET]))
    some = draw.sample(values[2:], 1)
    outputs = [info(name, FLOAT, SHAPE) for name in ["all", *some]]
    return model_of(nodes, [info("x", FLOAT, SHAPE), info("y", FLOAT, SHAPE)], outputs, held)


def paths(graph):
    """Give in which modules each operation stands, whichever call of them it is."""
    return sorted(
        (each.op, re.sub(r"\.[0-9]+(?=/|$)", "", str(each.scope)))
        for each in graph.nodes
        if each.kind == "op"
    )


def check(seed):
    """Hold a random model against what it becomes; give its functions and what was left."""
    model = a_model(seed)
    feeds = feeds_of(model, [torch.rand(SHAPE), torch.rand(SHAPE)])
    expected = run(model, feeds)
    result = tbscope.modules_to_functions(model)
    onnx.checker.check_model(result.model, full_check=True)
    same_numbers(result.model, feeds, expected)
    inlined = onnx.inliner.inline_local_functions(result.model)
    assert operators(inlined) == operators(model)
    same_numbers(inlined, feeds, expected)
    assert paths(tbscope.from_onnx(result.model)) == paths(tbscope.from_onnx(model))
    names = {value for each in result.model.graph.node for value in each.output}
    assert names <= {value for each in model.graph.node for value in each.output}
    return len(result.functions), len(result.left)


@pytest.mark.parametrize("first", sampled(range(0, 120, 20), [0, 60]))
def test_random_graphs_compute_the_same_as_functions(first):
    found = [check(seed) for seed in range(first, first + 20)]
    # Some were cut and some were not, or nothing was shown.
    assert any(made for made, _ in found)
    assert any(left for _, left in found)


def test_the_same_random_graph_in_the_form_of_the_other_package():
    model = a_model(3)
    other = tbscope.modules_to_functions(onnx_ir.from_proto(model))
    assert other.functions == tbscope.modules_to_functions(model).functions
