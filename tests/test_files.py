"""Files: written whole or not at all, where a link leads, and into what is no file as it is."""

import os
import pathlib
import threading

import pytest

from tbscope.errors import ArgumentError
from tbscope.utils.files import path_of, path_text, write_whole


class Path:
    """A path of the user's own."""

    def __init__(self, text):
        self._text = text

    def __fspath__(self):
        return self._text

    def __repr__(self):
        return f"Path({self._text!r})"


def refused(path):
    return ArgumentError(f"refused {type(path).__name__}", why="why", fix="fix")


def test_a_file_is_new_or_replaced_and_nothing_stands_beside_it(tmp_path):
    path = tmp_path / "graph.json"
    for data in (b"long", b"new"):
        write_whole(str(path), data)
        assert path.read_bytes() == data
        assert [one.name for one in tmp_path.iterdir()] == ["graph.json"]


def test_a_link_stays_one_and_the_file_that_it_leads_to_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    write_whole(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink()
    assert [one.name for one in (tmp_path / "there").iterdir()] == ["file"]
    assert (tmp_path / "there" / "file").read_bytes() == b"new"


def test_who_reads_the_old_file_reads_it_to_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_whole(str(path), b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_a_pipe_takes_the_bytes_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(str(path), b"told")
        assert os.read(reader, 10) == b"told"
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_a_write_that_is_broken_off_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [
        ("missing/file", FileNotFoundError, "No such file"),
        ("", IsADirectoryError, "Is a directory"),
        ("x" * 300, OSError, "File name too long"),
        ("a\0b", ValueError, "embedded null"),
        ("a\udcff\ud800", ValueError, "surrogates not allowed"),
    ],
)
def test_what_the_system_refuses_is_told_by_its_own_error(tmp_path, name, error, told):
    path = os.path.join(tmp_path, name)
    with pytest.raises(error, match=told) as raised:
        write_whole(path, b"new")
    assert getattr(raised.value, "filename", path) == path
    assert list(tmp_path.iterdir()) == []


def test_two_threads_have_parts_of_their_own(tmp_path, monkeypatch):
    parts, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda part, to: (parts.append(part), replace(part, to)))
    path = str(tmp_path / "file")
    other = threading.Thread(target=write_whole, args=(path, b"theirs"))
    other.start()
    other.join()
    write_whole(path, b"ours")
    assert len(set(parts)) == 2
    assert {os.path.dirname(part) for part in parts} == {str(tmp_path)}


@pytest.mark.parametrize("path", [b"graph", "", "a\0b", 3, None, Path(b"graph")], ids=repr)
def test_what_is_no_text_is_refused_as_the_caller_says(path):
    with pytest.raises(ArgumentError, match=f"^refused {type(path).__name__}"):
        path_text(path, refused=refused)


def test_what_gives_a_text_is_a_path_and_a_text_of_a_class_is_a_plain_one():
    text = type("Text", (str,), {})("graph")
    for path in ("graph", Path("graph"), Path(text), text):
        assert path_text(path, refused=refused) == "graph"
        assert type(path_text(path, refused=refused)) is str


def test_the_path_of_what_is_none_is_none_whatever_it_raises_when_it_is_asked():
    class Refusing(os.PathLike):
        def __fspath__(self):
            raise RuntimeError("no")

    class Bytes(os.PathLike):
        def __fspath__(self):
            return b"graph"

    assert [path_of(given) for given in (Refusing(), Bytes(), b"graph", 3, None)] == [None] * 5
    assert path_of("graph") == path_of(pathlib.Path("graph")) == path_of(Path("graph")) == "graph"
    assert type(path_of(type("Text", (str,), {})("graph"))) is str
