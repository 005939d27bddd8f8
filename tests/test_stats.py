"""Figures become RunMetadata that TensorBoard's page sums up right."""

import re
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tbscope.graphdef.run_metadata import Stat, run_metadata

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)
TIMES = st.floats(0, 1e3) | st.floats(0, 3) | st.just(0.0)


def spans(message):
    """Give the span of each node, by device and name."""
    return {
        (device.device, entry.node_name): (
            entry.all_start_micros,
            entry.all_start_micros + entry.all_end_rel_micros,
        )
        for device in message.step_stats.dev_stats
        for entry in device.node_stats
    }


def box_times(message, names):
    """Give the time of each box as the page does: from the first start to the last end."""
    held = defaultdict(list)
    for (_, name), span in spans(message).items():
        if span[1] > span[0]:
            # The page moves a node into the box that is called like it.
            is_box = any(other.startswith(f"{name}/") for other in names)
            path = f"{name}/" if is_box else name
            for found in re.finditer("/", path):
                held[path[: found.start()]].append(span)
    return {
        box: max(end for _, end in found) - min(start for start, _ in found)
        for box, found in held.items()
    }


def test_a_node_has_its_time_and_memory_on_its_device():
    message = run_metadata([Stat("a/fc", "cuda:1", 12.0, 96), Stat("b", "cpu", 3.0, 0)])
    first, second = message.step_stats.dev_stats
    assert (first.device, second.device) == ("/device:GPU:1", "/device:CPU:0")
    (fc,) = first.node_stats
    assert (fc.node_name, fc.all_start_micros, fc.all_end_rel_micros) == ("a/fc", 1, 12)
    assert [memory.total_bytes for memory in fc.memory] == [96]
    (b,) = second.node_stats
    assert (b.all_start_micros, b.all_end_rel_micros) == (13, 3)
    assert not b.memory
    assert not b.output


def test_times_too_short_for_the_page_add_up_all_the_same():
    message = run_metadata([Stat(f"net/op_{i}", "cpu", 0.25, 0) for i in range(40)])
    lengths = [end - start for start, end in spans(message).values()]
    assert set(lengths) == {0, 1}
    assert sum(lengths) == 10


def test_boxes_that_take_turns_are_laid_one_after_the_other():
    turns = [Stat(f"{box}/op_{i}", "cpu", 10.0, 0) for i in range(5) for box in ("a", "b")]
    message = run_metadata(turns)
    assert box_times(message, [stat.name for stat in turns]) == {"a": 50, "b": 50}


def test_a_node_named_like_a_box_stands_in_it():
    stats = [Stat("a", "cpu", 5.0, 0), Stat("b", "cpu", 7.0, 0), Stat("a/c/d", "cpu", 2.0, 0)]
    assert box_times(run_metadata(stats), ["a", "b", "a/c/d"]) == {"a": 7, "a/c": 2}


@given(st.dictionaries(NAMES, st.tuples(st.sampled_from(["cpu", "cuda:0"]), TIMES)))
def test_each_box_takes_the_sum_of_its_nodes_to_the_microsecond(figures):
    message = run_metadata([Stat(name, *given, 0) for name, given in figures.items()])
    times = {name: end - start for (_, name), (start, end) in spans(message).items()}
    moments = {name: set(range(*span)) for (_, name), span in spans(message).items()}
    run = set().union(*moments.values())
    assert abs(len(run) - sum(time for _, time in figures.values())) <= 1
    for name, (_, time) in figures.items():
        assert abs(times[name] - time) <= 1
    for box, time in box_times(message, figures).items():
        inside = [name for name in figures if name == box or name.startswith(f"{box}/")]
        # One of an empty box shares its microsecond with its neighbour.
        assert time == len(set().union(*(moments[name] for name in inside)))
        assert abs(time - sum(figures[name][1] for name in inside)) <= 1


def test_no_figures_are_an_empty_message():
    assert run_metadata([]).SerializeToString() == b""


@given(st.dictionaries(NAMES, st.tuples(TIMES, st.sampled_from([0, 5]))))
def test_no_box_is_without_time_and_memory(figures):
    message = run_metadata([Stat(name, "cpu", *given) for name, given in figures.items()])
    times = box_times(message, figures)
    boxes = {name[: found.start()] for name in figures for found in re.finditer("/", name)}
    sized = {name for name, (_, size) in figures.items() if size}
    for box in boxes:
        inside = {name for name in figures if name == box or name.startswith(f"{box}/")}
        assert times.get(box, 0) > 0 or inside & sized


def test_what_an_empty_box_takes_the_boxes_around_it_have_counted():
    stats = [
        Stat("a/first/x", "cpu", 0.0, 0),
        Stat("a/fc", "cpu", 5.0, 0),
        Stat("a/last/x", "cpu", 0.0, 0),
        Stat("b/y", "cpu", 3.0, 0),
        Stat("c/z", "cpu", 0.0, 0),
    ]
    times = box_times(run_metadata(stats), [stat.name for stat in stats])
    assert times == {"a": 5, "a/first": 1, "a/last": 1, "b": 3, "c": 1}
