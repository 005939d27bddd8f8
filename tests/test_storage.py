"""Which tensors share memory: regions byte by byte, and who is seen to wait for which write."""

import pytest
import torch
from build import GraphBuilder

import tbscope
from tbscope.sources.torch.subclasses import Region, Writes, same_storage

BASE = torch.zeros(24)
VIEWS = {
    "all": BASE[:],
    "first": BASE[:1],
    "head": BASE[:12],
    "head and one": BASE[:13],
    "tail": BASE[12:],
    "last": BASE[23:],
    "all but the last": BASE[:23],
    "even": BASE[::2],
    "odd": BASE[1::2],
    "every third": BASE[2::3],
    "left": BASE.view(4, 6)[:, :3],
    "right": BASE.view(4, 6)[:, 3:],
    "middle": BASE.view(4, 6)[:, 2:4],
    "turned": BASE.view(4, 6)[:, 2:4].t(),
    "half of one": BASE[12:13].view(torch.int16)[1:],
    "nothing": BASE[12:12],
    "no columns": BASE.view(4, 6)[:, 3:3],
    "one again and again": BASE[12:13].expand(5),
}


def bytes_of(tensor):
    """Give the place of each byte that a tensor covers, element by element."""
    size = tensor.element_size()
    places = torch.tensor([tensor.storage_offset()])
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = (places[:, None] + torch.arange(length) * stride).flatten()
    return {place * size + byte for place in places.tolist() for byte in range(size)}


@pytest.mark.parametrize("name", VIEWS)
def test_a_region_begins_at_its_first_byte_and_ends_after_its_last(name):
    (start, end, _), covered = Region(VIEWS[name]).reach, bytes_of(VIEWS[name])
    if covered:
        assert (start, end) == (min(covered), max(covered) + 1)
    else:
        assert start == end


@pytest.mark.parametrize("one", VIEWS)
def test_two_regions_overlap_where_they_have_a_byte_in_common(one):
    covered = bytes_of(VIEWS[one])
    shared = {name for name, view in VIEWS.items() if covered & bytes_of(view)}
    assert {name for name in VIEWS if Region(VIEWS[one]).overlaps(Region(VIEWS[name]))} == shared


@pytest.mark.parametrize("one", VIEWS)
def test_two_regions_are_the_same_where_all_of_their_layout_is(one):
    same = {name for name in VIEWS if Region(VIEWS[one]).covers_same(Region(VIEWS[name]))}
    assert same == {one}


def test_tensors_share_storage_where_they_have_one():
    x = torch.eye(2)
    assert same_storage(x, x[0])
    assert not same_storage(x, x.clone())
    assert not same_storage(x.to_sparse(), x.to_sparse())


# -- in a trace ---------------------------------------------------------------------------


def writers_before(run, op="add"):
    """Give the operations for which the last one of a kind waits, each by its number."""
    graph = tbscope.trace(run, torch.ones(8))
    graph.verify()
    node = [node for node in graph.nodes if node.op == op][-1]
    return [f"{writer.op} {writer.name}" for writer in node.control_inputs]


@pytest.mark.parametrize(("begin", "waits"), [(3, ["mul_ 4"]), (4, [])])
def test_views_that_share_their_last_element_alone_wait_for_each_other(begin, waits):
    def run(x):
        whole = x * 2
        left, right = whole[:4], whole[begin:]
        left.mul_(3)
        return right + 1

    assert writers_before(run) == waits


@pytest.mark.parametrize(("second", "waits"), [(4, ["mul_ 3", "mul_ 5"]), (0, ["mul_ 5"])])
def test_a_write_hides_an_earlier_one_of_the_same_part_and_of_no_other(second, waits):
    def run(x):
        whole = x * 2
        whole[:4].mul_(3)
        whole[second : second + 4].mul_(4)
        return whole.view(2, 4) + 1

    assert writers_before(run, "view") == waits


def test_only_writes_after_a_view_was_taken_are_waited_for():
    def run(x):
        whole = x * 2
        whole[:4].mul_(3)
        early, late = whole[:2], whole[2:4]
        whole[:2].mul_(4)
        return early + late

    assert [line.partition(" ")[0] for line in writers_before(run)] == ["mul_"]


def test_each_argument_waits_for_the_writes_since_its_own_value():
    def run(x):
        whole = x * 2
        early = whole[:4]
        whole.mul_(3)
        return torch.sub(x[4:], early)

    assert writers_before(run, "sub") == ["mul_ 3"]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_storage_is_at_the_address_of_one_that_was_written_into_and_is_gone(device):
    build, writes = GraphBuilder(), Writes()
    value = build.op("fill_", build.input("x", (2,)))
    for order in range(100):
        gone = torch.zeros(2, device=device)
        writes.add(value.producer, order, value, gone)
        del gone
        # What C++ makes is not told of before it is read.
        assert writes.touching(torch.zeros(2, device=device), -1) == []


@pytest.mark.parametrize("read", [True, False])
def test_writes_into_memory_that_is_new_again_are_forgotten(read):
    build, writes, tensor = GraphBuilder(), Writes(), torch.zeros(2)
    value = build.op("fill_", build.input("x", (2,)))
    writes.add(value.producer, 1, value, tensor)
    # What an operation gives is new unless it read the same memory.
    before = [tensor.view(1, 2)] if read else [torch.ones(2)]
    writes.forget_fresh([tensor], before)
    assert [write.value for write in writes.touching(tensor, 0)] == ([value] if read else [])


def test_writes_since_one_are_those_after_it():
    build, writes, tensor = GraphBuilder(), Writes(), torch.zeros(4)
    value = build.op("fill_", build.input("x", (4,)))
    for order, part in enumerate((tensor[:2], tensor[2:], tensor[1:3])):
        writes.add(value.producer, order, value, part)
    assert [write.order for write in writes.touching(tensor, 1)] == [2]
    assert [write.order for write in writes.touching(tensor, -1)] == [2, 1, 0]
    assert [write.order for write in writes.touching(tensor[:1], -1)] == [0]
