"""What a trace puts back that a model changes without an operation, or with nothing to show."""

import gc
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode as function_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode as dispatch_mode

import tbscope


class Model(nn.Module):
    """A square buffer, a parameter, a layer, and what forward does with them."""

    def __init__(self, change):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.last = nn.Parameter(torch.ones(4))
        self.register_buffer("square", torch.arange(16.0).reshape(4, 4))
        self.register_buffer("steps", torch.zeros(1))
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.change = change

    def forward(self, x):
        y = self.second(self.first(x)) + self.square
        self.change(self)
        return y


def give_back(model):
    model.square.untyped_storage().resize_(0)


def write_and_give_back(model):
    model.square.add_(1)
    give_back(model)


def take_more(model):
    model.square.untyped_storage().resize_(256)


def give_back_and_take_again(model):
    give_back(model)
    model.square.untyped_storage().resize_(64)
    model.square.zero_()


MEMORY = [give_back, write_and_give_back, take_more, give_back_and_take_again]


@pytest.mark.parametrize("change", MEMORY)
@pytest.mark.parametrize("options", [{}, {"profile": 1}], ids=["traced", "measured"])
def test_memory_that_forward_gives_back_is_there_again(change, options):
    model = Model(change)
    storage = model.square.untyped_storage()
    tbscope.trace(model, torch.ones(4, 4), **options)
    assert model.square.untyped_storage()._cdata == storage._cdata
    # Asked before anybody reads: to read what has no memory would end the process.
    assert storage.nbytes() == 64
    assert torch.equal(model.square, torch.arange(16.0).reshape(4, 4))


def test_memory_that_was_given_back_before_is_not_taken_for_good():
    def borrow(model):
        model.weight.untyped_storage().resize_(16)
        with torch.no_grad():
            model.weight.copy_(model.last)
        model.weight.untyped_storage().resize_(0)

    model = Model(borrow)
    model.weight.untyped_storage().resize_(0)
    tbscope.trace(model, torch.ones(4, 4))
    assert model.weight.untyped_storage().nbytes() == 0
    assert model.weight.shape == (4,)


def test_memory_of_what_forward_made_itself_may_go():
    def run(x):
        y = x * 2
        z = y + 1
        y.untyped_storage().resize_(0)
        return z

    x = torch.ones(4)
    graph = tbscope.trace(run, x)
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["mul", "add"]
    assert x.untyped_storage().nbytes() == 16


def test_outside_of_a_trace_a_storage_is_resized_as_ever():
    before = torch.UntypedStorage.resize_
    tbscope.trace(Model(give_back), torch.ones(4, 4))
    assert torch.UntypedStorage.resize_ is before
    with tbscope.record():
        x = torch.ones(4)
        x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda square: square.t_(),
        lambda square: square.as_strided_((4, 4), (4, 1), 16),
        lambda square: square.as_strided_((4, 4), (1, 4), 16),
        lambda square: square.t_().t_(),
    ],
    ids=["strides", "offset", "both", "neither"],
)
def test_the_layout_of_a_square_buffer_comes_back_though_its_shape_never_changed(change):
    model = Model(lambda model: change(model.square))
    model.square = torch.arange(32.0)[:16].reshape(4, 4)
    tbscope.trace(model, torch.ones(4, 4))
    assert (model.square.stride(), model.square.storage_offset()) == ((4, 1), 0)
    assert model.square.tolist() == torch.arange(16.0).reshape(4, 4).tolist()


@pytest.mark.parametrize("shape", [(2, 4), (8, 4), (16,)], ids=str)
def test_the_shape_of_a_buffer_comes_back_whether_it_shrank_or_grew(shape):
    model = Model(lambda model: model.square.resize_(shape))
    before = model.square.clone()
    tbscope.trace(model, torch.ones(4, 4))
    assert torch.equal(model.square, before)


def add_again(table, key):
    table[key] = table.pop(key)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: add_again(model._parameters, "weight"),
        lambda model: add_again(model._buffers, "square"),
        lambda model: add_again(model._modules, "first"),
        lambda model: setattr(model, "square", model.square + 1),
    ],
    ids=["parameter", "buffer", "module", "set in its place"],
)
def test_the_state_has_its_order_again_after_a_key_was_deleted_and_added(change):
    model = Model(change)
    before = model.state_dict()
    tbscope.trace(model, torch.ones(4, 4))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("fails_in", [None, 1, 2, 3, 4], ids=lambda at: f"fails in {at}")
@pytest.mark.parametrize("options", [{"profile": 1}, {"profile": 1, "kernels": True}])
def test_measuring_leaves_no_watcher_behind(options, fails_in):
    runs = []

    def change(model):
        runs.append(model)
        if len(runs) == fails_in:
            raise ArithmeticError

    model = Model(change)
    replaced = (nn.Module.__call__, nn.Module._call_impl, torch.compile)
    asked = torch.overrides.has_torch_function
    if fails_in is None:
        tbscope.trace(model, torch.ones(4, 4), **options)
    else:
        with pytest.raises(tbscope.TraceError):
            tbscope.trace(model, torch.ones(4, 4), **options)
    assert (function_mode(), dispatch_mode()) == (None, None)
    assert replaced == (nn.Module.__call__, nn.Module._call_impl, torch.compile)
    assert asked is torch.overrides.has_torch_function
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with tbscope.record() as recording:
        torch.ones(1)
    assert [node.op for node in recording.graph.nodes] == ["ones"]


@pytest.mark.parametrize("options", [{}, {"kernels": True}, {"profile": 1}], ids=str)
def test_a_model_is_let_go_as_soon_as_its_graph_is_drawn(options):
    model = Model(lambda model: None)
    gone = [weakref.ref(model), weakref.ref(model.first.weight)]
    gc.disable()
    try:
        graph = tbscope.trace(model, torch.ones(4, 4), **options)
        del model
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
    assert graph.nodes
    # Python 3.14 passes it without a reference of its own.
    assert sys.getrefcount(graph) <= 2


def written_twice(tensor):
    tensor.mul_(0)
    tensor.sub_(tensor.clone())


@pytest.mark.parametrize(
    "x",
    [torch.eye(2), torch.eye(2).to_sparse(), torch.ones(1).expand(2, 2)[:, :1]],
    ids=["dense", "sparse", "expanded"],
)
def test_what_is_written_twice_is_as_it_was_before_the_first_time(x):
    before = x.to_dense().clone()
    tbscope.trace(lambda x: written_twice(x) if x.is_sparse else written_twice(x[:1]), x)
    assert torch.equal(x.to_dense(), before)


@pytest.mark.parametrize("held", [{"a": 1}, {"a": 1, "b": 2}], ids=str)
def test_a_mapping_has_its_keys_again_where_its_values_never_changed(held):
    model = Model(lambda model: model.held.update(c=model.held.pop("a")))
    model.held, before = held, dict(held)
    tbscope.trace(model, torch.ones(4, 4))
    assert held == before


class Part:
    def __init__(self, inner=None):
        self.inner = inner
        self.steps = []


def test_objects_inside_of_objects_of_a_model_are_kept():
    model = Model(lambda model: model.part.inner.steps.append(1))
    model.part = Part(Part())
    tbscope.trace(model, torch.ones(4, 4))
    assert model.part.inner.steps == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_parameters_of_a_scripted_module_are_put_back():
    model = torch.jit.script(nn.Linear(2, 2))
    before = model.weight.detach().clone()
    holder = nn.Sequential(model)
    holder.register_forward_pre_hook(lambda module, args: (model.weight.add_(1), None)[1])
    tbscope.trace(holder, torch.ones(1, 2))
    assert torch.equal(model.weight, before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_without_a_mode_is_drawn_in_the_one_it_has():
    frozen = torch.jit.freeze(torch.jit.script(nn.Linear(2, 2).eval()))
    assert not hasattr(frozen, "training")
    graph = tbscope.trace(nn.Sequential(frozen), torch.ones(1, 2))
    assert [call.training for call in graph.calls] == [False, False]
    assert graph.outputs[0].value.shape == (1, 2)


class Slots:
    """An object without attributes of its own making."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Named(dict):
    """A mapping that has attributes, too."""


def test_what_slots_and_attributes_of_a_mapping_hold_is_kept_inside_too():
    named = Named()
    named.tensor, named.steps = torch.zeros(2), []
    given = [Slots(torch.zeros(2)), Slots([1]), named]

    def run(given):
        given[0].held.add_(1)
        given[1].held.append(2)
        given[2].tensor.add_(1)
        given[2].steps.append(1)
        given[2].new = 1

    tbscope.trace(run, (given,))
    assert given[0].held.tolist() == named.tensor.tolist() == [0, 0]
    assert given[1].held == [1]
    assert (named.steps, list(vars(named))) == ([], ["tensor", "steps"])


@pytest.mark.parametrize("values", [torch.ones(2), torch.ones(2).to_sparse()])
def test_the_gradient_of_a_leaf_is_kept_beside_a_tensor_that_has_a_history(values):
    leaf = values.clone().requires_grad_()
    leaf.grad = gradient = values.clone()
    made = leaf * 2
    tbscope.trace(lambda pair: setattr(pair[0], "grad", None), ([leaf, made],))
    assert leaf.grad is gradient
    assert made.grad_fn is not None


def test_a_generator_is_as_it_was_though_a_module_was_met_after_it_had_drawn():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator()
            self.hidden = [nn.Linear(2, 2)]

        def forward(self, x):
            return self.hidden[0](x + torch.rand(2, generator=self.generator))

    model = Drawing()
    before = model.generator.get_state()
    tbscope.trace(model, torch.ones(2))
    assert torch.equal(model.generator.get_state(), before)


class Marked(torch.Tensor):
    """A tensor of a class of one's own."""


@pytest.mark.parametrize("make", [torch.zeros, lambda size: torch.zeros(size).as_subclass(Marked)])
@pytest.mark.parametrize(
    "wrap", [list, tuple, lambda held: {"a": held}], ids=["list", "tuple", "dict"]
)
def test_a_tensor_of_any_class_in_an_attribute_is_put_back(make, wrap):
    model = Model(lambda model: [tensor.add_(1) for tensor in tensors])
    tensors = [make(2), make(3)]
    model.held = wrap(tensors)
    tbscope.trace(model, torch.ones(4, 4))
    assert [tensor.tolist() for tensor in tensors] == [[0, 0], [0, 0, 0]]
    assert [tensor._version for tensor in tensors] == [0, 0]


def test_more_failures_than_are_told_are_counted():
    given = [torch.zeros(1, requires_grad=True) * 1 for _ in range(5)]
    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.trace(lambda given: [tensor.add_(1) for tensor in given], (given,), grad=True)
    assert str(caught.value).count("a write has changed its history") == 3
    assert "; and 2 more\n" in str(caught.value)
