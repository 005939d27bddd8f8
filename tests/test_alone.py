"""What is put back where no other thread runs: tests that others run beside threads, once more."""

import pytest

from tests.warm import run_tests_warm


@pytest.mark.parametrize("name", ["test_preserve", "test_put_back"])
def test_the_same_holds_where_no_other_thread_runs(name):
    done = run_tests_warm(f"tests/{name}.py")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
