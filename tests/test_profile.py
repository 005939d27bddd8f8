"""`tbscope.trace(..., profile=)`: times and memory of operations, measured in further runs."""

import random
import time
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import BertConfig, BertModel

import tbscope
from benchmarks.measure import peak_bytes
from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.measure import clocks
from tbscope.sources.eager.measure.clocks import EventClock, ProcessorClock, clock_of
from tbscope.sources.eager.measure.meter_modes import CallWatch, KernelWatch
from tbscope.sources.eager.watch import call_log
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.torch.operations import operation_name

KB = 1024


def ops(graph):
    return [node for node in graph.nodes if node.kind == "op"]


def peaks(graph):
    return [(node.op, node.peak_bytes) for node in ops(graph)]


def notes_on_times(graph):
    return [note for note in graph.notes if "no times" in note.text or "measured" in note.text]


class Blocks(nn.Module):
    """A model that differs from run to run unless all is put back."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout()
        self.register_buffer("steps", torch.zeros(1))
        self.seen = []

    def forward(self, x):
        self.steps += 1
        self.seen.append(random.random())
        return self.drop(self.norm(self.fc(x)))


# -- times --------------------------------------------------------------------------------


def test_every_operation_that_ran_has_a_time_and_the_profile_tells_how():
    graph = tbscope.trace(Blocks(), torch.rand(3, 4), training=True, profile=3)
    times = [node.duration_us for node in ops(graph)]
    assert len(times) == 5
    assert all(time_us > 0 for time_us in times)
    assert notes_on_times(graph) == []
    profile = graph.profile
    assert (profile.steps, profile.warmup, profile.clock) == (3, 2, "perf_counter")
    assert profile.operations_us == pytest.approx(sum(times))
    assert profile.forward_us > 0
    assert profile.watched_us > 0
    assert profile.spread_us >= 0


def test_true_measures_five_runs_and_without_profile_nothing_is_measured():
    calls = []
    model = nn.ReLU()
    model.register_forward_hook(lambda *_: calls.append(1))
    assert tbscope.trace(model, torch.rand(2), profile=True).profile.steps == 5
    # The run that is drawn, seven unwatched ones, seven timed, one that counts bytes.
    assert len(calls) == 1 + 7 + 7 + 1
    graph = tbscope.trace(model, torch.rand(2))
    assert graph.profile is None
    assert {(node.duration_us, node.peak_bytes) for node in graph.nodes} == {(None, None)}
    assert len(calls) == 17


def test_one_run_has_no_spread():
    assert tbscope.trace(nn.ReLU(), torch.rand(2), profile=1).profile.spread_us == 0.0


@torch.library.custom_op("tbscope_tests::nap", mutates_args=())
def nap(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


def test_an_operation_that_takes_long_is_told_from_the_others():
    class Naps(nn.Module):
        def forward(self, x):
            return nap(nap(x.relu(), 0.02), 0.005).relu()

    graph = tbscope.trace(Naps(), torch.rand(2), profile=3)
    first, long, short, last = (node.duration_us for node in ops(graph))
    assert long >= 20_000
    assert 5_000 <= short < long
    assert max(first, last) < short
    assert graph.profile.forward_us >= 25_000
    assert graph.profile.watched_us >= 25_000


def nap_in(slow_runs):
    """Give a function whose operation takes long in some of the runs, counted from 0."""
    runs = iter(range(100))

    def model(x):
        return nap(x, 0.1 if next(runs) in slow_runs else 0.0)

    return model


def test_runs_to_warm_up_do_not_count():
    # The one that is drawn, then two unwatched and two timed ones.
    graph = tbscope.trace(nap_in(range(5)), torch.ones(2), profile=1)
    assert ops(graph)[0].duration_us < 100_000
    assert graph.profile.forward_us < 100_000


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_functions_are_not_timed_while_kernels_are_watched():
    scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    # Of each three runs after the first one, the last one watches kernels.
    model = nap_in(range(3, 99, 3))
    graph = tbscope.trace(lambda x: scripted(model(x)), torch.ones(2), profile=1)
    assert [node.op for node in ops(graph)] == ["nap", "relu"]
    assert 0 < ops(graph)[0].duration_us < 40_000


def test_a_real_model_runs_in_the_measured_runs_as_it_did_when_it_was_drawn():
    model = BertModel(BertConfig(vocab_size=50, hidden_size=16, num_attention_heads=2))
    graph = tbscope.trace(model, torch.ones(1, 5, dtype=torch.long), profile=1)
    assert notes_on_times(graph) == []
    ran = [node for node in ops(graph) if node.kernels]
    assert len(ran) > 200
    assert all(node.duration_us > 0 and node.peak_bytes is not None for node in ran)
    passed = [node for node in ops(graph) if not node.kernels]
    assert {node.op for node in passed} == {"Dropout"}
    assert {node.duration_us for node in passed} == {0.0}


def test_torchs_fast_paths_are_taken_in_the_measured_runs_too():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    graph = tbscope.trace(model, torch.rand(1, 3, 8), profile=1)
    (layer,) = ops(graph)
    assert layer.op == "transformer_encoder_layer_fwd"
    assert layer.duration_us > 0


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_kernels_inside_of_a_scripted_module_are_timed_by_themselves():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(nn.Linear(4, 4), scripted, nn.Linear(4, 4))
    graph = tbscope.trace(model, torch.rand(2, 4), profile=2)
    assert [node.op for node in ops(graph)] == ["linear", "t", "addmm", "relu", "linear"]
    assert all(node.duration_us > 0 for node in ops(graph))
    assert [node.peak_bytes for node in ops(graph)] == [32, 32, 64, 96, 64]
    assert notes_on_times(graph) == []


def test_kernels_inside_of_an_operation_have_no_times_of_their_own():
    graph = tbscope.trace(nn.Linear(4, 4), torch.rand(3, 2, 4), kernels=True, profile=2)
    (linear,) = ops(graph)
    assert linear.duration_us > 0
    assert {kernel.duration_us for kernel in linear.body.nodes} == {None}


def test_functions_that_an_operator_is_given_are_timed_with_it():
    def model(x):
        x = torch.cond(x.sum() > 0, lambda x: x.sin().relu(), lambda x: x.cos(), (x,))
        return x.relu()

    graph = tbscope.trace(model, torch.ones(2), profile=1)
    times = {node.op: node.duration_us for node in ops(graph) if node.scope.part.label == "model"}
    assert times.keys() == {"sum", "gt", "cond", "relu"}
    assert all(time_us > 0 for time_us in times.values())
    (note,) = notes_on_times(graph)
    assert note.text == (
        "2 operations have no times: the measured runs did not run them, or not in this order, or "
        "inside of others, whose times are theirs, too"
    )
    assert note.node.op == "sin"
    assert note.node.duration_us is None


def test_what_runs_only_in_some_runs_has_no_time_and_a_note_says_so():
    runs = []

    def model(x):
        runs.append(1)
        x = x.relu()
        x = x.sin().cos() if len(runs) == 1 else x.tan()
        return x + 1

    graph = tbscope.trace(model, torch.ones(2), profile=2)
    times = {node.op: node.duration_us for node in ops(graph)}
    assert times["sin"] is times["cos"] is None
    assert times["relu"] > 0
    assert times["add"] > 0
    (note,) = notes_on_times(graph)
    assert note.text == (
        "2 operations have no times: the measured runs did not run them, or not in this order, or "
        "inside of others, whose times are theirs, too"
    )
    assert note.node.op == "sin"
    assert graph.profile.operations_us == pytest.approx(times["relu"] + times["add"])


def test_scopes_by_hand_are_left_alone_in_the_measured_runs():
    def model(x):
        with tbscope.scope("inner"):
            return x.relu()

    graph = tbscope.trace(model, torch.ones(2), profile=1)
    assert [str(node.scope) for node in ops(graph)] == ["model/inner"]
    assert ops(graph)[0].duration_us > 0


# -- memory -------------------------------------------------------------------------------


def test_what_is_alive_while_a_chain_runs_is_its_result_and_what_it_reads():
    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(4):
                x = x.relu()
            return x

    graph = tbscope.trace(Chain(), torch.rand(256), profile=1)
    # The input does not count, and each result goes when the next one is there.
    assert peaks(graph) == [("relu", KB), ("relu", 2 * KB), ("relu", 2 * KB), ("relu", 2 * KB)]
    assert graph.profile.peak_bytes == 2 * KB


def test_views_and_writes_in_place_take_no_memory():
    def model(x):
        y = x.exp()
        y.add_(1).view(2, -1)[0].mul_(2)
        return y.t()

    graph = tbscope.trace(model, torch.rand(1, 256), profile=1)
    assert {peak for _, peak in peaks(graph)} == {KB}


def test_a_view_keeps_all_of_what_it_is_a_view_of_alive():
    def model(x):
        first = x.exp()[:1]
        return first + x.sin().sum()

    graph = tbscope.trace(model, torch.rand(256), profile=1)
    assert peaks(graph) == [
        ("exp", KB),
        ("getitem", KB),
        ("sin", 2 * KB),
        ("sum", 2 * KB + 4),
        ("add", KB + 4 + 4),
    ]


def test_memory_between_the_kernels_of_an_operation_counts():
    def model(x):
        return torch.nn.functional.cosine_embedding_loss(x, x, torch.ones(4))

    x = torch.rand(4, 64)
    graph = tbscope.trace(model, x, profile=1)
    # A product, the three sums that are there by then, what is added to them, and the ones.
    assert graph.nodes[-1].outputs[0].shape == ()
    assert peaks(graph) == [("ones", 16), ("cosine_embedding_loss", KB + 5 * 16)]
    assert peaks(tbscope.trace(model, x, kernels=True, profile=1)) == peaks(graph)


def test_with_gradients_what_the_backward_pass_will_read_stays_alive():
    def model(x):
        return x.sigmoid().sigmoid().sigmoid()

    x = torch.rand(256, requires_grad=True)
    without = tbscope.trace(model, x, profile=1)
    assert [peak for _, peak in peaks(without)] == [KB, 2 * KB, 2 * KB]
    graph = tbscope.trace(model, x, grad=True, profile=1)
    assert [peak for _, peak in peaks(graph)] == [KB, 2 * KB, 3 * KB]
    assert x.grad is None


def test_data_from_python_and_storages_that_grow_count():
    def model(x):
        out = torch.empty(0)
        torch.add(x, torch.tensor([1.0, 2.0]), out=out)
        return out

    graph = tbscope.trace(model, torch.rand(2), profile=1)
    assert peaks(graph) == [("empty", 0), ("tensor", 8), ("add", 16)]


def test_sparse_tensors_count_by_their_parts():
    graph = tbscope.trace(lambda x: x.to_sparse(), torch.eye(4), profile=1)
    (node,) = [node for node in ops(graph) if node.op == "to_sparse"]
    # Four numbers, and for each its row and column.
    assert node.peak_bytes >= 4 * 4 + 4 * 2 * 8


@pytest.mark.parametrize("grad", [False, True])
def test_the_peak_of_a_run_is_what_torchs_allocator_reports(grad):
    mlp = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16), nn.Softmax(-1))
    x = torch.rand(8, 32)

    def forward():
        with torch.set_grad_enabled(grad):
            mlp(x)

    forward()
    graph = tbscope.trace(mlp, x, grad=grad, profile=1)
    assert graph.profile.peak_bytes == peak_bytes(forward)


# -- what is put back ---------------------------------------------------------------------


def test_after_measuring_all_is_as_it_was():
    model = Blocks()
    model.fc.weight.grad = torch.ones(4, 4)
    x = torch.rand(3, 4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    versions = [tensor._version for tensor in model.state_dict(keep_vars=True).values()]
    states = random.getstate(), torch.get_rng_state()
    tbscope.trace(model, x, training=None, profile=2)
    assert all(torch.equal(before[name], held) for name, held in model.state_dict().items())
    assert versions == [tensor._version for tensor in model.state_dict(keep_vars=True).values()]
    assert model.seen == []
    assert model.training
    assert torch.equal(model.fc.weight.grad, torch.ones(4, 4))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_modules_that_nobody_registers_are_put_back_too():
    hidden = [nn.BatchNorm1d(4)]

    class Model(nn.Module):
        def forward(self, x):
            return hidden[0](x)

    tbscope.trace(Model(), torch.rand(3, 4), training=True, profile=1)
    assert int(hidden[0].num_batches_tracked) == 0
    assert not hidden[0].running_mean.any()


def test_every_run_begins_alike():
    begun = []

    class Model(Blocks):
        def forward(self, x):
            begun.append((int(self.steps), len(self.seen), float(x[0, 0]), float(torch.rand(()))))
            x.add_(1)
            return super().forward(x)

    tbscope.trace(Model(), torch.zeros(3, 4), training=True, profile=1)
    assert len(begun) == 8
    assert len(set(begun)) == 1


def test_a_lazy_model_is_measured_and_is_lazy_again_after():
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    graph = tbscope.trace(model, torch.rand(2, 4), profile=1)
    assert all(node.duration_us > 0 for node in ops(graph))
    assert type(model[0]) is nn.LazyLinear
    assert model[0].has_uninitialized_params()


def test_watchers_around_are_left_alone():
    class Counting(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    recorded = []
    for profile in (False, 1):
        model, x = nn.ReLU(), torch.ones(2)
        with Counting(), tbscope.record() as recording:
            x = model(x)
            graph = tbscope.trace(model, x, profile=profile)
            x = x + 1
        recorded.append([node.op for node in ops(recording.graph)])
    assert recorded[0] == recorded[1]
    assert ops(graph)[0].duration_us > 0


def test_a_compiled_model_is_measured_as_it_was_written():
    graph = tbscope.trace(torch.compile(nn.ReLU()), torch.ones(2), profile=1)
    assert [(node.op, node.duration_us > 0) for node in ops(graph)] == [("relu", True)]


# -- what cannot be measured --------------------------------------------------------------


@pytest.mark.parametrize("profile", [0, -1, 2.0, "5", None, 10_001])
def test_what_is_no_number_of_runs_is_refused(profile):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.trace(nn.ReLU(), torch.ones(2), profile=profile)
    assert str(caught.value) == (
        f"profile={profile!r} is no number of runs\n"
        "  why: profile is True, False, or how many runs are measured: 1 to 10,000\n"
        "  fix: profile=True to measure 5 runs"
    )


@pytest.mark.parametrize(
    ("model", "x", "options"),
    [
        (nn.ReLU(), torch.ones(2), {"fake": True}),
        (nn.Linear(2, 2, device="meta"), torch.ones(2), {}),
        (nn.ReLU(), torch.ones(2, device="meta"), {}),
        (nn.Identity(), {"input": torch.ones(2, device="meta")}, {}),
    ],
)
def test_tensors_without_content_are_not_measured(model, x, options):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.trace(model, x, profile=True, **options)
    assert str(caught.value) == (
        "profile= has nothing to measure\n"
        "  why: only shapes are computed with fake=True, and with tensors on the device meta\n"
        "  fix: leave profile out, or leave fake out and give the model and its inputs memory: "
        "model.to_empty(device='cpu')"
    )


def test_an_input_that_can_be_read_once_only_has_no_times():
    def model(xs):
        return sum((x.relu() for x in xs), torch.zeros(2))

    graph = tbscope.trace(model, (iter([torch.ones(2), torch.ones(2)]),), profile=1)
    assert [node.op for node in ops(graph)] == ["zeros", "relu", "add", "relu", "add"]
    (note,) = notes_on_times(graph)
    assert note.text.startswith("4 operations have no times: ")


def test_of_a_model_that_raises_nothing_is_measured():
    graph = tbscope.trace(lambda x: x.relu() @ x, torch.ones(2, 3), partial=True, profile=True)
    assert graph.profile is None
    assert graph.notes[-1].text == "nothing was measured: the model raised"
    assert ops(graph)[0].duration_us is None


class Fragile(nn.Module):
    """A model with a state that nobody can put back."""

    runs = 0

    def __init__(self, last):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.last = last
        Fragile.runs = 0

    def forward(self, x):
        Fragile.runs += 1
        self.register_buffer("late", x)
        if Fragile.runs > self.last:
            raise RuntimeError("the connection\nis gone")
        return x + self.weight


def test_a_model_that_raises_only_later_says_so_and_is_as_before():
    model = Fragile(last=3)
    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.trace(model, torch.ones(2), profile=True)
    assert str(caught.value) == (
        "the model raised when it was measured, after it had run once to be drawn\n"
        "  why: RuntimeError: the connection is gone\n"
        "  fix: leave profile out, or give a model that runs any number of times"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not hasattr(model, "late")
    assert not model.weight.detach().any()


@pytest.mark.alone
def test_a_write_that_nobody_could_have_known_of_is_told():
    class Model(Fragile):
        def forward(self, x):
            Fragile.runs += 1
            if Fragile.runs == 3:
                self.weight.data = self.weight.data
                with torch.no_grad():
                    self.weight.add_(1)
            return x + self.weight

    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.trace(Model(9), torch.ones(2), profile=True)
    assert str(caught.value) == (
        "the model could not be put back as it was before the run\n"
        "  why: when it was measured, it wrote into a Parameter of shape (2) that it had only "
        "read when it was drawn\n"
        "  fix: make the model again, or load its state_dict, before you use it"
    )


def test_a_buffer_is_put_back_also_where_only_some_runs_write_into_it():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            Fragile.runs += 1
            if Fragile.runs % 2 == 0:
                self.seen.add_(1)
            return x + self.seen

    Fragile.runs = 0
    model = Model()
    tbscope.trace(model, torch.ones(2), profile=2)
    assert model.seen.tolist() == [0, 0]


# -- the parts ----------------------------------------------------------------------------


def calls_of(*calls):
    log = CallLog()
    for call in calls:
        log.add(call, Node(call, call))
    return log.functions_and_kernels()


def matched(expected, made):
    return [(at, node.op) for at, node in calls_of(*expected.split()).match(made.split())]


def test_calls_are_matched_up_to_the_first_and_from_the_last_difference():
    assert matched("a b c", "a b c") == [(0, "a"), (1, "b"), (2, "c")]
    assert matched("a b c", "a c") == [(0, "a"), (1, "c")]
    assert matched("a c", "x a b c") == [(3, "c")]
    assert matched("a b c d e", "a x c y e") == [(0, "a"), (4, "e")]
    assert matched("a a", "a a a") == [(0, "a"), (1, "a")]
    assert matched("a b", "") == []
    assert matched("", "a b") == []
    assert matched("a b", "b a") == []


@pytest.mark.parametrize("grad", [False, True])
def test_a_model_that_does_the_same_each_time_is_seen_to_make_the_same_calls(grad, monkeypatch):
    def different(one, other):
        raise AssertionError(f"{one[:9]} is not {other[:9]}")

    monkeypatch.setattr(call_log, "_count_equal", different)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.ReLU())
    graph = tbscope.trace(model, torch.rand(2, 3), training=True, grad=grad, profile=1)
    assert all(node.duration_us is not None for node in graph.nodes if node.kind == "op")


def test_calls_inside_of_a_given_function_are_seen_only_while_kernels_are_not():
    log = CallLog()
    log.add(torch.sum, Node("1", "sum"))
    log.in_body = True
    log.add(torch.relu, Node("2", "relu"))
    log.in_body = False
    log.add("higher_order::cond", Node("3", "cond"))
    assert log.functions().calls == [torch.sum, torch.relu]
    assert [node and node.op for node in log.functions().nodes] == ["sum", None]
    assert log.functions_and_kernels().calls == [torch.sum, "higher_order::cond"]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_only_calls_that_no_other_is_around_are_read():
    @torch.jit.script
    def scripted(x):
        return torch.ops.tbscope_tests.nap(x, 0.0)

    def model(x):
        return scripted(x.relu()) if x.shape[0] == 2 else x

    watch = CallWatch((), ProcessorClock(torch.device("cpu")))
    with KernelWatch(watch), watch:
        model(torch.ones(2))
    assert [
        (operation_name(reading.call) if callable(reading.call) else reading.call)
        for reading in watch.readings
    ] == ["ones", "relu", "tbscope_tests::nap"]


def node_on(*devices, reads="cpu"):
    node = Node("1", "op")
    node.outputs = [Value(node, 0, (1,), "float32", device) for device in devices]
    node.inputs = [Value(node, 0, (1,), "float32", reads)]
    return node


def test_the_device_of_a_node_decides_its_clock():
    clocks = {}
    assert type(clock_of(node_on("cpu"), clocks)) is ProcessorClock
    assert type(clock_of(node_on("cuda:1"), clocks)) is EventClock
    assert type(clock_of(node_on("cpu", reads="cuda:1"), clocks)) is EventClock
    assert type(clock_of(node_on("xpu:0"), clocks)) is ProcessorClock
    assert clocks["xpu:0"].name == "perf_counter after synchronize"
    assert clocks.keys() == {"cpu", "cuda:1", "xpu:0"}


def test_a_device_waits_before_a_call_when_it_has_nearly_caught_up(monkeypatch):
    log, done = [], []

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing
            self.number = len([entry for entry in log if entry != "wait"])

        def record(self, _):
            log.append(self.number)

        def query(self):
            return self.number in done

    monkeypatch.setattr(clocks, "wait_on_cuda", lambda _: log.append("wait"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    clock = EventClock(torch.device("cuda:0"))
    clock.start(), clock.read(), clock.start(), clock.read()
    assert log == ["wait", 0, "wait", 1, 2, 3, 4]
    done.append(0)
    clock.start(), clock.read()
    assert log[7:] == ["wait", 5, "wait", 6, 7]


def test_a_clock_that_waits_for_its_device_tells_the_time(monkeypatch):
    clock, waited = ProcessorClock(torch.device("xpu")), []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    begun = clock.read()
    time.sleep(0.001)
    assert clock.passed_us(begun, clock.read()) >= 1_000
    assert waited == [torch.device("xpu")] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_times_are_events_and_memory_is_what_its_allocator_reports():
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
    x = torch.rand(512, 512, device="cuda")
    graph = tbscope.trace(model, x, profile=True)
    assert graph.profile.clock == "events"
    assert all(node.duration_us > 0 for node in ops(graph))
    assert graph.profile.operations_us <= graph.profile.watched_us * 1.1
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(x)
    assert graph.profile.peak_bytes == torch.cuda.max_memory_allocated() - before
