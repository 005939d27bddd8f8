"""Graphs to be saved, small enough that a reader sees what has to be in the file."""

from build import GraphBuilder
from tensorboard.compat.proto.graph_pb2 import GraphDef

import tbscope
from tbscope.ir.graph import Graph
from tbscope.saving.box_tree import Picture


def nested() -> Graph:
    """Give two equal blocks of two layers in a list, with a way around the second one."""
    build = GraphBuilder("Net")
    build.call("Net")
    build.call("Net/Sequential[blocks]", class_name="torch.nn.modules.container.Sequential")
    x = build.input("x", (2, 4))
    for at in range(2):
        build.call(f"Net/Sequential[blocks]/Block[{at}]", class_name="nets.Block")
        y = build.linear(f"Net/Sequential[blocks]/Block[{at}]/Linear[fc]", x, 4)
        scope = build.scope(f"Net/Sequential[blocks]/Block[{at}]", "module")
        z = build.op("relu", y, scope=scope)
        x = build.op("add", x, z, scope=scope)
    build.output("out", x)
    return build.graph


def drawn(nodes: str) -> Picture:
    """Give the picture of nodes written as `name:op<-input,input`, one after the other.

    In names `@` is a colon, and `~` a blank.
    """
    message = GraphDef()
    for text in nodes.split():
        head, _, inputs = text.partition("<-")
        name, _, op = head.partition(":")
        node = message.node.add(name=name.replace("~", " "), op=op or "Op")
        node.input.extend(one.replace("@", ":") for one in inputs.split(",") if one)
    return Picture("hand", message.node)


def net(model, *given):
    """Give the graph of a model."""
    return tbscope.trace(model, given)
