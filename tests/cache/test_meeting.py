"""Processes find each other's memory by what it holds."""

import errno
import gc
import multiprocessing
import os
import stat
import tempfile
from pathlib import Path

import pytest

from fastloader.cache._meeting import HEADER_BYTES, hold, meet
from fastloader.shm import MemoryFile

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").exists() or not hasattr(os, "memfd_create"),
    reason="processes meet on Linux only",
)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"fastloader-{os.getuid()}"


def create():
    return MemoryFile.create(HEADER_BYTES + 8)


def refuse():
    raise AssertionError("there is one already")


def test_the_same_name_is_the_same_memory():
    with meet("a", create) as first, meet("a", refuse) as second:
        first.map()[HEADER_BYTES] = 7

        assert second.map()[HEADER_BYTES] == 7
        assert os.fstat(first.fileno()).st_ino == os.fstat(second.fileno()).st_ino


def test_another_name_is_other_memory():
    with meet("a", create) as first, meet("b", create) as second:
        assert os.fstat(first.fileno()).st_ino != os.fstat(second.fileno()).st_ino


def test_memory_that_is_gone_is_made_anew_and_leaves_no_note(folder):
    file = meet("a", create)
    assert len(list(folder.glob("*.json"))) == 1

    file.close()
    with meet("a", create) as second:
        assert second.map()[HEADER_BYTES] == 0
    del file, second
    gc.collect()

    assert not list(folder.glob("*.json"))


def test_a_descriptor_that_became_another_files_is_not_taken(folder):
    file = meet("a", create)
    number = file.fileno()
    file.close()
    with create() as other:
        os.dup2(other.fileno(), number)
        with meet("a", create) as second:
            assert os.fstat(second.fileno()).st_ino != os.fstat(other.fileno()).st_ino
    os.close(number)


@pytest.mark.parametrize("content", ["", "nonsense", "[1]", "[99999999, 3]", '["a", "b"]'])
def test_a_note_that_leads_nowhere_is_replaced(folder, content):
    with meet("a", create):
        pass
    for note in folder.glob("*.json"):
        note.write_text(content)

    with meet("a", create) as file, meet("a", refuse) as twin:
        assert os.fstat(file.fileno()).st_ino == os.fstat(twin.fileno()).st_ino


def test_notes_of_dead_processes_are_swept_away(folder):
    with meet("a", create):
        dead = folder / "dead.json"
        dead.write_text("[99999999, 3]")
        with meet("b", create):
            assert not dead.exists()
            assert len(list(folder.glob("*.json"))) == 2


def test_a_folder_that_others_can_enter_is_not_used(folder):
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)

    with meet("a", create) as first, meet("a", create) as second:
        assert os.fstat(first.fileno()).st_ino != os.fstat(second.fileno()).st_ino
    assert not list(folder.glob("*.json"))


def test_nobody_else_can_enter_the_folder(folder):
    with meet("a", create):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def write_seven(tempdir):
    tempfile.tempdir = tempdir
    with meet("a", refuse) as file:
        file.map()[HEADER_BYTES] = 7


@pytest.mark.multiprocess
def test_a_process_that_inherited_nothing_finds_it(tmp_path):
    with meet("a", create) as file:
        process = multiprocessing.get_context("forkserver").Process(
            target=write_seven, args=(str(tmp_path),)
        )
        process.start()
        process.join(60)

        assert process.exitcode == 0
        assert file.map()[HEADER_BYTES] == 7


def test_a_forked_child_leaves_its_parents_note_alone(folder):
    file = meet("a", create)
    pid = os.fork()
    if pid == 0:
        del file
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)

    assert len(list(folder.glob("*.json"))) == 1
    file.close()


class Owner:
    pass


def test_who_holds_a_name_hears_of_others_that_want_it():
    owner = Owner()
    word = hold("a", owner)
    assert not word.is_wanted()

    with meet("a", create):
        assert word.is_wanted()
        assert hold("a", owner) is None


@pytest.fixture(params=["no room", "no folder for temporary files"])
def _no_notes(request, monkeypatch):
    """Let nobody leave a note."""

    def refuse_to_write(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def find_none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    if request.param == "no room":
        monkeypatch.setattr(Path, "write_text", refuse_to_write)
    else:
        monkeypatch.setattr(tempfile, "gettempdir", find_none)


@pytest.mark.usefixtures("_no_notes")
def test_where_no_note_can_be_left_each_has_its_own(folder):
    with meet("a", create) as first, meet("a", create) as second:
        first.map()[HEADER_BYTES] = 7

        assert second.map()[HEADER_BYTES] == 0
    assert hold("b", first) is None
    assert not list(folder.glob("*.json"))
