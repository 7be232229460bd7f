"""A zipped store gives what the same store in a folder gives."""

import pickle
import shutil
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr.codecs

from fastloader.errors import SourceError
from fastloader.sources import OmeZarrFolder, open_source
from fastloader.sources._file_tree import LocalTree
from fastloader.sources._zip_tree import UnzippedTree
from tests.image_files import (
    assert_images,
    random_pixels,
    read_all,
    write_ome_zarr,
    write_plate,
)
from tests.sources.servers import object_store, web_server

PIXELS = random_pixels((2, 20, 18))


def pack(store, archive, method=zipfile.ZIP_STORED, root=""):
    """Put a store in an archive, below a folder if it has a name; return the archive's path."""
    with zipfile.ZipFile(archive, "w", method) as opened:
        for path in sorted(store.rglob("*")):
            if path.is_file():
                opened.write(path, f"{root}{path.relative_to(store)}")
    return archive


STORES = {
    "0.4": {"version": "0.4", "chunks": (1, 8, 8)},
    "0.5": {"compressors": zarr.codecs.ZstdCodec(), "chunks": (1, 16, 18)},
    "shards": {"chunks": (1, 10, 9), "shards": (1, 20, 18)},
    "by zarr": {
        "version": "0.4",
        "filters": [numcodecs.Delta(dtype="u2")],
        "compressors": numcodecs.LZMA(),
    },
}


@pytest.mark.parametrize("options", STORES.values(), ids=STORES)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["a.zarr.zip", "a.ozx"])
def test_a_zipped_store_gives_its_pixels(tmp_path, options, method, name):
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS, num_levels=2, **options)

    source = pickle.loads(pickle.dumps(open_source(pack(store, tmp_path / name, method))))

    assert source.read_column("file_name") == [name]
    assert_images([PIXELS[None, :, None]], read_all(source))
    coarse = OmeZarrFolder(tmp_path / name, level=1)
    assert_images([PIXELS[None, :, None, ::2, ::2]], read_all(coarse))


@pytest.fixture
def archives(tmp_path):
    """A folder of archives and stores, in two depths; and the images in natural order."""
    images = [random_pixels((2, 9, 8), seed=seed) for seed in range(4)]
    for number, place in enumerate(["a2.zarr.zip", "a10.ozx", "deep/b.ZARR.ZIP"]):
        store = write_ome_zarr(tmp_path / "store", images[number], chunks=(1, 4, 4))
        (tmp_path / place).parent.mkdir(exist_ok=True)
        pack(store, tmp_path / place, [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED][number % 2])
        shutil.rmtree(store)
    write_ome_zarr(tmp_path / "deep" / "c.zarr", images[3])
    (tmp_path / "notes.zip").write_bytes(b"no archive")
    return tmp_path, [image[None, :, None] for image in images]


def test_a_folder_of_archives_gives_all_images(archives, monkeypatch):
    folder, images = archives
    monkeypatch.setattr("fastloader.sources._zip_tree._MOST_OPEN", 1)

    source = pickle.loads(pickle.dumps(open_source(folder)))

    assert source.read_column("path") == [
        "a2.zarr.zip",
        "a10.ozx",
        "deep/b.ZARR.ZIP",
        "deep/c.zarr",
    ]
    assert source.read_column("folder")[2] == "deep"
    assert_images(images, read_all(source))
    listed = open_source([folder / "deep" / "c.zarr", folder / "a10.ozx"], format="ome-zarr")
    assert_images([images[3], images[1]], read_all(listed))


@pytest.mark.library_threads
@pytest.mark.parametrize("place", ["", "a10.ozx"])
@pytest.mark.parametrize("kind", ["web", "bucket"])
def test_archives_at_urls_are_read(archives, kind, place):
    folder, images = archives
    server = object_store if kind == "bucket" else web_server
    with server(folder) as found:
        url, query = found if kind == "bucket" else (found, "")
        source = open_source(f"{url}/{place}{query}", format="ome-zarr")
        same = pickle.loads(pickle.dumps(source))

        assert_images(images if not place else images[1:2], read_all(same))
        assert (
            source.fingerprint
            == open_source(f"{url}/{place}{query}", format="ome-zarr").fingerprint
        )


def test_an_archive_by_another_name_is_read_where_the_format_is_given(tmp_path):
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS)

    source = open_source(pack(store, tmp_path / "a.zip"), format="ome-zarr")

    assert_images([PIXELS[None, :, None]], read_all(source))


@pytest.mark.library_threads
def test_an_archive_at_a_url_that_needs_zarr_is_refused(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS, **STORES["by zarr"])
    archive = pack(store, tmp_path / "a.ozx")
    fsspec.filesystem("memory").pipe("/fastloader-zip/a.ozx", archive.read_bytes())

    with pytest.raises(SourceError, match="download the archive"):
        read_all(open_source("memory://fastloader-zip/a.ozx"))


def test_a_header_longer_than_the_list_says_is_read(tmp_path):
    name, content = "0/c/0", bytes(range(100))
    info = zipfile.ZipInfo(name)
    info.extra = b"\xfe\xca" + (200).to_bytes(2, "little") + bytes(200)
    with zipfile.ZipFile(tmp_path / "a.ozx", "w") as archive:
        archive.writestr(info, content)
        info.extra = b""  # of the archive's list, which is written last

    assert UnzippedTree(LocalTree(str(tmp_path / "a.ozx"))).read(name) == content


def test_stores_below_a_folder_of_the_archive_and_plates_are_found(tmp_path):
    images = [random_pixels((1, 4, 4), seed=seed) for seed in range(2)]
    store = write_plate(tmp_path / "p.zarr", {"A/1": images[:1], "B/12": images[1:]})

    source = open_source(pack(store, tmp_path / "p.zarr.zip", root="p.zarr/"))

    assert source.read_column("well") == ["A1", "B12"]
    assert_images([one[None, :, None] for one in images], read_all(source))


@pytest.mark.multiprocess
def test_processes_read_a_zipped_store(tmp_path, monkeypatch):
    images = [random_pixels((1, 4, 4), seed=seed) for seed in range(40)]
    store = write_plate(tmp_path / "p.zarr", {"A/1": images})
    archive = pack(store, tmp_path / "p.zarr.zip", zipfile.ZIP_DEFLATED)
    monkeypatch.setattr("fastloader.sources._jobs._WORTH_STARTING_SECONDS", -1)

    assert_images(
        [one[None, :, None] for one in images], read_all(open_source(archive), num_threads=3)
    )


def test_a_missing_chunk_is_of_the_fill_value(tmp_path):
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS, fill_value=7)
    (store / "00" / "c" / "0" / "0" / "0").unlink()

    assert (read_all(open_source(pack(store, tmp_path / "a.zarr.zip")))[0] == 7).all()


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.ozx").write_bytes(b"PK")

    with pytest.raises(SourceError, match=r"a\.ozx cannot be read as a zip archive"):
        open_source(tmp_path / "a.ozx")


def test_a_folder_whose_name_ends_so_is_a_folder(tmp_path):
    write_ome_zarr(tmp_path / "a.zarr.zip", PIXELS)

    assert_images([PIXELS[None, :, None]], read_all(open_source(tmp_path / "a.zarr.zip")))


def test_an_archive_that_was_made_anew_is_refused(tmp_path):
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS)
    source = open_source(pack(store, tmp_path / "a.zarr.zip"))
    before = source.fingerprint
    shutil.rmtree(store)
    write_ome_zarr(store, PIXELS[:, ::-1])
    pack(store, tmp_path / "a.zarr.zip", zipfile.ZIP_DEFLATED)

    with pytest.raises(SourceError, match="was changed since it was first looked at"):
        read_all(source)
    assert open_source(tmp_path / "a.zarr.zip").fingerprint != before


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_archive_is_told_or_gives_its_pixels(tmp_path, seed):
    store = write_ome_zarr(tmp_path / "a.zarr", PIXELS, chunks=(1, 10, 9))
    archive = pack(store, tmp_path / "a.zarr.zip", zipfile.ZIP_DEFLATED)
    rng = np.random.default_rng(seed)
    content = bytearray(archive.read_bytes())
    for at in rng.integers(0, len(content), 4):
        content[at] = rng.integers(0, 256)
    archive.write_bytes(
        bytes(content[: int(rng.integers(1, len(content))) if seed % 4 == 0 else None])
    )

    try:
        images = read_all(open_source(archive))
    except SourceError as error:
        told = error
    else:
        # A name may have been damaged, and a chunk that is not there is of the fill value.
        is_right = images[0] == PIXELS[None, :, None]
        assert (is_right | (images[0] == 0)).all()
        return
    assert "a.zarr.zip" in str(told)
