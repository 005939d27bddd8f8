"""Tables: the rows of what many nodes of a graph share, each written once and named by its number.

Text is made right away: with objects in between, it would take twice as long, and every graph that
is drawn is encoded. It knows no node and no value: these are `encode`'s.
"""

import math
from collections.abc import Callable, Hashable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

from tbscope.ir.facts import Function, Run
from tbscope.ir.graph import Collective, Parameter, Part, Shape, Sharding, Source
from tbscope.ir.scopes import Scope

__all__ = ["Tables", "number_text", "numbers_text"]

# Beyond, many readers of JSON lose digits, and Python prints no more than 4,300 of them.
_EXACT = 2**53


class _Texts(dict[str, str]):
    """Texts as JSON has them, each made once."""

    def __missing__(self, text: str) -> str:
        made = self[text] = encode_basestring_ascii(text)
        return made


class _Table(dict[Any, int]):
    """Things that are named by their number, each once, as they come; `rows` has their texts."""

    def __init__(self, encode: Callable[[Any], str]) -> None:
        self._encode = encode
        self._same: dict[int, int] = {}
        self.rows: list[str] = []

    def __missing__(self, item: Hashable) -> int:
        # The row of a scope comes after that of the scope around it.
        row = self._encode(item)
        number = self[item] = len(self.rows)
        self.rows.append(row)
        return number

    def of(self, item: Hashable) -> int:
        """Return the number of what the graph holds: to compare it costs as much as to print it."""
        number = self._same.get(id(item))
        if number is None:
            number = self._same[id(item)] = self[item]
        return number


class Tables:
    """The tables of one graph, filled while it is encoded.

    Attributes:
        texts: All texts.
        types: Shape, dtype, device and sharding of values.
        collectives: What nodes do together with other ranks.
        sources: Places in the code.
        scopes: Scopes, each after the one around it.
        runs: Runs of functions, each after the one around it.
    """

    def __init__(self) -> None:
        self.texts = _Texts()
        self.types = _Table(self._type)
        self.collectives = _Table(self._collective)
        self.sources = _Table(self._source)
        self.scopes = _Table(self._scope)
        self.runs = _Table(self._run)
        self._shardings = _Table(self._sharding)
        self._groups = _Table(self._group)
        self._parameters = _Table(self._parameter)
        self._functions = _Table(self._function)
        # What a module owns is told for it and for each of its calls.
        self._owned: dict[int, str] = {}

    def rows(self) -> dict[str, list[str]]:
        """Return the rows of all tables, in an order in which no row names a later one."""
        tables = {
            "shardings": self._shardings,
            "types": self.types,
            "groups": self._groups,
            "collectives": self.collectives,
            "scopes": self.scopes,
            "sources": self.sources,
            "parameters": self._parameters,
            "functions": self._functions,
            "runs": self.runs,
        }
        return {key: table.rows for key, table in tables.items()}

    def forget(self) -> None:
        """Let go of the tables, which refer to this: else the collector alone would find them."""
        vars(self).clear()

    def plain(self, plain: Any) -> str:
        """Return a text, a number, a truth or None."""
        if plain is None:
            return "null"
        if plain is True or plain is False:
            return "true" if plain else "false"
        return self.texts[plain] if isinstance(plain, str) else number_text(plain)

    def mapping(self, entries: Iterable[tuple[str, str]]) -> str:
        """Return an object of these entries, encoded already."""
        texts = self.texts
        return f"{{{','.join([f'{texts[key]}:{entry}' for key, entry in entries])}}}"

    def owned(self, parameters: tuple[Parameter, ...]) -> str:
        """Return the numbers of parameters."""
        known = self._owned.get(id(parameters))
        if known is None:
            known = numbers_text([self._parameters[each] for each in parameters])
            self._owned[id(parameters)] = known
        return known

    def part(self, one: Part) -> str:
        """Return the ranks of one part of a merged graph, and what each of them has."""
        figures = self.mapping((name, number_text(count)) for name, count in one.figures.items())
        row = f"[{numbers_text(one.ranks)},{self.texts[one.scope]},{self.plain(one.stage)}"
        return f"{row},{figures}]"

    def _source(self, one: Source) -> str:
        texts = self.texts
        return f"[{texts[one.file]},{number_text(one.line)},{texts[one.function]}]"

    def _scope(self, scope: Scope) -> str:
        above: int | str | None = "null"
        parent = scope.parent
        if parent is not None:
            above = self.scopes.get(parent)
            if above is None:
                # Outermost first: no depth needs recursion.
                for outer in [*scope.ancestors()][::-1]:
                    above = self.scopes[outer]
        part, texts, plain = scope.part, self.texts, self.plain
        row = f"[{above},{texts[part.label]},{plain(part.attribute)},{part.index}"
        row += f",{texts[scope.kind]},{plain(scope.qualified_name)}"
        return f"{row},{texts[scope.phase]}]" if scope.phase != "forward" else f"{row}]"

    def _type(self, one: tuple[Any, ...]) -> str:
        shape, dtype, device, sharding = one
        row = f"[{_sizes(shape)},{self.texts[dtype]},{self.texts[device]}"
        return f"{row}]" if sharding is None else f"{row},{self._shardings[sharding]}]"

    def _sharding(self, one: Sharding) -> str:
        lies = [
            ",".join([self.texts[word] for word in told]) for told in (one.placements, one.mesh)
        ]
        return f"[{_sizes(one.shape)},[{lies[0]}],[{lies[1]}]]"

    def _group(self, one: tuple[Any, ...]) -> str:
        ranks, mesh, name = one
        return f"[{numbers_text(ranks)},{self.texts[mesh]},{self.texts[name]}]"

    def _collective(self, one: Collective) -> str:
        plain, group = self.plain, self._groups[one.ranks, one.mesh, one.group]
        row = f"[{self.texts[one.kind]},{plain(one.reduction)},{group}"
        row += f",{number_text(one.input_bytes)},{number_text(one.output_bytes)},{plain(one.peer)}"
        row += f",{number_text(one.sequence)},{plain(one.asynchronous)}"
        return f"{row},{number_text(one.tensors)}]"

    def _function(self, one: Function) -> str:
        loops = ",".join(
            [f"[{number_text(first)},{number_text(last)}]" for first, last in one.loops]
        )
        return f"[{self.texts[one.name]},{self.plain(one.nested)},[{loops}]]"

    def _run(self, run: Run) -> str:
        above: int | str = "null"
        around = run.around
        if around is not None:
            for outer in (around,) if around in self.runs else around.chain():
                above = self.runs[outer]
        return f"[{self._functions[run.function]},{above},{number_text(run.step)}]"

    def _parameter(self, one: Parameter) -> str:
        texts, plain = self.texts, self.plain
        row = f"[{texts[one.name]},{texts[one.kind]},{_sizes(one.shape)},{texts[one.dtype]}"
        row += f",{number_text(one.size_bytes)},{plain(one.requires_grad)}"
        if one.sharding is not None:
            row += f",{texts[one.device]},{number_text(one.number)}"
            return f"{row},{self._shardings[one.sharding]}]"
        if one.number != -1:
            return f"{row},{texts[one.device]},{number_text(one.number)}]"
        return f"{row},{texts[one.device]}]" if one.device != "cpu" else f"{row}]"


def number_text(number: Any) -> str:
    """Return a number as JSON has it: one that is not finite, or too large, as a text."""
    if type(number) is int:
        if -_EXACT <= number <= _EXACT:
            return str(number)
        return f'{{"int":"{hex(number)}"}}'
    if isinstance(number, float):
        plain = float(number)
        return repr(plain) if math.isfinite(plain) else f'{{"float":"{plain!r}"}}'
    return number_text(int(number))


def numbers_text(numbers: Iterable[int]) -> str:
    """Return a list of whole numbers."""
    return f"[{','.join(map(str, numbers))}]"


def _sizes(shape: Shape | None) -> str:
    if shape is None:
        return "null"
    return f"[{','.join(['null' if size is None else number_text(size) for size in shape])}]"
