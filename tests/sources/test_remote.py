"""URLs: an object store and a web server that the tests start give what local files give."""

import os
import pickle
import threading
import traceback

import pyarrow.compute as pc
import pytest

from fastloader.errors import SourceError
from fastloader.sources import open_source
from tests.ome_arrow_tables import ome_arrow_value, random_image
from tests.sources.reading import assert_same, read_images
from tests.sources.servers import object_store, web_server
from tests.sources.test_formats import write

IMAGES = [random_image((1, 2, 1, 3, 4), seed=seed) for seed in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("remote")
    for kind in ("parquet", "arrow", "feather"):
        write(root, kind, list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])
    for plate in (7, 12):
        part = root / "plates" / f"plate={plate}"
        part.mkdir(parents=True)
        write(part, "parquet", [ome_arrow_value(IMAGES[0])], n=[plate])
    table = root / "table.parquet"
    (table / "_delta_log").mkdir(parents=True)
    write(table, "parquet", [ome_arrow_value(IMAGES[2])], n=[5])
    write(table / "_delta_log", "parquet", [ome_arrow_value(IMAGES[3])], n=[6])
    (root / "empty").mkdir()
    odd = root / "odd names" / "well=B%201 é"
    odd.mkdir(parents=True)
    path = write(odd, "parquet", [ome_arrow_value(IMAGES[1])], n=[5])
    path.rename(odd / "50% of a+b & #1?.parquet")
    return root


@pytest.fixture(scope="module")
def bucket(folder):
    """An object store with the files in it; gives the URL of the bucket and a query for it."""
    with object_store(folder) as (url, query):
        yield url, query


@pytest.fixture(scope="module")
def web(folder):
    """A web server with the files in it, which can give parts of them; gives its URL."""
    with web_server(folder) as url:
        yield url


pytestmark = pytest.mark.library_threads  # Arrow's and fsspec's live on


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_an_object_store_gives_what_a_local_file_gives(bucket, kind):
    url, query = bucket

    source = open_source(f"{url}/cells.{kind}{query}")

    assert_same(IMAGES, read_images(source))
    assert_same([None, IMAGES[1], None, None], read_images(source, [1]))
    assert source.read_column("n").tolist() == [0, 1, 2, 3]
    assert source.find_rows(pc.field("n") > 1).tolist() == [2, 3]
    assert_same(IMAGES, read_images(pickle.loads(pickle.dumps(source))))


def test_a_folder_of_an_object_store_gives_its_partitions(bucket):
    url, query = bucket

    source = open_source(f"{url}/plates{query}", format="parquet")

    assert source.read_column("plate").tolist() == [12, 7]
    assert_same([IMAGES[0]] * 2, read_images(source))
    assert source.find_rows(pc.field("plate") == 7).tolist() == [1]


def test_names_of_any_characters_are_found_in_an_object_store(folder, bucket):
    url, query = bucket

    here = open_source(folder / "odd names", format="parquet")
    there = open_source(f"{url}/odd names{query}", format="parquet")

    assert list(there.read_column("well")) == list(here.read_column("well")) == ["B 1 é"]
    assert_same([IMAGES[1]], read_images(there))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_a_web_server_gives_what_a_local_file_gives(web, kind):
    source = open_source(f"{web}/cells.{kind}")

    assert_same(IMAGES, read_images(source))
    assert_same([None, None, IMAGES[2], None], read_images(source, [2]))
    assert source.find_rows(pc.field("n") > 1).tolist() == [2, 3]
    assert_same(IMAGES, read_images(pickle.loads(pickle.dumps(source))))


@pytest.mark.parametrize("marks_folders", [True, False])
@pytest.mark.parametrize("place", ["plates", "plates/"])
def test_a_folder_of_a_web_server_gives_its_partitions(folder, marks_folders, place):
    with web_server(folder, marks_folders=marks_folders) as web:
        source = open_source(f"{web}/{place}", format="parquet")

        assert source.read_column("plate").tolist() == [12, 7]
        assert_same([IMAGES[0]] * 2, read_images(source))


def test_names_of_any_characters_are_found_on_a_web_server(web):
    source = open_source(f"{web}/odd%20names/", format="parquet")

    assert list(source.read_column("well")) == ["B 1 é"]
    assert_same([IMAGES[1]], read_images(source))


@pytest.mark.parametrize("is_of_web", [True, False])
def test_a_folder_named_like_a_file_is_read(request, is_of_web):
    if is_of_web:
        url, query = request.getfixturevalue("web"), ""
    else:
        url, query = request.getfixturevalue("bucket")

    source = open_source(f"{url}/table.parquet{query}")

    assert source.read_column("n").tolist() == [5]
    assert_same([IMAGES[2]], read_images(source))


def test_a_folder_of_a_web_server_without_tables_is_refused(web):
    with pytest.raises(SourceError, match="empty is a folder without Parquet files"):
        open_source(f"{web}/empty", format="parquet")


def test_a_web_server_that_is_gone_is_told():
    pytest.importorskip("aiohttp")

    with pytest.raises(SourceError, match="plates cannot be read"):
        open_source("http://127.0.0.1:1/plates", format="parquet")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_web_server_that_fails_is_told_without_passwords(folder, kind, is_open):
    is_broken = threading.Event()
    with web_server(folder, is_broken=is_broken) as web:
        url = f"{web}/cells.{kind}?token=s3cr3t"
        source = open_source(url) if is_open else None
        is_broken.set()

        with pytest.raises(SourceError, match=rf"cells\.{kind}.* cannot be re") as caught:
            read_images(source or open_source(url))

    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_table_of_a_web_server_that_is_replaced_while_it_is_open_is_an_error(tmp_path, kind):
    write(tmp_path, kind, list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])
    with web_server(tmp_path) as web:
        source = open_source(f"{web}/cells.{kind}")
        assert_same([IMAGES[0], None, None, None], read_images(source, [0]))

        write(tmp_path, kind, list(map(ome_arrow_value, IMAGES[::-1])), n=[0, 1, 2, 3])
        os.utime(tmp_path / f"cells.{kind}", (1, 1))

        with pytest.raises(SourceError, match=rf"cells\.{kind} was replaced since"):
            read_images(source)


def test_a_table_of_a_web_server_is_another_when_it_was_changed(folder, web):
    written = write(folder, "parquet", list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])
    moved = written.rename(folder / "changing.parquet")
    first = open_source(f"{web}/changing.parquet").fingerprint
    assert open_source(f"{web}/changing.parquet").fingerprint == first
    write(folder, "parquet", list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])

    os.utime(moved, (1, 1))

    assert open_source(f"{web}/changing.parquet").fingerprint != first


@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather"])
def test_a_web_server_that_gives_whole_files_only_is_read(folder, kind):
    with web_server(folder, gives_parts=False) as web:
        source = open_source(f"{web}/cells.{kind}")

        assert_same(IMAGES, read_images(source))
        assert_same([None, None, IMAGES[2], None], read_images(source, [2]))
        again = pickle.dumps(source)
        assert len(again) < (folder / f"cells.{kind}").stat().st_size
        assert_same(IMAGES, read_images(pickle.loads(again)))


def test_a_large_file_that_is_given_whole_is_told(folder, monkeypatch):
    monkeypatch.setattr("fastloader.sources._location._LARGE_BYTES", 1000)

    with (
        web_server(folder, gives_parts=False) as web,
        pytest.warns(UserWarning, match=r"cells\.parquet: its server gives whole files only"),
    ):
        open_source(f"{web}/cells.parquet")


def test_a_file_that_is_given_whole_and_changed_is_told(folder):
    written = write(folder, "parquet", list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])
    path = written.rename(folder / "whole.parquet")
    write(folder, "parquet", list(map(ome_arrow_value, IMAGES)), n=[0, 1, 2, 3])
    with web_server(folder, gives_parts=False) as web:
        source = open_source(f"{web}/whole.parquet")
        os.utime(path, (1, 1))

        with pytest.raises(SourceError, match=r"whole\.parquet was replaced since"):
            read_images(pickle.loads(pickle.dumps(source)))


def test_options_of_fsspec_reach_it(folder):
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/fastloader-test/cells.parquet", (folder / "cells.parquet").read_bytes())
    local = (folder / "cells.parquet").as_uri()

    assert_same(IMAGES, read_images(open_source("memory://fastloader-test/cells.parquet")))
    assert_same(IMAGES, read_images(open_source(local)))
    options = {"expiry_time": 5}
    source = open_source(f"simplecache::{local}", storage_options=options, format="parquet")
    assert_same(IMAGES, read_images(source))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_what_is_not_there_is_named(web, bucket, kind):
    url, query = bucket
    for place in (f"{web}/nosuch.{kind}", f"{url}/nosuch.{kind}{query}"):
        with pytest.raises(SourceError, match=rf"nosuch\.{kind}"):
            open_source(place)


@pytest.mark.parametrize("kind", ["duckdb", "vortex"])
def test_formats_that_read_local_files_only_say_so(kind):
    pytest.importorskip(kind)

    with pytest.raises(SourceError, match="read from local disk only"):
        open_source(f"s3://cells/cells.{kind}")


def test_a_scheme_that_nobody_knows_is_refused():
    pytest.importorskip("fsspec")

    with pytest.raises(SourceError, match=r"nosuch://cells/a\.parquet cannot be reached"):
        open_source("nosuch://cells/a.parquet")
