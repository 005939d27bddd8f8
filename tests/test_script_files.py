"""Files of TorchScript: read as they were written, and refused where they would run code."""

import enum
import io
import os
import pickle
import random
import shutil
import zipfile

import pytest
import torch
from torch import nn

import tbscope
from tbscope.sources.torchscript import modules
from tbscope.sources.torchscript.code import NoCodeError, check_chains, what_runs
from tbscope.sources.torchscript.line_tables import check_lines
from tbscope.sources.torchscript.pickles import DamagedError, check_pickle
from tbscope.words import shown
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

    graph = tbscope.from_torchscript(path, *example(name)[1])

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
    with pytest.raises(tbscope.ArgumentError, match="which holds no graph"):
        tbscope.load(weights)
    with pytest.raises(tbscope.ArgumentError, match="it is a zip file, and holds no TorchScript"):
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


@pytest.mark.parametrize(("home", "refused"), [("extra", False), ("code/__torch__", True)])
def test_what_users_put_beside_a_module_is_read_by_nobody(whole, tmp_path, home, refused):
    path = tmp_path / "model.pt"
    shutil.copy(whole, path)
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{home}/settings.py", "print(1)\n")

    if refused:
        with pytest.raises(tbscope.ArgumentError, match=r"settings\.py' holds a statement"):
            tbscope.from_torchscript(path)
    else:
        assert str(tbscope.from_torchscript(path)) == str(tbscope.from_torchscript(whole))


def doubled(x):
    """Double a tensor."""
    return x * 2


def test_add_graph_draws_a_file(whole, tmp_path):
    with tbscope.SummaryWriter(tmp_path / "log") as writer:
        graph = writer.add_graph(str(whole))
        with pytest.raises(tbscope.ArgumentError, match="takes no input_to_model"):
            writer.add_graph(str(whole), torch.ones(2, 4))

    assert str(graph) == str(tbscope.load(whole))


# -- what would run code -------------------------------------------------------------------


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


def test_a_method_that_fills_an_object_is_not_run_unless_the_file_is_trusted(tmp_path):
    path = tmp_path / "packed.pt"
    torch.jit.script(Packed()).save(path)

    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_torchscript(path)
    assert "holds __setstate__ (line " in str(caught.value)
    assert "which torch would call, and that runs code of the file's author" in str(caught.value)
    assert "trusted=True" in str(caught.value)
    graph = tbscope.from_torchscript(path, trusted=True)

    (mul,) = [node for node in graph.nodes if node.kind == "op"]
    assert str(mul.arguments[1].nest) == "4"


def test_a_default_that_calls_something_is_refused(whole, tmp_path):
    mark = tmp_path / "ran"

    def change(name, content):
        if "/linear" in name and name.endswith(".py"):
            call = f', y: Tensor=torch.from_file("{mark}", True, 4)) -> Tensor'
            assert b") -> Tensor" in content
            return content.replace(b") -> Tensor", call.encode(), 1)
        return content

    path = rewrite(whole, tmp_path / "hostile.pt", change)
    with pytest.raises(tbscope.ArgumentError, match=r"a default of forward .* would evaluate"):
        tbscope.from_torchscript(path)
    assert not mark.exists()
    # torch itself makes the file, as it does where the user trusts the author.
    tbscope.from_torchscript(path, trusted=True)
    assert mark.exists()


@pytest.mark.parametrize(
    ("code", "runs"),
    [
        ("def f(x: Tensor, y: int=3) -> Tensor:\n  return torch.relu(x)\n", None),
        ('def f(x: Tensor, d: Device=torch.device("cpu")) -> Tensor:\n  return x\n', None),
        ('class A(Module):\n  __parameters__ = ["w", ]\n  n : Final[int] = 3\n', None),
        ('class A(Module):\n  __annotations__["0"] = List[Tensor]\n', None),
        ("def f(x: Tensor, y: int=g()) -> Tensor:\n  return x\n", "a default of f"),
        ("class A(Module):\n  n : Final[int] = f()\n", "a constant of A"),
        ("class A(NamedTuple):\n  n : int = [f() for _ in [0]]\n", "a constant of A"),
        ("class A(Module):\n  f()\n", "an expression of A"),
        ("class A(Module):\n  def __setstate__(self, x: int) -> None:\n    pass\n", "__setstate__"),
        ("class A(Module):\n  def setstate(self, x: int) -> None:\n    pass\n", None),
        ("f()\n", "a statement"),
    ],
)
def test_what_torch_evaluates_while_it_loads_is_found(code, runs):
    found = what_runs(code)

    assert (found or "").partition(" (")[0] == (runs or "")


@pytest.mark.parametrize(
    "code",
    [
        "x = 'a\\\nb'",
        'x = """a"""',
        "x = b'a'",
        "x = f'{y()}'",
        "x = 1; y()",
        "x = \\\n1",
        "x = 1\r\ny()",
        "\N{GREEK SMALL LETTER ALPHA} = 1",
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "- " * 50_000 + "1",
        "x = " + "1 + " * 50_000 + "1",
        "x = " + "a." * 50_000 + "a",
        "def f(",
    ],
)
def test_code_that_torch_writes_not_is_refused(code):
    with pytest.raises(NoCodeError):
        what_runs(code)


def body(expression):
    return f"def f(x: Tensor) -> Tensor:\n  y = {expression}\n  return x\n"


DEEP = {
    "open brackets": (lambda depth: body("[" * depth + "\n" + "]" * (depth % 2)), 0, 4001),
    "a sum on many lines": (lambda depth: body("(x" + "+\n    x" * depth + ")"), 900, 1200),
    "attributes on lines": (lambda depth: body("(x" + "\n    .a" * depth + ")"), 900, 1200),
    "elif": (
        lambda depth: body("x" + "\n  if x:\n    pass" + "\n  elif x:\n    pass" * depth),
        900,
        1200,
    ),
    "comparisons": (lambda depth: body("(x" + "<\n    x" * depth + ")"), 20, 50),
    "and": (lambda depth: body("(x" + " and\n    x" * depth + ")"), 19, 50),
    "signs": (lambda depth: body(("(" + "-" * depth) * 39 + "x" + ")" * 39), 20, 150),
    "blocks": (
        lambda depth: body("x" + "".join("\n " + " " * i + "if x:" for i in range(1, depth))),
        0,
        300,
    ),
}
"""For each way to nest: what makes code of a depth, one that is taken, and one that is not."""


@pytest.mark.parametrize("name", DEEP)
def test_code_that_nests_deeper_than_torch_follows_is_refused(name):
    code, taken, refused = DEEP[name]

    with pytest.raises(NoCodeError):
        what_runs(code(refused))
    if taken:
        assert what_runs(code(taken)) is None


def row(length, last="x"):
    """Give code of functions that call each the next one."""
    calls = [f"__torch__.h.f{at + 1}(x, )" for at in range(length - 1)]
    return "".join(
        f"def f{at}(x: Tensor) -> Tensor:\n  return {call}\n"
        for at, call in enumerate([*calls, last])
    )


def test_a_long_row_of_functions_that_call_each_other_is_refused():
    check_chains({"__torch__.h": row(99) + "def g(x: Tensor) -> Tensor:\n  return x\n" * 9})
    # What calls itself, or is called by many, is no longer for that.
    check_chains({"__torch__.h": row(99, "__torch__.h.f0(x, )"), "__torch__.g": row(99)})
    with pytest.raises(NoCodeError, match="more than 100 classes and functions need each other"):
        check_chains({"__torch__.h": row(101)})


def test_a_long_row_of_classes_in_files_of_their_own_is_refused():
    def codes(length):
        return {
            f"__torch__.m{at}": f"class C(Module):\n  part : __torch__ . m{at + 1}.C.NAME\n"
            for at in range(length)
        }

    check_chains({**codes(99), "__torch__.other": row(20)})
    with pytest.raises(NoCodeError, match=r"in a row, the last __torch__\.m100\.C"):
        check_chains(codes(102))


@pytest.mark.parametrize(
    ("length", "why"), [(20, None), (120, "its code cannot be read: more than")]
)
def test_a_file_with_a_long_row_of_functions_is_refused(whole, tmp_path, length, why):
    def change(name, content):
        if "/linear" not in name or not name.endswith(".py"):
            return content
        home = name.partition("/code/")[2].removesuffix(".py").replace("/", ".")
        return content + row(length).replace("__torch__.h", home).encode()

    path = rewrite(whole, tmp_path / "row.pt", change)
    if why is None:
        check_whole(tbscope.from_torchscript(path))
        return
    with pytest.raises(tbscope.ArgumentError, match=why):
        tbscope.from_torchscript(path)


def test_an_entry_with_code_of_another_kind_is_named(whole, tmp_path):
    def change(name, content):
        odd = "/linear" in name and name.endswith(".py")
        return content + b"x = b'a'\n" if odd else content

    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_torchscript(rewrite(whole, tmp_path / "odd.pt", change))
    assert "cannot be read: it has a text of another kind" in str(caught.value)
    assert "no whole zip" not in str(caught.value)


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
            tbscope.verify(tbscope.from_torchscript(path))
            ends.add("a graph")
        except tbscope.ArgumentError as error:
            ends.add(error.what)
    refused = f"no TorchScript can be read from {shown(path)}"
    assert ends == {"a graph", refused}


@pytest.mark.parametrize("entry", ["data.pkl", "constants.pkl", "linear", "data/0", "version"])
def test_a_file_without_one_of_its_entries_is_refused(whole, tmp_path, entry):
    def change(name, content):
        return None if entry in name and "debug" not in name else content

    with pytest.raises(tbscope.ArgumentError, match=r"no TorchScript can be read|holds no"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "less.pt", change))


def test_a_file_whose_lines_are_damaged_is_refused(whole, tmp_path):
    def change(name, content):
        return pickled(3) if name.endswith(".debug_pkl") else content

    # torch reads them where it is asked for a line, and not before.
    with pytest.raises(tbscope.ArgumentError, match=r"torch raised .*Tuple"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "lines.pt", change))


class Numbers:
    """What torch writes in the place of a list of numbers."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def __reduce__(self):
        return build_intlist, ([*self.numbers],)


def build_intlist(numbers):
    """Stands for torch's function of this name."""


build_intlist.__module__ = "torch.jit._pickle"


def as_torch_writes(source, *, start=0, tag=0, texts=("a", "b")):
    """Give the pickle that tells one line of code, in the form that torch writes."""
    content = io.BytesIO()
    writer = pickle._Pickler(content, protocol=2)
    writer.dispatch = {
        **writer.dispatch,
        type(build_intlist): lambda writer, thing: writer.write(
            b"ctorch.jit._pickle\nbuild_intlist\n"
        ),
    }
    writer.dump(("FORMAT_WITH_STRING_TABLE", texts, ((7, (source, start, 9), tag),)))
    return content.getvalue()


def deep(levels):
    """Give lists in each other."""
    return [deep(levels - 1)] if levels else []


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ((Numbers(0, 2), 1, 0), "it names text 2 of 2"),
        ((Numbers(-1), 1, 0), "it names text -1 of 2"),
        ((Numbers(0.5), 1, 0), "it names text 0.5 of 2"),
        ((Numbers(), 2, 0), "it names text 2 of 2"),
        ((Numbers(0), 1, deep(250)), "it nests more than 200 things"),
        ({Numbers(0): 0, 1: deep(250), 2: 0}, "it nests more than 200 things"),
        ((Numbers(deep(250)), 1, 0), "it nests more than 200 things"),
    ],
)
def test_lines_as_torch_writes_them_are_looked_through_for_what_they_name(source, told):
    assert check_lines(as_torch_writes((Numbers(0, 1), 1, 0))) == {
        "torch.jit._pickle.build_intlist"
    }
    check_lines(as_torch_writes((Numbers(), 0, 0), texts=("",)))
    with pytest.raises(DamagedError, match=told):
        check_lines(as_torch_writes(source))


@pytest.mark.parametrize("place", ["start", "tag"])
def test_a_deep_nest_beside_a_line_is_refused(place):
    check_lines(as_torch_writes((Numbers(0), 1, 0), **{place: deep(150)}))
    with pytest.raises(DamagedError, match="it nests more than 200 things"):
        check_lines(as_torch_writes((Numbers(0), 1, 0), **{place: deep(250)}))


CLASS = """class Net(Module):
  __parameters__ = []
  def %s(self: __torch__.___torch_mangle_%d.Net) -> NoneType:
    return None
"""


@pytest.mark.parametrize(
    ("name", "refused"), [("__setstate__", True), ("__setstate_____torch_mangle_8", False)]
)
def test_code_that_looks_like_other_code_is_looked_at_all_the_same(whole, tmp_path, name, refused):
    path = tmp_path / "model.pt"
    shutil.copy(whole, path)
    with zipfile.ZipFile(path, "a") as archive:
        home = archive.namelist()[0].partition("/")[0]
        harmless = CLASS % ("__setstate_____torch_mangle_7", 1)
        archive.writestr(f"{home}/code/__torch__/one.py", harmless)
        archive.writestr(f"{home}/code/__torch__/two.py", CLASS % (name, 1))

    if refused:
        with pytest.raises(tbscope.ArgumentError, match=r"two.py'? holds __setstate__ \(line 3\)"):
            tbscope.from_torchscript(path)
    else:
        assert tbscope.from_torchscript(path).calls


def test_modules_of_more_names_than_can_be_read_are_refused(whole, monkeypatch):
    monkeypatch.setattr(modules, "_MOST_NAMES", 3)
    assert len(tbscope.from_torchscript(whole).modules) == 3
    monkeypatch.setattr(modules, "_MOST_NAMES", 2)
    with pytest.raises(tbscope.ArgumentError, match="modules of the program have more than 2"):
        tbscope.from_torchscript(whole)


@pytest.mark.parametrize(("own", "file", "odd"), [([0, 2], 1, 2), ([0], 2, 2), ([-1], 1, -1)])
def test_lines_of_a_text_that_is_not_there_are_refused(whole, tmp_path, own, file, odd):
    def lines(own, file):
        record = (0, ((own, file, 0), 0, 0), 0)
        return pickle.dumps(("FORMAT_WITH_STRING_TABLE", ("a", "b"), (record,)), protocol=2)

    def change(name, content):
        return lines(own, file) if name.endswith(".debug_pkl") else content

    check_lines(lines([0, 1], 1))
    with pytest.raises(tbscope.ArgumentError, match=rf"it names text {odd} of 2"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "lines.pt", change))


def test_an_operator_that_nobody_has_registered_is_named(whole, tmp_path):
    def change(name, content):
        return content.replace(b"torch.linear(", b"ops.nobody.linear(")

    with pytest.raises(tbscope.ArgumentError, match=r"torch\.jit\.load raised .*nobody") as caught:
        tbscope.from_torchscript(rewrite(whole, tmp_path / "other.pt", change))
    assert "import what registers its operators first" in str(caught.value)


# -- pickles -------------------------------------------------------------------------------


class Storage:
    """Stands for the bytes of a tensor while a pickle is written."""

    def __init__(self, key, length, place="cpu"):
        self.pid = ("storage", torch.FloatStorage, key, place, length)


class Tensor:
    """Writes itself as torch writes a tensor."""

    def __init__(self, storage, offset, sizes, strides):
        self._held = storage, offset, sizes, strides, False, {}

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, self._held


class Writer(pickle.Pickler):
    """Writes tensors as TorchScript does."""

    def persistent_id(self, thing):
        return thing.pid if isinstance(thing, Storage) else None


def pickled(thing):
    """Give the pickle of something with tensors."""
    content = io.BytesIO()
    Writer(content, protocol=2).dump(thing)
    return content.getvalue()


def test_a_pickle_that_claims_what_it_has_is_taken():
    content = pickled([Tensor(Storage("0", 6), 0, (2, 3), (3, 1)), {"a": (1, 2.5, "text", None)}])

    assert check_pickle(content, {"0": 24}) == {
        *("torch.FloatStorage", "torch._utils._rebuild_tensor_v2"),
    }


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Tensor(Storage("0", 2**40), 0, (2, 3), (3, 1)), "claims 4,398,046,511,104 bytes"),
        (Tensor(Storage("1", 6), 0, (2, 3), (3, 1)), "claims 24 bytes, and its entry has 0"),
        (Tensor(Storage("1", 6, "meta:0"), 0, (2, 3), (3, 1)), "and its entry has 0"),
        (Tensor(Storage("1", 2**61, "meta"), 0, (2, 3), (3, 1)), "and its entry has 0"),
        (Tensor(Storage("1", 6, "meta"), 1, (2, 3), (3, 1)), "in a storage of 6 elements"),
        (Tensor(Storage("0", 6), 1, (2, 3), (3, 1)), "in a storage of 6 elements"),
        (Tensor(Storage("0", 6), 0, (2**40,), (1,)), "in a storage of 6 elements"),
        (Tensor(Storage("0", 6), -1, (2,), (1,)), "of the sizes (2,) and the strides (1,)"),
        (Tensor(Storage("0", 6), 0, (2,), (-1,)), "of the sizes (2,) and the strides (-1,)"),
        (Tensor(Storage("0", 6), 0, (2,), ()), "without sizes, strides or bytes"),
        (Tensor(None, 0, (2,), (1,)), "without sizes, strides or bytes"),
    ],
)
def test_a_tensor_larger_than_its_bytes_is_refused(tensor, text):
    with pytest.raises(DamagedError) as caught:
        check_pickle(pickled([tensor]), {"0": 24})

    assert text in str(caught.value)


def test_a_tensor_on_meta_has_no_bytes_in_a_file(tmp_path):
    assert check_pickle(pickled([Tensor(Storage("1", 6, "meta"), 0, (2, 3), (3, 1))]), {})
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


def test_a_function_called_with_one_thing_is_looked_at_as_any_other():
    member = b"\x80\x02c__torch__\nColour\nK\x02R."
    tensor = pickled(Tensor(Storage("0", 2**40), 0, (2,), (1,)))
    both = member[:-1] + b"0" + tensor[2:]

    assert check_pickle(member, {}) == {"__torch__.Colour"}
    with pytest.raises(DamagedError, match="claims 4,398,046,511,104 bytes"):
        check_pickle(both, {"0": 24})
    with pytest.raises(DamagedError, match="it is no whole pickle"):
        check_pickle(b"\x80\x02K\x01K\x02R.", {})


def test_a_deep_nest_and_a_circle_are_refused():
    # Each entry is met first where it is not deep.
    nest = [[]]
    for _ in range(300):
        nest.append([nest[-1]])
    circle = []
    circle.append(circle)

    with pytest.raises(DamagedError, match="nests more than 200 things"):
        check_pickle(pickled(nest), {})
    with pytest.raises(DamagedError, match="nests a thing in itself"):
        check_pickle(pickled(circle), {})
    check_pickle(pickled(nest[:150]), {})


@pytest.mark.parametrize(("depth", "taken"), [(190, True), (210, False)])
def test_a_nest_that_is_deep_and_shared_is_measured_by_its_deepest_way(depth, taken):
    # Each holds all of those before it: there are 2**depth ways down.
    nest = [[]]
    for _ in range(depth):
        nest.append(nest.copy())
    if taken:
        assert check_pickle(pickled(nest[-1]), {}) == set()
        return
    with pytest.raises(DamagedError, match="nests more than 200 things"):
        check_pickle(pickled(nest[-1]), {})


def test_a_tensor_deep_in_a_nest_is_looked_at():
    wrong = Tensor(Storage("0", 6), 0, (2**40,), (1,))
    with pytest.raises(DamagedError, match="in a storage of 6 elements"):
        check_pickle(pickled([1, ({"a": [wrong]},)]), {"0": 24})


def test_a_pickle_that_remembers_more_than_it_has_is_refused():
    # LONG_BINPUT, with the largest number that it takes.
    content = b"\x80\x02]r\xff\xff\xff\xff."

    with pytest.raises(DamagedError, match=r"it remembers 4,294,967,295 things"):
        check_pickle(content, {})


def typed(name):
    """Give the pickle of an empty list of a type."""
    return b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\n]X" + (
        len(name).to_bytes(4, "little") + name.encode() + b"\x86R."
    )


def test_a_type_that_nests_many_is_refused():
    def lists(depth):
        return typed("List[" * depth + "int" + "]" * depth)

    assert check_pickle(lists(20), {}) == {"torch.jit._pickle.restore_type_tag"}
    with pytest.raises(DamagedError, match="names a type that nests more than 200 others"):
        check_pickle(lists(5000), {})


@pytest.mark.parametrize(
    "name", ["{" * 5000, "-" * 5000, "a." * 5000, '["]"' * 5000, "[#]\n" * 5000]
)
def test_a_type_that_is_none_is_refused(name):
    with pytest.raises(DamagedError, match=r"names a type with .{,200}$"):
        check_pickle(typed(name), {})

    check_pickle(typed("Dict[str, Tuple[Optional[__torch__.a.___torch_mangle_0.B], ...]]"), {})


class Runs:
    """An object whose pickle, once it is loaded, leaves a folder behind."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


def test_nothing_that_a_pickle_names_is_called(tmp_path):
    content = pickle.dumps(Runs(tmp_path / "ran"), protocol=2)

    assert check_pickle(content, {}) == {"posix.mkdir"}
    assert not (tmp_path / "ran").exists()
    pickle.loads(content)
    assert (tmp_path / "ran").exists()


def test_a_file_with_a_hostile_pickle_is_refused(whole, tmp_path):
    def change(name, content):
        return (
            pickled([Tensor(Storage("0", 2**40), 0, (3, 4), (4, 1))])
            if (name.endswith("/data.pkl"))
            else content
        )

    with pytest.raises(tbscope.ArgumentError, match=r"data\.pkl' cannot be read: its storage"):
        tbscope.from_torchscript(rewrite(whole, tmp_path / "hostile.pt", change))


def test_a_file_that_claims_more_than_it_has_is_refused(whole, tmp_path):
    path = tmp_path / "bomb.pt"
    shutil.copy(whole, path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/code/x.py", b"#" * 2**27)

    with pytest.raises(tbscope.ArgumentError, match=r"its entries claim 134,\d+,\d+ bytes"):
        tbscope.from_torchscript(path)


def test_functions_that_call_each_other_many_times_are_no_trap(tmp_path):
    path = tmp_path / "model.pt"
    torch.jit.script(doubled).save(str(path))
    last = "def f40(x: Tensor) -> Tensor:\n  return torch.relu(x)\n"
    calls = "\n".join(
        f"def f{at}(x: Tensor) -> Tensor:\n  y = __torch__.f{at + 1}(x, )\n"
        f"  return __torch__.f{at + 1}(y, )"
        for at in reversed(range(40))
    )

    def change(name, content):
        text = content.decode() if name.endswith("code/__torch__.py") else ""
        if not text:
            return content
        assert "return torch.mul(x, 2)" in text
        text = text.replace("return torch.mul(x, 2)", "return __torch__.f0(x, )")
        return f"{text}{last}{calls}\n".encode()

    with pytest.raises(tbscope.ArgumentError, match="runs on for more than"):
        tbscope.from_torchscript(rewrite(path, tmp_path / "trap.pt", change))
