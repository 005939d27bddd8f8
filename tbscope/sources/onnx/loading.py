"""Loading of ONNX files and messages, which may be broken, huge, or no models at all."""

import os
import sys
from typing import TYPE_CHECKING, Any

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.files import ELSEWHERE
from tbscope.sources.onnx.types import MOST_ELEMENTS, import_extra
from tbscope.utils.files import path_of

if TYPE_CHECKING:
    import onnx_ir
    from onnx import ModelProto


_FIX = "give the path of an ONNX file, or the result of onnx.load"


def is_model(source: object) -> bool:
    """Whether an object is an ONNX model, or a path that ends in `.onnx`."""
    path = path_of(source)
    if path is not None:
        return path.endswith(".onnx")
    onnx = sys.modules.get("onnx")
    if onnx is not None and isinstance(source, onnx.ModelProto):
        return True
    ir = sys.modules.get("onnx_ir")
    return (ir is not None and isinstance(source, ir.Model)) or is_program(source)


def load_model(source: Any) -> "ModelProto":
    """Return a model as a `ModelProto`, without its data in other files.

    Args:
        source: The path of a file, a `ModelProto`, an `onnx_ir.Model`, or the `ONNXProgram` of
            `torch.onnx.export`.
    Raises:
        ArgumentError: The argument is none of these, the file cannot be read, or the model has no
            graph.
    """
    onnx = import_extra("onnx")
    if isinstance(source, onnx.ModelProto):
        return _whole(source, "the message")
    path = path_of(source)
    if "://" in (path or ""):
        why, fix = ELSEWHERE
        raise ArgumentError(f"no ONNX model can be read of {shown(source)}", why=why, fix=fix)
    if path is not None:
        return _whole(_read(onnx, path, shown(source)), shown(source))
    if is_program(source):
        source = source.model
    ir = sys.modules.get("onnx_ir")
    if ir is not None and isinstance(source, ir.Model):
        return _whole(_without_data(ir, source), "the model")
    raise ArgumentError(
        f"no ONNX model can be read of {shown(source)}",
        why="a model is a file, a ModelProto, an onnx_ir.Model, or the result of torch.onnx.export",
        fix=_FIX,
    )


def _read(onnx: Any, path: str, what: str) -> "ModelProto":
    try:
        # Data in other files is not loaded: a graph needs none of it.
        model: ModelProto = onnx.load(path, format="protobuf", load_external_data=False)
        return model
    except Exception as error:  # The parsers of all formats raise errors of their own.
        raise ArgumentError(
            f"no ONNX model can be read of {what}",
            why=error_text(error),
            fix="onnx.checker.check_model(path) has details; a model of more than 2 GB has its "
            "data in other files"
            if os.path.isfile(path)
            else _FIX,
        ) from error


def _whole(model: "ModelProto", what: str) -> "ModelProto":
    """Return a model, if it has a graph and all its texts are UTF-8.

    Raises:
        ArgumentError: It has no graph, or a text that is not UTF-8.
    """
    if model.HasField("graph") and (model.graph.node or model.graph.output):
        broken = _broken_text(model)
        if broken is None:
            return model
        raise ArgumentError(
            f"no graph can be read of {what}",
            why=f"it has {shown(broken)} in place of a name, which is no text in UTF-8",
            fix="the file is broken: write it again",
        )
    raise ArgumentError(
        f"no graph can be read of {what}",
        why="it is a model without a graph",
        fix=_FIX,
    )


def _broken_text(message: Any) -> bytes | None:
    """Return a text of a message that is not UTF-8, or None; protobuf returns it as bytes."""
    pending = [message]
    while pending:
        for entry, content in pending.pop().ListFields():
            if entry.type == entry.TYPE_STRING:
                for text in [content] if isinstance(content, str | bytes) else content:
                    if isinstance(text, bytes):
                        return text
            elif entry.type == entry.TYPE_MESSAGE:
                pending += [content] if hasattr(content, "ListFields") else content
    return None


def is_program(obj: object) -> bool:
    """Whether an object is the `ONNXProgram` that `torch.onnx.export` returns."""
    kind = type(obj)
    return kind.__name__ == "ONNXProgram" and kind.__module__.partition(".")[0] == "torch"


def _without_data(ir: Any, model: "onnx_ir.Model") -> "ModelProto":
    """Return the `ModelProto` of an `onnx_ir` model, without the data of its large tensors.

    A message has at most 2 GB.
    """
    copy = model.clone()
    for value in copy.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.size > MOST_ELEMENTS:
            value.const_value = ir.ExternalTensor(
                "left_out",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=tensor.shape,
                name=value.name or "",
            )
    message: ModelProto = ir.to_proto(copy)
    return message
