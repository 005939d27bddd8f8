"""What an optimizer does for each parameter is recorded as foreseen, and as if it were not."""

import inspect
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from weakref import ref

import pytest
import torch
from test_own_writes import OPTIMIZERS, about, step_of
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from training_steps import POINTS, Net

import tbscope


def told(code, *models, foreseen=True, around=nullcontext):
    """Give all that is told of a code, and how many operations were recorded as foreseen."""
    count = 0

    def look(frame, event, arg):
        nonlocal count
        if event == "return" and frame.f_code.co_qualname == "Rounds.add":
            count += bool(arg)

    with around(), tbscope.record(*models) as recording:
        if not foreseen:
            recording._recorder.rounds = None
        before, _ = sys.getprofile(), sys.setprofile(look)
        try:
            code()
        finally:
            sys.setprofile(before)
    graph = recording.graph
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    nodes = [
        (*about(node, numbers), node.name, node.source, node.step, node.random, node.arguments)
        for node in graph.nodes
    ]
    texts = [tuple(map(str, node)) for node in nodes]
    drawn = tbscope.to_graph_def(graph).SerializeToString(deterministic=True)
    return (texts, str(graph), list(map(str, graph.notes)), drawn), count


def both(make, **how):
    """Record a code as foreseen and not; give how many operations were, of those that are told."""
    found = []
    for foreseen in (False, True):
        torch.manual_seed(0)
        found.append(told(*make(), foreseen=foreseen, **how))
    (plain, none), (quick, count) = found
    assert quick == plain
    assert none == 0
    return count


# How many operations of a round are foreseen; of the others some, or none.
FORESEEN = {
    "Adagrad, 0": 4,
    "Adam, 0": 8,
    "Adam, amsgrad": 8,
    "AdamW, 0": 9,
    "NAdam, 0": 9,
    "RMSprop, 0": 5,
    "SGD": 4,
}
AT_ONCE = ("1", "fused", "at once", "LBFGS")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_told_as_if_nothing_of_it_were_foreseen(name):
    count = both(lambda: step_of(*OPTIMIZERS[name]))
    if name.endswith(AT_ONCE):
        assert count == 0
    # Of fourteen parameters all but the first ones.
    assert count >= FORESEEN.get(name, 0) * 11


LOOP = """
def run(self):
    for group in self.param_groups:
        for weight in group["params"]:
            gradient, state = weight.grad, self.state[weight]
"""


def looped(work):
    """Make of what is done for a parameter a loop over all of them, in a library's file."""
    body = textwrap.dedent("".join(inspect.getsourcelines(work)[0][1:]))
    names = {**globals(), **inspect.getclosurevars(work).nonlocals}
    file = Path(torch.__file__).with_name("library.py")
    exec(compile(LOOP + textwrap.indent(body, 12 * " "), str(file), "exec"), names)
    return names["run"]


class Steps(torch.optim.Optimizer):
    """An optimizer whose step is what it is told, in a loop of a library's."""

    def __init__(self, parameters, work, **defaults):
        super().__init__(parameters, {"lr": 0.1, **defaults})
        self.run = looped(work)
        for group in self.param_groups:
            for number, each in enumerate(group["params"]):
                mean = torch.zeros_like(each)
                twin = mean.view(mean.shape) if number % 4 == 3 else torch.zeros_like(each)
                self.state[each] = {"mean": mean, "twin": twin, "number": number}
                self.state[each]["other"] = torch.zeros(2)

    @torch.no_grad()
    def step(self, closure=None):
        self.run(self)


def momentum(weight, gradient, state):
    mean = state["mean"].mul_(0.9).add_(gradient)
    weight.sub_(mean.mul(0.1).div(2.0))
    weight.addcmul_(mean, gradient, value=0.5)


def by_turns(weight, gradient, state):
    state["mean"].lerp_(gradient, 0.1)
    if state["number"] % 3 == 2:
        state["mean"].sqrt_()
    weight.add_(state["mean"], alpha=-0.1)


def twice_the_same(weight, gradient, state):
    weight.mul_(weight)
    weight.add_(state["mean"]).sub_(state["mean"])


def through_views(weight, gradient, state):
    mean = state["mean"].view(-1)
    mean.add_(gradient.view(-1))
    weight.add_(state["mean"], alpha=0.5)
    mean.mul_(2.0)
    weight.sub_(state["mean"])


def another_memory(weight, gradient, state):
    state["mean"].add_(gradient)
    if state["number"] == 4:
        weight.data = weight.data.clone()
        state["mean"].set_(torch.zeros_like(state["mean"]))
    weight.mul_(0.5).add_(state["mean"])
    state["mean"] = state["mean"].add(1)


def lent(weight, gradient, state):
    # Of some it is what they write into by then.
    other = state["mean"].view(-1)[:2] if state["number"] % 4 == 3 else state["other"]
    other.add_(1.0)
    weight.add_(gradient, alpha=0.1)
    weight.mul_(other.view(-1)[0])
    state["mean"].add_(gradient)
    weight.sub_(state["mean"])


def shown_twice(weight, gradient, state):
    weight.add_(state["twin"])
    state["mean"].mul_(2.0)
    weight.sub_(state["twin"])


def in_blocks(weight, gradient, state):
    state["mean"].add_(gradient)
    with tbscope.scope("inner") if state["number"] > 3 else nullcontext():
        weight.sub_(state["mean"])


def of_all(weight, gradient, state, group=None):
    shared = group.setdefault("sum", torch.zeros(()))
    shared.add_(1.0)
    weight.add_(gradient, alpha=-0.1)
    weight.mul_(shared)


def read_by_python(weight, gradient, state):
    state["mean"].add_(gradient)
    if state["mean"].sum() > 1e9:
        state["mean"].neg_()
    weight.add_(state["mean"], alpha=-1 / (1 + state["mean"].max().item()))


def of_gradients(weight, gradient, state):
    gradient.add_(weight, alpha=0.1)
    gradient.mul_(2.0)
    weight.sub_(gradient.neg())
    weight.grad = gradient.mul(2.0)
    weight.sub_(weight.grad)


def differentiated(weight, gradient, state):
    with torch.enable_grad() if state["number"] in (5, 9) else nullcontext():
        kept = gradient.mul(weight)
        if kept.requires_grad:
            kept.sum().backward()
    weight.data.add_(kept.neg())
    state["mean"].add_(kept)


def cast(weight, gradient, state):
    with torch.autocast("cpu", torch.bfloat16, enabled=state["number"] > 4):
        state["mean"].add_(gradient.mul(2.0))
    weight.sub_(state["mean"])


WORKS = {
    work.__name__: work
    for work in (
        *(momentum, by_turns, twice_the_same, through_views, another_memory, in_blocks, of_all),
        *(read_by_python, of_gradients, differentiated, cast, lent, shown_twice),
    )
}


def trained(work, change=lambda model: None, **defaults):
    """Give two training steps of such an optimizer, and their model."""
    torch.manual_seed(0)
    model = Net()
    change(model)
    optimizer = Steps(model.parameters(), work, **defaults)

    def step():
        for _ in range(2):
            optimizer.zero_grad()
            model(POINTS).pow(2).mean().backward()
            optimizer.step()

    return step, model


@pytest.mark.parametrize("name", WORKS)
def test_what_an_optimizer_of_a_library_does_is_told_as_if_nothing_were_foreseen(name):
    count = both(lambda: trained(WORKS[name]))
    # A round that begins with a view begins unforeseen.
    assert bool(count) == (name != "through_views")
    if name == "cast":
        # Nothing is foreseen by what was watched outside of autocast.
        assert count <= 3 * 4 * 2


def in_one_memory(model):
    parameters = [*model.parameters()]
    flat = torch.cat([each.detach().flatten() for each in parameters])
    for each in parameters:
        each.data = flat[: each.numel()].view_as(each)
        flat = flat[each.numel() // 2 :]


def of_several_types(model):
    model.blocks.double().register_forward_pre_hook(lambda *_: None)
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, given: (given[0].double(),))
    model.head.register_forward_pre_hook(lambda _, given: (given[0].float(),))


@pytest.mark.parametrize("change", [in_one_memory, of_several_types])
@pytest.mark.parametrize("name", ["momentum", "through_views", "of_gradients"])
def test_odd_parameters_are_told_as_if_nothing_were_foreseen(name, change):
    both(lambda: trained(WORKS[name], change))


def test_gradients_that_two_parameters_share_are_told_as_if_nothing_were_foreseen():
    def make():
        model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(6)])
        optimizer = torch.optim.Adam(model.parameters(), foreach=False, weight_decay=0.1)

        def step():
            model(torch.ones(1, 2)).sum().backward()
            model[3].weight.grad = model[2].weight.grad
            model[4].weight.grad = model[4].weight.grad.t()
            model[5].weight.grad = model[5].weight.detach()
            optimizer.step()

        return step, model

    assert both(make) > 0


@pytest.mark.parametrize("wrong", [ValueError, RuntimeError])
def test_an_error_amid_a_round_leaves_all_told_as_if_nothing_were_foreseen(wrong):
    def failing(weight, gradient, state):
        state["mean"].add_(gradient)
        if state["number"] == 5:
            if wrong is ValueError:
                raise ValueError
            state["mean"].add_(torch.ones(7, 7))
        weight.sub_(state["mean"])

    def make():
        step, model = trained(failing)

        def go():
            for _ in range(2):
                with pytest.raises(wrong):
                    step()
            model(POINTS)

        return go, model

    assert both(make) > 0


def test_an_error_that_ends_the_region_is_told_as_if_nothing_were_foreseen():
    def failing(weight, gradient, state):
        state["mean"].add_(gradient if state["number"] < 5 else torch.ones(7, 7))

    texts = []
    for foreseen in (True, False):
        step, model = trained(failing)
        recording = tbscope.record(model)

        def go(recording=recording, step=step, foreseen=foreseen):
            with recording:
                if not foreseen:
                    recording._recorder.rounds = None
                step()

        with pytest.raises(RuntimeError) as raised:
            go()
        failed = recording._recorder.failures.operation(raised.value)
        texts.append((str(recording.graph), failed.op, str(failed.scope), str(failed.source)))
    assert texts[0] == texts[1]
    assert failed.op == "add_"


def test_an_optimizer_that_steps_in_a_backward_pass_is_told_as_if_nothing_were_foreseen():
    def make():
        model = Net()
        own = {each: torch.optim.SGD([each], 0.1, foreach=False) for each in model.parameters()}

        def step_of_one(weight):
            own[weight].step()

        for each in model.parameters():
            each.register_post_accumulate_grad_hook(step_of_one)
        return lambda: model(POINTS).pow(2).mean().backward(), model

    both(make)


class Idle(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_nothing_is_foreseen_where_a_mode_of_the_users_wants_to_see_each_kernel():
    assert both(lambda: trained(momentum), around=Idle) == 0
    assert both(lambda: trained(momentum), around=tbscope.record) == 0
    seen = []

    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name().partition(".")[0])
            return func(*args, **(kwargs or {}))

    def looked_at(weight, gradient, state):
        with Seeing() if state["number"] == 6 else nullcontext():
            state["mean"].add_(gradient)
            weight.addcmul_(state["mean"], gradient, value=0.5)

    assert both(lambda: trained(looked_at)) > 0
    assert seen.count("aten::addcmul_") == 2 * 2


def test_nothing_is_foreseen_below_a_mode_for_functions_of_the_users():
    class Seldom(TorchFunctionMode):
        """Computes something of its own at every fifth function."""

        count = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.count += 1
            if self.count % 5 == 0:
                torch.ones(2).add_(1)
            return func(*args, **(kwargs or {}))

    assert both(lambda: trained(momentum), around=Seldom) == 0


def test_what_a_round_has_made_lives_no_longer_than_it_is_used():
    left = []

    def short_lived(weight, gradient, state):
        made = gradient.mul(2.0)
        known = ref(made)
        weight.sub_(made)
        del made
        left.append(known() is not None)
        weight.neg_()

    count = both(lambda: trained(short_lived))
    assert count > 0
    assert not any(left)
    assert len(left) == 2 * 2 * len([*Net().parameters()])


def test_nothing_of_a_step_is_held_once_it_is_over():
    step, model = trained(momentum)
    with tbscope.record(model):
        step()
        gradient = ref(model.inp.weight.grad)
        model.zero_grad()
        assert gradient() is None
