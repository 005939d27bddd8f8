"""Files of weights: a graph of modules without operations, from the names of their tensors.

A file of safetensors, a state_dict or another object that torch.save wrote, and the index of
several such files are read without their data, and without torch.
"""

import io
import json
import math
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Graph, Module, Note, Parameter, Shape, item_size_bytes
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, LEGACY_PICKLE, local_file, open_archive, unreadable
from tbscope.sources.pickles import PickledObject, PickledTensor, TensorUnpickler

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["from_weights"]

_DOING = "no weights can be read"
_MODULE = "torch.nn.modules.module.Module"
_LIST = "torch.nn.modules.container.ModuleList"
# The deepest module, as in logs: a longer name is that of a tensor in it.
_MOST_DEPTH = 64
_NUMBER = re.compile("([0-9]+)")
# Element types of safetensors: `F32`, `BF16`, `F8_E4M3`.
_CODE = re.compile(r"(BF|F|I|U|C)([0-9]+)(?:_(\w+))?")
_KINDS = {"BF": "bfloat", "F": "float", "I": "int", "U": "uint", "C": "complex"}


class _Weight(NamedTuple):
    """A tensor of a file; its place is equal for tied tensors, and None if it is not known."""

    shape: Shape | None
    dtype: str = "unknown"
    size_bytes: int = 0
    place: object = None


def from_weights(path_like: object) -> Graph:
    """Return the graph of a file of weights: a call without operations for each module.

    Args:
        path_like: The path of the file.
    Raises:
        ArgumentError: The file is damaged, or has no tensors.
    """
    path = local_file(path_like, _DOING)
    classes: dict[str, str] = {}
    notes = [Note("the file has no operations, and each parameter in it counts as trainable")]
    try:
        weights = _read(path, classes, notes)
        if weights:
            title = os.path.basename(path).partition(".")[0]
            return _graph(title, weights, classes, notes)
    except ArgumentError:
        raise
    except Exception as error:  # The readers of a damaged file raise errors of many kinds.
        raise unreadable(path_like, _DOING, error_text(error), DAMAGED) from error
    raise unreadable(path_like, _DOING, "it contains no tensors")


def _read(path: str, classes: dict[str, str], notes: list[Note]) -> dict[str, _Weight]:
    """Return the tensors of a file, by name.

    Args:
        path: The path.
        classes: Receives the classes of modules, by name.
        notes: Receives the names of missing files.
    """
    with open(path, "rb") as file:
        head = file.read(9)
        if head[:2] == b"PK":
            with open_archive(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
                if archive.getinfo(name).file_size > os.path.getsize(path):
                    raise ValueError(f"its entry {shown(name)} claims more bytes than the file has")
                content = TensorUnpickler(io.BytesIO(archive.read(name))).load()
                return dict(_in_pickle(content, classes, path))
        if head.startswith(LEGACY_PICKLE[:9]):
            # A file allocates as many bytes as it is asked for, and a map those that it has.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pickled:
                # A magic number, a version and the sizes of numbers come before the content.
                content = [TensorUnpickler(pickled).load() for _ in range(4)][3]
            return dict(_in_pickle(content, classes, path))
        if head[8:] != b"{":
            file.seek(0)
            return _in_index(json.load(file)["weight_map"], path, classes, notes)
        file.seek(8)
        size = int.from_bytes(head[:8], "little")
        tensors = json.loads(file.read(size))
        left = os.path.getsize(path) - size - 8
    tensors.pop("__metadata__", None)
    # The library writes tensors in the order of their types and names.
    return {name: _in_header(name, tensors[name], left) for name in sorted(tensors, key=_order)}


def _order(name: str) -> list[tuple[int, str]]:
    """Return the key by which names are in the order of their numbers: `2.weight`, `10.weight`."""
    parts = enumerate(_NUMBER.split(name))
    return [(int(part), "") if at % 2 else (-1, part) for at, part in parts]


def _in_header(name: str, entry: Mapping[str, Any], left: int) -> _Weight:
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= left:
        raise ValueError(f"the data of {shown(name)} end at byte {end:,} of {left:,}")
    match = _CODE.fullmatch(entry["dtype"])
    dtype = str(entry["dtype"]).lower()
    if match:
        form = f"_{match[3].lower()}" if match[3] else ""
        dtype = f"{_KINDS[match[1]]}{match[2]}{form}"
    return _Weight(tuple(map(int, entry["shape"])), dtype, end - start)


def _in_index(
    files: Mapping[str, str], path: str, classes: dict[str, str], notes: list[Note]
) -> dict[str, _Weight]:
    """Return the tensors of several files; those of a missing file have no sizes."""
    weights: dict[str, _Weight] = {}
    for name in dict.fromkeys(files.values()):
        # The index names files in its own folder.
        part = os.path.join(os.path.dirname(path), os.path.basename(name))
        if os.path.isfile(part):
            weights |= _read(part, classes, notes)
        else:
            notes.append(Note(f"sizes are unknown: there is no file {shown(part)}"))
    return {name: weights.get(name) or _Weight(None) for name in sorted(files, key=_order)}


def _in_pickle(
    content: object, classes: dict[str, str], path: str
) -> Iterator[tuple[str, _Weight]]:
    """Yield the tensors below an object, each with the path of its keys and attributes."""
    pending: list[tuple[str, object]] = [("", content)]
    seen: set[int] = set()
    while pending:
        name, content = pending.pop()
        if isinstance(content, PickledTensor):
            size_bytes = math.prod(content.shape) * (item_size_bytes(content.dtype) or 0)
            yield name, _Weight(content.shape, content.dtype, size_bytes, (path, content.place))
        elif isinstance(content, dict | list | tuple) and id(content) not in seen:
            # An object may contain itself.
            seen.add(id(content))
            entries = dict(enumerate(content)) if not isinstance(content, dict) else {**content}
            state = getattr(content, "state", None)
            if isinstance(content, PickledObject) and isinstance(state, dict):
                if "_modules" in state:
                    kind = type(content)
                    classes[name] = f"{kind.__module__}.{kind.__qualname__}"
                    parts = [state.get(part) for part in ("_parameters", "_buffers", "_modules")]
                    state = {key: entry for part in parts for key, entry in (part or {}).items()}
                entries |= state
            around = f"{name}." if name else ""
            pending += reversed([(f"{around}{key}", entry) for key, entry in entries.items()])


def _graph(
    title: str, weights: Mapping[str, _Weight], classes: Mapping[str, str], notes: list[Note]
) -> Graph:
    """Return the graph of tensors, with a call for each module that a name contains."""
    # The parent, the attribute and the tensors of each module.
    modules: dict[str, tuple[str, str, dict[str, _Weight]]] = {"": ("", "", {})}
    children: dict[str, list[str]] = {}
    for name, weight in weights.items():
        owner, *path = "", *name.split(".", _MOST_DEPTH)[:-1]
        for part in path:
            parent, owner = owner, f"{owner}.{part}" if owner else part
            if owner not in modules:
                modules[owner] = parent, part, {}
                children.setdefault(parent, []).append(part)
        modules[owner][2][name] = weight
    build = GraphBuilder(classes.get("", title).rpartition(".")[2])
    build.graph.notes = notes
    scopes: dict[str, Scope] = {}
    numbers: dict[object, int] = {}
    for name, (parent, attribute, own) in modules.items():
        numbered = name and all(map(str.isdecimal, children.get(name, "x")))
        class_name = classes.get(name) or (_LIST if numbered else _MODULE if name else title)
        scopes[name] = scope = build.new_scope(
            class_name.rpartition(".")[2],
            attribute if name else None,
            parent=scopes[parent] if name else None,
            kind="container" if class_name == _LIST else "module",
            qualified_name=name,
        )
        parameters = tuple(
            Parameter(
                key.rpartition(".")[2],
                "parameter" if "float" in weight.dtype else "buffer",
                weight.shape,
                weight.dtype,
                weight.size_bytes,
                requires_grad="float" in weight.dtype,
                number=numbers.setdefault(weight.place or key, len(numbers)),
            )
            for key, weight in own.items()
        )
        build.graph.modules.append(Module(name, class_name, parameters))
        if scope.kind == "module":
            build.add_call(scope, class_name=class_name, parameters=parameters)
        for key, parameter in zip(own, parameters, strict=True):
            node = build.append_source(parameter.kind, key or None, scope)
            build.add_value(node, parameter.shape, parameter.dtype)
    return build.finish()
