"""Guests: calls of modules that stand in the box of the module that called them."""

import functools
import re

import pytest
import torch
from torch import nn
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

import tbscope
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures


class Block(nn.Module):
    """A block that is given a part of it, which others have, too."""

    def __init__(self, part):
        super().__init__()
        self.first, self.part, self.last = nn.Linear(4, 4), part, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.part(self.first(x))) + x


class Sharing(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.one, self.two, self.three = Block(part), Block(part), Block(part)

    def forward(self, x):
        return self.three(self.two(self.one(x)))


class Reader(nn.Module):
    """A layer that calls a module which it is given each time."""

    def __init__(self, work):
        super().__init__()
        self.fc, self.work = nn.Linear(4, 4), work

    def forward(self, x, memory):
        return self.work(self, x, memory)


class Reading(nn.Module):
    def __init__(self, work, memory=None, end=lambda x: x):
        super().__init__()
        self.memory = memory or nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([Reader(work) for _ in range(3)])
        self.end = end

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.memory)
        return self.end(x)


def drawn(model, **options):
    return tbscope.to_graph_def(tbscope.trace(model, torch.rand(2, 4)), cards=False, **options)


def names(message):
    """Give the names of all that is no circle, and colours nothing."""
    nodes = [node for node in message.node if "Const" not in node.op]
    return [node.name for node in nodes if "__function_library__" not in node.name]


def cycles(message):
    return [found.node for found in tbscope.lint(message) if found.rule == "box-cycle"]


PARTS = {
    "leaf": nn.GELU,
    "with parameters": nn.PReLU,
    "box": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_that_blocks_share_stands_in_each_of_them(kind):
    message = drawn(Sharing(PARTS[kind]()))
    boxes = {name.partition("/")[0] for name in names(message) if "/part" in name}
    assert boxes == {"one", "two", "three"}
    assert not [name for name in names(message) if "part.1" in name]
    assert cycles(message) == []


@pytest.mark.parametrize("kind", PARTS)
def test_blocks_that_share_a_part_are_equal(kind):
    message = drawn(Sharing(PARTS[kind]()), templates=False)
    counts = {one.box.name: one.count for one in Structures(Hierarchy.of(message)).all}
    assert counts["one"] == 3


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("kind", PARTS)
def test_every_key_of_a_shared_part_that_was_found_is_found(kind, style):
    model = Sharing(PARTS[kind]())
    message = drawn(model, style=style)
    for key, _ in model.named_parameters():
        assert any(
            re.search(f"{key}$", re.sub(r"\w+\[(\w+)\]", r"\1", node.name)) for node in message.node
        )


def test_a_module_that_each_layer_is_given_stands_in_each():
    found = names(drawn(Reading(lambda layer, x, memory: x + memory(layer.fc(x)))))
    assert {f"layers/{at}/memory/1" for at in range(3)} <= set(found)


def test_calls_of_one_caller_are_counted_from_zero():
    found = names(drawn(Reading(lambda layer, x, memory: memory(memory(layer.fc(x)) * 2))))
    for at in range(3):
        assert {f"layers/{at}/memory/1", f"layers/{at}/memory.2nd/1"} <= set(found)


def test_a_caller_that_runs_no_operation_itself_is_known():
    found = names(drawn(Reading(lambda layer, x, memory: memory(layer.fc(x)))))
    assert "layers/2/memory/1" in found


def test_a_caller_that_runs_no_operation_itself_is_known_whatever_it_calls_first():
    found = names(drawn(Reading(lambda layer, x, memory: layer.fc(memory(x)))))
    assert "layers/1/memory/1" in found


def test_a_module_of_which_only_parts_are_called_is_no_caller():
    class Using(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Block(nn.ReLU()), nn.Linear(4, 4)

        def forward(self, x):
            return self.encoder.last(self.head(self.encoder.first(x)))

    assert {"head", "encoder.first", "encoder.last"} <= set(names(drawn(Using())))


class Making(nn.Module):
    """A hypernetwork that makes the weights of each layer of nothing but its own."""

    def __init__(self, work, end=lambda x, made: x):
        super().__init__()
        self.maker = Maker()
        self.layers = nn.ModuleList([Reader(work) for _ in range(3)])
        self.end = end

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, self.maker)
        return self.end(x, self.layers[1].made)


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.seed = nn.Parameter(torch.ones(4, 4))

    def forward(self):
        return self.seed.tanh() * 2


@pytest.mark.parametrize(
    ("end", "stays"),
    [
        (lambda x, made: x, False),
        (lambda x, made: (x, made), True),
        (lambda x, made: x @ made, True),
    ],
)
def test_what_reads_nothing_stands_with_its_caller_if_only_that_reads_it(end, stays):
    def work(layer, x, maker):
        layer.made = maker()
        return x @ layer.made + 1

    found = names(drawn(Making(work, end)))
    assert ("maker.2nd/tanh" in found) is stays
    assert ("layers/1/maker/tanh" in found) is not stays


def test_a_shared_part_at_the_end_of_each_block_stands_in_each_of_them():
    class Last(Block):
        def forward(self, x):
            return self.part(self.first(x))

    model = Sharing(nn.ReLU())
    model.one, model.two, model.three = (Last(model.one.part) for _ in range(3))
    message = drawn(model)
    assert {"one/part", "two/part", "three/part"} <= set(names(message))
    assert cycles(message) == []


def test_a_call_that_reads_only_from_outside_stays_beside_others_that_do_not():
    def work(layer, x, memory):
        made = memory(layer.source) if layer.source is not None else memory(layer.fc(x))
        return layer.fc(made) + x

    class Fed(Reading):
        def forward(self, x):
            for at, layer in enumerate(self.layers):
                layer.source = x * 3 if at == 0 else None
            return super().forward(x)

    found = names(drawn(Fed(work)))
    assert {"memory/1", "layers/1/memory/1", "layers/2/memory/1"} <= set(found)


def test_a_call_at_the_end_of_its_caller_stays_where_nothing_leads_back():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.again = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, head, more):
            x = head(self.fc(x) * 2)
            return self.again(x) if more else x

    class Headed(nn.Module):
        def __init__(self, more):
            super().__init__()
            self.decoder, self.head, self.more = Decoder(), nn.Linear(4, 4), more

        def forward(self, x):
            return self.decoder(x, self.head, self.more)

    for more in (False, True):
        found = names(drawn(Headed(more)))
        assert ("head" in found) is not more
        assert ("decoder/head" in found) is more


def test_a_call_that_reads_only_from_outside_stays():
    shared = nn.Embedding(5, 4)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc = shared, nn.Linear(4, 4)

        def forward(self, ids, inside):
            return self.fc(self.embed(ids.abs() if inside else ids)).relu()

    class Both(nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.shared, self.encoder, self.inside = shared, Encoder(), inside

        def forward(self, ids):
            return self.encoder(ids, self.inside)

    ids = torch.tensor([[1, 2]])
    for inside in (False, True):
        found = names(tbscope.to_graph_def(tbscope.trace(Both(inside), ids), cards=False))
        assert ("shared" in found) is not inside
        assert ("encoder/embed" in found) is inside


@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_guests_stand_in_those_of_their_callers(again):
    class Saving(Sharing):
        def forward(self, x):
            for block in (self.one, self.two, self.three):
                x = checkpoint(block, x, use_reentrant=False) if again else block(x)
            return x

    graph = tbscope.trace(
        Saving(nn.PReLU()), torch.rand(2, 4), backward=True, loss=lambda y: y.sum()
    )
    message = tbscope.to_graph_def(graph, cards=False)
    found = "\n".join(names(message))
    assert "gradients/Saving/two/part/" in found
    assert ("gradients/recomputed/Saving/two/part\n" in found) is again
    assert cycles(message) == []


def test_what_gradients_read_of_a_call_does_not_keep_it_where_it_is():
    def work(layer, x, maker):
        layer.made = maker()
        return x @ layer.made + 1

    graph = tbscope.trace(Making(work), torch.rand(2, 4), backward=True, loss=lambda y: y.sum())
    assert "Making/layers/1/maker/tanh" in names(tbscope.to_graph_def(graph, cards=False))


@pytest.mark.parametrize("level", ["op", "aten"])
def test_a_box_of_kernels_has_no_guests(level):
    class First(Block):
        def forward(self, x):
            return super().forward(nn.functional.normalize(x))

    model = nn.Sequential(First(nn.GELU()), Block(nn.ReLU()))
    graph = tbscope.trace(model, torch.rand(2, 4), kernels=True)
    found = names(tbscope.to_graph_def(graph, level=level, leaves="box", cards=False))
    assert not [name for name in found if "normalize/" in name and "/part" in name]
    assert [name for name in found if name.startswith("Sequential/0/part/")]


def test_calls_of_a_guest_that_call_each_other_stand_together():
    second = nn.Linear(4, 4)

    def work(layer, x, memory):
        return x + second(memory(layer.fc(x)))

    model = Reading(work)
    model.second = second
    message = drawn(model)
    assert {"layers/1/memory/1", "layers/1/second"} <= set(names(message))
    assert cycles(message) == []


def test_guests_stand_in_the_rounds_of_a_loop_of_their_caller():
    def work(layer, x, memory):
        for _ in range(16):
            x = memory(layer.fc(x) * 2) + 1
        return x

    message = drawn(Reading(work))
    rounds = {f"layers/1/step.{at}/{label}" for at in range(16) for label in ("fc", "memory/1")}
    assert rounds <= set(names(message))
    assert cycles(message) == []


class Lending(nn.Module):
    """Calls parts of a module that it holds from outside of that, as it is told."""

    def __init__(self, work, part=nn.ReLU):
        super().__init__()
        self.encoder = Block(part())
        self.decoder = nn.Linear(4, 4)
        self.work = work

    def forward(self, x):
        return self.work(self, self.encoder, x)


# What is drawn of the work, and where its parts stand that are called from outside.
WORK_AROUND = {
    "before": (lambda net, block, x: block(net.decoder(block.part(x))), {"encoder.part"}),
    "after": (lambda net, block, x: block.last(net.decoder(block(x))), {"encoder.last"}),
    "by an operation": (lambda net, block, x: block.last(block(x).neg()), {"encoder.last"}),
    "twice": (
        lambda net, block, x: block(block.last(block.last(x).neg()).exp()),
        {"encoder.last", "encoder.last.2nd"},
    ),
    "both": (
        lambda net, block, x: block.last(net.decoder(block(net.decoder(block.part(x))))),
        {"encoder.part", "encoder.last"},
    ),
}


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("work", WORK_AROUND)
def test_a_part_by_which_its_module_would_read_itself_stands_with_its_caller(work, kind, style):
    model = Lending(WORK_AROUND[work][0], PARTS[kind])
    graph = tbscope.trace(model, torch.rand(2, 4))
    message = tbscope.to_graph_def(graph, cards=False, style=style)
    assert cycles(message) == []
    if style == "tf":
        found = {name.partition("/")[0] for name in names(message)}
        assert {name for name in found if name.startswith("encoder.")} == WORK_AROUND[work][1]


@pytest.mark.parametrize(
    "work",
    [
        lambda net, block, x: net.decoder(block.last(block(x))),
        lambda net, block, x: block.last(x) + net.decoder(x),
        lambda net, block, x: block(block.last(x)),
    ],
)
def test_a_part_stands_where_it_is_held_where_no_box_reads_itself(work):
    assert not [name for name in names(drawn(Lending(work))) if "encoder." in name]


def test_the_gradients_of_a_part_that_stands_with_its_caller_stand_so_too():
    model = Lending(WORK_AROUND["both"][0], PARTS["box"])
    with tbscope.record(model) as recording:
        model(torch.rand(2, 4)).sum().backward()
    found = names(tbscope.to_graph_def(recording.graph, cards=False))
    assert [name for name in found if name.startswith("gradients/Lending/encoder.part/")]
    assert not [name for name in found if name.startswith("gradients/Lending/encoder/part/")]


class Scale(nn.Module):
    """Calls what it is given on something of its own, and on what comes from outside."""

    def __init__(self, gives_both):
        super().__init__()
        self.weight, self.gives_both = nn.Parameter(torch.ones(4)), gives_both

    def forward(self, x, down, up):
        norm = self.weight / up(down(torch.eye(4))).norm()
        low = down(x)
        return norm * up(low), low if self.gives_both else norm


class Adapted(nn.Module):
    def __init__(self, gives_both):
        super().__init__()
        self.down, self.up, self.scale = nn.Linear(4, 2), nn.Linear(2, 4), Scale(gives_both)

    def forward(self, x):
        y, other = self.scale(x, self.down, self.up)
        return y + other.sum()


WAYS_TO_READ = {
    "eager": tbscope.trace,
    "export": lambda model, x: tbscope.from_export(torch.export.export(model, (x,))),
    "TorchScript": lambda model, x: tbscope.from_torchscript(torch.jit.trace(model, x)),
    "compile": lambda model, x: tbscope.compile_graphs(model, x)["0 Adapted.forward"],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS_TO_READ)
def test_what_a_part_is_given_and_calls_on_its_own_stands_in_it_with_its_parameters(way):
    message = tbscope.to_graph_def(WAYS_TO_READ[way](Adapted(False), torch.rand(2, 4)), cards=False)
    found = {name for name in names(message) if re.search("down|up", name)}
    assert len(found) == 4
    assert all("scale/" in name for name in found)
    assert cycles(message) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["eager", "export"])
def test_a_call_that_is_read_outside_too_stays_where_it_is_held(way):
    message = tbscope.to_graph_def(WAYS_TO_READ[way](Adapted(True), torch.rand(2, 4)), cards=False)
    assert {name for name in names(message) if "down" in name} == {"scale/down", "down.2nd"}


class Again(nn.Module):
    """Calls itself, as often as it is told, with work before and after."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, times=3):
        return self(self.fc(x), times - 1).tanh() if times else self.fc(x)


class Tree(nn.Module):
    """Calls itself for each part of a tree; the leaves read the input and nothing else."""

    def __init__(self):
        super().__init__()
        self.leaf, self.join = nn.Linear(4, 4), nn.Linear(8, 4)

    def forward(self, x, tree=((0, 1), (2, (3, 4)))):
        if isinstance(tree, int):
            return self.leaf(x)
        return self.join(torch.cat([self(x, part) for part in tree], -1))


class ByTurns(nn.Module):
    """Two parts that call each other."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        for part, other in ((self.one, self.two), (self.two, self.one)):
            part.forward = functools.partial(self.run, part, other)

    @staticmethod
    def run(part, other, x, times=3):
        x = linear(x, part.weight, part.bias)
        return other(x, times - 1).tanh() if times else x

    def forward(self, x):
        return self.one(x)


@pytest.mark.parametrize("level", ["op", "module", "overview"])
@pytest.mark.parametrize("make", [Again, Tree, ByTurns])
def test_what_calls_itself_stands_in_itself(make, level):
    message = drawn(make(), level=level)
    assert tbscope.lint(message) == []
    tops = {node.name.partition("/")[0] for node in message.node if node.op != "NoOp"}
    (box,) = {top for top in tops if not top.startswith("__")} - {"x", "out"}
    assert box == {Again: "Again", Tree: "Tree", ByTurns: "one"}[make]


def test_calls_of_itself_stand_in_each_other_as_deep_as_they_go():
    names = {node.name for node in drawn(Again(), templates=False).node}
    assert {"Again/fc", "Again/Again/fc", "Again/Again/Again/Again/fc"} <= names
    names = {node.name for node in drawn(Tree(), templates=False).node}
    assert {"Tree/Tree/Tree.2nd/leaf", "Tree/Tree.2nd/Tree.2nd/Tree.2nd/leaf"} <= names


def linear_layer():
    return nn.Linear(4, 4)


class Named(nn.Module):
    """A block whose part has a name of its own, called by `forward` or by another method."""

    def __init__(self, part, name):
        super().__init__()
        self.first, self.name, self.last = linear_layer(), name, linear_layer()
        self.add_module(name, part)

    def encode(self, x):
        return self.last(getattr(self, self.name)(self.first(x)))

    forward = encode


class InARow(nn.Sequential):
    """Calls the methods of its blocks, none of which is called itself."""

    def forward(self, x):
        for block in self:
            x = block.encode(x)
        return x


class Listing(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        for part in self.parts.values() if isinstance(self.parts, nn.ModuleDict) else self.parts:
            x = part(x)
        return x


class Listed(nn.Sequential):
    """A container of the user's with a forward of its own."""

    def forward(self, x):
        return super().forward(x)


def row(*parts):
    return nn.Sequential(linear_layer(), *parts, linear_layer())


# For each model that shares a part the names under which its calls stand, with all around it.
SHARED = {
    "two rows": (lambda p: [row(p), row(p)], "0/1 1/1"),
    "three rows": (lambda p: [row(p), row(p), row(p)], "0/1 1/1 2/1"),
    "at other places": (
        lambda p: [row(linear_layer(), p), row(p), nn.Sequential(p, linear_layer())],
        "0/2 1/1 2/0",
    ),
    "at the ends": (lambda p: [nn.Sequential(linear_layer(), p) for _ in range(2)], "0/1 1/1"),
    "alone": (lambda p: [row(p), nn.Sequential(p)], "0/1 1/0"),
    "alone and deep": (lambda p: [row(p), nn.Sequential(nn.Sequential(p))], "0/1 1/0/0"),
    "twice in each": (lambda p: [row(p, p), row(p, p)], "0/1 0/1.2nd 1/1 1/1.2nd"),
    "nested": (lambda p: [row(row(p)), row(row(p))], "0/1/1 1/1/1"),
    "around and inside": (lambda p: [linear_layer(), p, row(p)], "1 2/1"),
    "rows of the user's": (lambda p: [Listed(*row(p)), Listed(*row(p))], "0/1 1/1"),
    "lists": (
        lambda p: [Listing(nn.ModuleList(row(p))) for _ in range(2)],
        "0/parts/1 1/parts/1",
    ),
    "dicts": (
        lambda p: [
            Listing(nn.ModuleDict({"in": linear_layer(), name: p, "out": linear_layer()}))
            for name in ("act", "relu")
        ],
        "0/parts/act 1/parts/relu",
    ),
    "other names": (lambda p: [Named(p, "act"), Named(p, "relu")], "0/act 1/relu"),
}


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("way", SHARED)
def test_a_part_that_several_contain_stands_in_each_by_the_name_that_it_has_there(way, kind):
    make, expected = SHARED[way]
    model = nn.Sequential(*make(PARTS[kind]()))
    message = drawn(model, templates=False)
    found = {name.removeprefix("Sequential/") for name in names(message)}
    for name in expected.split():
        assert any(f"{one}/".startswith(f"{name}/") for one in found), (name, found)
    assert len({name.partition("/")[0] for name in found}) == len(model) + 2
    assert cycles(message) == []


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_that_methods_of_several_call_stands_in_each(kind):
    part = PARTS[kind]()
    found = names(drawn(InARow(*[Named(part, name) for name in ("act", "relu", "gelu")])))
    for name in ("0/act", "1/relu", "2/gelu"):
        assert any(f"{one}/".startswith(f"InARow/{name}/") for one in found), found


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("way", SHARED)
def test_a_training_step_draws_a_shared_part_in_each_that_contains_it(way, kind):
    model = nn.Sequential(*SHARED[way][0](PARTS[kind]()))
    optimizer = torch.optim.SGD(model.parameters())
    with tbscope.record(model) as recording:
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()
    assert cycles(tbscope.to_graph_def(recording.graph)) == []


def test_a_shared_part_beside_the_one_that_holds_it_stands_in_both():
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            act = nn.ReLU()
            self.a, self.b = (
                nn.Sequential(nn.Linear(4, 4), act),
                nn.Sequential(act, nn.Linear(4, 4)),
            )

        def forward(self, x):
            return self.a(x) + self.b(x)

    assert names(drawn(Beside())) == ["x", "a/0", "a/1", "b/0", "b/1", "add", "out"]


def test_a_part_that_the_model_itself_lends_stays_where_it_is_if_nothing_leads_back():
    class Lending(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 4)
            self.encoder = nn.Sequential(self.embed, nn.ReLU())

        def forward(self, x):
            return self.encoder(x)

    assert {"embed", "encoder/1"} <= set(names(drawn(Lending())))


def test_a_part_that_is_lent_is_called_by_its_path_from_the_module_that_lends_it():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.lora_A = nn.ModuleDict({"default": nn.Linear(4, 4)})
            self.lora_B = nn.ModuleDict({"default": nn.Linear(4, 4)})
            self.magnitude = Reader(lambda layer, x, parts: parts[1](parts[0](layer.fc(x))) + x)

        def forward(self, x):
            return self.magnitude(x, (self.lora_A["default"], self.lora_B["default"]))

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Adapted(), Adapted()

        def forward(self, x):
            return self.two(self.one(x))

    found = names(drawn(Twice()))
    for box in ("one", "two"):
        assert {f"{box}/magnitude/lora_{one}.default" for one in "AB"} <= set(found)


@pytest.mark.parametrize("way", SHARED)
def test_who_called_a_shared_part_survives_a_file(way, tmp_path):
    graph = tbscope.trace(nn.Sequential(*SHARED[way][0](nn.ReLU())), torch.rand(2, 4))
    graph.save(tmp_path / "graph.json")
    again = tbscope.load(tmp_path / "graph.json")
    assert tbscope.to_graph_def(again) == tbscope.to_graph_def(graph)


@pytest.mark.parametrize("way", [way for way in SHARED if way != "twice in each"])
def test_an_exported_program_tells_the_callers_of_a_shared_part(way):
    model, x = nn.Sequential(*SHARED[way][0](nn.ReLU())), torch.rand(2, 4)
    graph = tbscope.from_export(torch.export.export(model, (x,)))
    program = tbscope.to_graph_def(graph, cards=False)
    assert cycles(program) == []
    boxes = [{name.rpartition("/")[0] for name in names(one)} for one in (program, drawn(model))]
    assert boxes[0] == boxes[1]
