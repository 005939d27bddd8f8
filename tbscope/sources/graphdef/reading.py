"""Conversion of a GraphDef to a graph.

Nodes are put in topological order first, then located in scopes, and added one after the other.
Constants and lists of torch's graphs become arguments, and attribute accesses parameters.
"""

import os
import re
from typing import Any

from tbscope.analysis.units import names_counted, worth_of_number
from tbscope.errors import ArgumentError, GraphError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Constant, Graph, Measured, Nest, Node, Note, Source, Value
from tbscope.ir.pytree import walk
from tbscope.ir.scope_io import describe_calls, self_and_ancestors
from tbscope.messages import first_of, shown
from tbscope.page.constants import LIBRARY
from tbscope.sources.graphdef.loading import load_graph_def
from tbscope.sources.graphdef.paths import (
    Op,
    Path,
    PathScopes,
    Reference,
    number_calls,
    op_of,
    path_of_name,
    path_of_scope,
    restore_lists,
)
from tbscope.utils.files import path_of
from tbscope.utils.gc_pause import collecting_rarely

_INPUTS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "_Arg", "Input"})
_OUTPUTS = frozenset({"_Retval", "Output"})
_PARAMETERS = frozenset({"Parameter", "ParameterConst", "Variable", "VariableV2", "VarHandleOp"})
_BUFFERS = frozenset({"Buffer", "BufferConst"})
_CONSTANTS = frozenset({"Const", "Constant", "ConstantConst"})
# Op types of torch's own graphs: constants, attribute accesses and lists, which are folded into
# their readers, and inputs and outputs.
_CONSTANT, _GET, _IO = "prim::Constant", "prim::GetAttr", "IO Node"
_DICT = "prim::DictConstruct"
_MAKERS = frozenset({_DICT, "prim::ListConstruct", "prim::TupleConstruct"})
_FOLDED = frozenset({_CONSTANT, _GET, *_MAKERS})
# Buffers of torch's own modules: a GraphDef of torch marks buffers in no other way.
_RUNNING = frozenset({"running_mean", "running_var", "num_batches_tracked"})
_HELD = re.compile(r"\{ *(\w+) : ?(.*)\}", re.S)
_NUMBER = re.compile(r"-?(?:[0-9]{1,40}(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,4})?|inf|nan)")
# Attributes that the graph contains elsewhere, or that only the page needs.
_TOLD = frozenset({"scope", "name", "source", "attr", "_XlaCluster", "dtype", "value", "shape"})
# Attributes of tbscope's drawings that are computed anew from the graph.
_CARD = "NoOp"
_DRAWN = frozenset(
    {"bytes", "class", "defined", "flops", "kernels", "module", "parameter_count", "parameters"}
    | {"call", "flops_not_counted", "trainable_parameter_count", "training", "arguments", "results"}
)
_MOST_OUTPUTS = 1000
_MOST_NAMED = 5
_SOURCE = re.compile(r"(.+):([0-9]{1,9}) in (.+)")


def from_graph_def(graph_def_or_path: object) -> Graph:
    """Return the graph that a GraphDef draws, as far as the GraphDef describes it.

    Scopes come from the names of the nodes, or from the attributes of tbscope's drawings; modules
    are recognised if they are written as torch prints them (`Net/Linear[fc]`). Constants and lists
    of torch's graphs become arguments, and attribute accesses become the parameter to which they
    lead. Inputs that name no node, and inputs that close a cycle, are left out, and a note reports
    them.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> tbscope.from_graph_def(tbscope.to_graph_def(graph))
    <Graph Linear: 4 nodes, 1 calls>

    Args:
        graph_def_or_path: A `GraphDef`, or the path of one in binary form or as text.
    Returns:
        The graph.
    Raises:
        ArgumentError: The argument is none of these, or the file is damaged.
    """
    message = load_graph_def(graph_def_or_path)
    title = os.path.basename(path_of(graph_def_or_path) or "").rpartition(".")[0]
    return graph_of_message(message, title)


def graph_of_message(message: object, title: str = "", figures: Any = None) -> Graph:
    """Return the graph that a GraphDef draws.

    Args:
        message: The GraphDef.
        title: The name of the graph, unless a single root module names it.
        figures: A `Measured` for each measured node, by the name of the node.
    Raises:
        ArgumentError: The GraphDef cannot be converted.
    """
    with collecting_rarely():
        try:
            return _GraphDefConverter(message, title, figures or {}).run()
        except GraphError as error:
            raise ArgumentError(
                "no graph can be made of a GraphDef",
                why=error.why or error.what,
                fix="tbscope.lint(graph_def) lists its faults",
            ) from error


class _GraphDefConverter:
    """Conversion of one GraphDef."""

    def __init__(self, message: Any, title: str, figures: dict[str, Measured]) -> None:
        # The library contains seeds of colours and bodies of functions, not nodes of the graph.
        listed = [node for node in message.node if not node.name.startswith(LIBRARY)]
        self._ops = [op_of(node) for node in listed]
        if any(op.drawn for op in self._ops):
            # tbscope's drawings write no `scope` for nodes at the top level.
            for op in self._ops:
                op.facts.setdefault("scope", "")
        self._figures = figures
        # The first of several nodes with a name.
        self._named = {op.name: op for op in reversed(self._ops)}
        self._dangling: dict[str, None] = {}
        self._closing = 0
        # For each node with readers, the least number of its outputs.
        self._read: dict[Op, int] = {}
        # The outputs of each node.
        self._outputs: dict[Op, list[Nest]] = {}
        self._nodes: dict[Op, Node] = {}
        self._owned: dict[tuple[Path, str], Value] = {}
        self.build = GraphBuilder(title or "graph")
        self._scopes = PathScopes(self.build)
        order = self._order()
        self._paths = self._scope_paths()
        # torch's attribute accesses begin with the model, and our nodes record classes of modules.
        models = [
            path
            for op, path in self._paths.items()
            if op.op == _GET or ("class" in op.facts and len(path) == 1)
        ]
        self._scopes.tell(self._paths.values(), models)
        for op in order:
            self._add(op)

    def run(self) -> Graph:
        self._add_outputs()
        graph = self.build.graph
        describe_calls(graph, self._scopes.calls.values(), in_order=True)
        roots = [scope for scope in graph.scopes() if scope.parent is None]
        if len(roots) == 1 and roots[0].kind == "module":
            graph.name = roots[0].part.label
        self._add_notes()
        return self.build.finish()

    def _order(self) -> list[Op]:
        """Return the nodes in topological order; drop inputs that close a cycle."""
        for op in self._ops:
            op.reads = [read for read in op.reads if self._is_there(read[0])]
            op.waits = [name for name in op.waits if self._is_there(name)]
        order: list[Op] = []
        # False while the inputs of a node are visited, True once the node is in the order.
        done: dict[Op, bool] = {}
        for start in self._ops:
            # A list of pending nodes, as a recursion could exceed Python's limit.
            pending = [start]
            while pending:
                op = pending[-1]
                if op in done:
                    pending.pop()
                    if not done[op]:
                        done[op] = True
                        order.append(op)
                    continue
                done[op] = False
                ahead = {name: self._named[name] for name in [*dict(op.reads), *op.waits]}
                back = {name for name, other in ahead.items() if done.get(other) is False}
                self._closing += len(back)
                op.reads = [read for read in op.reads if read[0] not in back]
                pending += [other for other in reversed(ahead.values()) if other not in done]
        for op in self._ops:
            for name, output in op.reads:
                producer = self._named[name]
                self._read[producer] = max(self._read.get(producer, 0), output + 1)
        return order

    def _is_there(self, name: str) -> bool:
        if name in self._named:
            return True
        self._dangling[name] = None
        return False

    def _scope_paths(self) -> dict[Op, Path]:
        """Return the scope path of each node."""
        paths = []
        for op in self._ops:
            recorded = path_of_scope(op)
            path = path_of_name(op.name) if recorded is None else recorded
            if op.op == _GET and len(path) > 1:
                # torch writes the name of a parameter twice: `Net/Linear[fc]/weight/weight.5`.
                path = path[:-1]
            paths.append(path)
        gets = {op.name: path for op, path in zip(self._ops, paths, strict=True) if op.op == _GET}
        owners = [
            [] if op.op in _FOLDED else [gets[name] for name, _ in op.reads if name in gets]
            for op in self._ops
        ]
        if any(owners):
            paths = restore_lists(zip(paths, owners, strict=True))
        runs = [
            op.op not in _FOLDED and bool(op.reads) and "scope" not in op.facts for op in self._ops
        ]
        return dict(zip(self._ops, number_calls(paths, runs), strict=True))

    # -- nodes ------------------------------------------------------------------------

    def _add(self, op: Op) -> None:
        if op.op == _CONSTANT and not op.shapes:
            self._outputs[op] = [_literal_of(op)]
        elif op.op == _GET:
            self._add_owned(op, _held(op).get("name", "").strip())
        elif op.op in _MAKERS:
            self._outputs[op] = [self._made(op)]
        elif self._is_output(op) or (op.op == _CARD and "class" in op.facts):
            # The node of an info card describes only the enclosing module.
            self._describe(op)
        elif not op.reads and (op.op in _INPUTS or op.op == _IO):
            self._add_input(op)
        elif not op.reads and op.op in (_PARAMETERS | _BUFFERS):
            self._add_owned(op, op.name.rpartition("/")[2])
        elif not op.reads and op.op in _CONSTANTS:
            self._add_constant(op)
        else:
            self._add_op(op)

    def _is_output(self, op: Op) -> bool:
        return len(op.reads) == 1 and (op.op in _OUTPUTS or op.op == _IO)

    def _describe(self, op: Op) -> None:
        """Copy the facts of a module in a node's attributes to the enclosing call."""
        scope = self._scopes.of(self._paths[op])
        class_name = _text_of(op, "class", "")
        if scope in self._scopes.calls and class_name:
            call = self._scopes.calls[scope]
            call.class_name, call.training = class_name, op.facts.get("training") is True
            call.defined = _source(op, "defined")
            if op.op == _CARD:
                call.hyperparameters = self._own_facts(op)

    def _made(self, op: Op) -> Nest:
        values = [self._nest(read) for read in op.reads]
        if op.op == _DICT:
            keys, entries = values[::2], values[1::2]
            if all(isinstance(key, str | int) for key in keys):
                return dict(zip(keys, entries, strict=False))
        return tuple(values) if "Tuple" in op.op else values

    def _nest(self, read: Reference) -> Nest:
        name, output = read
        outputs = self._outputs.get(self._named[name], [])
        if output < len(outputs):
            return outputs[output]
        if output:
            self._dangling[f"{name}:{output}"] = None
        return None

    def _add_input(self, op: Op) -> None:
        name = _text_of(op, "name", op.name.removeprefix("input/"))
        node = self.build.append_source("input", name.replace("/", "."))
        self._add_values(op, node, least=1)

    def _add_owned(self, op: Op, attribute: str) -> None:
        kind, path = op.op, self._paths[op]
        # An attribute access without readers leads to a module, and to no parameter.
        if kind == _GET and (op not in self._read or not attribute):
            return
        value = self._owned.get((path, attribute))
        if value is None:
            steps = [part.attribute or "" for part in path]
            if not any(steps) and kind != _GET:
                # The first step of torch's names is the model itself.
                steps = [part.label for part in path]
            full = ".".join(filter(None, [*steps, attribute]))
            is_buffer = kind in _BUFFERS or (kind == _GET and attribute in _RUNNING)
            node = self.build.append_source(
                "buffer" if is_buffer else "parameter",
                _text_of(op, "name", full),
                self._scopes.of(path),
            )
            node.attributes = self._own_facts(op)
            self._add_values(op, node, least=1)
            value = self._owned[path, attribute] = node.outputs[0]
        self._outputs[op] = [value]

    def _add_constant(self, op: Op) -> None:
        value = op.facts.get("value")
        if value is not None and not isinstance(value, Constant):
            self._outputs[op] = [value]
            return
        node = self.build.append_source("constant", None, self._scopes.of(self._paths[op]))
        node.attributes = self._own_facts(op)
        self._add_values(op, node, least=1)

    def _add_op(self, op: Op) -> None:
        arguments = [Argument(None, self._nest(read)) for read in op.reads]
        label = op.name.rpartition("/")[2]
        called = op.op.rpartition("::")[2] or op.op or label or "op"
        node = self.build.add_node(
            _text_of(op, "op", called),
            arguments,
            scope=self._scopes.of(self._paths[op]),
            kernels=_kernels(op),
            control_inputs=[
                self._nodes[before]
                for before in map(self._named.__getitem__, op.waits)
                if before in self._nodes
            ],
            source=_source(op, "source"),
        )
        node.attributes = self._own_facts(op)
        if op.op == _CONSTANT:
            node.op, node.kernels, node.role = "constant", [], "maker"
        self._add_values(op, node)
        if label and label != node.op and not label.isdigit() and "name" not in op.facts:
            node.attributes["name"] = op.name
        node.phase = node.scope.phase if node.scope else "forward"
        node.measured = self._figures.get(op.name)
        flops = worth_of_number(op.facts.get("flops"))
        if flops is not None and flops >= 0:
            node.flops = int(flops)
        if missing := _text_of(op, "flops_not_counted", ""):
            uncounted = dict.fromkeys(names_counted(missing), "its drawing has no FLOPs of it")
            self.build.graph.uncounted.update(uncounted)
        self._describe(op)

    def _own_facts(self, op: Op) -> dict[str, Nest]:
        """Return the attributes of a node that the graph does not contain elsewhere."""
        left_out = _TOLD | _DRAWN if "scope" in op.facts else _TOLD
        return {
            name: fact
            for name, fact in op.facts.items()
            if name not in left_out or (name == "attr" and fact not in ("", "{}"))
        }

    def _add_values(self, op: Op, node: Node, least: int = 0) -> None:
        """Add the outputs of a node: the recorded ones, and those that other nodes read."""
        count = max(least, len(op.shapes), self._read.get(op, 0))
        # The number is limited: an input may name any output.
        for output_index in range(min(count, _MOST_OUTPUTS)):
            known = output_index < len(op.shapes)
            shape = op.shapes[output_index] if known else None
            dtype = op.dtypes[output_index if known else 0]
            self.build.add_value(node, shape, dtype, op.device)
        self._outputs[op] = [*node.outputs]
        self._nodes[op] = node

    # -- outputs, calls, notes ----------------------------------------------------------

    def _add_outputs(self) -> None:
        for op in self._ops:
            if not self._is_output(op):
                continue
            name = _text_of(op, "name", op.name.removeprefix("output/"))
            if op.op == _IO:
                name = re.sub(r"output(\.[0-9]+)?", "out", name)
            value = self._nest(op.reads[0])
            if op.drawn and isinstance(value, Value) and (views := _text_of(op, "via", "")):
                value = self._viewed(value, views, op)
            whole = "" if isinstance(value, dict) else name.replace("/", ".") or "out"
            for path, leaf in walk(value, whole):
                if isinstance(leaf, Value):
                    self.build.add_output(path, leaf)

    def _viewed(self, value: Value, views: str, op: Op) -> Value:
        """Add the views that a drawing has left out before an output, each as a node."""
        *_, root = [None, *self_and_ancestors(value.producer.scope)]
        for text in views.split(" > "):
            name, _, constants = text.partition("(")
            arguments: list[Nest] = [value]
            if name and (constants := constants.removesuffix(")")):
                arguments.append(Constant(constants))
            value = self.build.add_op(name or text, arguments, None, scope=root, role="view")
        value.shape, value.dtype, value.device = op.shapes[0], op.dtypes[0], op.device
        return value

    def _add_notes(self) -> None:
        notes = self.build.graph.notes
        if self._dangling:
            listed = first_of(map(shown, self._dangling), _MOST_NAMED)
            notes.append(Note(f"left out, as no node has these names: {listed}"))
        if self._closing:
            notes.append(Note(f"left out, as they lead back: {self._closing:,} steps of loops"))


def _literal_of(op: Op) -> Nest:
    """Return the value of a `prim::Constant`; torch writes texts without quotes."""
    text = _held(op).get("value")
    if text is None:
        return None
    bare = text.strip()
    if _NUMBER.fullmatch(bare):
        return int(bare) if bare.lstrip("-").isdigit() else float(bare)
    return bare if text.startswith(" ") and text.endswith(" ") else Constant(bare)


def _held(op: Op) -> dict[str, str]:
    """Return the entry that torch writes in `attr`: the name of an attribute, or a value."""
    match = _HELD.fullmatch(str(op.facts.get("attr", "")))
    return {match[1]: match[2]} if match else {}


def _text_of(op: Op, fact: str, default: str) -> str:
    """Return an attribute that is a text, or the default if it is empty or no text."""
    text = op.facts.get(fact)
    return text if isinstance(text, str) and text else default


def _kernels(op: Op) -> list[str]:
    kernels = op.facts.get("kernels")
    if isinstance(kernels, str) and "scope" in op.facts:
        return names_counted(kernels)
    return [op.op] if "::" in op.op else []


def _source(op: Op, fact: str) -> Source | None:
    match = _SOURCE.fullmatch(str(op.facts.get(fact, "")))
    return Source(match[1], int(match[2]), match[3]) if match else None
