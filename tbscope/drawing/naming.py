"""Names: the strings under which TensorBoard shows scopes, nodes and outputs.

A name is a path, whose parts are separated by `/`, and every proper prefix of it is a box. No
two names are equal: names of nodes and scopes, names of chunks, and titles of colour seeds are
claimed from one `UniqueNames` each. This file does not use protobuf.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Literal, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Output, Parameter
from tbscope.ir.placement.partition import Placement
from tbscope.ir.scope_io import OWNED, STATE
from tbscope.ir.scopes import Scope
from tbscope.messages import shown
from tbscope.page.constants import LIBRARY
from tbscope.page.label_widths import fits_node
from tbscope.page.op_types import RESERVED
from tbscope.utils.validation import ask, is_word

Style: TypeAlias = Literal["tf", "torch"] | Callable[[Scope], str]
"""The naming style of scopes: "tf" for attributes (`Net/layer1/0`), "torch" for the printed path
(`Net/Sequential[layer1]/Linear[0]`), or a function that returns the whole name."""

Labels: TypeAlias = Literal["name", "class"]
"""The label of a module: its attribute (`0`, `features`), or its class as well."""

# One part of a name under TensorFlow's rule for node names, without `\` and `>`, which
# the page's colourings cannot address.
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.-]")
# Names that a user's function may return: TensorFlow's rule and the brackets of PyTorch's paths.
_LEGAL_PATH = re.compile(r"[A-Za-z0-9_.\\>,()\[\]-]+(/[A-Za-z0-9_.\\>,()\[\]-]+)*")
# Limits in characters: no browser shows more, and every edge repeats a name.
_MOST_OF_PART = 250
_MOST_OF_PATH = 10_000
# The most names that are listed for a tensor that was passed as several arguments.
_MOST_NAMES = 3
# The most tensors of one argument or result that are drawn side by side without a box.
_MOST_ENDS = 4
ORDINAL = re.compile(r"\.[0-9]+(st|nd|rd|th)\Z")
"""The end of the name of a later call of a module or function, or of a later operation."""
_REPEATED = re.compile(r"~[0-9]+\Z")
# Kinds of scopes that get a number if a module has an equal name.
_NO_MODULES = frozenset({"hand", "function", "rank"})


def with_ordinal(name: str, number: int) -> str:
    """Return `relu.2nd` for `relu` and 2, `relu.11th` for 11.

    TensorBoard folds siblings whose names end in consecutive numbers, but not these.
    """
    ends = {1: "st", 2: "nd", 3: "rd"}
    end = "th" if number % 100 in (11, 12, 13) else ends.get(number % 10, "th")
    return f"{name}.{number}{end}"


class UniqueNames:
    """A set of names in use, which returns each name only once."""

    def __init__(
        self,
        taken: Iterable[str] = (),
        *,
        numbered: Callable[[str, int], str] = with_ordinal,
    ) -> None:
        """Start with names that are in use already.

        Args:
            taken: These names.
            numbered: Returns an alternative for a name in use, from the name and 2, 3, ...
        """
        self._taken = set(taken)
        self._numbered = numbered
        # The last number of each name, so that a thousand equal names cost no quadratic time.
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def reserve_above(self, names: Iterable[str]) -> None:
        """Mark the names of all boxes that enclose these names as used."""
        for name in names:
            above = name.rpartition("/")[0]
            while above and above not in self._taken:
                self._taken.add(above)
                above = above.rpartition("/")[0]

    def claim(self, wish: str) -> str:
        """Mark a name as used, and return it: the wish, or with a number if that is in use."""
        return self.claim_each([wish])[0]

    def claim_each(self, wishes: Iterable[str]) -> list[str]:
        """Claim several names, one after the other."""
        taken = self._taken
        names = []
        for wish in wishes:
            name = wish
            if name in taken:
                # The second call of a module has a number already.
                base = ORDINAL.sub("", wish)
                number = self._counts.get(base, 1)
                while name in taken:
                    number += 1
                    name = self._numbered(base, number)
                self._counts[base] = number
            taken.add(name)
            names.append(name)
        return names


@dataclass(slots=True)
class GraphDefNames:
    """The names in a GraphDef.

    Attributes:
        scopes: The name of each scope; empty for a root left out of the names, and for a
            scope that a user's style puts at the top level.
        nodes: The name of each node.
        outputs: The name of each output of the graph, in order.
        cards: The name of each info card, in order.
        ends: The names of boxes that contain a single input or output.
    """

    scopes: dict[Scope, str] = field(default_factory=dict)
    nodes: dict[Node, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def entries(self, graph: Graph) -> Iterator[tuple[Node | Output, str]]:
        """Return each node and each output of the graph, with its name."""
        return chain(self.nodes.items(), zip(graph.outputs, self.outputs, strict=True))


def name_graph(
    graph: Graph,
    style: Style = "tf",
    *,
    root: bool | None = None,
    cards: Iterable[tuple[Scope, str]] = (),
    placement: Placement | None = None,
    classes: Mapping[str, str] | None = None,
    boxed_ends: bool = False,
) -> GraphDefNames:
    r"""Return a unique name for every scope, node and output of a graph.

    Scopes are named first, then inputs and outputs, parameters and buffers, and at last
    operations, so that names from the user's code stay unchanged.

    Args:
        graph: Any graph; leaf modules may be collapsed to nodes.
        style: The naming style of scopes.
        root: Whether all names begin with the root scope, so that the page opens with a single
            box. None: only in style "torch", or if boxes right below it are named by a number
            alone (the page sorts those before all others, so that their colours go wrong).
            Ignored if the style is a function.
        cards: The scope and the label of each info card.
        placement: The scopes and nodes that are drawn in another box than their own; ignored if
            the style is a function.
        classes: The shortened names of classes, by class; the names of modules then include their
            class in style "tf" (`0_Block`). None to leave the class out.
        boxed_ends: Whether an input or output whose name the page would cut is in a box of its
            own, which shows more of the name.
    Returns:
        Names that are legal in a GraphDef and harmless in TensorBoard's page. In style
        "tf" each also fits `^[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$`.
    Raises:
        ArgumentError: The style is invalid, or its function returned an illegal name.

    Source: tensorflow/python/framework/ops.py (`_VALID_OP_NAME_REGEX`).
    """
    check_style(style)
    scopes = list(graph.scopes()) if placement is None else placement.all
    namer = _Namer(
        style, Placement([]) if placement is None or callable(style) else placement, classes
    )
    keep = style == "torch" if root is None else root
    top = None if keep else _root(graph, scopes)
    if root is None and classes is None and top:
        children = [scope for scope in scopes if scope.parent is top]
        numbered = {scope for scope in children if str(scope.part.attribute).isdigit()}
        # Leaf modules are nodes, whose numbers do no harm.
        leaves = [node.scope for node in graph.nodes if node.kind == "module"] if numbered else []
        if numbered.difference(leaves):
            top = None
    namer.name_scopes(scopes, top)
    namer.name_ends(graph, boxed=boxed_ends)
    namer.name_nodes(graph)
    names = namer.names
    names.cards += namer.claim_below(cards)
    return names


def _root(graph: Graph, scopes: list[Scope]) -> Scope | None:
    """Return the scope that contains everything that ran, or None if there is none.

    A root that was named by a recording, or that is itself drawn as a node, does not count:
    its name is needed.
    """
    tops = [scope for scope in scopes if scope.parent is None]
    if len(tops) != 1 or tops[0].part.attribute:
        return None
    root = tops[0]
    for node in graph.nodes:
        scope = node.scope
        if scope is None and node.kind != "input":
            return None
        if scope is root and node.kind == "module":
            return None
    return root


def check_style(style: Style) -> None:
    """Raise ArgumentError unless this is a naming style."""
    is_function = callable(style) and not isinstance(style, type)
    if not is_function and not is_word(style, ("tf", "torch")):
        raise ArgumentError(
            f"no naming style is {shown(style)}",
            why="a style is 'tf', 'torch', or a function of a Scope that gives its name",
            fix="style='tf' for names like 'Net/layer1/0'",
        )


def state_attributes(graph: Graph) -> dict[Node, str]:
    """Return for each parameter, buffer and constant its attribute in the module: `weight`.

    It is the last part of the qualified name, without the number that the name has for a second
    model in a recording (`fc.weight~2`). A node without a scope keeps its whole name.
    """
    attributes: dict[Node, str] = {}
    for node in graph.nodes:
        if node.kind in OWNED:
            name = _REPEATED.sub("", node.name) if "~" in node.name else node.name
            attributes[node] = name.rpartition(".")[2] if node.scope else name
    return attributes


def state_parameters(graph: Graph) -> dict[Node, Parameter]:
    """Return the parameter of a module for each node of one that the call of the module lists."""
    by_place: dict[tuple[Scope | None, str], Parameter] = {
        (call.scope, parameter.name): parameter
        for call in graph.calls
        for parameter in call.parameters
    }
    parameters: dict[Node, Parameter] = {}
    for node, attribute in state_attributes(graph).items():
        if node.kind in STATE and (node.scope, attribute) in by_place:
            parameters[node] = by_place[node.scope, attribute]
    return parameters


def append_state_keys(graph: Graph, names: GraphDefNames) -> None:
    """Rename parameters and buffers in other boxes, so that names end in the state_dict key.

    Args:
        graph: The graph.
        names: Changed in place.
    """
    used = set(names.nodes.values())
    for node in graph.nodes:
        if node.kind not in STATE:
            continue
        name, key = names.nodes[node], node.name
        ends_in_key = f"/{name}".replace("/", ".").endswith(f".{key}")
        if not ends_in_key and key == _legal(key):
            new_name = "/".join([*name.split("/")[:-1], key])
            if new_name not in used:
                used.add(new_name)
                names.nodes[node] = new_name


class _Namer:
    """Names the scopes, nodes and outputs of one graph."""

    def __init__(
        self, style: Style, placement: Placement, classes: Mapping[str, str] | None
    ) -> None:
        self.names = GraphDefNames()
        self._classes = classes
        self._placement = placement
        self._style = style
        self._unique = UniqueNames()
        self._claim = self._unique.claim
        self._part = cache(_legal)

    def name_scopes(self, scopes: Iterable[Scope], left_out: Scope | None = None) -> None:
        """Name scopes.

        Args:
            scopes: The scopes, parents first.
            left_out: The root, if names do not include it; its contents are at the top level.
        """
        if callable(self._style):
            self._name_scopes_by_function(self._style, scopes)
            return
        placement = self._placement
        print_part = cache(self._tf_part if self._style == "tf" else _torch_part)
        levels: dict[Scope | None, list[tuple[tuple[bool, bool], Scope, str]]] = {}
        for scope in scopes:
            part = placement.parts.get(scope, scope.part)
            text, changed = print_part(part.label, part.attribute, part.index)
            owner = scope
            # The name of a list without a box becomes part of its members' names: `resnets.0`.
            while owner in placement.beside:
                owner = placement.beside[owner]
                part = owner.part
                above, also = print_part(part.label, part.attribute, part.index)
                text, changed = f"{above}.{text}", changed or also
            # Children of the box itself keep their names: a scope that is drawn here and belongs
            # elsewhere claims its name later.
            is_guest = owner is scope and scope in placement.boxes
            level = placement.boxes.get(owner, owner.parent)
            # Unchanged names of modules are claimed first, before changed ones.
            order = changed or is_guest, scope.kind in _NO_MODULES
            levels.setdefault(level, []).append((order, scope, text))
        if left_out:
            self.names.scopes[left_out] = ""
            del levels[None]
        named: list[Scope | None] = [left_out or None]
        for enclosing in named:
            if enclosing not in levels:
                continue
            above = self.names.scopes[enclosing] if enclosing else ""
            prefix = f"{above}/" if above else ""
            children = sorted(levels[enclosing], key=itemgetter(0))
            names = self._unique.claim_each(
                [prefix + wish if prefix else self._first(wish) for _, _, wish in children]
            )
            for (_, scope, _), name in zip(children, names, strict=True):
                self.names.scopes[scope] = name
                named.append(scope)

    def _tf_part(self, label: str, attribute: str | None, index: int) -> tuple[str, bool]:
        """Return `layer1` for a module, `loss` for a block by hand, and whether it was changed."""
        # The attribute of an unregistered module is `?` and a number, which means nothing to users.
        unnamed = attribute is None or attribute.startswith("?")
        wish = label if unnamed else str(attribute)
        if self._classes is not None and not unnamed:
            wish = f"{wish}_{self._classes.get(label, label)}"
        text = self._part(wish)
        if not any(map(str.isalnum, text)):
            # A name in another alphabet has no legal character; the class is better than `unnamed`.
            text = self._part(label)
        return with_ordinal(text, index + 1) if index else text, text != wish

    def _name_scopes_by_function(
        self, give_name: Callable[[Scope], str], scopes: Iterable[Scope]
    ) -> None:
        for scope in scopes:
            name = ask(
                *(give_name, scope),
                option="style",
                place=f"the scope {scope}",
                fix="return a name like 'Net/layer1/0' for every scope",
            )
            _check_path(name, scope)
            self.names.scopes[scope] = self._claim(name) if name else ""
        # Every prefix of a scope's name is a box, so no operation may have that name.
        self._unique.reserve_above(self.names.scopes.values())

    def name_ends(self, graph: Graph, *, boxed: bool) -> None:
        """Name the inputs and the outputs, which are at the top level, or in boxes there."""
        inputs = self._claim_ends([_input_path(node) for node in graph.inputs], "in", boxed=boxed)
        self.names.nodes.update(zip(graph.inputs, inputs, strict=True))
        outputs = [output.name for output in graph.outputs]
        self.names.outputs = self._claim_ends(outputs, "out", boxed=boxed)

    def _claim_ends(self, paths: list[str], word: str, *, boxed: bool) -> list[str]:
        tensors_in = Counter(head for head, rest in map(_head_and_rest, paths) if rest)
        # A pytree of several tensors has a box if they are many (a cache), or if the page would
        # cut its name as the label of a node.
        boxes: dict[str, str] = {}
        for head, count in tensors_in.items():
            name = self._first(self._part(head or word))
            if count > _MOST_ENDS or (count > 1 and not fits_node(name)):
                boxes[head] = self._claim(f"{word}.{name}" if name in self._unique else name)
        names = [""] * len(paths)
        labels = [self._first(self._part(path or word)) for path in paths]
        for index in sorted(range(len(paths)), key=lambda at: labels[at] != paths[at]):
            wish = labels[index]
            head, rest = _head_and_rest(paths[index])
            if head in boxes:
                wish = "/".join([boxes[head], *[self._part(part) for part in rest.split(".")]])
            else:
                label = f"{word}.{wish}" if wish in self._unique else wish
                if boxed and not fits_node(label):
                    self.names.ends.append(self._claim(label))
                    label = f"{label}/{wish}"
                wish = label
            names[index] = self._claim(wish)
        return names

    def name_nodes(self, graph: Graph) -> None:
        """Name the remaining nodes: parameters and buffers, then operations and constants."""
        names, scopes, boxes = self.names.nodes, self.names.scopes, self._placement.boxes
        attributes = state_attributes(graph)
        state = [node for node in graph.nodes if node.kind in STATE]
        places: dict[Node, tuple[Scope | None, str]] = {}
        for node in [*state, *[node for node in graph.nodes if node.kind not in STATE]]:
            kind, scope = node.kind, node.scope
            if kind == "module" and scope and scopes[scope]:
                names[node] = scopes[scope]
            elif kind in STATE or (kind == "constant" and not node.name.isdigit()):
                places[node] = scope, attributes[node]
            elif node not in names:
                places[node] = boxes.get(node, scope), node.op
        names.update(zip(places, self.claim_below(places.values()), strict=True))

    def claim_below(self, places: Iterable[tuple[Scope | None, str]]) -> list[str]:
        """Claim names, each in the box of a scope, and return them."""
        scopes = self.names.scopes
        wishes = []
        for scope, text in places:
            above = scopes[scope] if scope else ""
            part = self._part(text)
            wishes.append(f"{above}/{part}" if above else self._first(part))
        return self._unique.claim_each(wishes)

    def _first(self, part: str) -> str:
        """Return a legal part of a name in a form that is legal as the first part, too."""
        # TensorFlow's rule forbids a leading underscore here; other styles may rely on it.
        if self._style == "tf" or part.startswith("__"):
            part = part.lstrip("_-") or "unnamed"
        # Keys of every JavaScript object break the page, so their case is changed.
        return part[0].swapcase() + part[1:] if part in RESERVED else part


def _input_path(node: Node) -> str:
    """Return the path of an input; `input_ids_and_labels` if it was passed as both."""
    also = str(node.attributes.get("also", ""))
    if not also:
        return node.name
    head = node.name.rpartition(".")[0]
    further = [alias.removeprefix(f"{head}.").replace(".", "_") for alias in also.split(", ")]
    if len(further) > _MOST_NAMES:
        further = [f"{len(further):,}_more"]
    return "_and_".join([node.name, *further])


def _head_and_rest(path: str) -> tuple[str, str]:
    """Split the path of an input or output, `cache.0.key`, into `cache` and `0.key`.

    The head of an entry of a plain tuple includes its index: `out.1`.
    """
    head, _, rest = path.partition(".")
    if head == "out" and rest:
        number, _, rest = rest.partition(".")
        head = f"out.{number}"
    return head, rest


def _torch_part(label: str, attribute: str | None, index: int) -> tuple[str, bool]:
    """Return `Sequential[layer1]`, and whether characters were replaced."""
    wish, text = label, _legal(label)
    if attribute is not None:
        wish += f"[{attribute}]"
        text += f"[{attribute and _legal(attribute)}]"
    return f"{text}.{index}" if index else text, text != wish


def _legal(text: str) -> str:
    """Return a text as a part of a name: illegal characters as `_`, cut after 250 characters."""
    text = text if len(text) <= _MOST_OF_PART else f"{text[:_MOST_OF_PART]}..."
    return _ILLEGAL.sub("_", text) or "unnamed"


def _check_path(name: object, scope: Scope) -> None:
    """Raise ArgumentError unless this is a legal name of a scope; empty means the top level."""
    if type(name) is not str:
        why = f"it returned {type(name).__name__}, and a name is a str"
    elif len(name) > _MOST_OF_PATH:
        why = f"a name has at most {_MOST_OF_PATH:,} characters"
    elif name and not _LEGAL_PATH.fullmatch(name):
        why = "a name is made of A-Z a-z 0-9 _ . - \\ > ( ) [ ] , in parts with / between them"
    elif name.partition("/")[0] in RESERVED or name.startswith(LIBRARY):
        why = f"TensorBoard's page breaks on {name.partition('/')[0]!r} as the first part of a name"
    else:
        return
    raise ArgumentError(
        f"the style function returned {shown(name)} for the scope {scope}",
        why=why,
        fix="give a name like 'Net/layer1/0', or '' for the top level",
    )
