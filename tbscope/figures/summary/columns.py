"""The columns of the table: which there are, and how each says a figure in a few characters."""

from collections.abc import Callable, KeysView, Mapping, Sequence
from typing import NamedTuple

from tbscope.checks import is_word
from tbscope.errors import ArgumentError
from tbscope.figures.summary.rows import Row
from tbscope.ir.graph import Shape
from tbscope.words import near_names, shown

__all__ = ["Column", "bytes_text", "chosen_columns", "count_text", "duration_text", "flops_text"]

# More shapes than fit in so many characters are counted.
_SHAPES_WIDTH = 36

# Parameters are told in billions, FLOPs in giga, as their users do.
_COUNTS = ("", "k", "M", "B", "T")
_FLOPS = ("", "k", "M", "G", "T", "P", "E")
_BYTES = (" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB")


class Column(NamedTuple):
    """One column.

    Attributes:
        name: The key of the rows that it shows.
        title: What stands above it.
        text: Gives the cell of a row.
        numeric: Whether it is aligned at the right.
    """

    name: str
    title: str
    text: Callable[[Row], str]
    numeric: bool = True


def count_text(number: int) -> str:
    """Return a count in up to five characters: `9,408`, `25.6M`, `405B`."""
    return f"{number:,}" if abs(number) < 10_000 else _scaled(number, 1000, _COUNTS)


def flops_text(number: int) -> str:
    """Return FLOPs in up to five characters: `960`, `4.09G`, `1.69P`."""
    return f"{number:,}" if abs(number) < 10_000 else _scaled(number, 1000, _FLOPS)


def bytes_text(size_bytes: int) -> str:
    """Return a size: `512 B`, `97.5 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    return _scaled(size_bytes, 1024, _BYTES)


def duration_text(duration_us: float) -> str:
    """Return a time: `84.2 us`, `1.23 ms`, `2.10 s`."""
    return _scaled(duration_us, 1000, (" us", " ms", " s"))


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    if abs(number) > _MOST_FLOAT:
        # What sizes in a file come to, and no float holds.
        return f"more than 1e300{units[-1]}"
    step = 0
    # What would be rounded up to the next unit is told in that one.
    while step + 1 < len(units) and abs(number) >= base - 0.5:
        number /= base
        step += 1
    return f"{_three_digits(number)}{units[step]}"


_MOST_FLOAT = 1e300


def _three_digits(number: float) -> str:
    for digits in (2, 1):
        if abs(round(number, digits)) < 10 ** (3 - digits):
            return f"{number:.{digits}f}"
    return f"{number:,.0f}"


def _shapes_text(shapes: Mapping[str, Shape | None] | None) -> str:
    """Return as many shapes as have room, and how many more there are."""
    if not shapes:
        return "" if shapes is None else "-"
    texts: list[str] = []
    width = 0
    for path, shape in shapes.items():
        text = _shape_text(shape)
        if not _says_nothing(path):
            text = f"{path} {text}"
        width += len(text) + 2
        if texts and width > _SHAPES_WIDTH:
            return f"{', '.join(texts)} + {len(shapes) - len(texts)}"
        texts.append(text)
    return ", ".join(texts)


def _shape_text(shape: Shape | None) -> str:
    if shape is None:
        return "(*)"
    lengths = ["?" if length is None else str(length) for length in shape]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"


def _says_nothing(path: str) -> bool:
    """Tell whether a path is a place alone: `out`, `out.0`."""
    return path.partition(".")[0] == "out"


def _input(row: Row) -> str:
    shapes = row["input"]
    told = {f"out.{place}": shape for place, shape in enumerate((shapes or {}).values())}
    return _shapes_text(None if shapes is None else told) + (" ..." if row["varies"] else "")


def _output(row: Row) -> str:
    if row["kind"] == "unused":
        return "not called"
    return _shapes_text(row["output"]) + (" ..." if row["varies"] else "")


def _parameters(row: Row) -> str:
    text = count_text(row["parameters"]) if row["parameters"] else ""
    return f"{text} =" if row["shared_parameters"] else text


def _share(row: Row) -> str:
    if not row["parameters"]:
        return ""
    return f"{100 * row['share']:.1f} %" if row["share"] >= 0.001 else "<0.1 %"


def _trainable(row: Row) -> str:
    if not row["parameters"] or row["trainable_parameters"] is None:
        return ""
    if row["trainable_parameters"] == row["parameters"]:
        return "yes"
    return count_text(row["trainable_parameters"]) if row["trainable_parameters"] else "frozen"


def _flops(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        if row[name] is None:
            return "?"
        return flops_text(row[name]) if row[name] else ""

    return text


def _count(name: str) -> Callable[[Row], str]:
    return lambda row: count_text(row[name]) if row[name] else ""


def _bytes(name: str) -> Callable[[Row], str]:
    return lambda row: bytes_text(row[name]) if row[name] else ""


def _intensity(row: Row) -> str:
    return f"{row['intensity']:.3g}" if row["intensity"] else ""


def _duration(row: Row) -> str:
    return "" if row["duration_us"] is None else duration_text(row["duration_us"])


def _class(row: Row) -> str:
    # A model without a name is called by its class already.
    return "" if row["name"] == "" and row["class"] == row["module"] else str(row["class"])


def _word(name: str) -> Callable[[Row], str]:
    return lambda row: row[name] or ""


_COLUMNS = {
    column.name: column
    for column in (
        Column("class", "Class", _class, numeric=False),
        Column("name", "Name", _word("name"), numeric=False),
        Column("scope", "Scope", _word("scope"), numeric=False),
        Column("kind", "Kind", _word("kind"), numeric=False),
        Column("input", "Input", _input, numeric=False),
        Column("output", "Output", _output, numeric=False),
        Column("calls", "Calls", _count("calls")),
        Column("parameters", "Parameters", _parameters),
        Column("own_parameters", "Own", _count("own_parameters")),
        Column("share", "Share", _share),
        Column("trainable_parameters", "Trainable", _trainable),
        Column("shared_parameters", "Shared", _count("shared_parameters")),
        Column("parameter_bytes", "Bytes", _bytes("parameter_bytes")),
        Column("buffers", "Buffers", _count("buffers")),
        Column("buffer_bytes", "Buffer bytes", _bytes("buffer_bytes")),
        Column("flops", "FLOPs", _flops("flops")),
        Column("backward_flops", "Backward FLOPs", _flops("backward_flops")),
        Column("activation_bytes", "Activations", _bytes("activation_bytes")),
        Column("moved_bytes", "Moved", _bytes("moved_bytes")),
        Column("saved_bytes", "Saved", _bytes("saved_bytes")),
        Column("intensity", "FLOPs/byte", _intensity),
        Column("duration_us", "Time", _duration),
    )
}


def chosen_columns(names: Sequence[str] | None, rows: Sequence[Row]) -> list[Column]:
    """Return the columns that are shown beside the tree.

    Args:
        names: Keys of the rows; None for those that have something to tell.
        rows: All rows.
    Returns:
        The columns in the order asked for.
    Raises:
        ArgumentError: There is no such column.
    """
    if names is None:
        return [column for name, column in _COLUMNS.items() if _tells(name, rows)]
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
            near = near_names(name, _COLUMNS)
            raise ArgumentError(
                f"a summary has no column {shown(name)}",
                why=f"its columns are {', '.join(_COLUMNS)}",
                fix=f"did you mean {', '.join(map(repr, near))}?" if near else "take one of these",
            )
    return [_COLUMNS[name] for name in names]


def _tells(name: str, rows: Sequence[Row]) -> bool:
    """Tell whether a column is shown unasked: one that would say the same everywhere is not."""
    if name == "calls":
        return any(row["calls"] > 1 for row in rows)
    if name == "trainable_parameters":
        return any(row[name] not in (None, row["parameters"]) for row in rows)
    if name == "flops":
        return any(row["flops"] != 0 for row in rows)
    if name in ("class", "input", "output", "parameters", "share", "activation_bytes"):
        return any(row[name] for row in rows)
    return name == "duration_us" and any(row["duration_us"] is not None for row in rows)
