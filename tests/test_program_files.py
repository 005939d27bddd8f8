"""Files of exported programs: read as they were written, and refused where they would run code."""

import io
import json
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
from tbscope.sources.fx.archive import is_size_formula
from tests.agreement import disagreements
from tests.program_models import example, exported

pytestmark = pytest.mark.filterwarnings("ignore")


class Runs:
    """An object whose pickle, once it is loaded, leaves a folder behind."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return leave, (self._path,)


def leave(path):
    """Leave a folder behind, and give example inputs."""
    os.mkdir(path)
    return (torch.ones(2, 4),), {}


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([self.fc(x)] * 2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A file with weights, example inputs and sizes that have no number."""
    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    sizes = {"x": {0: torch.export.Dim("batch")}}
    torch.export.save(
        torch.export.export(Doubled(), (torch.ones(2, 4),), dynamic_shapes=sizes), path
    )
    return path


def rewrite(path, to, change):
    """Write a file anew with other contents: `change` takes name and bytes of each entry."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return to


@pytest.mark.parametrize("name", ["resnet", "buffers", "tied weights", "branches"])
def test_a_file_tells_what_an_eager_call_tells(name, tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(exported(name), path)

    graph = tbscope.from_export(path)

    assert disagreements(example(name)[3], graph) == {}
    assert str(tbscope.load(str(path))) == str(graph)
    own = [module.parameters for module in tbscope.from_export(exported(name)).modules]
    assert [module.parameters for module in graph.modules] == own


def test_a_file_is_known_by_what_it_holds_and_not_by_its_name(whole, tmp_path):
    renamed = shutil.copy(whole, tmp_path / "model.txt")
    other = tmp_path / "weights.pt2"
    torch.save({"w": torch.ones(2)}, other)

    assert str(tbscope.load(renamed)) == str(tbscope.from_export(whole))
    assert [node.name for node in tbscope.load(other).nodes] == ["w"]
    with pytest.raises(tbscope.ArgumentError, match="it is a zip file, and contains no program"):
        tbscope.from_export(other)


def test_a_program_of_another_name_is_read_and_several_are_named(tmp_path):
    archives = pytest.importorskip("torch.export.pt2_archive._package")
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(1, 3),))
    one, two = tmp_path / "one.pt2", tmp_path / "two.pt2"
    archives.package_pt2(str(one), exported_programs={"encoder": program})
    archives.package_pt2(str(two), exported_programs={"encoder": program, "decoder": program})

    assert str(tbscope.load(one)) == str(tbscope.from_export(program))
    with pytest.raises(tbscope.ArgumentError) as raised:
        tbscope.load(two)
    assert raised.value.why in (
        "it contains 2 programs: 'encoder', 'decoder'",
        "it contains 2 programs: 'decoder', 'encoder'",
    )


def test_symbolic_sizes_come_back_from_a_file(whole):
    graph = tbscope.from_export(whole)

    formula = graph.outputs[0].value.producer.attributes["symbolic_shape"]
    assert formula.startswith("(2*s")
    assert graph.outputs[0].value.shape == (None, 4)


# -- what would run code -------------------------------------------------------------------


def _with_pickle(whole, tmp_path, entry):
    """Write a file in which an entry unpickles to an object that leaves a folder behind."""
    mark, path = tmp_path / "ran", tmp_path / "hostile.pt2"
    content = io.BytesIO()
    torch.save(Runs(mark), content)

    def change(name, old):
        return content.getvalue() if entry in name else old

    return rewrite(whole, path, change), mark


def test_example_inputs_are_not_unpickled_unless_they_are_data(whole, tmp_path):
    path, mark = _with_pickle(whole, tmp_path, "sample_inputs")

    with pytest.raises(tbscope.ArgumentError, match="objects that torch would unpickle") as caught:
        tbscope.from_export(path)

    assert not mark.exists()
    assert "sample_inputs/model.pt" in str(caught.value)
    assert "trusted=True" in str(caught.value)


def test_a_trusted_file_is_handed_to_torch_as_it_is(whole, tmp_path):
    path, mark = _with_pickle(whole, tmp_path, "sample_inputs")

    graph = tbscope.from_export(path, trusted=True)

    # torch tells itself that it has unpickled what it was told to.
    assert mark.exists()
    assert str(graph) == str(tbscope.from_export(whole))


def test_pickled_weights_are_refused(whole, tmp_path):
    mark = tmp_path / "ran"

    def change(name, content):
        if name.endswith("weights_config.json"):
            config = json.loads(content)
            for entry in config["config"].values():
                entry["use_pickle"] = True
            return json.dumps(config).encode()
        return pickle.dumps(Runs(mark)) if "weights/weight_0" in name else content

    with pytest.raises(tbscope.ArgumentError, match="contains tensors that torch would unpickle"):
        tbscope.from_export(rewrite(whole, tmp_path / "hostile.pt2", change))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("data/constants/opaque_obj_0", "an object that torch would unpickle"),
        ("data/constants/custom_obj_0", "an object that torch would unpickle"),
        ("data/aotinductor/model/model.so", "compiled code, which torch would load"),
    ],
)
def test_objects_and_compiled_code_are_refused(whole, tmp_path, entry, what):
    path = shutil.copy(whole, tmp_path / "hostile.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{archive.namelist()[0].partition('/')[0]}/{entry}", b"x")

    with pytest.raises(tbscope.ArgumentError, match=what):
        tbscope.from_export(path)


def test_a_size_that_is_python_is_refused(whole, tmp_path):
    mark = tmp_path / "ran"

    def change(name, content):
        if "models/" not in name:
            return content
        text = content.decode()
        formula = text.partition('"expr_str":')[2].partition('"')[2].partition('"')[0]
        assert formula
        return text.replace(formula, f"open('{mark}', 'w')").encode()

    with pytest.raises(tbscope.ArgumentError, match="which is no formula"):
        tbscope.from_export(rewrite(whole, tmp_path / "hostile.pt2", change), trusted=False)
    assert not mark.exists()


@pytest.mark.parametrize(
    "formula",
    [
        "Symbol('s0', positive=True, integer=True)",
        "Mul(Integer(2), Symbol('s11', integer=True))",
        "Pow(Symbol('s0'), Integer(2))",
        "FloorDiv(s0 + 1, 2)",
        "s0**2 - 4096*s1",
        "Float('0.5', precision=53)",
    ],
)
def test_formulas_of_sizes_are_taken(formula):
    assert is_size_formula(formula)


@pytest.mark.parametrize(
    "text",
    [
        "open('x', 'w')",
        "__import__('os')",
        "().__class__",
        "Symbol('s0').evalf()",
        "Symbol('s0 + open()')",
        "Integer('open()')",
        "(lambda: 1)()",
        "[s0 for s0 in s1]",
        "Symbol(s0.evalf)",
        "Symbol(f'{s0}')",
        "Mul('s0 + 1', 2)",
        "Add(b'open()')",
        "Add(*s0)",
        "1" * 50,
        "(" * 5_000 + ")" * 5_000,
        "",
    ],
)
def test_what_is_no_formula_of_sizes_is_not(text):
    assert not is_size_formula(text)


# -- what is damaged -----------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_off_is_refused(whole, tmp_path, part):
    content = whole.read_bytes()
    path = tmp_path / "cut.pt2"
    path.write_bytes(content[: int(len(content) * part)])

    with pytest.raises(tbscope.ArgumentError, match=r"no program can be read from .*cut\.pt2"):
        tbscope.from_export(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(tbscope.ArgumentError) as caught:
        tbscope.from_export("/nowhere/model.pt2")

    assert str(caught.value) == (
        "no program can be read from '/nowhere/model.pt2'\n"
        "  why: there is no such file\n"
        "  fix: give the path of a file"
    )


def test_entries_that_claim_more_than_the_file_holds_are_refused(tmp_path):
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/models/model.json", b"0" * 50_000_000)

    with pytest.raises(tbscope.ArgumentError, match="its entries claim 50,000,000 bytes"):
        tbscope.from_export(path)


def test_two_entries_of_one_name_are_refused(whole, tmp_path):
    path = shutil.copy(whole, tmp_path / "twice.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        name = next(name for name in archive.namelist() if "models/" in name)
        archive.writestr(name, b"{}")

    with pytest.raises(tbscope.ArgumentError, match="two of its entries have the same name"):
        tbscope.from_export(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 100_000, b"\xff\xfe", b"null", b'{"graph_module": 3}', b'"\\ud800"'],
)
def test_a_program_that_is_none_is_refused(whole, tmp_path, content):
    def change(name, old):
        return content if "models/" in name else old

    path = rewrite(whole, tmp_path / "none.pt2", change)
    with pytest.raises(tbscope.ArgumentError, match="no program can be read from"):
        tbscope.from_export(path)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_gives_a_graph_or_one_error(whole, tmp_path, seed):
    chance = random.Random(seed)
    content = bytearray(whole.read_bytes())
    for _ in range(chance.choice((1, 8, 64))):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path = tmp_path / "damaged.pt2"
    path.write_bytes(content)

    told = shown(path)
    try:
        tbscope.from_export(path).verify()
    except tbscope.ArgumentError as error:
        told = error.what
    assert shown(path) in told


def test_the_reason_that_torch_only_logs_is_told(whole, tmp_path, logged):
    def change(name, content):
        return content.replace(b"torch.ops.aten.cat.default", b"torch.ops.aten.catt.default")

    path = rewrite(whole, tmp_path / "unknown.pt2", change)
    with pytest.raises(tbscope.ArgumentError, match="catt"):
        tbscope.from_export(path)
    assert logged == []


def test_importing_tbscope_imports_neither_torch_export_nor_its_loader():
    import subprocess
    import sys

    code = (
        "import sys, torch; before = set(sys.modules); import tbscope, tbscope.sources.registry; "
        "tbscope.load, tbscope.from_export; "
        "new = sorted(n for n in set(sys.modules) - before if n.startswith('torch.')); "
        "print([n for n in new if 'export' in n or '.fx' in n or 'dynamo' in n])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == "[]"


def test_a_program_that_torch_takes_and_that_holds_together_no_more_is_refused(whole, tmp_path):
    def change(name, old):
        if not name.endswith(".json") or b"module_call_graph" not in old:
            return old
        program = json.loads(old)
        module = program.get("graph_module", program)
        module["module_call_graph"][0]["fqn"] = False
        return json.dumps(program).encode()

    path = rewrite(whole, tmp_path / "broken.pt2", change)
    with pytest.raises(
        tbscope.ArgumentError, match=r"no graph can be made of the program in .*pt2"
    ):
        tbscope.from_export(path)
