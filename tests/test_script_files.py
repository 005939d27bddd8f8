"""Files of TorchScript: loaded by torch, and read as they were written."""

import enum
import os
import pickle
import random
import shutil
import zipfile

import pytest
import torch
from torch import nn

import tbscope
from tbscope.messages import shown
from tests.agreement import check_whole, disagreements
from tests.program_models import example
from tests.script_models import scripted, traced
from tests.test_program_files import rewrite

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file of a small traced model."""
    path = tmp_path_factory.mktemp("scripts") / "model.pt"
    torch.jit.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.ones(2, 4)).save(path)
    return path


@pytest.mark.parametrize("name", ["resnet", "lstm", "tied weights", "called twice", "BertModel"])
def test_a_traced_file_tells_what_an_eager_call_tells(name, tmp_path):
    path = tmp_path / "model.pt"
    traced(name).save(path)

    graph = tbscope.from_torchscript(path)

    check_whole(graph)
    assert disagreements(example(name)[3], graph) == {}
    assert str(tbscope.load(str(path))) == str(graph)
    own = [module.parameters for module in tbscope.from_torchscript(traced(name)).modules]
    assert [module.parameters for module in graph.modules] == own


@pytest.mark.parametrize("name", ["resnet", "lstm", "buffers"])
def test_a_scripted_file_tells_what_an_eager_call_tells(name, tmp_path):
    path = tmp_path / "model.pt"
    scripted(name).save(path)

    graph = tbscope.from_torchscript(path, example(name)[1])

    check_whole(graph)
    assert disagreements(example(name)[3], graph) == {}


def test_a_loaded_module_is_what_its_file_is(whole):
    graph = tbscope.from_torchscript(torch.jit.load(whole), torch.ones(2, 4))

    assert str(graph) == str(tbscope.from_torchscript(whole))


def test_a_file_is_known_by_what_it_holds_and_not_by_its_name(whole, tmp_path):
    renamed = shutil.copy(whole, tmp_path / "model.txt")
    weights = tmp_path / "weights.pt"
    torch.save({"w": torch.ones(2)}, weights)

    assert str(tbscope.load(renamed)) == str(tbscope.from_torchscript(whole))
    assert [node.name for node in tbscope.load(weights).nodes] == ["w"]
    with pytest.raises(
        tbscope.ArgumentError, match="it is a zip file, and contains no TorchScript"
    ):
        tbscope.from_torchscript(weights)


def test_a_file_of_a_scripted_function_is_drawn(tmp_path):
    path = tmp_path / "function.pt"
    torch.jit.script(doubled).save(str(path))

    graph = tbscope.from_torchscript(path, torch.ones(2))

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["mul"]


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Coloured(nn.Module):
    """Holds a member of an enumeration."""

    def __init__(self):
        super().__init__()
        self.colour = Colour.GREEN

    def forward(self, x):
        if self.colour == Colour.RED:
            return x + 1
        return x * self.colour.value


def test_a_file_of_a_module_with_a_member_of_an_enumeration_is_drawn(tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.script(Coloured()).save(path)

    check_whole(tbscope.from_torchscript(path, torch.ones(2)))


def test_files_that_users_put_beside_a_module_are_read_by_nobody(whole, tmp_path):
    path = tmp_path / "model.pt"
    shutil.copy(whole, path)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/extra/settings.py", "print(1)\n")

    assert str(tbscope.from_torchscript(path)) == str(tbscope.from_torchscript(whole))


def doubled(x):
    """Double a tensor."""
    return x * 2


def test_add_graph_draws_a_file(whole, tmp_path):
    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        graph = writer.add_graph(str(whole))
        with pytest.raises(
            tbscope.ArgumentError, match=r"input_to_model=.* is given with the graph"
        ):
            writer.add_graph(str(whole), torch.ones(2, 4))

    assert str(graph) == str(tbscope.load(whole))


class Packed(nn.Module):
    """Has TorchScript run a method of its own while it is loaded."""

    def __init__(self):
        super().__init__()
        self.training = False
        self.width = 3

    @torch.jit.export
    def __getstate__(self):
        return self.width, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.width = state[0] + 1
        self.training = state[1]

    def forward(self, x):
        return x * self.width


def test_a_module_that_fills_itself_is_loaded_as_torch_loads_it(tmp_path):
    path = tmp_path / "packed.pt"
    torch.jit.script(Packed()).save(path)

    graph = tbscope.from_torchscript(path)

    (mul,) = [node for node in graph.nodes if node.kind == "op"]
    assert str(mul.arguments[1].nest) == "4"


# -- what is damaged -----------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_off_is_refused(whole, tmp_path, share):
    content = whole.read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(content[: int(len(content) * share)])

    with pytest.raises(tbscope.ArgumentError, match="it is no whole zip file"):
        tbscope.from_torchscript(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_torchscript("nothing.pt")

    assert str(caught.value) == (
        "no TorchScript can be read from 'nothing.pt'\n"
        "  why: there is no such file\n"
        "  fix: give the path of a file"
    )


def test_a_damaged_file_gives_a_graph_or_one_error(whole, tmp_path):
    content = whole.read_bytes()
    path = tmp_path / "damaged.pt"
    ends = set()
    for seed in range(150):
        chance = random.Random(seed)
        damaged = bytearray(content)
        for _ in range(chance.choice([1, 4, 20])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            tbscope.from_torchscript(path).verify()
            ends.add("a graph")
        except tbscope.ArgumentError as error:
            ends.add(error.what)
    refused = f"no TorchScript can be read from {shown(path)}"
    # torch reads some entries later: the lines of the source, for example.
    refused_later = f"no graph can be read of {shown(path)}"
    assert ends - {refused_later} == {"a graph", refused}


@pytest.mark.parametrize("entry", ["data.pkl", "constants.pkl", "linear", "data/0", "version"])
def test_a_file_without_one_of_its_entries_is_refused(whole, tmp_path, entry):
    def change(name, content):
        return None if entry in name and "debug" not in name else content

    with pytest.raises(tbscope.ArgumentError, match=r"no TorchScript can be read|holds no"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "less.pt", change))


def test_a_file_whose_lines_are_damaged_is_refused(whole, tmp_path):
    def change(name, content):
        return pickle.dumps(3, protocol=2) if name.endswith(".debug_pkl") else content

    # torch reads them where it is asked for a line, and not before.
    with pytest.raises(tbscope.ArgumentError, match=r"torch raised .*Tuple"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "lines.pt", change))


def test_an_operator_that_nobody_has_registered_is_named(whole, tmp_path):
    def change(name, content):
        return content.replace(b"torch.linear(", b"ops.nobody.linear(")

    with pytest.raises(tbscope.ArgumentError, match=r"torch\.jit\.load raised .*nobody") as caught:
        tbscope.from_torchscript(rewrite(whole, tmp_path / "other.pt", change))
    assert "import what registers its operators first" in str(caught.value)


def test_a_tensor_on_meta_has_no_bytes_in_a_file(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2, device="meta"), nn.ReLU())
    path = tmp_path / "meta.pt"
    torch.jit.script(model).save(str(path))

    graph = tbscope.load(path)

    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "relu"]
    held = {node.name: node.outputs[0] for node in graph.nodes if node.kind == "parameter"}
    assert {(name, value.shape, value.device) for name, value in held.items()} == {
        ("0.weight", (2, 3), "meta"),
        ("0.bias", (2,), "meta"),
    }


# -- with what a module was traced ---------------------------------------------------------


class Runs:
    """An object whose pickle, once it is loaded, leaves a folder behind."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


@pytest.mark.parametrize("content", ["what runs", b"", b"\x80\x02]r\xff", b"\x80\x02K\x03."])
def test_the_inputs_of_a_trace_are_never_unpickled(whole, tmp_path, content):
    mark = tmp_path / "ran"
    if content == "what runs":
        content = pickle.dumps({"forward": [Runs(mark)]}, protocol=2)
        pickle.loads(content)
        mark.rmdir()

    def change(name, old):
        return content if name.endswith("/traced_inputs.pkl") else old

    path = rewrite(whole, tmp_path / "hostile.pt", change)
    if b"mkdir" in content:
        (given,) = tbscope.from_torchscript(path).inputs
        assert given.outputs[0].shape is None
    else:
        with pytest.raises(tbscope.ArgumentError, match=r"traced_inputs\.pkl' cannot be read"):
            tbscope.from_torchscript(path)
    assert not mark.exists()


def test_the_inputs_of_a_trace_have_their_types(tmp_path):
    class Net(nn.Module):
        def forward(self, x, pair, named):
            return x.sum() + pair[0].sum() + pair[1].sum() + named["b"].sum()

    given = (
        torch.ones(2, 3, dtype=torch.float16),
        (torch.ones(4, dtype=torch.int64), torch.ones(2, 5, dtype=torch.bool)),
        {"b": torch.ones(6, 1, dtype=torch.complex64)},
    )
    path = tmp_path / "model.pt"
    torch.jit.trace(Net(), given).save(str(path))

    graph = tbscope.from_torchscript(path)

    found = {node.name: (node.outputs[0].dtype, node.outputs[0].shape) for node in graph.inputs}
    assert found == {
        "x": ("float16", (2, 3)),
        "pair.0": ("int64", (4,)),
        "pair.1": ("bool", (2, 5)),
        "named.b": ("complex64", (6, 1)),
    }
