"""What a run may change in plain Python: attributes, classes, and the contents of containers.

Built to cost little per module: what most modules share (a dozen empty dicts of
hooks) is looked at as a whole, and copied only where it holds something.
"""

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from operator import is_, itemgetter
from typing import Any, Literal, TypeAlias

import torch

from tbscope.sources.torch.internals import sharding_key
from tbscope.sources.torch.nests import is_walked, slots_of

__all__ = ["KeptContents", "KeptModules", "Report"]

Report: TypeAlias = Callable[[str, Exception], None]
"""Takes note of a part that could not be put back: what it is, and what was raised."""

_Kind: TypeAlias = Literal["container", "tuple", "object", "tensor", "generator", ""]

# The plain containers, each with the methods that no subclass has overridden.
_PLAIN: tuple[Any, ...] = (OrderedDict, dict, list, set, deque, bytearray)
_MOST_SCANNED = 10_000
_OBJECTS_DEEP = 2
_EVERY_OBJECT = 1_000_000
_MISSING = object()
# What `DistributedDataParallel` asks whether to talk to the other processes, which may not be
# drawing: they would be waited for, and read what they are told as a step of training.
_ON_ITS_OWN = {"require_forward_param_sync": False, "require_backward_grad_sync": False}


class KeptContents:
    """Containers and objects with what they held, and what was found in them on the way.

    Attributes:
        tensors: The tensors in them.
        generators: The random generators in them.
    """

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.generators: list[Any] = []
        self._containers: list[tuple[Any, Any]] = []
        self._slots: list[tuple[Any, Any, Any]] = []
        self._seen: set[int] = set()

    def add(
        self, thing: Any, *, objects_deep: int = _EVERY_OBJECT, package: str | None = None
    ) -> None:
        """Keep a container or object, and those inside it.

        Args:
            thing: Anything; what is no container and no object is left alone.
            objects_deep: How many objects may stand inside each other.
            package: The package from which a class must be for its objects to be
                walked; None for any.
        """
        pending = [(thing, objects_deep)]
        while pending:
            thing, left = pending.pop()
            kind = _kind_of(type(thing))
            if kind == "tensor":
                self.tensors.append(thing)
            if kind == "generator":
                self.generators.append(thing)
            if kind not in ("container", "tuple", "object") or id(thing) in self._seen:
                continue
            if kind == "object":
                if not left or (package and _package_of(type(thing)) != package):
                    continue
                left -= 1
            self._seen.add(id(thing))
            pending += [(entry, left) for entry in self._open(thing, kind) if _kind_of(type(entry))]

    def restore(self, report: Report) -> None:
        """Put everything back."""
        for container, contents in self._containers:
            try:
                _refill(container, contents)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"a {type(container).__name__}", error)
        for thing, member, held in self._slots:
            try:
                _set_slot(thing, member, held)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"a slot of {type(thing).__name__}", error)

    def _open(self, thing: Any, kind: _Kind) -> Iterable[Any]:
        """Keep the content of one container or object; return its entries."""
        if kind == "tuple":
            return thing if len(thing) <= _MOST_SCANNED else ()
        entries: list[Any] = []
        if kind == "object":
            for _, member in slots_of(type(thing)):
                held = _get_slot(thing, member)
                self._slots.append((thing, member, held))
                entries.append(held)
            if not type(thing).__dictoffset__:
                return entries
            thing = object.__getattribute__(thing, "__dict__")
        elif type(thing) not in _PLAIN and type(thing).__dictoffset__:
            attributes = object.__getattribute__(thing, "__dict__")
            self._containers.append((attributes, dict(attributes)))
            entries += attributes.values()
        contents = _contents_of(thing)
        self._containers.append((thing, contents))
        if len(contents) <= _MOST_SCANNED and not isinstance(contents, bytearray):
            entries += contents.values() if isinstance(contents, dict) else contents
        return entries


class KeptModules:
    """Modules with their attributes as they were.

    Args:
        training: The mode in which modules run until they are put back; None for the
            one in which each stands.

    Attributes:
        tensors: Their parameters, buffers and tensors in attributes.
        contents: The containers and objects in their attributes.
    """

    def __init__(self, training: bool | None = None) -> None:
        self.tensors: list[torch.Tensor] = []
        self.contents = KeptContents()
        self._training = training
        self._modules: list[tuple[Any, ...]] = []
        # By identity, what each had; it is held, so that its identity stays its own.
        self._before: dict[int, dict[str, Any]] = {}
        self._sharding = sharding_key()
        self._modes: list[tuple[torch.nn.Module, bool]] = []
        self._plans: dict[tuple[type, ...], _Plan] = {}

    def add(self, module: torch.nn.Module) -> None:
        """Keep one module as it is now, without its children, and switch its mode.

        One that is kept already stays kept as it was first, and in the mode that it has.
        """
        if id(module) in self._before:
            return
        attributes = module.__dict__
        before: dict[str, Any] = attributes.copy()
        self._before[id(module)] = before
        if self._sharding in before:
            # Its parts say whether the parameters are gathered: all of them or none go back.
            self.contents.add(before[self._sharding], package="torch")
        values = tuple(before.values())
        types = tuple(map(type, values))
        plan = self._plans.get(types)
        if plan is None:
            plan = self._plans[types] = _Plan(types)
        empty, filled = [], []
        parameters: Any = before.get("_parameters")
        buffers: Any = before.get("_buffers")
        children: Any = before.get("_modules")
        for container in plan.containers(values):
            if not container:
                empty.append(container)
                continue
            if container is parameters or container is buffers:
                self.tensors += [held for held in container.values() if held is not None]
            elif container is not children:
                self._add_contents(module, container)
                continue
            filled.append((container, container.copy()))
        for at in plan.others:
            other = values[at]
            # Most are tuples of numbers, such as the size of a kernel: nothing to change.
            if type(other) is not tuple or any(map(_kind_of, map(type, other))):
                self._add_contents(module, other)
        self._modules.append((module, type(module), attributes, before, empty, filled))
        if "training" not in before:
            self._add_mode_elsewhere(module)
        elif self._training is not None:
            attributes["training"] = self._training
        if "require_forward_param_sync" in before:
            attributes.update(_ON_ITS_OWN)

    def _add_contents(self, module: torch.nn.Module, held: Any) -> None:
        package = _package_of(type(module))
        self.contents.add(held, objects_deep=_OBJECTS_DEEP, package=package)

    def _add_mode_elsewhere(self, module: torch.nn.Module) -> None:
        """Keep a module that holds its mode outside of its attributes, and switch its mode.

        A scripted one holds it in C++, with its tensors; what `torch.compile` made, in the
        module that it wraps.
        """
        scripted = isinstance(module, torch.jit.ScriptModule)
        if scripted:
            self.tensors += module.parameters(recurse=False)
            self.tensors += module.buffers(recurse=False)
        # A scripted module that is frozen has no mode any more.
        held = getattr(module, "training", None)
        wanted = held if self._training is None else self._training
        try:
            if held != wanted and held is not None:
                module.training = bool(wanted)
        except AttributeError:  # Its class has made it a constant.
            return
        if held is not None and (scripted or held != wanted):
            self._modes.append((module, held))

    def switch(self, root: torch.nn.Module) -> None:
        """Have a module switch itself and what it holds, from the modes before, as it would.

        Its own `train()` or `eval()` is called; where that raises, all keep the mode of the run.
        """
        assert self._training is not None
        held = [module for module in root.modules() if "training" in module.__dict__]
        for module in held:
            before = self._before.get(id(module), {})
            module.__dict__["training"] = before.get("training", module.training)
        try:
            (root.train if self._training else root.eval)()
        except BaseException:
            for module in held:
                module.__dict__["training"] = self._training
            raise

    def note_mode(self, module: torch.nn.Module, training: bool) -> None:
        """Take note that somebody else has given a kept module another mode, for good."""
        before = self._before.get(id(module), {})
        if "training" in before:
            before["training"] = training
        else:
            self._modes = [
                (other, training if other is module else held) for other, held in self._modes
            ]

    def restore(self, report: Report) -> None:
        """Put every module back, its class and attributes first, then what they hold."""
        for module, cls, attributes, before, empty, filled in self._modules:
            try:
                attributes.update(before)
                if len(attributes) != len(before):
                    _refill(attributes, before)
                if type(module) is not cls:
                    object.__setattr__(module, "__class__", cls)
                if any(empty):
                    for container in empty:
                        container.clear()
                for container, contents in filled:
                    container.update(contents)
                    if [*container] != [*contents]:
                        _refill(container, contents)
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"the attributes of {cls.__name__}", error)
        for module, training in self._modes:
            try:
                if module.training != training:
                    module.training = training
            except Exception as error:  # noqa: BLE001 (reported)
                report(f"the training flag of {type(module).__name__}", error)
        self.contents.restore(report)


class _Plan:
    """Where in the attributes of modules of one make containers and tensors stand.

    Attributes:
        containers: Picks the plain containers from the values of the attributes.
        others: The positions of the other values that must be looked at.
    """

    __slots__ = ("containers", "others")

    def __init__(self, types: tuple[type, ...]) -> None:
        exact = [at for at, kind in enumerate(types) if kind in _PLAIN and kind is not bytearray]
        self.containers: Callable[[tuple[Any, ...]], tuple[Any, ...]] = (
            itemgetter(*exact)
            if len(exact) > 1
            else lambda values: tuple(values[at] for at in exact)
        )
        self.others = [at for at, kind in enumerate(types) if at not in exact and _kind_of(kind)]


_KINDS: dict[type, _Kind] = {}


def _kind_of(cls: type) -> _Kind:
    """Tell what an instance of a class is, as far as a run may change it."""
    kind = _KINDS.get(cls)
    if kind is None:
        kind = _find_kind(cls)
        # Classes that are made anew again and again would pile up here.
        if len(_KINDS) < _MOST_SCANNED:
            _KINDS[cls] = kind
    return kind


def _find_kind(cls: type) -> _Kind:
    if issubclass(cls, torch.Tensor):
        return "tensor"
    if issubclass(cls, _generators()):
        return "generator"
    if issubclass(cls, _PLAIN):
        return "container"
    if issubclass(cls, tuple):
        return "tuple"
    return "object" if is_walked(cls) else ""


def _generators() -> tuple[type, ...]:
    # Looked up, never imported: what is not loaded is held by nobody.
    numpy = sys.modules.get("numpy.random")
    return (
        torch.Generator,
        random.Random,
        *((numpy.Generator, numpy.RandomState) if numpy else ()),
    )


def _base_of(cls: type) -> Any:
    return next(base for base in _PLAIN if issubclass(cls, base))


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _contents_of(container: Any) -> Any:
    """Copy a container to a plain one, by no method that its class may have overridden."""
    base = _base_of(type(container))
    if issubclass(base, dict):
        return dict(base.items(container))
    if base is deque:
        return list(deque.__iter__(container))
    return base(base.__iter__(container))


def _refill(container: Any, contents: Any) -> None:
    """Make a container hold what it held, in the same order; leave it alone where it does."""
    base = _base_of(type(container))
    if issubclass(base, dict):
        values = base.values(container)
        if _same(container, contents) and _same(values, contents.values()):
            return
        base.clear(container)
        base.update(container, contents)
    elif base is set:
        if container != contents:
            base.clear(container)
            base.update(container, contents)
    elif not _same(container, contents):
        base.clear(container)
        base.extend(container, contents)


def _same(one: Any, other: Any) -> bool:
    # By identity: whether two tensors are equal is no yes or no.
    return len(one) == len(other) and all(map(is_, one, other))


def _get_slot(thing: Any, member: Any) -> Any:
    try:
        return member.__get__(thing)
    except AttributeError:  # It was never filled.
        return _MISSING


def _set_slot(thing: Any, member: Any, held: Any) -> None:
    if _get_slot(thing, member) is held:
        return
    if held is _MISSING:
        member.__delete__(thing)
    else:
        member.__set__(thing, held)
