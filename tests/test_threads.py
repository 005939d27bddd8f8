"""Draws beside other threads: they wait for each other, and leave alone what others work on.

What may end a process runs in a process of its own.
"""

import queue
import threading

import pytest
import torch
from sweeps import sampled
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from ways_to_draw import WAYS, small

import tbscope
from tests.warm import run_warm

X = torch.ones(3, 4)


TASKS = queue.SimpleQueue()


def serve():
    while True:
        action, gave = TASKS.get()
        try:
            action()
            gave.put(None)
        except BaseException as error:  # noqa: BLE001 (raised by `both`)
            gave.put(error)


for _ in range(3):
    threading.Thread(target=serve, daemon=True).start()


def both(*actions):
    """Run each action in another thread, not one that a draw starts; raise what one raised."""
    gave = queue.SimpleQueue()
    for action in actions:
        TASKS.put((action, gave))
    errors = [error for error in [gave.get() for _ in actions] if error is not None]
    if errors:
        raise errors[0]


@pytest.fixture
def beside():
    """Have another thread in the process, which does nothing."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


class Meeting(nn.Module):
    """Does something in forward."""

    def __init__(self, inside):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.inside = inside

    def forward(self, x):
        y = self.lin(x)
        self.inside(self)
        return y


class TestDrawsWait:
    def test_two_draws_of_one_model_do_not_run_at_once(self):
        inside, most, second = [], [], threading.Event()

        def count(model):
            inside.append(1)
            most.append(len(inside))
            # Long enough for the other draw to come by, if it does not wait.
            second.wait(0.2)
            inside.pop()

        model = Meeting(count)
        both(*[lambda: tbscope.trace(model, X)] * 2)
        assert most == [1, 1]

    @pytest.mark.parametrize("options", [{}, {"training": True}, {"fake": True}], ids=str)
    def test_a_model_drawn_by_many_threads_has_its_flags_again(self, options):
        model = small().train(not options.get("training"))
        before = [module.training for module in model.modules()]

        def draw():
            for _ in range(5):
                tbscope.trace(model, X, **options)

        both(*[draw] * 4)
        assert [module.training for module in model.modules()] == before

    def test_models_that_share_a_module_wait_for_each_other_in_either_order(self):
        one, other = small(), small()
        first = lambda x: other(one(x))
        second = lambda x: one(other(x))

        def draw(model):
            for _ in range(5):
                tbscope.trace(model, X)

        both(lambda: draw(first), lambda: draw(second))
        assert all(module.training for module in (*one.modules(), *other.modules()))

    def test_random_numbers_are_as_before_though_two_threads_draw(self):
        models = [small(), small()]
        torch.manual_seed(7)
        before = torch.get_rng_state()

        def draw(model):
            for _ in range(10):
                tbscope.trace(model, X, training=True)

        both(*[lambda model=model: draw(model) for model in models])
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_model_that_draws_a_part_of_itself_waits_for_nobody(self):
        texts = []
        model = Meeting(lambda model: texts.append(str(tbscope.trace(model.lin, X))))
        tbscope.trace(model, X)
        assert texts == [str(tbscope.trace(model.lin, X))]

    def test_the_lock_is_free_after_a_draw_that_raised(self):
        def fail(model):
            raise ValueError("no")

        with pytest.raises(tbscope.TraceError):
            tbscope.trace(Meeting(fail), X)
        both(lambda: tbscope.trace(small(), X))


class DoNothing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **kwargs or {})


def end_a_recording_in_a_draw(then):
    """Draw while another thread records, which ends in the midst; then do something there."""
    begun, end = threading.Event(), threading.Event()

    def record():
        with tbscope.record():
            begun.set()
            end.wait()

    def end_it(model):
        end.set()
        thread.join()
        then()

    thread = threading.Thread(target=record)
    thread.start()
    begun.wait()
    tbscope.trace(Meeting(end_it), X)


class TestFlags:
    def test_without_a_mode_no_flag_is_changed_while_the_model_runs(self):
        model, seen = Meeting(lambda model: None), []
        model.inside = lambda model: both(
            lambda: seen.append([m.training for m in model.modules()])
        )
        for training in (True, False):
            model.train(training)
            tbscope.trace(model, X, training=None)
        assert seen == [[True, True], [False, False]]

    @pytest.mark.parametrize("options", [{}, {"training": None}, {"profile": 1}], ids=str)
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    def test_the_mode_that_another_thread_sets_meanwhile_is_the_one_that_holds(
        self, options, training
    ):
        model = Meeting(lambda model: both(lambda: model.train(training)))
        model.train(not training)
        tbscope.trace(model, X, **options)
        assert [module.training for module in model.modules()] == [training] * 2

    def test_another_thread_switches_a_model_of_its_own(self):
        other = nn.Dropout()
        tbscope.trace(Meeting(lambda model: both(other.eval)), X)
        assert not other.training

    def test_what_the_model_sets_by_itself_does_not_hold(self):
        model = Meeting(lambda model: model.train(False))
        tbscope.trace(model, X, training=None)
        assert all(module.training for module in model.modules())

    def test_a_scripted_model_has_the_mode_that_another_thread_sets_meanwhile(self):
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))

        def run(x):
            y = scripted(x)
            both(lambda: scripted.train(False))
            return y

        tbscope.trace(run, X)
        assert [module.training for module in scripted.modules()] == [False] * 3

    def test_the_compiler_compiles_again_though_a_recording_ended_inside_of_a_draw(self):
        import torch._dynamo

        compiled = []

        def backend(module, inputs):
            compiled.append(1)
            return module.forward

        function = torch.compile(lambda x: x * 2 + 1, backend=backend)

        def run():
            function(X)
            assert compiled == []

        end_a_recording_in_a_draw(run)
        function(X)
        assert compiled == [1]

    def test_no_mode_is_taken_for_there_though_a_recording_ended_inside_of_a_draw(self):
        with DoNothing():
            end_a_recording_in_a_draw(lambda: None)
            assert is_in_torch_dispatch_mode()
        assert not is_in_torch_dispatch_mode()
        end_a_recording_in_a_draw(lambda: None)
        assert not is_in_torch_dispatch_mode()

    def test_train_is_the_method_that_it_was(self):
        before = nn.Module.train
        tbscope.trace(small(), X)
        assert nn.Module.train is before


def accumulate(model):
    with torch.enable_grad():
        model.lin(X).sum().backward()


class TestGradients:
    @pytest.mark.parametrize(
        "change",
        [
            accumulate,
            lambda model: setattr(model.lin.weight, "grad", None),
            lambda model: model.lin.weight.grad.zero_(),
            lambda model: model.zero_grad(),
            lambda model: delattr(model.lin.weight, "grad"),
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
            lambda model: setattr(model.lin.weight, "data", torch.zeros(2)),
            lambda model: model.requires_grad_(False),
            lambda model: setattr(model.lin.weight, "requires_grad", False),
            lambda model: model.double(),
        ],
        ids=[
            "backward",
            "none",
            "zero",
            "zero_grad",
            "del",
            "clip",
            "data",
            "ask",
            "asks",
            "double",
        ],
    )
    @pytest.mark.parametrize(
        "options", [{}, {"grad": True}, {"profile": 1}, {"fake": True}], ids=str
    )
    def test_beside_another_thread_all_that_forward_sets_is_put_back(self, change, options, beside):
        model = Meeting(change)
        weight, gradient = model.lin.weight, torch.ones(4, 4)
        weight.grad, content = gradient, weight.detach().clone()
        tbscope.trace(model, X, **options)
        assert weight is model.lin.weight
        assert weight.grad is gradient
        assert weight.requires_grad
        assert torch.equal(gradient, torch.ones(4, 4))
        assert torch.equal(weight, content)
        assert model.lin.bias.grad is None

    @pytest.mark.parametrize("step", [1, -1])
    @pytest.mark.parametrize("options", [{}, {"grad": True}], ids=str)
    def test_a_tensor_that_forward_swaps_is_as_before(self, options, step, beside):
        class Swapping(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(4, 4))

            def forward(self, x):
                swapped = self.weight, nn.Parameter(torch.zeros(4, 2))
                torch.utils.swap_tensors(*swapped[::step])
                return x @ self.weight

        model = Swapping()
        if "fake" not in options:
            tbscope.trace(model, X, **options)
        assert torch.equal(model.weight, torch.ones(4, 4))

    @pytest.mark.parametrize("options", [{}, {"training": True}, {"fake": True}], ids=str)
    @pytest.mark.parametrize("before", [None, torch.ones(4, 4)], ids=["none", "some"])
    def test_gradients_that_another_thread_sets_meanwhile_stay(self, options, before, beside):
        gradient = torch.full((4, 4), 2.0)
        model = Meeting(lambda model: both(lambda: setattr(model.lin.weight, "grad", gradient)))
        model.lin.weight.grad = before
        tbscope.trace(model, X, **options)
        assert model.lin.weight.grad is gradient

    def test_what_another_thread_puts_in_the_place_of_weights_stays(self, beside):
        def move(model):
            model.lin.weight.data = torch.zeros(4, 4)
            model.lin.bias.requires_grad_(False)

        model = Meeting(lambda model: both(lambda: move(model)))
        tbscope.trace(model, X)
        assert not model.lin.weight.any()
        assert not model.lin.bias.requires_grad

    @pytest.mark.parametrize(
        "options", [{}, {"fake": True}, {"profile": 1}, {"grad": True}], ids=str
    )
    def test_beside_another_thread_no_gradient_is_so_much_as_looked_at(self, options, beside):
        looked = []

        def differentiate(model):
            if torch.is_grad_enabled():
                torch.autograd.grad(model.lin.bias.sum(), model.lin.bias)

        class Guarded(nn.Parameter):
            @property
            def grad(self):
                looked.append(1)
                return super().grad

        model = Meeting(differentiate)
        model.lin.weight = Guarded(torch.ones(4, 4))
        tbscope.trace(model, X, **options)
        assert looked == []
        # Near miss: what the model itself looks at, which is then put back.
        model.inside = lambda model: model.lin.weight.grad
        tbscope.trace(model, X)
        assert looked

    def test_what_a_thread_sets_stays_also_if_it_was_started_only_meanwhile(self):
        gradient, done, end = torch.ones(4, 4), threading.Event(), threading.Event()

        def go_on(model):
            model.lin.weight.grad = gradient
            done.set()
            end.wait()

        def start(model):
            threads.append(threading.Thread(target=go_on, args=(model,)))
            # Not the model starts it: what that does would be the model's own.
            both(threads[0].start)
            done.wait()

        model, threads = Meeting(start), []
        tbscope.trace(model, X)
        end.set()
        threads[0].join()
        assert model.lin.weight.grad is gradient

    def test_what_a_thread_of_the_models_own_sets_is_put_back(self):
        def start(model):
            thread = threading.Thread(target=accumulate, args=(model,))
            thread.start()
            thread.join()

        model = Meeting(start)
        tbscope.trace(model, X)
        assert model.lin.weight.grad is None


class TestStandIns:
    @pytest.mark.parametrize("options", [{}, {"grad": True}, {"training": True}], ids=str)
    def test_another_thread_meets_no_stand_ins(self, options, beside):
        seen = []

        def look(model):
            held = [*model.parameters(), *model.buffers()]
            seen.extend(type(tensor) for tensor in held)
            seen.append(type(model.lin(X)))
            model.lin(X).sum().backward()

        model = Meeting(lambda model: both(lambda: look(model)))
        model.register_buffer("steps", torch.zeros(1))
        tbscope.trace(model, X, fake=True, **options)
        assert seen == [nn.Parameter, nn.Parameter, torch.Tensor, torch.Tensor]
        assert torch.equal(model.lin.bias.grad, torch.full((4,), 3.0))

    def test_the_thread_that_draws_computes_nothing(self):
        seen = []
        model = Meeting(lambda model: seen.append(type(model.lin.weight * 2).__name__))
        tbscope.trace(model, X, fake=True)
        assert seen == ["FakeTensor"]
        assert model.lin.weight.grad is None


TRAINING = """
import sys, threading, torch, tbscope
from torch import nn

torch.manual_seed(0)
norm = nn.BatchNorm1d(32) if {norm} else nn.Identity()
net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(8)], norm)
x = torch.randn(8, 32)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
stop, errors, steps = threading.Event(), [], []

def train():
    try:
        while not stop.is_set():
            optimizer.zero_grad()
            net(x).square().sum().backward({backward})
            optimizer.step()
            steps.append(1)
    except BaseException as error:
        errors.append(repr(error))
        stop.set()

thread = threading.Thread(target=train)
thread.start()
texts = set()
try:
    while len(steps) < 600 and not stop.is_set() or len(texts) < 1:
        texts.add(str(tbscope.trace(net, x, **{options})))
finally:
    stop.set()
    thread.join()
assert not errors, errors
assert len(texts) == 1
assert all(type(p) is nn.Parameter and p.grad is not None for p in net.parameters())
print("alive")
"""


@pytest.mark.parametrize("options", sampled(WAYS, [{}, {"grad": True}, {"profile": 1}]), ids=str)
def test_a_process_lives_in_which_one_thread_trains_what_another_one_draws(options):
    code = TRAINING.format(options=options, norm=True, backward="")
    done = run_warm("-c", code)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-2000:]


ENDING = """
import threading, torch, tbscope
from torch import nn

class Waiting(nn.Module):
    def forward(self, x):
        begin.set()
        thread.join()
        return x * 2

net, begin = nn.Sequential(nn.Linear(4, 4), Waiting()), threading.Event()
gradient = torch.ones(4, 4)

def set_both():
    begin.wait()
    net[0].weight.grad = gradient
    net[0].bias.requires_grad = False

thread = threading.Thread(target=set_both)
thread.start()
tbscope.trace(net, torch.ones(1, 4))
assert net[0].weight.grad is gradient
assert not net[0].bias.requires_grad
"""


def test_what_a_thread_has_set_stays_that_ends_amid_a_draw():
    done = run_warm("-c", ENDING)
    assert done.returncode == 0, done.stderr[-2000:]


def bump(model):
    with torch.no_grad():
        model.lin.weight.add_(1)


def test_a_measured_model_that_another_thread_trains_has_a_note_of_it(beside):
    model = Meeting(lambda model: both(lambda: bump(model)))
    graph = tbscope.trace(model, X, profile=1)
    assert [note.text for note in graph.notes if "another thread" in note.text] == [
        "the model was written into while it was measured, it seems by another thread: the times "
        "are of a processor that both shared, and what a single run of the model itself may have "
        "written is not put back"
    ]


def test_a_model_that_writes_only_where_nobody_watches_has_the_note_beside_other_threads(beside):
    runs = []

    def write(model):
        runs.append(1)
        if len(runs) == 2:
            bump(model)

    graph = tbscope.trace(Meeting(write), X, profile=1)
    assert any("another thread" in note.text for note in graph.notes)
