"""The list of what is mapped, read from the system's file."""

import mmap
import sys

import numpy as np
import pytest

from fastloader.machine._address_space import Span, read_spans


def test_each_line_becomes_a_span(tmp_path):
    path = tmp_path / "maps"
    path.write_text(
        "7f00-7f10 rw-p 00000000 00:00 0 \n"
        "7f10-7f30 r--s 00002000 00:1a 4242                       /data/two words (deleted)\n",
        encoding="utf-8",
    )

    assert list(read_spans(path)) == [
        Span(0x7F00, 0x7F10, "rw-p", 0, 0, ""),
        Span(0x7F10, 0x7F30, "r--s", 0x2000, 4242, "/data/two words (deleted)"),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_what_this_process_has_mapped_is_found(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    array = np.memmap(path, np.uint8, "r", offset=mmap.PAGESIZE)
    address = array.ctypes.data

    (span,) = (span for span in read_spans() if span.start <= address < span.stop)

    assert span.name == str(path)
    assert span.inode == path.stat().st_ino
    assert span.offset_bytes + address - span.start == mmap.PAGESIZE
