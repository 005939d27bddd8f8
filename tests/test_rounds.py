"""Where a row of events comes round again, by numbers alone."""

import pytest

from tbscope.drawing.rounds import Event, rounds_of


def always(rounds):
    return True


def row(text):
    """Give events at the places of letters: `abab`; `a1` is what the run 1 did at `a`."""
    events = []
    for letter in text.split():
        within = letter[1:] or None
        events.append(Event(ord(letter[0]), within, [letter]))
    return events


def loop(letters):
    return ord(letters[0]), ord(letters[1])


def found(text, *loops, wanted=always):
    """Give the rounds as texts, and what stands beside them as it is."""
    given = rounds_of(row(text), tuple(map(loop, loops)), wanted)
    return [
        one.members[0] if isinstance(one, Event) else ["".join(members) for members in one]
        for one in given
    ]


@pytest.mark.parametrize(
    ("text", "loops", "expected"),
    [
        ("a b c b c d", ["bc"], ["a", ["bc", "bc"], "d"]),
        ("a b c d", [], ["a", "b", "c", "d"]),
        ("b c b c", ["ab"], [["b"], "c", ["b"], "c"]),
        # A part that not every round has.
        ("b c d b d c d", ["bd"], [["bcd", "bd", "cd"]]),
        # A loop in a loop is one place of it.
        ("a b b c a b b b c", ["ac", "bb"], [["abbc", "abbbc"]]),
        # Two loops, one after the other.
        ("a b a b c d c d", ["ab", "cd"], [["ab", "ab"], ["cd", "cd"]]),
        # One line calls a function again: what each run did is a round.
        ("a1 a2 a3", ["aa"], [["a1", "a2", "a3"]]),
        # What one line does without a run that is known may be one call of torch's.
        ("a a a", ["aa"], [["aaa"]]),
    ],
)
def test_a_loop_comes_round_where_its_places_begin_again(text, loops, expected):
    assert found(text, *loops) == expected


def test_where_the_rounds_of_a_loop_are_not_wanted_those_of_a_loop_in_it_are_looked_at():
    def short(rounds):
        return max(map(len, rounds)) < 3

    assert found("a b c b c a b c b c", "ac", "bc", wanted=short) == [
        "a",
        ["bc", "bc"],
        "a",
        ["bc", "bc"],
    ]
