"""The walk over TorchScript's graphs: node by node, into the methods and functions that are called.

It runs none of the code. Numbers are computed where they are known, and a branch is left out
where the number that decides is known; what only raises is taken not to run.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tbscope.ir.graph import Source
from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.programs.state import State
from tbscope.sources.programs.work import Done
from tbscope.sources.torch.module_internals import (
    script_call_graph,
    script_method,
)
from tbscope.sources.torchscript.control import Body, changed_in, in_a_turn, is_plain, merge, raises
from tbscope.sources.torchscript.frames import PLUMBING, Frame, give
from tbscope.sources.torchscript.held import (
    Number,
    Part,
    class_name,
    closed,
    forget,
    has_slot,
    is_known,
    is_open,
    lowered,
    origins,
)
from tbscope.sources.torchscript.lines import source_of
from tbscope.sources.torchscript.numbers import CHANGES, GIVES_ENTRY, PLAIN, compute, is_followed
from tbscope.sources.torchscript.operators import Operator, operator_of
from tbscope.sources.torchscript.ports import gives, nodes_of, numbers, starts, stops, takes
from tbscope.sources.torchscript.possessions import Possessions
from tbscope.sources.torchscript.questions import QUESTIONS, READ_OUT
from tbscope.sources.torchscript.script_reader import ScriptReader, Step
from tbscope.sources.torchscript.types import gives_tensors, joined, told_by, unknown_by

__all__ = ["Walk"]

# One that takes arguments of several kinds has a method for each: `forward__0`.
_FORWARD = re.compile(r"forward(__[0-9]+)?")
_MOST_TURNS = 64


class Walk:
    """Reads TorchScript's graphs.

    Args:
        reader: Who makes nodes of theirs.
        state: What the program holds.
        functions: Gives the graph of a function by its name, where the program has it by name.
        trusts_types: Whether the types that graphs tell hold for these inputs.
        training: In which mode modules are read; None for that which each is in.
    """

    def __init__(
        self,
        reader: ScriptReader,
        state: State,
        *,
        functions: Callable[[str], Any],
        trusts_types: bool,
        training: bool | None,
    ) -> None:
        self.reader = reader
        self.trusts_types = trusts_types
        possessions = Possessions(reader, state, training)
        self._plumbing = {
            **PLUMBING,
            "prim::Constant": possessions.constant,
            "prim::ConstantMKLDNNTensor": possessions.foreign,
            "prim::GetAttr": possessions.get,
            "prim::SetAttr": possessions.set,
        }
        self._calls = 0
        self._by_name = functions
        # The graph of each function that was called, by its name.
        self._functions: dict[str, Any] = {}

    # -- graphs -------------------------------------------------------------------------

    def graph(self, graph: Any, given: list[Held], frame: Frame) -> list[Held]:
        """Read a graph with what it is given; return what it gives."""
        frame.graph = graph
        return self.block(graph, given, frame)

    def nodes(self, block: Any, frame: Frame) -> None:
        """Read the nodes of a graph, or of a block of one."""
        for kind, node in nodes_of(block):
            plumbing = self._plumbing.get(kind)
            if plumbing is not None:
                plumbing(node, frame)
                continue
            handler = _HANDLERS.get(kind)
            if handler is not None:
                handler(self, node, frame)
            else:
                self._operation(kind, node, frame)

    def block(self, block: Any, given: list[Held], frame: Frame) -> list[Held]:
        """Read a block with what it is given; return what it gives."""
        for value, held in zip(starts(block), given, strict=False):
            frame.values[value.unique()] = held
        self.nodes(block, frame)
        return [frame.values[value.unique()] for value in stops(block)]

    # -- operations ---------------------------------------------------------------------

    def _operation(self, kind: str, node: Any, frame: Frame) -> None:
        values, at = frame.values, node.inputsAt
        given = [values[at(place).unique()] for place in range(node.inputsSize())]
        first = given[0] if given else None
        if type(first) is Slot:
            question = QUESTIONS.get(kind)
            if question is not None:
                give(node, frame, [question(*given)])
                return
            if kind in READ_OUT:
                give(node, frame, [Number(f"{READ_OUT[kind]}()", (first,))])
                return
        maker = _MAKERS.get(kind)
        if maker is not None and is_known(given):
            step = self._step(node, frame)
            made = self.reader.call_function(step, maker, given[:1], {}, None, runs=True)
            give(node, frame, [made])
            return
        operator = operator_of(node.schema())
        if operator is None:
            self._other(kind, node, given, frame)
        elif operator.reads_one_of(given) or (
            operator.gives_tensors and not (operator.reads_tensors and kind in PLAIN)
        ):
            self._call_operator(operator, node, given, frame)
        else:
            self._other(kind, node, given, frame)

    def _other(self, kind: str, node: Any, given: list[Held], frame: Frame) -> None:
        """Read what Python's torch has no operator for, or what is given no tensors."""
        lost = False
        if kind in CHANGES and given and type(given[0]) in (list, dict):
            self.reader.change(given[0])
            lost = not is_followed(kind, given)
        outputs = gives(node)
        makes = any(gives_tensors(output.type()) for output in outputs)
        result = given[0] if lost and kind not in GIVES_ENTRY else compute(kind, given)
        if makes and type(result) is Number and (kind not in PLAIN or has_slot(given)):
            self._generic(kind, node, given, frame)
        else:
            give(node, frame, [result] * len(outputs))
        if lost:
            forget(*given)

    def _generic(self, kind: str, node: Any, given: list[Held], frame: Frame) -> None:
        """Read an operation of which nothing is known but its name."""
        step = self._step(node, frame, args=given)
        arguments, read = self.reader.arguments(lowered(given), {})
        name = kind.partition("::")[2].strip("_")
        appended = self.reader.append(name, step, arguments, read, Done())
        told = [unknown_by(output.type()) for output in gives(node)]
        first = given[0] if given else None
        if kind == "aten::__getitem__" and type(first) is list:
            entries = closed(first)
            if set(map(type, entries)) == {Slot}:
                # One of these.
                told = [joined(entries)]
        give(node, frame, self.reader.give(appended, told, read))

    def _call_operator(
        self, operator: Operator, node: Any, given: list[Held], frame: Frame
    ) -> None:
        args, kwargs = operator.arguments(given, self.reader.constant)
        outputs = gives(node)
        told = self._told(operator, args, kwargs, outputs)
        step = self._step(node, frame, operator.target, args, kwargs, told)
        result = self.reader.call_operator(step)
        if type(result) is Slot and len(outputs) == 1:
            # As nearly all do.
            frame.values[outputs[0].unique()] = result
        elif len(outputs) == 1:
            frame.values[outputs[0].unique()] = _unless_known(result, operator, given)
        elif outputs:
            several = result if type(result) in (list, tuple) else [result] * len(outputs)
            give(node, frame, [_unless_known(each, operator, given) for each in several])

    def _told(self, operator: Operator, args: Any, kwargs: Any, outputs: list[Any]) -> Any:
        """Return what an operator gives: as the graph tells, or as it does on stand-ins."""
        if self.trusts_types and not operator.facts.writes:
            types = [told_by(output.type()) for output in outputs]
            if types and None not in types:
                return types[0] if len(types) == 1 else types
        ran = self.reader.work.run(operator.target, *operator.sampled(args, kwargs))
        if ran is not None:
            return ran.results
        told = []
        for place, output in enumerate(outputs):
            at = operator.written[place] if place < len(operator.written) else None
            after = args[at] if at is not None and at < len(args) else None
            if type(after) is Slot:
                told.append(after.type)
            else:
                told.append(unknown_by(output.type(), partial(_count_of, output)))
        return told[0] if len(told) == 1 else told or None

    def _step(
        self,
        node: Any,
        frame: Frame,
        target: Any = None,
        args: Any = (),
        kwargs: Any = None,
        told: Any = None,
    ) -> Step:
        name = node.outputsAt(0).debugName() if node.outputsSize() else ""
        source = self._source(node, frame)
        return Step(name, target, args, kwargs or {}, told, frame.stack, source, frame.has_others)

    def _source(self, node: Any, frame: Frame) -> Source | None:
        return source_of(node.sourceRange(), frame.function) or frame.source

    # -- taking apart ---------------------------------------------------------------------

    def _unpack(self, node: Any, frame: Frame) -> None:
        held = frame.values[node.input().unique()]
        outputs = gives(node)
        if type(held) in (list, tuple) and len(held) == len(outputs) and not is_open(held):
            give(node, frame, list(held))
        elif type(held) is Slot or (is_open(held) and has_slot(held)):
            self._generic("prim::unbind", node, [held], frame)
        else:
            give(node, frame, [Number(each.debugName(), origins(held)) for each in outputs])

    def _index(self, node: Any, frame: Frame) -> None:
        nest, at = (frame.values[number] for number in numbers(node))
        if type(nest) in (list, tuple) and type(at) is int and -len(nest) <= at < len(nest):
            give(node, frame, [nest[at]])
        else:
            self._other("prim::getitem", node, [nest, at], frame)

    # -- calls --------------------------------------------------------------------------

    def _call_method(self, node: Any, frame: Frame) -> None:
        given = [frame.values[number] for number in numbers(node)]
        part, name = given[0], node.s("name")
        if type(part) is not Part:
            self._generic(f"prim::{name}", node, given, frame)
            return
        method = None if part.handle is None else script_method(part.handle, name)
        graph = script_call_graph(node) if method is None else method.graph
        stack = frame.stack
        if part.name is not None and part is not frame.part and _is_call(part, name):
            self._calls += 1
            stack = {**stack, f"call {self._calls}": (part.name, class_name(part.kind))}
        outer = None if stack is not frame.stack else frame
        inner = Frame(part, name, stack, partial(self._source, node, frame), outer)
        give(node, frame, self.graph(graph, given, inner))

    def _call_function(self, node: Any, frame: Frame) -> None:
        function, *values = takes(node)
        name = function.type().annotation_str
        graph = self._functions.get(name)
        if graph is None:
            graph = self._functions[name] = self._by_name(name) or script_call_graph(node)
        given = [frame.values[value.unique()] for value in values]
        line = partial(self._source, node, frame)
        inner = Frame(frame.part, name.rpartition(".")[2], frame.stack, line, frame)
        give(node, frame, self.graph(graph, given, inner))

    # -- control flow -------------------------------------------------------------------

    def _if(self, node: Any, frame: Frame) -> None:
        condition = frame.values[node.input().unique()]
        blocks = list(node.blocks())
        if type(condition) is Number:
            # Nobody means to raise.
            running = [block for block in blocks if not raises(block)] or blocks[:1]
        else:
            running = [blocks[0] if condition else blocks[1]]
        if len(running) == 1:
            give(node, frame, self.block(running[0], [], frame))
            return
        bodies = [
            Body(label, partial(self.block, block, [], frame))
            for label, block in zip(("if", "else"), running, strict=True)
        ]
        step = self._step(node, frame, "If")
        give(node, frame, merge(self.reader, step, bodies, [condition]))

    def _loop(self, node: Any, frame: Frame) -> None:
        count, goes_on, *carried = [frame.values[number] for number in numbers(node)]
        (block,) = node.blocks()
        if is_plain(block) and type(count) is int and type(goes_on) is bool:
            turn = 0
            while goes_on is True and turn < min(count, _MOST_TURNS):
                goes_on, *carried = self.block(block, [turn, *carried], frame)
                turn += 1
            if goes_on is False or turn >= count:
                give(node, frame, carried)
                return
            carried = [
                Number(value.debugName(), origins(held))
                for value, held in zip(gives(node), carried, strict=True)
            ]
        step = self._step(node, frame, "Loop")
        inside = [
            in_a_turn(held, value) for held, value in zip(carried, starts(block)[1:], strict=True)
        ]
        turn_number = Number(starts(block)[0].debugName())

        def read() -> list[Held]:
            for container in changed_in(block, frame.values):
                # Of a turn before, it may hold more.
                self.reader.change(container)
                forget(container)
            return self.block(block, [turn_number, *inside], frame)[1:]

        bodies = [Body("loop", read), Body("", lambda: list(carried))]
        give(node, frame, merge(self.reader, step, bodies, [count, goes_on], always=True))

    def _fork(self, node: Any, frame: Frame) -> None:
        given = [frame.values[number] for number in numbers(node)]
        step = self._step(node, frame)
        scope, _ = self.reader.where(step)
        inner = Frame(frame.part, frame.function, frame.stack, lambda: step.source)
        with self.reader.places.body("fork", scope):
            results = self.graph(node.g("Subgraph"), given, inner)
        give(node, frame, [results[0] if len(results) == 1 else tuple(results)])


def _count_of(output: Any) -> int | None:
    """Return how many entries a list has, as he who takes it apart knows."""
    for use in output.uses():
        if use.user.kind() == "prim::ListUnpack":
            count: int = use.user.outputsSize()
            return count
    return None


def _unless_known(result: Held, operator: Operator, given: list[Held]) -> Held:
    """Return what an operator gave; where that is no tensor, that it is made of what it got."""
    if result is None or not operator.gives_tensors:
        return Number(f"{operator.facts.label}()", origins(given))
    return result


def _is_call(part: Part, method: str) -> bool:
    """Tell whether a method is what a module runs when it is called.

    What was traced has a method for each call: `forward`, `forward1`.
    """
    if method == "forward" or _FORWARD.fullmatch(method):
        return True
    number = method.removeprefix("forward")
    return (
        method.startswith("forward")
        and number.isdecimal()
        and number[0] != "0"
        and all(
            script_method(part.handle, f"forward{earlier or ''}") is not None
            for earlier in range(int(number) if len(number) < 6 else 0)
        )
    )


# What TorchScript has no operator of torch's for.
_MAKERS: dict[str, Callable[..., Any]] = {"aten::tensor": torch.tensor}

_HANDLERS: dict[str, Callable[[Walk, Any, Frame], None]] = {
    "prim::ListUnpack": Walk._unpack,
    "prim::TupleUnpack": Walk._unpack,
    "prim::TupleIndex": Walk._index,
    "prim::CallMethod": Walk._call_method,
    "prim::CallFunction": Walk._call_function,
    "prim::If": Walk._if,
    "prim::Loop": Walk._loop,
    "prim::fork": Walk._fork,
}
