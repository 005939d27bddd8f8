"""Tables that tell lines of TorchScript's code: known by their bytes, or read as pickles."""

import zipfile

import pytest
import torch
from torch import nn

from tbscope.sources.torchscript import line_tables
from tbscope.sources.torchscript.line_tables import check_lines, is_usual
from tbscope.sources.torchscript.pickles import DamagedError, read_pickle
from tests.script_models import scripted, traced

pytestmark = pytest.mark.filterwarnings("ignore")


def tables(script, folder):
    """Give the tables that torch writes for the code of a module."""
    path = folder / "model.pt"
    script.save(path)
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist() if name.endswith(".debug_pkl")]


class Long(nn.Module):
    """Has more lines than can be remembered in one byte."""

    def forward(self, x):
        for number in range(150):
            x = torch.relu(x + number)
        return x


@pytest.mark.parametrize("name", ["resnet", "lstm", "called twice"])
def test_each_table_that_torch_writes_of_a_trace_is_known_by_its_bytes(name, tmp_path):
    found = tables(traced(name), tmp_path)

    assert found
    assert all(map(is_usual, found))
    assert check_lines(found[0]) == {"torch.jit._pickle.build_intlist"}


def test_each_table_that_torch_writes_of_a_script_is_known_by_its_bytes(tmp_path):
    found = [*tables(scripted("resnet"), tmp_path)]
    found += tables(torch.jit.trace(Long(), torch.ones(2)), tmp_path)

    assert max(map(len, found)) > 3000
    assert all(map(is_usual, found))


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A table of a few lines, two of them of one source."""
    found = tables(
        torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(2)),
        tmp_path_factory.mktemp("tables"),
    )
    return sorted(found, key=len)[1]


def test_what_is_taken_by_its_bytes_is_taken_as_a_pickle(table, monkeypatch):
    taken = 0
    for place in range(len(table)):
        for byte in {*b"(.)]hjqrtKMJX\x00\x01\x10\x11\x85\x86\x87\xff", table[place] ^ 1}:
            changed = table[:place] + bytes([byte]) + table[place + 1 :]
            if is_usual(changed):
                taken += 1
                with monkeypatch.context() as without:
                    without.setattr(line_tables, "is_usual", lambda content: False)
                    assert check_lines(changed) == {"torch.jit._pickle.build_intlist"}
    assert 100 < taken < 20 * len(table)


@pytest.mark.parametrize("before", [b"etRK", b"](K"])
@pytest.mark.parametrize(("beyond", "refused"), [(-1, False), (0, True)])
def test_a_text_that_a_table_does_not_have_is_refused(table, before, beyond, refused):
    (_, texts, _), _ = read_pickle(table, {})
    at = table.rindex(before) + len(before)
    changed = table[:at] + bytes([len(texts) + beyond]) + table[at + 1 :]

    assert is_usual(changed) is not refused
    if refused:
        with pytest.raises(DamagedError, match=f"it names text {len(texts)} of {len(texts)}"):
            check_lines(changed)


def test_a_table_that_ends_early_or_goes_on_is_none_of_torchs(table):
    assert not any(is_usual(table[:end]) for end in range(len(table)))
    assert not is_usual(table + b".")
