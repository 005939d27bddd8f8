"""Figures: sums without noise, scales that the page tells apart, and what was measured."""

import math

import pytest
from build import GraphBuilder

from tbscope.drawing.figures import Figure, by_kernel, profile_figures, sum_of, to_figure
from tbscope.ir.graph import Body, Measured, Profile


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([], 0),
        ([0.1], 0.1),
        ([0.1] * 10, 1.0),
        ([0.1, 0.2], 0.3),
        ([2**60, 1], 2**60 + 1),
        ([1, 0.5], 1.5),
        ([1e-13, 1.0], 1.0),
    ],
)
def test_whole_numbers_add_up_exactly_and_others_without_noise(numbers, expected):
    found = sum_of(iter(numbers))
    assert (found, type(found)) == (expected, type(expected))


def test_the_figure_of_several_is_their_sum_or_the_largest():
    assert Figure("n", {}).join([3, 1, 3]) == 7
    assert Figure("n", {}, most=True).join([3, 1, 3]) == 3
    assert Figure("n", {}, most=True).join([]) == Figure("n", {}).join([]) == 0


def figure(*numbers):
    build = GraphBuilder()
    return to_figure("n", {build.node("op"): number for number in numbers})


def test_whole_numbers_are_as_many_bytes_as_long_as_these_are_exact():
    assert (figure(1, 2).as_bytes, figure(2**52, 2**52).as_bytes) == (1, 1)
    assert figure(2**52, 2**52, 1).as_bytes < 1


@pytest.mark.parametrize(
    "numbers", [(0.5, 0.25), (1.5,) * 2000, (1e-12, 1e-9), (1e12, 0.5), (2**60, 3)]
)
def test_others_take_from_a_gigabyte_to_a_terabyte(numbers):
    largest = figure(*numbers).as_bytes * max(numbers)
    assert 1024**3 < largest <= 1024**4


@pytest.mark.parametrize(
    "numbers", [(1,), (50, 50), (0.001, 0.002), (10**9, 10**9), (59_999,), (60_001,)]
)
def test_times_stay_below_a_minute_and_are_no_smaller_than_must_be(numbers):
    total = figure(*numbers).as_us * sum(numbers)
    assert 59_999 < total < 60_000_001


@pytest.mark.parametrize("numbers", [(3,), (0.5,), (2.5e9,), (2**60,)])
def test_the_unit_says_what_the_pages_units_stand_for(numbers):
    made = figure(*numbers)
    size, _, time = made.unit.partition(", ")
    unit, number = size.removeprefix("1 ").split(" is ")
    power = ("B", "KB", "MB", "GB", "TB", "PB").index(unit)
    assert math.isclose(float(number) * made.as_bytes, 1024**power, rel_tol=1e-5)
    assert math.isclose(float(time.removeprefix("1 ms is ")) * made.as_us, 1000, rel_tol=1e-5)


def test_nothing_has_a_scale_of_one():
    assert (figure(0).as_us, figure(0).as_bytes) == (1, 1)


def with_kernels(*flops):
    build = GraphBuilder()
    kernels = [
        build.node(f"k{at}", flops=one, measured=Measured(one)) for at, one in enumerate(flops)
    ]
    return build.node("op", body=Body(kernels, [])), kernels


def test_kernels_have_the_number_of_their_operation_if_they_add_up_to_it():
    node, (first, second) = with_kernels(3, None)
    assert by_kernel(node, 3, lambda kernel: kernel.flops) == {first: 3, second: 0}
    assert by_kernel(node, 4, lambda kernel: kernel.flops) == {node: 4}
    bare = GraphBuilder().node("op")
    assert by_kernel(bare, 0, lambda kernel: kernel.flops) == {bare: 0}


def test_what_was_measured_has_figures_and_nothing_else():
    build = GraphBuilder()
    timed = build.node("a", measured=Measured(2.0, 9), allocated_bytes=8)
    build.node("b", allocated_bytes=16)
    assert profile_figures(build.graph) == ()
    build.graph.profile = Profile(1, 0, 1.0, 1.0, 1.0, "perf_counter", 0)
    times, sizes, peaks = profile_figures(build.graph)
    assert (times.numbers, times.as_us, times.as_bytes) == ({timed: 2.0}, 1, 0)
    assert (sizes.numbers, sizes.as_us, sizes.as_bytes) == ({timed: 8}, 0, 1)
    assert (peaks.numbers, peaks.most, peaks.as_bytes) == ({timed: 9}, True, 0)
