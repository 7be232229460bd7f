"""Small files in which the system tells of itself."""

import pytest

from fastloader.machine._system_files import read_field, read_text


def test_text_longer_than_one_call_reads_is_whole(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text("mount\n" * 30_000)

    assert read_text(str(path)) == "mount\n" * 30_000


@pytest.mark.parametrize("name", ["missing", "."], ids=["no file", "a folder"])
def test_what_cannot_be_read_holds_nothing(tmp_path, name):
    assert read_text(str(tmp_path / name)) == ""
    assert read_field(str(tmp_path / name), "MemFree:") is None


def test_a_field_is_found_by_its_whole_name_at_the_start_of_a_line(tmp_path):
    path = tmp_path / "stat"
    path.write_text("total_cache 1\ncache 2\nMemAvailable:   30 kB\n")

    assert read_field(str(path), "cache") == 2
    assert read_field(str(path), "MemAvailable:") == 30
    assert read_field(str(path), "ca") is None
