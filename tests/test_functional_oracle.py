"""Which source reaches which output: told by trial, and held against the graph and its drawings.

Every float input, parameter and buffer is moved, one at a time, and the model is called again: to
an output that changes a path must lead, and to one that does not, none.
"""

from copy import deepcopy
from functools import partial

import called_models
import composite_models
import differentiating_models
import pytest
import replaced_models
import torch
import transformed_models
from card_facts import facts
from cases import MODELS, Case
from torch import nn
from torch.utils import _pytree as pytree

import tbscope
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.calling.signatures import argument_names
from tests.real_graphs import origins

FILES = (
    called_models,
    composite_models,
    differentiating_models,
    replaced_models,
    transformed_models,
)
SOURCES = ("Input", "Parameter", "ParameterConst", "Buffer", "BufferConst")


def dense(tensor):
    """Give the numbers of any tensor, whatever it is made of, as a plain one."""
    if isinstance(tensor, torch.masked.MaskedTensor):
        mask, data = dense(tensor.get_mask()), dense(tensor.get_data())
        return torch.stack([mask, data.masked_fill(mask == 0, 0)])
    if tensor.is_quantized:
        return tensor.dequantize().double()
    if tensor.is_nested:
        return torch.cat([part.flatten() for part in tensor.unbind()]).double()
    if isinstance(tensor, composite_models.Two):
        return torch.stack([dense(tensor.a), dense(tensor.b)])
    return tensor.to_dense().double() if tensor.layout != torch.strided else tensor.double()


def moved(tensor):
    """Give a tensor of the same make with other numbers."""
    if isinstance(tensor, torch.masked.MaskedTensor):
        return torch.masked.masked_tensor(moved(tensor.get_data()), tensor.get_mask())
    if tensor.is_quantized:
        return torch.quantize_per_tensor(moved(tensor.dequantize()), 0.001, 0, torch.qint32)
    if tensor.is_nested:
        return torch.nested.nested_tensor_from_jagged(moved(tensor.values()), tensor.offsets())
    if isinstance(tensor, composite_models.Two):
        return type(tensor)(moved(tensor.a), moved(tensor.b))
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return torch.sparse_coo_tensor(tensor.indices(), moved(tensor.values()), tensor.shape)
    if tensor.layout is torch.sparse_csr:
        places = tensor.crow_indices(), tensor.col_indices()
        return torch.sparse_csr_tensor(*places, moved(tensor.values()), tensor.shape)
    generator = torch.Generator().manual_seed(1)
    return tensor + 0.1 + 0.2 * torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype)


def is_float(tensor):
    return tensor.is_floating_point() or tensor.is_quantized


class Trial:
    """One model that is called again and again, each time with one source moved.

    Attributes:
        shapes: The shape of each output, where all of it is known.
        known: The sources that were moved.
        moving: For each output the sources that change it.
    """

    def __init__(self, case):
        self._model, self._inputs = case.model, case.inputs
        if isinstance(self._model, nn.Module):
            self._model.eval()
        self.shapes = {}
        before = self._call(self._model, self._inputs)
        self.known = set()
        self.moving = {path: set() for path in before}
        for name, model, inputs in self._each_moved():
            self.known.add(name)
            for path, after in self._call(model, inputs).items():
                if after.shape != before[path].shape or not torch.equal(after, before[path]):
                    self.moving[path].add(name)

    def _call(self, model, inputs):
        torch.manual_seed(0)
        # What a call writes into its parameters and buffers, no other call sees.
        model = copied(model, {}) if isinstance(model, nn.Module) else model
        with torch.no_grad():
            found = result_leaves(model(*inputs))
            self.shapes = {
                path: tuple(tensor.shape)
                for path, tensor in found
                if not (tensor.is_nested and tensor.layout is torch.strided)
            }
            return {path: dense(tensor.detach()) for path, tensor in found}

    def _each_moved(self):
        """Give the name of each source, and the model and the inputs with that one moved."""
        for argument, nest in argument_names(self._model, self._inputs, {}):
            for path, tensor in tensor_leaves(nest, argument):
                if is_float(tensor):
                    exchange = partial(exchanged, old=tensor, new=moved(tensor))
                    yield path, self._model, pytree.tree_map(exchange, self._inputs)
        if isinstance(self._model, nn.Module):
            for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
                if is_float(tensor):
                    after = moved(tensor.detach())
                    after = nn.Parameter(after) if isinstance(tensor, nn.Parameter) else after
                    yield name, copied(self._model, {id(tensor): after}), self._inputs


def exchanged(given, *, old, new):
    return new if given is old else given


def copied(model, instead):
    """Give a copy of a module with tensors of its own, and others in place of some."""
    kept = [each for each in model.parameters() if each.layout is not torch.strided]
    kept += [each for each in model.parameters() if type(each) is not nn.Parameter]
    return deepcopy(model, {**{id(each): each for each in kept}, **instead})


def reached_in(message, outputs):
    """Give for each output the sources from which a path leads to it in a GraphDef."""
    nodes = {node.name: node for node in message.node}

    def sources(name):
        found, pending, seen = set(), [name], set()
        while pending:
            node = nodes[pending.pop().removeprefix("^").partition(":")[0]]
            if node.name not in seen:
                seen.add(node.name)
                pending += filter(None, node.input)
                if node.op in SOURCES:
                    told = facts(node)
                    name = told["tied_to"].s or told["name"].s
                    found.add(name.decode() or node.name.replace("/", "."))
        return found

    drawn = [node.name for node in message.node if node.op.startswith("Output")]
    return {output.name: sources(name) for output, name in zip(outputs, drawn, strict=True)}


def shapes_in(message, outputs):
    """Give for each output its shape in a GraphDef; -1 for a size that is not known."""
    drawn = [node for node in message.node if node.op.startswith("Output")]
    return {
        output.name: [size.size for size in node.attr["_output_shapes"].list.shape[0].dim]
        for output, node in zip(outputs, drawn, strict=True)
    }


def faults(trial, told, may=frozenset()):
    """Give what a graph does not tell of what changes, and what it tells of what does not."""
    moving = trial.moving.items()
    lost = {path: found - told[path] for path, found in moving if found - told[path]}
    told = {path: (told[path] & trial.known) - found - may for path, found in moving}
    return lost, {path: wrong for path, wrong in told.items() if wrong}


def misfits(told, shapes):
    """Give the shapes that are told otherwise than they are; what is not known fits all."""
    return {
        path: (told[path], shape)
        for path, shape in shapes.items()
        if len(told[path]) != len(shape)
        or any(
            one not in (None, -1, int(other))
            for one, other in zip(told[path], shape, strict=True)
            if type(other) is int
        )
    }


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_a_path_leads_to_each_output_that_a_source_changes_and_to_no_other(name):
    case = MODELS[name]()
    trial = Trial(case)
    graph = tbscope.trace(case.model, case.inputs, kernels=True)
    graph.verify()
    lost, made_up = faults(trial, origins(graph))
    assert (lost, set().union(*made_up.values())) == ({}, case.may)
    assert misfits({each.name: each.value.shape for each in graph.outputs}, trial.shapes) == {}
    for level in ("op", "aten", "module"):
        message = tbscope.to_graph_def(graph, level=level)
        lost, made_up = faults(trial, reached_in(message, graph.outputs), case.may)
        # A module that is one node reads all that anything in it reads.
        assert (level, lost, made_up if level != "module" else {}) == (level, {}, {})
        assert (level, misfits(shapes_in(message, graph.outputs), trial.shapes)) == (level, {})


def test_the_oracle_notices_a_path_that_is_lost_and_one_that_is_made_up():
    trial = Trial(Case(lambda x, y: (x * 2, y + 1), (torch.ones(2), torch.ones(2)), frozenset()))
    assert trial.moving == {"out.0": {"x"}, "out.1": {"y"}}
    assert faults(trial, {"out.0": {"x"}, "out.1": {"y"}}) == ({}, {})
    assert faults(trial, {"out.0": set(), "out.1": {"y"}}) == ({"out.0": {"x"}}, {})
    assert faults(trial, {"out.0": {"x", "y"}, "out.1": {"y"}}) == ({}, {"out.0": {"y"}})
    assert faults(trial, {"out.0": {"x", "y"}, "out.1": {"y"}}, {"y"}) == ({}, {})


def test_the_oracle_moves_parameters_and_buffers_one_at_a_time():
    trial = Trial(Case(nn.BatchNorm1d(2), (torch.rand(3, 2),), frozenset()))
    assert trial.known == {"input", "weight", "bias", "running_mean", "running_var"}
    assert trial.moving == {"out": trial.known}


def test_the_oracle_notices_a_shape_that_is_not_that_of_the_result():
    assert misfits({"out": (3, 4)}, {"out": (3, 4)}) == {}
    assert misfits({"out": (3, None)}, {"out": (3, 4)}) == {}
    assert misfits({"out": (4,)}, {"out": (3, 4)}) == {"out": ((4,), (3, 4))}
    assert misfits({"out": [4, -1]}, {"out": (3, 4)}) == {"out": ([4, -1], (3, 4))}
