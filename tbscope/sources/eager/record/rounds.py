"""Rounds of optimizers: what one does for each parameter, by what it did for the one before.

A step is thousands of operations, and for each parameter the same ones in the same order. Who has
seen one round knows of each operation of the next one what is asked elsewhere question by question:
its kernel, its role, what it writes into. Only what it reads is looked at, once in a round.
"""

from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Node, Value
from tbscope.sources.eager.record.backward import Backward
from tbscope.sources.eager.record.operation import Operation, Operations
from tbscope.sources.eager.record.optimizers import Optimizers
from tbscope.sources.eager.record.parts import Part
from tbscope.sources.eager.record.turns import Learnt, Turn, is_held
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.eager.record.whereabouts import Whereabouts
from tbscope.sources.torch.dispatch_internals import (
    dispatch_settings,
    is_alone,
    keys_of,
)
from tbscope.sources.torch.flops import any_floats
from tbscope.sources.torch.internals import (
    in_forward_mode,
    innermost_transform,
    sequence_number,
    storage_key,
)
from tbscope.sources.torch.storage import Region, Write
from tbscope.sources.torch.wrapping import PLAIN

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["Rounds"]

_NUMBERS = frozenset({int, float, bool})
# Where each parameter needs something else, nothing is foreseen.
_MOST_ROUNDS = 20
# As `Argument(name, nest)`, in a third of the time.
_argument = partial(tuple.__new__, Argument)


class _Met:
    """A tensor of the round that runs.

    Attributes:
        value: The value that it holds.
        key: Its storage.
        region: The part of that which it covers.
        held: The tensor, held weakly, as the values of a run hold it.
        name: The name of the parameter that it is; None for any other.
    """

    __slots__ = ("held", "key", "name", "region", "value")

    def __init__(self, value: Value, key: int, held: ref[torch.Tensor], name: str | None) -> None:
        self.value = value
        self.key = key
        self.held = held
        self.name = name
        self.region: Region | None = None


class Rounds:
    """Records operations of optimizers' steps as `Recorder.add_operation` does, to the last edge.

    Only those that were foreseen, of which nothing differs from the round before but the tensors,
    no two of these share memory, and all belong to one parameter.

    Args:
        builder: The door to the graph.
        values: The values that tensors hold.
        value_of: Returns the value that a tensor holds now; a new one if it was never seen.
        operations: The operation that runs, and those around it.
        backward: The backward passes.
        optimizers: The steps of optimizers.
        where: Finds where operations stand.

    Attributes:
        steps: The steps that run.
    """

    def __init__(
        self,
        builder: GraphBuilder,
        values: TensorValues,
        value_of: Callable[[torch.Tensor], Value],
        *,
        operations: Operations,
        backward: Backward,
        optimizers: Optimizers,
        where: Whereabouts,
    ) -> None:
        self.steps = optimizers.steps
        self._append_op = builder.append_op
        self._nodes = builder.graph.nodes
        self._values = values
        self._held = values.held
        self._value_of = value_of
        self._operations = operations
        self._formulas = operations.formulas
        self._passes = backward.passes
        self._optimizers = optimizers
        self._where = where
        # The round that is foreseen, how far it has come, and the one that is watched.
        self._turns: list[Turn] = []
        self._at = 0
        self._learnt: Learnt | None = None
        # To what the latest operation belongs, and how many rounds more may be watched.
        self._latest: Part | None = None
        self._tries = _MOST_ROUNDS
        # Of the round that runs: its tensors and what is known of them, by number; its storages.
        self._tensors: list[Any] = []
        self._met: list[Any] = []
        self._stored: set[int] = set()
        self._part: Part | None = None
        self._scope: Scope | None = None
        # How things stood after the latest operation of a round.
        self._mark: Any = None
        self._count = 0
        self._settings: Any = None
        self._number = 0

    def lose(self) -> None:
        """Let go of the round that runs, where it has not gone as it was foreseen."""
        self._learnt = None
        if self._at:
            self._at = 0
            self._turns = []
            self._tensors, self._met = [], []
            self._stored.clear()

    def end(self) -> None:
        """Take note that the steps are over: the next round is that of any parameter."""
        self.lose()
        self._latest = self._mark = None

    def foreseen(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Turn | None:
        """Return what is known of an operation that is about to run; None for nothing.

        Its kernel is known, as nothing has changed by which torch's dispatcher goes: nobody has to
        watch it run.

        Args:
            func: The function.
            args: Its positional arguments, of which the tensors have no class of their own.
            kwargs: Its keyword arguments.
            frame: The Python frame that calls it.
        """
        if not self._turns or self._mark is None:
            return None
        turn = self._turns[self._at]
        given = (*args, *kwargs.values()) if kwargs else args
        if (
            func is turn.func
            and frame.f_trace is self._mark
            and turn.kinds == tuple(map(type, given))
            and (not kwargs or turn.names[len(args) :] == tuple(kwargs))
            and all(map(is_held, kwargs.values()))
            and (turn.anew or not self._at or len(self._nodes) == self._count)
            and (self._at or self._begins(given[turn.tensors[0][0]]))
            and self._is_as_before()
        ):
            tensors = self._tensors
            for (place, number), keys in zip(turn.tensors, turn.keys, strict=True):
                own, each = tensors[number], given[place]
                if own is not each and (own is not None or keys_of(each) != keys):
                    break
            else:
                return turn
        if self._at:
            self.lose()
        return None

    def _begins(self, tensor: torch.Tensor) -> bool:
        """Tell whether an operation on a tensor is the first one for another parameter."""
        own = self.steps[-1].parts.get(id(tensor))
        return own is not None and own[0]() is tensor and own[1] != self._latest

    def _is_as_before(self) -> bool:
        """Tell whether a kernel is chosen by what it was when the round was watched."""
        return (
            not torch.is_grad_enabled()
            and is_alone()
            and dispatch_settings() == self._settings
            and sequence_number() == self._number
            and not self._passes
            and not in_forward_mode()
            and not self._values.wrappers.any
        )

    def add(
        self, turn: Turn, args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor
    ) -> bool:
        """Record an operation that has run as it was foreseen; tell whether it could be.

        Args:
            turn: What was foreseen.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
        """
        nests = [*args, *kwargs.values()]
        step, met = self.steps[-1], self._met
        there = self._mark.place
        if turn.anew:
            self._stored.clear()
        if (
            (turn.writes and result is not args[0])
            or there[0] is not step.frame.inner
            or not self._optimizers.runs_on(step, there)
            or not all(self._meet(nests[place], number) for place, number in turn.met)
        ):
            self._at = self._at or 1
            self.lose()
            return False
        inputs = []
        for place, number in turn.tensors:
            nests[place] = value = met[number].value
            inputs.append(value)
        arguments = list(map(_argument, zip(turn.names, nests, strict=True)))
        _, source, run, at = there
        node = self._append_op(
            turn.name, self._scope, inputs, arguments, [], source, [*turn.kernels]
        )
        if run is not None:
            node.run, node.step = run, at
        node.role, node.phase = turn.role, "optimizer"
        if turn.kernels[0] not in self._formulas.uncounted or not any_floats([result]):
            node.flops = 0
        if turn.writes:
            own = met[turn.gives]
            node.writes = turn.writes
            self._write(node, own, result)
            name = own.name or self._optimizers.shown(step, inputs[turn.writes[0]])
            if name:
                node.attributes["updates"] = name
        else:
            node.allocated_bytes = result.untyped_storage().nbytes()
            value = self._values.give(node, result)
            if self._values.written:
                stored = [met[number].key for _, number in turn.tensors]
                self._values.forget_fresh([result], [], stored)
            key = storage_key(result)
            assert key is not None, "it has just been computed"
            met[turn.gives] = own = _Met(value, key, self._held[id(result)][0], None)
            self._tensors[turn.gives] = result
            self._stored.add(key)
        assert self._part is not None, "a tensor of the round has told it"
        step.made[own.value] = self._part
        step.ran = True
        self._latest = self._part
        for number in turn.over:
            self._stored.discard(met[number].key)
            self._tensors[number] = met[number] = None
        self._at += 1
        if self._at == len(self._turns):
            self._at = 0
        self._count = len(self._nodes)
        return True

    def _meet(self, tensor: torch.Tensor, number: int) -> bool:
        """Look at a tensor that the round has not read before; tell whether it is as foreseen."""
        step = self.steps[-1]
        entry = self._held.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            self._value_of(tensor)
            entry = self._held.get(id(tensor))
            if entry is None:
                return False
        held, value = entry
        part = step.made.get(value)
        if part is None:
            own = step.parts.get(id(tensor))
            part = own[1] if own is not None and own[0]() is tensor else None
        if part is None:
            return False
        if not self._stored:
            self._part = part
            self._scope = self._optimizers.scope_of(step, part)
        elif part != self._part:
            return False
        key = storage_key(tensor)
        if key is None or key in self._stored:
            return False
        writes = self._values.writes.by_storage.get(key)
        if writes and writes[-1].node is not value.producer:
            return False
        self._stored.add(key)
        self._tensors[number] = tensor
        self._met[number] = _Met(value, key, held, self._optimizers.name_of(tensor))
        return True

    def _write(self, node: Node, own: _Met, result: torch.Tensor) -> None:
        """Give its new value to the tensor that an operation wrote into, and gives back."""
        before = own.value
        own.value = Value(node, 0, before.shape, before.dtype, before.device)
        node.outputs.append(own.value)
        self._held[id(result)] = own.held, own.value
        values = self._values
        region = own.region
        order = len(self._nodes) - 1
        if region is None:
            region = own.region = Region(result)
            values.writes.add_plain(Write(node, order, own.value, region), result, own.key)
            values.written = True
        else:
            values.writes.by_storage[own.key][-1] = Write(node, order, own.value, region)

    # -- learning -----------------------------------------------------------------------

    def learn(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        result: Any,
        operation: Operation,
        node: Node,
        frame: FrameType,
    ) -> None:
        """Take note of an operation of a step that was recorded at length, to foresee the next.

        Args:
            func: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
            operation: What its kernels did.
            node: Its node.
            frame: The Python frame that called it.
        """
        part = self._optimizers.part_of_latest
        if part != self._latest:
            self._begin(part)
        self._latest = part
        learnt = self._learnt
        if learnt is None:
            return
        mark = self._where.spot_of(frame)
        settings = dispatch_settings()
        if (
            mark is None
            or (learnt.turns and (mark, settings) != (self._mark, self._settings))
            or not (
                self._is_plain(func, args, kwargs, result=result, operation=operation, node=node)
            )
        ):
            self._learnt = None
            return
        self._mark, self._settings, self._number = mark, settings, sequence_number()
        turn = Turn(func, args, kwargs)
        if learnt.turns and any(each.kind == "op" for each in self._nodes[self._count : -1]):
            turn.anew = True
            learnt.begin_anew()
        self._count = len(self._nodes)
        if not learnt.add(turn, node, (*args, *kwargs.values()), result):
            self._learnt = None

    def _begin(self, part: Part | None) -> None:
        """Take note that what was recorded at length is the first operation of a round."""
        learnt, self._learnt = self._learnt, None
        if learnt is not None and learnt.turns:
            self._turns, count = learnt.whole()
            self._tensors, self._met = [None] * count, [None] * count
        elif part is not None and part.parameter is not None and self._tries:
            self._tries -= 1
            self._turns = []
            self._learnt = Learnt()

    def _is_plain(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        result: Any,
        operation: Operation,
        node: Node,
    ) -> bool:
        """Tell whether an operation is one that can be foreseen."""
        kinds = set(map(type, (*args, *kwargs.values())))
        written = operation.written
        return (
            node.kernels == [f"aten::{func.__name__}"]
            and not node.control_inputs
            and (
                len(written) == 1 and written[0] is args[0] is result
                if written
                else self._formulas.allocates[node.kernels[0]] is True
            )
            and type(result) in PLAIN
            and kinds <= PLAIN | _NUMBERS
            and all(map(is_held, kwargs.values()))
            and not torch.is_grad_enabled()
            and is_alone()
            and not in_forward_mode()
            and innermost_transform() is None
            and self._operations.about_to_write is None
            and not self._operations.keep_runs
        )
