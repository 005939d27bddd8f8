"""A graph in which every field of every class holds something of its own."""

from tbscope.ir.graph import (
    Argument,
    Body,
    Collective,
    Constant,
    Gradient,
    Graph,
    Measured,
    MeshDimension,
    Module,
    Node,
    Note,
    Output,
    Parameter,
    Part,
    Profile,
    Sharding,
    Source,
    Value,
)
from tbscope.ir.metadata import CallFrame, Function
from tests.build import GraphBuilder


def full() -> Graph:
    """Give a graph in which every field of every class holds something of its own."""
    build = GraphBuilder("Net")
    root = build.call("Net", hyperparameters={"p": 0.5, "kind": Constant("x")})
    x = build.input("x", (None, 2))
    y = build.linear("Net/Linear[fc]", x, 3)
    graph, source = build.graph, Source("net.py", 3, "forward")
    first = build.node("first", y, 2.5, outputs=((3,), ()), dtype="int64", device="cuda:1")
    outer = CallFrame(Function("forward", ((1, 2), (3, 2**60))), None, 1)
    run = CallFrame(Function("", (), nested=True), outer, 2**55)
    node = build.node(
        "all",
        *(x, first.outputs[1], [y, (x,)]),
        options={"k": {"a": y}},
        outputs=(None,),
        scope=build.hand("Net/hand.2"),
        role="view",
        random=True,
        writes=(1, 0),
        phase="backward",
        source=source,
        kernels=["aten::a", "aten::a"],
        attributes={"fact": [1, "b"], "also": ""},
        flops=2**60,
        gradients=(Gradient(3, (0, 1)),),
        allocated_bytes=2**54,
        measured=Measured(1.5, 7, 3),
        run=run,
        step=4,
        collective=Collective("reduce", "sum", (2, 5), "dp", 2**60, 8, 5, "g", 2**33, True, 3),
    )
    node.outputs[0].sharding = spread = Sharding(
        (1, None), ("Shard(0)", "Replicate()"), ("dp", "tp")
    )
    node.control_inputs.append(first)
    node.scope.phase = "optimizer"
    kernel = Node("k", "aten::a", inputs=[x], kernels=["aten::a"], scope=node.scope)
    kernel.outputs.append(Value(kernel, 0, (2,), "float16", "meta"))
    node.body = Body([kernel], [kernel.outputs[0], x], [kernel])
    note = build.op("note", kernel.outputs[0].producer.inputs[0], shape=())
    build.output("out", node.outputs[0])
    graph.outputs.append(Output("more", y, (node,), Value(node, 4, (9,), "bool", "cpu"), "view"))
    graph.notes += [Note("one", source, note.producer, "random"), Note("two")]
    call = graph.calls[0]
    call.source, call.defined, call.number, call.training = source, Source("n", 0, ""), 3, True
    call.run, call.step = outer, 7
    call.caller, call.called_as = node.scope, "layers.1"
    call.qualified_name, call.results = None, [node.outputs[0], Constant("None")]
    call.arguments.append(Argument("x", x))
    owned = Parameter("w", "buffer", None, "int8", 2**60, True, "cuda:0", 4)
    call.parameters = (
        owned,
        owned._replace(device="cpu"),
        owned._replace(number=-1, sharding=spread),
    )
    graph.modules = [Module("", "nets.Net", ()), Module("fc", "Linear", call.parameters)]
    graph.signatures, graph.uncounted = {"all": ("x", None)}, {"aten::a": "why"}
    graph.world_size, graph.mesh = 6, (MeshDimension("dp", 3, 1), MeshDimension("tp", 2, 0))
    graph.parts = (Part((0, 4), "", 2**33, {"flops": 2**60}), Part((2,)))
    graph.rank, graph.profile = 2, Profile(5, 2, 1.5, 2.5, 0.5, "events", 9, 0.25)
    assert root
    return graph
