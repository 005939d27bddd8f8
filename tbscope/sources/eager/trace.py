"""Runs a model once, watches the run, and leaves everything as it was."""

import functools
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, Unpack

import torch

from tbscope.checks import attribute_of, check_truth
from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError, ScopeError
from tbscope.ir.facts import dimensions_at
from tbscope.ir.graph import Graph, Note
from tbscope.option import shows_options
from tbscope.running import Tracing, run_options
from tbscope.sources.eager.active import alone, one_at_a_time
from tbscope.sources.eager.failure import Told, trace_error
from tbscope.sources.eager.keep.preserve import Preserved
from tbscope.sources.eager.losses import Loss, check_loss, loss_of
from tbscope.sources.eager.measure.profiling import check_profile, profile_graph
from tbscope.sources.eager.measure.repeats import Repeats, check_measurable
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.training_modes import watch_training_modes
from tbscope.sources.eager.watch.watch import Watch, ready_to_watch
from tbscope.sources.torch.compiler_internals import never_compiled
from tbscope.sources.torch.fake import StandIns, faked
from tbscope.sources.torch.inputs import Made, argument_names, bind_inputs, require_made
from tbscope.sources.torch.internals import outside_modes
from tbscope.sources.torch.locate import raised_in_tbscope
from tbscope.sources.torch.module_internals import uncompiled
from tbscope.sources.torch.nests import result_leaves, tensor_leaves
from tbscope.sources.torch.own_modes import switches_itself
from tbscope.sources.torch.parallelizing import parallelized, world_of
from tbscope.sources.torch.registry import class_label
from tbscope.sources.torch.unfinished import computed
from tbscope.words import error_text, shown, without_addresses

__all__ = ["name_of", "owner_of", "trace"]


@never_compiled
@shows_options
def trace(
    model: Callable[..., Any], input_to_model: Any = None, **options: Unpack[Tracing]
) -> Graph:
    """Run a model once and return the graph of what it did.

    Everything the run changes is put back: training flags, parameters, buffers and
    gradients, attributes and hooks, the state of the random generators, and the
    inputs themselves.

    Args:
        model: A module, or any other callable (a method, a function, a partial).
        input_to_model: What the model is called with. A tensor is one argument; a
            tuple or list, the positional arguments; a mapping whose keys are
            parameters of forward, keyword arguments, any other mapping one positional
            argument. None: no arguments where forward needs none, else the model's
            `example_input_array` or `dummy_inputs`.
        kwargs: Further keyword arguments.
        input_size: In place of `input_to_model`, the size of an input that is made up, as
            torchinfo takes it: `(1, 3, 224, 224)`; a list of the sizes of several, or a
            mapping from names of parameters. Floats are normal, whole numbers 0 or 1.
        dtypes: The element types of these inputs: one for all, or one for each.
        training: Whether modules run in training mode; None for the mode in which each
            one stands.
        grad: Whether gradients are recorded, for models that differentiate in forward.
        loss: Makes a loss of what the model gives; it is a part of the graph.
        backward: Whether the backward pass is run, too, from the loss, or from a scalar that
            the model gives: a tensor, or what it calls `loss`.
        fake: Whether the run computes nothing but shapes, on stand-ins for parameters and
            inputs: no weights are read and no memory is taken for activations.
        partial: Whether to return, for a model that raises, the graph up to there, with a note, and
            the attribute `error` on the operation that raised.
        kernels: Whether the kernels inside each operation are recorded as nodes, for
            `level="aten"`; it takes up to half as long again.
        profile: Whether times and memory are measured, in further runs: True for 5 runs
            after 2 to warm up, or how many (see `Profile`). Each run is made twice: once
            unwatched, once timed; the loss and the backward pass are a part of it.
        world_size: How many ranks a distributed run has that does not exist, as one of which the
            model is traced: nothing is sent, and values mean nothing. None for as many as the
            mesh has; without a mesh, for no such run.
        rank: Which of these ranks it is.
        mesh: The dimensions of a device mesh over all of these ranks, outermost first, with their
            sizes: `{"dp": 128, "tp": 8}`.
        parallelize: A function of the model and the device mesh that spreads the model over the
            ranks (`fully_shard`, `parallelize_module`), and returns what is run, or None. It is
            given a copy of the model, with `fake=True` one without contents.
    Returns:
        The graph of the run.
    Raises:
        InputError: The inputs do not fit the parameters of forward.
        ArgumentError: There is nothing to measure, or no run could have this world.
        TraceError: The model raised; `__cause__` is what it raised.
    """
    asked = run_options(options)
    training, loss, mesh = asked["training"], asked["loss"], asked["mesh"]
    check_truth("training", training, none="the mode in which each module stands")
    for name in ("grad", "fake", "partial", "kernels"):
        check_truth(name, asked[name])
    backward, fake, parallelize = asked["backward"], asked["fake"], asked["parallelize"]
    steps = check_profile(asked["profile"])
    check_loss(loss, backward)
    if steps and fake:
        raise ArgumentError(
            f"profile={shown(asked['profile'])} has nothing to measure with fake=True",
            why="on stand-ins nothing is computed but shapes",
            fix="leave one of the two out",
        )
    world = world_of(asked["world_size"], asked["rank"], mesh, parallelize)
    with one_at_a_time(), collecting_rarely(), alone(), watch_training_modes(), world as spans:
        if parallelize is not None:
            # It may fill what it makes at random.
            with Preserved(()):
                model = parallelized(model, parallelize, spans, fake=fake)
        # A model that offers inputs of its own may draw them at random.
        with Preserved(()) if input_to_model is None else nullcontext():
            args, keywords = bind_inputs(
                _unwrapped(model),
                input_to_model,
                asked["kwargs"],
                made=Made(asked["input_size"], asked["dtypes"], fake=fake),
            )
        run = _Run(
            *(_unwrapped(model), args, keywords),
            training=training,
            kernels=asked["kernels"],
            steps=steps,
            given=input_to_model,
        )
        run.step(loss, backward=backward)
        grad = asked["grad"] or backward
        graph = run.trace(grad=grad, fake=fake, partial=asked["partial"])
        if steps:
            run.profile(graph, grad=grad)
        if mesh is not None:
            graph.mesh = dimensions_at(graph.rank, mesh)
        return graph


class _Run:
    """One traced call of a model.

    Args:
        model: The module or other callable.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        training: The mode of its modules; None for that in which each stands.
        kernels: Whether kernels are recorded as nodes.
        steps: How many further runs are measured; 0 for none.
        given: What the arguments were made of.
    Raises:
        ArgumentError: There is nothing to measure.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        training: bool | None,
        kernels: bool = False,
        steps: int = 0,
        given: Any = None,
    ) -> None:
        self._model = model
        self._args = args
        self._kwargs = kwargs
        self._training = training
        self._steps = steps
        self._given = given
        self._log = CallLog() if steps else None
        self._owner = owner_of(model)
        self._recorder = recorder = Recorder(name_of(model), boundary=watched_call, bodies=kernels)
        if isinstance(model, torch.nn.Module):
            recorder.registry.add_root(model)
        elif self._owner is not None:
            recorder.registry.add_root(self._owner)
        self._modules = recorder.registry.modules()
        if steps:
            check_measurable(self._modules, argument_names(model, args, kwargs))
        self._preserved = Preserved(self._modules, (args, kwargs, model), training=training)
        self._loss: Loss | None = None
        self._backward = False
        self._adopted: list[torch.nn.Module] = []
        self._stepping: list[torch.optim.Optimizer] = []
        # Those that have switched themselves, by methods of their own.
        self._switched: list[torch.nn.Module] = []
        recorder.operations.about_to_write = self._preserved.about_to_write
        recorder.about_to_set = self._preserved.about_to_set
        recorder.about_to_accumulate = self._preserved.about_to_accumulate
        recorder.about_to_step = self._add_optimizer
        recorder.scopes.adopted = self._adopt

    def step(self, loss: Loss | None, *, backward: bool) -> None:
        """Have a loss made of what the model gives, and a backward pass begun at it."""
        self._loss, self._backward = loss, backward
        if backward:
            self._recorder.record_backward()

    def trace(self, *, grad: bool, fake: bool, partial: bool) -> Graph:
        """Run the model and return its graph; everything is then as it was before."""
        recorder = self._recorder
        with ExitStack() as stack:
            stack.enter_context(self._preserved)
            if self._is_to_switch():
                stack.enter_context(ready_to_watch())
                self._switch(self._modules[0])
            stand_ins = None
            if fake:
                stand_ins = stack.enter_context(faked())
                self._stand_in(stand_ins)
            self._add_inputs()
            try:
                with torch.set_grad_enabled(grad), Watch(recorder, self._log, stand_ins=stand_ins):
                    result = self._call()
                    end = self._run_step(result)
            except ScopeError:
                raise
            except Exception as error:
                if isinstance(error, ArgumentError) and raised_in_tbscope(error):
                    # The name of a scope is wrong, or the loss, and not how the model computes.
                    raise
                describe_calls(recorder)
                if not partial:
                    told = Told(grad=grad, fake=fake, given=self._given, measured=self._steps > 0)
                    raise trace_error(error, recorder, told) from error
                recorder.end_with(error, without_addresses(error_text(error)))
            else:
                for path, tensor in result_leaves(result):
                    recorder.add_output(path, tensor)
                if end is not None:
                    recorder.add_output("loss", end)
                del result, end
                # Before all is put back: a lazy module has its sizes only now.
                describe_calls(recorder)
        graph = recorder.close()
        graph.notes += map(Note, self._preserved.left)
        return graph

    def profile(self, graph: Graph, *, grad: bool) -> None:
        """Run the model again to measure the nodes of its graph; all is as before then."""
        if self._recorder.ended:
            graph.notes.append(Note("nothing was measured: the model raised"))
            return
        assert self._log is not None
        repeats = Repeats(
            self._again,
            [*self._modules, *self._adopted],
            (self._args, self._kwargs, self._model, self._stepping),
            training=self._training,
            switched=self._switched,
            grad=grad,
            written=self._preserved.written(),
            were_set=self._preserved.were_set(),
        )
        profile_graph(graph, self._log, repeats, steps=self._steps, recorder=self._recorder)

    def _stand_in(self, stand_ins: StandIns) -> None:
        """Have stand-ins for all tensors of the model and its inputs."""
        recorder = self._recorder
        recorder.use(stand_ins)
        self._args, self._kwargs = stand_ins.of_inputs((self._args, self._kwargs))

        def adopt(module: torch.nn.Module) -> None:
            self._adopt(module)
            recorder.add_stand_ins(module, stand_ins)

        recorder.scopes.adopted = adopt

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep an optimizer as it is that makes a step in the run (in a hook)."""
        self._preserved.add_optimizer(optimizer)
        if self._steps:
            self._stepping.append(optimizer)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Keep a module as it is that the run meets."""
        with outside_modes():
            self._preserved.add_module(module)
        if self._steps:
            self._adopted.append(module)
        if self._training is None or not switches_itself([module]):
            return
        if not any(module in root.modules() for root in self._switched):
            for inner in module.modules():
                with outside_modes():
                    self._preserved.add_module(inner)
            self._switch(module)

    def _is_to_switch(self) -> bool:
        """Tell whether the model is to switch its mode by its own method.

        One that stands in evaluation has been put there: its method has run, and may not be
        made to run twice. One in training may stand as it was made, and has never run it.
        """
        if self._training is None:
            return False
        if not self._training and self._preserved.stood_in_evaluation():
            return False
        return switches_itself(self._modules)

    def _switch(self, root: torch.nn.Module) -> None:
        """Have a module switch its mode by its own method, of which nothing is drawn.

        What that writes is put back all the same.
        """
        watcher = Recorder("", boundary=watched_call)
        watcher.operations.about_to_write = self._preserved.about_to_write
        watcher.about_to_set = self._preserved.about_to_set
        watcher.about_to_accumulate = self._preserved.about_to_accumulate
        try:
            with alone(), Watch(watcher):
                self._preserved.switch(root)
        except Exception as error:  # noqa: BLE001 (the user's code)
            method = "train" if self._training else "eval"
            self._tell(
                f"{class_label(root)}.{method}() raised {error_text(error)}: each of its modules "
                "was switched by itself"
            )
        else:
            self._switched.append(root)

    def _add_inputs(self) -> None:
        """Name the tensors among the arguments."""
        for name, given in argument_names(self._model, self._args, self._kwargs):
            for path, tensor in tensor_leaves(given, name, public=True):
                require_made(path, tensor)
                self._recorder.add_input(path, tensor)
            for path, tensor in tensor_leaves(given, name):
                self._recorder.add_hidden_input(path, tensor)

    def _call(self) -> Any:
        """Call the model; a callable other than a module gets a scope that says what it is."""
        model, recorder = self._model, self._recorder
        owner = model if isinstance(model, torch.nn.Module) else self._owner
        if model is owner:
            result = model(*self._args, **self._kwargs)
        elif owner is not None:
            with recorder.scopes.inside(owner, 0):
                result = model(*self._args, **self._kwargs)
        else:
            name = name_of(model)
            recorder.open_scope(name)
            result = computed(model(*self._args, **self._kwargs), self._tell)
            recorder.know(result)
            recorder.close_scope(name)
            return result
        with recorder.scopes.inside(owner, 0):
            return computed(result, self._tell)

    def _run_step(self, result: Any) -> torch.Tensor | None:
        """Make the loss, and run the backward pass; return the loss, where one was made."""
        if self._loss is None and not self._backward:
            return None
        loss = loss_of(result, self._loss, backward=self._backward)
        if self._backward:
            torch.autograd.backward(loss)
        return None if self._loss is None else loss

    def _tell(self, text: str) -> None:
        self._recorder.graph.notes.append(Note(text))

    def _again(self) -> Any:
        """Call the model, with the loss and the backward pass that are drawn, and nothing else."""
        result = computed(self._model(*self._args, **self._kwargs))
        self._run_step(result)
        return result


def _unwrapped(model: Any) -> Any:
    """Return the model inside of a wrapper that spreads it over devices or processes.

    Drawing it on one of them must not wait for the others.
    """
    spread = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(model, spread):
        model = model.module
    return model


def owner_of(model: Any) -> torch.nn.Module | None:
    """Return the module that a callable belongs to; None where it belongs to none."""
    while isinstance(model, functools.partial):
        model = model.func
    if isinstance(model, torch.nn.Module):
        return uncompiled(model)
    owner = attribute_of(model, "__self__")
    return owner if isinstance(owner, torch.nn.Module) else None


def name_of(model: Any) -> str:
    """Return the name of a callable: of a module, or of a method of one, that of its class."""
    owner = owner_of(model)
    if owner is not None:
        return class_label(owner)
    while isinstance(model, functools.partial):
        model = model.func
    name = attribute_of(model, "__name__") or type(model).__name__
    return "lambda" if name == "<lambda>" else str(name)
