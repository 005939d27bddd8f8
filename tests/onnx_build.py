"""ONNX models built by hand, and what exported ones are held against."""

import logging
from collections import Counter

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

__all__ = [
    "BOOL",
    "FLOAT",
    "INT",
    "export",
    "feeds_of",
    "info",
    "model_of",
    "node",
    "operators",
    "run",
    "same_numbers",
    "weight",
]

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
info = helper.make_tensor_value_info
_OPSETS = {"": 20}


def node(op, inputs, outputs, *, name="", levels=None, domain="", **attributes):
    """Make a node; `levels` are the modules around it, as torch's exporter writes them."""
    made = helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)
    if levels is not None:
        names = [*(level for level, _ in levels), outputs[0]]
        classes = [*(kind for _, kind in levels), f"aten.{op.lower()}.default"]
        for key, value in (("name_scopes", names), ("class_hierarchy", classes)):
            entry = made.metadata_props.add()
            entry.key, entry.value = f"pkg.torch.onnx.{key}", repr(value)
    return made


def weight(name, *shape, kind=FLOAT):
    """Make a tensor that a model holds, of numbers that differ."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return onnx.numpy_helper.from_array(numbers.astype(helper.tensor_dtype_to_np_dtype(kind)), name)


def model_of(nodes, inputs, outputs, held=(), *, functions=(), checked=True, **opsets):
    """Make a model, and hold it against ONNX's own checks."""
    graph = helper.make_graph(nodes, "built", inputs, outputs, list(held))
    versions = {**_OPSETS, **{f.domain: 1 for f in functions}, **opsets}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*item) for item in versions.items()],
        functions=list(functions),
        ir_version=10,
    )
    if checked:
        onnx.checker.check_model(model, full_check=True)
    return model


def export(model, args=(), kwargs=None, **options):
    """Export a module as `torch.onnx.export` does, without a word."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    return torch.onnx.export(
        model, args, kwargs=kwargs or {}, dynamo=True, verbose=False, **options
    )


def feeds_of(model, tensors):
    """Give the inputs of a model by name, in order."""
    names = [entry.name for entry in model.graph.input]
    return {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}


def run(model, feeds):
    """Give what onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, feeds)


def same_numbers(model, feeds, expected):
    """Assert that onnxruntime and ONNX's reference compute the same of a model."""
    for found in (run(model, feeds), ReferenceEvaluator(model).run(None, feeds)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def operators(model):
    """Count the operators of a model without functions, with those in bodies."""
    count = Counter()
    pending = list(model.graph.node)
    while pending:
        each = pending.pop()
        count[each.op_type] += 1
        for attribute in each.attribute:
            pending += [inner for graph in attribute.graphs for inner in graph.node]
            pending += attribute.g.node
    return count
