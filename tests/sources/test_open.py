"""The format of a path: by its name, by what lies there, or as the caller says."""

import os

import pytest

from fastloader._extras import import_extra
from fastloader.errors import MissingExtraError, SettingsError, SourceError
from fastloader.sources import FORMATS, ParquetSource, open_source
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images

IMAGE = random_image((1, 2, 1, 3, 4))


@pytest.mark.parametrize("name", ["a.parquet", "a.PQ"])
def test_the_ending_of_a_name_tells_the_format(tmp_path, name):
    path = write_images(tmp_path / name, [ome_arrow_value(IMAGE)])

    assert isinstance(open_source(path), ParquetSource)
    assert isinstance(open_source(str(path), "image"), ParquetSource)


def test_a_format_that_is_named_wins(tmp_path):
    path = write_images(tmp_path / "cells.lance", [ome_arrow_value(IMAGE)])

    assert isinstance(open_source(path, format="parquet"), ParquetSource)


def test_an_ending_that_tells_nothing_is_refused(tmp_path):
    (tmp_path / "cells.dat").write_bytes(b"")

    with pytest.raises(SourceError, match=r"cells\.dat does not tell its format: .*\.parquet"):
        open_source(tmp_path / "cells.dat")


def test_a_path_that_leads_nowhere_is_said_to(tmp_path):
    with pytest.raises(SourceError, match=r"nowhere is not there\.$"):
        open_source(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["images.parquet", "images.arrow", "images.tif"])
@pytest.mark.parametrize(
    "as_given", [lambda path: path, lambda path: [path]], ids=["one", "list"]
)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name, as_given):
    os.mkfifo(tmp_path / name)

    with pytest.raises(SourceError, match=f"{name} is a pipe.*expected a file or a folder"):
        open_source(as_given(tmp_path / name))


@pytest.mark.parametrize("name", ["png", ["parquet"]])
def test_a_format_that_does_not_exist_is_refused(tmp_path, name):
    with pytest.raises(SettingsError, match=r"format=.*: expected one of .*parquet"):
        open_source(tmp_path / "a.parquet", format=name)


def test_no_files_are_refused():
    with pytest.raises(SourceError, match="An empty list of files"):
        open_source([])


@pytest.mark.parametrize("path", [5, None, b"a.parquet", [1], [["a.parquet"]]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(SettingsError, match="is no path: expected one, a URL, or several"):
        open_source(path)


def test_files_may_come_from_any_iterable(tmp_path):
    for name in "ba":
        write_images(tmp_path / f"{name}.parquet", [ome_arrow_value(IMAGE)])

    assert open_source(tmp_path.glob("*.parquet")).num_rows == 2


def test_an_option_that_a_format_does_not_have_is_refused(tmp_path):
    path = write_images(tmp_path / "a.parquet", [ome_arrow_value(IMAGE)])

    with pytest.raises(SettingsError, match="'parquet' has no option nosuch; its options are"):
        open_source(path, nosuch=1)
    assert open_source(path, nosuch=None).num_rows == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.zarr", {"level": "1"}),
        ("a.zarr", {"level": 1.0}),
        ("a.zarr", {"level": True}),
        ("a.zarr", {"pixel_size": "0.65"}),
        ("a.tif", {"series": "0"}),
        ("a.tif", {"pattern": 7}),
        ("a.tif", {"join_files": "false"}),
        ("a.tif", {"num_cores": 1.5}),
        ("a.duckdb", {"table": 7}),
        ("a.duckdb", {"query": b"from images"}),
        ("a.lance", {"version": 1.5}),
        ("a.parquet", {"storage_options": [("anon", True)]}),
    ],
)
def test_an_option_of_a_wrong_type_is_refused_before_anything_is_read(name, options):
    (option,) = options

    with pytest.raises(SettingsError, match=f"{option}=.*: expected "):
        open_source(name, **options)


def test_every_format_has_its_own_endings():
    endings = [ending for one in FORMATS.values() for ending in one.suffixes]

    assert len(set(endings)) == len(endings)
    assert all(name == one.name for name, one in FORMATS.items())


def test_a_missing_package_gives_the_command_that_installs_it():
    with pytest.raises(MissingExtraError, match=r'pip install "fastloader\[lance\]"'):
        import_extra("no_such_module", "lance", "Reading a.lance")
