"""The recorder: turns the events of a run into a graph.

The modes tell it of operations and kernels, the watched module calls of modules,
the scopes by hand of theirs. It changes none of what it sees.
"""

import sys
from collections.abc import Callable
from copy import copy
from functools import partial
from types import FrameType
from typing import Any

import torch

from tbscope.figures.notes import find_notes
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Graph, Node, Note, Source, Value
from tbscope.sources.eager.record.bodies import KernelRun, KernelRuns
from tbscope.sources.eager.record.call_recorder import CallRecorder
from tbscope.sources.eager.record.operation import Operation, Operations
from tbscope.sources.eager.record.origins import not_behind
from tbscope.sources.eager.record.reads import Reads, shares_memory
from tbscope.sources.eager.record.tensors import tell_nobody
from tbscope.sources.torch.compiler_internals import draws_otherwise
from tbscope.sources.torch.internals import ENOUGH, in_forward_mode
from tbscope.sources.torch.literals import FILLED, Literals, all_among, collect_tensors
from tbscope.sources.torch.operations import (
    CUTS_UNSEEN,
    RANDOM,
    READS,
    KernelFacts,
    add_signature,
    is_random,
    role_of,
)
from tbscope.sources.torch.ranks import process_rank
from tbscope.sources.torch.wrapping import PLAIN
from tbscope.warning import warn

__all__ = ["Recorder"]


_OTHER_NUMBERS = (
    "tbscope records compiled code, which runs as it was written for that: its random operations "
    "(dropout) draw other numbers than compiled ones, so that the losses from here on are others "
    "than without the recording; to keep them, draw the model by writer.add_graph(model, input, "
    "training=True, loss=..., backward=True), which puts random numbers back, or record before "
    "torch.compile; with inductor, or set torch._inductor.config.fallback_random = True before it"
)

# As `Argument(name, nest)`, in a third of the time.
_argument = partial(tuple.__new__, Argument)


class Recorder(CallRecorder):
    """Builds the graph of one run.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `Locator`).
        open_ended: Whether the run is a region of code rather than one call, so that a
            tensor nobody knows is an input where no module runs.
        bodies: Whether the kernels of each operation are recorded as nodes.

    Attributes:
        ended: Whether an error ended the run.
        strands: What several threads do of the run; None where only one has done anything.
        before_closing: Called once the run is over, while all is known; None for nothing.
    """

    def __init__(
        self,
        name: str,
        *,
        boundary: Callable[..., Any],
        open_ended: bool = False,
        bodies: bool = False,
    ) -> None:
        builder = GraphBuilder(name, rank=process_rank())
        operations = Operations(builder.graph.uncounted, keep_runs=bodies)
        super().__init__(builder, operations, open_ended=open_ended, boundary=boundary)
        self.ended = self._forked = self._told_of_numbers = False
        self.strands: Any = None
        self.before_closing: Callable[[], None] | None = None
        self._reads = Reads()

    def branch(self, source: Source | None) -> "Recorder":
        """Return a recorder for work that another thread does: it adds to the same graph.

        Args:
            source: The line that has handed the work over.
        """
        branch = copy(self)
        branch.scopes = scopes = self.scopes.branch(source)
        branch.operations = self.operations.branch()
        branch._where = self._where.branch(scopes)
        branch._discovery = discovery = self._discovery.branch(scopes)
        branch.value_of, branch.add_input = discovery.value_of, discovery.add_input
        branch.nest = Literals(discovery.value_of, discovery.lying_in).nest
        self.branch_steps(branch)
        return branch

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self._where.source_at(frame)

    def begin_at(self, frame: FrameType) -> None:
        """Set the Python frame in which the region begins; frames around it are not looked at."""
        self._where.begin_at(frame)

    def end_in(self, frame: FrameType) -> None:
        """Let go of the frame in which the region began, as it ends in this one."""
        self._where.end_in(frame)

    def close(self) -> Graph:
        """Let go of everything but the graph, once the run is over; return the graph."""
        graph = self.graph
        if self.before_closing is not None:
            self.before_closing()
            self.before_closing = None
        graph.notes += find_notes(
            graph, reads=self._reads, whole=not self.ended, stood_in=self._replaced_parameters()
        )
        # At once, not when the garbage collector comes by: this refers to itself.
        self._values.forget()
        self._discovery.forget()
        self.passed.forget()
        self._reads.clear()
        self._tell_of_ranks()
        self.modules_called.clear()
        self.scopes.forget()
        self.backward = self.optimizers = self.functions = None
        self.about_to_step = tell_nobody
        return graph

    def add_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operation: Operation,
        frame: FrameType | None,
    ) -> Node | None:
        """Record one operation that has run; return its node, None where it has none.

        Args:
            name: What it is called.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
            operation: What its kernels did.
            frame: The Python frame that called it; None where none did.
        """
        results = [result] if type(result) in PLAIN else collect_tensors(result, [])
        joined = operation.joined
        if operation.told or (self.distributed and not joined and self.is_bookkeeping(frame)):
            return None
        backward = self.backward
        # Only in a pass is there something to ask for each operation.
        in_pass = backward if backward is not None and backward.passes else None
        if in_pass is not None:
            in_pass.begin(frame)
        written, kernels = operation.written, operation.kernels
        if not written:
            if not results and result is not None and not joined:
                if args:
                    self.add_read(name, args[0], frame)
                return None
            if not kernels and name == "grad":
                if self.backward is None and len(args) == len(results) == 1:
                    self.know_gradient(args[0], results[0])
                return None
            if not kernels and all_among(results, (args, kwargs)):
                # Nothing ran, and what came in came out: contiguous() of what is so already.
                if name not in CUTS_UNSEEN or not any(map(self._values.find, results)):
                    return None
                kernels = [f"aten::{name}"]
            if self.distributed and self._is_the_same(kernels, args, result):
                return None
        unseen: list[torch.Tensor] = []
        if joined:
            self._know_handed_in(joined)
            args, kwargs = self._without_filled(joined, (args, kwargs), unseen)
        read: list[torch.Tensor] = []
        values: list[Value] = []
        arguments = []
        filled = ""
        held = self._values
        for given in args:
            kind = type(given)
            # Most arguments are tensors and numbers; the rest may be nests of them.
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                value = self.value_of(given)
                read.append(given)
                values.append(value)
                arguments.append(_argument((None, value)))
            elif kind is int or kind is float or kind is bool:
                arguments.append(_argument((None, given)))
            else:
                arguments.append(_argument((None, self.nest(given, read, values))))
        for key, given in kwargs.items():
            if key == "out" and written and given is not None:
                # What it names is filled, not read: an edge from it would be invented.
                arguments.append(Argument(key, FILLED))
                filled = self._discovery.from_before(collect_tensors(given, []))
            else:
                arguments.append(Argument(key, self.nest(given, read, values)))
        if operation.given or operation.fed:
            self._read_inner(name, operation, read, values)
        passing = operation.passing
        if passing is not None:
            written = [tensor for tensor in written if id(tensor) not in passing.earlier]
        place = self._where.of_operation(frame)
        scope, source, run, step = place
        if in_pass is not None:
            scope, begun = in_pass.place(scope, values), in_pass.passes[-1]
            # Threads of autograd's own know nothing of the function that waits for them.
            run, step = begun.run, begun.step
        elif self.scopes.phases:
            scope = self.place_between_phases(scope, values)
        optimizers = self.optimizers
        if optimizers is not None:
            scope = optimizers.place(scope, (place, frame), read, values)
        writers = held.earlier_writers(read, values) if held.written else []
        node = self._append_op(name, scope, values, arguments, writers, source, kernels)
        if passing is not None:
            # What led to its arguments leads to what it gives already.
            node.inputs += not_behind(passing.read, values)
        if run is not None:
            node.run, node.step = run, step
        node.role = role_of(kernels, reads=bool(values))
        if not RANDOM.isdisjoint(kernels):
            node.random = is_random(kernels, arguments, self.graph.signatures.get(name, ()))
            if node.random and self._open_ended and not self._told_of_numbers:
                self._tell_of_numbers(frame)
        if written:
            node.writes = held.places_of(written, read, values)
            if filled:
                node.attributes["fills"] = filled
        # Before the node has outputs: its kernels read what was there before.
        inside = self._kernel_runs(node, operation.runs, read) if operation.runs else None
        if kernels:
            self.operations.formulas.describe(node, operation.work, read, results)
        if joined:
            self.collectives.join(node, joined, written)
        candidates = read
        for tensor in results:
            held.give(node, tensor)
        if written:
            self._know_places(written)
            if unseen or "out" in kwargs:
                candidates = collect_tensors(kwargs.get("out"), [*read, *unseen])
            held.give_written(node, written, results, candidates)
        if inside is not None:
            node.body = inside.body(held.tensors_of(node, results, [*candidates, *written]))
            self._tell_in_body(node)
        if passing is not None:
            self.passed.add(node, passing, None if inside is None else inside.given)
        if held.written:
            held.forget_fresh(results, candidates)
        if backward is not None:
            backward.ran(node, read, results)
        if optimizers is not None:
            optimizers.ran(node, read)
        return node

    def _kernel_runs(
        self, node: Node, runs: list[KernelRun], read: list[torch.Tensor]
    ) -> KernelRuns | None:
        """Return the kernels that ran in an operation; None where it was a single one."""
        if len(runs) != len(node.kernels) or len(runs) == 1:
            return None
        if in_forward_mode():
            # What it is given and gives has tangents, which no kernel is seen to take.
            runs = []
        held = self._values
        writers = held.earlier_writers if node.control_inputs else None
        return KernelRuns(node, runs, outer=held.seen, read=read, writers=writers)

    def add_kernel(
        self,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operation: Operation,
        frame: FrameType | None,
    ) -> Node | None:
        """Record a kernel that ran outside of every operation (in a ScriptModule, in C++)."""
        if facts.label == "detach" and not collect_tensors(result, []):
            return None
        label = facts.label
        if facts.exchange is not None:
            label, args = self._told_by_exchange(facts, args, kwargs)
            kwargs = {}
        elif label not in self.graph.signatures:
            add_signature(self.graph.signatures, label, facts.kernel)
        return self.add_operation(label, args, kwargs, result, operation, frame)

    def tell_of_fork(self) -> None:
        """Tell, once, that a scripted module runs operations in threads of TorchScript's own."""
        if not self._forked:
            self._forked = True
            running = self.scopes.running
            text = (
                f"{running.scope} runs operations in threads of TorchScript's own "
                "(torch.jit.fork): which of them comes first may differ from run to run"
            )
            self.graph.notes.append(Note(text, running.source))

    def _tell_of_numbers(self, frame: FrameType | None) -> None:
        """Warn, once, that the run draws other random numbers than it would unwatched."""
        if "torch._dynamo" in sys.modules and draws_otherwise(frame):
            self._told_of_numbers = True
            warn(_OTHER_NUMBERS)

    def fail_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        frame: FrameType | None,
    ) -> None:
        """Keep in mind an operation that raised, should its error end the run."""
        if self.failures.is_known(error):
            return
        values: list[Value] = []
        nest = self.nest
        scope, source, run, step = self._where.of_operation(frame)
        backward = self.backward
        if backward is not None and backward.passes:
            backward.begin(frame)
            scope, run, step = backward.place(scope, values), None, 0
        node = Node("", name, "op", scope, values, source=source, run=run, step=step)
        node.arguments = [Argument(None, nest(given, [], values)) for given in args]
        node.arguments += [
            Argument(key, FILLED if key == "out" and given is not None else nest(given, [], values))
            for key, given in kwargs.items()
        ]
        if backward is not None and backward.passes and isinstance(error, ENOUGH):
            # It has run, and what it gave is saved.
            running = self.operations.running
            node.kernels = [] if running is None else running.kernels
            self.builder.append(node)
            backward.stopped(node)
            return
        self.failures.left_operation(error, node)

    def end_with(self, error: BaseException, text: str) -> None:
        """Close the graph of a run that an error ended, with the operation that raised it.

        Args:
            error: What ended the run.
            text: What it says, on one line.
        """
        node = self.failures.operation(error)
        if node is not None:
            node.attributes["error"] = text
            self.builder.append(node)
        source = node.source if node is not None else None
        self.graph.notes.insert(0, Note(f"the run ended here: {text}", source, node))
        self.ended = True

    def add_read(self, name: str, tensor: Any, frame: FrameType | None) -> None:
        """Note that Python read the content of a tensor (`item`, `bool`, `tolist`)."""
        if name not in READS or not isinstance(tensor, torch.Tensor) or self.is_bookkeeping(frame):
            return
        if shares_memory(name):
            # Whatever is written through the array is no operation that anyone could see.
            self.about_to_write(tensor)
        self._reads.note(self.value_of(tensor), name, self._where.source_at(frame))

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Take note of a tensor that something which is no operation is about to write into."""
        if self.operations.about_to_write is not None:
            self.operations.about_to_write(tensor)
