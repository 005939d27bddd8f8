"""Partitions: the box of each node and scope, the cycles of boxes, and moves that are undone."""

import pytest
from build import GraphBuilder

from tbscope.ir.placement.partition import Level, Partition


@pytest.fixture
def parts():
    """Two members of a list, with an operation of the net between them; the net is not alone."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    members = build.scope("Net/ModuleList[layers]")
    one, two = (build.call(f"Net/ModuleList[layers]/Block[{at}]") for at in "01")
    start = build.op("exp", build.input("x", (1,)), scope=one)
    between = build.op("neg", start, scope=net)
    end = build.op("sin", between, scope=two)
    after = build.op("cos", end, scope=None)
    build.op("add", end, after, scope=two)
    nodes = [node for node in build.graph.nodes if node.kind == "op"]
    partition = Partition(lambda: [*nodes, *build.graph.scopes()], {})
    return partition, net, members, (one, two), nodes


def is_no_list(scope):
    return scope.kind != "container"


def test_the_units_of_a_level_are_its_operations_and_boxes(parts):
    partition, net, members, (one, _), nodes = parts
    level = Level(partition, net)
    assert list(level.units) == [nodes[1], members]
    assert [level.unit_of(each) for each in (nodes[0], one, nodes[1])] == [
        members,
        members,
        nodes[1],
    ]
    assert level.unit_of(nodes[3]) is None
    assert level.circling() == {members, nodes[1]}


def test_in_scopes_that_are_no_boxes_are_units_of_the_level(parts):
    partition, net, _, (one, two), nodes = parts
    level = Level(partition, net, is_box=is_no_list)
    assert [level.unit_of(each) for each in nodes[:3]] == [one, nodes[1], two]
    assert level.circling() == set()
    # The operation outside reads a member, and that member reads it.
    beyond = Level(partition, net, is_box=is_no_list, deep=True, beyond=True)
    assert beyond.circling() == {two, nodes[3]}


def test_a_move_changes_the_cycles_and_can_be_undone(parts):
    partition, net, members, _, nodes = parts
    level = Level(partition, net)
    back = level.move({nodes[1]: members})
    assert (partition.boxes, level.cycles()) == ({nodes[1]: members}, [])
    assert level.unit_of(nodes[1]) is members
    assert nodes[1] in partition.inside[members]
    level.move(back)
    # A unit in its own scope is in no list of those elsewhere.
    assert partition.boxes == {}
    assert level.circling() == {members, nodes[1]}


def test_members_that_move_out_of_a_box_are_units_beside_it(parts):
    partition, net, members, (one, two), nodes = parts
    level = Level(partition, net)
    assert level.circling() == {members, nodes[1]}
    level.move({one: net, two: net})
    assert [level.unit_of(each) for each in (nodes[0], nodes[2])] == [one, two]
    assert (level.cycles(), level.unit_of(members)) == ([], members)


def test_a_node_moves_out_of_a_box_that_stays_on_a_deep_level(parts):
    partition, net, members, _, nodes = parts
    for deep, circling in ((False, {members, nodes[1]}), (True, set())):
        level = Level(partition, net, deep=deep)
        back = level.move({nodes[0]: net})
        assert level.circling() == circling
        level.move(back)


def test_proposals_are_judged_when_all_are_made_and_undone_one_by_one(parts):
    partition, net, members, (one, two), nodes = parts
    level = Level(partition, net)
    seen = []

    def fits(key):
        seen.append(dict(partition.boxes))
        return key == "second"

    kept = level.settle({"first": {one: net}, "second": {two: net}}, fits)
    assert kept == ["second"]
    assert seen == [{one: net, two: net}] * 2
    assert (partition.boxes, partition.box_of(one)) == ({two: net}, members)
    assert level.unit_of(nodes[0]) is members
