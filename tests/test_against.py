"""The command that runs the tests against other versions: what it installs, and what it leaves."""

import pytest

from tests.against import ROOT, asked_for, left_of, main


@pytest.mark.parametrize(
    ("torch", "tensorboard", "others", "wanted"),
    [
        (None, None, [], ["setuptools>=77"]),
        ("2.6.0", None, [], ["setuptools>=77", "torch==2.6.0"]),
        (None, "2.20.0", [], ["setuptools>=77,<82", "tensorboard==2.20.0"]),
        (None, "2.21.0", [], ["setuptools>=77", "tensorboard==2.21.0"]),
        (None, None, ["protobuf<5"], ["setuptools>=77", "protobuf<5"]),
    ],
)
def test_what_is_asked_for_is_installed_with_a_setuptools_that_it_takes(
    torch, tensorboard, others, wanted
):
    assert asked_for(torch, tensorboard, others) == wanted


def test_all_that_is_not_installed_yet_is_what_the_constraints_say():
    text = "# Whole.\nabsl-py==2.5.1\nsympy==1.14.0\ntyping_extensions==4.16.0\n"
    assert left_of(text, ["SymPy", "typing.extensions"]) == "# Whole.\nabsl-py==2.5.1\n"
    assert left_of(text, []) == text


def test_every_constraint_has_the_form_that_is_read():
    text = (ROOT / "constraints.txt").read_text()
    names = [line.partition("==")[0] for line in text.splitlines() if "==" in line]
    assert "torch" in names
    assert "==" not in left_of(text, names).partition("'.[test,dev,docs]'")[2]


def test_a_python_that_is_not_there_is_no_test_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        main(["--python", str(tmp_path / "python"), "--venv", str(tmp_path / "venv")])
