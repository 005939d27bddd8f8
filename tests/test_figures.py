"""Figures: how numbers add up, and as how much the page colours them."""

import pytest
from build import GraphBuilder

from tbscope.drawing.figures import Figure, by_kernel, profile_figures, sum_of, to_figure
from tbscope.ir.graph import Body, Node


def figure(*numbers):
    nodes = [Node(name=str(place), op="relu") for place in range(len(numbers))]
    return to_figure("it", dict(zip(nodes, numbers, strict=True)))


def kernels(*numbers):
    """Give an operation with a kernel for each number of FLOPs."""
    inside = [Node(name=str(place), op="mm", flops=flops) for place, flops in enumerate(numbers)]
    return Node(name="whole", op="linear", body=Body(inside, []))


def test_whole_numbers_add_up_exactly_and_others_without_the_noise_of_binary():
    assert sum_of([2**60, 1]) == 2**60 + 1
    assert sum_of([0.1, 0.2]) == 0.3
    assert sum_of([0.1 + 0.2]) == 0.1 + 0.2
    assert sum_of([]) == 0


def test_the_figure_of_several_is_their_sum_or_the_largest():
    assert Figure("bytes", {}).join([3, 4]) == 7
    assert Figure("peak", {}, most=True).join([3, 4]) == 4
    assert Figure("peak", {}, most=True).join([]) == 0


def test_whole_numbers_are_as_many_bytes():
    found = figure(3, 4)
    assert (found.as_bytes, found.unit) == (1, "1 B is 1, 1 ms is 0.001")
    # More than JavaScript counts exactly.
    assert figure(2**53 - 1, 1).as_bytes == 1
    assert figure(2**53, 1).as_bytes < 1


@pytest.mark.parametrize("number", [0.003, 1.5, 1e-30, 1e20, 1e300])
def test_numbers_with_fractions_take_so_many_bytes_that_they_differ(number):
    found = figure(number, number / 2)
    assert 1024**3 <= number * found.as_bytes <= 1024**4


@pytest.mark.parametrize("numbers", [(0.003, 0.002), (5,), (10**12, 1), (59e6,), (61e6,), (50, 50)])
def test_all_times_together_stay_below_a_minute_and_above_what_the_page_cuts_off(numbers):
    found = figure(*numbers)
    assert 60e3 < sum(numbers) * found.as_us <= 60e6


def test_the_smallest_numbers_are_scaled_as_far_as_a_float_allows():
    found = figure(5e-324)
    assert 0 < 5e-324 * found.as_bytes < 1
    assert 0 < 5e-324 * found.as_us < 1


def test_zeros_alone_are_not_scaled():
    assert (figure(0, 0).as_us, figure(0.0).as_bytes) == (1, 1)


def test_what_a_unit_stands_for_is_told_in_the_units_of_the_page():
    assert figure(0.5).unit.startswith("1 TB is 1, ")
    assert figure(2.0**60).unit.startswith("1 B is 1.04858e+06, ")


def test_a_number_goes_to_the_kernels_where_they_add_up_to_it():
    node = kernels(3, None, 4)
    inside = dict(zip(node.body.nodes, (3, 0, 4), strict=True))
    assert by_kernel(node, 7, lambda kernel: kernel.flops) == inside
    assert by_kernel(node, 8, lambda kernel: kernel.flops) == {node: 8}
    node.body.nodes = None
    assert by_kernel(node, 0, lambda kernel: kernel.flops) == {node: 0}


def test_a_graph_that_was_not_measured_has_no_figures():
    build = GraphBuilder()
    build.op("relu", build.input("x", (2,)))
    assert profile_figures(build.graph) == ()
