"""What is done where a module call ends: it is checked, and has something to show, and results."""

import itertools
from types import CoroutineType
from typing import Any, Protocol

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Graph
from tbscope.ir.guests import is_shared
from tbscope.ir.regions import upward
from tbscope.sources.eager.record.failures import Failures
from tbscope.sources.eager.record.resumed import Resumed
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.literals import collect_tensors

__all__ = ["leave", "leave_unfinished"]


class _Recorder(Protocol):
    builder: GraphBuilder
    graph: Graph
    scopes: ScopeStack
    failures: Failures
    nest: Any

    def know(self, result: Any) -> None: ...
    def append_pass_through(self, frame: Frame, read: list[torch.Tensor], given: Any) -> None: ...


def leave(recorder: _Recorder, frame: Frame, given: Any, result: Any) -> None:
    """Close a module call that returned.

    Args:
        recorder: Who records.
        frame: The call.
        given: A nest of its arguments.
        result: What it gave.
    """
    try:
        _check_end(recorder, frame, given, result)
    finally:
        recorder.scopes.close_call(frame)
    assert frame.call is not None
    frame.call.results = recorder.nest(result)


def leave_unfinished(recorder: _Recorder, frame: Frame, given: Any, result: Any) -> Any:
    """Close a module call whose forward has yet to run; return what its caller gets instead.

    The call goes on whenever somebody asks for the next step of what it gave.
    """
    call = frame.call
    assert call is not None
    recorder.scopes.close_call(frame)
    call.results = entries = []

    def ends(value: Any) -> None:
        _check_end(recorder, frame, given, value)
        if type(result) is CoroutineType:
            call.results = recorder.nest(value)

    resumed = Resumed(recorder.scopes, frame, failed=recorder.failures.left_call)
    return resumed.stands_for(
        result, yields=lambda entry: entries.append(recorder.nest(entry)), ends=ends
    )


def _check_end(recorder: _Recorder, frame: Frame, given: Any, result: Any) -> None:
    if frame.blocks:
        recorder.scopes.check_closed(frame)
    recorder.know(result)
    if recorder.builder.operations == frame.begun or _is_empty(recorder.graph, frame):
        # An identity, whose inputs are its outputs; or one that has to do with no tensor.
        read, given_back = collect_tensors(given, []), collect_tensors(result, [])
        recorder.append_pass_through(frame, given_back or read, given_back)


def _is_empty(graph: Graph, frame: Frame) -> bool:
    """Tell whether nothing stands in a call: what it called stands under another module."""
    nodes = graph.nodes
    # Most call nothing last but operations of their own.
    if len(nodes) > frame.first and nodes[-1].scope is frame.scope:
        return False
    for node in itertools.islice(reversed(nodes), len(nodes) - frame.first):
        scope = node.scope
        while scope is not None:
            if scope is frame.scope:
                return False
            scope = scope.parent
    calls = itertools.takewhile(lambda call: call is not frame.call, reversed(graph.calls))
    return frame.scope not in {
        one for call in calls if is_shared(call) for one in upward(call.caller)
    }
