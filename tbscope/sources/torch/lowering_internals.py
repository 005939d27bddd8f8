"""The private parts of torch by which a captured graph is lowered: with its gradients, to kernels.

All others are named in the other files of internals. torch promises nothing about them. What a
version that is supported lacks has a fallback here, or an error.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tbscope.errors import TraceError

__all__ = ["Kernels", "aot_place", "copy_to_compile", "fuse", "partition_ahead"]


def copy_to_compile(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a captured graph module that a backend may change, with what backends look for."""
    graph = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    result = graph.graph_copy(module.graph, known)
    graph.output(result)
    twin = torch.fx.GraphModule(module, graph)
    twin.meta.update(module.meta)
    for name in ("_param_name_to_source", "_source_to_user_stacks"):
        if hasattr(module, name):
            setattr(twin, name, getattr(module, name))
    for old, new in known.items():
        source = getattr(old, "_dynamo_source", None)
        if source is not None:
            new._dynamo_source = source
    return twin


def partition_ahead(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    told: Callable[[str, torch.fx.GraphModule], None],
) -> None:
    """Trace a captured graph with its gradients, as backends do; nothing of it is compiled.

    Args:
        module: The graph; it may be changed.
        example_inputs: What it takes.
        told: Is told of each graph that comes of it: "joint", "forward" and "backward" where
            gradients are wanted, else "forward".
    """
    split_in_two = importlib.import_module("functorch.compile").min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    is_split = False

    def partition(whole: Any, inputs: Any, **kwargs: Any) -> Any:
        nonlocal is_split
        is_split = True
        told("joint", whole)
        forward, backward = split_in_two(whole, inputs, **kwargs)
        told("forward", forward)
        told("backward", backward)
        return forward, backward

    def compile_nothing(part: torch.fx.GraphModule, inputs: Any) -> Any:
        if not is_split:
            told("forward", part)
        return part.forward

    aot_autograd(
        fw_compiler=compile_nothing,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )(module, example_inputs)


class Kernels(NamedTuple):
    """What the compiler of kernels makes of a graph.

    Attributes:
        module: The graph that it has made kernels of.
        backward: Whether it is that of a backward pass.
        kernels: For each kernel, in the order in which they run, the nodes of the graph that it
            computes, and whether it is a function of a library.
    """

    module: torch.fx.GraphModule
    backward: bool
    kernels: list[tuple[list[str], bool]]


class _FusedError(Exception):
    """Ends the making of a kernel before code is written for it."""


def fuse(
    module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    told: Callable[[Kernels], None],
) -> None:
    """Have Inductor choose the kernels of a graph; no code is written, no compiler is needed.

    Args:
        module: The graph; it is changed.
        example_inputs: What it takes.
        told: Is told of the kernels of each of its parts, the forward and the backward pass.
    Raises:
        TraceError: This torch does not tell.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._inductor.virtualized import V

    if not hasattr(config, "_post_fusion_custom_pass"):
        raise TraceError(
            "stage='inductor' needs the kernels that Inductor chooses",
            why=f"torch {torch.__version__} does not tell of them",
            fix="leave stage='inductor' out",
        )

    def chosen(nodes: list[Any]) -> list[Any]:
        lowered: Any = V.graph
        kernels = [kernel for kernel in map(_kernel, nodes) if kernel[0]]
        told(Kernels(lowered.module, bool(lowered.is_backward), kernels))
        raise _FusedError

    def inner(part: torch.fx.GraphModule, inputs: Any, **kwargs: Any) -> Any:
        with config.patch(_post_fusion_custom_pass=chosen, fx_graph_cache=False):
            try:
                compile_fx_inner(part, inputs, **kwargs)
            except Exception as error:
                if not _is_caused_by(error, _FusedError):
                    raise
        return part.forward

    with _backward_at_once():
        compile_fx(module, example_inputs, inner_compile=inner)


def _backward_at_once() -> Any:
    """Return a block in which the backward pass is compiled with the forward pass."""
    config: Any = importlib.import_module("torch._functorch.config")
    wanted = {"force_non_lazy_backward_lowering": True, "enable_autograd_cache": False}
    return config.patch({name: value for name, value in wanted.items() if hasattr(config, name)})


def _kernel(fused: Any) -> tuple[list[str], bool]:
    nodes: dict[str, None] = {}
    library = False
    for each in fused.get_nodes():
        inner = getattr(each, "node", None)
        library = library or "Extern" in type(each).__name__
        nodes.update((origin.name, None) for origin in getattr(inner, "origins", None) or ())
    return list(nodes), library


def _is_caused_by(error: BaseException | None, kind: type[Exception]) -> bool:
    while error is not None:
        if isinstance(error, kind) or kind.__name__ in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def aot_place(described: Any) -> tuple[str, Any]:
    """Return what an input or an output of a graph with gradients is, as it describes it.

    Returns:
        A word with what belongs to it: "input" or "result" with a number, "tangent" with the
        number of the result, "gradient" with the number of the input, "saved", or "" where it
        tells nothing.
    """
    kind, place = type(described).__name__, getattr(described, "idx", None)
    if kind == "PlainAOTInput":
        return "input", place
    if kind == "PlainAOTOutput":
        return "result", place
    if kind == "TangentAOTInput":
        return "tangent", getattr(getattr(described, "output", None), "idx", None)
    if kind == "GradAOTOutput":
        return "gradient", getattr(getattr(described, "grad_of", None), "idx", None)
    if kind == "SavedForBackwardsAOTOutput":
        return "saved", place
    return "", None
