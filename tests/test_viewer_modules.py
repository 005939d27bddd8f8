"""The modules of the viewer that need no browser, by node's own test runner."""

import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).parent.joinpath("viewer").glob("*.test.mjs"))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node: apt-get install nodejs")
def test_the_modules_of_the_viewer_pass_their_own_tests(tmp_path):
    # Outside of a package, node takes files named .js for scripts.
    viewer = tmp_path / "viewer"
    shutil.copytree(str(resources.files("tbscope.saving").joinpath("viewer")), viewer)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    done = subprocess.run(
        ["node", "--test", *map(str, FILES)],
        env={**os.environ, "TBSCOPE_VIEWER": str(viewer)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 0" not in done.stdout
