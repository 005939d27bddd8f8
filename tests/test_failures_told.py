"""What a model raises is told with what to do about it, and can be caught as what it is."""

import pickle

import pytest
import torch
from bad_values import MuteError
from torch import nn

import tbscope

X = torch.ones(2, 3)
HERE = "test_failures_told.py"


def failure(model, given=X, **options):
    with pytest.raises(tbscope.TraceError) as caught:
        tbscope.trace(model, given, **options)
    return caught.value


# -- memory -----------------------------------------------------------------------------------


def out_of_memory(x):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def allocates(x):
    return torch.empty(10**15) + x.sum()


def memory_error(x):
    raise MemoryError


@pytest.mark.parametrize("model", [out_of_memory, allocates, memory_error])
def test_a_lack_of_memory_is_met_by_stand_ins_or_smaller_inputs(model):
    assert failure(model).fix == "pass fake=True, which takes no memory, or give smaller inputs"
    assert tbscope.trace(allocates, X, fake=True).outputs


# -- slips of the model's author ----------------------------------------------------------------


class Slips(nn.Module):
    def __init__(self, slip):
        super().__init__()
        self.slip = slip

    def forward(self, x):
        return getattr(self, self.slip)(x)

    def attribute(self, x):
        return self.nowhere(x)

    def key(self, x):
        return {"a": x}["b"]

    def name(self, x):
        return nowhere + x  # noqa: F821  That is the slip.

    def module(self, x):
        import nowhere_at_all  # noqa: F401

    def file(self, x):
        open("/nowhere/at/all")  # noqa: SIM115  It is not there.


def line_of(function):
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("slip", ["attribute", "key", "name", "module", "file"])
def test_a_slip_of_the_author_is_told_by_its_line_and_not_laid_to_the_inputs(slip, fake):
    fix = failure(Slips(slip), fake=fake).fix
    assert fix.startswith(f"see {HERE}:{line_of(getattr(Slips, slip))} in {slip}: ")
    assert "input" not in fix
    assert ("fake=False" in fix) is fake


def test_a_size_in_the_place_of_an_input_is_told_and_not_the_slip_that_it_makes():
    def adding(x, y):
        return x.relu() + y

    assert failure(adding, (2, 3)).fix.startswith("a size is no input: give torch.rand(2, 3)")


def test_an_error_about_values_still_speaks_of_the_inputs():
    def fail(x):
        raise ValueError("3 channels are needed")

    assert failure(fail).fix.startswith("check input_to_model")


def test_a_model_that_calls_itself_without_end_is_told_so():
    class Endless(nn.Module):
        def forward(self, x):
            return self(x)

    def endless(x):
        return endless(x + 1)

    for model, name in ((Endless(), "forward"), (endless, "endless")):
        error = failure(model)
        assert error.what.startswith("the model raised")
        assert error.fix.startswith(f"see {HERE}:")
        assert f" in {name}: the model's own code raised, " in error.fix
        assert isinstance(error.__cause__, RecursionError)


def test_an_error_whose_text_cannot_be_read_hides_nothing():
    def mute(x):
        raise MuteError

    error = failure(mute)
    assert error.why == "MuteError: (its message cannot be read: str() of it raises RefusalError)"
    assert isinstance(error.__cause__, MuteError)
    assert "MuteError" in tbscope.trace(mute, X, partial=True).notes[-1].text


# -- types -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "given", "cast"),
    [
        (nn.Linear(3, 2), X.long(), ".float()"),
        (nn.Linear(3, 2).half(), X.long(), ".to(torch.float16)"),
        (nn.Linear(3, 2), X.bool(), ".float()"),
        (nn.Conv1d(2, 2, 1), X.long(), ".float()"),
        (nn.BatchNorm1d(3), X.long(), ".float()"),
        (nn.LayerNorm(3), X.long(), ".float()"),
        (nn.LSTM(3, 2), X.long(), ".float()"),
        (nn.Embedding(3, 2), X, ".long()"),
        (nn.EmbeddingBag(3, 2), X, ".long()"),
    ],
    ids=str,
)
def test_an_input_of_another_type_is_told_with_the_cast(model, given, cast):
    assert failure(model, given).fix.endswith(f"use {cast}")


def test_a_whole_number_that_is_out_of_range_is_no_matter_of_types():
    assert "use ." not in failure(nn.Embedding(3, 2), torch.tensor([7])).fix


# -- lists -----------------------------------------------------------------------------------


class Detector(nn.Module):
    def forward(self, images, targets=None):
        if any(image.dim() != 3 for image in images):
            raise ValueError("images is expected to be a list of 3d tensors")
        return images[0].sum()


def test_a_list_that_a_model_takes_as_one_argument_is_told_to_be_wrapped():
    image = torch.ones(3, 4, 4)
    assert "input_to_model=([img],)" in failure(Detector(), [image]).fix
    assert tbscope.trace(Detector(), ([image],)).outputs
    assert "[img]" not in failure(Detector(), (image,)).fix


# -- classes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("original", [KeyError("x"), AssertionError(), tbscope.ArgumentError("x")])
def test_an_error_names_what_the_model_raised_and_has_it_as_its_cause(original):
    def fail(x):
        raise original

    error = failure(fail)
    assert type(error) is tbscope.TraceError
    assert str(error).startswith("the model raised while it was being traced, in fail\n  why: ")
    assert error.__cause__ is original
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (tbscope.TraceError, str(error))


def test_the_end_of_an_iterator_ends_no_loop_around_a_trace():
    def ends(x):
        return next(iter(()))

    with pytest.raises(tbscope.TraceError):
        list(map(tbscope.trace, [ends], [X]))
