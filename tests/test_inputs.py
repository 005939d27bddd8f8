"""What a caller gives becomes the arguments of one call, or an error that says what to give."""

import functools
import inspect
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from transformers import BatchEncoding, BertConfig, BertModel

import tbscope
from tbscope.errors import InputError
from tbscope.sources.torch.calling import signatures
from tbscope.sources.torch.calling.bind import bind_inputs, callee_name, require_model
from tbscope.sources.torch.calling.signatures import (
    argument_names,
    bound_arguments,
    signature_of,
)

X, Y = torch.zeros(2, 3), torch.ones(2)
Pair = namedtuple("Pair", ["x", "mask"])
Sample = namedtuple("Sample", ["image", "label"])


class One(nn.Module):
    def forward(self, x):
        return x


class Two(nn.Module):
    def forward(self, x, mask):
        return x


class Optional(nn.Module):
    def forward(self, x, mask=None, *, scale=1.0):
        return x


class KeywordOnly(nn.Module):
    def forward(self, x, *, scale):
        return x


class Varied(nn.Module):
    def forward(self, first, *rest, flag=True, **options):
        return first


class Anything(nn.Module):
    def forward(self, *args, **kwargs):
        return args


class OptionsOnly(nn.Module):
    def forward(self, **batch):
        return batch


class Nothing(nn.Module):
    def forward(self):
        return torch.zeros(1)


class ByPosition(nn.Module):
    def forward(self, x, /, mask=None):
        return x


@dataclass
class Batch:
    image: torch.Tensor


def message(*args, **kwargs):
    with pytest.raises(InputError) as caught:
        bind_inputs(*args, **kwargs)
    return str(caught.value)


def lines(*parts):
    return "\n".join(parts)


PACKED = pack_sequence([torch.zeros(2), torch.zeros(1)])
BATCH = Batch(X)
SAMPLE = Sample(X, Y)
DICT = {"image": X, "label": Y}


@pytest.mark.parametrize(
    ("model", "given", "args", "kwargs"),
    [
        (One(), X, (X,), {}),
        (Two(), (X, Y), (X, Y), {}),
        (Two(), [X, Y], (X, Y), {}),
        (One(), ([X, Y],), ([X, Y],), {}),
        (Two(), (X, None), (X, None), {}),
        (Two(), {"x": X, "mask": Y}, (), {"x": X, "mask": Y}),
        (Two(), OrderedDict(mask=Y, x=X), (), {"mask": Y, "x": X}),
        (Two(), UserDict({"x": X, "mask": Y}), (), {"x": X, "mask": Y}),
        (One(), DICT, (DICT,), {}),
        (Optional(), {"x": X}, (), {"x": X}),
        (Optional(), SAMPLE, (SAMPLE,), {}),
        (One(), {}, ({},), {}),
        (Nothing(), {}, (), {}),
        (Nothing(), (), (), {}),
        (Nothing(), None, (), {}),
        (Anything(), DICT, (), DICT),
        (Anything(), X, (X,), {}),
        (OptionsOnly(), DICT, (), DICT),
        (Varied(), {"first": X, "other": Y}, (), {"first": X, "other": Y}),
        (Varied(), DICT, (DICT,), {}),
        (One(), PACKED, (PACKED,), {}),
        (Two(), Pair(X, Y), (), {"x": X, "mask": Y}),
        (One(), SAMPLE, (SAMPLE,), {}),
        (Two(), SAMPLE, (X, Y), {}),
        (Two(), torch.max(X, 0), tuple(torch.max(X, 0)), {}),
        (One(), X.shape, (X.shape,), {}),
        (One(), BATCH, (BATCH,), {}),
        (One(), 3, (3,), {}),
        (One(), "text", ("text",), {}),
        (torch.relu, X, (X,), {}),
        (lambda x: x, X, (X,), {}),
        (functools.partial(Two(), mask=Y), X, (X,), {}),
        (One().forward, X, (X,), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_inputs_become_arguments(model, given, args, kwargs):
    found = bind_inputs(model, given)
    assert type(found[0]) is tuple
    assert type(found[1]) is dict
    assert repr(found) == repr((args, dict(kwargs)))


def test_the_arguments_are_the_very_objects_given():
    (given,), _ = bind_inputs(One(), X)
    assert given is X
    _, kwargs = bind_inputs(Two(), {"x": X}, {"mask": Y})
    assert kwargs["x"] is X
    assert kwargs["mask"] is Y


def test_the_callers_keywords_are_not_changed():
    kwargs = {"mask": Y}
    _, found = bind_inputs(Two(), X, kwargs)
    found["more"] = 1
    assert kwargs == {"mask": Y}


def test_a_batch_of_transformers_gives_keyword_arguments():
    batch = BatchEncoding({"input_ids": X, "attention_mask": X})
    model = BertModel(_tiny_bert())
    assert bind_inputs(model, batch) == ((), dict(batch))
    assert bind_inputs(One(), batch) == ((batch,), {})


def test_a_batch_of_transformers_with_a_key_too_many_is_told_so():
    class Distil(nn.Module):
        def forward(self, input_ids, attention_mask=None):
            return input_ids

    batch = BatchEncoding({"input_ids": X, "token_type_ids": X})
    assert message(Distil(), batch) == lines(
        "Distil.forward() cannot be called: got an unexpected keyword argument 'token_type_ids'",
        "  why: forward(input_ids, attention_mask) was given "
        "(input_ids=Tensor(2, 3), token_type_ids=Tensor(2, 3))",
        "  fix: give input_to_model=input_ids",
    )


def _tiny_bert():
    return BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )


class TestExamples:
    def test_an_attribute_is_taken(self):
        model = Two()
        model.example_input_array = (X, Y)
        assert bind_inputs(model) == ((X, Y), {})

    def test_a_property_is_taken(self):
        class Model(Two):
            @property
            def example_input_array(self):
                return {"x": X, "mask": Y}

        assert bind_inputs(Model()) == ((), {"x": X, "mask": Y})

    def test_a_method_is_taken(self):
        class Model(One):
            def dummy_inputs(self):
                return X

        assert bind_inputs(Model()) == ((X,), {})

    def test_the_example_of_lightning_comes_first(self):
        model = One()
        model.example_input_array, model.dummy_inputs = X, Y
        assert bind_inputs(model) == ((X,), {})

    def test_it_is_taken_where_forward_could_do_without(self):
        model = BertModel(_tiny_bert())
        args, kwargs = bind_inputs(model)
        assert args == ()
        assert list(kwargs) == ["input_ids"]

    def test_one_of_none_is_as_good_as_missing(self):
        model = Optional()
        model.example_input_array = None
        model.dummy_inputs = X
        assert bind_inputs(model) == ((X,), {})

    def test_keywords_that_suffice_need_no_example(self):
        model = Two()
        model.example_input_array = X
        assert bind_inputs(model, kwargs={"x": X, "mask": Y}) == ((), {"x": X, "mask": Y})

    def test_it_joins_keywords_that_do_not_suffice(self):
        model = Two()
        model.example_input_array = X
        assert bind_inputs(model, kwargs={"mask": Y}) == ((X,), {"mask": Y})

    def test_it_goes_to_the_device_of_the_model(self):
        model = nn.Linear(3, 3, device="meta")
        model.example_input_array = [X, {"k": (X,)}]
        args, _ = bind_inputs(_Taking(model))
        assert args[0].is_meta
        assert args[1]["k"][0].is_meta

    def test_one_that_does_not_fit_is_passed_over(self):
        class Vision(nn.Module):
            def dummy_inputs(self):
                return {"input_ids": X}

            def forward(self, pixel_values=None, **options):
                return pixel_values

        assert bind_inputs(Vision()) == ((), {})

    def test_one_that_does_not_fit_is_told_of(self):
        model = Two()
        model.example_input_array = X
        assert message(model) == lines(
            "Two.forward() needs 'x', 'mask': no inputs were given",
            "  why: input_to_model is None, and its example_input_array does not fit",
            "  fix: give input_to_model=(x, mask)",
        )

    def test_one_that_gives_a_keyword_again_is_passed_over(self):
        model = Two()
        model.example_input_array = {"x": X, "mask": Y}
        assert message(model, kwargs={"mask": X}).startswith(
            "Two.forward() cannot be called: missing a required argument: 'x'"
        )

    def test_one_that_raises_is_told_of(self):
        class Model(One):
            @property
            def dummy_inputs(self):
                raise RuntimeError("no tokenizer")

        assert message(Model()) == lines(
            "Model.dummy_inputs raised when its inputs were read",
            "  why: RuntimeError: no tokenizer",
            "  fix: give input_to_model",
        )


class _Taking(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.example_input_array = inner.example_input_array

    def forward(self, x, more):
        return x


class TestMisfits:
    def test_no_inputs_at_all(self):
        assert message(KeywordOnly()) == lines(
            "KeywordOnly.forward() needs 'x', 'scale': no inputs were given",
            "  why: input_to_model is None, and the model has no "
            "example_input_array or dummy_inputs",
            "  fix: give input_to_model=x and kwargs={'scale': scale}",
        )

    def test_an_argument_is_missing(self):
        assert message(Two(), X) == lines(
            "Two.forward() cannot be called: missing a required argument: 'mask'",
            "  why: forward(x, mask) was given (Tensor(2, 3))",
            "  fix: give input_to_model=(x, mask)",
        )

    def test_what_collects_the_rest_is_not_needed(self):
        assert message(Varied()).startswith("Varied.forward() needs 'first': no inputs")

    def test_a_list_that_holds_no_more_than_is_taken_needs_no_wrapping(self):
        assert message(One(), [X], {"k": 2}).endswith("  fix: give input_to_model=x")

    def test_three_arguments_are_missing(self):
        assert message(lambda a, b, c, d=2: a, ()) == lines(
            "<lambda>() cannot be called: missing a required argument: 'a'",
            "  why: <lambda>(a, b, c, d) was given ()",
            "  fix: give input_to_model=(a, b, c)",
        )

    def test_a_mapping_with_a_foreign_key_is_one_argument(self):
        assert message(Two(), {"x": X, "maks": Y}) == lines(
            "Two.forward() cannot be called: missing a required argument: 'mask'",
            "  why: forward(x, mask) was given (dict of 'x', 'maks')",
            "  fix: give input_to_model=(x, mask)",
        )

    def test_an_unknown_keyword(self):
        assert message(Optional(), X, {"scael": 2, "mask": Y}) == lines(
            "Optional.forward() cannot be called: got an unexpected keyword argument 'scael'",
            "  why: forward(x, mask, scale) was given (Tensor(2, 3), scael=2, mask=Tensor(2))",
            "  fix: give input_to_model=x",
        )

    def test_too_many_items(self):
        assert message(One(), [X, Y]) == lines(
            "One.forward() cannot be called: too many positional arguments",
            "  why: forward(x) was given (Tensor(2, 3), Tensor(2))",
            "  fix: give input_to_model=x; "
            "to give the whole list as one argument, wrap it: input_to_model=([img],)",
        )

    def test_an_input_for_a_model_that_takes_none(self):
        assert message(Nothing(), X) == lines(
            "Nothing.forward() cannot be called: too many positional arguments",
            "  why: forward() was given (Tensor(2, 3))",
            "  fix: give no inputs",
        )

    def test_the_same_argument_by_position_and_by_keyword(self):
        assert message(Optional(), X, {"x": Y}) == lines(
            "Optional.forward() cannot be called: multiple values for argument 'x'",
            "  why: forward(x, mask, scale) was given (Tensor(2, 3), x=Tensor(2))",
            "  fix: give input_to_model=x",
        )

    def test_the_same_keyword_in_the_mapping_and_in_kwargs(self):
        assert message(Two(), {"x": X, "mask": Y}, {"mask": Y}).startswith(
            "Two.forward() cannot be called: multiple values for argument 'mask'"
        )

    def test_a_keyword_for_a_parameter_by_position(self):
        # Python's words depend on its version.
        with pytest.raises(TypeError) as raised:
            inspect.signature(ByPosition().forward).bind(x=X)
        assert message(ByPosition(), None, {"x": X}) == lines(
            f"ByPosition.forward() cannot be called: {raised.value}",
            "  why: forward(x, mask) was given (x=Tensor(2, 3))",
            "  fix: give input_to_model=x",
        )

    def test_many_arguments_are_shown_in_part(self):
        text = message(One(), tuple([X] * 9))
        assert "(Tensor(2, 3), Tensor(2, 3), Tensor(2, 3), Tensor(2, 3), Tensor(2, 3), " in text
        assert "Tensor(2, 3) and 3 more)" in text

    def test_each_kind_of_argument_is_shown_in_a_few_words(self):
        given = (X, 2.5, "a" * 99, {"k": X}, [X, X], BATCH)
        assert ("(Tensor(2, 3), 2.5, str of length 99, dict of 'k', list of 2, Batch)") in message(
            One(), given
        )


class TestModels:
    @pytest.mark.parametrize(
        ("model", "shown"),
        [
            (None, "None"),
            ("resnet50", "'resnet50'"),
            (OrderedDict(), "OrderedDict()"),
            (One, f"<class '{One.__module__}.One'>"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_cannot_be_called_is_no_model(self, model, shown):
        assert message(model, X) == lines(
            f"{shown} is no model",
            "  why: a model is an instance of torch.nn.Module, or a function",
            "  fix: make the model, load_state_dict() into it, and give the model itself",
        )

    @pytest.mark.parametrize("model", [nn.ModuleList(), nn.Module()], ids=str)
    def test_a_module_without_forward_raises_what_torch_raises(self, model):
        with pytest.raises(tbscope.TraceError, match='is missing the required "forward" function'):
            tbscope.trace(model, X)

    def test_a_forward_given_to_the_instance_will_do(self):
        model = nn.Module()
        model.forward = lambda x: x
        assert bind_inputs(model, X) == ((X,), {})

    def test_a_call_written_instead_of_forward_will_do(self):
        class Model(nn.Module):
            def __call__(self, x):
                return x

        assert bind_inputs(Model(), X) == ((X,), {})

    @pytest.mark.parametrize("model", [One(), torch.relu, len, One().forward, print])
    def test_anything_that_can_be_called_is_a_model(self, model):
        require_model(model)

    @pytest.mark.parametrize("kwargs", [3, {0: 1}], ids=str)
    def test_kwargs_must_have_names(self, kwargs):
        assert message(One(), X, kwargs) == lines(
            f"kwargs={kwargs} has no names of parameters",
            "  why: kwargs maps the names of forward's parameters to arguments",
            "  fix: write kwargs={'mask': mask}, and give positional arguments in input_to_model",
        )

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            (One(), "One.forward"),
            (One().forward, "One.forward"),
            (One().eval, "One.eval"),
            (functools.partial(Two(), mask=Y), "Two.forward"),
            (lines, "lines"),
            (torch.relu, "relu"),
            (len, "len"),
        ],
        ids=["module", "forward", "method", "partial", "function", "operation", "builtin"],
    )
    def test_what_is_called_has_a_name(self, model, name):
        assert callee_name(model) == name


class TestDecorators:
    def test_one_that_keeps_what_it_wraps_is_looked_through(self):
        assert message(_Decorated(), X).startswith(
            "_Decorated.forward() cannot be called: missing a required argument: 'mask'"
        )
        assert str(signature_of(_Decorated().forward)) == "(x, mask)"

    def test_the_fault_is_that_of_what_the_author_declares(self):
        @functools.wraps(One().forward)
        def wrapper(only):
            return only

        assert message(wrapper, ()).startswith(
            "forward() cannot be called: missing a required argument: 'x'"
        )

    def test_one_that_fills_an_argument_is_no_misfit(self):
        assert bind_inputs(_Filled(), X) == ((X,), {})


def _checked(function):
    @functools.wraps(function)
    def wrapper(self, x, mask):
        return function(self, x, mask)

    return wrapper


def _filling(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs, mask=Y)

    return wrapper


class _Decorated(nn.Module):
    @_checked
    def forward(self, x, mask):
        return x


class _Filled(nn.Module):
    @_filling
    def forward(self, x, mask):
        return x


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected"),
    [
        (One(), (1,), {}, {"x": 1}),
        (One().forward, (1,), {}, {"x": 1}),
        (One.forward, (0, 1), {}, {"self": 0, "x": 1}),
        (Two(), (1,), {"mask": 2}, {"x": 1, "mask": 2}),
        (Two(), (), {"mask": 2, "x": 1}, {"x": 1, "mask": 2}),
        (
            Varied(),
            (1, 2, 3),
            {"new": 5, "flag": 4},
            {"first": 1, "rest.0": 2, "rest.1": 3, "flag": 4, "new": 5},
        ),
        (Anything(), (1, 2), {"k": 3}, {"args.0": 1, "args.1": 2, "k": 3}),
        (torch.relu, (1,), {"k": 2}, {"args.0": 1, "k": 2}),
        (One(), (1, 2), {}, {"args.0": 1, "args.1": 2}),
        (One(), (1, 2), {"k": 3}, {"args.0": 1, "args.1": 2, "k": 3}),
        (_Filled(), (1,), {}, {"x": 1}),
        (functools.partial(Two(), mask=2), (1,), {}, {"x": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_are_named_by_the_parameters_they_fill(fn, args, kwargs, expected):
    assert list(argument_names(fn, args, kwargs)) == list(expected.items())


def test_alike_calls_of_methods_are_arranged_alike_and_others_by_themselves():
    one, other = Varied(), Varied()
    for args, kwargs in (
        ((1, 2), {"new": 5, "flag": 4}),
        ((6, 7), {"new": 8, "flag": 9}),
        ((1, 2), {"flag": 4, "new": 5}),
        ((1, 2, 3), {"new": 5, "flag": 4}),
        ((1, 2), {"flag": 4}),
    ):
        for fn in (one.forward, other.forward, Two().forward, One.forward):
            names, given = bound_arguments(fn, args, kwargs)
            assert list(zip(names, given, strict=True)) == argument_names(fn, args, kwargs)
    # Two calls are alike; a function that is no method is not remembered.
    assert [len(signatures._NAMES[cls.forward]) for cls in (Varied, Two)] == [4, 4]
    assert One.forward not in signatures._NAMES


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_module_has_names_too():
    scripted = torch.jit.script(nn.Linear(3, 2))
    assert bind_inputs(scripted, X) == ((X,), {})
    assert argument_names(scripted.forward, (X,), {}) == [("input", X)]
    function = torch.jit.script(_scripted)
    assert argument_names(function, (X, 2), {}) == [("x", X), ("factor", 2)]
    assert list(signature_of(function).parameters) == ["x", "factor"]


def _scripted(x: torch.Tensor, factor: int = 1):
    return x * factor


class _Exported(nn.Module):
    @torch.jit.export
    def scale(self, x: torch.Tensor, factor: int = 1):
        return x * factor


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_method_of_a_scripted_module_takes_no_self():
    signature = signature_of(torch.jit.script(_Exported()).scale)
    assert list(signature.parameters) == ["x", "factor"]


def test_a_method_whose_function_raises_tells_no_signature():
    class Raising:
        def __getattr__(self, name):
            raise KeyError(name)

        def __call__(self, x):
            return x

    assert signature_of(MethodType(Raising(), 1)) is None
    assert signature_of(Raising()) is None


def test_two_methods_of_one_decorator_keep_their_own_names():
    assert argument_names(_Filled().forward, (1,), {}) == [("x", 1)]
    other = _filling(Varied.forward)
    assert argument_names(other, (0, 1), {}) == [("self", 0), ("first", 1)]
