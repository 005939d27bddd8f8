"""Traversal of TorchScript graphs: node by node, and into each method and function that is called.

The code does not run. Nodes without tensors are evaluated if their arguments have values; so the
value of a condition may select one branch, and the other branch is left out. A branch that raises
is assumed not to run.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from tbscope.ir.graph import Source, Value
from tbscope.sources.fx.aliasing import CallArguments, Content, Slot, types_of_metadata
from tbscope.sources.fx.op_costs import OpEffects
from tbscope.sources.fx.scopes import ModuleStack
from tbscope.sources.fx.tensor_types import Types
from tbscope.sources.torch.compat.modules import script_call_graph, script_class, script_method
from tbscope.sources.torch.source_location import source_of_script
from tbscope.sources.torch.subclasses import content_of
from tbscope.sources.torchscript.control_flow import (
    Branch,
    NodeAdapter,
    ScriptReader,
    containers_changed_in,
    in_any_iteration,
    merge,
    raises,
)
from tbscope.sources.torchscript.operators import (
    DATA_READS,
    METADATA_QUERIES,
    MUTATIONS,
    NUMBER_OPERATIONS,
    RETURNS_ENTRY,
    Operator,
    answer,
    can_compute_mutation,
    compute,
    operator_of,
)
from tbscope.sources.torchscript.values import (
    FLAT,
    UNINITIALIZED,
    Contents,
    ScriptBlock,
    ScriptNode,
    ScriptObject,
    ScriptValue,
    UnknownValue,
    block_inputs,
    block_outputs,
    class_name,
    gives_tensors,
    has_slot,
    is_known,
    is_open,
    lowered,
    make_open,
    node_inputs,
    node_outputs,
    nodes_of,
    origins,
    tensor_type_of,
    types_from_kind,
)

# A forward for several types of arguments is one method per type, `forward__0`; a traced module
# has one method per call: `forward`, `forward1`.
_FORWARD = re.compile(r"forward(__[0-9]+|(?P<number>[1-9][0-9]{0,5}))?")


@dataclass(slots=True)
class ScriptFrame:
    """The call frame of a method or function while it is read.

    Attributes:
        part: The object whose method is called; None for a function.
        function: The name of the method or function.
        stack: The enclosing module calls, for `ProgramScopes.scope_of`.
        line: Returns the source line of the call.
        values: The content of each value in its graph, by number (`Value.unique()`).
    """

    part: ScriptObject | None
    function: str
    stack: ModuleStack
    line: Callable[[], Source | None]
    values: dict[int, Content] = field(default_factory=dict)

    def arguments_of(self, node: ScriptNode) -> Contents:
        """Return the arguments of a node, in order."""
        values = self.values
        return [values[value.unique()] for value in node_inputs(node)]


class ScriptWalk:
    """Reads TorchScript's graphs.

    Args:
        reader: The reader that appends nodes to our graph.
        functions: Returns the graph of a function by its name, or None if the program has none.
        trusts_types: Whether the types in the graphs are valid for these inputs.
        training: Whether modules are read in training mode; None for the mode of each module.
    """

    def __init__(
        self,
        reader: ScriptReader,
        *,
        functions: Callable[[str], ScriptBlock],
        trusts_types: bool,
        training: bool | None,
    ) -> None:
        self.reader = reader
        self.trusts_types = trusts_types
        self.training = training
        self._calls = 0
        self._by_name = functions
        # The graph of each function that was called, by its name.
        self._functions: dict[str, ScriptBlock] = {}

    # -- graphs -------------------------------------------------------------------------

    def block(self, block: ScriptBlock, inputs: Contents, frame: ScriptFrame) -> Contents:
        """Read a graph or a block with its inputs; return its outputs."""
        for value, content in zip(block_inputs(block), inputs, strict=False):
            frame.values[value.unique()] = content
        for kind, node in nodes_of(block):
            plumbing, handler = _PLUMBING.get(kind), _HANDLERS.get(kind)
            if plumbing is not None:
                contents = plumbing(node, frame.arguments_of(node))
            elif handler is not None:
                contents = handler(self, node, frame)
            else:
                contents = self._operation(kind, node, frame)
            for output, content in zip(node_outputs(node), contents, strict=False):
                frame.values[output.unique()] = content
        return [frame.values[value.unique()] for value in block_outputs(block)]

    # -- operations ---------------------------------------------------------------------

    def _operation(self, kind: str, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read a node that calls an operator: evaluate it, or append an operation."""
        args = frame.arguments_of(node)
        first = args[0] if args else None
        if type(first) is Slot:
            if kind in METADATA_QUERIES:
                return [answer(kind, *args)]
            if kind in DATA_READS:
                label = kind.partition("::")[2].removesuffix("Implicit").lower()
                return [UnknownValue(f"{label}()", (first,))]
        if kind == "aten::tensor" and is_known(args):
            # The operator exists in TorchScript alone, so the Python function replaces it.
            adapter = self._adapter(node, frame)
            call: CallArguments = args[:1], {}
            return [self.reader.call_function(adapter, torch.tensor, call, None, runs=True)]
        operator = operator_of(node.schema())
        if (
            operator is not None
            and operator.dispatched
            and (
                operator.reads_one_of(args)
                or (
                    operator.gives_tensors
                    and not (operator.reads_tensors and kind in NUMBER_OPERATIONS)
                )
            )
        ):
            return self._call_operator(operator, node, args, frame)
        return self._other(kind, node, args, frame, operator)

    def _other(
        self,
        kind: str,
        node: ScriptNode,
        args: Contents,
        frame: ScriptFrame,
        operator: Operator | None = None,
    ) -> Contents:
        """Read a node without an operator (`operator_of`), or whose arguments have no tensors."""
        is_change = kind in MUTATIONS and bool(args) and type(args[0]) in (list, dict)
        is_exact = not is_change or can_compute_mutation(kind, args)
        if is_change:
            self.reader.note(args[0])
        outputs = node_outputs(node)
        may_return_tensor = any(gives_tensors(output.type()) for output in outputs)
        result = compute(kind, args, operator)
        if is_change and kind not in RETURNS_ENTRY:
            result = args[0]
        if (
            may_return_tensor
            and type(result) is UnknownValue
            and (kind not in NUMBER_OPERATIONS or has_slot(args))
        ):
            contents = self._generic(kind, node, args, frame)
        else:
            contents = [result] * len(outputs)
        if not is_exact:
            make_open(*args)
        return contents

    def _generic(self, kind: str, node: ScriptNode, args: Contents, frame: ScriptFrame) -> Contents:
        """Append an operation by its name; result types come from the graph alone."""
        adapter = self._adapter(node, frame)
        self.reader.enter(adapter)
        arguments, read = self.reader.arguments((lowered(args), {}))
        name = kind.partition("::")[2].strip("_")
        our_node = self.reader.append(name, adapter, arguments, read, OpEffects())
        types = [types_from_kind(output.type()) for output in node_outputs(node)]
        contents: Contents = self.reader.add_outputs(our_node, types, read)
        return contents

    def _call_operator(
        self, operator: Operator, node: ScriptNode, args: Contents, frame: ScriptFrame
    ) -> Contents:
        arguments = operator.arguments(args, self.reader.constant)
        outputs = node_outputs(node)
        types = self._result_types(operator, arguments, outputs)
        adapter = self._adapter(node, frame, operator.target, arguments, types)
        result = self.reader.call_operator(adapter)
        results = result if len(outputs) > 1 and type(result) in (list, tuple) else [result]
        if len(results) < len(outputs):
            results = results * len(outputs)
        return [_unless_known(entry, operator, args) for entry in results]

    def _result_types(
        self, operator: Operator, arguments: CallArguments, outputs: list[ScriptValue]
    ) -> Types:
        """Return an operator's result types: from the graph, else from a run on meta tensors."""
        if self.trusts_types and not operator.facts.writes:
            types = [tensor_type_of(output.type()) for output in outputs]
            if types and None not in types:
                return types[0] if len(types) == 1 else types
        ran = self.reader.work.run(operator.target, operator.sampled(arguments))
        if ran is not None:
            return ran.results
        unknown_types = [
            types_from_kind(output.type(), partial(_count_of, output)) for output in outputs
        ]
        return unknown_types[0] if len(unknown_types) == 1 else unknown_types or None

    def _adapter(
        self,
        node: ScriptNode,
        frame: ScriptFrame,
        target: object = None,
        arguments: CallArguments = ((), {}),
        types: Types = None,
    ) -> NodeAdapter:
        name = node.outputsAt(0).debugName() if node.outputsSize() else ""
        source = self._source(node, frame)
        meta = {"nn_module_stack": frame.stack}
        return NodeAdapter(name, target, *arguments, types, meta, source)

    def _source(self, node: ScriptNode, frame: ScriptFrame) -> Source | None:
        return source_of_script(node.sourceRange(), frame.function) or frame.line()

    # -- unpacking ------------------------------------------------------------------------

    def _unpack(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Return the entries of a container; an open one needs an operation."""
        (content,) = frame.arguments_of(node)
        outputs = node_outputs(node)
        if type(content) in (list, tuple) and len(content) == len(outputs) and not is_open(content):
            return list(content)
        if type(content) is Slot or (is_open(content) and has_slot(content)):
            return self._generic("prim::unbind", node, [content], frame)
        return [UnknownValue(output.debugName(), origins(content)) for output in outputs]

    def _index(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        return self._other("aten::__getitem__", node, frame.arguments_of(node), frame)

    # -- calls --------------------------------------------------------------------------

    def _call_method(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read the graph of a method; the call of another module opens a scope."""
        args = frame.arguments_of(node)
        part, name = args[0], node.s("name")
        if type(part) is not ScriptObject:
            return self._generic(f"prim::{name}", node, args, frame)
        method = None if part.handle is None else script_method(part.handle, name)
        graph = script_call_graph(node) if method is None else method.graph
        stack = frame.stack
        if part.name is not None and part is not frame.part and _is_call(part, name):
            self._calls += 1
            stack = {**stack, f"call {self._calls}": (part.name, class_name(part.kind))}
        callee_frame = ScriptFrame(part, name, stack, partial(self._source, node, frame))
        return self.block(graph, args, callee_frame)

    def _call_function(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read the graph of a function, which has no scope of its own."""
        name = node.inputsAt(0).type().annotation_str
        graph = self._functions.get(name)
        if graph is None:
            graph = self._functions[name] = self._by_name(name) or script_call_graph(node)
        _, *args = frame.arguments_of(node)
        line = partial(self._source, node, frame)
        callee_frame = ScriptFrame(frame.part, name.rpartition(".")[2], frame.stack, line)
        return self.block(graph, args, callee_frame)

    # -- control flow -------------------------------------------------------------------

    def _if(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read the branch that the condition selects; else read both, and merge their results."""
        (condition,) = frame.arguments_of(node)
        blocks = list(node.blocks())
        if type(condition) is UnknownValue:
            # A branch that raises is assumed not to run.
            running = [block for block in blocks if not raises(block)] or blocks[:1]
        else:
            running = [blocks[0] if condition else blocks[1]]
        if len(running) == 1:
            return self.block(running[0], [], frame)
        bodies = [
            Branch(label, partial(self.block, block, [], frame))
            for label, block in zip(("if", "else"), running, strict=True)
        ]
        adapter = self._adapter(node, frame, "If")
        return merge(self.reader, adapter, bodies, [condition])

    def _loop(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read the body once for all iterations; merge its results with the initial values."""
        count, condition, *carried = frame.arguments_of(node)
        (block,) = node.blocks()
        adapter = self._adapter(node, frame, "Loop")
        self.reader.enter(adapter)
        iterated = [
            in_any_iteration(content, value)
            for content, value in zip(carried, block_inputs(block)[1:], strict=True)
        ]
        turn_number = UnknownValue(block_inputs(block)[0].debugName())

        def read() -> Contents:
            for container in containers_changed_in(block, frame.values):
                # Earlier iterations may have changed its entries.
                self.reader.note(container)
                make_open(container)
            return self.block(block, [turn_number, *iterated], frame)[1:]

        bodies = [Branch("loop", read), Branch("", lambda: list(carried))]
        return merge(self.reader, adapter, bodies, [count, condition], always=True)

    def _fork(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read the graph of a forked call in a scope of its own; a future is the result itself."""
        args = frame.arguments_of(node)
        adapter = self._adapter(node, frame)
        scope, _ = self.reader.where(adapter)
        callee_frame = ScriptFrame(frame.part, frame.function, frame.stack, lambda: adapter.source)
        with self.reader.places.body("fork", scope):
            results = self.block(node.g("Subgraph"), args, callee_frame)
        return [results[0] if len(results) == 1 else tuple(results)]

    # -- constants and attributes -------------------------------------------------------

    def _constant(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        output = node.output()
        content = output.toIValue()
        if type(content) not in FLAT:
            # A function has no content here: `_call_function` finds it by name.
            has_content = output.type().kind() != "FunctionType"
            leaf_of = partial(self._constant_leaf, frame=frame)
            content = _nest(content, output.debugName(), leaf_of) if has_content else None
        return [content]

    def _constant_leaf(self, constant: object, name: str, frame: ScriptFrame) -> Content:
        """Return the content of a constant in the code that is no container."""
        if not isinstance(constant, torch.Tensor):
            return constant
        if constant.dim() == 0 and constant.layout is torch.strided and not constant.is_meta:
            return constant.item()
        typed = types_of_metadata(constant)
        # A frozen parameter is a constant named `self.` and its qualified name.
        parameter_name = name.removeprefix("self.") if name.startswith("self.") else None

        def make() -> Value:
            scope = self.reader.places.scope_of(frame.stack, None)
            content = content_of(constant)
            return self.reader.state.add_source(
                "constant", parameter_name, typed, scope=scope, attributes=content
            )

        return Slot(typed, make=make)

    def _get(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        """Read an attribute of an object: as set by the code, else as in the C++ object."""
        (part,) = frame.arguments_of(node)
        name = node.s("name")
        content: Content = UnknownValue(name)
        if type(part) is ScriptObject:
            if name == "training" and self.training is not None and part.name is not None:
                content = self.training
            elif name in part.attributes:
                content = part.attributes[name]
            elif part.handle is not None:
                path = f"{part.name}.{name}" if part.name else name
                leaf_of = partial(self._attribute_leaf, owner=path)
                content = part.attributes[name] = _nest(part.handle.getattr(name), path, leaf_of)
        return [content]

    def _attribute_leaf(self, value: object, name: str, owner: str) -> Content:
        """Return the content for a leaf of the attribute `owner`, by the path of the leaf."""
        if isinstance(value, torch.Tensor):
            state = self.reader.state
            # A parameter in a list attribute has the name under which its module registers it.
            parameter_name = None if name == owner else state.name_of(value)
            return state.slot(parameter_name or name, tensor=value)
        if hasattr(value, "_type"):
            # Looking up a missing attribute on a C++ object is slow, so its class is checked.
            handle = value if hasattr(type(value), "_type") else getattr(value, "_c", value)
            return ScriptObject(name, script_class(handle), handle)
        return value

    def _set(self, node: ScriptNode, frame: ScriptFrame) -> Contents:
        owner, value = frame.arguments_of(node)
        if type(owner) is ScriptObject:
            self.reader.note(owner.attributes)
            owner.attributes[node.s("name")] = value
        return []


def _count_of(output: ScriptValue) -> int | None:
    """Return the length of a list from the node that unpacks it, or None."""
    users = (use.user for use in output.uses())
    return next((user.outputsSize() for user in users if user.kind() == "prim::ListUnpack"), None)


def _unless_known(result: Content, operator: Operator, args: Contents) -> Content:
    """Return the result of an operator, or a `UnknownValue` of its arguments if it has no value."""
    if type(result) is Slot:
        return result
    if result is None or (not operator.gives_tensors and not is_known(result)):
        return UnknownValue(f"{operator.facts.label}()", origins(args))
    return result


def _is_call(part: ScriptObject, method: str) -> bool:
    """Whether a method runs as the call of its module."""
    match = _FORWARD.fullmatch(method)
    if match is None or match["number"] is None:
        return match is not None
    # A user's method may be named so, too; calls are numbered without gaps.
    before = int(match["number"]) - 1
    return script_method(part.handle, f"forward{before or ''}") is not None


def _nest(value: object, name: str, leaf_of: Callable[[object, str], Content]) -> Content:
    """Return a constant or the content of an attribute, as the content of a value.

    Args:
        value: The object in TorchScript.
        name: Its name; an entry has its key appended.
        leaf_of: Returns the content for an object that is no list, tuple or dict, by its name.
    """
    if type(value) in FLAT:
        return value
    if isinstance(value, list | tuple):
        return type(value)(
            [_nest(entry, f"{name}.{index}", leaf_of) for index, entry in enumerate(value)]
        )
    if isinstance(value, dict):
        return {key: _nest(entry, f"{name}.{key}", leaf_of) for key, entry in value.items()}
    return leaf_of(value, name)


def _dict(_: ScriptNode, args: Contents) -> Contents:
    key_types = (str, int, float, bool)
    keys = [key if type(key) in key_types else str(lowered(key)) for key in args[::2]]
    return [dict(zip(keys, args[1::2], strict=True))]


# Nodes without computation that return their arguments, a container of them, or None, by kind.
_PLUMBING: dict[str, Callable[[ScriptNode, Contents], Contents]] = {
    "prim::ListConstruct": lambda node, args: [args],
    "prim::TupleConstruct": lambda node, args: [tuple(args)],
    "prim::DictConstruct": _dict,
    "prim::Uninitialized": lambda node, args: [UNINITIALIZED],
    "prim::TupleSlice": lambda node, args: [args[0][node.i("beg") : node.i("end")]],
    "prim::CreateObject": lambda node, args: [
        ScriptObject(None, node.output().type().annotation_str)
    ],
    **dict.fromkeys(
        (*("prim::Print", "prim::RaiseException", "prim::Enter", "prim::Exit", "aten::warn"),),
        lambda node, args: [None] * node.outputsSize(),
    ),
    **dict.fromkeys(
        (
            *("aten::wait", "aten::_unwrap_optional", "prim::unchecked_cast"),
            *("prim::unchecked_unwrap_optional", "prim::NumToTensor"),
        ),
        lambda node, args: args[:1],
    ),
}

_HANDLERS: dict[str, Callable[[ScriptWalk, ScriptNode, ScriptFrame], Contents]] = {
    "prim::Constant": ScriptWalk._constant,
    "prim::GetAttr": ScriptWalk._get,
    "prim::SetAttr": ScriptWalk._set,
    "prim::ListUnpack": ScriptWalk._unpack,
    "prim::TupleUnpack": ScriptWalk._unpack,
    "prim::TupleIndex": ScriptWalk._index,
    "prim::CallMethod": ScriptWalk._call_method,
    "prim::CallFunction": ScriptWalk._call_function,
    "prim::If": ScriptWalk._if,
    "prim::Loop": ScriptWalk._loop,
    "prim::fork": ScriptWalk._fork,
}
