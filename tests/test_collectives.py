"""What ranks tell each other, as plain data: its text, and what copies and files keep of it."""

from build import GraphBuilder
from expansion import expand
from full_graph import full
from same_graph import differences

from tbscope.ir.metadata import Collective, MeshDimension, Sharding


def joined():
    """Give the graph of a model that does one thing with another rank."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    value = build.op("all_reduce", build.input("x", (2,)), scope=net)
    value.producer.collective = Collective("all_reduce", "sum", (0, 1), "dp", 8, 8)
    value.sharding = Sharding((1,), ("Shard(0)",), ("dp",))
    build.graph.world_size, build.graph.mesh = 2, (MeshDimension("dp", 2, 1),)
    build.returns(net, value)
    build.output("out", value)
    return build.graph


def test_a_collective_prints_with_its_group_and_whom_it_is_with():
    assert str(Collective("all_reduce", "sum", (0, 2), "dp")) == "all_reduce sum over dp (0, 2)"
    assert str(Collective("send", None, (0, 1), peer=1)) == "send over (0, 1), with 1"


def test_a_sharding_prints_the_local_sizes_and_where_they_lie():
    held = Sharding((2, None), ("Shard(0)", "Replicate()"), ("dp", "tp"))
    assert str(held) == "(2, ?) by dp: Shard(0), tp: Replicate()"


def test_a_copy_of_a_graph_tells_the_same_of_its_ranks():
    graph = full()
    # Beside the values of a graph stands one that an output alone names.
    assert [line.split(":")[0] for line in differences(graph, graph.copy())] == [
        "graph.outputs[1].given.producer"
    ]


def test_definitions_expand_to_nodes_that_do_the_same_with_other_ranks():
    graph = joined()
    again = expand(graph.functions())
    assert again.nodes[-1].collective == graph.nodes[-1].collective is not None
    assert again.nodes[-1].outputs[0].sharding == graph.nodes[-1].outputs[0].sharding is not None
    assert (again.world_size, again.mesh) == (2, graph.mesh)
