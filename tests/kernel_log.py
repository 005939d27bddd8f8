"""The kernels of a run with the memory that each reads and writes, and the graph that they allow.

`KernelLog` logs a run by modes of its own and shares no code with the recorder: each kernel with
the bytes of its tensors, the torch function around it, and the innermost module call. `faults`
compares a graph of another run of the same program with the log:

- each kernel is in the node of the operation that ran it, once;
- the scope of a node is the innermost module call;
- an operation depends on the last write of each byte that it reads;
- a data edge starts at the last operation that made or wrote the tensor, and a control edge at a
  later write of the same memory.
"""

import threading
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import isgenerator as is_generator
from itertools import product

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tbscope.ir.graph import Graph
from tbscope.ir.scopes import self_and_ancestors

# Kernels that compute nothing: torch asks them for sizes, flags and layouts.
QUERIES = ("prim::", "profiler::", "aten::sym_")
_COMPOSITE = "CompositeImplicitAutograd"
_PASSES = (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad)


@dataclass(frozen=True, eq=False)
class Seen:
    """A tensor as an operation saw it.

    Attributes:
        tensor: The tensor; None in a backward pass, as torch copies a gradient with two owners.
        bytes: Its bytes.
        storages: Its storages, whose addresses are not reused while they are here.
    """

    tensor: torch.Tensor | None
    bytes: frozenset
    storages: list

    def is_same(self, other):
        return self.tensor is not None and self.tensor is other.tensor

    def shares_storage(self, other):
        return not {key for key, _ in self.bytes}.isdisjoint(key for key, _ in other.bytes)


@dataclass
class Operation:
    """One torch function, or one kernel outside of all torch functions.

    Attributes:
        thread: The name of the work of another thread that runs beside others, or "".
        stack: The module calls around it, outermost first.
        kernels: The names of its kernels.
        inner: For each of its kernels, those before it from whose writes it reads, by position.
        args: The tensors among its arguments.
        results: The tensors that it returned.
        read: The bytes that its kernels read, each with the operation that wrote it last.
        written: The bytes that its kernels wrote into tensors from before.
        targets: The tensors that its kernels wrote into.
        backward: Whether autograd's engine ran it.
    """

    thread: str
    stack: tuple
    kernels: list = field(default_factory=list)
    inner: list = field(default_factory=list)
    args: list = field(default_factory=list)
    results: list = field(default_factory=list)
    read: dict = field(default_factory=dict)
    written: set = field(default_factory=set)
    targets: list = field(default_factory=list)
    backward: bool = False

    def __str__(self):
        return "+".join(self.kernels)


@dataclass(frozen=True)
class Call:
    """One module call.

    Attributes:
        number: Its number; None for a `forward` that the program calls itself.
        module: The module.
    """

    number: int | None
    module: nn.Module


def inner(tensor):
    """Give the tensors whose storages contain the content of a tensor."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return inner(torch._C._functorch.get_unwrapped(tensor))
    if hasattr(type(tensor), "__tensor_flatten__"):
        names = tensor.__tensor_flatten__()[0]
        return [each for name in names for each in inner(getattr(tensor, name))]
    return [tensor]


def bytes_of(tensor):
    """Give the bytes of a tensor, each as its storage and its position."""
    found = set()
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        for plain in inner(tensor):
            size, storage = plain.element_size(), plain.untyped_storage()._cdata
            places = product(*map(range, plain.shape))
            for place in places:
                steps = sum(at * step for at, step in zip(place, plain.stride(), strict=True))
                found.add((storage, (plain.storage_offset() + steps) * size))
    return frozenset(found)


def storages_of(nest):
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return [part.untyped_storage() for each in tensors_in(nest) for part in inner(each)]


def tensors_in(nest):
    return [leaf for leaf in pytree.tree_leaves(nest) if isinstance(leaf, torch.Tensor)]


class _Here(threading.local):
    """The state of one thread: the module calls around, the running operation, its label."""

    stack = ()
    running = None
    label = ""


class KernelLog:
    """The log of one run.

    Args:
        opens_passes: Whether each kernel of a backward pass is an operation, and not the pass.
        keeps_results: Whether the results of kernels are kept, as a recorder of bodies does. torch
            detaches a new tensor that has another owner.

    Attributes:
        operations: The operations in the order in which they ended.
        outputs: The tensors that the program returned.
    """

    def __init__(self, *, opens_passes=False, keeps_results=False):
        self.opens_passes, self.keeps_results = opens_passes, keeps_results
        self.operations = []
        self.outputs = []
        self._here = _Here()
        # The operation that wrote each byte last, and the position of the kernel in it.
        self._last = {}
        self._calls = 0
        self._lock = threading.RLock()
        # The storages of temporary tensors.
        self._kept = []

    @contextmanager
    def watching(self):
        """Log the kernels and module calls of this thread during a block."""
        plain_call = nn.Module.__call__

        def call(module, *args, **kwargs):
            with self._lock:
                self._calls += 1
                number = self._calls
            with self.inside(module, number):
                result = plain_call(module, *args, **kwargs)
            return self._steps(result, module, number) if is_generator(result) else result

        nn.Module.__call__ = call
        try:
            with self.modes():
                yield self
        finally:
            nn.Module.__call__ = plain_call

    @contextmanager
    def inside(self, module, number=None):
        """Log what runs in a block as run by a module."""
        here, before = self._here, self._here.stack
        here.stack = (*before, Call(number, module))
        try:
            yield
        finally:
            here.stack = before

    def _steps(self, generator, module, number):
        """Yield the entries of a forward that yields: its code runs in its call, step by step."""
        while True:
            with self.inside(module, number):
                entry = next(generator, None)
            if entry is None:
                return
            yield entry

    @contextmanager
    def modes(self):
        with ExitStack() as stack:
            stack.enter_context(_Kernels(self))
            stack.enter_context(_Functions(self))
            yield

    def work(self, function, label):
        """Give a function for another thread, which begins in the module calls of this one."""
        # The frames of a `forward` that the program calls itself are in the first thread alone.
        stack = tuple(call for call in self._here.stack if call.number is not None)

        def run(*args):
            self._here.stack, self._here.label = stack, label
            with self.modes():
                return function(*args)

        return run

    def begin(self, args):
        here = self._here
        backward = torch._C._current_autograd_node() is not None
        here.running = operation = Operation(here.label, here.stack, backward=backward)
        operation.args = self._seen(operation, args)
        return operation

    def _seen(self, operation, tree):
        return [
            Seen(None if operation.backward else each, bytes_of(each), storages_of(each))
            for each in tensors_in(tree)
        ]

    def end(self, operation, result):
        self._here.running = None
        operation.results = self._seen(operation, result)
        with self._lock:
            self.operations.append(operation)

    def drop(self):
        self._here.running = None

    def last_write(self, byte):
        return self._last.get(byte, (None, 0))

    @property
    def running(self):
        return self._here.running

    def kernel(self, operation, func, args, kwargs, result):
        """Log one kernel: its reads first, as they are of the memory from before its writes."""
        schema = func._schema.arguments
        named = [*zip(schema, args, strict=False)]
        named += [
            (argument, kwargs[argument.name]) for argument in schema if argument.name in kwargs
        ]
        written, read = [], []
        for argument, value in named:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written:
                written += tensors_in(value)
            if not (is_written and argument.kwarg_only):
                read += tensors_in(value)
        with self._lock:
            self._kept.append(storages_of((args, kwargs, result)))
            if self.keeps_results:
                self._kept.append(result)
            operation.kernels.append(func.name().partition(".")[0])
            operation.inner.append(set())
            for tensor in read:
                for byte in bytes_of(tensor):
                    writer, at = self.last_write(byte)
                    operation.read.setdefault(byte, writer)
                    if writer is operation:
                        operation.inner[-1].add(at)
            now = operation, len(operation.kernels) - 1
            before = {byte for tensor in tensors_in((args, kwargs)) for byte in bytes_of(tensor)}
            operation.targets += self._seen(operation, written)
            for tensor in written:
                operation.written |= bytes_of(tensor)
                self._last.update(dict.fromkeys(bytes_of(tensor), now))
            for tensor in tensors_in(result):
                for byte in bytes_of(tensor) - before:
                    self._last[byte] = now


class _Functions(TorchFunctionMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_function__(self, func, types, args=(), kwargs=None):
        log, kwargs = self.log, kwargs or {}
        if log.running is not None:
            return func(*args, **kwargs)
        if log.opens_passes and func in _PASSES:
            return func(*args, **kwargs)
        operation = log.begin((args, kwargs))
        try:
            result = func(*args, **kwargs)
        except BaseException:
            log.drop()
            raise
        log.end(operation, result)
        return result


class _Kernels(TorchDispatchMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        log, kwargs = self.log, kwargs or {}
        if func.name().startswith(QUERIES):
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
            # torch hands a composite operator over whole in forward mode.
            with self:
                return func.decompose(*args, **kwargs)
        operation = log.running
        if operation is not None:
            result = func(*args, **kwargs)
            log.kernel(operation, func, args, kwargs, result)
            return result
        operation = log.begin((args, kwargs))
        try:
            result = func(*args, **kwargs)
        except BaseException:
            log.drop()
            raise
        log.kernel(operation, func, args, kwargs, result)
        log.end(operation, result)
        return result


# -- comparison ------------------------------------------------------------------------------


def faults(log: KernelLog, graph: Graph, model: nn.Module, *, loose: bool) -> list[str]:
    """Give the differences between a graph and the graph that a log allows.

    Args:
        log: The log.
        graph: The graph.
        model: The model that made the log, for the names of modules.
        loose: Whether tensors are inside of other tensors, so that the value of a tensor may be
            that of another tensor in the same memory.
    """
    return _Comparison(log, graph, model, loose=loose).faults()


class _Comparison:
    def __init__(self, log, graph, model, *, loose):
        self.log, self.graph, self.loose = log, graph, loose
        self.names = {id(module): name for name, module in model.named_modules()}
        self.found = []
        self.node_of = {}
        self.operation_of = {}
        # The nodes from which each node can be reached.
        self.before = {}
        for node in graph.nodes:
            sources = [*(value.producer for value in node.inputs), *node.control_inputs]
            self.before[node] = set(sources).union(*(self.before.get(each, ()) for each in sources))

    def faults(self):
        self._match()
        if not self.found:
            self._compare_scopes()
            self._compare_dependencies()
            self._compare_edges()
            self._compare_outputs()
            self._compare_bodies()
        return self.found

    def _match(self):
        """Find the node of each operation: the work of each thread is in order."""
        nodes = defaultdict(list)
        for node in self.graph.nodes:
            if node.kernels:
                nodes[self._label(node)].append(node)
        operations = defaultdict(list)
        for operation in self.log.operations:
            if operation.kernels and (operation.results or operation.written):
                operations[operation.thread].append(operation)
        for label in {*nodes, *operations}:
            left, right = operations[label], nodes[label]
            for operation, node in zip(left, right, strict=False):
                if operation.kernels != node.kernels:
                    self.found.append(f"{operation} is recorded as {node} of {node.kernels}")
                    return
                self.node_of[id(operation)], self.operation_of[node] = node, operation
            if len(left) != len(right):
                missing = list(map(str, [*left[len(right) :], *right[len(left) :]]))
                self.found.append(f"on one side only: {missing}")

    def _label(self, node):
        labels = (each.part.label for each in self_and_ancestors(node.scope))
        return next((label for label in labels if label.startswith("work")), "")

    def _compare_scopes(self):
        scope_of, call_of = {}, {}
        for node, operation in self.operation_of.items():
            if operation.backward:
                continue
            scope = next(
                (each for each in self_and_ancestors(node.scope) if each.kind != "hand"), None
            )
            call = operation.stack[-1] if operation.stack else None
            wanted = None if call is None else self.names[id(call.module)]
            actual = None if scope is None else scope.qualified_name
            if wanted != actual:
                self.found.append(f"{node} ran in {wanted!r}")
            if call is None or call.number is None:
                continue
            if scope_of.setdefault(call, scope) is not scope:
                self.found.append(f"{node} is in another scope than its call")
            if call_of.setdefault(scope, call) != call:
                self.found.append(f"{node} is in the scope of another call")

    def _compare_dependencies(self):
        for node, operation in self.operation_of.items():
            for writer in {id(each): each for each in operation.read.values()}.values():
                if writer is None or writer is operation:
                    continue
                source = self.node_of.get(id(writer))
                if source is not None and source not in self.before[node]:
                    self.found.append(f"{node} does not depend on the write of {source}")

    # -- edges

    def _compare_edges(self):
        times = {id(operation): at for at, operation in enumerate(self.log.operations)}
        for node, operation in self.operation_of.items():
            now = times[id(operation)]
            past = self.log.operations[:now]
            makers, writers = [], []
            for tensor in operation.args:
                makers += self._makers(tensor, past)
                writers += self._writers(tensor, past)
            tensors = set(map(id, makers))
            for value in node.inputs:
                for source in self._origins(value):
                    maker = self.operation_of.get(source)
                    if maker is not None and id(maker) not in tensors:
                        self.found.append(f"{node} reads an old or wrong value of {source}")
                    if maker is None and None not in makers:
                        self.found.append(f"{node} reads {source}, which was replaced")
            waits = set(map(id, writers))
            for source in node.control_inputs:
                writer = self.operation_of.get(source)
                is_read = any(value.producer is source for value in node.inputs)
                if is_read or writer is None or id(writer) not in waits:
                    self.found.append(f"{node} waits for {source} for no reason")

    def _makers(self, tensor, past):
        """Give the operations at which a data edge for a tensor may start; None for a source."""
        allowed = []
        for at in reversed(range(len(past))):
            operation = past[at]
            is_result = any(map(tensor.is_same, operation.results))
            if not operation.kernels:
                if is_result and not any(map(tensor.is_same, operation.args)):
                    sources = [self._makers(each, past[:at]) for each in operation.args]
                    return [*allowed, *(maker for makers in sources for maker in makers)]
                continue
            if is_result or self._writes(operation, tensor):
                return [*allowed, operation]
            if (self.loose or tensor.tensor is None) and self._touches(operation, tensor):
                allowed.append(operation)
        return [*allowed, None]

    def _writes(self, operation, tensor):
        """Whether an operation gives a tensor a new value."""
        if any(map(tensor.is_same, operation.targets)):
            return True
        for target in operation.targets:
            # A temporary view: the first argument in its storage has the new value.
            sharing = [each for each in operation.args if each.shares_storage(target)]
            if sharing and tensor.is_same(sharing[0]):
                return not any(map(target.is_same, operation.args))
        return False

    def _touches(self, operation, tensor):
        made = operation.written.union(*(each.bytes for each in operation.results))
        return not tensor.bytes.isdisjoint(made)

    def _writers(self, tensor, past):
        """Give the operations for which a reader of a tensor may wait."""
        found = []
        for operation in reversed(past):
            if not operation.written.isdisjoint(tensor.bytes):
                found.append(operation)
            is_maker = operation.kernels and any(map(tensor.is_same, operation.results))
            if not self.loose and (is_maker or self._writes(operation, tensor)):
                break
        return found

    def _origins(self, value):
        """Give the nodes from which a value comes, through nodes without kernels."""
        node = value.producer
        if node.kernels or node.kind != "op":
            return {node}
        return set().union(*map(self._origins, node.inputs))

    def _compare_outputs(self):
        for output, tensor in zip(self.graph.outputs, self.log.outputs, strict=False):
            nodes = {output.value.producer, *output.control_inputs}
            nodes = nodes.union(*(self.before[node] for node in nodes))
            for byte in bytes_of(tensor):
                writer, _ = self.log.last_write(byte)
                source = self.node_of.get(id(writer))
                if source is not None and source not in nodes:
                    self.found.append(f"{output.name} does not depend on the write of {source}")
                    break

    def _compare_bodies(self):
        for node, operation in self.operation_of.items():
            kernels = [] if node.body is None else node.body.nodes
            if not kernels:
                continue
            if [name for kernel in kernels for name in kernel.kernels] != operation.kernels:
                self.found.append(f"the body of {node} has other kernels")
                return
            before = {}
            for kernel, sources in zip(kernels, operation.inner, strict=True):
                direct = {*kernel.control_inputs, *(value.producer for value in kernel.inputs)}
                before[kernel] = direct.union(*(before.get(each, ()) for each in direct))
                for at in sources:
                    if kernels[at] not in before[kernel]:
                        self.found.append(f"{kernel} does not depend on {kernels[at]}")
