"""Files of weights: a graph of modules without operations, from the names of their tensors.

A file of safetensors, a state_dict or another object that torch.save wrote, and the index of
several such files are read without their data, and without torch.
"""

import io
import json
import math
import os
import re
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Any

from tbscope.errors import GraphError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Graph, Module, Note, Parameter, Shape, item_size_bytes
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, LEGACY_PICKLE, local_file, open_archive, unreadable
from tbscope.sources.pickles import PickledTensor, TensorUnpickler
from tbscope.sources.torch.recorded_names import LIST, container_class

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


_DOING = "no weights can be read"
# The deepest module, as in logs: a longer name is that of a tensor in it.
_MOST_DEPTH = 64
# Element types of safetensors: `F32`, `BF16`, `F8_E4M3`.
_KINDS = {"BF": "bfloat", "F": "float", "I": "int", "U": "uint", "C": "complex"}
# The attributes of a pickled module with its tensors and modules.
_PARTS = ("_parameters", "_buffers", "_modules")


def from_weights(path_like: object) -> Graph:
    """Return the graph of a file of weights: a call without operations for each module.

    Args:
        path_like: The path of the file.
    Raises:
        ArgumentError: The file is damaged, or has no tensors.
    """
    path = local_file(path_like, _DOING)
    weights = _Weights()
    try:
        weights.read(path)
        if weights.tensors:
            return weights.graph(os.path.basename(path).partition(".")[0])
    except Exception as error:  # The readers of a damaged file raise errors of many kinds.
        why = error.why if isinstance(error, GraphError) else error_text(error)
        raise unreadable(path_like, _DOING, why, DAMAGED) from error
    raise unreadable(path_like, _DOING, "it contains no tensors")


class _Weights:
    """The tensors of files, by name, and the classes of the modules that have one."""

    def __init__(self) -> None:
        self.tensors: dict[str, Parameter] = {}
        self._classes: dict[str, str] = {}
        self._notes = [
            Note("the file has no operations, and each parameter in it counts as trainable")
        ]
        # The numbers of storages, which tied tensors share.
        self._numbers: dict[object, int] = {}

    def read(self, path: str) -> None:
        """Add the tensors of a file."""
        # An unpickler asks for as many bytes as the file claims, and a map has no more than it has.
        with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            if data[:2] == b"PK":
                with open_archive(file) as archive:
                    (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
                    if archive.getinfo(name).file_size > len(data):
                        raise ValueError(f"{shown(name)} claims more bytes than the file has")
                    pickled = io.BytesIO(archive.read(name))
                self._add_pickled(TensorUnpickler(pickled).load(), path)
            elif data[: len(LEGACY_PICKLE)] == LEGACY_PICKLE:
                # A number, a version and the sizes of numbers come before the content.
                self._add_pickled([TensorUnpickler(data).load() for _ in range(4)][3], path)
            elif data[8:9] == b"{":
                start = 8 + int.from_bytes(data[:8], "little")
                self._add_header(json.loads(data[8:start]), len(data) - start)
            else:
                self._add_index(json.loads(data[:])["weight_map"], path)

    def _add(
        self, name: str, shape: Shape | None, dtype: str, size_bytes: int, place: object
    ) -> None:
        trains = "float" in dtype
        self.tensors[name] = Parameter(
            name.rpartition(".")[2],
            "parameter" if trains else "buffer",
            shape,
            dtype,
            size_bytes,
            trains,
            number=self._numbers.setdefault(place, len(self._numbers)),
        )

    def _add_header(self, entries: dict[str, Any], size: int) -> None:
        """Add the tensors that a header of safetensors lists, before data of some bytes."""
        entries.pop("__metadata__", None)
        # The library writes tensors in the order of their types and names.
        for name in sorted(entries, key=_order):
            entry = entries[name]
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= size:
                raise ValueError(f"the data of {shown(name)} end at byte {end:,} of {size:,}")
            code = re.sub(r"^[A-Z]+(?=\d)", lambda match: _KINDS[match[0]], entry["dtype"])
            # As torch names it: a format of finite numbers.
            dtype = code.lower().replace("e4m3", "e4m3fn")
            self._add(name, tuple(map(int, entry["shape"])), dtype, end - start, name)

    def _add_index(self, files: dict[str, str], path: str) -> None:
        """Add the tensors of several files; those of a missing file have no sizes."""
        for name in dict.fromkeys(files.values()):
            # The index names files in its own folder.
            part = os.path.join(os.path.dirname(path), os.path.basename(name))
            if os.path.isfile(part):
                self.read(part)
            else:
                self._notes.append(Note(f"sizes are unknown: there is no file {shown(part)}"))
        names = sorted(files, key=_order)
        for name in names:
            if name not in self.tensors:
                self._add(name, None, "unknown", 0, name)
        self.tensors = {name: self.tensors[name] for name in names}

    def _add_pickled(self, content: object, path: str) -> None:
        """Add the tensors below an object, each with the path of its keys and attributes."""
        pending: list[tuple[str, object]] = [("", content)]
        seen: set[int] = set()
        while pending:
            name, content = pending.pop()
            if isinstance(content, PickledTensor):
                size_bytes = math.prod(content.shape) * (item_size_bytes(content.dtype) or 0)
                self._add(name, content.shape, content.dtype, size_bytes, (path, content.place))
            elif isinstance(content, dict | list | tuple) and id(content) not in seen:
                # An object may contain itself.
                seen.add(id(content))
                items = content.items() if isinstance(content, dict) else enumerate(content)
                entries: list[tuple[object, object]] = [*items]
                state = getattr(content, "state", None)
                for key, entry in state.items() if isinstance(state, dict) else ():
                    if key in _PARTS and isinstance(entry, dict):
                        entries += entry.items()
                        self._classes[name] = f"{type(content).__module__}.{type(content).__name__}"
                    else:
                        entries.append((key, entry))
                around = f"{name}." if name else ""
                pending += reversed([(f"{around}{key}", entry) for key, entry in entries])

    def graph(self, title: str) -> Graph:
        """Return the graph of the tensors, with a call for each module that a name contains."""
        # The parent, the attribute and the tensors of each module.
        modules: dict[str, tuple[str, str, dict[str, Parameter]]] = {"": ("", "", {})}
        children: dict[str, list[str]] = {"": []}
        for name, tensor in self.tensors.items():
            owner, *path = "", *name.split(".", _MOST_DEPTH)[:-1]
            for part in path:
                parent, owner = owner, f"{owner}.{part}" if owner else part
                if owner not in modules:
                    modules[owner] = parent, part, {}
                    children[owner] = []
                    children[parent].append(owner)
            modules[owner][2][name] = tensor
        build = GraphBuilder(self._classes.get("", title).rpartition(".")[2])
        build.graph.notes = self._notes
        scopes: dict[str, Scope] = {}
        for name, (parent, attribute, own) in modules.items():
            # The class of the model does not depend on the name of the file, for comparisons.
            usual = container_class(children[name] if name else (), name)
            class_name = self._classes.get(name, usual)
            scopes[name] = scope = build.new_scope(
                class_name.rpartition(".")[2],
                attribute if name else None,
                parent=scopes[parent] if name else None,
                kind="module" if class_name != LIST else "container",
                qualified_name=name,
            )
            parameters = tuple(own.values())
            build.graph.modules.append(Module(name, class_name, parameters))
            if scope.kind == "module":
                build.add_call(scope, class_name=class_name, parameters=parameters)
            for key, tensor in own.items():
                node = build.append_source(tensor.kind, key or None, scope)
                build.add_value(node, tensor.shape, tensor.dtype)
        return build.finish()


def _order(name: str) -> str:
    """Return the key by which names are in the order of their numbers: `2.weight`, `10.weight`."""
    return re.sub(r"\d+", lambda match: match[0].zfill(9), name)
