"""What lists and dicts of TorchScript hold after a change: known, or known to be open."""

import pytest
import torch

import tbscope

pytestmark = pytest.mark.filterwarnings("ignore")


def operations(function, *inputs):
    """Give the names of the operations in the graph of a scripted function."""
    graph = tbscope.from_torchscript(torch.jit.script(function), inputs or None)
    return [node.op for node in graph.nodes if node.kind == "op"]


# Each of them is told by numbers alone, and takes the branch of `sin`.


def entry_set(x):
    row = [3, 1]
    row[0] = 5
    return x.sin() if row[0] == 5 else x.cos()


def entry_inserted(x):
    row = [3, 1]
    row.insert(0, 5)
    return x.sin() if row[0] == 5 and len(row) == 3 else x.cos()


def entry_taken(x):
    table = {"a": 1, "b": 2}
    table.pop("a")
    return x.sin() if "a" not in table and table["b"] == 2 else x.cos()


def entry_given(x):
    row = [3, 1]
    return x.sin() if row.pop(0) == 3 else x.cos()


def keys_listed(x):
    table = {"a": 1}
    table["b"] = 2
    return x.sin() if len(list(table.keys())) == 2 and table.get("b", 0) == 2 else x.cos()


KNOWN = (entry_set, entry_inserted, entry_taken, entry_given, keys_listed)


@pytest.mark.parametrize("function", KNOWN, ids=lambda one: one.__name__)
def test_a_change_that_is_known_decides(function):
    assert operations(function) == ["sin"]


# Each of them depends on a number that is not known before it runs, or on a change that is not
# followed: both branches may run.


def entry_set_somewhere(x, n: int):
    row = [3, 1]
    row[n] = 5
    return x.sin() if row[0] == 5 else x.cos()


def entry_set_under_some_key(x, n: int):
    table = {1: 1}
    table[n] = 2
    return x.sin() if len(table) == 2 else x.cos()


def entry_put_somewhere(x, n: int):
    row = [3, 1]
    row.insert(n, 5)
    return x.sin() if row[0] == 5 else x.cos()


def entry_taken_from_somewhere(x, n: int):
    row = [3, 1]
    row.pop(n)
    return x.sin() if row[0] == 1 else x.cos()


def entry_deleted_somewhere(x, n: int):
    table = {1: 1, 2: 2}
    del table[n]
    return x.sin() if 1 in table else x.cos()


def something_removed(x, n: int):
    row = [3, 1]
    row.remove(n)
    return x.sin() if row[0] == 1 else x.cos()


def sorted_with_something(x, n: int):
    row = [3, n]
    row.sort()
    return x.sin() if row[0] == 3 else x.cos()


def sorted_list(x, n: int):
    row = [3, 1, 2]
    row.sort()
    return x.sin() if row[0] == 1 else x.cos()


def reversed_list(x, n: int):
    row = [3, 1, 2]
    row.reverse()
    return x.sin() if row[0] == 2 else x.cos()


def emptied(x, n: int):
    row = [3]
    row.clear()
    return x.sin() if len(row) == 0 else x.cos()


def first_item_taken(x, n: int):
    table = {"a": 1, "b": 2}
    table.popitem()
    return x.sin() if "b" in table else x.cos()


def more_added(x, more: list[int]):
    row = [3]
    row.extend(more)
    return x.sin() if len(row) == 2 else x.cos()


def added_behind_more(x, more: list[int]):
    row = [3]
    row.extend(more)
    row.append(1)
    return x.sin() if len(row) == 2 else x.cos()


def compared_with_more(x, more: list[int]):
    row = [3]
    row.extend(more)
    return x.sin() if [3] == row else x.cos()  # noqa: SIM300  Asked of the list that is known.


def joined_with_more(x, more: list[int]):
    row = [3]
    row.extend(more)
    both = [1] + row  # noqa: RUF005  A scripted list has no other way.
    return x.sin() if len(both) == 2 else x.cos()


def default_of_some_key(x, n: int):
    table = {1: 1}
    table.setdefault(n, 2)
    return x.sin() if len(table) == 2 else x.cos()


def some_key_asked_for(x, n: int):
    table = {1: 2}
    return x.sin() if n in table else x.cos()


def some_key_looked_up(x, n: int):
    table = {1: 2}
    return x.sin() if table.get(n, 0) == 2 else x.cos()


def appended_in_a_branch(x, n: int):
    row = [3]
    if n > 1:
        row.append(1)
    return x.sin() if len(row) == 2 else x.cos()


def key_set_in_a_branch(x, n: int):
    table = {"a": 1}
    if n > 1:
        table["b"] = 1
    return x.sin() if len(table) == 2 else x.cos()


def appended_in_a_loop(x, n: int):
    row = [3]
    for _ in range(n):
        row.append(1)
    return x.sin() if len(row) == 2 else x.cos()


OPEN = (
    *(entry_set_somewhere, entry_set_under_some_key, entry_put_somewhere, something_removed),
    *(entry_taken_from_somewhere, entry_deleted_somewhere, sorted_with_something, more_added),
    *(added_behind_more, compared_with_more, joined_with_more),
    *(sorted_list, reversed_list, emptied, first_item_taken),
    *(default_of_some_key, some_key_asked_for, some_key_looked_up),
    *(appended_in_a_branch, key_set_in_a_branch, appended_in_a_loop),
)


@pytest.mark.parametrize("function", OPEN, ids=lambda one: one.__name__)
def test_a_change_that_nobody_knows_leaves_both_branches(function):
    assert operations(function) == ["sin", "cos", "If"]


def test_a_turn_of_a_loop_does_not_know_what_turns_before_it_have_added():
    def collect(x, n: int):
        row = [1]
        for _ in range(n):
            x = x.sin() if len(row) == 1 else x.cos()
            row.append(2)
        return x

    def look(x, n: int):
        row = [1]
        for _ in range(n):
            x = x.sin() if len(row) == 1 else x.cos()
        return x

    assert operations(collect) == ["sin", "cos", "If", "Loop"]
    assert operations(look) == ["sin", "Loop"]


def test_a_turn_of_a_loop_does_not_know_what_a_branch_in_turns_before_it_has_added():
    def collect(x, n: int):
        row = [1]
        for _ in range(n):
            x = x.sin() if len(row) == 1 else x.cos()
            if n > 2:
                row.append(2)
        return x

    assert operations(collect) == ["sin", "cos", "If", "Loop"]


def test_a_branch_does_not_see_what_a_loop_in_the_other_one_has_added():
    def branches(x, n: int):
        row = [1]
        if n > 2:
            for _ in range(n):
                row.append(2)
            x = x.exp()
        else:
            x = x.sin() if len(row) == 1 else x.cos()
        return x if len(row) == 1 else x.tan()

    assert operations(branches) == ["exp", "sin", "If", "tan", "If"]


def test_a_branch_does_not_see_what_the_other_one_has_added_before_a_loop():
    def branches(x, n: int):
        row = [1]
        if n > 2:
            row.append(2)
            for _ in range(n):
                row.append(3)
            x = x.exp()
        else:
            x = x.sin() if len(row) == 1 else x.cos()
        return x

    assert operations(branches) == ["exp", "sin", "If"]


def test_a_turn_of_a_loop_does_not_know_which_number_the_turn_before_it_has_set():
    def count(x, n: int):
        row = [1]
        for _ in range(n):
            x = x.sin() if row[0] == 1 else x.cos()
            row[0] = 2
        return x

    assert operations(count) == ["sin", "cos", "If", "Loop"]


def test_what_an_open_list_decides_depends_on_the_tensor_that_told_the_place():
    def told_by_a_tensor(x, at):
        row = [3, 1]
        row[int(at)] = 5
        return x.sin() if row[0] == 5 else x.cos()

    for function, read in ((told_by_a_tensor, "[%at]"), (entry_set_somewhere, "[]")):
        text = str(tbscope.from_torchscript(torch.jit.script(function)))
        assert f"If(decided_by={read}" in text


def test_a_number_of_a_branch_depends_on_what_it_is_made_of_and_on_what_decided():
    def told(x, flag, other):
        number = 1
        if bool(flag):
            number = int(other)
        return x.sin() if number == 2 else x.cos()

    def known(x, flag: bool, other: int):
        number = 1
        if flag:
            number = other
        return x.sin() if number == 2 else x.cos()

    for function, read in ((told, {"flag", "other"}), (known, set())):
        graph = tbscope.from_torchscript(torch.jit.script(function))
        (merged,) = (node for node in graph.nodes if node.op == "If")
        decided_by = merged.arguments[0].nest
        assert {value.producer.name for value in decided_by} == read


# -- tensors in lists ------------------------------------------------------------------------


def stacked(x, n: int):
    found: list[torch.Tensor] = []
    for _ in range(n):
        found.append(x.sin())
    return torch.stack(found)


def stacked_twice(x, n: int):
    return torch.stack([x.sin(), x.cos()])


@pytest.mark.parametrize(
    ("function", "shape", "told"),
    [(stacked, None, "stack([%1, ...])"), (stacked_twice, (2, 4), "stack([%1, %2])")],
)
def test_how_many_tensors_a_loop_has_added_nobody_claims_to_know(function, shape, told):
    graph = tbscope.from_torchscript(torch.jit.script(function), (torch.ones(4), 3))

    (stack,) = (node for node in graph.nodes if node.op == "stack")
    assert stack.outputs[0].shape == shape
    assert told in str(graph)


def test_a_tensor_put_somewhere_into_a_list_is_read_with_it():
    def put(x, y, n: int):
        row = [x, x]
        row[n] = y
        return torch.cat(row)

    def put_first(x, y, n: int):
        row = [x, x]
        row[0] = y
        return torch.cat(row)

    for function, read in ((put, ["x", "y"]), (put_first, ["y", "x"])):
        graph = tbscope.from_torchscript(torch.jit.script(function))
        (cat,) = (node for node in graph.nodes if node.op == "cat")
        assert [value.producer.name for value in cat.inputs] == read


def test_the_only_tensor_of_an_open_list_is_what_is_taken_out_of_it():
    def last(x, n: int):
        found = [x.exp()]
        for _ in range(n):
            found.append(found[-1])
        return found[-1].sin()

    def one_of_two(x, n: int):
        found = [x.exp(), x]
        for _ in range(n):
            found.append(x)
        return found[-1].sin()

    assert operations(last) == ["exp", "sin"]
    assert operations(one_of_two) == ["exp", "getitem", "sin"]
    graph = tbscope.from_torchscript(torch.jit.script(one_of_two), (torch.ones(4), 3))
    (taken,) = (node for node in graph.nodes if node.op == "getitem")
    assert [value.producer.op for value in taken.inputs] == ["exp", "input"]


def test_a_tensor_that_a_loop_puts_into_the_place_of_another_one_is_told_by_the_loop():
    def replaced(x, n: int):
        row = [x.exp(), x]
        for _ in range(n):
            row[0] = row[0].sin()
        return row[0].cos()

    assert operations(replaced) == ["exp", "sin", "Loop", "cos"]


def test_an_open_list_is_taken_apart_by_an_operation_that_reads_it():
    def open_list(x, y, n: int):
        row = [x, x, x]
        row[n] = y
        first, second, third = row
        return first.exp() + second + third

    def known_list(x, y, n: int):
        row = [x, x, x]
        row[1] = y
        first, second, third = row
        return first.exp() + second + third

    assert operations(open_list) == ["unbind", "exp", "add", "add"]
    assert operations(known_list) == ["exp", "add", "add"]


def test_a_tensor_under_some_key_stands_beside_those_that_keep_theirs():
    def some_key(x, y, n: int):
        table = {1: x, 2: y}
        table[n] = x.exp()
        return torch.cat(list(table.values()))

    graph = tbscope.from_torchscript(torch.jit.script(some_key))

    (values,) = (node for node in graph.nodes if node.op == "values")
    assert [value.producer.name for value in values.inputs[:2]] == ["x", "y"]
    assert [value.producer.op for value in values.inputs[2:]] == ["exp"]


def test_tensors_that_one_branch_sets_under_some_key_and_the_other_under_its_own_are_all_read():
    def branches(x, n: int):
        table = {1: x}
        if n > 2:
            table[n] = x.exp()
        else:
            table[5] = x.cos()
        return torch.cat(list(table.values()))

    graph = tbscope.from_torchscript(torch.jit.script(branches))

    (values,) = (node for node in graph.nodes if node.op == "values")
    assert {value.producer.op for value in values.inputs} == {"input", "exp", "cos"}


def written_in_a_branch(x, flag: bool):
    y = x + 1
    if flag:
        y.add_(2)
    return y * 3


def test_what_was_made_right_before_a_branch_is_merged_behind_it():
    graph = tbscope.from_torchscript(torch.jit.script(written_in_a_branch))
    producers = {node.op: [value.producer.op for value in node.inputs] for node in graph.nodes}
    assert producers["mul"] == ["If"]
    assert producers["If"] == ["add", "add_"]
