"""`tbscope.trace`: one watched run of a model, after which everything is restored."""

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, Unpack

import torch

from tbscope.errors import ArgumentError, ScopeError
from tbscope.ir.graph import Graph, Note
from tbscope.ir.metadata import dimensions_at
from tbscope.messages import error_text, shown, without_addresses
from tbscope.run_options import Tracing, run_options
from tbscope.sources.eager.measure.profiling import check_profile, profile_graph
from tbscope.sources.eager.measure.repeats import Repeats, check_measurable
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.restore.preserve import Snapshot
from tbscope.sources.eager.thread_state import suspend_watchers, trace_lock
from tbscope.sources.eager.trace_error import RunContext, trace_error
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.eager.watch.changes_outside_modes import TRAIN_EVAL
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.calling.bind import DummyInputs, bind_inputs, require_made
from tbscope.sources.torch.calling.deferred_results import computed
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.calling.signatures import argument_names
from tbscope.sources.torch.compat.compiler import never_compiled
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.sources.torch.compat.tensors import outside_modes
from tbscope.sources.torch.fake import FakeTensors, faked
from tbscope.sources.torch.fake_process_group import parallelized_copy, simulated_world
from tbscope.sources.torch.module_names import class_label, switches_itself
from tbscope.sources.torch.source_location import raised_in_tbscope
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.option import shows_options
from tbscope.utils.validation import ask, attribute_of


@never_compiled
@shows_options
def trace(
    model: Callable[..., Any], input_to_model: Any = None, **options: Unpack[Tracing]
) -> Graph:
    """Run a model once and return the graph of the run.

    Everything that the run changes is restored: training flags, parameters, buffers and gradients,
    attributes and hooks, the state of the random generators, and the inputs themselves.

    >>> import torch, tbscope
    >>> print(tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3)))
    graph(%input : Float(1, 3)):
      %1 : Float(1, 5) = linear(%input, %weight, %bias), scope: Linear
      return (%1)

    Args:
        model: A module, or any other callable (a method, a function, a partial).
        input_to_model: Arguments of the model. A tensor is one argument; a tuple or list contains
            the positional arguments; a mapping whose keys are parameters of forward contains
            keyword arguments, and any other mapping is one positional argument. None: no
            arguments if forward needs none, else the model's `example_input_array` or
            `dummy_inputs`.
        options: Options of the run (`Running`: `training`, `fake`, `backward`, `profile` and
            more), of a simulated distributed run (`World`), and `kernels`, which records the
            kernels inside of each operation.
    Returns:
        The graph of the run.
    Raises:
        InputError: The inputs do not fit the parameters of forward.
        ArgumentError: There is nothing to measure, or no run could have this world.
        TraceError: The model raised; `__cause__` is the model's error.
    """
    asked = run_options(options)
    mesh, parallelize = asked["mesh"], asked["parallelize"]
    steps = check_profile(asked["profile"])
    world = simulated_world(asked["world_size"], asked["rank"], mesh, parallelize)
    # Enclosing recordings and step watchers must not record this run.
    with trace_lock(), collecting_rarely(), suspend_watchers(), TRAIN_EVAL, world as spans:
        if parallelize is not None:
            # `parallelize` may draw random numbers, so the generators are restored.
            with Snapshot(()):
                model = parallelized_copy(model, parallelize, spans, fake=asked["fake"])
        spread = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
        while isinstance(model, spread):
            # The wrapper would wait for other devices or processes, so the module inside runs.
            model = model.module
        # The model's own inputs (`example_input_array`) may be drawn at random.
        with Snapshot(()) if input_to_model is None else nullcontext():
            args, keywords = bind_inputs(
                model,
                input_to_model,
                asked["kwargs"],
                made=DummyInputs(asked["input_size"], asked["dtypes"], fake=asked["fake"]),
            )
        run = _Run(model, args, keywords, asked, steps=steps, inputs=input_to_model)
        graph = run.trace()
        if steps:
            run.profile(graph)
        if mesh is not None:
            graph.mesh = dimensions_at(graph.rank, mesh)
        return graph


@dataclass
class _Run:
    """One traced call of a model.

    Attributes:
        model: The module or other callable.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        asked: The options of the run.
        steps: Number of further runs that are measured; 0 for none.
        inputs: The `input_to_model` of the caller, from which the arguments were made.
    Raises:
        ArgumentError: There is nothing to measure.
    """

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    asked: Mapping[str, Any]
    _: KW_ONLY
    steps: int
    inputs: object

    def __post_init__(self) -> None:
        model = self.model
        self._training: bool | None = self.asked["training"]
        self._grad: bool = self.asked["grad"] or self.asked["backward"]
        self._log = CallLog() if self.steps else None
        self._owner = model if isinstance(model, torch.nn.Module) else owner_of(model)
        recorder = Recorder(name_of(model), boundary=watched_call, bodies=self.asked["kernels"])
        self._recorder = recorder
        if self._owner is not None:
            recorder.registry.add_root(self._owner)
        self._modules = recorder.registry.modules()
        if self.steps:
            check_measurable(self._modules, (self.args, self.kwargs), fake=self.asked["fake"])
        inputs = self.args, self.kwargs, model
        self._preserved = Snapshot(self._modules, inputs, training=self._training)
        self._stand_ins: FakeTensors | None = None
        self._adopted: list[torch.nn.Module] = []
        self._stepping: list[torch.optim.Optimizer] = []
        # Modules that were switched by their own `train()` or `eval()`.
        self._switched: list[torch.nn.Module] = []
        recorder.report_changes(self._preserved, self._add_optimizer)
        recorder.scopes.adopted = self._adopt
        if self.asked["backward"]:
            recorder.record_training()

    def trace(self) -> Graph:
        """Run the model, restore everything, and return the graph."""
        recorder, fake = self._recorder, self.asked["fake"]
        with ExitStack() as stack:
            stack.enter_context(self._preserved)
            # A model in evaluation mode was put there by its own `eval()`, which may not run twice
            # (it may merge weights). A new model is in training mode without a run of its own
            # `train()`.
            if (
                self._training is not None
                and switches_itself(self._modules)
                and (self._training or not self._preserved.stood_in_evaluation())
            ):
                self._switch(self._modules[0])
            if fake:
                self._stand_ins = stack.enter_context(faked())
                recorder.use_fakes(self._stand_ins)
                inputs = self._stand_ins.of_inputs((self.args, self.kwargs))
                self.args, self.kwargs = inputs
            for name, arg in argument_names(self.model, self.args, self.kwargs):
                for path, tensor in tensor_leaves(arg, name, public=True):
                    require_made(path, tensor)
                    recorder.flow.sources.add_input(path, tensor)
                for path, tensor in tensor_leaves(arg, name):
                    recorder.flow.sources.add_hidden_input(path, tensor)
            try:
                watch = Watch(recorder, self._log, stand_ins=self._stand_ins)
                with torch.set_grad_enabled(self._grad), watch:
                    result = self._call()
                    end = self._run_step(result)
            except ScopeError:
                raise
            except Exception as error:
                if isinstance(error, ArgumentError) and raised_in_tbscope(error):
                    # The argument of a scope or the loss is wrong: the model itself computes
                    # correctly.
                    raise
                describe_calls(recorder)
                if not self.asked["partial"]:
                    context = RunContext(grad=self._grad, fake=fake, inputs=self.inputs)
                    raise trace_error(error, recorder, context) from error
                recorder.end_with(error, without_addresses(error_text(error)))
            else:
                for path, tensor in result_leaves(result):
                    recorder.flow.add_output(path, tensor)
                if end is not None:
                    recorder.flow.add_output("loss", end)
                del result, end
                # Before everything is restored: a lazy module has its sizes only until then.
                describe_calls(recorder)
        graph = recorder.close()
        graph.notes += map(Note, self._preserved.left)
        return graph

    def profile(self, graph: Graph) -> None:
        """Run the model again to measure the nodes of its graph, and restore everything."""
        if self._recorder.ended:
            graph.notes.append(Note("nothing was measured: the model raised"))
            return
        assert self._log is not None
        repeats = Repeats(
            self._again,
            [*self._modules, *self._adopted],
            (self.args, self.kwargs, self.model, self._stepping),
            training=self._training,
            switched=self._switched,
            grad=self._grad,
            written=self._preserved.written(),
            were_set=self._preserved.were_set(),
        )
        profile_graph(graph, self._log, repeats, steps=self.steps, recorder=self._recorder)

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a snapshot of an optimizer that makes a step in the run (called in a hook)."""
        self._preserved.add_optimizer(optimizer)
        if self.steps:
            self._stepping.append(optimizer)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Take a snapshot of a module that is first seen during the run."""
        with outside_modes():
            self._preserved.add_module(module)
        if self.steps:
            self._adopted.append(module)
        if (
            self._training is not None
            and switches_itself([module])
            and not any(module in root.modules() for root in self._switched)
        ):
            for inner in module.modules():
                with outside_modes():
                    self._preserved.add_module(inner)
            self._switch(module)
        if self._stand_ins is not None:
            self._recorder.add_fakes(module, self._stand_ins)

    def _switch(self, root: torch.nn.Module) -> None:
        """Switch a module's mode by its own `train()` or `eval()`, which is not drawn.

        Its writes are recorded by a second recorder, so that they are restored.
        """
        watcher = Recorder("", boundary=watched_call)
        watcher.report_changes(self._preserved)
        try:
            with suspend_watchers(), Watch(watcher):
                self._preserved.switch(root)
        except Exception as error:  # noqa: BLE001 (the user's code)
            method = "train" if self._training else "eval"
            self._add_note(
                f"{class_label(root)}.{method}() raised {error_text(error)}: each of its modules "
                "was switched by itself"
            )
        else:
            self._switched.append(root)

    def _call(self) -> object:
        """Call the model; a callable without a module gets a scope with its name."""
        model, owner, recorder = self.model, self._owner, self._recorder
        if owner is None:
            name = name_of(model)
            recorder.events.scope_opened(name)
            result = computed(model(*self.args, **self.kwargs), self._add_note)
            recorder.events.scope_closed(name, result=result)
            return result
        with nullcontext() if model is owner else recorder.scopes.inside(owner, 0):
            result = model(*self.args, **self.kwargs)
        with recorder.scopes.inside(owner, 0):
            return computed(result, self._add_note)

    def _run_step(self, result: object) -> torch.Tensor | None:
        """Run loss and backward pass, if requested; return the loss, or None if `loss` is unset."""
        loss, backward = self.asked["loss"], self.asked["backward"]
        if loss is None and not backward:
            return None
        tensor = _loss_of(result, loss, backward=backward)
        if backward:
            torch.autograd.backward(tensor)
        return None if loss is None else tensor

    def _add_note(self, text: str) -> None:
        self._recorder.graph.notes.append(Note(text))

    def _again(self) -> object:
        """Call the model, with loss and backward pass, but without recording."""
        result = computed(self.model(*self.args, **self.kwargs))
        self._run_step(result)
        return result


def owner_of(model: object) -> torch.nn.Module | None:
    """Return the module that a callable belongs to, or None."""
    while isinstance(model, functools.partial):
        model = model.func
    if isinstance(model, torch.nn.Module):
        return uncompiled(model)
    owner = attribute_of(model, "__self__")
    return owner if isinstance(owner, torch.nn.Module) else None


def name_of(model: object) -> str:
    """Return the name of a callable; for a module or its method, the name of the module's class."""
    owner = owner_of(model)
    if owner is not None:
        return class_label(owner)
    while isinstance(model, functools.partial):
        model = model.func
    name = attribute_of(model, "__name__") or type(model).__name__
    return "lambda" if name == "<lambda>" else str(name)


# -- the loss at which a backward pass begins ------------------------------------------------

_FIX = "add_graph(model, x, backward=True, loss=lambda out: out.pow(2).mean())"


def _loss_of(
    result: object, loss: Callable[[Any], object] | None, *, backward: bool
) -> torch.Tensor:
    """Return the loss for the result of a model.

    Args:
        result: The result of the model.
        loss: A function that computes the loss; None if the model returns it: a scalar, or an
            object or mapping with a scalar called `loss`.
        backward: Whether a backward pass begins at the loss.
    Raises:
        ArgumentError: The result is no loss.
    """
    tensor: Any
    if loss is not None:
        name = f"loss={shown(loss)}"
        tensor = ask(loss, result, option="loss", place="the model's result", fix=_FIX)
    elif isinstance(result, Mapping):
        tensor, name = result.get("loss"), "the model's result"
    else:
        tensor, name = getattr(result, "loss", result), "the model's result"
    if not isinstance(tensor, torch.Tensor):
        text = shown(tensor)
    elif not backward or (tensor.numel() == 1 and tensor.requires_grad):
        return tensor
    else:
        text = f"a tensor of shape {tuple(tensor.shape)}"
    raise ArgumentError(
        f"{name} is no loss: it is {text}",
        why="a loss is a tensor of one element, and a parameter from which it is computed requires "
        "a gradient",
        fix=_FIX,
    )
