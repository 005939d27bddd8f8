"""Modules of frozen code: all stands in one graph, whose nodes tell from which calls they come.

A node tells the names and classes of the modules around it (`layers(Sequential).0(Linear)`), and
one that was traced their paths, too. Two calls of one module are told apart where something else
ran between them.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tbscope.sources.torchscript.ports import gives, nodes_of, numbers, takes

__all__ = ["Inlined", "is_inlined"]

_ENTRY = re.compile(r"([^.()]*)\(([^()]*)\)")
_NO_MODULE = frozenset({"", "SELF", "UNKNOWN_INSTANCE", "TOP"})
_ROOT = "__module"


class _Entry(NamedTuple):
    """A module around a node.

    Attributes:
        attribute: Under which name its holder has it.
        class_name: The name of its class.
        name: Its qualified name.
    """

    attribute: str
    class_name: str
    name: str


class Inlined:
    """The calls that nodes of one graph tell of."""

    def __init__(self) -> None:
        self._now: list[_Entry] = []
        self._keys: list[str] = []
        self._count = 0
        # The latest call of each module in the call around it, and which modules each has called.
        self._latest: dict[tuple[str, str], str] = {}
        self._called: dict[str, set[str]] = {}
        # The modules around the node that gives a value, by its number.
        self._givers: dict[int, list[_Entry]] = {}

    def stack(self, node: Any, owners: list[str]) -> Mapping[str, Any]:
        """Return the calls around a node, as `Places.scope_of` takes them.

        Args:
            node: The node.
            owners: The names of the modules whose tensors it reads.
        """
        entries = self._entries(node, owners)
        self._givers.update((value.unique(), entries) for value in gives(node))
        same = 0
        while same < min(len(entries), len(self._now)) and entries[same] == self._now[same]:
            same += 1
        keys = self._keys[:same]
        for at in range(same, len(entries)):
            inner = entries[at + 1].name if at + 1 < len(entries) else None
            keys.append(self._key(keys[-1] if keys else "", entries[at].name, inner))
        self._now, self._keys = entries, keys
        return {key: (each.name, each.class_name) for key, each in zip(keys, entries, strict=True)}

    def _key(self, around: str, name: str, inner: str | None) -> str:
        """Return the call of a module that is entered.

        What was left for a node that tells of no module goes on where it calls another part.
        """
        known = self._latest.get((around, name))
        if known is None or inner is None or inner in self._called[known]:
            self._count += 1
            known = self._latest[around, name] = f"call {self._count}"
            self._called[known] = set()
        self._called.setdefault(around, set()).add(name)
        return known

    def _entries(self, node: Any, owners: list[str]) -> list[_Entry]:
        """Return the modules around a node, outermost first."""
        told = [
            (attribute, class_name)
            for attribute, class_name in _ENTRY.findall(node.getModuleHierarchy())
            if attribute not in _NO_MODULE
        ]
        names = _told_names(node)
        if not told:
            # What torch has made of others tells of none: it stands where what it reads stood.
            names = names or owners[:1]
            if not names:
                return self._between(node)
            return [_Entry(name.rpartition(".")[2], "Module", name) for name in names]
        if len(names) != len(told):
            names = self._names(told, owners)
        return [_Entry(*pair, name) for pair, name in zip(told, names, strict=True)]

    def _between(self, node: Any) -> list[_Entry]:
        """Return the modules around both what gives to a node and what it gives to."""
        before = [self._givers.get(number, []) for number in numbers(node)]
        after = _readers(node)
        common: list[_Entry] = []
        for at, entry in enumerate(next(filter(None, before), []) if after else []):
            given = all(entries[at : at + 1] == [entry] for entries in before if entries)
            if not given or not all(f"{name}.".startswith(f"{entry.name}.") for name in after):
                break
            common.append(entry)
        return common

    def _names(self, entries: list[tuple[str, str]], owners: list[str]) -> list[str]:
        """Return the path of each module, where containers between them are not told."""
        for owner in owners:
            aligned = _aligned(owner, [attribute for attribute, _ in entries])
            if aligned is not None:
                return aligned
        names: list[str] = []
        for at, (attribute, class_name) in enumerate(entries):
            now = self._now[at] if at < len(self._now) else None
            if now is not None and now[:2] == (attribute, class_name):
                names.append(now.name)
            else:
                names.append(".".join([*names[-1:], attribute]))
        return names


# So many nodes that tell of no module are looked behind for those that do.
_MOST_SILENT = 16


def _readers(node: Any) -> list[str]:
    """Return the paths of the modules that read what a node gives, as far as they are told."""
    names: list[str] = []
    pending, silent = [node], 0
    while pending and silent <= _MOST_SILENT:
        silent += 1
        for value in gives(pending.pop()):
            for reader in [use.user for use in value.uses()]:
                name = _path_told(reader)
                if name:
                    names.append(name)
                else:
                    pending.append(reader)
    return names


def _path_told(node: Any) -> str:
    """Return the path of the module of a node, by itself or by a frozen tensor that it reads."""
    told = [attribute for attribute, _ in _ENTRY.findall(node.getModuleHierarchy())]
    path = ".".join([attribute for attribute in told if attribute not in _NO_MODULE])
    held = [value.debugName() for value in takes(node)]
    owners = [name[5:].rpartition(".")[0] for name in held if name.startswith("self.")]
    return path or next(iter(owners), "")


def is_inlined(graph: Any) -> bool:
    """Tell whether nodes of several modules stand in a graph."""
    return any(
        hasattr(node, "getModuleHierarchy")
        and (_names_part(node) or bool(_ENTRY.search(node.getModuleHierarchy())))
        for _, node in nodes_of(graph)
    )


def _names_part(node: Any) -> bool:
    """Tell whether a node gives a frozen tensor of a part: `self.fc.weight`."""
    if not node.kind().startswith("prim::Constant"):
        return False
    name = node.output().debugName()
    return bool(name.startswith("self.") and name.count(".") > 1)


def _told_names(node: Any) -> list[str]:
    """Return the paths that a traced node tells."""
    return [
        step.removeprefix(f"{_ROOT}.")
        for step in node.scopeName().split("/")
        if step.startswith(f"{_ROOT}.")
    ]


def _aligned(owner: str, attributes: list[str]) -> list[str] | None:
    """Return the paths of modules of which the last is known; None where it is another one."""
    steps = owner.split(".")
    end = len(steps)
    names: list[str] = []
    for attribute in reversed(attributes):
        while end > 0 and steps[end - 1] != attribute:
            if not names:
                return None
            end -= 1
        if end == 0:
            return None
        names.append(".".join(steps[:end]))
        end -= 1
    return names[::-1]
