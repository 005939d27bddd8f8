"""The text of definitions: what `str(definition)` prints, in the form of a printed graph.

    Layer(%x, %mask; kernel_size=3) -> (%out):  # 126 uses
      %1 : Float(1, 2) = Linear(%x), scope: Linear[fc]
      return (%1)

Types are those of the first use; a size in which uses differ is printed as `?`.
"""

from collections.abc import Iterator, Sequence

from tbscope.functions.definition import Definition, Given, Read
from tbscope.ir.nests import walk
from tbscope.ir.text import body_to_lines, graph_to_text, listed, nest_to_text
from tbscope.words import one_line

__all__ = ["definition_to_text", "functions_to_text", "head_to_text"]


def functions_to_text(definitions: Sequence[Definition], main: Definition) -> str:
    """Return the definitions as text, each after those that it uses, and the graph itself last."""
    return "\n\n".join([*map(definition_to_text, definitions), graph_to_text(main.graph)])


def definition_to_text(definition: Definition) -> str:
    """Return a definition as text: its head with the number of its uses, and its body."""
    if not definition.signatures:
        return graph_to_text(definition.graph)
    uses = len(definition.uses)
    count = f"  # {uses} {'use' if uses == 1 else 'uses'}"
    return "\n".join([f"{head_to_text(definition)}:{count}", *body_to_lines(definition.graph)])


def head_to_text(definition: Definition) -> str:
    """Return the head of a definition: `Layer(%x, %mask, eps=None; size=3) -> (%out)`.

    Arguments stand in the order of the call, nests flattened with their paths, constants as
    they are; captured tensors come after the arguments, as `captured: %scale`. What the body
    writes into is named at the end: `, writes: %cache`.
    """
    given = list(_arguments(definition))
    captured = [f"%{one_line(one.name)}" for one in definition.inputs if one.kind == "captured"]
    if captured:
        given.append(f"captured: {', '.join(captured)}")
    end = f") -> ({', '.join(f'%{one_line(name)}' for name in definition.outputs)})"
    if definition.hyperparameters:
        told = (
            f"{one_line(name)}={nest_to_text(it)}"
            for name, it in definition.hyperparameters.items()
        )
        end = f"; {', '.join(told)}{end}"
    written = [f"%{one_line(one.name)}" for one in definition.inputs if one.written]
    if written:
        end = f"{end}, writes: {', '.join(written)}"
    return listed(f"{one_line(definition.name)}(", given, end)


def _arguments(definition: Definition) -> Iterator[str]:
    for at, (name, nest) in enumerate(definition.arguments):
        for path, entry in walk(nest, name or str(at)):
            if isinstance(entry, Read):
                yield f"%{one_line(definition.inputs[entry.place].name)}"
            else:
                told = "<made in the call>" if isinstance(entry, Given) else nest_to_text(entry)
                yield f"{path}={told}"
