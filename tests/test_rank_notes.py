"""Notes on ranks: what is gathered again, what is read at once, and who has more than others."""

import pytest
from build import GraphBuilder
from test_merge_ranks import plain

import tbscope
from tbscope.figures.rank_notes import exchange_notes, share_notes
from tbscope.ir.collectives import Collective
from tbscope.ir.ranks import Part


class Layers:
    """Layers that exchange something each."""

    def __init__(self):
        self.build = GraphBuilder("Net")
        self.net = self.build.call("Net")
        self.x = self.build.input("x", (4,))

    def join(self, kind, given, scope, asynchronous=False, phase="forward"):
        value = self.build.op(kind, given, scope=scope, phase=phase)
        value.producer.collective = Collective(
            kind, None, (0, 1), "dp", 8, 16, asynchronous=asynchronous
        )
        return value

    def gathered(self, layer, times, phases=("forward", "backward"), *, mixed=False):
        scope = self.build.call(f"Net/Block[{layer}]")
        weight = self.build.parameter(f"{layer}.weight", (2,), scope)
        for time in range(times):
            given = self.build.op("cast", [weight, self.x] if mixed else weight, scope=scope)
            self.join("all_gather", given, scope, phase=phases[min(time, len(phases) - 1)])

    def reduced(self, layer, *, asynchronous=False, work=0):
        scope = self.build.call(f"Net/Block[{layer}]")
        value = self.join("all_reduce", self.x, scope, asynchronous)
        self.build.op("matmul", self.x, scope=scope, flops=work)
        self.build.op("relu", value, scope=scope)

    def texts(self):
        return [note.text for note in exchange_notes(self.build.graph)]


def test_parameters_that_are_gathered_again_are_one_note_for_all_equal_layers():
    layers = Layers()
    for layer in range(3):
        layers.gathered(layer, 2)
    assert layers.texts() == [
        "the parameters of * are gathered 2 times, also in the backward pass (48 B each)"
    ]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"times": 1}, []),
        (
            {"times": 3, "phases": ("forward",)},
            ["the parameters of * are gathered 3 times (16 B each)"],
        ),
        # What is gathered is an activation, of which the parameter is one operand.
        ({"times": 2, "mixed": True}, []),
    ],
)
def test_what_is_gathered_once_or_is_no_parameter_is_not_told(facts, told):
    layers = Layers()
    layers.gathered(0, **facts)
    assert layers.texts() == told


def test_what_is_read_at_once_in_several_layers_is_one_note():
    layers = Layers()
    for layer in range(4):
        layers.reduced(layer, work=12)
    assert layers.texts() == [
        "no product is called between all_reduce over dp and what reads it in Net/Block[*]: "
        "4 times, 64 B in all"
    ]


@pytest.mark.parametrize(
    ("rounds", "facts", "told"),
    [
        (1, {}, 0),
        (2, {"asynchronous": True, "work": 12}, 0),
        (2, {"asynchronous": True, "work": 0}, 1),
        (2, {"asynchronous": False, "work": 12}, 1),
    ],
)
def test_what_a_product_hides_or_what_runs_in_no_loop_is_not_told(rounds, facts, told):
    layers = Layers()
    for layer in range(rounds):
        layers.reduced(layer, **facts)
    assert len(layers.texts()) == told


def test_more_kinds_than_one_reads_are_counted():
    layers = Layers()
    for kind in range(8):
        for layer in range(2):
            scope = layers.build.call(f"Net/Kind{chr(65 + kind)}[{layer}]")
            layers.build.op("relu", layers.join("all_reduce", layers.x, scope), scope=scope)
    texts = layers.texts()
    assert len(texts) == 6
    assert texts[-1] == "and 3 more kinds of what ranks do together"


def test_a_rank_with_more_than_its_share_is_named():
    parts = [
        Part((0,), figures={"flops": 30, "parameter_bytes": 11}),
        Part((1, 2), figures={"flops": 10, "parameter_bytes": 10}),
    ]
    assert [note.text for note in share_notes(parts)] == [
        "rank 0 has up to 1.8 times the mean of the FLOPs"
    ]


def test_merged_graphs_have_these_notes_and_those_of_one_rank_have_not():
    layers = Layers()
    for layer in range(2):
        layers.gathered(layer, 2)
    graph = layers.build.graph
    graph.world_size = 2
    merged = tbscope.merge_ranks([graph])
    assert [note.node.op for note in merged.notes] == ["all_gather"]
    assert graph.notes == plain(0).notes == []


def test_what_parts_of_a_run_have_in_common_is_told_once_and_whose_it_is():
    graphs = []
    for rank, extra in enumerate([(), ("relu",), ("relu", "gelu")]):
        layers = Layers()
        for layer in range(2 if rank < 2 else 0):
            layers.reduced(layer)
        for op in extra:
            layers.build.op(op, layers.x, scope=layers.net)
        layers.build.graph.rank, layers.build.graph.world_size = rank, 3
        graphs.append(layers.build.graph)
    told = "no product is called between all_reduce over dp and what reads it in Net/Block[*]: "
    merged = tbscope.merge_ranks(graphs)
    assert [note.text for note in merged.notes] == [f"ranks 0-1: {told}2 times, 32 B in all"]
    assert [note.text for note in tbscope.merge_ranks(graphs[:2]).notes] == [
        f"{told}2 times, 32 B in all"
    ]
