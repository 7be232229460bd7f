"""Folders of images at URLs give what the same folders give on this machine."""

import os
import pickle
from functools import partial

import pytest
import zarr.codecs
from pyarrow import fs

from fastloader import FastLoader, OMEArrowDataset
from fastloader.errors import ImageDataError, SettingsError, SourceError
from fastloader.sources import open_source
from fastloader.sources._url_files import url_files
from tests.image_files import (
    assert_images,
    random_pixels,
    read_all,
    set_ome,
    write_ome_set,
    write_ome_zarr,
    write_plate,
    write_tiff,
)
from tests.sources.servers import object_store, web_server
from tests.sources.test_ome_arrow_folder import write_folder

PIXELS = [random_pixels((2, 20, 18), seed=seed) for seed in range(4)]

pytestmark = pytest.mark.library_threads  # Arrow's and fsspec's live on


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    deflate = {"compression": "zlib", "rowsperstrip": 7}
    for number, pixels in enumerate(PIXELS):
        options = deflate if number % 2 else {}
        write_tiff(
            root / "tiff" / f"plate{number % 2}" / f"{number}.tif", pixels, "CYX", **options
        )
    (root / "tiff" / ".hidden.tif").write_bytes(b"")
    unusual = [zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()]
    stores = root / "zarr"
    write_ome_zarr(stores / "0.zarr", PIXELS[0], version="0.4", chunks=(1, 16, 18))
    write_ome_zarr(stores / "1.zarr", PIXELS[1], chunks=(1, 10, 9), shards=(1, 20, 18))
    write_ome_zarr(stores / "2.zarr", PIXELS[2], compressors=unusual)
    set_ome(stores / "collection.zarr", {"bioformats2raw.layout": 3}, "0.4")
    write_ome_zarr(stores / "collection.zarr" / "0", PIXELS[3], version="0.4")
    write_plate(root / "plate.zarr", {"A/1": PIXELS[:2], "B/12": PIXELS[2:]})
    write_folder(root / "ome-arrow", [pixels[None, :, None] for pixels in PIXELS])
    write_ome_set(root / "set", [pixels[0] for pixels in PIXELS[:2]])
    return root


@pytest.fixture(scope="module")
def bucket(folder):
    with object_store(folder) as (url, query):
        yield lambda name: f"{url}/{name}{query}"


@pytest.fixture(scope="module")
def web(folder):
    with web_server(folder) as url:
        yield lambda name: f"{url}/{name}"


@pytest.fixture(scope="module")
def plain_web(folder):
    with web_server(folder, marks_folders=False) as url:
        yield lambda name: f"{url}/{name}"


@pytest.fixture(scope="module")
def memory(folder):
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(folder), "/fastloader-images", recursive=True)
    return lambda name: f"memory://fastloader-images/{name}"


@pytest.fixture(params=["bucket", "web", "plain_web", "memory"])
def at_url(request):
    """A function that gives the URL of a file or folder."""
    return request.getfixturevalue(request.param)


FOLDERS = [("tiff", "tiff"), ("zarr", "ome-zarr"), ("ome-arrow", "ome-arrow-folder")]


@pytest.mark.parametrize(("name", "kind"), [*FOLDERS, ("plate.zarr", None)])
def test_a_folder_at_a_url_gives_what_a_local_one_gives(folder, at_url, name, kind):
    here = open_source(folder / name, format=kind)

    there = open_source(at_url(name), format=kind)

    assert_images(read_all(here), read_all(there))
    assert_images(read_all(here, [1], channels=[1]), read_all(there, [1], channels=[1]))
    assert here.column_names == there.column_names
    for column in set(here.column_names) - {"folder"}:
        assert list(here.read_column(column)) == list(there.read_column(column))
    assert list(here.iterate_descriptions()) == list(there.iterate_descriptions())


class FlatStore:
    """Lists as Arrow's file system of Google's store does: folders only where objects stand for them."""

    type_name = "gcs"

    def __init__(self, *paths):
        self.paths = paths

    def get_file_info(self, selector):
        root = selector.base_dir.rstrip("/") + "/"
        inside = [path for path in self.paths if path.startswith(root)]
        return [
            fs.FileInfo(path, fs.FileType.Directory if path.endswith("/") else fs.FileType.File)
            for path in inside
            if selector.recursive or "/" not in path.removeprefix(root)
        ]


def test_folders_of_a_store_that_does_not_list_them_are_found():
    files = url_files(
        FlatStore("cells/1.tif", "cells/a/2.tif", "cells/a/b/3.tif", "cellsx/4.tif")
    )

    assert files.list_folder("cells") == (["a"], ["1.tif"])
    assert files.list_folder("cells/a/") == (["b"], ["2.tif"])


def test_files_of_any_name_are_found_at_urls(tmp_path):
    names = ["ä/2 x.tif", "ä/10 ö.tif", "p%20q/100%.tif", "h#1/?.tif", "[b]/&'\";+.tif"]
    for number, name in enumerate(names):
        write_tiff(tmp_path / "names" / name, random_pixels((4, 4 + number)))
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(tmp_path), "/fastloader-names", recursive=True)
    here = open_source(tmp_path / "names")

    with (
        object_store(tmp_path) as (bucket, query),
        web_server(tmp_path) as web,
        web_server(tmp_path, marks_folders=False) as plain_web,
    ):
        for root in (bucket, web, plain_web, "memory://fastloader-names"):
            url = f"{root}/names{query if root == bucket else ''}"
            there = open_source(url, format="tiff")
            assert_images(read_all(here), read_all(there))
            for column in ("path", "file_name"):
                assert here.read_column(column) == there.read_column(column)
            assert open_source(url, format="tiff", pattern="ä/* *").num_rows == 2


@pytest.mark.parametrize(("name", "kind"), FOLDERS)
def test_a_pickled_source_connects_anew(memory, name, kind):
    source = open_source(memory(name), format=kind)
    images = read_all(source)

    assert_images(images, read_all(pickle.loads(pickle.dumps(source))))


@pytest.mark.parametrize("name", ["tiff/plate1/3.tif", "zarr/1.zarr"])
def test_one_image_needs_no_list_of_a_server(folder, at_url, name):
    assert_images(read_all(open_source(folder / name)), read_all(open_source(at_url(name))))


@pytest.mark.parametrize(
    "names",
    [["tiff/plate1/3.tif", "tiff/plate0/0.tif"], ["zarr/1.zarr", "plate.zarr"]],
    ids=["tiff", "zarr"],
)
def test_a_list_of_images_comes_in_its_order(folder, memory, names):
    def local(name):
        return folder / name

    expected = [image for name in names for image in read_all(open_source(folder / name))]
    for place in (local, memory):
        source = open_source([place(name) for name in names])
        assert_images(expected, read_all(source))
        assert source.column_names[:3] == ("path", "file_name", "folder")
        assert source.read_column("file_name")[0] == names[0].rpartition("/")[2]


@pytest.mark.parametrize(
    "paths",
    [
        ["memory://a/x.tif", "https://host/x.tif"],
        ["https://one/x.tif", "https://two/x.tif"],
        ["s3://cells/x.tif?region=a", "s3://cells/y.tif?region=b"],
        ["https://host/x.tif", "y.tif"],
        ["y.tif", "https://host/x.tif"],
    ],
    ids=["scheme", "server", "options", "machine", "machine of the first"],
)
def test_a_list_of_images_that_have_nothing_in_common_is_refused(paths):
    with pytest.raises(SettingsError, match="need a folder or server in common"):
        open_source(paths)


def test_workers_started_by_fork_connect_for_themselves(memory, web):
    for at_url in (memory, web):
        dataset = OMEArrowDataset(at_url("tiff"), format="tiff", preload=False, dtype=None)
        expected = dataset.get_batch(range(4))  # connects this process first
        loader = FastLoader(dataset, 2, num_workers=2, multiprocessing_context="fork")
        for number, batch in enumerate(loader):
            assert batch.equal(expected[2 * number : 2 * number + 2])


@pytest.mark.parametrize(
    ("name", "kind", "one_file"),
    [("tiff", "tiff", "plate0/0.tif"), ("zarr", "ome-zarr", "0.zarr/00/0.0.0")],
    ids=["tiff", "zarr"],
)
def test_a_cache_on_disk_is_found_again_until_the_images_change(
    tmp_path, folder, memory, name, kind, one_file
):
    fsspec = pytest.importorskip("fsspec")
    open_it = partial(
        OMEArrowDataset,
        memory(f"changing/{name}"),
        format=kind,
        dtype=None,
        cache="disk",
        cache_dir=tmp_path,
    )
    files = fsspec.filesystem("memory")
    files.put(str(folder / name), f"/fastloader-images/changing/{name}", recursive=True)

    assert open_it(preload=False).num_cached == 0
    open_it()
    before = open_it(preload=False)
    assert len(list(tmp_path.glob("*.pixels"))) == 1
    assert before[0].shape == (2, 20, 18)
    changed = f"/fastloader-images/changing/{name}/{one_file}"
    files.pipe(changed, files.cat(changed))  # the same bytes, written later
    assert open_it(preload=False).num_cached == 0


def test_a_file_that_changed_since_is_an_error(folder, memory):
    fsspec = pytest.importorskip("fsspec")
    content = (folder / "tiff" / "plate1" / "3.tif").read_bytes()
    files = fsspec.filesystem("memory")
    files.pipe("/fastloader-images/one.tif", content)
    source = open_source(memory("one.tif"))

    files.pipe("/fastloader-images/one.tif", content + b"more")

    with pytest.raises(SourceError, match="was changed since it was first looked at"):
        read_all(source)


@pytest.mark.parametrize(
    "name",
    ["nosuch.tif", "nosuch.zarr", "tiff/plate0/nosuch.tif", "nosuch/_ome_arrow_dataset.json"],
)
def test_what_is_not_there_is_named(at_url, name):
    with pytest.raises(SourceError, match="nosuch"):
        open_source(at_url(name))


def test_a_folder_at_a_url_does_not_tell_its_format(memory):
    with pytest.raises(SourceError, match=r"does not tell its format: .* or format="):
        open_source(memory("tiff"))


def test_files_of_a_set_are_not_joined_at_a_url(memory):
    with pytest.raises(ImageDataError, match="at a URL, where files are not joined"):
        open_source(memory("set"), format="tiff")

    source = open_source(memory("set"), format="tiff", join_files=False)

    assert_images([pixels[None, :1, None] for pixels in PIXELS[:2]], read_all(source))


class LostConnection:
    """Files that were reached before."""

    def __getattr__(self, name):
        raise RuntimeError("the connection was lost")


@pytest.mark.parametrize("name", ["tiff/plate1/3.tif", "zarr/1.zarr"])
def test_a_server_that_cannot_be_reached_any_more_is_no_damage(memory, name):
    source = open_source(memory(name))
    getattr(source._tree, "_tree", source._tree)._connected = {
        os.getpid(): (LostConnection(), "")
    }

    with pytest.raises(
        SourceError, match=r"cannot be read .*the connection was lost"
    ) as caught:
        read_all(source)
    assert not isinstance(caught.value, ImageDataError)


def test_a_server_that_gives_whole_files_only_is_read():
    class WholeFiles:
        def cat_file(self, path, start, end):
            return b"0123456789"

    files = url_files(fs.PyFileSystem(fs.FSSpecHandler(WholeFiles())))

    assert files.read("a", 2, 5) == b"234"
    assert files.read("a") == b"0123456789"
