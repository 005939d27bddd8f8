"""What ran in which inner module of a scripted module.

TorchScript runs by itself, and tells of no call. Of each kernel it tells the lines of code that
led to it; with the steps of the code, and with whose parameters are read, that tells the rest.
Where it does not, a kernel stands in the innermost module that is certain.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch

from tbscope.ir.graph import Argument, Call, Node, Note, Value
from tbscope.ir.nodes import OWNED, STATE
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.scope_stack import Frame, ScopeStack
from tbscope.sources.torch.module_internals import script_frames
from tbscope.sources.torch.script_steps import ScriptSteps

__all__ = ["ScriptRun", "note_of_forks"]

# The dotted path of an inner module, and how many times it had run before in this call.
_Visit: TypeAlias = tuple[str, int]


def note_of_forks(frame: Frame) -> Note:
    """Return the note that a scripted module runs operations in threads of TorchScript's own."""
    text = (
        f"{frame.scope} runs operations in threads of TorchScript's own (torch.jit.fork): "
        "which of them comes first may differ from run to run"
    )
    return Note(text, frame.source)


class ScriptRun:
    """The kernels of one call of a scripted module.

    Args:
        module: The module.
        name: Its name, below which its parameters are named.
    """

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self._code = ScriptSteps(module)
        self._prefix = f"{name}." if name else ""
        self._nodes: list[tuple[Node, tuple[tuple[str, int], ...]]] = []
        # Where in the code it is, and the kernels that ran in this step so far.
        self._at = 0
        self._ran: set[str] = set()
        self._visits: dict[str, int] = {}
        self._left: set[str] = set()

    def add(self, node: Node) -> None:
        """Take note of a kernel that has just run."""
        if self._code.steps:
            self._nodes.append((node, tuple(script_frames())))

    def settle(self, frame: Frame, scopes: ScopeStack, given_back: list[Value]) -> list[Call]:
        """Have each kernel stand in the inner module that it ran in; return the calls of these.

        Args:
            frame: The call of the scripted module, which is over.
            scopes: The scopes of the run.
            given_back: What it gave.
        """
        calls: dict[Scope, Call] = {}
        around: dict[Node, list[Scope]] = {}
        for node, visits in self._places():
            inner = around[node] = scopes.inner_scopes(frame, visits)
            for scope in inner:
                if scope not in calls:
                    calls[scope] = Call(scope, "", scope.qualified_name, source=frame.source)
            if inner:
                node.scope = inner[-1]
        _tell_of_edges(calls, around, given_back)
        return list(calls.values())

    def _places(self) -> list[tuple[Node, list[_Visit]]]:
        """Return of each kernel the modules that it ran in, outermost first."""
        found = []
        for node, lines in self._nodes:
            path = self._path_of(node, lines)
            steps = path.split(".") if path else []
            paths = [".".join(steps[: count + 1]) for count in range(len(steps))]
            found.append((node, [self._visit(path) for path in paths]))
        return found

    def _visit(self, path: str) -> _Visit:
        if path in self._left:
            self._left.discard(path)
            self._visits[path] += 1
        return (path, self._visits.setdefault(path, 0))

    def _path_of(self, node: Node, lines: tuple[tuple[str, int], ...]) -> str:
        steps = self._code.steps
        found = self._code.at(lines)
        if not found:
            return ""
        owned = self._owned(node, found)
        candidates = owned or found
        paths = {steps[at].path for at in candidates}
        later = [at for at in candidates if at >= self._at]
        if later and later[0] == self._at and node.op in self._ran:
            # What ran already in this step runs in the next one like it, if there is one.
            later = later[1:] or ([] if steps[self._at].block else later)
        at = later[0] if later else candidates[0]
        here, there = steps[self._at], steps[at]
        goes_on = bool(later) and there.block == here.block
        if len(paths) > 1 and there.block is not None and not goes_on:
            # It may have been skipped.
            return _common(sorted(paths))
        self._go_to(at, again=not later)
        self._ran.add(node.op)
        return steps[at].path

    def _go_to(self, at: int, *, again: bool) -> None:
        if again:
            # The code has gone back: what its loop calls is called once more.
            steps = self._code.steps[at : self._at + 1]
            loop = steps[0].block.path if steps[0].block else ""
            for path in self._visits:
                inside = path != loop and _is_in(path, loop)
                if inside and any(_is_in(step.path, path) for step in steps):
                    self._left.add(path)
        if at != self._at or again:
            self._at, self._ran = at, set()

    def _owned(self, node: Node, found: Sequence[int]) -> list[int]:
        """Return those of some steps that are in a module of which a kernel reads a parameter."""
        for value in node.inputs:
            name = value.producer.name
            if value.producer.kind in STATE and name.startswith(self._prefix):
                owner = name.removeprefix(self._prefix).rpartition(".")[0]
                around = [at for at in found if _is_in(owner, self._code.steps[at].path)]
                longest = max((len(self._code.steps[at].path) for at in around), default=0)
                own = [at for at in around if len(self._code.steps[at].path) == longest]
                if own:
                    return own
        return []


def _tell_of_edges(
    calls: dict[Scope, Call], around: dict[Node, list[Scope]], given_back: list[Value]
) -> None:
    """Tell of each call what was read in it from outside, and what of it was read outside."""
    entering: dict[Scope, dict[Value, None]] = {scope: {} for scope in calls}
    leaving: dict[Scope, dict[Value, None]] = {scope: {} for scope in calls}
    for node, here in around.items():
        for value in node.inputs:
            there = around.get(value.producer, [])
            if value.producer.kind not in OWNED:
                for scope in here:
                    if scope not in there:
                        entering[scope][value] = None
            for scope in there:
                if scope not in here:
                    leaving[scope][value] = None
    for value in given_back:
        for scope in around.get(value.producer, ()):
            leaving[scope][value] = None
    for scope, call in calls.items():
        call.arguments = [Argument(None, value) for value in entering[scope]]
        given = list(leaving[scope])
        call.results = given[0] if len(given) == 1 else given


def _is_in(path: str, holder: str) -> bool:
    return not holder or path == holder or path.startswith(f"{holder}.")


def _common(paths: list[str]) -> str:
    """Return the innermost module that holds all of some."""
    split = [path.split(".") for path in paths]
    shared = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
