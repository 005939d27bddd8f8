"""Export of a model to ONNX with its modules as functions, with parameters in call order."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tbscope.errors import ArgumentError, TraceError
from tbscope.messages import error_text, shown
from tbscope.sources.eager.trace import trace
from tbscope.sources.onnx.export.modules_to_functions import (
    Modules,
    Regrouped,
    check_domain,
    modules_to_functions,
    selector,
)
from tbscope.sources.onnx.optional_deps import import_extra
from tbscope.sources.torch.calling.bind import DummyInputs, bind_inputs
from tbscope.utils.validation import Dtypes, InputSize, check_truth

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

__all__ = ["export_onnx"]

_MOST_BYTES = 1 << 30


def export_onnx(
    model: torch.nn.Module,
    input_to_model: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
    modules: Modules = None,
    domain: str = "modules",
    training: bool | None = False,
    **options: object,
) -> Regrouped:
    """Export a model to ONNX, and make the calls of its modules local functions.

    A trace of one call records the order of each module's arguments; then
    `torch.onnx.export(..., dynamo=True)` exports the model. Its state is afterwards as before.

    >>> import torch, tbscope
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    >>> exported = tbscope.export_onnx(model, torch.rand(1, 3), path="net.onnx")
    >>> print(*exported.functions)
    modules::Linear(%input, %weight, %bias; in_features, out_features, bias) -> (%linear), 2 uses

    Args:
        model: The module.
        input_to_model: The inputs, as for `trace`; so are `kwargs`, `input_size` and `dtypes`.
        kwargs: Further keyword arguments.
        path: The path of the file to write; None to write no file. A model of more than 1 GiB
            has its data in a second file, named like the first with `.data`.
        input_size: The sizes of generated inputs.
        dtypes: Their element types.
        modules: Which modules become functions, as for `modules_to_functions`.
        domain: The domain of the functions.
        training: Whether the model is exported in training mode; None for its present mode.
        options: Further options of `torch.onnx.export` (`dynamic_shapes`, `opset_version`).
    Returns:
        The model, as an `onnx_ir.Model`, with a description of its functions.
    Raises:
        TraceError: The model raises, or cannot be exported.
        ArgumentError: A package of the extra is not installed; an argument does not fit.
    """
    ir = import_extra("onnx_ir")
    import_extra("onnxscript")
    check_truth("training", training, none="the present mode of each module")
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"no module is exported of {shown(model)}",
            why="the calls of modules become functions, and only a module has some",
            fix="export_onnx(model, (x,), path='model.onnx')",
        )
    if options.get("dynamo") is False:
        raise ArgumentError(
            "dynamo=False exports a model without its modules",
            why="the older exporter does not write the module of each node",
            fix="leave dynamo out",
        )
    _check_path(path)
    domain = check_domain(domain)
    selector(modules)
    made = DummyInputs(input_size, dtypes)
    args, keywords = bind_inputs(model, input_to_model, kwargs, made=made)
    record = trace(model, args, kwargs=keywords, training=training)
    program = _export(model, args, keywords, training, {**options, "dynamo": True})
    result = modules_to_functions(program, modules, domain=domain, record=record)
    if path is not None:
        tensors = [value.const_value for value in result.model.graph.initializers.values()]
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        data = f"{os.path.basename(os.fspath(path))}.data" if size > _MOST_BYTES else None
        ir.save(result.model, path, external_data=data)
    return result


def _check_path(path: object) -> None:
    """Raise ArgumentError if no file can be written at `path`; called before the model runs."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(
            f"path={shown(path)} is no path",
            why="the model is written there",
            fix="path='model.onnx', or None to write nothing",
        )
    file = Path(path)
    if not os.path.isdir(file.parent) or os.path.isdir(file):
        raise ArgumentError(
            f"no model can be written to path={shown(os.fspath(path))}",
            why="it is a directory" if os.path.isdir(file) else "there is no such directory",
            fix=f"mkdir -p {file.parent}",
        )


def _export(
    model: torch.nn.Module,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    training: bool | None,
    options: dict[str, Any],
) -> "ONNXProgram | None":
    modes = {module: module.training for module in model.modules()}
    options.setdefault("verbose", False)
    try:
        if training is not None:
            model.train(training)
        return torch.onnx.export(model, args, kwargs=kwargs, **options)
    except Exception as error:  # The exporter raises errors of many kinds.
        reason: BaseException = error
        # Its own errors advise about the exporter, and the reason is their cause.
        while reason.__cause__ and type(reason).__module__.startswith("torch.onnx"):
            reason = reason.__cause__
        raise TraceError(
            f"{type(model).__name__} cannot be exported to ONNX",
            why=error_text(reason),
            fix="torch.onnx.export(model, args, dynamo=True, report=True) has details",
        ) from error
    finally:
        for module, mode in modes.items():
            module.training = mode
