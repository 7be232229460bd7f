"""What memory it is that lies at an address."""

import mmap
import os
from pathlib import Path

import pytest

from fastloader.direct._memory_maps import read_mappings

SIZE = 1 << 20

SMAPS = """\
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Size:               2048 kB
Shared_Clean:          8 kB
Shared_Dirty:         16 kB
Private_Dirty:      2024 kB
7f0000200000-7f0000300000 r--s 00000000 fe:01 77                         /data/my images.bin
Shared_Clean:          0 kB
7f0000300000-7f0000400000 rw-s 00000000 00:01 5                          /memfd:pixels (deleted)
Shared_Dirty:       1024 kB
7f0000500000-7f0000600000 rw-p 00000000 00:00 0                          [heap]
"""


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0x0, 0x1000, [(True, None, 24 << 10)]),
        (0x1FFFFF, 0x200001, [(True, None, 24 << 10), (False, "/data/my images.bin", 0)]),
        (0x300000, 0x400000, [(False, None, 1024 << 10)]),
        (0x400000, 0x500000, []),
        (0x500000, 0x600000, [(True, None, 0)]),
    ],
    ids=["shared with a child", "across an edge", "memory file", "nothing", "heap"],
)
def test_mappings_are_read_as_the_system_writes_them(tmp_path, start, stop, expected):
    path = tmp_path / "smaps"
    path.write_text(SMAPS)

    found = read_mappings(0x7F0000000000 + start, 0x7F0000000000 + stop, path)

    assert list(map(tuple, found)) == expected


pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps").exists(), reason="the system does not tell"
)


def address_of(memory):
    import ctypes

    return ctypes.addressof((ctypes.c_char * SIZE).from_buffer(memory))


def mapping_at(memory):
    start = address_of(memory)
    [found] = read_mappings(start, start + SIZE)
    return found


def test_memory_of_the_process_is_told_from_that_of_files(tmp_path):
    own = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, SIZE)
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(SIZE)
        stored = mmap.mmap(file.fileno(), SIZE)

    assert (mapping_at(own).is_private, mapping_at(own).file) == (True, None)
    assert (mapping_at(shared).is_private, mapping_at(shared).file) == (False, None)
    assert mapping_at(stored).file == str(tmp_path / "file")


def test_pages_that_a_child_has_as_well_are_counted():
    own = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    own[:] = b"x" * SIZE
    before = mapping_at(own).common_bytes
    waiting, ending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ending)
        os.read(waiting, 1)
        os._exit(0)

    during = mapping_at(own).common_bytes
    os.close(ending)
    os.waitpid(child, 0)
    os.close(waiting)

    assert during >= before + SIZE
