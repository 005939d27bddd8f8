"""pytest plugin: the fixture `architecture`, which checks models against lock files.

    def test_the_architecture(architecture):
        architecture.check(Net(), torch.rand(1, 3), pin="net.json", max_parameters="25M")

pytest loads it at its start, so nothing here imports torch before a test asks for the fixture.
"""

import os
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-architectures`."""
    group = parser.getgroup("tbscope")
    group.addoption(
        "--update-architectures",
        action="store_true",
        help="write the pins of the models that tests check, where they tell something else",
    )


class Architecture:
    """Checks models in a test.

    Args:
        folder: The folder of the test's file, to which paths of lock files are relative.
        update: Whether lock files are written.
    """

    def __init__(self, folder: str, *, update: bool) -> None:
        self._folder = folder
        self._update = update

    def check(
        self,
        model: Any,
        input_to_model: Any = None,
        *,
        pin: object = None,
        **options: Any,
    ) -> None:
        """Fail the test unless a model matches its lock file and stays within its limits.

        Args:
            model: As for `tbscope.check`.
            input_to_model: As for `tbscope.check`.
            pin: The path of the lock file, relative to the folder of the test's file.
            options: Limits (`max_parameters`, `max_flops`, `max_activation_bytes`, `no_op`),
                `any_batch_size`, and options of the run, as for `tbscope.check`.
        Raises:
            ArgumentError: As for `tbscope.check`.
        """
        __tracebackhide__ = True
        from tbscope.comparison.api import check
        from tbscope.errors import ArgumentError

        path = os.path.join(self._folder, pin) if isinstance(pin, str | os.PathLike) else pin
        try:
            update = self._update and pin is not None
            checked = check(model, input_to_model, pin=path, update=update, **options)
        except ArgumentError as error:
            if "update=True" not in error.fix:
                raise
            fix = "pytest --update-architectures writes it"
            pytest.fail(f"{error.what}\n  why: {error.why}\n  fix: {fix}", pytrace=False)
        if not checked:
            fix = "\n  fix: if it is meant to, pytest --update-architectures writes the pin again"
            pytest.fail(f"{checked}{fix if checked.difference else ''}", pytrace=False)


@pytest.fixture
def architecture(request: pytest.FixtureRequest) -> Architecture:
    """Checks models against lock files: `architecture.check(model, x, pin="net.json")`."""
    update = bool(request.config.getoption("--update-architectures"))
    return Architecture(str(request.path.parent), update=update)
