"""Regroups the nodes of an ONNX model: each call of a chosen module becomes a local function."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Module, require_graph
from tbscope.messages import shown
from tbscope.sources.onnx.call_instances import Place, Places
from tbscope.sources.onnx.export.alignment import numbers_of, operations_of
from tbscope.sources.onnx.export.call_order import Order
from tbscope.sources.onnx.export.function_builder import Functions, Made, Wanted
from tbscope.sources.onnx.export.subgraph_extract import Cutter, Region
from tbscope.sources.onnx.loading import is_program, load_model
from tbscope.sources.onnx.metadata import Level, Origin, origin_by_metadata, written
from tbscope.sources.onnx.optional_deps import need
from tbscope.sources.onnx.origins import filled
from tbscope.sources.onnx.scoping import label_of
from tbscope.utils.files import path_of
from tbscope.utils.validation import ask

__all__ = ["Modules", "Regrouped", "check_domain", "chooser", "modules_to_functions"]


Modules: TypeAlias = "Collection[type | str] | type | str | Callable[[Module], object] | None"
"""Which modules become functions: classes, names and patterns of names, or a function of a
`Module`, which has its qualified name and the full name of its class. None for all inside the
model."""

_LONGEST_PATTERN = 1000
_DOMAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


@dataclass(frozen=True, slots=True)
class Regrouped:
    """A model whose modules are functions.

    Attributes:
        model: The model, of the kind that was given: a `ModelProto`, also for a file, or an
            `onnx_ir.Model`.
        functions: A line for each function that was made: its arguments, its hyper-parameters,
            its results, and how many calls it has.
        left: A sentence for each call of a module that stays inline, with the reason.
    """

    model: Any
    functions: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.functions, *(f"left inline: {text}" for text in self.left)])


def modules_to_functions(
    onnx_model: Any,
    modules: Modules = None,
    *,
    domain: str = "modules",
    record: Graph | None = None,
) -> Regrouped:
    """Make the calls of modules local functions of an ONNX model.

    Args:
        onnx_model: What `torch.onnx.export(..., dynamo=True)` gave or wrote: an `ONNXProgram`, a
            path, a `ModelProto` or an `onnx_ir.Model`. It stays as it is.
        modules: Which modules: classes, qualified names and patterns of them (`layers.*`), names
            of classes; or a function that tells it of a `Module`. None for all but the outermost.
        domain: The domain of the functions.
        record: What `tbscope.trace` gave for the same model, beside an `ONNXProgram`: it tells the
            order of arguments and results, their names, and the hyper-parameters. Without it,
            what enters stands in the order in which it is read.
    Returns:
        The model: equal bodies are one function, a module inside of another one is called in its
        body, and what a body reads of the model's tensors it is given behind its arguments.
        What cannot be a function stays inline, and is told.
    Raises:
        ArgumentError: onnx_ir is not installed; it is no model, or one that tells nothing of
            modules; no module is meant; or there is a record of what is no `ONNXProgram`.
    """
    chosen = chooser(modules)
    domain = check_domain(domain)
    if record is not None:
        require_graph(record, "modules_to_functions")
    return _Regrouping(onnx_model, domain, record).run(chosen, modules)


class _Regrouping:
    def __init__(self, given: Any, domain: Any, record: Graph | None) -> None:
        ir = need("onnx_ir")
        self._as_message = True
        program = None
        if is_program(given):
            program, given = given.exported_program, given.model
        elif record is not None:
            raise ArgumentError(
                f"record= is given with {shown(given)}",
                why="only what torch.onnx.export gave tells which operations of the record it has",
                fix="program = torch.onnx.export(model, args, dynamo=True); "
                "tbscope.modules_to_functions(program, record=record)",
            )
        if isinstance(given, ir.Model):
            self._as_message = False
            self._model = given.clone()
        elif (path := path_of(given)) is not None:
            # Whatever is wrong with the file, this tells.
            load_model(given)
            self._model = ir.load(path, format="protobuf")
        else:
            self._model = ir.from_proto(load_model(given))
        self._graph = self._model.graph
        # Functions tell more in a file of version 10: which module they are.
        self._model.ir_version = max(self._model.ir_version, 10)
        self._left: list[str] = []
        self._functions = Functions(self._model, domain)
        self._cutter = Cutter(self._graph)
        self._find_places(Places({} if program is None else numbers_of(program)))
        self._order = None if record is None else self._make_order(record, program)

    def run(self, chosen: "Callable[[Level], bool]", modules: Modules) -> Regrouped:
        places = [place for place in self._all if chosen(place.level)]
        if not places:
            self._refuse(modules)
        # Inner modules first: the body of an outer one calls them.
        for place in sorted(places, key=lambda place: -len(place.path())):
            self._regroup(place)
        self._model.graph.sort()
        model = need("onnx_ir").to_proto(self._model) if self._as_message else self._model
        made: list[Made] = self._functions.made
        return Regrouped(model, [str(one) for one in made], self._left)

    def _find_places(self, places: Places) -> None:
        """Find the call in which each node stands, and the calls, outer ones first."""
        nodes = list(self._graph)
        told = [origin_by_metadata(node.metadata_props) for node in nodes]
        if not any(origin is not None and origin.levels for origin in told):
            raise ArgumentError(
                "no modules can be made functions of a model that tells of none",
                why="its nodes have no metadata of the kind 'pkg.torch.onnx.name_scopes'",
                fix="export it anew: torch.onnx.export(model, args, path, dynamo=True)",
            )
        self._origins: dict[Any, Origin | None] = {}
        # In the order in which they came; of a dict, as nodes are taken out.
        self._nodes: dict[Place, dict[Any, None]] = {}
        self._all: list[Place] = []
        for node, origin in zip(nodes, filled(told), strict=True):
            self._origins[node] = origin
            if origin is not None and not origin.name:
                # Where it stands its neighbours told, which may be others afterwards.
                name = str(node.outputs[0].name) if node.outputs else ""
                own = origin._replace(name=name, target=node.op_type)
                node.metadata_props.update(written(own))
            place = places.of(origin) if origin is not None and origin.levels else None
            for each in place.path() if place else []:
                if each not in self._nodes:
                    self._nodes[each] = {}
                    self._all.append(each)
                self._nodes[each][node] = None

    def _make_order(self, record: Graph, program: Any) -> Order:
        values = dict(self._graph.initializers.items())
        for node in self._graph:
            origin = self._origins[node]
            if origin is not None and origin.name:
                values[origin.name] = node.outputs[0]
        for node in self._graph:
            values.update({str(value.name): value for value in node.outputs})
        values.update({str(value.name): value for value in self._graph.inputs})
        calls = [(place.level.name, place.level.class_name, place.number) for place in self._all]
        operations = operations_of(program)
        return Order(record, operations, values, list(self._graph.inputs), calls)

    def _regroup(self, place: Place) -> None:
        """Make one call of a module a call of a function."""
        region = self._cutter.region(list(self._nodes[place]))
        number = f", call {place.number}" if place.number else ""
        what = f"{place.level.name or 'the model'} ({place.level.class_name}{number})"
        if region.cycle is not None:
            self._left.append(
                f"{what}: {region.cycle} leaves it and comes back through nodes outside"
            )
            return
        if not region.outputs:
            self._left.append(f"{what}: nothing that it gives is read")
            return
        levels = tuple(each.level for each in place.path())
        names: dict[Any, str] = {}
        attributes: dict[str, Any] = {}
        call = self._order.call(place.level.name, place.number) if self._order else None
        if self._order is not None and call is not None:
            inputs, held, names = self._order.sort_inputs(call, region.inputs, region.held)
            outputs = self._order.sort_outputs(call, region.outputs)
            region = Region(region.nodes, inputs, held, outputs, None)
            attributes = _attributes(call.hyperparameters)
        wanted = Wanted(region, names, levels, attributes)
        node = self._functions.call(wanted)
        self._cutter.replace(region, node)
        if self._order is not None:
            self._order.renamed(zip(region.outputs, node.outputs, strict=True))
        for each in place.path():
            nodes = self._nodes[each]
            for one in region.nodes:
                del nodes[one]
            nodes[node] = None

    def _refuse(self, modules: Modules) -> None:
        known = dict.fromkeys(place.level.name for place in self._all if place.level.name)
        classes = dict.fromkeys(label_of(place.level.class_name or "") for place in self._all)
        raise ArgumentError(
            f"modules={shown(modules)} means no module of the ONNX model",
            why=f"it has modules of the classes {', '.join(classes)}",
            fix=f"modules=[{next(iter(known), '')!r}], a class, or a function of a Module",
        )


def _attributes(hyperparameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters as ONNX has attributes: numbers, texts, and lists of one kind."""
    found: dict[str, Any] = {}
    for name, value in hyperparameters.items():
        if isinstance(value, bool):
            found[name] = int(value)
        elif isinstance(value, int | float | str):
            found[name] = value
        elif isinstance(value, list | tuple) and value and _of_one_kind(value):
            found[name] = list(value)
        elif value is not None and value != [] and value != ():
            found[name] = str(value)
    return found


def _of_one_kind(values: Sequence[Any]) -> bool:
    return type(values[0]) in (int, float, str) and len(set(map(type, values))) == 1


# -- which modules, and in which domain ------------------------------------------------------


def chooser(modules: Modules) -> "Callable[[Level], bool]":
    """Return what tells whether a module is meant.

    Raises:
        ArgumentError: It tells no modules.
    """
    if modules is None:
        return lambda level: bool(level.name)
    if isinstance(modules, str | type | list | tuple | set | frozenset):
        return _listed([modules] if isinstance(modules, str | type) else modules)
    if not callable(modules):
        raise _no_modules(modules)

    def means(level: Level) -> bool:
        return bool(
            ask(
                modules,
                Module(level.name, level.class_name or "", ()),
                option="modules",
                place=shown(level.name),
                fix="give True or False for each Module",
            )
        )

    return means


def _listed(modules: Collection[type | str]) -> "Callable[[Level], bool]":
    """Return what tells whether a module is one of a list."""
    classes: set[str] = set()
    patterns: list[str] = []
    for each in modules:
        if isinstance(each, type):
            classes.add(f"{each.__module__}.{each.__qualname__}")
        elif isinstance(each, str):
            patterns.append(str.__str__(each))
        else:
            raise _no_modules(each)

    def means(level: Level) -> bool:
        full = level.class_name or ""
        return full in classes or any(
            pattern in (full, label_of(full))
            or (len(pattern) <= _LONGEST_PATTERN and fnmatchcase(level.name, pattern))
            for pattern in patterns
        )

    return means


def _no_modules(given: object) -> ArgumentError:
    return ArgumentError(
        f"modules={shown(given)} tells no modules",
        why="they are told by classes and names, in a list, or by a function of a Module",
        fix="modules={Layer, 'layers.*'}, or modules=lambda module: 'attn' in module.name",
    )


def check_domain(domain: object) -> str:
    """Return a domain as a plain text, if functions can be of it.

    Raises:
        ArgumentError: It is no name, or that of ONNX's own operators.
    """
    plain = str.__str__(domain) if isinstance(domain, str) else ""
    if not _DOMAIN.fullmatch(plain) or plain == "ai.onnx":
        raise ArgumentError(
            f"domain={shown(domain)} cannot be that of functions",
            why="it is a name of letters, digits, dots and dashes, and not that of ONNX itself",
            fix="domain='my.model'",
        )
    return plain
