"""`watch` in trainings of every make: closures, threads, compiled models, errors, copies."""

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from odd_steps import ODD
from torch import nn
from training_steps import POINTS, STEPS, Net, backward_nodes, closure_of, loss_of, made

import tbscope
from tbscope.sources.eager.thread_state import waiting, watching


def plain(model, optimizer):
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def in_closure(model, optimizer):
    optimizer.step(closure_of(model, optimizer))


def with_backward_elsewhere(model, optimizer):
    optimizer.zero_grad()
    thread = threading.Thread(target=loss_of(model).backward)
    thread.start()
    thread.join()
    optimizer.step()


def with_all_elsewhere(model, optimizer):
    thread = threading.Thread(target=plain, args=(model, optimizer))
    thread.start()
    thread.join()


def adam(model):
    return torch.optim.Adam(model.parameters())


class Sharpness(torch.optim.Optimizer):
    """Goes uphill and takes the gradient there, for another optimizer."""

    def __init__(self, model):
        self.base = torch.optim.SGD(model.parameters(), 0.1)
        super().__init__(self.base.param_groups, {})

    @torch.no_grad()
    def step(self, closure):
        moved = [(each, each.grad * 0.05) for each in self.param_groups[0]["params"]]
        for parameter, way in moved:
            parameter.add_(way)
        torch.enable_grad()(closure)()
        for parameter, way in moved:
            parameter.sub_(way)
        self.base.step()


def twice(model, optimizer):
    loss_of(model).backward()
    in_closure(model, optimizer)


class InBackward:
    """Optimizers that make their steps while the backward pass runs."""

    def __init__(self, model):
        self.each = {one: torch.optim.SGD([one], 0.1) for one in model.parameters()}
        for parameter in self.each:
            parameter.register_post_accumulate_grad_hook(self.update)

    def update(self, parameter):
        self.each[parameter].step()
        parameter.grad = None


def by_a_function(model, optimizer):
    """Train as jax does: the gradients are those of a function of the parameters."""

    def loss(held):
        # What autograd saves of this is not what the model gave, which is gone.
        return torch.func.functional_call(model, held, (POINTS,)).tanh().mean()

    held = {name: each.detach() for name, each in model.named_parameters()}
    gradients = torch.func.grad(loss)(held)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    optimizer.step()


TRAININGS = {
    "by a function": (adam, by_a_function),
    "closure": (adam, in_closure),
    "LBFGS": (lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3), in_closure),
    "sharpness": (Sharpness, twice),
    "in backward": (InBackward, lambda model, _: loss_of(model).backward()),
    "backward in a thread": (adam, with_backward_elsewhere),
    "all in a thread": (adam, with_all_elsewhere),
}


def trained(name, *, steps=3, watch=None):
    torch.manual_seed(0)
    model = Net()
    make, step = TRAININGS[name]
    optimizer = make(model)
    handle = watch(model) if watch else None
    for _ in range(steps):
        step(model, optimizer)
    return model, handle


def tops(graph):
    return list(dict.fromkeys(str(node.scope).split("/")[0] for node in graph.nodes))


def nothing_is_left(model):
    from torch.optim import optimizer

    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    held = [*hooks, model._forward_hooks, model._forward_pre_hooks]
    called = type(vars(model).get("_compiled_call_impl")).__module__
    left = waiting or watching.recorders or called.startswith("tbscope")
    return modes == (0, 0) and not any(held) and not left


@pytest.fixture
def writer(tmp_path):
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        yield writer


@pytest.fixture(params=TRAININGS)
def name(request):
    return request.param


def test_a_step_of_any_make_is_drawn_and_trains_as_without(writer, name):
    plainly, _ = trained(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, watched = trained(name, watch=writer.watch)
    for one, other in zip(model.parameters(), plainly.parameters(), strict=True):
        assert torch.equal(one, other)
    watched.graph.verify()
    told = {node.attributes.get("gradient_of") for node in watched.graph.nodes}
    assert told >= {name for name, _ in model.named_parameters()}
    assert nothing_is_left(model)


def test_the_graph_is_there_as_soon_as_the_step_is_over(writer, name):
    _, watched = trained(name, steps=1, watch=writer.watch)
    assert watched.is_over
    assert any("updates" in node.attributes for node in watched.graph.nodes)


@pytest.mark.parametrize("name", sorted(set(TRAININGS) - {"in backward"}))
def test_the_graph_of_a_step_ends_with_the_outermost_optimizer(writer, name):
    _, watched = trained(name, watch=writer.watch)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]
    updated = [node for node in watched.graph.nodes if "updates" in node.attributes]
    assert updated[-1].phase == "optimizer"
    roots = {str(node.scope).split("/")[1] for node in updated}
    assert roots == {"closure": {"Adam"}, "LBFGS": {"LBFGS"}, "sharpness": {"Sharpness"}}.get(
        name, {"Adam"}
    )


def test_a_pass_through_another_model_is_no_part_of_the_step(writer):
    model, other = Net(), nn.Linear(3, 2)
    optimizer = adam(model)
    watched = writer.watch(model)
    loss = loss_of(model)
    other(POINTS).sum().backward()
    loss.backward()
    optimizer.step()
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]
    scopes = {str(node.scope) for node in backward_nodes(watched.graph)}
    assert "gradients/Net/Linear[head]" in scopes
    assert not any(scope.startswith("gradients/Linear") for scope in scopes)


def test_the_same_model_that_is_drawn_amid_a_step_is_no_part_of_it(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    loss = loss_of(model)
    drawn = tbscope.trace(model, POINTS, training=True, loss=torch.sum, backward=True)
    loss.backward()
    optimizer.step()
    assert backward_nodes(drawn)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]


def test_a_backward_pass_that_raises_is_the_trainings_own_and_the_next_step_is_drawn(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    out = model(POINTS)
    out.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()
    assert torch._C._len_torch_function_stack() == 0
    plain(model, optimizer)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]


def test_an_optimizer_that_raises_is_the_trainings_own_and_the_next_step_is_drawn(writer):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    model = Net()
    failing, optimizer, watched = Failing(model.parameters(), 0.1), adam(model), writer.watch(model)
    with pytest.raises(ZeroDivisionError):
        plain(model, failing)
    assert watching.recorders == ()
    for _ in range(2):
        plain(model, optimizer)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]
    watched.remove()
    assert nothing_is_left(model)


@pytest.mark.parametrize("name", [*STEPS, *ODD])
def test_the_drawing_of_an_odd_step_that_is_watched_breaks_no_rule(writer, name):
    model, step = made(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    watched = writer.watch(model, optimizer=optimizer)
    step(model)
    optimizer.step()
    watched.graph.verify()
    assert "optimizer" in tops(watched.graph)
    assert tbscope.lint(tbscope.to_graph_def(watched.graph)) == []


def is_gone(held):
    gc.collect()
    return held() is None


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_who_keeps_the_handle_keeps_no_model_alive(writer, steps):
    model = Net()
    optimizer, held, first = adam(model), weakref.ref(model), weakref.ref(model.inp.weight)
    watched = writer.watch(model, optimizer=optimizer)
    for _ in range(steps):
        plain(model, optimizer)
    assert not is_gone(held)
    del model, optimizer
    assert is_gone(held)
    assert is_gone(first)
    assert (watched.graph is None) is (steps == 0)


@pytest.mark.parametrize("begun", [loss_of, lambda model: loss_of(model).backward()])
def test_a_step_that_is_never_over_keeps_no_model_alive(writer, begun):
    model = Net()
    held, watched = weakref.ref(model), writer.watch(model)
    begun(model)
    del model
    assert is_gone(held)
    plain(other := Net(), adam(other))
    assert watched.is_over
    assert nothing_is_left(other)


@pytest.mark.parametrize("backward", [True, False])
def test_nothing_waits_for_a_model_that_is_gone(writer, backward):
    torch.compiler.reset()
    ran, other = [], Net()
    watched = writer.watch(Net(), backward=backward)
    gc.collect()
    assert watched.is_over
    loss_of(torch.compile(other, **compiled(other, ran)))
    assert ran
    assert nothing_is_left(other)


def test_who_keeps_a_recording_keeps_no_model_alive():
    model = Net()
    optimizer, held = adam(model), weakref.ref(model)
    with tbscope.record(model) as recording:
        plain(model, optimizer)
    del model, optimizer
    assert is_gone(held)
    assert backward_nodes(recording.graph)


class Interrupted(Net):
    error = None

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return super().forward(x)


class InterruptedStep(torch.optim.SGD):
    error = None

    def step(self, closure=None):
        super().step(closure)
        if self.error is not None:
            raise self.error


def in_call(model, optimizer, error):
    model.error = error
    plain(model, optimizer)


def in_compiled_call(model, optimizer, error):
    model.compile(backend="eager")
    in_call(model, optimizer, error)


def in_backward(model, optimizer, error):
    def stop(gradient):
        raise error

    out = model(POINTS)
    out.register_hook(stop)
    out.sum().backward()


def in_optimizer(model, optimizer, error):
    optimizer.error = error
    plain(model, optimizer)


ENDS = [KeyboardInterrupt(), SystemExit(), GeneratorExit(), asyncio.CancelledError(), OSError()]


@pytest.mark.parametrize("error", ENDS, ids=repr)
@pytest.mark.parametrize("where", [in_call, in_compiled_call, in_backward, in_optimizer])
def test_after_an_error_of_any_kind_nobody_watches_and_the_next_step_is_drawn(writer, where, error):
    model = Interrupted()
    optimizer, watched = InterruptedStep(model.parameters(), 0.1), writer.watch(model)
    with pytest.raises(type(error)):
        where(model, optimizer, error)
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == (0, 0)
    assert not watching.recorders
    model.error = optimizer.error = None
    for _ in range(2):
        plain(model, optimizer)
    assert tops(watched.graph) == ["None", "Interrupted", "gradients", "optimizer"]
    assert nothing_is_left(model)


class Removing(Net):
    act = staticmethod(lambda: None)

    def forward(self, x):
        x = self.inp(x)
        self.act()
        return self.head(x)


def amid_a_call(model, optimizer, remove):
    model.act = remove
    plain(model, optimizer)


def amid_a_call_by_another_thread(model, optimizer, remove):
    def act():
        thread = threading.Thread(target=remove)
        thread.start()
        thread.join()

    amid_a_call(model, optimizer, act)


def amid_a_pass(model, optimizer, remove):
    out = model(POINTS)
    out.register_hook(lambda gradient: remove())
    out.sum().backward()
    optimizer.step()


def amid_a_checkpoint(model, optimizer, remove):
    def block(x):
        if torch._C._current_autograd_node() is not None:
            remove()
        return x.exp()

    out = torch.utils.checkpoint.checkpoint(block, model(POINTS), use_reentrant=False)
    out.sum().backward()
    optimizer.step()


def amid_a_step(model, optimizer, remove):
    optimizer.act = remove
    plain(model, optimizer)


class RemovingStep(torch.optim.SGD):
    act = staticmethod(lambda: None)

    def step(self, closure=None):
        self.act()
        super().step(closure)


PLACES = [amid_a_call, amid_a_call_by_another_thread, amid_a_pass, amid_a_checkpoint, amid_a_step]


@pytest.mark.parametrize("place", PLACES)
def test_who_removes_a_watch_amid_a_step_has_nothing_left_after_it(writer, place):
    model = Removing()
    optimizer = RemovingStep(model.parameters(), 0.1)
    watched, removed = writer.watch(model), []

    def remove():
        watched.remove()
        removed.append(watched.is_over)

    place(model, optimizer, remove)
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == (0, 0)
    assert removed == [True]
    assert not watching.recorders
    plain(other := Net(), adam(other))
    model(POINTS)
    assert watched.graph is None
    assert nothing_is_left(model)


def test_an_interrupt_that_the_model_catches_itself_ends_nothing(writer):
    class Catching(Net):
        def forward(self, x, again=True):
            if not again:
                raise KeyboardInterrupt
            with contextlib.suppress(KeyboardInterrupt):
                self(x, again=False)
            return super().forward(x)

    model = Catching()
    watched = writer.watch(model)
    plain(model, adam(model))
    assert tops(watched.graph) == ["None", "Catching", "gradients", "optimizer"]


class Unbalanced(Net):
    def forward(self, x):
        tbscope.pop_scope("never opened")
        return super().forward(x)


def test_an_error_of_ours_amid_a_call_is_one_warning_and_the_training_goes_on(writer):
    model = Unbalanced()
    optimizer, watched = adam(model), writer.watch(model)
    before = model.head.weight.clone()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            plain(model, optimizer)
    (warning,) = told
    assert "drew no step of Unbalanced: ScopeError: pop_scope('never opened')" in str(
        warning.message
    )
    assert watched.graph is None
    assert not torch.equal(before, model.head.weight)
    assert nothing_is_left(model)


def test_without_a_watch_the_same_scope_is_an_error_of_a_recording():
    with pytest.raises(tbscope.ScopeError, match="never opened"), tbscope.record():
        Unbalanced()(POINTS)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_that_is_watched_is_not(writer, copied):
    model = Net()
    watched = writer.watch(model)
    other = copied(model)
    assert torch.equal(other(POINTS), model.eval()(POINTS))
    plain(other.train(), adam(other))
    assert watched.graph is None
    plain(model.train(), adam(model))
    assert watched.graph is not None


def test_who_reads_the_file_of_a_model_that_is_watched_needs_no_tbscope(writer):
    model = nn.Sequential(nn.Linear(3, 2))
    writer.watch(model)
    assert b"tbscope" not in pickle.dumps(model)


# -- compiled models --------------------------------------------------------------------


def compiled(model, ran):
    def backend(graph, _):
        def run(*args):
            ran.append(len(args))
            return graph(*args)

        return run

    return {"backend": backend}


def in_place(model, given):
    model.compile(**given)
    return model, model


def wrapped(model, given):
    made = torch.compile(model, **given)
    return made, made


def inside(model, given):
    return model, torch.compile(model, **given)


@pytest.mark.parametrize("way", [in_place, wrapped, inside])
@pytest.mark.parametrize("every", [None, 2])
def test_of_a_compiled_model_the_call_that_is_drawn_is_not_compiled(writer, way, every):
    torch.compiler.reset()
    ran, model = [], Net()
    watched_one, called = way(model, compiled(model, ran))
    optimizer = adam(model)
    plain(called, optimizer)
    count = len(ran)
    assert count
    watched = writer.watch(watched_one, every=every)
    plain(called, optimizer)
    assert len(ran) == count
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]
    first = watched.graph
    for _ in range(3):
        plain(called, optimizer)
    # Two are compiled, then one is drawn again; hooks inside of compiled code tell of none.
    drawn = every is not None and way is not inside
    assert len(ran) == count + (2 if drawn else 3)
    assert (watched.graph is not first) == drawn
    watched.remove()
    assert nothing_is_left(model)


def test_the_calls_of_a_model_that_is_compiled_while_it_is_watched_are_counted(writer):
    torch.compiler.reset()
    ran, model = [], Net()
    optimizer, watched = adam(model), writer.watch(model, every=2)
    model.compile(**compiled(model, ran))
    graphs = []
    for _ in range(6):
        plain(model, optimizer)
        graphs.append(watched.graph)
    assert [graphs.index(graph) for graph in graphs] == [0, 0, 0, 3, 3, 3]
    assert len(ran) == 4
    watched.remove()
    assert nothing_is_left(model)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_model_inside_of_a_compiled_function_is_drawn_too(writer, fullgraph):
    torch.compiler.reset()
    ran, model = [], Net()
    given = compiled(model, ran)
    function = torch.compile(lambda: loss_of(model), fullgraph=fullgraph, **given)
    optimizer, watched = adam(model), writer.watch(model)
    for _ in range(4):
        optimizer.zero_grad()
        function().backward()
        optimizer.step()
    assert "optimizer" in tops(watched.graph)
    assert len(ran) == 3
    assert nothing_is_left(model)
