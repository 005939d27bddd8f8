"""Turns: which modules a note names that read each other by turns, and which it leaves out."""

from build import GraphBuilder

from tbscope.figures.turns import turn_notes


def around(others, *, again="module", late=()):
    """Give the texts for a scope that is left, has `others` read what it gave, and runs again."""
    build = GraphBuilder("Net")
    build.call("Net")
    first = build.scope("Net/Encoder[enc]", again)
    value = build.op("relu", build.input("x", (2,)), scope=first)
    for number in range(others):
        value = build.op("tanh", value, scope=build.call(f"Net/Block[b{number}]"))
    if late:
        build.node("exp", scope=first, outputs=((2,),)).control_inputs[:] = [value.producer]
    else:
        value = build.op("exp", value, scope=first)
    build.output("out", value)
    return [note.text for note in turn_notes(build.graph)]


def test_a_module_that_runs_again_with_what_others_made_of_its_work_is_named():
    assert around(1) == [
        "enc and b0 read each other by turns: a part of enc was called from outside"
    ]


def test_four_others_are_named_and_more_are_counted():
    (text,) = around(4)
    assert text.startswith("enc and b0, b1, b2, b3 read each other")
    (text,) = around(5)
    assert text.startswith("enc and b0, b1, b2, b3 and 1 more read each other")


def test_a_block_by_hand_in_which_operations_run_again_is_named_as_well():
    assert len(around(1, again="hand")) == 1


def test_what_an_operation_has_saved_is_no_work_of_a_module_that_runs_again():
    assert around(1, late=True) == []


def test_modules_that_run_one_after_the_other_are_not_named():
    assert around(0) == []
