"""What a run tells that no drawing shows: each kind of note, and when there is none."""

import os
import re
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import tbscope
from tests.zoo.models import build, catalogue


def notes(model, *given, topic=None, **options):
    """Trace, and give the texts of the notes, of one topic if that is asked for."""
    graph = tbscope.trace(model, given, **options)
    return [note.text for note in graph.notes if topic in (None, note.topic)]


def quiet(model, *given, **options):
    """Tell whether nothing is noted but what FLOPs leave out."""
    graph = tbscope.trace(model, given, **options)
    return {note.topic for note in graph.notes} <= {"flops"}


X = torch.ones(2, 3)

# -- what Python read ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda x: x if x.sum() > 0 else -x, "decided on the value of %2 (gt) by bool()"),
        (lambda x: x if torch.equal(x, x) else -x, "decided on the value of %x (input) by equal()"),
        (lambda x: x * x.max().item(), "read the value of %1 (max) by item()"),
        (lambda x: x * int(x.sum()), "read the value of %1 (sum) by int()"),
        (lambda x: x * float(x.sum()), "read the value of %1 (sum) by float()"),
        (lambda x: x * len(x.tolist()), "read the value of %x (input) by tolist()"),
        (lambda x: x * x.numpy().size, "read the value of %x (input) by numpy()"),
        (lambda x: x * len(range(x.long().sum())), "read the value of %2 (sum) by __index__()"),
    ],
)
def test_what_python_read_is_told_in_one_sentence(read, text):
    assert notes(read, X, topic="python") == [f"Python {text}"]


def test_reading_a_shape_is_no_reading_of_values():
    assert quiet(lambda x: x * x.shape[0] * x.numel() * len(x), X)


def test_a_line_that_reads_often_has_one_note_with_a_count():
    def run(x):
        for row in x.repeat(500, 1):
            if row.sum() > 0:
                x = x + 1
        for _ in range(3):
            x.tolist()
        return x

    graph = tbscope.trace(run, X)
    decided, read = (note for note in graph.notes if note.topic == "python")
    assert decided.text.endswith("(gt) and of 999 more by bool()")
    assert read.text.endswith("(add), 3 times, by tolist()")
    assert os.path.basename(decided.source.file) == "test_notes.py"
    assert decided.node.attributes["read_by_python"].startswith("bool at ")


def test_two_lines_that_read_have_two_notes():
    def run(x):
        one = x.sum().item()
        return x * one * x.neg().sum().item()

    assert len(notes(run, X, topic="python")) == 2


def test_every_operation_that_python_decided_on_stays_drawn():
    def run(x):
        for row in x:
            if row.sum() > 0:
                x = x + 1
        return x

    graph = tbscope.trace(run, X)
    drawn = tbscope.to_graph_def(graph, dead="drop")
    assert sum(node.op == "gt" for node in drawn.node) == 2


def test_no_operation_that_python_read_can_be_hidden():
    def run(x, read):
        for _ in range(2):
            most = x.max()
            x = x * most
            if read:
                most.item()
        return x

    hidden, read = (tbscope.trace(run, (X, flag)) for flag in (False, True))
    drawn = tbscope.to_graph_def(hidden, hide=["max"])
    assert not any(node.op == "max" for node in drawn.node)
    with pytest.raises(tbscope.ArgumentError, match="that can be left out"):
        tbscope.to_graph_def(read, hide=["max"])


# -- what was not used ---------------------------------------------------------------------


def test_inputs_that_no_operation_reads_are_told():
    caches = [(X * 2, X * 3), (X * 4, X * 5)]
    assert notes(lambda x, y, caches: x + 1, X, X * 6, caches, topic="unused") == [
        "no operation reads the input y",
        "no operation reads the 4 inputs caches.*.*",
    ]


def test_an_input_that_goes_out_as_it_came_in_is_used():
    assert quiet(lambda x, y: (x + 1, y), X, X * 2)


def test_an_input_that_only_python_reads_is_used():
    assert notes(lambda x, y: x + len(y.tolist()), X, X * 2, topic="unused") == []
    assert notes(lambda x, y: x + 1 if y.all().item() else x, X, X * 2, topic="unused") == []


def test_an_input_that_is_only_written_into_is_used():
    assert quiet(lambda x, y: (y.zero_(), x + 1)[1], X, X * 2)


class Parts(nn.Module):
    """Holds what the test gives it, and runs only its first part."""

    def __init__(self, **parts):
        super().__init__()
        self.first = nn.Linear(3, 3)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.first(x)


def linears(count, size=3):
    return [nn.Linear(size, size) for _ in range(count)]


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ({}, []),
        ({"head": nn.Linear(3, 3)}, ["nothing ran in head (Linear), which has 12 parameters"]),
        (
            {"blocks": nn.ModuleList(linears(500))},
            ["nothing ran in blocks (ModuleList), which has 6,000 parameters"],
        ),
        (
            {"loss": nn.CrossEntropyLoss()},
            ["nothing ran in loss (CrossEntropyLoss)"],
        ),
        ({"extra": nn.Parameter(X)}, ["no operation reads the parameter extra (6 numbers)"]),
        (
            {"extra": (shared := nn.Parameter(X)), "same": shared},
            ["no operation reads the parameter extra (6 numbers)"],
        ),
        (
            {"lazy": nn.LazyLinear(3)},
            ["nothing ran in lazy (LazyLinear)"],
        ),
        (
            {"table": nn.ParameterList([X, X * 2])},
            ["nothing ran in table (ParameterList), which has 12 parameters"],
        ),
        (
            {"small": nn.Linear(1, 1), "large": nn.Linear(9, 9)},
            [
                "nothing ran in large (Linear), which has 90 parameters",
                "nothing ran in small (Linear), which has 2 parameters",
            ],
        ),
    ],
)
def test_modules_and_parameters_that_were_not_used_are_told(parts, texts):
    assert notes(Parts(**parts), X) == texts


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleList(linears(8)) for _ in range(4)])
        self.expert_1, self.expert_2 = linears(2)
        self.shift = nn.ParameterList([nn.Parameter(X * 1) for _ in range(4)])

    def forward(self, x):
        for layer in self.layers:
            x = layer[0](layer[1](x))
        return x + self.shift[0]


def test_alike_modules_and_parameters_have_one_note_with_a_count():
    assert notes(Experts(), X, topic="unused") == [
        "nothing ran in 24 modules layers.*.* (Linear), which have 288 parameters",
        "nothing ran in 2 modules expert_* (Linear), which have 24 parameters",
        "no operation reads the 3 parameters shift.* (18 numbers)",
    ]


def test_what_differs_by_a_number_at_its_end_has_one_note():
    parts = {f"part{place}": nn.Linear(3, 3) for place in range(33)}
    parts |= {f"extra{place}": nn.Parameter(X) for place in range(33)}
    parts |= {f"p{place}": nn.Tanh() for place in range(33)}
    assert notes(Parts(**parts), X, topic="unused") == [
        "nothing ran in 33 modules part* (Linear), which have 396 parameters",
        "nothing ran in 33 modules p* (Tanh)",
        "no operation reads the 33 parameters extra* (198 numbers)",
    ]


def test_a_tied_parameter_that_is_read_under_another_name_is_used():
    net = Parts(head=nn.Linear(3, 3, bias=False))
    net.head.weight = net.first.weight
    assert notes(net, X) == ["nothing ran in head (Linear)"]


def test_a_module_whose_parameters_are_read_without_a_call_is_used():
    assert quiet(nn.MultiheadAttention(8, 2), *[torch.rand(3, 1, 8)] * 3)


def test_a_parameter_that_is_named_like_an_input_is_found():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * self.x

    assert quiet(Scaled(), X)


def test_buffers_that_nothing_reads_are_no_news():
    net = Parts()
    net.register_buffer("position_ids", torch.arange(5))
    assert notes(net, X) == []
    assert quiet(nn.BatchNorm1d(3), X)


def test_a_region_that_raised_tells_nothing_of_what_was_not_used():
    net = Parts(head=nn.Linear(3, 3))
    recording = tbscope.record(net)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), recording:
        net(torch.ones(2, 9))
    assert recording.graph.notes == []


def test_a_run_that_ended_early_tells_nothing_of_what_was_not_used():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 5), nn.Linear(5, 5))
    graph = tbscope.trace(net, X, partial=True)
    (note,) = graph.notes
    assert note.text.startswith("the run ended here: RuntimeError: ")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda net: net,
        torch.jit.script,
        torch.compile,
        lambda net: nn.Sequential(nn.utils.parametrizations.weight_norm(net[0]), net[1]),
        nn.DataParallel,
        torch.vmap,
    ],
    ids=["plain", "scripted", "compiled", "parametrised", "in parallel", "vmap"],
)
def test_all_parts_of_a_model_that_runs_whole_are_used_however_it_is_wrapped(wrap):
    net = wrap(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    assert notes(net, X, topic="unused") == []
    # A scripted module computes on no stand-ins.
    if not isinstance(net, torch.jit.ScriptModule):
        assert notes(net, X, topic="unused", fake=True) == []


def test_a_lazy_module_uses_what_it_makes():
    assert quiet(nn.LazyLinear(4), X)


def test_a_method_leaves_the_parts_that_it_does_not_run():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = linears(2)

        def encode(self, x):
            return self.encoder(x)

    assert notes(Pair().encode, X) == ["nothing ran in decoder (Linear), which has 12 parameters"]


def test_parameters_for_which_others_stand_in_are_not_called_unread():
    net = nn.Sequential(*linears(2))
    given = {name: torch.zeros_like(each) for name, each in net.named_parameters()}
    run = lambda weights, x: functional_call(net, weights, (x,))
    assert notes(run, given, X, topic="unused") == []
    # Near miss: what stands in for one says nothing of another, which nothing reads.
    net[1].register_parameter("spare", nn.Parameter(torch.ones(2)))
    spare = ["no operation reads the parameter 1.spare (2 numbers)"]
    assert notes(run, given, X, topic="unused") == spare


def test_a_list_of_parameters_for_which_others_stand_in_is_not_called_idle():
    class Listing(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([torch.ones(3), torch.ones(3)])

        def forward(self, x):
            return x * self.scales[0]

    net = Listing()
    given = {"scales.0": torch.zeros(3), "scales.1": torch.zeros(3)}
    run = lambda weights, x: functional_call(net, weights, (x,))
    assert notes(run, given, X, topic="unused") == ["no operation reads the input weights.scales.1"]


def test_a_parameter_that_is_made_in_the_run_and_read_is_not_called_unread():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = (nn.Parameter(torch.zeros(3)) for _ in range(2))

        def forward(self, x):
            return x * self.used

    def run(x):
        return Two()(x)

    spare = ["no operation reads the parameter spare (3 numbers)"]
    assert notes(run, X, topic="unused") == spare


def test_each_parameter_that_is_added_in_the_run_and_never_read_is_told():
    class Growing(Parts):
        def forward(self, x):
            self.one, self.two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
            return self.first(x)

    assert notes(Growing(), X, topic="unused") == [
        "no operation reads the parameter one (2 numbers)",
        "no operation reads the parameter two (3 numbers)",
    ]


def test_a_parameter_of_two_modules_in_which_nothing_ran_counts_once():
    head, tail = linears(2)
    tail.weight = head.weight
    assert notes(Parts(head=head, tail=tail), X, topic="unused") == [
        "nothing ran in head (Linear), which has 12 parameters",
        "nothing ran in tail (Linear), which has 3 parameters",
    ]


def test_a_recording_tells_of_the_models_that_it_was_given():
    used, unused = linears(2)
    with tbscope.record(used=used, unused=unused) as recording:
        used(X)
    assert [note.text for note in recording.graph.notes] == [
        "nothing ran in unused (Linear), which has 12 parameters"
    ]


@pytest.mark.parametrize(
    "name", ["BertModel", "XLNetModel", "JambaModel", "SwitchTransformersForConditionalGeneration"]
)
def test_a_real_model_in_training_uses_all_that_gets_a_gradient(name):
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = build(entry)
        model = example.model.train()
        torch.manual_seed(0)
        graph = tbscope.trace(model, example.inputs, training=True)
        torch.manual_seed(0)
        results = [one for one in model(**example.inputs).values() if torch.is_tensor(one)]
    sum(one.sum() for one in results).backward()
    without = [one for one in model.parameters() if one.grad is None]
    told = " ".join(note.text for note in graph.notes if note.topic == "unused")
    counts = re.findall(r"ha(?:s|ve) ([\d,]+) parameters|\(([\d,]+) numbers\)", told)
    assert sum(int("".join(pair).replace(",", "")) for pair in counts) == sum(
        one.numel() for one in without
    )


# -- what is random ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "given", "text"),
    [
        (nn.Dropout(0.5), (X,), "dropout"),
        (nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2)), (X,), "dropout x2"),
        (lambda x: x + torch.rand(3) + torch.randn_like(x), (X,), "rand, randn_like"),
        (lambda x: torch.multinomial(x, 1), (X,), "multinomial"),
        (lambda x: x.clone().bernoulli_(0.5), (X,), "bernoulli_"),
        (functional.gumbel_softmax, (X,), "gumbel_softmax"),
        (nn.RReLU(), (X,), "rrelu"),
        (nn.LSTM(3, 4, 2, dropout=0.5), (X,), "lstm"),
    ],
)
def test_what_drew_random_numbers_is_told(model, given, text):
    assert notes(model, *given, training=True, topic="random") == [
        f"random numbers were drawn by {text}"
    ]


def attention(dropout_p):
    return lambda q: functional.scaled_dot_product_attention(q, q, q, dropout_p=dropout_p)


@pytest.mark.parametrize(("train", "count"), [(True, 1), (None, 1), (False, 0)])
@pytest.mark.parametrize("named", [False, True])
def test_a_native_dropout_is_random_unless_it_is_told_that_nothing_trains(train, count, named):
    given = {"train": train} if named else {}
    place = () if named else (train,)
    graph = tbscope.trace(lambda x: torch.native_dropout(x, 0.5, *place, **given), torch.rand(2, 3))
    random = [note.text for note in graph.notes if note.topic == "random"]
    assert random == ["random numbers were drawn by native_dropout"] * count


@pytest.mark.parametrize(("dropout_p", "count"), [(0.0, 0), (0.5, 1)])
def test_fused_attention_is_random_only_with_dropout(dropout_p, count):
    assert len(notes(attention(dropout_p), torch.rand(1, 2, 4, 8), topic="random")) == count


@pytest.mark.parametrize("model", [nn.Dropout(0.5), nn.LSTM(3, 4, 2, dropout=0.5), nn.RReLU()])
def test_nothing_is_random_in_evaluation(model):
    assert notes(model, X, training=False, topic="random") == []


# -- what FLOPs leave out, and the order ---------------------------------------------------


def test_what_flops_leave_out_is_one_note_with_counts():
    texts = notes(lambda x: (x * 2 + 1).exp() * x, X, topic="flops")
    assert texts == [
        "FLOPs leave out aten::mul x2, aten::add, aten::exp: "
        "torch has no formula for it, and none was registered"
    ]


def test_what_counts_or_computes_nothing_is_not_left_out():
    assert notes(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Flatten()), X) == []
    assert notes(lambda x: x.long() + 1, X) == []


def test_the_most_important_notes_come_first():
    class Busy(Parts):
        def forward(self, x, unread):
            x = functional.dropout(self.first(x), training=True)
            return x * x.sum().item()

    graph = tbscope.trace(Busy(head=nn.Linear(3, 3)), (X, X * 2))
    assert [note.topic for note in graph.notes] == ["python", "unused", "unused", "random", "flops"]


def test_notes_that_are_found_bind_no_node_of_the_drawing():
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 3))
    graph = tbscope.trace(net, X, training=True)
    assert {note.topic for note in graph.notes} == {"random", "flops"}
    assert [note.node for note in graph.notes] == [None, None]


def test_a_printed_graph_has_no_notes_in_it():
    graph = tbscope.trace(Parts(head=nn.Linear(3, 3)), X)
    assert graph.notes
    assert "nothing ran" not in str(graph)
