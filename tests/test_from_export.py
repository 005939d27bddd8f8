"""Graphs of exported programs: what they tell is what an eager call of the model tells."""

import itertools

import pytest
import torch
from torch import nn

import tbscope
from tests.agreement import check_whole, disagreements
from tests.program_models import MODELS, TRANSFORMERS, Block, Counting, Tied, example, exported
from tests.sweeps import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

# What torch itself forgets (docs/sources.md tells of it by this name).
FORGOTTEN = {("without gradients", True): "modules in a block without gradients"}


def _export(model, *args, strict=False, **options):
    return torch.export.export(model, args, options.pop("kwargs", None), strict=strict, **options)


# Plain and decomposed models take turns.
EVERY = [*MODELS, *TRANSFORMERS]
FORMS = list(itertools.product(EVERY, [False, True]))


@pytest.mark.parametrize(("name", "decomposed"), sampled(FORMS, [*FORMS[::4], *FORMS[3::4]]))
def test_a_program_tells_what_an_eager_call_tells(name, decomposed):
    eager = example(name)[3]

    graph = tbscope.from_export(exported(name, decomposed=decomposed))

    check_whole(graph)
    if (name, decomposed) in FORGOTTEN:
        assert set(disagreements(eager, graph)) == {"calls", "parameters", "dataflow"}
    else:
        assert disagreements(eager, graph) == {}
    assert [node.name for node in graph.inputs] == [node.name for node in eager.inputs]
    assert [output.name for output in graph.outputs] == [output.name for output in eager.outputs]


@pytest.mark.parametrize("name", sampled(EVERY, EVERY[::2]))
def test_a_program_counts_the_flops_of_an_eager_call(name):
    eager, graph = example(name)[3], tbscope.from_export(exported(name))

    assert tbscope.costs(graph).total.flops == tbscope.costs(eager).total.flops > 0


@pytest.mark.parametrize("name", ["resnet", "buffers", "keywords"])
def test_modules_and_parameters_are_those_of_the_model(name):
    eager, graph = example(name)[3], tbscope.from_export(exported(name))

    told, known = {}, {}
    for kept, each in ((told, graph), (known, eager)):
        kept.update({module.name: module.parameters for module in each.modules})
    assert {name: told[name] for name in known} == known
    assert {call.qualified_name: call.parameters for call in graph.calls if call.parameters} == {
        call.qualified_name: call.parameters for call in eager.calls if call.parameters
    }


# -- calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_each_call_of_a_module_has_a_scope_of_its_own(strict):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.fd = nn.Linear(4, 4)

        def forward(self, x):
            return self.fd(self.fc(self.fc(x)))

    graph = tbscope.from_export(_export(Net(), torch.ones(1, 4), strict=strict))

    assert [call.scope.path for call in graph.calls] == [
        "Net",
        "Net/Linear[fc]",
        "Net/Linear[fc].1",
        "Net/Linear[fd]",
    ]


class Named(nn.Module):
    """Calls a block by two names, and a leaf by two more."""

    def __init__(self):
        super().__init__()
        self.block, self.act = nn.Sequential(nn.Linear(4, 4)), nn.GELU()
        self.again, self.end = nn.ModuleDict({"b": self.block}), self.act

    def forward(self, x):
        x = self.block(self.act(self.block(x)))
        return self.end(self.again["b"](x))


@pytest.mark.parametrize("strict", [False, True])
def test_a_module_with_two_names_has_a_scope_for_each_with_its_parts(strict):
    graph = tbscope.from_export(_export(Named(), torch.ones(1, 4), strict=strict))

    found = [call.scope.path.removeprefix("Named/") for call in graph.calls[1:]]
    assert found == [
        *("Sequential[block]", "Sequential[block]/Linear[0]", "GELU[act]"),
        *("Sequential[block].1", "Sequential[block].1/Linear[0]"),
        *("Module[again]/Sequential[b]", "Module[again]/Sequential[b]/Linear[0]", "GELU[end]"),
    ]


def test_what_a_branch_calls_of_its_model_is_a_part_of_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.fd = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.fd(x) + 1, lambda x: x - 1, (self.fc(x),))

    graph = tbscope.from_export(_export(Net(), torch.ones(1, 4), strict=True))

    assert [call.scope.path for call in graph.calls] == [
        *("Net", "Net/Linear[fc]", "Net/true_graph_0/Linear[fd]"),
    ]
    (sub,) = [node for node in graph.nodes if node.op == "sub"]
    assert sub.scope.path == "Net/false_graph_0"


def test_a_layer_that_is_called_from_outside_stands_in_its_holder():
    eager, graph = example("called twice")[3], tbscope.from_export(exported("called twice"))

    paths = [call.scope.path for call in graph.calls]
    assert paths == [call.scope.path for call in eager.calls]
    assert paths[-1] == "Twice/Block[other]/Linear[fc].1"


def test_a_layer_called_before_its_holder_shares_its_scope():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(self.block.fc(x))

    graph = tbscope.from_export(_export(Net(), torch.ones(2, 4)))

    eager = tbscope.trace(Net(), torch.ones(2, 4))
    assert {call.scope.path for call in graph.calls} == {call.scope.path for call in eager.calls}


def test_a_holder_that_is_never_called_has_the_class_that_its_parts_suggest():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.listed = nn.ModuleList([nn.Linear(2, 2)])
            self.named = nn.ModuleDict({"one": nn.Linear(2, 2)})

        def forward(self, x):
            return self.named["one"](self.listed[0](x))

    graph = tbscope.from_export(_export(Net(), torch.ones(1, 2)))

    assert [call.scope.path for call in graph.calls[1:]] == [
        "Net/ModuleList[listed]/Linear[0]",
        "Net/Module[named]/Linear[one]",
    ]


def test_arguments_and_results_of_a_call_are_what_enters_and_leaves_it():
    graph = tbscope.from_export(exported("lstm"))

    lstm = graph.find("lstm")
    assert [argument.nest.shape for argument in lstm.arguments] == [(2, 5, 6)]
    assert [value.shape for value in lstm.results] == [(2, 5, 7), (1, 2, 7), (1, 2, 7)]
    root = graph.calls[0]
    assert [argument.name for argument in root.arguments] == ["tokens"]
    assert [value.shape for value in root.results] == [(2, 5, 2), (1, 2, 7)]


def test_an_operation_knows_its_line():
    graph = tbscope.from_export(exported("resnet"))

    (joined,) = [node for node in graph.nodes if node.op == "flatten"]
    assert joined.source.function == "forward"
    assert joined.source.file.endswith("program_models.py")
    # An operation of torch's own module stands in the line that called the module.
    (fc,) = [node for node in graph.nodes if node.op == "linear"]
    assert fc.source == joined.source == graph.find("fc").source


# -- state ---------------------------------------------------------------------------------


def test_tied_weights_are_one_node_under_the_first_name():
    graph = tbscope.from_export(exported("tied weights"))

    names = [node.name for node in graph.nodes if node.kind == "parameter"]
    assert names == ["embed.weight", "body.weight", "body.bias"]
    numbers = {
        f"{module.name}.{own.name}": own.number
        for module in graph.modules
        for own in module.parameters
    }
    assert numbers["embed.weight"] == numbers["head.weight"] != numbers["body.weight"]
    # What a module holds does not enter it, also where it stands in another one.
    assert [argument.nest.shape for argument in graph.find("head").arguments] == [(2, 5, 4)]


def test_equal_weights_that_are_not_tied_are_two_nodes():
    class Net(Tied):
        def __init__(self):
            super().__init__()
            self.head.weight = nn.Parameter(self.embed.weight.detach().clone())

    graph = tbscope.from_export(_export(Net(), torch.zeros(1, 2, dtype=torch.long)))

    names = {node.name for node in graph.nodes if node.kind == "parameter"}
    assert {"embed.weight", "head.weight"} <= names


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_write_into_a_buffer_is_told(decomposed):
    graph = tbscope.from_export(exported("buffers", decomposed=decomposed))

    written = {
        value.producer.name
        for node in graph.nodes
        for place, value in enumerate(node.inputs)
        if place in node.writes
    }
    assert {"steps", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} == written
    assert not [node for node in tbscope.from_export(exported("resnet")).nodes if node.writes]


def test_what_is_read_after_a_write_is_the_new_value():
    graph = tbscope.from_export(exported("buffers"))

    (add,) = [node for node in graph.nodes if node.op == "add_" and node.outputs[0].shape == (1,)]
    (mul,) = [node for node in graph.nodes if node.op == "mul"]
    assert mul.inputs[1] is add.outputs[0]


def test_what_is_read_through_a_view_waits_for_the_writer():
    class Net(nn.Module):
        def forward(self, x):
            y = x + 1
            head = y[0]
            head.mul_(2)
            return y.sum(), x.sum()

    graph = tbscope.from_export(_export(Net(), torch.ones(2, 4)))

    (mul,) = [node for node in graph.nodes if node.op == "mul_"]
    of_y, of_x = [node for node in graph.nodes if node.op == "sum"]
    assert of_y.control_inputs == [mul]
    assert of_x.control_inputs == []


def test_what_is_read_after_a_write_into_one_of_several_views_waits_for_the_writer():
    class Net(nn.Module):
        def forward(self, x):
            y = x + 1
            y.split(1)[1].mul_(2)
            return y.sum()

    graph = tbscope.from_export(_export(Net(), torch.ones(2, 4)))

    (mul,) = [node for node in graph.nodes if node.op == "mul_"]
    (total,) = [node for node in graph.nodes if node.op == "sum"]
    assert total.control_inputs == [mul]


def test_what_reads_the_written_value_itself_does_not_wait_for_its_writer_besides():
    class Net(nn.Module):
        def forward(self, x):
            y = x + 1
            head = y[0]
            head.mul_(2)
            return y - head

    graph = tbscope.from_export(_export(Net(), torch.ones(2, 4)))

    (sub,) = [node for node in graph.nodes if node.op == "sub"]
    assert [value.producer.op for value in sub.inputs] == ["add", "mul_"]
    assert sub.control_inputs == []


def test_a_write_into_an_input_is_told():
    class Net(nn.Module):
        def forward(self, x, y):
            x.add_(1)
            return x * y

    program = _export(Net(), torch.ones(2), torch.ones(2)).run_decompositions()
    graph = tbscope.from_export(program)

    (copy,) = [node for node in graph.nodes if node.op == "copy_"]
    assert copy.writes == (0,)
    assert copy.inputs[0].producer.name == "x"
    assert len(copy.outputs) == 1


def test_a_constant_has_its_name_and_its_content():
    graph = tbscope.from_export(exported("without gradients"))

    (shift,) = [node for node in graph.nodes if node.kind == "constant"]
    assert (shift.name, shift.attributes) == ("shift", {"value": [1.0, 2.0]})


def test_what_nothing_reads_has_no_node():
    model = Counting()
    model.register_buffer("idle", torch.zeros(3))

    graph = tbscope.from_export(_export(model, torch.ones(2, 4)))

    assert "idle" not in {node.name for node in graph.nodes}
    assert "idle" in {own.name for own in graph.modules[0].parameters}


# -- shapes --------------------------------------------------------------------------------


def test_a_symbolic_size_is_not_known_and_told_by_its_formula():
    class Net(nn.Module):
        def forward(self, x):
            return torch.cat([x, x])

    batch = torch.export.Dim("batch")
    program = _export(Net(), torch.ones(2, 4), dynamic_shapes={"x": {0: batch}})
    symbol = program.graph_module.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]
    graph = tbscope.from_export(program)

    (x,), (out,) = graph.inputs, graph.outputs
    assert (x.outputs[0].shape, out.value.shape) == ((None, 4), (None, 4))
    assert x.attributes["symbolic_shape"] == f"({symbol}, 4)"
    assert out.value.producer.attributes["symbolic_shape"] == f"(2*{symbol}, 4)"
    check_whole(graph)


def test_known_sizes_have_no_formula():
    graph = tbscope.from_export(exported("resnet"))

    assert not [node for node in graph.nodes if "symbolic_shape" in node.attributes]


def test_sizes_in_arguments_are_told_by_their_formulas():
    class Net(nn.Module):
        def forward(self, x):
            return x.reshape(x.shape[0] * 2, 2)

    program = _export(
        Net(), torch.ones(3, 4), dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}}
    )
    symbol = program.graph_module.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0]
    graph = tbscope.from_export(program)

    (node,) = [node for node in graph.nodes if node.kind == "op"]
    assert str(node.arguments[1].nest) == f"[2*{symbol}, 2]"


def test_flops_of_sizes_that_are_not_known_are_said_to_be_unknown():
    program = _export(
        nn.Linear(3, 3), torch.ones(2, 3), dynamic_shapes={"input": {0: torch.export.Dim("b")}}
    )

    graph = tbscope.from_export(program)

    assert [node.flops for node in graph.nodes if node.op == "linear"] == [None]
    assert set(graph.uncounted) == {"aten::linear"}
    relu = _export(nn.ReLU(), torch.ones(2), dynamic_shapes={"input": {0: torch.export.Dim("b")}})
    assert [node.flops for node in tbscope.from_export(relu).nodes if node.op == "relu"] == [0]


def test_a_number_that_python_reads_is_told():
    class Net(nn.Module):
        def forward(self, x):
            size = x.sum().item()
            torch._check(size >= 0)
            return torch.zeros(3) + size

    graph = tbscope.from_export(_export(Net(), torch.tensor([1, 2])))

    (note,) = [note for note in graph.notes if note.topic == "python"]
    assert "by item()" in note.text
    assert note.node.op == "sum"


# -- bodies --------------------------------------------------------------------------------


def test_both_branches_stand_in_scopes_and_give_their_results_to_cond():
    graph = tbscope.from_export(exported("branches"))

    scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert scopes["sin"] == "Branching/true_graph_0"
    assert scopes["cos"] == "Branching/false_graph_0"
    assert scopes["cond"] == "Branching"
    (cond,) = [node for node in graph.nodes if node.op == "cond"]
    readers = {value.producer.op for value in cond.inputs}
    assert readers == {"gt", "linear", "add", "cos"}


def test_the_body_of_a_loop_stands_in_a_scope():
    from torch._higher_order_ops.while_loop import while_loop

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, count, x):
            def body(count, x):
                return count - 1, self.fc(x)

            return while_loop(lambda count, x: count > 0, body, (count, x))

    graph = tbscope.from_export(_export(Net(), torch.tensor(3), torch.ones(2, 2)))

    check_whole(graph)
    scopes = {node.op: node.scope.path for node in graph.nodes if node.kind == "op"}
    assert scopes["gt"] == "Net/while_loop_cond_graph_0"
    assert scopes["linear"].startswith("Net/while_loop_body_graph_0")
    (loop,) = [node for node in graph.nodes if node.op == "while_loop"]
    assert [value.shape for value in loop.outputs] == [(), (2, 2)]
    assert {"gt", "sub", "linear"} <= {value.producer.op for value in loop.inputs}


def test_the_body_of_a_scan_reads_what_the_operation_is_given():
    from torch._higher_order_ops.scan import scan

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, start, xs):
            return scan(lambda carry, x: (carry + x, carry * self.fc(x)), start, xs)

    graph = tbscope.from_export(_export(Net(), torch.ones(4), torch.ones(3, 4)))

    check_whole(graph)
    (add,) = [node for node in graph.nodes if node.op == "add"]
    assert add.inputs == [graph.find("start").outputs[0], graph.find("xs").outputs[0]]
    # It is given a row of three in each turn.
    (linear,) = [node for node in graph.nodes if node.op == "linear"]
    assert linear.flops == 2 * 4 * 4


def test_a_block_without_gradients_leaves_no_trace():
    graph = tbscope.from_export(exported("without gradients"))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "linear", "add"]
    assert graph.find("fc").scope.path == "Quiet/Linear[fc]"


# -- roles ---------------------------------------------------------------------------------


def test_views_and_casts_are_said_to_be_such():
    class Net(nn.Module):
        def forward(self, x):
            y = x.reshape(4, 2).to(torch.float64).clone()
            return y.sin() + torch.arange(2)

    graph = tbscope.from_export(_export(Net(), torch.ones(2, 4)))

    assert {node.op: node.role for node in graph.nodes if node.kind == "op"} == {
        "reshape": "view",
        "to": "cast",
        "clone": "copy",
        "sin": None,
        "arange": "maker",
        "add": None,
    }


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_random_where_it_drops(training):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).train(training)

    graph = tbscope.from_export(_export(model, torch.ones(1, 2)))

    assert [node.random for node in graph.nodes if node.op == "dropout"] == [training]


def test_what_gives_back_what_it_got_is_no_operation_but_where_it_is_all_of_a_call():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            y = (x + 1).to(torch.float32)
            return self.drop(y) * 2

    graph = tbscope.from_export(_export(Net().eval(), torch.ones(2, 2)))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["add", "dropout", "mul"]


class Casting(nn.Module):
    """Casts what it is given to what it is already; does more before, after or inside of it."""

    def __init__(self, more):
        super().__init__()
        self.more = more
        self.act = nn.ReLU()

    def forward(self, x):
        x = x * 3 if self.more == "before" else x
        x = self.act(x) if self.more == "inside before" else x
        y = self.act(x.float()) if self.more == "inside after" else x.float()
        return y * 2 if self.more == "after" else y.float()


class Residual(nn.Module):
    """Reads what a part was given a second time."""

    def __init__(self, part):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.part = part

    def forward(self, x):
        x = self.fc(x)
        return x + self.part(x)


@pytest.mark.parametrize("more", ["before", "inside before", "inside after", "after"])
def test_what_gives_back_what_it_got_is_no_operation_wherever_it_stands_in_its_call(more):
    model, x = Residual(Casting(more)), torch.ones(2, 4)

    graph = tbscope.from_export(_export(model, x))

    assert "to" not in {node.op for node in graph.nodes}
    assert disagreements(tbscope.trace(model, x), graph) == {}


def test_the_last_of_what_gives_back_what_it_got_stands_for_a_call_that_does_no_more():
    graph = tbscope.from_export(_export(Residual(Casting("nothing")), torch.ones(2, 4)))

    nodes = [(node.op, node.scope.path) for node in graph.nodes if node.kind == "op"]
    assert nodes == [
        ("linear", "Residual/Linear[fc]"),
        ("to", "Residual/Casting[part]"),
        ("add", "Residual"),
    ]


class CastingTwice(nn.Module):
    """Does nothing twice."""

    def forward(self, x):
        return nn.functional.dropout(x.float(), training=False)


class Waiting(nn.Module):
    """Reads what a part gave after it has done something else."""

    def __init__(self):
        super().__init__()
        self.part = CastingTwice()

    def forward(self, x):
        y = self.part(x)
        return x.sin() + y


def test_what_gives_back_what_it_got_stands_where_its_call_ended():
    graph = tbscope.from_export(_export(Waiting(), torch.ones(2, 4)))

    nodes = [(node.op, node.scope.path) for node in graph.nodes if node.kind == "op"]
    assert nodes == [
        ("dropout", "Waiting/CastingTwice[part]"),
        ("sin", "Waiting"),
        ("add", "Waiting"),
    ]


# -- what it is given ----------------------------------------------------------------------


def test_load_and_add_graph_know_a_program(tmp_path):
    program = exported("resnet")

    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        drawn = writer.add_graph(program)

    assert str(drawn) == str(tbscope.load(program)) == str(tbscope.from_export(program))


def test_inputs_for_a_program_are_refused(tmp_path):
    with (
        tbscope.SummaryWriter(tmp_path) as writer,
        pytest.raises(tbscope.ArgumentError, match=r"input_to_model=.* is given with the graph"),
    ):
        writer.add_graph(exported("resnet"), torch.ones(1))


@pytest.mark.parametrize("thing", [nn.Linear(2, 2), "nothing.pt2", 3, None])
def test_load_refuses_what_holds_no_graph(thing):
    with pytest.raises(tbscope.ArgumentError, match="contains no graph"):
        tbscope.load(thing)


def test_from_export_refuses_what_is_no_program():
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_export(nn.Linear(2, 2))

    assert str(caught.value) == (
        "from_export was given Linear(in_features=2, out_features=2, bias=True)\n"
        "  why: it takes an ExportedProgram, or the path of a .pt2 file\n"
        "  fix: tbscope.from_export(torch.export.export(model, (x,)))"
    )


def test_reading_a_program_leaves_it_as_it_was():
    program = exported("buffers")
    before = str(program), {name: value.clone() for name, value in program.state_dict.items()}

    tbscope.from_export(program)

    assert str(program) == before[0]
    assert all(torch.equal(program.state_dict[name], value) for name, value in before[1].items())
