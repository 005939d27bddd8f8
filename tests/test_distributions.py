"""What is given away: the source distribution, the wheel made of it, and the demo run from it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tbscope

ROOT = Path(__file__).parents[1]
_LEFT = shutil.ignore_patterns(
    *(".git", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "*venv*"),
    *("build", "dist", "runs"),
)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_RELATIVE = re.compile(r"\]\((?!\w+:)([^)]*)\)")


def links(page):
    """Give where the links of a page lead that stay in the repository, without their places."""
    found = _RELATIVE.findall(_CODE.sub("", page.read_text(encoding="utf-8")))
    return [page.parent / target.partition("#")[0] for target in found]


def run(*command, folder):
    # The tree is not to be found on the way.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind, source, target):
    """Build as `python -m build --no-isolation` does, without asking any registry."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(target)!r}))"
    return target / run(sys.executable, "-c", code, folder=source).splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Give the folder that the source distribution of a copy of this tree unpacks to."""
    folder = tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT, folder / "copy", ignore=_LEFT)
    with tarfile.open(build("sdist", folder / "copy", folder)) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("tbscope-*/")
    return unpacked


@pytest.fixture(scope="module")
def wheel(source):
    return build("wheel", source, source.parent)


def test_the_source_distribution_has_what_its_pages_link_to(source):
    assert {"README.md", "CHANGELOG.md", "LICENSE", "docs"} <= {
        path.name for path in source.iterdir()
    }
    pages = [source / "README.md", *(source / "docs").glob("*.md")]
    targets = [target for page in pages for target in links(page)]
    assert [str(target) for target in targets if not target.exists()] == []
    assert len(targets) > 60


def test_the_source_distribution_has_the_files_of_the_tree_and_no_leavings(source):
    for folder in ("docs", "examples", "tests", "benchmarks", "tbscope", ".ci"):
        kept = {path for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts}
        packed = {path.relative_to(source) for path in (source / folder).rglob("*")}
        assert packed == {path.relative_to(ROOT) for path in kept}, folder


def test_the_wheel_holds_the_package_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    own = {"tbscope", f"tbscope-{tbscope.__version__}.dist-info"}
    assert {name.partition("/")[0] for name in names} == own
    # Beside code: the parts of the page of a graph and of the tab, the library in it, its licence.
    package = [*(ROOT / "tbscope").rglob("*.py"), *(ROOT / "tbscope/saving/viewer").rglob("*.*")]
    package += [ROOT / "tbscope/saving/viewer/dagre/LICENSE"]
    files = {str(path.relative_to(ROOT)) for path in package}
    assert files | {"tbscope/py.typed"} == {name for name in names if name.startswith("tbscope/")}


def test_the_long_description_names_files_and_links_to_none(wheel):
    path = f"tbscope-{tbscope.__version__}.dist-info/METADATA"
    metadata = zipfile.ZipFile(wheel).read(path).decode()
    told = message_from_string(metadata)
    assert told["Description-Content-Type"].startswith("text/markdown")
    text = told.get_payload()
    assert text.startswith("# tbscope\n")
    assert _RELATIVE.findall(_CODE.sub("", text)) == []
    assert "docs/img/" not in text
    assert "- Tutorial (`docs/tutorial.md`): from nothing to the picture" in text
    assert "see `LICENSE`" in text
    # Code is left as it is.
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL)
    assert [block for block in blocks if block not in text] == []


def test_the_demo_runs_from_the_wheel(wheel, tmp_path):
    venv.create(tmp_path / "fresh", with_pip=False)
    python = tmp_path / "fresh" / "bin" / "python"
    path = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder="/")
    # What this Python has, torch among it, and of tbscope nothing: editable ones are not followed.
    others = "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (Path(path.strip()) / "others.pth").write_text(others)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps"]
    run(*pip, "--force-reinstall", wheel, folder=tmp_path)
    where = run(python, "-c", "import tbscope; print(tbscope.__file__)", folder=tmp_path)
    assert where.startswith(path.strip())
    told = run(tmp_path / "fresh" / "bin" / "tbscope", "demo", "--logdir", "log", folder=tmp_path)
    assert "tensorboard --logdir log" in told
    log = EventAccumulator(str(tmp_path / "log")).Reload()
    assert len(log.Graph().node) > 50
