"""A file of this machine is read whole, however much of it the system reads at once."""

import os

import pytest

from fastloader.sources._file_tree import LocalTree

CONTENT = bytes(range(256)) * 10


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "large").write_bytes(CONTENT)
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(
        os, "pread", lambda file, num_bytes, at: pread(file, min(num_bytes, 999), at)
    )
    monkeypatch.setattr(
        os, "preadv", lambda file, parts, at: preadv(file, [parts[0][:999]], at)
    )
    with LocalTree(str(tmp_path)).opened("large") as opened:
        yield opened


def test_bytes_are_those_of_the_place(file):
    assert file.read(3, 2500) == CONTENT[3:2503]


def test_bytes_are_fewer_where_the_file_ends(file):
    assert file.read(3, 4000) == CONTENT[3:]


def test_bytes_of_several_places_come_in_their_order(file):
    assert list(file.read_each([(100, 2000), (0, 5)])) == [CONTENT[100:2100], CONTENT[:5]]


def test_memory_is_filled(file):
    target = bytearray(2500)

    file.read_into(3, memoryview(target))

    assert target == CONTENT[3:2503]


def test_memory_that_the_file_does_not_fill_is_an_error(file):
    with pytest.raises(EOFError, match="too early"):
        file.read_into(3, memoryview(bytearray(4000)))
