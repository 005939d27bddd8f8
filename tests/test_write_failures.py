"""Writing that fails: one error with path, reason and what to do, and a log that is whole."""

import os
import shutil
import textwrap

import pytest
from log_writers import ELSEWHERE, FILES, MAKERS, MODEL, X, read, run_script

import tbscope

FULL = f"OSError: No space left on device; {ELSEWHERE}"


# -- a file that may not grow, a full disk -----------------------------------------------------


@pytest.mark.parametrize("module", ["tbscope", "torch.utils.tensorboard", "tensorboardX"])
def test_a_file_that_may_not_grow_is_as_it_was_and_is_written_on_later(tmp_path, module):
    code = f"""
    writer = {module}.SummaryWriter(sys.argv[1])
    writer.add_scalar("loss", 1, 0)
    tbscope.add_graph(writer, small, x)
    limit(6000)
    try:
        tbscope.add_graph(writer, model, x, tag="model")
    except tbscope.WriterError as error:
        said = str(error)
    limit(None)
    print(said)
    writer.add_scalar("loss", 2, 1)
    tbscope.add_graph(writer, small, x, tag="small")
    writer.close()
    """
    done = run_script(code, tmp_path)
    (path,) = tmp_path.iterdir()
    assert done.stderr == ""
    assert done.stdout == (
        f"cannot write to {path}\n  why: OSError: File too large\n  fix: {ELSEWHERE}\n"
    )
    reader = read(tmp_path)
    assert [event.value for event in reader.Scalars("loss")] == [1, 2]
    assert reader.Tags()["tensors"] == ["small "]
    assert reader.Graph().node


def test_of_a_graph_with_figures_none_is_written_when_the_second_does_not_fit(tmp_path):
    code = """
    graph = tbscope.trace(model, x, profile=1)
    with tbscope.SummaryWriter(sys.argv[2]) as writer:
        writer.add_graph(graph)
    writer = tbscope.SummaryWriter(sys.argv[1])
    limit(os.path.getsize(os.path.join(sys.argv[2], *os.listdir(sys.argv[2]))) - 100)
    try:
        writer.add_graph(graph)
    except tbscope.WriterError:
        limit(None)
        writer.add_scalar("loss", 1, 0)
    writer.close()
    """
    assert run_script(code, tmp_path / "log", tmp_path / "whole").stderr == ""
    assert read(tmp_path / "whole").Graph().node
    assert read(tmp_path / "log").Tags()["graph"] is False
    assert len(read(tmp_path / "log").Scalars("loss")) == 1


def why_not_written(code, last, directory):
    """Run code of which the last part cannot be written; return what is printed: why not."""
    last = textwrap.indent(textwrap.dedent(last), "    ")
    ending = "except tbscope.WriterError as error:\n    said = error\nlimit(None)\nprint(said.why)"
    done = run_script(f"{textwrap.dedent(code)}\ntry:\n{last}\n{ending}", directory)
    return done.stdout, done.stderr


TOO_LARGE = ("OSError: File too large\n", "")


@pytest.mark.parametrize("module", ["tbscope", "torch.utils.tensorboard"])
@pytest.mark.parametrize(
    "doing",
    [
        "writer.close(); tbscope.add_graph(writer, small, x)",
        "tbscope.add_graph(writer, small, x, run_name='eval')",
        "tbscope.SummaryWriter(sys.argv[1])",
    ],
    ids=["again", "a run below", "a new one"],
)
def test_a_file_that_cannot_be_begun_is_told_of_by_no_thread(tmp_path, module, doing):
    code = f"""
    (tbscope.add_graph, tbscope.SummaryWriter, tbscope.WriterError)
    os.mkdir(sys.argv[1] + "/eval")
    writer = {module}.SummaryWriter(sys.argv[1])
    limit(0)
    """
    assert why_not_written(code, doing, tmp_path) == TOO_LARGE
    assert not list((tmp_path / "eval").iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", ["ours", "torch"])
def test_a_full_disk_is_told_of(tmp_path, name):
    writer = MAKERS[name](str(tmp_path))
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(writer, MODEL, X)
    assert str(raised.value) == (
        f"cannot write to {path}\n  why: OSError: No space left on device\n  fix: {ELSEWHERE}"
    )
    assert isinstance(raised.value.__cause__, OSError)
    writer.close()


def test_a_training_script_goes_on_when_the_disk_is_full(tmp_path):
    writer = tbscope.SummaryWriter(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.warns(UserWarning, match="tbscope drew no graph: cannot write to"):
        writer.add_graph(MODEL, X, on_error="warn")
    tmp_path.mkdir()
    writer.add_graph(MODEL, X, on_error="warn")
    writer.close()
    assert read(tmp_path).Graph().node


# -- a store on another machine, to which a file goes as a whole ---------------------------------

STORE = """
    import threading, time
    from tensorboard.compat.tensorflow_stub.io import gfile

    class Store:
        files, full, sent, refused = {}, False, 0, 0
        exists = isdir = makedirs = lambda self, name: True
        join = lambda self, *parts: "/".join(parts)

        def write(self, name, content, binary_mode=False):
            if self.full:
                self.refused += 1
                raise OSError(28, "No space left on device")
            self.files[name] = content
            self.sent += 1

    store = Store()
    gfile.register_filesystem("store", store)

    def why(doing, *given):
        try:
            doing(*given)
        except tbscope.WriterError as error:
            return f"{error.why}; {error.fix}"

    def written():
        return sum(content.count(b"loss") for content in store.files.values())

    writer = tbscope.SummaryWriter("store://log", flush_secs=%s)
    writer.add_scalars("loss", dict(a=1, b=2), 0)
    store.full = True
"""


def run_with_store(code, flush_secs=1000):
    """Run code with a writer whose store is full, and two scalars that wait to be written."""
    done = run_script(STORE % flush_secs + code)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_full_store_is_told_of_and_its_files_go_on():
    code = """
    print(why(writer.add_graph, small, x))
    store.full = False
    print(why(writer.add_graph, small, x), why(writer.close), written())
    """
    assert run_with_store(code) == [FULL, "None None 2"]


# -- directories -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_directory_that_was_removed_is_told_of(tmp_path, name):
    writer = FILES[name](str(tmp_path / "log"))
    tbscope.add_graph(writer, MODEL, X)
    (path,) = (tmp_path / "log").iterdir()
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(writer, MODEL, X)
    assert str(raised.value) == (
        f"cannot write to {path}\n"
        "  why: FileNotFoundError: No such file or directory\n"
        f"  fix: {ELSEWHERE}"
    )
    writer.close()


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("below", [True, False])
def test_a_file_where_a_directory_should_be_is_told_of(tmp_path, name, below):
    (tmp_path / "file").touch()
    writer = MAKERS[name](str(tmp_path / "log"))
    shutil.copy(tmp_path / "file", tmp_path / "log" / "eval")
    run_name = "eval/large" if below else "eval"
    why = "NotADirectoryError: Not a directory" if below else "FileExistsError: File exists"
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.add_graph(writer, MODEL, X, run_name=run_name)
    where = tmp_path / "log" / run_name
    assert str(raised.value) == f"cannot write to {where}\n  why: {why}\n  fix: {ELSEWHERE}"
    writer.close()


def test_a_writer_that_is_closed_opens_no_file_where_its_directory_became_one(tmp_path):
    for name, make in MAKERS.items():
        place = tmp_path / name
        writer = make(str(place))
        writer.close()
        shutil.rmtree(place)
        place.touch()
        with pytest.raises(tbscope.WriterError, match=r"Error: (File exists|Not a directory)"):
            tbscope.add_graph(writer, MODEL, X)


def null_byte_error():
    """Return Python's message for a path with a null byte, which depends on its version."""
    try:
        os.mkdir("nul\0")
    except ValueError as error:
        return f"ValueError: {error}"


NO_PLACE = {
    "file": "FileExistsError: File exists",
    "file/log": "NotADirectoryError: Not a directory",
    "x" * 256: "OSError: File name too long",
    "nul\0": null_byte_error(),
}


@pytest.mark.parametrize("name", NO_PLACE, ids=["a file", "below a file", "too long", "no path"])
def test_a_place_where_no_log_can_be_is_told_of(tmp_path, capfd, name):
    (tmp_path / "file").touch()
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.SummaryWriter(f"{tmp_path}/{name}")
    what, *rest = str(raised.value).splitlines()
    assert rest == [f"  why: {NO_PLACE[name]}", f"  fix: {ELSEWHERE}"]
    assert what.startswith("cannot write to ")
    assert what.isprintable()
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_name_that_is_too_long_is_told_of_before_a_thread_meets_it(tmp_path, capfd):
    tbscope.SummaryWriter(tmp_path, filename_suffix=".x").close()
    with pytest.raises(tbscope.WriterError, match="File name too long"):
        tbscope.SummaryWriter(tmp_path, filename_suffix="x" * 230)
    assert len(list(tmp_path.iterdir())) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_told_of(tmp_path, capfd):
    tmp_path.chmod(0o500)
    with pytest.raises(tbscope.WriterError, match="Permission denied\n  fix: get the right"):
        tbscope.SummaryWriter(tmp_path)
    tmp_path.chmod(0o700)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs root")
def test_a_directory_of_another_user_is_told_of(tmp_path):
    code = """
    make, error = tbscope.SummaryWriter, tbscope.WriterError
    os.seteuid(65534)
    try:
        make(sys.argv[1])
    except tbscope.WriterError as error:
        print(error)
    os.seteuid(0)
    """
    tmp_path.chmod(0o755)
    for directory in tmp_path.parents:
        if directory.owner() == "root" and directory.name.startswith("pytest"):
            directory.chmod(0o755)
    done = run_script(code, tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == [
        "  why: PermissionError: Permission denied",
        f"  fix: {ELSEWHERE}",
    ]


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("s3://bucket/log", "install what TensorBoard writes s3:// with (pip install fsspec s3fs)"),
        ("nowhere://x", "install what TensorBoard writes nowhere:// with (pip install fsspec)"),
    ],
)
def test_a_remote_log_without_its_package_is_told_of(path, fix, capfd):
    with pytest.raises(tbscope.WriterError) as raised:
        tbscope.SummaryWriter(path)
    what, why, rest = str(raised.value).splitlines()
    assert what == f"cannot write to {path}"
    assert why.startswith(("  why: ImportError: ", "  why: ValueError: "))
    assert rest == f"  fix: {fix}, or give a directory of this machine"
    assert capfd.readouterr() == ("", "")
    assert not os.path.exists(path.partition("/")[0])
