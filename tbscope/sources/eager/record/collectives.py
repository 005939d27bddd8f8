"""Collectives: the operations of a run that communicate with other ranks, and their modules.

A kernel that communicates reports its inputs and outputs, torch's process groups report the ranks.
An asynchronous collective is over once Python waits for it.

Sharded training gathers the parameters of a module while another module runs, and reduces their
gradients once autograd is done with them; stages of a pipeline send and receive outside of every
module. So a collective that ran in a hook or between modules finds its scope after the run
(`move_to_modules`): the producers of its inputs, or the readers of its results, lead to the module
that it serves.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from types import FrameType
from typing import Any
from weakref import ref

import torch

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import STATE, sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import Scope, self_and_ancestors
from tbscope.sources.eager.record.operation import Communication
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.collectives import is_blocking
from tbscope.sources.torch.distributed import (
    Groups,
    is_boxed_work,
    is_dtensor,
    is_of_c10d,
    is_of_meshes,
)
from tbscope.sources.torch.module_names import Registry

__all__ = ["Collectives", "is_bookkeeping", "move_to_modules"]

_ONE_TO_ONE = frozenset({"send", "recv"})
# Parts of the names of torch's functions that make tensors only to communicate them.
_OF_ITS_OWN = ("object", "barrier")
# The most nodes of a search: gathered parameters are near their collective.
_FAR = 64
_EMPTY = "empty"
# Names of the nodes that wait, by `work.wait()` and by a kernel.
_WAITS = ("wait", "wait_tensor")


class Collectives:
    """The collectives of one run.

    Args:
        values: The values of tensors.
        registry: The places of the modules and their tensors.

    Attributes:
        groups: The process groups seen so far.
        begun: The asynchronous collectives that still run: the boxed work object that the kernel
            returned to wait for it, the node, and weak references to the tensors that it fills.
    """

    def __init__(self, values: TensorValues, registry: Registry) -> None:
        def meshes() -> Iterator[Any]:
            # The meshes of the parameters and buffers of the run.
            for tensor in registry.tensors():
                if is_dtensor(type(tensor)):
                    yield getattr(tensor, "device_mesh")  # noqa: B009 (a subclass has it)

        self.groups = Groups(meshes)
        self._values = values
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self.begun: list[tuple[Any, Node, list[ref[torch.Tensor]]]] = []

    def join(
        self, node: Node, joined: Sequence[Communication], written: list[torch.Tensor]
    ) -> None:
        """Describe the communication of a node's kernels in `node.collective`.

        Args:
            node: The node, with its outputs.
            joined: The communication by kernel; several are described as one, with the first one's
                kind.
            written: The tensors that the kernels have filled.
        """
        collectives = []
        for exchange, kernel, args, kwargs, result in joined:
            collective = exchange.collective(kernel, args, kwargs, result, groups=self.groups)
            key: tuple[Any, ...] = (collective.group, collective.ranks)
            if collective.kind in _ONE_TO_ONE:
                key = (*key, collective.kind, collective.peer)
            # Collectives are numbered within their group, point-to-point ones for each peer.
            collectives.append(replace(collective, sequence=self._counts[key]))
            self._counts[key] += 1
            work = result[-1] if isinstance(result, tuple) and result else result
            if isinstance(work, torch.ScriptObject) and not is_blocking(kernel, args, kwargs):
                self.begun.append((work, node, list(map(ref, written))))
        node.collective = collectives[0]
        if len(collectives) > 1:
            node.collective = replace(
                collectives[0],
                input_bytes=sum(collective.input_bytes for collective in collectives),
                output_bytes=sum(collective.output_bytes for collective in collectives),
                tensors=len(collectives),
            )

    def waited(self, work: object, frame: FrameType) -> list[torch.Tensor]:
        """Record that Python has waited for an asynchronous collective.

        Args:
            work: The work object.
            frame: The Python frame that waits.
        Returns:
            The tensors that are filled by then; an empty list if the graph needs no node for the
                wait.
        """
        begun = next((entry for entry in self.begun if is_boxed_work(entry[0], work)), None)
        if begun is None:
            return []
        self.begun.remove(begun)
        _, node, tensors = begun
        if node.collective is None or is_of_c10d(frame.f_code.co_filename):
            # The wait is part of a blocking call, and needs no node.
            return []
        node.collective = replace(node.collective, asynchronous=True)
        filled = [tensor for reference in tensors if (tensor := reference()) is not None]
        find = self._values.find
        return [each for each in filled if (value := find(each)) and value.producer is node]


def is_bookkeeping(frame: FrameType | None) -> bool:
    """Whether torch communicates on its own behalf in this frame: to pickle an object, say."""
    if frame is None:
        return False
    code = frame.f_code
    if is_of_meshes(code.co_filename):
        return True
    return any(map(code.co_qualname.__contains__, _OF_ITS_OWN)) and is_of_c10d(code.co_filename)


def move_to_modules(graph: Graph) -> None:
    """Move each collective to the scope of the module that it serves.

    Args:
        graph: Changed in place: the scopes of collectives, and of nodes that only lead to them.
    """
    collective = [node for node in graph.nodes if node.collective is not None]
    if collective:
        settling = _ModuleSearch(graph)
        for node in collective:
            home = settling.home(node)
            if home is not None and home is not node.scope:
                settling.move(node, home)


class _ModuleSearch:
    """The search for the scopes of one graph's collectives."""

    def __init__(self, graph: Graph) -> None:
        self._scopes = {scope.path: scope for scope in graph.scopes()}
        self._readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for other in sources_of(node):
                self._readers.setdefault(other, []).append(node)
        self._calls: dict[Value, Scope] = {}
        for call in graph.calls:
            for argument in call.arguments:
                for value in values_in(argument.nest):
                    self._calls.setdefault(value, call.scope)

    def home(self, node: Node) -> Scope | None:
        """Return the scope of the module that a collective serves; None if it is there already."""
        home = _around(self._owners(node))
        if home is not None:
            home = self._in_phase(home, node)
            encloses_home = home is None or (
                home is not node.scope and node.scope in {*self_and_ancestors(home)}
            )
            if encloses_home and not self._is_nowhere(node.scope):
                return None
            if home is not None:
                return home
        if not self._is_nowhere(node.scope):
            return None
        return self._around_those(node, sources_of) or self._around_those(node, self._after)

    def _is_nowhere(self, scope: Scope | None) -> bool:
        """Whether a scope belongs to no module: the top level, a whole pass or optimizer."""
        if scope is None or scope.parent is None:
            return scope is None or scope.phase != "forward"
        return scope.phase == "optimizer" and scope.parent.parent is None

    def _owners(self, node: Node) -> list[Scope]:
        """Return the scopes of the parameters or gradients from which alone a collective is made.

        The list is empty if other tensors lead to the collective as well, or if the search is too
        long.
        """
        scopes: list[Scope] = []
        seen: set[Node] = set()
        pending = [*sources_of(node)]
        while pending:
            current = pending.pop()
            if current in seen:
                continue
            seen.add(current)
            gradient = "gradient_of" in current.attributes and not self._is_nowhere(current.scope)
            # A kernel that allocates empty memory has no inputs to follow.
            empty = bool(current.kernels) and all(_EMPTY in kernel for kernel in current.kernels)
            if current.kind in STATE or gradient:
                scopes += [] if current.scope is None else [current.scope]
            elif len(seen) > _FAR or not (current.inputs or empty):
                return []
            else:
                pending += sources_of(current)
        return scopes

    def _after(self, node: Node) -> Iterable[Node]:
        """Return the nodes that read a node or depend on it."""
        return self._readers.get(node, ())

    def _around_those(self, node: Node, lead: Callable[[Node], Iterable[Node]]) -> Scope | None:
        """Return the scope that encloses the nearest nodes of modules in one direction.

        Args:
            node: The collective.
            lead: Returns the neighbours of a node in this direction: its producers or its readers.
        """
        scopes: list[Scope] = []
        seen = {node}
        pending = [node]
        while pending:
            current = pending.pop()
            if lead == self._after:
                scopes += [self._calls[value] for value in current.outputs if value in self._calls]
            for other in lead(current):
                if other in seen or other.kind == "constant":
                    continue
                seen.add(other)
                if other.scope is not None and not self._is_nowhere(other.scope):
                    scopes.append(other.scope)
                elif len(seen) <= _FAR:
                    pending.append(other)
        phases = {_root(scope).phase for scope in scopes}
        if len(phases) > 1 or (node.scope is not None and phases):
            # A tensor saved for the backward pass has readers there, too: the phase of the node
            # decides.
            phase = node.phase if node.scope is not None else "forward"
            scopes = [scope for scope in scopes if _root(scope).phase == phase]
        return _around(scopes)

    def _in_phase(self, home: Scope, node: Node) -> Scope | None:
        """Return the scope that mirrors a forward scope in the phase of a node."""
        if node.phase == _root(home).phase or node.scope is None:
            return home
        root = _root(node.scope)
        for scope in self_and_ancestors(home):
            mirror = self._scopes.get(f"{root.path}/{scope.path}")
            if mirror is not None:
                return mirror
        return None

    def move(self, node: Node, home: Scope) -> None:
        """Move a collective, and the nodes beside it that only lead to it.

        Views of its result, and waits for it, move as well.
        """
        scope = node.scope
        # The box of a whole pass also contains nodes that were found at its end: the bucket of
        # gradients.
        beside = (scope, None if scope is None else _root(home))
        moved = {node}
        node.scope = home
        if scope is None:
            node.phase = _root(home).phase
        pending = [*sources_of(node), *self._after(node)]
        while pending:
            near = pending.pop()
            if near in moved or near.kind != "op" or near.scope not in beside or near.collective:
                continue
            if "gradient_of" in near.attributes:
                # The gradient stays with its own module.
                continue
            if near.role is None and not moved.issuperset(self._after(near)) and not _is_wait(near):
                continue
            if (near.role == "view" or _is_wait(near)) and moved.isdisjoint(sources_of(near)):
                continue
            moved.add(near)
            near.scope, near.phase = home, node.phase
            pending += [*sources_of(near), *self._after(near)]


def _is_wait(node: Node) -> bool:
    """Whether a node only waits for the result of a collective."""
    return node.op in _WAITS


def _root(scope: Scope) -> Scope:
    return [*self_and_ancestors(scope)][-1]


def _around(scopes: list[Scope]) -> Scope | None:
    """Return the innermost scope that encloses all of some scopes, or None."""
    common: list[Scope] = []
    for number, each in enumerate(dict.fromkeys(scopes)):
        path = [*self_and_ancestors(each)][::-1]
        same = takewhile(lambda pair: pair[0] is pair[1], zip(common, path, strict=False))
        common = [scope for scope, _ in same] if number else path
    return common[-1] if common else None
