"""Which value flows where: traced graphs held against autograd and against what must be."""

import copy

import composite_models
import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

import tbscope


def sources_of(graph):
    """Give the names of what each output is made of, by walking the graph backwards."""
    reached = {}
    for output in graph.outputs:
        pending = [output.value.producer, *output.control_inputs]
        seen = set()
        while pending:
            node = pending.pop()
            if node not in seen:
                seen.add(node)
                pending += [value.producer for value in node.inputs] + node.control_inputs
        reached[output.name] = {node.name for node in seen if node.kind != "op"}
    return reached


def traced(run, *inputs, **options):
    graph = tbscope.trace(run, inputs, **options)
    graph.verify()
    tbscope.to_graph_def(graph)
    return graph


def last(graph, op):
    return [node for node in graph.nodes if node.op == op][-1]


def test_an_in_place_operation_gives_a_new_value_of_the_same_tensor():
    def run(x, y):
        z = x * 2
        z.add_(y)
        return z

    graph = traced(run, torch.ones(2), torch.ones(2))
    assert graph.outputs[0].value.producer.op == "add_"
    assert sources_of(graph)["out"] == {"x", "y"}


def test_a_write_through_an_index_reaches_the_output():
    def run(x, y):
        z = x * 2
        z[:, 1:3] = y
        return z

    graph = traced(run, torch.ones(2, 4), torch.ones(2, 2))
    assert sources_of(graph)["out"] == {"x", "y"}


def test_a_reader_of_a_view_depends_on_a_write_through_another_view():
    def run(x, y):
        z = x * 2
        row = z[0]
        z[0].copy_(y)
        return row + 1, z

    graph = traced(run, torch.ones(2, 4), torch.ones(4))
    assert sources_of(graph) == {"out.0": {"x", "y"}, "out.1": {"x", "y"}}
    assert [node.op for node in last(graph, "add").control_inputs] == ["copy_"]


def through_a_module(x, y):
    whole = x * 2
    whole[0].add_(y)
    return nn.Identity()(whole) + 1


def through_another_vmap(x, y):
    whole = x * 2
    torch.func.vmap(lambda row: row.view(-1)[:2].add_(y))(whole)
    return torch.func.vmap(lambda row: row * 2)(whole)


def through_a_tensor_in_a_wrapper(x, y):
    two = composite_models.Two(x * 2, x * 3)
    made = two * 2
    made.a[0].add_(y)
    return made.a + 1


def through_a_wrapper(x, y):
    whole = x * 2
    two = composite_models.Two(whole, x * 3)
    whole[0].add_(y)
    return (two * 2).a


def through_a_part_of_a_wrapper_that_is_made_anew(x, y):
    one, other = x * 2, x * 3
    two = composite_models.Two(one, other)
    two.neg()
    other[0].add_(y)
    one.mul_(2)
    return (two * 2).b + 1


@pytest.mark.parametrize(
    "run",
    [
        through_a_module,
        through_another_vmap,
        through_a_tensor_in_a_wrapper,
        through_a_wrapper,
        through_a_part_of_a_wrapper_that_is_made_anew,
    ],
)
def test_a_step_without_kernels_depends_on_a_write_through_another_tensor(run):
    graph = traced(run, torch.ones(2, 4), torch.ones(()))
    assert sources_of(graph)["out"] == {"x", "y"}


def test_data_that_is_set_depends_on_the_new_data_alone():
    def forward(x):
        y = x * 2
        y.data = x + 1
        return y

    graph = tbscope.trace(forward, torch.rand(3))
    (node,) = [node for node in graph.nodes if node.op == "set_data"]
    assert [value.producer.op for value in node.inputs] == ["add"]
    assert graph.outputs[0].value.producer is node


def test_a_deep_copy_writes_into_no_tensor():
    def run(x):
        y = x * 2
        return copy.deepcopy(y) + 1, y + 1

    graph = traced(run, torch.ones(2))
    copied = last(graph, "deepcopy")
    assert (copied.writes, len(copied.outputs)) == ((), 1)
    assert last(graph, "add").inputs[0].producer.op == "mul"
    assert not last(graph, "add").control_inputs


class Named(torch.Tensor):
    """A subclass without anything of its own."""


@pytest.mark.parametrize(
    "alias_of", [nn.Parameter, lambda x: x.as_subclass(Named)], ids=["parameter", "subclass"]
)
def test_an_alias_of_an_alias_has_the_value_of_its_tensor(alias_of):
    def run(x):
        return alias_of(alias_of(x * 2)).as_subclass(torch.Tensor) + 1

    assert sources_of(traced(run, torch.ones(2)))["out"] == {"x"}


def test_an_alias_that_a_recorded_module_takes_is_no_input():
    x = torch.ones(2)
    with tbscope.record() as recording:
        nn.ReLU()(nn.Parameter(x * 2))
    assert [node.op for node in recording.graph.nodes] == ["input", "mul", "relu"]


def test_a_write_to_another_part_of_the_storage_invents_no_dependency():
    def run(x, y):
        left, right = (x * 2).chunk(2, dim=1)
        left.add_(y)
        return left, right + 1

    graph = traced(run, torch.ones(2, 4), torch.ones(2, 2))
    assert sources_of(graph) == {"out.0": {"x", "y"}, "out.1": {"x"}}


def test_storage_that_is_used_again_is_not_taken_for_the_old_one():
    def run(x, y):
        for _ in range(20):
            z = torch.zeros(1000)
            z.add_(y)
            del z
        return torch.zeros(1000) + x

    graph = traced(run, torch.ones(1000), torch.ones(1000))
    assert sources_of(graph)["out"] == {"x"}


def test_out_is_written_and_not_read():
    def run(x, y):
        z = y * 2
        torch.add(x, 1, out=z)
        return z

    graph = traced(run, torch.ones(2), torch.ones(2))
    assert sources_of(graph)["out"] == {"x"}


def test_a_view_of_what_out_names_depends_on_what_filled_it():
    def run(x, y):
        z, other = y * 2, y * 3
        view, apart = z.view(-1), other.view(-1)
        torch.add(x, 1, out=z)
        return view + 1, apart + 1

    graph = traced(run, torch.ones(2), torch.ones(2))
    assert sources_of(graph) == {"out.0": {"x", "y"}, "out.1": {"y"}}


def test_a_loop_that_fills_a_tensor_keeps_every_step():
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x):
            steps = torch.zeros(4, 3)
            for step in range(4):
                x = self.lin(x)
                steps[step] = x
            return steps

    graph = traced(Cell(), torch.ones(3))
    assert sources_of(graph)["out"] == {"x", "lin.weight", "lin.bias"}
    assert [call.scope.part.index for call in graph.find_calls("lin")] == [0, 1, 2, 3]


def test_buffers_updated_in_forward_are_new_values_and_as_before_after():
    net = nn.Sequential(nn.BatchNorm1d(3))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    graph = traced(net, torch.randn(4, 3), training=True)
    norm = last(graph, "batch_norm")
    assert [value.shape for value in norm.outputs] == [(4, 3), (3,), (3,)]
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_a_cache_written_in_forward_is_read_after_it_was_written():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, 4))

        def forward(self, x):
            self.cache[:, 1:2] = x
            return self.cache.sum()

    net = Cache()
    assert sources_of(traced(net, torch.ones(2, 1)))["out"] == {"x", "cache"}
    assert not net.cache.any()


def test_the_inputs_of_the_caller_stay_as_they_were():
    x = torch.ones(3)
    batch = {"x": x, "seen": []}

    def run(batch):
        batch["x"].mul_(5)
        batch["seen"].append(1)
        batch["x"] = None

    version = x._version
    tbscope.trace(run, (batch,))
    assert batch == {"x": x, "seen": []}
    assert x.tolist() == [1, 1, 1]
    assert x._version == version


def test_what_python_reads_is_noted_with_its_line():
    def run(x):
        if x.sum() > 0:
            x = x * x.max().item()
        return x + len(x.tolist())

    graph = traced(run, torch.ones(3))
    notes = [note for note in graph.notes if note.topic == "python"]
    assert [note.text.partition(" the value")[0] for note in notes] == [
        "Python decided on",
        "Python read",
        "Python read",
    ]
    assert all("test_trace_dataflow.py:" in str(note) for note in notes)
    assert "read_by_python" in last(graph, "gt").attributes


def test_a_detour_through_numpy_is_noted_and_comes_back_as_a_constant():
    def run(x):
        return torch.from_numpy(np.asarray(x * 2) + 1) * x

    graph = traced(run, torch.ones(3))
    assert any("numpy" in note.text or "array" in note.text for note in graph.notes)
    assert sources_of(graph)["out"] > {"x"}


def test_results_that_nobody_uses_are_drawn():
    graph = traced(lambda x: (x.exp(), x * 2)[1], torch.ones(3))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["exp", "mul"]


def test_several_results_of_one_operation_are_told_apart():
    graph = traced(lambda x: x.split(2)[1] + x.max(0).values, torch.ones(4))
    assert len(last(graph, "split").outputs) == 2
    assert last(graph, "add").inputs[0] is last(graph, "split").outputs[1]


def test_constants_and_tensors_from_elsewhere_are_there():
    outside = torch.ones(3)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.tensor(2.0)

        def forward(self, x):
            return x * self.scale + outside + torch.arange(3)

    graph = traced(Net(), torch.ones(3))
    assert "scale" in sources_of(graph)["out"]
    assert [node.kind for node in graph.nodes].count("constant") == 2
    assert last(graph, "arange").inputs == []


class Double(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@torch.library.custom_op("tbscope_tests::increment", mutates_args=("x",))
def increment(x: torch.Tensor) -> None:
    x.add_(1)


def run_custom_op(self, x):
    y = self.lin(x)
    increment(y)
    return y * 2


class Holder(nn.Module):
    """A linear layer and a forward that is given."""

    def __init__(self, run):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


def forces(self, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.lin(x).sum(), x)[0]


def autocast(self, x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return self.lin(x)


def inference(self, x):
    with torch.inference_mode():
        y = self.lin(x)
        y.add_(1)
        return y.view(-1)


@pytest.mark.parametrize(
    "run",
    [
        lambda self, x: Double.apply(self.lin(x)),
        run_custom_op,
        lambda self, x: torch.vmap(lambda row: self.lin(row).relu())(x),
        lambda self, x: torch.func.jvp(lambda y: self.lin(y).sin(), (x,), (x,)),
        lambda self, x: torch.func.grad(lambda y: self.lin(y).sin().sum())(x),
        lambda self, x: torch.fft.rfft(self.lin(x)).abs(),
        lambda self, x: torch.quantize_per_tensor(self.lin(x), 0.1, 0, torch.qint8).dequantize(),
        lambda self, x: sum(self.lin(row) for row in x),
        forces,
        autocast,
        inference,
    ],
    ids=[
        "autograd function",
        "custom op that writes",
        "vmap",
        "jvp",
        "grad",
        "complex",
        "quantized",
        "generator",
        "forces",
        "autocast",
        "inference mode",
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_outputs_depend_on_inputs_and_parameters_through(run):
    graph = traced(Holder(run), torch.randn(2, 4))
    for reached in sources_of(graph).values():
        assert reached >= {"x", "lin.weight", "lin.bias"}


def set_one(y):
    y[:, 0] = 1


@pytest.mark.parametrize(
    "write", [set_one, lambda y: functional.normalize(y, out=y)], ids=["setitem", "out"]
)
def test_a_write_gives_one_value_and_that_is_the_whole_tensor(write):
    def run(x):
        y = x.clone()
        write(y)
        return y * 2

    graph = traced(run, torch.ones(2, 4))
    _, writer, mul = graph.nodes[1:]
    assert [value.shape for value in writer.outputs] == [(2, 4)]
    assert (mul.inputs, mul.control_inputs) == (writer.outputs, [])


def test_functions_given_to_an_operator_are_drawn_with_what_they_run():
    def run(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.lin(y) + 1, lambda y: y * 2, (x,))

    graph = traced(Holder(run), torch.ones(2, 4))
    assert "linear" in [node.op for node in graph.nodes]
    assert sources_of(graph)["out"] == {"x", "lin.weight", "lin.bias"}


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_tensors_have_unknown_sizes_where_they_are_ragged(layout):
    def run(self, a, b):
        return self.lin(torch.nested.as_nested_tensor([a, b], layout=layout))

    class Nest(Holder):
        def forward(self, a, b):
            return self.run(self, a, b)

    graph = traced(Nest(run), torch.randn(3, 4), torch.randn(2, 4))
    assert last(graph, "linear").outputs[0].shape == (2, None, 4)
    assert sources_of(graph)["out"] >= {"a", "b", "lin.weight"}


def test_sparse_half_and_subclassed_tensors_are_drawn():
    class Marked(torch.Tensor):
        pass

    graph = traced(lambda x: torch.sparse.mm(x.to_sparse(), x).half(), torch.eye(3))
    assert graph.outputs[0].value.dtype == "float16"
    graph = traced(lambda x: (x * 2).sum(), torch.eye(3).as_subclass(Marked))
    assert sources_of(graph)["out"] == {"x"}


class Wrapped(torch.Tensor):
    """A tensor that holds another one, and computes with that."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(given.inner if type(given) is cls else given for given in args))


def test_what_is_wrapped_in_the_run_is_what_was_wrapped():
    graph = traced(lambda x: Wrapped(x * 2) + 1, torch.ones(3))
    assert [node.op for node in graph.nodes] == ["input", "mul", "add"]
    assert sources_of(graph)["out"] == {"x"}


def test_a_model_on_meta_is_drawn_without_weights():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU())
        x = torch.empty(8, 4096)
    graph = traced(net, x)
    assert graph.outputs[0].value.device == "meta"
    assert graph.outputs[0].value.shape == (8, 4096)


def test_the_fast_path_of_the_transformer_encoder_is_what_is_drawn():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    x = torch.randn(1, 3, 8)
    ops = [node.op for node in traced(net, x).nodes if node.kind == "op"]
    assert ops == ["transformer_encoder_layer_fwd"] * 2
    slow = [node.op for node in traced(net, x, training=True).nodes if node.kind == "op"]
    assert "multi_head_attention_forward" in slow


@pytest.mark.parametrize(
    "memory_of",
    [
        torch.Tensor.numpy,
        np.asarray,
        np.from_dlpack,
        torch.from_dlpack,
        lambda tensor: torch.from_numpy(tensor.numpy()),
    ],
    ids=["numpy", "asarray", "numpy by dlpack", "dlpack", "from numpy"],
)
def test_what_is_written_through_memory_that_was_handed_out_is_put_back(memory_of):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(2))

        def forward(self, x):
            memory = memory_of(self.steps)
            memory += 1
            return x + self.steps

    net = Counter()
    graph = tbscope.trace(net, torch.zeros(2))
    assert net.steps.tolist() == [0, 0]
    assert "Python read the value of %steps" in "".join(note.text for note in graph.notes)


@pytest.mark.parametrize("kept", ["a result", "a parameter"])
def test_a_tensor_that_is_set_to_a_storage_is_that_of_the_one_whose_memory_it_is(kept):
    class Net(nn.Linear):
        def forward(self, x):
            memory = x * 2 if kept == "a result" else self.weight
            made = torch.empty(0)
            made.set_(memory.untyped_storage(), 2, (2,), (1,))
            return made + 1

    graph = traced(Net(2, 2), torch.ones(2, 3))
    assert sources_of(graph)["out"] == ({"x"} if kept == "a result" else {"weight"})


def test_inputs_that_a_model_draws_for_itself_do_not_advance_the_generators():
    class Offering(nn.Linear):
        @property
        def example_input_array(self):
            return torch.randn(1, 2)

    net = Offering(2, 2)
    state = torch.get_rng_state()
    tbscope.trace(net)
    assert torch.equal(state, torch.get_rng_state())


def test_what_is_new_at_the_place_of_what_is_gone_is_another_constant():
    def model(x):
        for number in range(8):
            # Each is gone once it is added, and the next one, which nobody has seen, is made there.
            x = x + torch.from_numpy(np.full(1, number, dtype=np.float32))
        return x

    graph = tbscope.trace(model, torch.zeros(1))
    assert [node.kind for node in graph.nodes].count("constant") == 8


class Repeated(nn.Module):
    """Repeats a layer, so often as a condition holds that a function computes."""

    def __init__(self, times):
        super().__init__()
        self.lin, self.times = nn.Linear(3, 3), times

    def forward(self, x):
        def goes_on(count, x):
            return count < self.times

        def once(count, x):
            return count + 1, torch.tanh(self.lin(x)) + x

        return while_loop(goes_on, once, (torch.tensor(0), x))


@pytest.mark.parametrize("times", [0, 1, 5])
def test_each_turn_of_a_loop_waits_for_its_condition_and_the_loop_reads_what_was_last(times):
    graph = tbscope.trace(Repeated(times), torch.ones(2, 3))
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    asked = [node for node in graph.nodes if node.op == "lt"]
    counted = [node for node in graph.nodes if node.op == "add" and node.outputs[0].shape == ()]
    assert [node.control_inputs for node in counted] == [[one] for one in asked[:-1]]
    (loop,) = (node for node in graph.nodes if node.op == "while_loop")
    last = [node for node in graph.nodes if node.op == "add" and node not in counted][-1:]
    read = [value.producer for value in loop.inputs]
    assert [node for node in read if node.kind == "op" and node.op != "tensor"] == [
        *last,
        asked[-1],
    ]
    assert not loop.control_inputs
