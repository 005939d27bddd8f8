"""Makes the graph of an ONNX model."""

import os
from collections.abc import Mapping
from typing import Any

from tbscope.files import path_of
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Graph, Module, Nest, Node, Note, Parameter
from tbscope.ir.regions import STATE, describe_calls
from tbscope.ir.scopes import Scope
from tbscope.sources.onnx.body import Body, broken, tell_symbols
from tbscope.sources.onnx.flatten import Frame, flatten
from tbscope.sources.onnx.loading import load_model
from tbscope.sources.onnx.metadata import Level, Origin
from tbscope.sources.onnx.origins import Origins, frame_number
from tbscope.sources.onnx.places import Places
from tbscope.sources.onnx.scoping import Scopes, label_of
from tbscope.sources.onnx.tensors import held_in
from tbscope.sources.onnx.types import UNKNOWN, infer

__all__ = ["from_onnx"]


def from_onnx(path_or_proto: Any) -> Graph:
    """Read an ONNX model as a graph, grouped by the modules that it was made of.

    Modules are known by the metadata that `torch.onnx.export(dynamo=True)` writes; else by the
    names of the nodes, as torch's exporter before it and others write them
    (`/layer1/layer1.0/conv1/Conv`); else by the names of the parameters. A call of a local
    function is a scope with the body of the function, and so are the bodies of If, Loop and Scan.
    Nothing runs, and no data is read that the model keeps in other files.

    Args:
        path_or_proto: The path of an .onnx file, a `ModelProto`, an `onnx_ir.Model`, or what
            `torch.onnx.export` gives.
    Returns:
        The graph. A size that is known by a name alone (`batch`) is None, and told by the
        attribute `symbolic_shape`.
    Raises:
        ArgumentError: onnx is not installed; or it is no model, a broken one, or one whose
            functions call themselves.
    """
    model = load_model(path_or_proto)
    try:
        return _Reading(model, _title(path_or_proto)).run()
    except (UnicodeDecodeError, OverflowError) as error:
        raise broken(f"it cannot be read: {type(error).__name__}: {error}") from error


def _title(given: object) -> str:
    """Return the name of a file, without its ending; empty for what is none."""
    return os.path.basename(path_of(given) or "").removesuffix(".onnx")


class _Reading:
    """One model, from its first node to its last.

    Args:
        model: A `ModelProto`.
        title: The name of its file.
    """

    def __init__(self, model: Any, title: str) -> None:
        self._model = model
        self._flat = flatten(model)
        self._versions = {entry.domain: entry.version for entry in model.opset_import}
        self._inferred = infer(model, self._flat.nodes)
        self._held = held_in(model.graph)
        parameters = {
            name for name, one in self._held.items() if one.kind == "parameter" and "." in name
        }
        self._origins = Origins(self._inferred.nodes, self._flat.frames, parameters)
        self.build = GraphBuilder(self._name(title))
        self.scopes = Scopes(self.build, self._origins.classes())
        self._frames: dict[int, Scope] = {}
        self._places: dict[tuple[Frame | None, Scope | None], Places] = {}

    def run(self) -> Graph:
        graph = self._model.graph
        held = self._held
        values: dict[str, Nest] = {}
        types, failure = self._inferred.types, self._inferred.failure
        for entry in graph.input:
            if entry.name not in held:
                kind = types.get(entry.name, UNKNOWN)
                values[entry.name] = value = self.build.add_input(
                    entry.name, kind.shape, kind.dtype
                )
                tell_symbols(value.producer.attributes, [kind])
        body = Body(self, values, held, types)
        body.add(self._inferred.nodes)
        for entry in graph.output:
            self.build.add_output(entry.name, body.value(entry.name, None))
        self._describe_calls(values)
        self._describe_modules()
        if failure:
            self.build.graph.notes.append(Note(f"shapes were not inferred: {failure}"))
        return self.build.finish()

    # -- scopes -----------------------------------------------------------------------

    def scope_of(self, node: Any, around: Scope | None, body: int) -> Scope | None:
        """Return the scope in which a node stands.

        Args:
            node: The node.
            around: The scope of the body that it stands in; None for the model itself.
            body: The number of the call of a function that this body came from.
        """
        frames = self._flat.frames
        number = frame_number(node) if frames else 0
        frame = frames[number] if number != body else None
        if frame is not None:
            around = self._scope_of_frame(frame, around, body)
        return self._inside(self._origins.of(node), frame, around)

    def _inside(
        self, origin: Origin | None, frame: Frame | None, around: Scope | None
    ) -> Scope | None:
        if origin is None or not origin.levels:
            return around
        # Each body has calls of its own.
        places = self._places.setdefault((frame, around), Places())
        return self.scopes.of(places.of(origin), around)

    def _scope_of_frame(self, frame: Frame, around: Scope | None, body: int) -> Scope:
        """Return the scope of the call of a function."""
        known = self._frames.get(frame.number)
        if known is not None:
            return known
        outer = frame.parent
        if outer is not None and outer.number == body:
            outer = None
        if outer is not None:
            around = self._scope_of_frame(outer, around, body)
        origin = self._origins.of_call(frame)
        around = self._inside(origin, outer, around)
        name = self._origins.module_of(frame)
        if name is not None and origin is not None:
            level = Level(name, origin.target)
        else:
            function = frame.function
            level = Level(frame.node.name, f"{function.domain}::{function.name}")
        self._frames[frame.number] = scope = self.scopes.call(level, around)
        return scope

    # -- what is known of the model -----------------------------------------------------

    def version(self, domain: str) -> int:
        """Return the version of a domain, as far as a schema can have it: in 32 bits."""
        version: int = self._versions.get(domain, 1)
        return max(0, min(version, 2**31 - 1))

    def _name(self, title: str) -> str:
        known = self._origins.model_class()
        if known:
            return label_of(known)
        return self._model.graph.name or title or "graph"

    # -- calls --------------------------------------------------------------------------

    def _describe_calls(self, values: Mapping[str, Nest]) -> None:
        """Tell of each call what it was given, and what it gave."""
        describe_calls(self.build.graph, self.scopes.calls.values(), owned=STATE)
        for number, scope in self._frames.items():
            frame, call = self._flat.frames[number], self.scopes.calls[scope]
            given, made = frame.node.input, frame.node.output
            # In the body of an operation, names are those of the body.
            if values.keys() >= {name for name in (*given, *made) if name}:
                names = zip(frame.function.input, given, strict=False)
                call.arguments = [Argument(inner, values.get(outer)) for inner, outer in names]
                found = [values[name] for name in made if name]
                call.results = found[0] if len(found) == 1 else tuple(found)

    def _describe_modules(self) -> None:
        """Tell of each module, and of each scope that has the name of one, what it holds.

        What is in none of them, the model itself holds.
        """
        graph = self.build.graph
        classes: dict[str, str] = {"": ""}
        for scope in graph.scopes():
            if scope.qualified_name is not None:
                classes.setdefault(scope.qualified_name, "")
        for call in graph.calls:
            if call.qualified_name is not None and not classes[call.qualified_name]:
                classes[call.qualified_name] = call.class_name
        held: dict[str, list[Parameter]] = {name: [] for name in classes}
        for number, node in enumerate(node for node in graph.nodes if node.kind in STATE):
            owner, _, name = node.name.rpartition(".")
            if owner not in held:
                owner, name = "", node.name
            held[owner].append(_parameter(name, node, number))
        for call in graph.calls:
            if call.qualified_name is not None:
                call.parameters = tuple(held[call.qualified_name])
        graph.modules = [Module(name, classes[name], tuple(held[name])) for name in classes]


def _parameter(name: str, node: Node, number: int) -> Parameter:
    value = node.outputs[0]
    return Parameter(
        name,
        "buffer" if node.kind == "buffer" else "parameter",
        value.shape,
        value.dtype,
        value.size_bytes or 0,
        requires_grad=node.kind == "parameter",
        number=number,
    )
