"""Entries of archives, read as `zipfile` reads them."""

import io
import zipfile
import zlib

import pytest

from tbscope.sources.torch.archives import entry_content

TEXT = b"torch writes the same line again and again\n" * 20


@pytest.fixture
def archive():
    """An archive with an entry that is packed, one that is not, and one with another alphabet."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as writer:
        writer.writestr("packed", TEXT, zipfile.ZIP_DEFLATED)
        writer.writestr("stored", TEXT)
        writer.writestr("\N{GREEK SMALL LETTER ALPHA}", b"")
        writer.writestr("other", TEXT, zipfile.ZIP_BZIP2)
    return content


def entries(archive):
    """Give the entries of an archive by name."""
    return {entry.filename: entry for entry in zipfile.ZipFile(archive).infolist()}


def test_an_entry_has_the_content_that_zipfile_reads(archive):
    for name in ("packed", "stored", "\N{GREEK SMALL LETTER ALPHA}"):
        content = entry_content(archive, entries(archive)[name], len(archive.getvalue()))
        assert content == zipfile.ZipFile(archive).read(name)


@pytest.mark.parametrize("name", ["packed", "stored"])
def test_an_entry_with_one_byte_changed_is_refused_where_its_content_is_another(archive, name):
    entry = entries(archive)[name]
    whole = archive.getvalue()
    start = entry.header_offset + 30 + len(name)
    ends = set()
    for place in range(start, start + entry.compress_size):
        damaged = whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :]
        try:
            ends.add(entry_content(io.BytesIO(damaged), entry, len(whole)))
        except (zipfile.BadZipFile, zlib.error):
            ends.add("refused")
    assert "refused" in ends <= {"refused", TEXT}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"header_offset": 7}, "does not start with its head"),
        ({"header_offset": 10**6}, "does not start with its head"),
        ({"orig_filename": "stored"}, "has another name in its head: b'packed'"),
        ({"flag_bits": 1}, "is encrypted"),
        ({"file_size": 10}, "is not what its checksum tells"),
        ({"file_size": 10, "CRC": zlib.crc32(TEXT[:10])}, "is not what its checksum tells"),
        ({"file_size": 10**4}, "is not what its checksum tells"),
        ({"CRC": 1}, "is not what its checksum tells"),
        ({"compress_type": 12}, "is packed in an unknown way"),
    ],
)
def test_an_entry_that_is_not_what_the_archive_says_is_refused(archive, changes, why):
    entry = entries(archive)["packed"]
    assert entry_content(archive, entry, 10**6) == TEXT
    for name, value in changes.items():
        setattr(entry, name, value)

    with pytest.raises((zipfile.BadZipFile, NotImplementedError), match=why):
        entry_content(archive, entry, 10**6)


def test_no_more_is_asked_of_a_file_than_it_has(archive):
    class Noting(io.BytesIO):
        asked = 0

        def read(self, size=-1):
            Noting.asked = max(Noting.asked, size)
            return super().read(size)

    entry = entries(archive)["packed"]
    entry.compress_size = 2**40
    size = len(archive.getvalue())
    assert entry_content(Noting(archive.getvalue()), entry, size) == TEXT
    assert Noting.asked <= size
