"""`watch` finds the step of a model by the parameters that an optimizer changes."""

import gc
import warnings
import weakref

import pytest
import torch
from cli_runs import graphs_in
from test_watching_odd_steps import nothing_is_left, tops
from torch import nn
from torch.func import functional_call
from training_steps import POINTS, Net, closure_of, loss_of

import tbscope

WHOLE = ["None", "Net", "gradients", "optimizer"]


def adam(model):
    return torch.optim.Adam(model.parameters())


class Methods(nn.Module):
    """Learns by methods: one calls its parts, the other one reads its parameters alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def evaluate(self, x):
        return self.b(torch.relu(self.a(x)))

    def loss(self, x):
        hidden = torch.relu(nn.functional.linear(x, self.a.weight, self.a.bias))
        return nn.functional.linear(hidden, self.b.weight, self.b.bias).pow(2).mean()


def plain(loss, optimizer):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


# -- optimizers in other objects --------------------------------------------------------------


class Wrapper:
    """Makes the steps of an optimizer, as apex does; torch knows nothing of it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()


class Copies(Wrapper):
    """Steps with copies of the parameters, in higher precision."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        (group,) = optimizer.param_groups
        self.models = group["params"]
        group["params"] = [each.detach().double().requires_grad_() for each in self.models]

    def zero_grad(self):
        for model in self.models:
            model.grad = None

    def step(self):
        for copy, model in zip(self.param_groups[0]["params"], self.models, strict=True):
            copy.grad = model.grad.double()
        super().step()
        with torch.no_grad():
            for copy, model in zip(self.param_groups[0]["params"], self.models, strict=True):
                model.copy_(copy)


class Several:
    """Makes the steps of several optimizers."""

    def __init__(self, model):
        self.each = [adam(model.inp), torch.optim.SGD([*model.parameters()][2:], 0.1)]

    def zero_grad(self):
        for optimizer in self.each:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.each:
            optimizer.step()


def accelerated(model):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    return accelerator.prepare_optimizer(adam(model))


def scheduled(model):
    optimizer = adam(model)
    optimizer.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9)
    return optimizer


def sharded(model):
    from torch import distributed
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=distributed.group.WORLD
    )


WRAPPED = {
    "wrapper": lambda model: Wrapper(adam(model)),
    "wrapper of a wrapper": lambda model: Wrapper(Wrapper(adam(model))),
    "copies": lambda model: Copies(adam(model)),
    "several": Several,
    "accelerated": accelerated,
    "scheduled": scheduled,
}


def trained(make, *, watch=None, steps=2, **named):
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model)
    watched = (
        watch(model, **{key: made(optimizer) for key, made in named.items()}) if watch else None
    )
    for _ in range(steps):
        plain(lambda: loss_of(model), optimizer)
    return model, watched


@pytest.fixture
def writer(tmp_path):
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        yield writer


@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_of_a_wrapped_optimizer_the_inner_one_counts(writer, make):
    model, watched = trained(make, watch=writer.watch, optimizer=lambda given: given)
    assert tops(watched.graph)[:4] == WHOLE
    other, _ = trained(make)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    plain(lambda: loss_of(model), adam(model))
    assert nothing_is_left(model)


@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_a_wrapped_optimizer_need_not_be_named(writer, make):
    _, watched = trained(make, watch=writer.watch)
    assert tops(watched.graph)[:4] == WHOLE


def test_optimizers_in_a_list_end_the_step_together(writer):
    _, watched = trained(
        Several, watch=writer.watch, optimizer=lambda several: several.each, steps=1
    )
    assert tops(watched.graph) == [*WHOLE, "optimizer.1"]


def test_the_optimizer_that_shards_its_state_counts_itself(writer):
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        _, watched = trained(sharded, watch=writer.watch, optimizer=lambda given: given, steps=1)
    finally:
        distributed.destroy_process_group()
    assert tops(watched.graph) == WHOLE
    roots = {
        str(node.scope).split("/")[1] for node in watched.graph.nodes if node.phase == "optimizer"
    }
    assert roots == {"ZeroRedundancyOptimizer"}


def test_of_several_optimizers_all_are_drawn(writer):
    _, watched = trained(Several, watch=writer.watch, steps=1)
    assert tops(watched.graph) == [*WHOLE, "optimizer.1"]
    updated = {
        node.attributes["updates"] for node in watched.graph.nodes if "updates" in node.attributes
    }
    assert {name for text in updated for name in text.split(", ")} == {
        name for name, _ in Net().named_parameters()
    }


def test_a_parameter_that_no_optimizer_has_delays_nothing(writer):
    model = Net()
    watched = writer.watch(model)
    plain(lambda: loss_of(model), adam(model.head))
    assert tops(watched.graph) == WHOLE


@pytest.mark.parametrize("given", ["Adam", [], {}, nn.Linear(1, 1)])
def test_an_object_without_an_optimizer_is_refused(writer, given):
    with pytest.raises(tbscope.ArgumentError, match="contains such optimizers"):
        writer.watch(Net(), optimizer=given)


# -- models that learn by other methods than forward ------------------------------------------


def by_parts(model):
    return lambda: model.evaluate(POINTS).pow(2).mean()


def by_parameters(model):
    return lambda: model.loss(POINTS)


@pytest.mark.parametrize("loss", [by_parts, by_parameters])
@pytest.mark.parametrize(
    "make", [adam, lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3)]
)
def test_a_model_that_learns_by_a_method_is_drawn(writer, loss, make):
    models = []
    for watch in (None, writer.watch):
        torch.manual_seed(0)
        model = Methods()
        optimizer, watched = make(model), watch and watch(model)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            value = loss(model)()
            value.backward()
            return value

        for _ in range(2):
            optimizer.step(closure)
        models.append(model)
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, two)
    graph = watched.graph
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    assert [top for top in tops(graph) if top != "None"][:3] == [
        "Methods",
        "gradients",
        "optimizer",
    ]
    scopes = {node.op: str(node.scope) for node in graph.nodes if node.phase == "forward"}
    assert scopes["relu"] == "Methods"
    (act,) = [node for node in graph.nodes if node.op == "relu" and str(node.scope) == "Methods"][
        :1
    ]
    assert act.inputs[0].producer.scope.path == "Methods/Linear[a]"
    assert {reader.scope.path for reader in readers(graph, act)} == {"Methods/Linear[b]"}
    assert nothing_is_left(models[1])


def readers(graph, node):
    return [
        each for each in graph.nodes if each.phase == "forward" and node.outputs[0] in each.inputs
    ]


def test_parts_that_a_script_calls_are_drawn_with_what_runs_between(writer):
    model = nn.ModuleDict({"encoder": nn.Linear(3, 4), "decoder": nn.Linear(4, 2)})
    optimizer, watched = adam(model), writer.watch(model)
    plain(lambda: model["decoder"](model["encoder"](POINTS).tanh()).sum(), optimizer)
    (act,) = [node for node in watched.graph.nodes if node.op == "tanh"]
    assert act.inputs[0].producer.scope.path == "ModuleDict/Linear[encoder]"
    assert {each.scope.path for each in readers(watched.graph, act)} == {
        "ModuleDict/Linear[decoder]"
    }


def test_many_parts_are_all_drawn(writer):
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(12))
    optimizer, watched = adam(model), writer.watch(model)

    def loss():
        x = POINTS
        for part in model:
            x = part(x).tanh()
        return x.sum()

    plain(loss, optimizer)
    assert len(watched.graph.calls) == 12
    assert not watched.graph.inputs[1:]


def test_parameters_in_the_place_of_the_models_count(writer):
    model = Net()
    held = {name: each.detach().clone().requires_grad_() for name, each in model.named_parameters()}
    optimizer, watched = torch.optim.Adam(held.values()), writer.watch(model)
    plain(lambda: functional_call(model, held, (POINTS,)).sum(), optimizer)
    assert tops(watched.graph) == WHOLE


def test_two_models_with_one_optimizer_are_both_drawn(writer):
    encoder, decoder = nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(4, 2))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    watched = [writer.watch(model) for model in (encoder, decoder)]
    plain(lambda: decoder(encoder(POINTS)).sum(), optimizer)
    for each in watched:
        assert tops(each.graph) == ["None", "Sequential", "gradients", "optimizer"]


def test_of_two_watches_of_a_model_each_draws_a_step(writer):
    model = Net()
    optimizer, watched = adam(model), [writer.watch(model, tag=tag) for tag in "ab"]
    for _ in range(2):
        plain(lambda: loss_of(model), optimizer)
    assert [tops(each.graph) for each in watched] == [WHOLE, WHOLE]
    plain(lambda: loss_of(model), optimizer)
    assert nothing_is_left(model)


def test_a_tensor_that_learns_before_the_model_counts(writer):
    model, prompt = Net(), nn.Parameter(torch.zeros(3))
    optimizer, watched = torch.optim.Adam([prompt]), writer.watch(model)
    plain(lambda: loss_of(model, POINTS + prompt), optimizer)
    assert tops(watched.graph) == WHOLE


@pytest.mark.parametrize("script", ["the model", "another form of it"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_drawn(writer, script):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    scripted = torch.jit.script(model)
    watched = writer.watch(scripted if script == "the model" else model)
    optimizer = adam(scripted)
    for _ in range(2):
        plain(lambda: scripted(POINTS).sum(), optimizer)
    assert tops(watched.graph)[-3:] == ["Sequential", "gradients", "optimizer"]
    watched.graph.verify()


def test_calls_that_no_pass_can_reach_are_no_part_of_the_step(writer):
    generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    optimizers, watched = (adam(generator), adam(critic)), writer.watch(generator)
    for _ in range(10):
        plain(lambda: critic(generator(POINTS).detach()).sum(), optimizers[1])
    plain(lambda: critic(generator(POINTS)).sum(), optimizers[0])
    assert tops(watched.graph) == ["None", "Linear", "gradients", "optimizer"]
    assert len(watched.graph.calls) == 1


def test_the_players_of_one_module_are_drawn_up_to_the_given_optimizer(writer):
    model = nn.ModuleDict({"generator": nn.Linear(3, 2), "critic": nn.Linear(2, 1)})
    generator, critic = model.values()
    optimizers = adam(generator), adam(critic)
    watched = writer.watch(model, optimizer=optimizers[0])
    plain(lambda: critic(generator(POINTS).detach()).sum(), optimizers[1])
    plain(lambda: critic(generator(POINTS)).sum(), optimizers[0])
    passes = ["ModuleDict", "gradients", "optimizer"]
    assert tops(watched.graph) == ["None", *passes, *[f"{each}.1" for each in passes]]


def test_a_watch_that_begins_amid_a_step_draws_the_next_one(writer):
    model = Methods()
    optimizer, begun = adam(model), model.loss(POINTS)
    watched = writer.watch(model)
    plain(lambda: begun, optimizer)
    assert watched.graph is None
    plain(lambda: model.loss(POINTS), optimizer)
    assert tops(watched.graph) == ["Methods", "gradients", "optimizer"]


def test_a_model_that_learns_in_evaluation_mode_is_drawn_in_the_third_step(writer):
    model = Net().eval()
    optimizer, watched = adam(model), writer.watch(model)
    for step in range(3):
        assert (step, watched.graph) == (step, None)
        plain(lambda: loss_of(model), optimizer)
    assert tops(watched.graph) == WHOLE


def test_a_model_that_is_never_called_itself_is_drawn_once(writer):
    model, graphs = Methods(), []
    optimizer, watched = adam(model), writer.watch(model, every=2)
    for _ in range(6):
        plain(by_parts(model), optimizer)
        graphs.append(watched.graph)
    assert [graphs.index(graph) for graph in graphs] == [0] * 6
    assert graphs[0] is not None
    watched.remove()


def test_a_policy_of_stable_baselines_is_drawn(writer):
    baselines = pytest.importorskip("stable_baselines3")
    agent = baselines.PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, n_epochs=1)
    watched = writer.watch(agent.policy)
    agent.learn(8)
    assert tops(watched.graph) == ["None", "ActorCriticPolicy", "gradients", "optimizer"]


# -- accumulation -----------------------------------------------------------------------------


def accumulated(loss, optimizer, batches=4):
    for number in range(batches):
        loss(POINTS + number).backward()
    optimizer.step()
    optimizer.zero_grad()


def boxes(graph):
    return {name.split("/")[0] for name in (node.name for node in tbscope.to_graph_def(graph).node)}


@pytest.mark.parametrize("method", ["forward", "evaluate", "loss"])
def test_micro_batches_are_drawn_up_to_the_optimizer_and_folded(writer, method):
    model = Methods()
    model.forward = model.evaluate
    run = getattr(model, method) if method != "forward" else model
    optimizer, watched = adam(model), writer.watch(model)
    accumulated(lambda x: run(x).pow(2).mean(), optimizer)
    passes = {top for top in tops(watched.graph) if top.startswith("gradients")}
    assert passes == {"gradients", "gradients.1", "gradients.2", "gradients.3"}
    assert tops(watched.graph)[-1] == "optimizer"
    watched.graph.verify()
    if method == "forward":
        assert {"Methods_x_4", "gradients", "optimizer"} <= boxes(watched.graph)


def test_a_target_of_two_losses_leads_from_none_to_the_other(writer):
    model, target = Net(), torch.zeros(5, 2)
    optimizer, watched = adam(model), writer.watch(model)
    accumulated(lambda x: nn.functional.mse_loss(model(x), target), optimizer, batches=2)
    first, second = [node for node in watched.graph.nodes if node.op == "mse_loss_backward"]
    assert first.inputs[2].producer is not second.inputs[2].producer
    assert "Net_x_2" in boxes(watched.graph)


def test_of_many_micro_batches_some_are_drawn(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    accumulated(lambda x: loss_of(model, x), optimizer, batches=12)
    assert tops(watched.graph)[-2:] == ["gradients.7", "optimizer"]
    assert "of the calls before the optimizer's step, 8 were recorded" in [
        note.text for note in watched.graph.notes
    ]


def test_an_optimizer_that_skips_a_step_is_awaited(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    loss_of(model).backward()
    optimizer.zero_grad()
    plain(lambda: loss_of(model), optimizer)
    assert tops(watched.graph) == WHOLE


def test_a_gradient_of_a_gradient_ends_no_step(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    held = dict(model.named_parameters())
    inner = functional_call(model, held, (POINTS,)).pow(2).mean()
    gradients = torch.autograd.grad(inner, [*held.values()], create_graph=True)
    moved = {
        name: each - 0.1 * gradient
        for (name, each), gradient in zip(held.items(), gradients, strict=True)
    }
    functional_call(model, moved, (POINTS,)).pow(2).mean().backward()
    optimizer.step()
    assert tops(watched.graph) == ["None", "Net", "gradients", "Net.1", "gradients.1", "optimizer"]


def test_a_metric_between_the_pass_and_the_optimizer_is_no_micro_batch(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    loss_of(model).backward()
    with torch.no_grad():
        model(POINTS)
    optimizer.step()
    assert tops(watched.graph) == WHOLE


# -- where nothing is drawn -------------------------------------------------------------------


def told(function):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        function()
    return [str(each.message) for each in warned if "tbscope" in str(each.message)]


def never(model, optimizer):
    pass


def in_evaluation(model, optimizer):
    model.eval()
    plain(lambda: loss_of(model), optimizer)


def without_gradients(model, optimizer):
    model.zero_grad()
    with torch.no_grad():
        model(POINTS)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def without_a_pass(model, optimizer):
    model.kept = loss_of(model)


REASONS = {
    "no call of the model in training mode has come to an end": never,
    "mode has come to an end, in 1 optimizer step": in_evaluation,
    "no backward pass has computed gradients of its parameters": without_gradients,
    "no backward pass has gone through the call that was recorded": without_a_pass,
}


@pytest.mark.parametrize("reason", REASONS)
def test_closing_the_writer_tells_why_nothing_was_drawn(tmp_path, reason):
    model, writer = Net(), tbscope.SummaryWriter(str(tmp_path))
    optimizer, watched = adam(model), writer.watch(model)
    REASONS[reason](model, optimizer)
    (text,) = told(writer.close)
    assert text.startswith("tbscope drew no step of Net: ")
    assert reason in text
    assert watched.is_over
    assert nothing_is_left(model)
    assert told(writer.close) == []


class Called(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "trace", [torch.jit.script, torch.fx.symbolic_trace, lambda net: torch.jit.trace(net, POINTS)]
)
def test_a_model_that_is_awaited_can_be_traced(writer, trace):
    model = Called()
    optimizer, watched = adam(model), writer.watch(model)
    annotations = dict(nn.Module.__annotations__)
    traced = trace(model)
    assert watched.graph is None
    plain(lambda: model(POINTS).sum(), optimizer)
    assert torch.equal(traced(POINTS), model(POINTS))
    assert tops(watched.graph) == ["None", "Called", "gradients", "optimizer"]
    assert nn.Module.__annotations__.keys() - annotations.keys() == {"_compiled_call_impl"}


def test_closing_the_writer_tells_that_no_call_came(tmp_path):
    model, writer = Net(), tbscope.SummaryWriter(str(tmp_path))
    writer.watch(model, backward=False)
    (text,) = told(writer.close)
    assert text.endswith("Net: no call of the model has come to an end")


def test_closing_the_writer_tells_that_the_given_optimizer_made_no_step(tmp_path):
    model, writer = Net(), tbscope.SummaryWriter(str(tmp_path))
    optimizer = adam(model)
    writer.watch(model, optimizer=adam(nn.Linear(1, 1)))
    plain(lambda: loss_of(model), optimizer)
    (text,) = told(writer.close)
    assert "the optimizer that was given has made no step" in text
    assert nothing_is_left(model)


def test_after_ten_steps_that_cannot_be_drawn_nothing_is_awaited(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    for step in range(10):
        assert (step, watched.is_over) == (step, False)
        warned = told(lambda: without_gradients(model, optimizer))
    (text,) = warned
    assert (
        "no backward pass has computed gradients of its parameters, in 10 optimizer steps" in text
    )
    assert watched.is_over
    plain(lambda: loss_of(model), optimizer)
    assert nothing_is_left(model)


def test_ten_steps_of_other_models_end_the_waiting_for_one_that_is_not_called(writer):
    model, other, waited = Net(), Net(), nn.Linear(3, 2)
    optimizers = [adam(other.inp), adam(other.head)]
    watched = [writer.watch(model), writer.watch(waited)]
    for step in range(10):
        assert (step, watched[0].is_over) == (step, False)
        waited(POINTS)
        loss_of(other).backward()
        warned = told(lambda: [optimizer.step() for optimizer in optimizers])
    (text,) = warned
    assert text.endswith("has computed gradients of its parameters, in 10 optimizer steps")
    assert [each.is_over for each in watched] == [True, False]
    plain(lambda: waited(POINTS).sum(), adam(waited))
    assert watched[1].graph is not None


def test_closing_the_writer_draws_a_step_that_lacks_an_optimizer(tmp_path):
    model, writer = Net(), tbscope.SummaryWriter(str(tmp_path))
    watched = writer.watch(model)
    loss_of(model).backward()
    assert told(writer.close) == []
    assert tops(watched.graph) == ["None", "Net", "gradients"]
    assert len(graphs_in(tmp_path)) == 1
    assert nothing_is_left(model)


def test_a_watch_that_has_drawn_awaits_changes_after_the_writer_is_closed(tmp_path):
    model, writer = Net(), tbscope.SummaryWriter(str(tmp_path))
    optimizer, watched = adam(model), writer.watch(model, every=1)
    plain(lambda: loss_of(model), optimizer)
    assert told(writer.close) == []
    assert not watched.is_over
    watched.close()
    assert nothing_is_left(model)


@pytest.mark.parametrize(
    "make", [adam, lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3)]
)
def test_an_optimizer_alone_keeps_no_hook_of_a_watch_that_is_over(writer, make):
    model = Net()
    optimizer, watched = make(model), writer.watch(model)
    optimizer.step(closure_of(model, optimizer))
    watched.close()
    gc.collect()
    assert nothing_is_left(model)


def test_micro_batches_of_a_sharded_model_are_drawn_up_to_the_optimizer(writer):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = fully_shard(Net(), mesh=init_device_mesh("cpu", (1,)))
        optimizer, watched = adam(model), writer.watch(model)
        accumulated(lambda x: loss_of(model, x), optimizer, batches=2)
    finally:
        distributed.destroy_process_group()
    assert tops(watched.graph)[-2:] == ["gradients.1", "optimizer"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_watch_keeps_no_writer_alive_once_it_is_over(tmp_path, steps):
    writer = tbscope.SummaryWriter(str(tmp_path))
    model, reference = Net(), weakref.ref(writer)
    optimizer = adam(model)
    writer.watch(model)
    for _ in range(steps):
        plain(lambda: loss_of(model), optimizer)
    del writer
    if not steps:
        del model
    gc.collect()
    assert reference() is None
