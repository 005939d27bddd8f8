"""Differences of what calls and operations take and give, and of what modules are set to."""

import json

import pytest
import torch
from test_diff import Net, changed, swap, told
from torch import nn
from torch.nn import functional

import tbscope

X = torch.rand(2, 4)


def calling(inner, call):
    """Give a net that calls another one in some way, and gives what comes of it."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x, y):
            return call(self.inner, x, y)

    return Outer()


def inner(forward):
    """Give a module of the class `Inner` that does what a function does."""
    return type("Inner", (nn.Module,), {"forward": forward})()


MASKED = calling(inner(lambda self, x, mask: x - mask), lambda net, x, y: net(x, y))
BIASED = calling(inner(lambda self, x, bias: x - bias), lambda net, x, y: net(x, y))
FURTHER = calling(inner(lambda self, x, mask, more: x - mask), lambda net, x, y: net(x, y, y))


@pytest.mark.parametrize(
    ("one", "other", "detail"),
    [
        (MASKED, BIASED, "argument mask -> bias"),
        (MASKED, FURTHER, "argument more added"),
        (FURTHER, MASKED, "argument more removed"),
    ],
)
def test_the_arguments_of_a_call_are_told_by_their_names(one, other, detail):
    assert told(one, one, (X, X)) == []
    assert told(one, other, (X, X)) == [f"changed module inner {detail}"]


def test_arguments_that_came_are_told_in_their_order():
    names = ["query", "key", "value", "mask", "bias", "scale"]
    code = f"lambda self, x, {', '.join(names)}: x - {' - '.join(names)}"
    one = calling(inner(lambda self, x: x - x), lambda net, x, y: net(x))
    other = calling(inner(eval(code)), lambda net, x, y: net(x, *[y] * len(names)))
    (first, *_) = told(one, other, (X, X))
    details = ", ".join(f"argument {name} added" for name in names)
    assert first.startswith(f"changed module inner {details}")


def test_what_a_call_gives_in_another_form_is_told():
    plain, packed = (
        calling(inner(give), lambda net, x, y: (net(x), y)[1])
        for give in (lambda self, x: x, lambda self, x: {"a": x})
    )
    assert told(plain, packed, (X, X)) == ["changed module inner results %0 -> {'a': %0}"]


class Doing(nn.Module):
    """Does what a function does."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_a_type_is_told_with_an_argument_but_not_how_many_results_follow_from_one():
    one, other = Doing(lambda x: x.sum(0)), Doing(lambda x: x.sum(1))
    expected = "changed operation sum() dim 0 -> 1, gives Float(4) -> Float(2)"
    assert told(one, other, (X,)) == [expected]
    one, other = (Doing(lambda x, count=count: x.chunk(count, 1)[0]) for count in (2, 4))
    assert told(one, other, (X,)) == ["changed operation chunk() chunks 2 -> 4"]


def test_a_module_is_wrapped_only_where_one_of_its_class_is_inside():
    def around(*layers):
        return changed(swap("blocks.1.fc1", lambda: nn.Sequential(*layers)))

    inputs = (X, torch.rand(2, 4))
    wrapped = "changed module blocks.1.fc1 wrapped in Sequential"
    assert told(Net(), around(nn.Linear(4, 8)), inputs) == [wrapped]
    replaced = told(Net(), around(nn.Conv1d(2, 2, 1), nn.ConstantPad1d((0, 4), 0.0)), inputs)
    assert replaced[0] == "changed module blocks.1.fc1 class Linear -> Sequential"


@pytest.mark.parametrize(
    ("one", "other", "details"),
    [
        (nn.Linear(4, 4), nn.Linear(4, 4, bias=False), "bias True -> False"),
        (nn.LayerNorm(4), nn.LayerNorm(4, eps=1e-3), "eps 1e-05 -> 0.001"),
        (nn.Dropout(0.1), nn.Dropout(0.2), "p 0.1 -> 0.2"),
    ],
)
def test_what_a_leaf_module_hands_on_is_told_of_the_module_alone(one, other, details):
    assert told(one, other, (X,)) == [f"changed module  {details}"]


def test_a_parameter_that_is_gone_is_not_told_again_as_an_argument_of_another_name():
    class Shifted(nn.Module):
        def __init__(self, shifted):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))
            self.shift = nn.Parameter(torch.ones(4)) if shifted else None

        def extra_repr(self):
            return f"shifted={self.shift is not None}"

        def forward(self, x):
            return functional.linear(x, self.weight, self.shift)

    assert told(Shifted(True), Shifted(False), (X,)) == ["changed module  shifted True -> False"]


@pytest.mark.parametrize(
    ("given", "details"),
    [("x", ""), ("none", "bias % -> None")],
)
def test_what_a_leaf_module_was_set_to_hides_nothing_that_it_never_owned(given, details):
    class Biased(nn.Module):
        def __init__(self, given):
            super().__init__()
            self.given = given
            self.weight = nn.Parameter(torch.ones(4, 4))

        def extra_repr(self):
            return f"given={self.given}, mode={self.given}"

        def forward(self, x, bias):
            return functional.linear(x, self.weight, bias if self.given != "none" else None)

    one, other = Biased("y"), Biased(given)
    setting, *further = told(one, other, (X, torch.ones(4)))
    assert setting.endswith(f"mode 'y' -> {given!r}")
    assert further == ([f"changed operation linear() {details}"] if details else [])


@pytest.mark.parametrize(("times", "further"), [(1, []), (2, ["p 0.2 -> 0.4"])])
def test_a_setting_that_is_handed_on_as_it_is_under_another_name_is_told_once(times, further):
    class Rated(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def extra_repr(self):
            return f"rate={self.rate}"

        def forward(self, x):
            return functional.dropout(x, times * self.rate)

    assert told(Rated(0.1), Rated(0.2), (X,)) == [
        "changed module  rate 0.1 -> 0.2",
        *(f"changed operation dropout() {one}" for one in further),
    ]


def test_a_module_that_calls_others_hands_on_nothing_that_goes_untold():
    class Scaled(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor, self.fc = factor, nn.Linear(4, 4)

        def extra_repr(self):
            return f"factor={self.factor}"

        def forward(self, x):
            return self.fc(x) * self.factor

    assert told(Scaled(2), Scaled(3), (X,)) == [
        "changed module  factor 2 -> 3",
        "changed operation mul() other 2 -> 3",
    ]


def test_a_pin_names_blocks_by_their_classes_and_numbers_further_ones(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    tbscope.check(model, X, pin=tmp_path / "net.json", update=True)
    pin = json.loads((tmp_path / "net.json").read_text())
    assert [block["block"] for block in pin["blocks"]] == [
        *("Linear", "ReLU", "Linear~2", "Sequential", "graph")
    ]


def twice(*, again):
    """Give two calls of one layer, or one call of each of two."""
    first = nn.Linear(4, 4)
    return nn.Sequential(first, first if again else nn.Linear(4, 4))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (twice(again=True), twice(again=False)),
        (twice(again=False), twice(again=True)),
        (nn.Linear(4, 4), nn.Linear(4, 4, bias=False)),
    ],
)
def test_what_differs_from_a_pin_is_what_differs_from_its_model(tmp_path, one, other):
    pin = tmp_path / "net.json"
    assert tbscope.check(one, X, pin=pin, update=True)
    assert tbscope.check(one, X, pin=pin)
    expected = [str(change) for change in tbscope.diff(one, other, X).changes]
    assert expected
    checked = tbscope.check(other, X, pin=pin)
    assert [str(change) for change in checked.difference.changes] == expected


class Holding(nn.Module):
    """Hands on, through a layer where it has one."""

    def __init__(self, *, layer):
        super().__init__()
        self.fc = nn.Linear(4, 4) if layer else None

    def forward(self, x):
        return x.tanh() if self.fc is None else self.fc(x).tanh()


def test_a_module_that_came_to_two_places_is_moved_to_none():
    before, after = (
        nn.Sequential(*(Holding(layer=layer) for layer in layers))
        for layers in ((True, False, False), (False, True, True))
    )
    difference = tbscope.diff(before, after, torch.rand(2, 4))
    fates = [(one.fate, one.name) for one in difference.changes if one.label == "Linear"]
    assert fates == [("removed", "0.fc"), ("added", "1.fc"), ("added", "2.fc")]


class Running(nn.Module):
    """Runs some operations."""

    def __init__(self, *ops):
        super().__init__()
        self.ops = ops

    def forward(self, x):
        for op in self.ops:
            x = op(x)
        return x


class Other(Running):
    pass


@pytest.mark.parametrize(
    ("ops", "fates"),
    [
        ((torch.relu, torch.tanh, torch.exp, torch.neg), {"changed"}),
        ((torch.relu, torch.tanh, torch.cos, torch.neg), {"added", "removed"}),
    ],
)
def test_modules_of_other_names_and_classes_match_just_if_most_of_them_is_alike(ops, fates):
    before, after = nn.Sequential(), nn.Sequential()
    before.add_module("one", Running(torch.relu, torch.tanh, torch.exp, torch.abs))
    after.add_module("two", Other(*ops))
    changes = tbscope.diff(before, after, torch.rand(2, 4)).changes
    assert {one.fate for one in changes if one.kind == "module"} == fates


def plain():
    return nn.Linear(4, 4, bias=False)


def test_a_block_that_has_another_name_and_another_place_is_moved():
    before, after = nn.Sequential(), nn.Sequential()
    for net, names in ((before, ("big", "act", "norm")), (after, ("act", "norm", "other"))):
        for name in names:
            kinds = {"act": nn.Tanh(), "norm": nn.LayerNorm(4)}
            net.add_module(name, kinds.get(name) or plain())
    assert told(before, after, (X,)) == [
        "changed module big -> other name big -> other, moved first -> behind norm"
    ]
    text = str(tbscope.diff(before, after, X))
    assert "~ Linear: big -> other, renamed, moved" in text.splitlines()


class Wrapping(nn.Module):
    """Calls something of the class that it wraps before what it wraps."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), inner

    def forward(self, x):
        return self.inner(self.first(x))


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input):  # noqa: A002
        return self.inner(input)


def test_of_several_calls_in_a_wrapper_the_most_alike_one_is_wrapped():
    before, after = nn.Sequential(plain()), nn.Sequential(Wrapping(plain()))
    assert told(before, after, (X,)) == [
        "changed module 0 wrapped in Wrapping",
        "added module 0.first",
    ]


def test_a_model_that_is_wrapped_twice_is_told_both_ways():
    before, after = Wrapping(plain()), Holder(Holder(Wrapping(plain())))
    change = "wrapped in Holder"
    there, back = (
        [one for one in told(*pair, (X,)) if " module " in one]
        for pair in ((before, after), (after, before))
    )
    assert there == [f"changed module  {change}", f"changed module  -> inner {change}"]
    assert back == [
        f"changed module  no longer {change}",
        f"changed module inner ->  no longer {change}",
    ]


class Keeping(nn.Module):
    """Keeps what it computes on the way."""

    def forward(self, x):
        self.kept = [x + 1, x * 2]
        return self.kept[0] - self.kept[1]


def test_another_tensor_of_those_made_inside_of_a_call_is_told():
    one, other = (
        calling(Keeping(), lambda net, x, y, at=at: net(x) / net.kept[at]) for at in (0, 1)
    )
    assert told(one, one, (X, X)) == []
    assert told(one, other, (X, X)) == [
        "changed operation div() reads inner, inner/add() -> inner, inner/mul()"
    ]


def test_the_ties_of_a_model_that_is_wrapped_are_the_same():
    def tied():
        first, second = plain(), plain()
        second.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), second)

    assert told(tied(), Holder(tied()), (X,)) == ["changed module  wrapped in Holder"]


class Sparing(nn.Module):
    """Has modules that it never calls."""

    def __init__(self, **spares):
        super().__init__()
        for name, spare in spares.items():
            self.add_module(name, spare)

    def forward(self, x, *more):
        return x + 1


def test_a_module_that_is_never_called_tells_its_class_and_what_it_holds():
    one, other = Sparing(spare=nn.Linear(4, 4)), Sparing(spare=nn.Conv1d(4, 4, 1, bias=False))
    (change,) = told(one, other, (X,))
    assert change.startswith("changed module spare class torch.nn.modules.linear.Linear -> ")
    assert change.endswith("weight Float(4, 4) -> Float(4, 4, 1), bias parameter Float(4) removed")


def test_an_input_is_no_module_of_its_name():
    class Taking(Sparing):
        def forward(self, x, spare=None):
            return x + 1

    one, other = Taking(), Taking(spare=plain())
    other.__class__ = type("Taking", (Sparing,), {})
    assert told(one, other, (X, X + 1), (X,)) == [
        "removed input spare",
        "changed module  argument spare removed",
        "added module spare",
    ]


def test_an_operation_that_came_counts_as_one():
    class Net(nn.Module):
        def __init__(self, *, longer):
            super().__init__()
            self.fc, self.longer = nn.Linear(4, 4), longer

        def forward(self, x):
            x = self.fc(x)
            return x.sinh() if self.longer else x

    (change,) = tbscope.diff(Net(longer=False), Net(longer=True), X).changes
    assert (change.kind, change.label, change.operations) == ("operation", "sinh", 1)


def test_what_is_called_again_in_a_block_that_came_counts_once():
    (change,) = tbscope.diff(nn.Sequential(), nn.Sequential(twice(again=True)), X).added
    assert (change.label, change.parameters, change.operations) == ("Sequential", 20, 2)


def test_a_tensor_made_inside_of_a_call_that_changed_is_told_by_the_call_alone():
    class Dividing(Keeping):
        def forward(self, x):
            self.kept = [x / 3, x * 2]
            return self.kept[0] - self.kept[1]

    Dividing.__name__ = Dividing.__qualname__ = "Keeping"
    one, other = (
        calling(inner, lambda net, x, y: net(x) / net.kept[0]) for inner in (Keeping(), Dividing())
    )
    assert told(one, other, (X, X)) == [
        "changed operation inner.add() -> inner.div() op add -> div, other 1 -> 3"
    ]
