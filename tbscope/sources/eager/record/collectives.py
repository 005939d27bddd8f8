"""Collectives: what the operations of a run do together with other ranks, and who waits for them.

A kernel that communicates tells what it hands in and what it gets; torch's groups tell with
whom. What runs on in the background is over where Python waits for it.

Sharded training gathers the parameters of a module while another one runs, and reduces their
gradients once autograd is done with them; stages of a pipeline send and receive outside of every
module. What was handed in, or what is read of it, tells whose it is: what ran in hooks and between
modules finds its scope once the run is over.
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
from tbscope.ir.scopes import Scope, upward
from tbscope.sources.eager.record.operation import Joined
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.collectives import is_blocking
from tbscope.sources.torch.distributed import Groups, is_of_c10d, is_of_meshes, is_spread, same_work
from tbscope.sources.torch.module_names import Registry

__all__ = ["Collectives", "is_bookkeeping", "settle"]

_ONE_TO_ONE = frozenset({"send", "recv"})
# Parts of the names of torch's functions that make tensors to have something to hand in.
_OF_ITS_OWN = ("object", "barrier")
# So far is looked for what a collective serves: gathered parameters lie near.
_FAR = 64
_EMPTY = "empty"
# What waiting is called, by `work.wait()` and by a kernel.
_WAITS = ("wait", "wait_tensor")


class Collectives:
    """Knows the collectives of one run.

    Args:
        values: The values that tensors hold.
        registry: The places of the modules and their tensors.

    Attributes:
        groups: The process groups that were met.
        begun: Those that run on while Python goes on: what a kernel gave to wait for it, in a box,
            the node, and what it fills, weakly.
    """

    def __init__(self, values: TensorValues, registry: Registry) -> None:
        def meshes() -> Iterator[Any]:
            # Those that the parameters and buffers of the run lie on.
            for tensor in registry.tensors():
                if is_spread(type(tensor)):
                    yield getattr(tensor, "device_mesh")  # noqa: B009 (a subclass has it)

        self.groups = Groups(meshes)
        self._values = values
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self.begun: list[tuple[Any, Node, list[ref[torch.Tensor]]]] = []

    def join(self, node: Node, joined: Sequence[Joined], written: list[torch.Tensor]) -> None:
        """Have a node tell what its kernels have done together with others.

        Args:
            node: The node, with its outputs.
            joined: What they have done; of several, those of one kind are told as one.
            written: The tensors that they have filled.
        """
        told = []
        for exchange, kernel, args, kwargs, result in joined:
            one = exchange.collective(kernel, args, kwargs, result, groups=self.groups)
            key: tuple[Any, ...] = (one.group, one.ranks)
            if one.kind in _ONE_TO_ONE:
                key = (*key, one.kind, one.peer)
            # They are numbered on in their group.
            told.append(replace(one, sequence=self._counts[key]))
            self._counts[key] += 1
            work = result[-1] if isinstance(result, tuple) and result else result
            if isinstance(work, torch.ScriptObject) and not is_blocking(kernel, args, kwargs):
                self.begun.append((work, node, list(map(ref, written))))
        node.collective = told[0]
        if len(told) > 1:
            node.collective = replace(
                told[0],
                input_bytes=sum(one.input_bytes for one in told),
                output_bytes=sum(one.output_bytes for one in told),
                tensors=len(told),
            )

    def waited(self, work: Any, frame: FrameType) -> list[torch.Tensor]:
        """Take note that Python has waited for what runs in the background.

        Args:
            work: What it has waited for.
            frame: The Python frame that waits.
        Returns:
            The tensors that are filled by then; none where there is no wait to draw.
        """
        begun = next((one for one in self.begun if same_work(one[0], work)), None)
        if begun is None:
            return []
        self.begun.remove(begun)
        _, node, tensors = begun
        if node.collective is None or is_of_c10d(frame.f_code.co_filename):
            # A blocking call waits for itself.
            return []
        node.collective = replace(node.collective, asynchronous=True)
        filled = [tensor for held in tensors if (tensor := held()) is not None]
        find = self._values.find
        return [each for each in filled if (value := find(each)) and value.producer is node]


def is_bookkeeping(frame: FrameType | None) -> bool:
    """Tell whether torch calls for itself in this frame: to pack an object, say."""
    if frame is None:
        return False
    code = frame.f_code
    if is_of_meshes(code.co_filename):
        return True
    return any(map(code.co_qualname.__contains__, _OF_ITS_OWN)) and is_of_c10d(code.co_filename)


def settle(graph: Graph) -> None:
    """Have each collective stand in the scope of the module that it serves.

    Args:
        graph: Changed in place: the scopes of collectives, and of what only leads to them.
    """
    collective = [node for node in graph.nodes if node.collective is not None]
    if collective:
        settling = _Settling(graph)
        for node in collective:
            home = settling.home(node)
            if home is not None and home is not node.scope:
                settling.move(node, home)


class _Settling:
    """One graph whose collectives find their scopes."""

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
        """Return the scope of what a collective serves; None where it stands well."""
        home = _around(self._owners(node))
        if home is not None:
            home = self._in_phase(home, node)
            stands = home is None or (home is not node.scope and node.scope in {*upward(home)})
            if stands and not self._is_nowhere(node.scope):
                return None
            if home is not None:
                return home
        if not self._is_nowhere(node.scope):
            return None
        return self._around_those(node, sources_of) or self._around_those(node, self._after)

    def _is_nowhere(self, scope: Scope | None) -> bool:
        """Tell whether a scope is that of no module: the top level, a whole pass or optimizer."""
        if scope is None or scope.parent is None:
            return scope is None or scope.phase != "forward"
        return scope.phase == "optimizer" and scope.parent.parent is None

    def _owners(self, node: Node) -> list[Scope]:
        """Return the scopes of the parameters, or gradients, that a collective alone is made of."""
        found: list[Scope] = []
        seen: set[Node] = set()
        pending = [*sources_of(node)]
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            gradient = "gradient_of" in one.attributes and not self._is_nowhere(one.scope)
            # What gives memory with nothing in it is made of nothing else.
            empty = bool(one.kernels) and all(_EMPTY in kernel for kernel in one.kernels)
            if one.kind in STATE or gradient:
                found += [] if one.scope is None else [one.scope]
            elif len(seen) > _FAR or not (one.inputs or empty):
                return []
            else:
                pending += sources_of(one)
        return found

    def _after(self, node: Node) -> Iterable[Node]:
        return self._readers.get(node, ())

    def _around_those(self, node: Node, lead: Callable[[Node], Iterable[Node]]) -> Scope | None:
        """Return the scope around the nearest nodes of modules, on the ways that lead on."""
        found: list[Scope] = []
        seen = {node}
        pending = [node]
        while pending:
            one = pending.pop()
            if lead == self._after:
                found += [self._calls[value] for value in one.outputs if value in self._calls]
            for other in lead(one):
                if other in seen or other.kind == "constant":
                    continue
                seen.add(other)
                if other.scope is not None and not self._is_nowhere(other.scope):
                    found.append(other.scope)
                elif len(seen) <= _FAR:
                    pending.append(other)
        phases = {_root(scope).phase for scope in found}
        if len(phases) > 1 or (node.scope is not None and phases):
            # What is kept for the backward pass is read there, too.
            phase = node.phase if node.scope is not None else "forward"
            found = [scope for scope in found if _root(scope).phase == phase]
        return _around(found)

    def _in_phase(self, home: Scope, node: Node) -> Scope | None:
        """Return the scope that mirrors one of the forward pass in the phase of a node."""
        if node.phase == _root(home).phase or node.scope is None:
            return home
        root = _root(node.scope)
        for scope in upward(home):
            mirror = self._scopes.get(f"{root.path}/{scope.path}")
            if mirror is not None:
                return mirror
        return None

    def move(self, node: Node, home: Scope) -> None:
        """Move a collective, with what stands beside it and only leads to it."""
        scope = node.scope
        # Right in the box of a pass stands what its end has found, too: the bucket of gradients.
        beside = (scope, None if scope is None else _root(home))
        moved = {node}
        node.scope = home
        if scope is None:
            node.phase = _root(home).phase
        pending = [*sources_of(node), *self._after(node)]
        while pending:
            one = pending.pop()
            if one in moved or one.kind != "op" or one.scope not in beside or one.collective:
                continue
            if "gradient_of" in one.attributes:
                # It is the module's own.
                continue
            if one.role is None and not moved.issuperset(self._after(one)) and not _is_wait(one):
                continue
            if (one.role == "view" or _is_wait(one)) and moved.isdisjoint(sources_of(one)):
                continue
            moved.add(one)
            one.scope, one.phase = home, node.phase
            pending += [*sources_of(one), *self._after(one)]


def _is_wait(node: Node) -> bool:
    """Tell whether a node only waits for what a collective gives."""
    return node.op in _WAITS


def _root(scope: Scope) -> Scope:
    return [*upward(scope)][-1]


def _around(scopes: list[Scope]) -> Scope | None:
    """Return the innermost scope that is around all of some; None for none."""
    way: list[Scope] = []
    for number, other in enumerate(dict.fromkeys(scopes)):
        path = [*upward(other)][::-1]
        same = takewhile(lambda pair: pair[0] is pair[1], zip(way, path, strict=False))
        way = [one for one, _ in same] if number else path
    return way[-1] if way else None
