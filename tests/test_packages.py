"""The wheel and the source distribution: each is built, and installed by itself."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from cli_runs import graphs_in

import tbscope

pytest.importorskip("build")

ROOT = Path(__file__).parents[1]
# What a clone has no part in.
_MADE = shutil.ignore_patterns(".*cache", ".git", ".venv", "build", "dist", "runs", "*.egg-info")


def run(*command, **options):
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Give the folder of both, built of a copy: the wheel of what the source distribution holds."""
    folder = tmp_path_factory.mktemp("packages")
    shutil.copytree(ROOT, folder / "clone", ignore=_MADE)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder / "clone")
    return folder


def only(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module", params=["*.whl", "*.tar.gz"])
def python(request, built, tmp_path_factory):
    """Give the Python of an environment that has one of them, and what it depends on."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    packages = only(folder, "lib/*/site-packages")
    # As a path alone: what is installed here as a link to the clone is not followed.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["install", "--no-deps", "--no-build-isolation", "--ignore-installed", "--quiet"]
    package = only(built, request.param)
    run(sys.executable, "-m", "pip", "--python", python, *install, package)
    return python


def test_the_command_draws_where_only_the_package_is_installed(python, tmp_path):
    command = python.with_name("tbscope")
    assert run(command, "--version").splitlines()[0] == f"tbscope {tbscope.__version__}"
    assert run(command, "demo", cwd=tmp_path) == "tensorboard --logdir runs/demo\n"
    (graph,) = graphs_in(tmp_path / "runs" / "demo")
    assert len(graph.node) > 100


def test_the_library_is_that_of_the_package_and_has_types(python, tmp_path):
    tell = "import tbscope, tbscope.cli; print(tbscope.__file__)"
    place = Path(run(python, "-c", tell, cwd=tmp_path).strip())
    assert place.is_relative_to(python.parents[1])
    assert (place.parent / "py.typed").exists()
    files = {path.relative_to(place.parent) for path in place.parent.rglob("*.py")}
    assert files == {
        path.relative_to(ROOT / "tbscope") for path in (ROOT / "tbscope").rglob("*.py")
    }


def test_the_wheel_holds_the_package_alone(built):
    names = zipfile.ZipFile(only(built, "*.whl")).namelist()
    assert {name.split("/")[0] for name in names} == {
        "tbscope",
        f"tbscope-{tbscope.__version__}.dist-info",
    }


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no clone")
def test_the_source_distribution_holds_the_clone(built):
    with tarfile.open(only(built, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = run("git", "ls-files", cwd=ROOT).splitlines()
    assert {name for name in listed if name not in names} <= {".gitignore"}
