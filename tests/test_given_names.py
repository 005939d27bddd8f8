"""What inputs and outputs are called: one tensor under two names, and what objects keep inside."""

import pytest
import torch
from card_facts import facts
from torch import nn

import tbscope
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves

IDS = torch.ones(1, 4, dtype=torch.long)


class Losing(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)

    def forward(self, input_ids, labels=None, more=()):
        return self.embed(input_ids).sum(-1) - (0 if labels is None else labels)


def trace(**kwargs):
    return tbscope.trace(Losing(), kwargs=kwargs)


def inputs(graph):
    return [node for node in tbscope.to_graph_def(graph).node if node.op.startswith("Input")]


def test_one_tensor_under_two_names_shows_both():
    graph = trace(input_ids=IDS, labels=IDS)
    assert str(graph).startswith("graph(%input_ids = %labels : Long(1, 4)):\n")
    assert graph.find("labels") is graph.find("input_ids") is graph.inputs[0]
    (drawn,) = inputs(graph)
    assert drawn.name == "input_ids_and_labels/input_ids_and_labels"
    assert facts(drawn)["name"].s == b"input_ids"
    assert drawn.attr["also"].s == b"labels"
    reading = {node.name for node in tbscope.to_graph_def(graph).node if drawn.name in node.input}
    assert reading == {"embed", "sub"}


def test_two_tensors_have_a_name_each():
    graph = trace(input_ids=IDS, labels=IDS.clone())
    assert str(graph).startswith("graph(%input_ids : Long(1, 4), %labels : Long(1, 4)):\n")
    assert [node.name for node in inputs(graph)] == ["input_ids", "labels"]


def test_names_in_a_nest_leave_out_what_they_share():
    graph = tbscope.trace(lambda batch: batch["a"] + batch["b"], ({"a": IDS, "b": IDS},))
    assert [node.name for node in inputs(graph)] == ["batch.a_and_b/batch.a_and_b"]


def test_a_tensor_of_many_names_tells_how_many():
    graph = trace(input_ids=IDS, more=[IDS] * 12)
    (drawn,) = inputs(graph)
    assert drawn.name.rpartition("/")[2] == "input_ids_and_12_more"
    assert "%input_ids = %more.0 = %more.1" in str(graph)


class Cache:
    def __init__(self, keys):
        self.keys = keys
        self._window = torch.tensor(3)


class Hidden:
    def __init__(self, data):
        self._data = data


class Keeping(nn.Module):
    def forward(self, x, cache=None, reads=False):
        if cache is not None and reads:
            x = x + cache._window
        return {"y": x * 2, "cache": Cache(x * 3), "hidden": Hidden(x * 4)}


def test_what_a_cache_keeps_to_itself_is_no_output():
    graph = tbscope.trace(Keeping(), torch.ones(2))
    names = ["y", "cache.keys", "hidden._data"]
    assert [output.name for output in graph.outputs] == names
    ends = [node.name for node in tbscope.to_graph_def(graph).node if node.op.startswith("Output")]
    assert [name.rpartition("/")[2] for name in ends] == names


@pytest.mark.parametrize(("reads", "names"), [(False, []), (True, ["cache._window"])])
def test_what_a_cache_keeps_to_itself_is_an_input_where_it_is_read(reads, names):
    given = {"x": torch.ones(2), "cache": Cache(torch.ones(2)), "reads": reads}
    graph = tbscope.trace(Keeping(), kwargs=given)
    graph.verify()
    assert [node.name for node in graph.inputs] == ["x", "cache.keys", *names]
    drawn = [node.name.rpartition("/")[2] for node in inputs(graph)]
    assert drawn == ["x", "cache.keys", *names]
    assert all(node.kind != "constant" for node in graph.nodes)


def test_public_attributes_that_lead_to_no_tensor_hide_nothing():
    hidden = Hidden(torch.ones(2))
    hidden.name = "cache"
    hidden.sizes = [2, 3]
    assert [path for path, _ in result_leaves(hidden)] == ["_data"]
    assert [path for path, _ in tensor_leaves(hidden, "h", public=True)] == ["h._data"]


def test_a_key_that_begins_with_an_underscore_is_the_users_word():
    given = {"_aux": torch.ones(1), "out": torch.ones(1)}
    assert [path for path, _ in result_leaves(given)] == ["_aux", "out"]


class Reading(nn.Module):
    """Looks at its mask, as models do that leave out masks of ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x, mask):
        return x if mask.all() else self.layer(x)


class Listing(Reading):
    def forward(self, x, mask):
        return self.layer(x)[: mask.tolist()[0]]


@pytest.mark.parametrize("model", [Reading, Listing])
def test_on_meta_the_error_of_a_model_that_reads_values_names_fake(model):
    given = torch.ones(2, 3, device="meta"), torch.ones(2, dtype=torch.bool, device="meta")
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.trace(model().to("meta"), given)
    assert str(raised.value).endswith(
        "  fix: the model reads the values of tensors, and on the device meta there are none: pass "
        "fake=True, with which libraries leave such checks out, or give the model and its "
        "inputs memory: model.to_empty(device='cpu')"
    )


def test_with_fake_no_error_names_fake_as_the_way_out():
    def forward(x):
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")

    with pytest.raises(tbscope.TraceError, match="fix: pass fake=False"):
        tbscope.trace(forward, torch.ones(2), fake=True)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_with_fake_the_error_of_such_a_model_names_memory(device):
    given = torch.ones(2, 3, device=device), torch.ones(2, dtype=torch.bool, device=device)
    with pytest.raises(tbscope.TraceError) as raised:
        tbscope.trace(Reading().to(device), given, fake=True)
    decides = "  fix: the model decides on the values of tensors, and fake=True has none: "
    memory = "pass fake=False, on the device meta after model.to_empty(device='cpu')"
    assert str(raised.value).endswith(f"{decides}{memory}")
