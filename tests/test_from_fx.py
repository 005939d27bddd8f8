"""Graphs of graph modules: what they tell is what an eager call of the model tells."""

import copy
import dataclasses
import itertools
import operator
from collections import OrderedDict, namedtuple
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

import tbscope
from tests.agreement import check_whole, disagreements
from tests.program_models import MODELS, Block, Counting, ResNet, example, exported
from tests.sweeps import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

# torch.fx cannot trace a choice by a tensor, nor does it name keywords with positions.
TRACED = [name for name in MODELS if name not in ("branches", "keywords")]
FORGOTTEN = {("without gradients", True)}
# Plain and decomposed models take turns.
FORMS = list(itertools.product(MODELS, [False, True]))


def _traced(name):
    return torch.fx.symbolic_trace(example(name)[0])


@pytest.mark.parametrize("name", TRACED)
def test_a_traced_module_with_inputs_tells_what_an_eager_call_tells(name):
    _, args, _, eager = example(name)

    graph = tbscope.from_fx(_traced(name), args)

    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    assert [output.name for output in graph.outputs] == [output.name for output in eager.outputs]
    assert tbscope.costs(graph).total.flops == tbscope.costs(eager).total.flops
    assert {value.device for node in graph.nodes for value in node.outputs} == {"cpu"}


@pytest.mark.parametrize("name", TRACED)
def test_without_inputs_all_but_the_shapes_is_told(name):
    graph = tbscope.from_fx(_traced(name))

    check_whole(graph)
    assert set(disagreements(example(name)[3], graph)) == {"shapes"}
    assert {value.shape for node in graph.inputs for value in node.outputs} == {None}


@pytest.mark.parametrize(("name", "decomposed"), sampled(FORMS, [*FORMS[::4], *FORMS[3::4]]))
def test_the_module_of_a_program_tells_what_the_program_tells(name, decomposed):
    eager = example(name)[3]
    program = exported(name, decomposed=decomposed)

    graph = tbscope.from_fx(program.module())

    check_whole(graph)
    if (name, decomposed) not in FORGOTTEN:
        assert disagreements(eager, graph) == {}
    of_program = tbscope.from_export(program)
    assert disagreements(of_program, graph) == {}
    paths = [call.scope.path for call in graph.calls]
    assert paths == [call.scope.path for call in of_program.calls]
    assert [node.name for node in graph.inputs] == [node.name for node in of_program.inputs]
    assert [each.name for each in graph.outputs] == [each.name for each in of_program.outputs]


def test_make_fx_tells_shapes_and_kernels():
    graph = tbscope.from_fx(make_fx(lambda x: torch.relu(x @ x).view(4))(torch.ones(2, 2)))

    check_whole(graph)
    assert [(node.op, node.outputs[0].shape) for node in graph.nodes] == [
        ("input", (2, 2)),
        ("mm", (2, 2)),
        ("relu", (2, 2)),
        ("view", (4,)),
    ]
    assert [node.flops for node in graph.nodes[1:]] == [16, 0, 0]


def test_symbolic_sizes_of_make_fx_are_told_by_their_formulas():
    traced = make_fx(lambda x: torch.cat([x, x]), tracing_mode="symbolic")(torch.ones(3, 2))

    graph = tbscope.from_fx(traced)

    out = graph.outputs[0].value
    assert out.shape == (None, None)
    assert out.producer.attributes["symbolic_shape"].startswith("(2*s")


def test_shapes_of_shape_propagation_are_told():
    traced = _traced("unet")
    ShapeProp(traced).propagate(*example("unet")[1])

    graph = tbscope.from_fx(traced)

    assert disagreements(example("unet")[3], graph) == {}
    assert graph.outputs[0].value.shape == (2, 3, 8, 8)


# -- calls -----------------------------------------------------------------------------------


def test_a_called_module_is_a_call_with_one_operation_that_reads_what_it_holds():
    graph = tbscope.from_fx(torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 2))))

    (call,) = graph.calls[1:]
    (node,) = [node for node in graph.nodes if node.kind == "op"]
    assert (call.scope.path, call.class_name) == (
        "Sequential/Linear[0]",
        "torch.nn.modules.linear.Linear",
    )
    assert node.op == "Linear"
    assert [value.name for value in node.inputs] == ["input", "0.weight", "0.bias"]
    assert call.hyperparameters == {"in_features": 3, "out_features": 2, "bias": True}


@pytest.mark.parametrize("training", [True, False])
def test_a_called_module_tells_its_mode_what_it_writes_and_whether_it_is_random(training):
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5)).train(training)

    graph = tbscope.from_fx(torch.fx.symbolic_trace(model), torch.ones(3, 2))

    norm, drop = [node for node in graph.nodes if node.kind == "op"]
    written = {norm.inputs[place].producer.name for place in norm.writes}
    state = {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
    assert written == (state if training else set())
    assert (norm.random, drop.random) == (False, training)
    assert [call.training for call in graph.calls] == [training] * 3


def test_calls_without_a_stack_are_told_by_the_modules_that_nodes_call():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU()))
    for node in traced.graph.nodes:
        node.meta.clear()

    graph = tbscope.from_fx(traced)

    paths = [call.scope.path for call in graph.calls]
    assert paths == ["Sequential", "Sequential/ModuleList[0]/ReLU[0]", "Sequential/ReLU[1]"]


def test_a_module_called_twice_without_a_stack_has_two_calls():
    traced = _traced("called twice")
    for node in traced.graph.nodes:
        node.meta.clear()

    graph = tbscope.from_fx(traced)

    paths = [call.scope.path for call in graph.calls if call.qualified_name == "block.fc"]
    assert paths == ["Twice/Module[block]/Linear[fc]", "Twice/Module[block]/Linear[fc].1"]


def test_a_graph_module_inside_of_another_is_read_through():
    inner = torch.fx.symbolic_trace(Block())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner
            self.last = nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.inner(x))

    class Keeps(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, torch.fx.GraphModule) or super().is_leaf_module(module, name)

    outer = Outer()
    graph = tbscope.from_fx(torch.fx.GraphModule(outer, Keeps().trace(outer)), torch.ones(2, 4))

    check_whole(graph)
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["Linear", "relu", "Linear"]
    assert {node.name for node in graph.nodes if node.kind == "parameter"} == {
        *("inner.fc.weight", "inner.fc.bias", "last.weight", "last.bias")
    }


class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x):
        return self.head(self.first(x))


def _scopes(graph):
    """Return the scope of each operation, and of each call."""
    check_whole(graph)
    ops = [str(node.scope) for node in graph.nodes if node.kind == "op"]
    return ops, [str(call.scope) for call in graph.calls]


def test_what_was_split_into_graph_modules_stands_in_these():
    from torch.fx.passes.split_module import split_module

    traced = torch.fx.symbolic_trace(Cut())
    split = split_module(traced, None, lambda node: int("head" in node.name))
    ops, calls = _scopes(tbscope.from_fx(split, torch.ones(2, 4)))

    one, two = (f"GraphModule/GraphModuleImpl[submod_{number}]" for number in range(2))
    assert ops == [f"{one}/Linear[first]", f"{two}/ReLU[head_0]", f"{two}/Linear[head_1]"]
    assert sorted(calls) == sorted(["GraphModule", one, two, *ops])


def test_what_was_fused_into_a_graph_module_stands_in_it_as_in_the_model():
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    traced = torch.fx.symbolic_trace(Cut())
    nodes = [node for node in traced.graph.nodes if "head" in str(node.target)]
    fused = fuse_by_partitions(traced, [dict.fromkeys(nodes)])
    ops, calls = _scopes(tbscope.from_fx(fused, torch.ones(2, 4)))

    (name,) = [key for key, _ in fused.named_children() if key.startswith("fused")]
    inner = f"Cut/GraphModuleImpl[{name}]"
    assert ops == [
        "Cut/Linear[first]",
        f"{inner}/Sequential[head]/ReLU[0]",
        f"{inner}/Sequential[head]/Linear[1]",
    ]
    assert sorted(calls) == sorted(["Cut", inner, f"{inner}/Sequential[head]", *ops])


def test_a_quantised_module_is_read():
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_fx

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    prepared = prepare_fx(model, get_default_qconfig_mapping(), (torch.ones(1, 4),))

    graph = tbscope.from_fx(prepared, torch.ones(1, 4))

    check_whole(graph)
    labels = {call.scope.part.label for call in graph.calls}
    assert {"LinearReLU", "HistogramObserver"} <= labels


# -- nodes -----------------------------------------------------------------------------------


def test_sizes_are_numbers_and_no_operations():
    class Net(nn.Module):
        def forward(self, x):
            return x.view(x.size(0), x.shape[1] * 2).to(x.dtype)

    graph = tbscope.from_fx(torch.fx.symbolic_trace(Net()), torch.ones(2, 3, 2))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["view", "to"]
    (view, _) = [node for node in graph.nodes if node.kind == "op"]
    assert [argument.nest for argument in view.arguments[1:]] == [2, 6]
    assert view.role == "view"


def test_a_shape_is_added_to_a_tuple():
    class Net(nn.Module):
        def forward(self, x):
            return x.flatten(1).reshape(x.shape[:-1] + (-1,)).reshape((x.shape[0],) + x.shape[1:])  # noqa: RUF005

    graph = tbscope.from_fx(torch.fx.symbolic_trace(Net()), torch.ones(2, 3, 4))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["flatten", *["reshape"] * 2]
    assert graph.outputs[0].value.shape == (2, 3, 4)


def test_without_shapes_a_question_is_still_no_operation():
    class Net(nn.Module):
        def forward(self, x):
            return x.view(x.size(0), x.shape[1] * 2)

    graph = tbscope.from_fx(torch.fx.symbolic_trace(Net()))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["view"]


def test_a_write_gives_a_new_value_also_in_an_input():
    class Net(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    graph = tbscope.from_fx(torch.fx.symbolic_trace(Net()), torch.ones(2))

    add, mul = [node for node in graph.nodes if node.kind == "op"]
    assert add.writes == (0,)
    assert mul.inputs == add.outputs


def test_a_tensor_attribute_is_a_buffer_as_torch_makes_it_one():
    graph = tbscope.from_fx(_traced("without gradients"))

    assert [node.name for node in graph.nodes if node.kind == "buffer"] == ["shift"]


def test_named_tuples_name_the_outputs():
    Pair = namedtuple("Pair", "first second")

    class Net(nn.Module):
        def forward(self, x):
            return Pair(x + 1, x - 1)

    graph = tbscope.from_fx(torch.fx.symbolic_trace(Net()))

    assert [output.name for output in graph.outputs] == ["first", "second"]


def test_a_function_of_the_user_is_not_called():
    called = []
    module = torch.fx.symbolic_trace(nn.ReLU())

    def mine(x):
        called.append(x)
        return x

    with module.graph.inserting_before(next(iter(reversed(module.graph.nodes)))):
        (relu,) = [
            node for node in module.graph.nodes if node.op in ("call_module", "call_function")
        ]
        node = module.graph.call_function(mine, (relu,))
    next(iter(reversed(module.graph.nodes))).args = (node,)
    module.recompile()

    graph = tbscope.from_fx(module, torch.ones(2))

    assert called == []
    assert [node.op for node in graph.nodes if node.kind == "op"][-1] == "mine"
    assert graph.outputs[0].value.shape is None


def captured(model, *args):
    """Give what torch.compile captures of a model."""
    modules = []

    def backend(module, inputs):
        modules.append(module)
        return module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(*args)
    return modules[0]


def test_what_sets_torch_itself_is_not_run():
    class Net(nn.Module):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.vmap(torch.sin)(x) + torch.zeros(3)

    module = captured(Net(), torch.ones(2, 3))
    before = torch.is_autocast_enabled("cpu")

    graph = tbscope.from_fx(module)

    assert torch.is_autocast_enabled("cpu") is before is False
    # In a `vmap` that was left open, this raises.
    assert torch.rand(2).shape == (2,)
    assert {"sin", "zeros", "add"} <= set(ops_of(graph))
    assert graph.outputs[0].value.shape == (2, 3)


def ops_of(graph):
    return [node.op for node in graph.nodes if node.kind == "op"]


def test_reading_leaves_the_module_as_it_was():
    model = Counting().train()
    traced = torch.fx.symbolic_trace(model)
    before = copy.deepcopy(traced.state_dict()), torch.get_rng_state(), str(traced.graph)

    tbscope.from_fx(traced, torch.ones(3, 4))

    after = traced.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before[0].items())
    assert torch.equal(torch.get_rng_state(), before[1])
    assert str(traced.graph) == before[2]
    assert not [node for node in traced.graph.nodes if "val" in node.meta]


# -- what it is given ------------------------------------------------------------------------


def test_load_and_add_graph_know_a_graph_module(tmp_path):
    traced, (image,) = _traced("resnet"), example("resnet")[1]

    with tbscope.SummaryWriter(tmp_path) as writer:
        drawn = writer.add_graph(traced, image)

    assert str(drawn) == str(tbscope.from_fx(traced, image))
    assert str(tbscope.load(traced)) == str(tbscope.from_fx(traced))
    assert str(drawn) != str(tbscope.load(traced))


def test_what_only_a_run_can_tell_is_run(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = writer.add_graph(_traced("resnet"), example("resnet")[1], profile=1)

    assert graph.profile is not None


@pytest.mark.parametrize("inputs", [(torch.ones(1), torch.ones(1))])
def test_too_many_inputs_are_refused(inputs):
    with pytest.raises(tbscope.InputError) as caught:
        tbscope.from_fx(torch.fx.symbolic_trace(nn.ReLU()), inputs)

    assert str(caught.value) == (
        "ReLU.forward() cannot be called: too many positional arguments\n"
        "  why: forward(input) was given (Tensor(1), Tensor(1))\n"
        "  fix: give input_to_model=input"
    )


def test_from_fx_refuses_what_is_no_graph_module():
    with pytest.raises(tbscope.ArgumentError, match=r"from_fx was given ResNet\("):
        tbscope.from_fx(ResNet())


# -- where things are ------------------------------------------------------------------------


class Placed(nn.Module):
    """Gives what a function and what a layer of torch's own gives of its input."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x):
        return torch.sin(x), self.act(x)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_made_of_a_tensor_is_where_that_is(device):
    graph = tbscope.from_fx(torch.fx.symbolic_trace(Placed()), torch.ones(2, device=device))

    assert [output.value.device for output in graph.outputs] == [device, device]


def test_a_layer_of_torchs_own_is_not_changed_by_being_read():
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.BatchNorm1d(2, momentum=None)).train())
    norm = traced.get_submodule("0")
    before = {name: dict(held) if type(held) is dict else held for name, held in vars(norm).items()}

    tbscope.from_fx(traced, torch.ones(3, 2))

    assert vars(norm) == before
    assert norm.num_batches_tracked == 0


class Choosing(nn.Module):
    """Does other work where its input has no content."""

    def forward(self, x):
        return x.sum() if x.device.type == "meta" else x * 2


def test_a_layer_of_the_user_runs_where_its_input_is():
    class Keeps(torch.fx.Tracer):
        def is_leaf_module(self, module, name):
            return isinstance(module, Choosing) or super().is_leaf_module(module, name)

    model = nn.Sequential(Choosing())
    traced = torch.fx.GraphModule(model, Keeps().trace(model))

    assert tbscope.from_fx(traced, torch.ones(2)).outputs[0].value.shape == (2,)
    assert tbscope.from_fx(traced, torch.ones(2, device="meta")).outputs[0].value.shape == ()


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no mkldnn")
def test_a_layer_with_kernels_of_each_device_runs_where_its_input_is():
    model, x = nn.Sequential(nn.LSTM(4, 5)), torch.ones(2, 3, 4)
    traced = torch.fx.symbolic_trace(model)

    # The layer itself may be elsewhere: an input without content will do.
    graphs = [tbscope.from_fx(traced, given) for given in (x, x.to("meta"))]

    here, there = [next(node for node in graph.nodes if node.kind == "op") for graph in graphs]
    assert here.flops == there.flops == tbscope.costs(tbscope.trace(model, x)).total.flops
    assert here.kernels != there.kernels


def test_equal_layers_of_torchs_run_once_on_stand_ins(monkeypatch):
    ran = []
    forward = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda *given: [ran.append(1), forward(*given)][1])
    layers = [nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)]
    # This one holds equal tensors, and does something else.
    layers.append(nn.Conv2d(4, 4, 3, stride=2, padding=1))
    module = torch.fx.symbolic_trace(nn.Sequential(*layers))
    ran.clear()

    graph = tbscope.from_fx(module, torch.ones(1, 4, 8, 8))

    assert len(ran) == 2
    sizes = [node.outputs[0].shape[-1] for node in graph.nodes if node.kind == "op"]
    assert sizes == [8, 8, 8, 4]
    twins = [nn.Linear(3, 3), nn.Linear(3, 3, bias=False)]
    graph = tbscope.from_fx(torch.fx.symbolic_trace(nn.Sequential(*twins)), torch.ones(1, 3))
    assert [len(node.inputs) for node in graph.nodes if node.kind == "op"] == [3, 2]


class Slicing(nn.Module):
    def forward(self, x, i):
        return x[:, :, 0], x[..., ::2], x[:, : i.size(0)], x[:, i.shape[0] - 1 :], x[None, i]


def test_slices_have_shapes_also_those_between_numbers_made_of_sizes():
    module = torch.fx.symbolic_trace(Slicing())
    inputs = torch.ones(2, 3, 4), torch.tensor([0, 1])

    graph = tbscope.from_fx(module, inputs)

    assert [output.value.shape for output in graph.outputs] == [
        tuple(each.shape) for each in Slicing()(*inputs)
    ]
    assert [str(node.arguments[1].nest) for node in graph.nodes if node.kind == "op"][:4] == [
        *("(:, :, 0)", "(..., ::2)", "(:, :2)", "(:, 1:)"),
    ]
    unknown = [node for node in tbscope.from_fx(module).nodes if node.kind == "op"]
    assert str(unknown[2].arguments[1].nest) == "(:, :size)"


@pytest.mark.parametrize("odd", [["fc", nn.Linear], ("fc", ["Linear"]), {}, None, 3])
def test_what_tells_of_no_call_where_calls_are_told_is_left_out(odd):
    traced = torch.fx.symbolic_trace(lambda x: x.relu())
    for node in traced.graph.nodes:
        node.meta["nn_module_stack"] = {"odd": odd, "act": ("act", nn.ReLU)}

    graph = tbscope.from_fx(traced, torch.ones(2))

    assert [call.qualified_name for call in graph.calls] == ["", "act"]


# -- containers ------------------------------------------------------------------------------

Pair = namedtuple("Pair", "u v")


@dataclasses.dataclass
class Record:
    u: torch.Tensor
    v: torch.Tensor

    def doubled(self):
        return self.u * 2


class Outputs(OrderedDict):
    """As the outputs of transformers: entries that are attributes, too."""

    def __init__(self, **entries):
        super().__init__(**entries)
        self.__dict__.update(entries)

    def to_tuple(self):
        return tuple(self.values())


class Private:
    def __init__(self):
        self.u, self._v, self.me = x(), x(), self


class Mixed(nn.Module):
    """A layer that torch.fx leaves whole."""

    def forward(self, given):
        return Outputs(h=given * 2, p=given + 1)


def x():
    return torch.ones(2, 4)


def two():
    return {"a": x(), "b": x()}


def three():
    return [x(), x(), x()]


def updated(self, batch):
    batch.update(a=self.l(batch["b"]))
    batch.setdefault("c", self.l(batch["a"]))
    return self.k(batch["c"])


def copied(self, batch):
    other = batch.copy()
    other.update({"a": self.l(batch["b"])})
    return self.k(other["a"]) + batch["a"], other


def grown(self, xs):
    xs.append(self.l(xs[0]))
    xs.insert(0, xs.pop())
    xs.extend([xs[1]])
    xs.reverse()
    return self.k(xs[-1])


def moved(self, batch):
    batch.move_to_end("a")
    return self.l(batch.popitem()[1])


CONTAINERS = {
    "get": (lambda self, b: self.l(b.get("a")), two),
    "get with a default": (lambda self, b: self.l(b.get("z", b["b"])), two),
    "copy": (lambda self, b: self.l(b.copy()["a"]), two),
    "pop of a dict": (lambda self, b: self.l(b.pop("a")) + self.k(b.popitem()[1]), two),
    "update": (updated, two),
    "a copy that is changed": (copied, two),
    "merged dicts": (lambda self, b: self.l((b | {"a": self.k(b["b"])})["a"]), two),
    "pop of a list": (lambda self, xs: self.l(xs.pop(0)) + self.k(xs[0]), three),
    "a list that grows": (grown, three),
    "slices": (lambda self, xs: self.l(xs[1:][0]) + self.k(torch.cat(xs[:2]))[:2], three),
    "added lists": (lambda self, xs: self.l((xs + xs)[4]) + (xs * 2)[5], three),
    "keys of tuples": (
        lambda self, b: self.l(b.get(("u", "to", "v"))),
        lambda: {("u", "to", "v"): x(), ("v", "to", "u"): x()},
    ),
    "keys that are numbers": (lambda self, b: self.l(b.get(1)), lambda: {0: x(), 1: x()}),
    "an ordered dict": (moved, lambda: OrderedDict(two())),
    "a nest": (
        lambda self, b: self.l(b.get("a").get("c")) + self.k(b["b"].pop()[0]),
        lambda: {"a": {"c": x()}, "b": [x(), (x(),)]},
    ),
    "fields of a named tuple": (lambda self, p: self.l(p.u) + p[1], lambda: Pair(x(), x())),
    "a named tuple with another field": (
        lambda self, p: self.k(p._replace(u=self.l(p.v)).u) + p._asdict()["v"],
        lambda: Pair(x(), x()),
    ),
    "fields of a data class": (lambda self, r: self.l(r.u), lambda: Record(x(), x())),
    "a method of a data class": (lambda self, r: self.l(r.doubled()), lambda: Record(x(), x())),
    "an object": (lambda self, o: self.l(o.u), lambda: SimpleNamespace(u=x(), n=3)),
    "a private attribute": (lambda self, o: self.l(o._v) + self.k(o.u), Private),
    "fields of what torch gives": (
        lambda self, x: (self.l(torch.max(x, 0).values), x.sort().indices, x.T.mT),
        x,
    ),
    "what a layer gives": (
        lambda self, x: self.l(self.leaf(x).h) + self.k(self.leaf(x).to_tuple()[1]),
        x,
    ),
    "a named tuple that is given": (lambda self, x: Pair(self.l(x), self.k(x)), x),
    "a data class that is given": (lambda self, x: Record(self.l(x), self.k(x)), x),
}


class Leaving(torch.fx.Tracer):
    def is_leaf_module(self, module, name):
        return type(module) is Mixed or super().is_leaf_module(module, name)


def _module_of(forward):
    model = type("Net", (nn.Module,), {"forward": forward})()
    model.l, model.k, model.leaf = nn.Linear(4, 4), nn.Linear(4, 4), Mixed()
    return torch.fx.GraphModule(model, Leaving().trace(model))


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_lead_where_an_eager_call_tells(name):
    forward, given = CONTAINERS[name]
    module = _module_of(forward)
    eager = tbscope.trace(module, (given(),))

    graph = tbscope.from_fx(module, (given(),))

    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    told = [(output.name, output.value.shape) for output in graph.outputs]
    assert told == [(output.name, output.value.shape) for output in eager.outputs]


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_lose_no_edge_where_nothing_tells_what_they_hold(name):
    module = _module_of(CONTAINERS[name][0])

    graph = tbscope.from_fx(module)

    check_whole(graph)
    eager = tbscope.trace(module, (CONTAINERS[name][1](),))
    told = disagreements(eager, graph).get("dataflow", {"only eager": set()})
    assert told["only eager"] == set()


def test_the_containers_that_are_given_stay_as_they_are():
    batch, xs = two(), three()

    tbscope.from_fx(_module_of(updated), (batch,))
    graph = tbscope.from_fx(_module_of(grown), (xs,))

    assert list(batch) == ["a", "b"]
    assert len(xs) == 3
    (given,) = graph.calls[0].arguments
    assert given.nest == [node.outputs[0] for node in graph.inputs]


def test_a_private_attribute_that_nothing_reads_is_no_input():
    graph = tbscope.from_fx(_module_of(lambda self, o: self.l(o.u)), Private())

    assert [node.name for node in graph.inputs] == ["o.u"]


def _with_calls(*calls):
    """Give a module of functions, each of which is called on the result of the one before."""
    graph = torch.fx.Graph()
    node = graph.placeholder("given")
    for function, *args in calls:
        node = graph.call_function(function, (node, *args))
    node = graph.call_module("l", (node,))
    graph.output(node)
    model = nn.Module()
    model.l = nn.Linear(4, 4)
    return torch.fx.GraphModule(model, graph)


FUNCTIONS = {
    "dict": (two, (dict,), (operator.getitem, "b")),
    "zip": (lambda: (three(), three()), (operator.getitem, 0), (zip,), (list,)),
    "enumerate": (three, (enumerate,), (dict,), (operator.getitem, 2)),
    "reversed": (three, (reversed,), (list,), (operator.getitem, 0)),
    "tuple": (three, (tuple,), (operator.getitem, slice(1, None)), (torch.stack,)),
    "getattr with a default": (lambda: Record(x(), x()), (getattr, "v", None)),
}
FUNCTIONS["zip"] += ((operator.getitem, 2), (operator.getitem, 0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_containers_are_no_operations(name):
    given, *calls = FUNCTIONS[name]
    module = _with_calls(*calls)

    graph = tbscope.from_fx(module, (given(),))

    assert disagreements(tbscope.trace(module, (given(),)), graph) == {}
    assert {node.op for node in graph.nodes if node.kind == "op"} <= {"Linear", "stack"}


def test_a_key_that_only_a_run_shows_leads_to_all_there_are():
    module = _with_calls((operator.getitem, "no such key"))

    graph = tbscope.from_fx(module, (two(),))

    (entry,) = [node for node in graph.nodes if node.op == "getitem"]
    assert entry.inputs == [node.outputs[0] for node in graph.inputs]


def pick(batch):
    return {"first": batch["a"], "all": list(batch.values())}


def pick_and_add(batch):
    return {"first": batch["a"] + batch["b"]}


@pytest.mark.parametrize("function", [pick, pick_and_add])
def test_a_function_of_the_user_is_one_operation_that_gives_tensors_of_known_shapes(function):
    module = _with_calls((function,), (operator.getitem, "first"))

    graph = tbscope.from_fx(module, (two(),))

    ops = [node.op for node in graph.nodes if node.kind == "op"]
    assert ops == [function.__name__, "Linear"]
    assert graph.outputs[0].value.shape == (2, 4)
    assert disagreements(tbscope.trace(module, (two(),)), graph) == {}


def test_a_list_that_holds_itself_is_read():
    graph = torch.fx.Graph()
    given = graph.placeholder("given")
    graph.call_method("append", (given, given))
    graph.call_function(torch.cat, (given,))
    graph.output(given)

    read = tbscope.from_fx(torch.fx.GraphModule(nn.Module(), graph), (three(),))

    assert [output.name for output in read.outputs] == ["out.0", "out.1", "out.2"]


def test_a_class_that_ends_with_an_effect_is_not_copied():
    ended = []

    class Ending:
        def __init__(self):
            self.u = x()

        def __del__(self):
            ended.append(self)

    given = Ending()
    module = _module_of(lambda self, o: self.l(o.u))

    graph = tbscope.from_fx(module, given)

    assert graph.outputs[0].value.shape == (2, 4)
    assert ended == []


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.parts = nn.ModuleList([nn.Linear(4, 4)])
        self.register_buffer("count", torch.zeros(4))

    def forward(self, batch, scale=None):
        self.count.add_(1)
        x = self.block(self.block(batch["x"]))
        return {"y": self.parts[0](x) * scale + self.count}


@pytest.mark.parametrize("kept", [(), ("block", "parts.0")])
@pytest.mark.filterwarnings("ignore")
def test_an_unflattened_program_is_read_as_the_program(kept):
    args, kwargs = ({"x": torch.ones(2, 4)},), {"scale": torch.ones(4)}
    program = torch.export.export(Repeated(), args, kwargs, preserve_module_call_signature=kept)
    module = torch.export.unflatten(program)

    graph = tbscope.from_fx(module)

    check_whole(graph)
    assert str(graph) == str(tbscope.from_export(torch.export.export(Repeated(), args, kwargs)))
    assert str(tbscope.load(module)) == str(graph)
    assert str(tbscope.from_fx(module, args, kwargs=kwargs)) == str(graph)
