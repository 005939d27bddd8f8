"""The plugin of pytest: the fixture `architecture`, and what loading the plugin costs."""

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import run_warm

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
PLUGIN = "tbscope.pytest_plugin"

TEST = """
import torch
from torch import nn

WIDTH = {width}

def make():
    return nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU())

def test_the_architecture(architecture):
    architecture.check(make(), torch.ones(1, 2), pin="net.json", max_parameters="{most}")
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest with the plugin, whether or not it is installed, and with no other."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*words, most="1k", width=3, test=TEST):
        text = test.replace("{most}", most).replace("{width}", str(width))
        pytester.makepyfile(test_net=text)
        # In a process of its own: what a run imports, pytester has the next one import again,
        # and torch does not survive that.
        words = ["-p", PLUGIN, "-p", "no:cacheprovider", *words]
        done = run_warm("-m", "pytest", *words, cwd=pytester.path)
        told = (done.stdout.splitlines(), done.stderr.splitlines())
        return pytest.RunResult(done.returncode, *told, duration=0)

    return run


def test_a_pin_is_written_on_request_and_held_against_from_then_on(run, pytester):
    run("--update-architectures").assert_outcomes(passed=1)
    pin = (pytester.path / "net.json").read_text()
    run().assert_outcomes(passed=1)
    assert (pytester.path / "net.json").read_text() == pin


def test_a_pin_is_held_against_another_batch_size_on_request(run, pytester):
    run("--update-architectures")
    test = (pytester.path / "test_net.py").read_text().replace("ones(1, 2)", "ones(9, 2)")
    assert run(test=test).ret == 1
    assert run(test=test.replace("pin=", "any_batch_size=True, pin=")).ret == 0


def test_a_missing_pin_fails_and_tells_how_to_write_it(run, pytester):
    result = run()
    result.assert_outcomes(failed=1)
    assert not (pytester.path / "net.json").exists()
    result.stdout.fnmatch_lines(
        [
            # Of a long path, the beginning.
            "there is no pin '*",
            "  why: a pin is written once, and each later graph is compared with it",
            "  fix: pytest --update-architectures writes it",
        ]
    )


def test_a_moved_architecture_fails_with_its_difference_and_no_traceback(run, pytester):
    run("--update-architectures")
    result = run(width=4)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "the architecture is no longer that of *net.json",
            "Sequential: 1 changed",
            "~ Linear: 0, out_features 3 -> 4",
            "  fix: if it is meant to, pytest --update-architectures writes the pin again",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_a_model_that_is_too_large_fails_also_while_pins_are_written(run):
    result = run("--update-architectures", most="8")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["too large: 9 parameters are more than 8 (8)"])


def test_a_limit_that_is_none_is_an_error_of_the_test(run):
    result = run("--update-architectures", most="many")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*max_parameters cannot be 'many'*"])


def test_loading_the_plugin_loads_neither_torch_nor_tensorboard():
    code = (
        f"import sys, {PLUGIN}; "
        "print([name for name in ('torch', 'tensorboard', 'google', 'click', 'numpy') "
        "if name in sys.modules], "
        "sorted(name for name in sys.modules if name.startswith('tbscope')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = ["tbscope", PLUGIN, "tbscope.utils", "tbscope.utils.gc_pause"]
    assert done.stdout == f"[] {own}\n"


def test_pytest_finds_the_plugin_where_the_package_is_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.entry_points"]["pytest11"].strip() == f"tbscope = {PLUGIN}"
