"""Columns of the printed summary: keys of its rows, each with a title and a format."""

from collections.abc import Callable, KeysView, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from tbscope.analysis.units import bytes_text, count_text, duration_text, flops_text
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Shape
from tbscope.messages import did_you_mean, first_of, shown
from tbscope.utils.validation import is_word

Row: TypeAlias = dict[str, Any]
"""The figures of one part; `docs/summary.md` lists the keys."""

# Shapes beyond this number of characters are replaced by their number.
_SHAPES_WIDTH = 36
_MOST_TENSORS = 3


class Column(NamedTuple):
    """One column.

    Attributes:
        name: The key of the rows.
        title: The title.
        text: Returns the cell of a row.
        numeric: Whether it is right-aligned.
    """

    name: str
    title: str
    text: Callable[[Row], str]
    numeric: bool = True


def _shapes_text(shapes: Mapping[str, Shape | None] | None, *, varies: bool, named: bool) -> str:
    """Return the shapes that fit into a cell, and the number of the remaining shapes."""
    if not shapes:
        return "" if shapes is None else "-"
    texts: list[str] = []
    width = 0
    for path, shape in shapes.items():
        lengths = ["?" if length is None else str(length) for length in shape or ()]
        text = (
            f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
            if shape is not None
            else "(*)"
        )
        # A path like `out.0` shows only a position, so it is left out.
        if named and path.partition(".")[0] != "out":
            text = f"{path} {text}"
        width += len(text) + 2
        if texts and width > _SHAPES_WIDTH:
            break
        texts.append(text)
    more = len(shapes) - len(texts)
    return ", ".join(texts) + (f" + {more}" if more else "") + (" ..." if varies else "")


def _input(row: Row) -> str:
    return _shapes_text(row["input"], varies=row["varies"], named=False)


def _output(row: Row) -> str:
    if row["kind"] == "unused":
        return "not called"
    return _shapes_text(row["output"], varies=row["varies"], named=True)


def _tensors(row: Row) -> str:
    return first_of((f"{name} {text}" for name, text in row["tensors"].items()), _MOST_TENSORS)


def _parameters(row: Row) -> str:
    text = count_text(row["parameters"]) if row["parameters"] else ""
    return f"{text} =" if row["shared_parameters"] else text


def _share(row: Row) -> str:
    if not row["parameters"]:
        return ""
    return f"{100 * row['share']:.1f} %" if row["share"] >= 0.001 else "<0.1 %"


def _trainable(row: Row) -> str:
    if not row["parameters"]:
        return ""
    if row["trainable_parameters"] == row["parameters"]:
        return "yes"
    return count_text(row["trainable_parameters"]) if row["trainable_parameters"] else "frozen"


def _class(row: Row) -> str:
    # The title of an unnamed model is its class already.
    return "" if row["name"] == "" and row["class"] == row["module"] else str(row["class"])


def _plain(
    name: str, title: str, write: Callable[[Any], str], *, none: str = "", numeric: bool = True
) -> Column:
    """Return a column for one key, with an empty cell for 0 and for an empty text."""

    def text(row: Row) -> str:
        if row[name] is None:
            return none
        return write(row[name]) if row[name] else ""

    return Column(name, title, text, numeric)


def _duration(row: Row) -> str:
    return "" if row["duration_us"] is None else duration_text(row["duration_us"])


_COLUMNS = {
    column.name: column
    for column in (
        Column("class", "Class", _class, numeric=False),
        _plain("name", "Name", str, numeric=False),
        _plain("scope", "Scope", str, numeric=False),
        _plain("kind", "Kind", str, numeric=False),
        Column("input", "Input", _input, numeric=False),
        Column("output", "Output", _output, numeric=False),
        Column("tensors", "Tensors", _tensors, numeric=False),
        _plain("calls", "Calls", count_text),
        Column("parameters", "Parameters", _parameters),
        _plain("own_parameters", "Own", count_text),
        Column("share", "Share", _share),
        Column("trainable_parameters", "Trainable", _trainable),
        _plain("shared_parameters", "Shared", count_text),
        _plain("parameter_bytes", "Bytes", bytes_text),
        _plain("buffers", "Buffers", count_text),
        _plain("buffer_bytes", "Buffer bytes", bytes_text),
        _plain("flops", "FLOPs", flops_text, none="?"),
        _plain("backward_flops", "Backward FLOPs", flops_text, none="?"),
        _plain("activation_bytes", "Activations", bytes_text),
        _plain("moved_bytes", "Moved", bytes_text),
        _plain("saved_bytes", "Saved", bytes_text),
        _plain("intensity", "FLOPs/byte", "{:.3g}".format),
        Column("duration_us", "Time", _duration),
    )
}


def chosen_columns(names: Sequence[str] | None, rows: Sequence[Row]) -> list[Column]:
    """Return the columns beside the tree.

    Args:
        names: Keys of the rows; None for the columns with figures that differ or are not 0.
        rows: All rows.
    Returns:
        The columns in the order of `names`.
    Raises:
        ArgumentError: A column does not exist.
    """
    if names is None:
        return [column for name, column in _COLUMNS.items() if _is_shown(name, rows)]
    if type(names) is str:
        names = [names]
    if not isinstance(names, list | tuple | KeysView):
        raise ArgumentError(
            f"columns={shown(names)} is no list of columns",
            why=f"columns are keys of the rows: {', '.join(_COLUMNS)}",
            fix="columns=['parameters', 'flops']",
        )
    for name in names:
        if not is_word(name, _COLUMNS):
            raise ArgumentError(
                f"a summary has no column {shown(name)}",
                why=f"its columns are {', '.join(_COLUMNS)}",
                fix=did_you_mean(name, _COLUMNS, "take one of these"),
            )
    return [_COLUMNS[name] for name in names]


def _is_shown(name: str, rows: Sequence[Row]) -> bool:
    """Whether a column is shown by default: not if its cells would all be equal."""
    if name == "calls":
        return any(row["calls"] > 1 for row in rows)
    if name == "trainable_parameters":
        return any(row[name] != row["parameters"] for row in rows)
    if name == "flops":
        return any(row["flops"] != 0 for row in rows)
    if name in ("class", "input", "output", "parameters", "share", "activation_bytes"):
        return any(row[name] for row in rows)
    return name == "duration_us" and any(row["duration_us"] is not None for row in rows)
