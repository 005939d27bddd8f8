"""Graphs made by hand that show, between them, everything that a drawing can hold."""

from build import GraphBuilder

from tbscope.ir.graph import Constant, Graph, Output, Source


def leaf_modules() -> Graph:
    """A small convolutional net of leaf modules, nested twice."""
    build = GraphBuilder("Net")
    build.call("Net")
    build.call("Net/Sequential[features]")
    x = build.input("image", (1, 3, 8, 8))
    conv = build.call(
        "Net/Sequential[features]/Conv2d[0]",
        x,
        class_name="torch.nn.modules.conv.Conv2d",
        hyperparameters={"kernel_size": (3, 3), "stride": (1, 1), "padding": "same"},
    )
    weight = build.parameter("features.0.weight", (4, 3, 3, 3), conv)
    y = build.op("conv2d", x, weight, scope=conv, shape=(1, 4, 8, 8), kernels=["aten::conv2d"])
    build.returns(conv, y)
    act = build.call("Net/Sequential[features]/ReLU[1]", y, hyperparameters={"inplace": True})
    z = build.op("relu_", y, scope=act, source=Source("net.py", 8, "forward"))
    build.returns(act, z)
    flat = build.op("flatten", z, 1, scope=build.scope("Net"), shape=(1, 256))
    build.output("logits", build.linear("Net/Linear[head]", flat, 10))
    return build.graph


def calls_and_hand_scopes() -> Graph:
    """A module called twice with one weight, a scope by hand opened twice, a tied weight."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    ids = build.input("ids", (1, 4), dtype="int64")
    embed = build.call("Net/Embedding[embed]", ids)
    table = build.parameter("embed.weight", (9, 2), embed)
    x = build.op("embedding", ids, table, scope=embed, shape=(1, 4, 2))
    build.returns(embed, x)
    y = build.linear("Net/Linear[fc]", x, 2)
    weight, bias = (node.outputs[0] for node in build.graph.nodes[-3:-1])
    again = build.call("Net/Linear[fc].1", y, qualified_name="fc")
    y = build.op("linear", y, weight, bias, scope=again)
    build.returns(again, y)
    for path in ("Net/residual", "Net/residual.1"):
        scope = build.hand(path)
        y = build.op("add", build.op("mul", y, 0.5, scope=scope), x, scope=scope)
    build.output("logits", build.op("linear", y, table, scope=net, shape=(1, 4, 9)))
    return build.graph


def several_outputs_and_writes() -> Graph:
    """A split whose parts are read one after the other, writes through a view, two devices."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (2, 4))
    first, second = build.node("chunk", x, 2, scope=net, outputs=((1, 4), (1, 4))).outputs
    y = build.op("cat", [first, second], options={"dim": 0}, scope=net, shape=(2, 4))
    view = build.op("getitem", y, (Constant(":"), 0), scope=net, shape=(2,))
    fill = build.node("fill_", view, 1.0, scope=net, outputs=((2,),))
    moved = build.op("to", y, "cuda", scope=net, device="cuda:0", control_inputs=[fill])
    shape = build.op("unique", moved, scope=net, shape=(None,), device="cuda:0", dtype="int64")
    build.node("save", moved, "moved.pt", scope=net)
    build.output("moved", moved)
    build.output("unique", shape)
    build.graph.outputs.append(Output("x", y, (fill,)))
    return build.graph


def odd_names() -> Graph:
    """What TensorBoard's page or TensorFlow's rule would trip over."""
    build = GraphBuilder("constructor")
    x = build.input("batch/ids", (1, 2))
    build.call("constructor")
    pad = build.call("constructor/ConstantPad2d[pad it]", x)
    y = build.op("pad", x, "constant", scope=pad)
    build.returns(pad, y)
    scope = build.hand("constructor/größe")
    for op in ("toString", "NoOp", "scatter_add", "ScalarSummary", "my::op", "relu"):
        y = build.op(op, y, scope=scope)
    y = build.op("valueOf", y)
    build.output("__proto__", y)
    return build.graph


def numbered_layers() -> Graph:
    """Six numbered layers, which TensorBoard would fold, and an activation after each."""
    build = GraphBuilder("Net")
    net = build.call("Net")
    x = build.input("x", (1, 2))
    for index in range(1, 7):
        x = build.op("relu", build.linear(f"Net/Linear[fc{index}]", x, 2), scope=net)
    build.output("out", x)
    return build.graph


GALLERY = {
    made.__name__: made
    for made in (
        leaf_modules,
        calls_and_hand_scopes,
        several_outputs_and_writes,
        odd_names,
        numbered_layers,
    )
}
