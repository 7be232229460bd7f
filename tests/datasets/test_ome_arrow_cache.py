"""Where OMEArrowDataset keeps pixels, and when they get there."""

import dataclasses
import gc
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from fastloader import FastLoader
from fastloader.cache import ImageCache, OwnImages
from fastloader.datasets import OMEArrowDataset
from fastloader.datasets._batched import as_batched
from fastloader.datasets._resident import make_resident, preferred_residence
from fastloader.errors import ImageDataError, SettingsError, SharedMemoryError
from fastloader.inspection._fingerprint import fingerprint
from fastloader.machine._machine import read_machine
from fastloader.shm import gives_huge_pages
from fastloader.sources import ParquetSource
from tests.image_files import write_ome_zarr, write_tiff
from tests.ome_arrow_tables import image_array, ome_arrow_value, random_image, write_images
from tests.start_methods import START_METHODS

IMAGES = [random_image((1, 2, 1, 6, 5), seed=seed) for seed in range(9)]
EXPECTED = torch.stack([torch.from_numpy(i[0, :, 0].astype(np.float32)) for i in IMAGES])


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("FASTLOADER_CACHE_DIR", str(tmp_path / "cache"))
    # So small that each row group is a unit.
    monkeypatch.setattr("fastloader.cache._units._UNIT_BYTES", 1)


@pytest.fixture
def path(tmp_path):
    return write(tmp_path, IMAGES)


def write(folder, images):
    values = [None if image is None else ome_arrow_value(image) for image in images]
    return write_images(folder / "cells.parquet", values, number=range(len(images)))


def assert_whole(dataset):
    indices = [8, 0, 4, 4, 1, 2, 3, 5, 6, 7]
    assert torch.equal(EXPECTED[indices], dataset.get_batch(indices))


@pytest.fixture
def reads(monkeypatch):
    """Rows of each call that reads pixels in this process."""
    found = []
    original = ParquetSource.read_images

    def read_images(self, rows, *args, **options):
        found.append(rows.tolist())
        return original(self, rows, *args, **options)

    monkeypatch.setattr(ParquetSource, "read_images", read_images)
    return found


every_cache = pytest.mark.parametrize("cache", ["shared", "disk"])
every_preload = pytest.mark.parametrize("preload", [True, "background", False])


@every_cache
@every_preload
def test_pixels_are_the_same_wherever_and_whenever(path, cache, preload):
    assert_whole(OMEArrowDataset(path, cache=cache, preload=preload))


@every_cache
def test_without_preload_a_row_group_is_decoded_when_it_is_first_asked_for(path, cache, reads):
    dataset = OMEArrowDataset(path, cache=cache, preload=False)
    assert not reads

    dataset[3]
    dataset.get_batch([2, 3])

    assert reads == [[2, 3]]
    assert dataset.num_cached == 2


def test_without_a_cache_nothing_is_kept(path, reads):
    dataset = OMEArrowDataset(path, preload=False)

    for _ in range(2):
        dataset.get_batch([3, 0, 3])

    assert reads == [[0, 3], [0, 3]]
    assert dataset.num_cached == 0


@every_cache
def test_the_background_fills_the_cache_and_its_thread_ends(path, cache):
    dataset = OMEArrowDataset(path, cache=cache, preload="background")

    deadline = time.monotonic() + 20
    while dataset.num_cached < 9 and time.monotonic() < deadline:
        time.sleep(0.005)

    assert dataset.num_cached == 9
    assert_whole(dataset)
    for thread in threading.enumerate():
        if thread.name == "fastloader-fill":
            thread.join(5)
            assert not thread.is_alive()


def test_a_dropped_dataset_ends_its_thread(path, monkeypatch, no_leaks):
    slow_reads(monkeypatch)
    dataset = OMEArrowDataset(path, preload="background")
    assert any(thread.name == "fastloader-fill" for thread in threading.enumerate())

    del dataset
    gc.collect()
    no_leaks()


def slow_reads(monkeypatch, seconds=0.05):
    original = ParquetSource.read_images

    def read_images(self, rows, *args, **options):
        time.sleep(seconds)
        return original(self, rows, *args, **options)

    monkeypatch.setattr(ParquetSource, "read_images", read_images)


@pytest.mark.parametrize(
    "options", [{"preload": "background"}, {"preload": False}, {"cache": "disk"}], ids=str
)
def test_a_dataset_is_the_same_whatever_it_has_read(path, options):
    dataset = OMEArrowDataset(path, **options)
    before = fingerprint(dataset)

    assert len(dataset.metadata) > 0
    dataset[0]
    dataset._images.load(progress=False)

    assert fingerprint(dataset) == before
    dataset._transform = len
    assert fingerprint(dataset) != before


def test_an_image_asked_for_comes_before_the_background(path, monkeypatch):
    slow_reads(monkeypatch)
    dataset = OMEArrowDataset(path, preload="background")

    image = dataset[8]

    assert dataset.num_cached < 9
    assert torch.equal(EXPECTED[8], image)


def test_a_row_that_the_background_could_not_decode_is_an_error_where_it_is_asked_for(
    tmp_path,
):
    values = [ome_arrow_value(image) for image in IMAGES]
    values[4]["chunks"][0]["pixels"] = values[4]["chunks"][0]["pixels"][:-1]
    values[4]["chunks"][1]["pixels"] = np.append(values[4]["chunks"][1]["pixels"], 0)
    path = write_images(tmp_path / "cells.parquet", values)
    dataset = OMEArrowDataset(path, preload="background")

    assert torch.equal(EXPECTED[8], dataset[8])
    with pytest.raises(ImageDataError, match="row 4: expected 30 pixels"):
        dataset[4]


@pytest.mark.multiprocess
@every_cache
@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_see_what_the_background_decodes_after_they_started(
    path, cache, start_method, monkeypatch
):
    slow_reads(monkeypatch)
    dataset = OMEArrowDataset(path, cache=cache, preload="background")
    loader = FastLoader(dataset, 3, num_workers=2, multiprocessing_context=start_method)

    for _ in range(2):
        assert torch.equal(EXPECTED, torch.cat(list(loader)))


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_of_a_stock_loader_fill_the_cache_together(path, start_method):
    dataset = OMEArrowDataset(path, cache="shared", preload=False)

    loader = DataLoader(dataset, 3, num_workers=2, multiprocessing_context=start_method)

    assert torch.equal(EXPECTED, torch.cat(list(loader)))
    assert dataset.num_cached == 9


def test_a_file_on_disk_is_found_by_the_next_run(path, reads):
    OMEArrowDataset(path, cache="disk")
    gc.collect()

    dataset = OMEArrowDataset(path, cache="disk")

    assert_whole(dataset)
    assert reads == [list(range(9))]


def test_cache_dir_wins(path, tmp_path):
    OMEArrowDataset(path, cache="disk", cache_dir=tmp_path / "mine")

    assert len(list((tmp_path / "mine").glob("cells-*.pixels"))) == 1
    assert not (tmp_path / "cache").exists()


def test_a_source_that_changed_is_decoded_anew_into_the_same_place(path, tmp_path):
    OMEArrowDataset(path, cache="disk")
    write(tmp_path, IMAGES[::-1])

    dataset = OMEArrowDataset(path, cache="disk")

    assert torch.equal(EXPECTED.flip(0), dataset.get_batch(range(9)))
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 1


def write_plainly(path, image, modified_ns):
    """Write a file whose footer does not depend on the pixels."""
    table = pa.table({
        "image": image_array([ome_arrow_value(image, encoding="bytes")], encoding="bytes")
    })
    pq.write_table(
        table, path, compression="none", use_dictionary=False, write_statistics=False
    )
    os.utime(path, ns=(modified_ns, modified_ns))


@every_cache
def test_a_source_with_the_same_footer_but_other_pixels_is_decoded_anew(tmp_path, cache):
    path = tmp_path / "cells.parquet"
    write_plainly(path, IMAGES[0], 1 << 60)
    first = OMEArrowDataset(path, cache=cache)
    write_plainly(path, IMAGES[1], (1 << 60) + 1)

    second = OMEArrowDataset(path, cache=cache)

    assert torch.equal(EXPECTED[0], first[0])
    assert torch.equal(EXPECTED[1], second[0])


def test_another_choice_of_channels_is_another_file(path, tmp_path):
    OMEArrowDataset(path, cache="disk", channels=[1])
    dataset = OMEArrowDataset(path, cache="disk", channels=[0])

    assert torch.equal(EXPECTED[:, :1], dataset.get_batch(range(9)))
    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 2


@pytest.mark.parametrize("choice", ["pattern", "list", "level"])
def test_another_choice_of_a_folder_is_another_file(tmp_path, choice):
    pixels = [np.full((8, 8), value, np.uint16) for value in (1, 2)]
    paths = [write_tiff(tmp_path / f"{n}.tif", one) for n, one in enumerate(pixels)]
    options = {"dtype": None, "cache": "disk", "cache_dir": tmp_path / "cache"}
    if choice == "pattern":
        both = [OMEArrowDataset(tmp_path, pattern=f"{n}.tif", **options) for n in range(2)]
    elif choice == "list":
        both = [OMEArrowDataset([path], **options) for path in paths]
    else:
        path = write_ome_zarr(tmp_path / "a.zarr", pixels[0][None], num_levels=2)
        both = [OMEArrowDataset(path, level=level, **options) for level in range(2)]

    assert len(list((tmp_path / "cache").glob("*.pixels"))) == 2
    assert [one[0].shape[1] for one in both] == ([8, 4] if choice == "level" else [8, 8])


def test_zeros_for_missing_images_are_kept_too(tmp_path):
    path = write(tmp_path, [None, *IMAGES[1:]])
    for _ in range(2):
        dataset = OMEArrowDataset(path, cache="disk", on_null="zeros")
        assert not dataset[0].any()
        assert torch.equal(EXPECTED[1:], dataset.get_batch(range(1, 9)))


def test_two_datasets_over_one_file_hold_one_copy(path, reads):
    first = OMEArrowDataset(path)
    second = OMEArrowDataset(path, dtype=torch.float64)

    assert reads == [list(range(9))]
    assert torch.equal(first.get_batch([1, 8]).double(), second.get_batch([1, 8]))


def test_whoever_unpickles_a_dataset_on_this_machine_finds_its_pixels(path, reads):
    dataset = OMEArrowDataset(path)

    twin = pickle.loads(pickle.dumps(dataset))

    assert_whole(twin)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cache_bytes": 1000}, r"9 images take .* free in memory by max_cache_bytes"),
        ({"max_cache_bytes": 1000, "cache": "disk"}, "free on disk by max_cache_bytes"),
    ],
)
def test_a_budget_that_is_too_small_is_an_error_before_anything_is_read(
    path, reads, options, message
):
    with pytest.raises(SharedMemoryError, match=message):
        OMEArrowDataset(path, **options)

    assert not reads


def test_memory_that_another_cache_will_take_is_not_free(tmp_path, path, monkeypatch):
    other = write_images(tmp_path / "other.parquet", list(map(ome_arrow_value, IMAGES)))
    replace_facts(monkeypatch, available_bytes=9 * 120 * 3 // 2)
    first = OMEArrowDataset(path, preload=False, cache="shared")
    again = OMEArrowDataset(path, preload=False, cache="shared")  # the same memory
    first[0]

    with pytest.raises(SharedMemoryError, match="free in memory beside caches that are being"):
        OMEArrowDataset(other, preload=False, cache="shared")

    del first, again
    gc.collect()
    assert_whole(OMEArrowDataset(other, preload=False, cache="shared"))


def test_a_disk_without_room_is_named(tmp_path, path, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: full)

    with pytest.raises(SharedMemoryError, match=r"more room than .*/cache with cache_dir="):
        OMEArrowDataset(path, cache="disk")


def test_a_budget_that_suffices_is_none(path):
    assert_whole(OMEArrowDataset(path, max_cache_bytes=9 * 120))


def test_what_another_process_holds_takes_no_memory_again(path, monkeypatch):
    first = OMEArrowDataset(path)
    replace_facts(monkeypatch, available_bytes=100)

    assert_whole(OMEArrowDataset(path))
    del first


def cache_of(dataset):
    return dataset._images._cache


@pytest.fixture
def _has_huge_pages():
    if not gives_huge_pages():
        pytest.skip("needs Linux with huge pages")


@pytest.mark.usefixtures("_has_huge_pages")
def test_what_is_decoded_at_once_and_alone_is_of_this_process(path):
    dataset = OMEArrowDataset(path)

    assert isinstance(cache_of(dataset), OwnImages)
    assert dataset.num_cached == 9
    assert cache_of(OMEArrowDataset(path, preload=False, cache="shared")) is cache_of(dataset)


@pytest.mark.usefixtures("_has_huge_pages")
@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_have_what_is_of_this_process(path, start_method):
    dataset = OMEArrowDataset(path)

    for loader in (FastLoader, DataLoader):
        batches = loader(dataset, 3, num_workers=2, multiprocessing_context=start_method)
        assert torch.equal(EXPECTED, torch.cat(list(batches)))
    assert_whole(dataset)


def open_files(folder):
    links = list(Path("/proc/self/fd").iterdir())
    targets = [str(link.readlink()) for link in links if link.exists()]
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("as_list", [False, True])
def test_a_source_that_was_read_whole_is_closed_and_opened_when_it_is_needed(path, as_list):
    lazy = OMEArrowDataset(path, preload=False)
    lazy[0]
    assert open_files(path) == [str(path)]
    del lazy
    gc.collect()

    dataset = OMEArrowDataset([path] if as_list else path)

    assert open_files(path) == []
    assert dataset.metadata["number"].tolist() == list(range(9))


def replace_facts(monkeypatch, **facts):
    machine = dataclasses.replace(read_machine(), **facts)
    monkeypatch.setattr("fastloader.datasets._image_store.read_machine", lambda: machine)


@pytest.mark.parametrize("reason", ["ranks", "room", "pages", "brothers", "others"])
def test_what_other_processes_may_want_is_shared_from_the_start(path, monkeypatch, reason):
    if reason == "ranks":
        replace_facts(monkeypatch, local_world_size=2)
    elif reason == "room":
        replace_facts(monkeypatch, available_bytes=9 * 120 * 3 // 2)
    elif reason == "pages":
        name = "fastloader.datasets._image_store.gives_huge_pages"
        monkeypatch.setattr(name, lambda: False)
    elif reason == "brothers":
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: "somebody")
    else:
        first = OMEArrowDataset(path, cache="shared", preload=False)
    dataset = OMEArrowDataset(path)

    assert isinstance(cache_of(dataset), ImageCache)
    assert_whole(dataset)
    if reason == "others":
        assert_whole(first)


@pytest.mark.usefixtures("_has_huge_pages")
def test_images_of_a_folder_are_of_this_process_too(tmp_path):
    path = write_tiff(tmp_path / "a.tif", np.full((8, 8), 3, np.uint16))

    for dataset in (OMEArrowDataset(tmp_path, dtype=None), OMEArrowDataset([path], dtype=None)):
        assert isinstance(cache_of(dataset), OwnImages)
        assert (dataset[0] == 3).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "tape"}, "expected 'auto', 'shared', 'disk', 'device'"),
        ({"preload": "later"}, "expected True, False or 'background'"),
        ({"cache": "none", "preload": "background"}, "cache='none' keeps nothing here"),
        ({"cache": "device", "preload": "background"}, "cache='device' keeps nothing here"),
        ({"cache": "device", "transform": abs}, "which transform= would not be applied to"),
        ({"cache_dir": "x"}, "is for cache='disk'"),
    ],
)
def test_options_that_contradict_each_other_are_errors(path, options, message):
    with pytest.raises(SettingsError, match=message):
        OMEArrowDataset(path, **options)


def fill_disk(path, folder, seconds, connection):
    tempfile.tempdir = str(folder)
    original = ParquetSource.read_images

    def read_images(self, rows, offsets, write, **options):
        def write_slowly(offset_bytes, array):
            write(offset_bytes, array)
            time.sleep(seconds)

        return original(self, rows, offsets, write_slowly, **options)

    ParquetSource.read_images = read_images
    connection.send("ready")
    OMEArrowDataset(path, cache="disk", cache_dir=folder / "cache")


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("delay_seconds", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15])
def test_a_run_killed_at_any_moment_leaves_nothing_that_the_next_one_trips_over(
    path, tmp_path, delay_seconds
):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=fill_disk, args=(path, tmp_path, 0.01, there))
    process.start()
    here.recv()
    time.sleep(delay_seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    assert_whole(OMEArrowDataset(path, cache="disk", cache_dir=tmp_path / "cache"))
    assert not list((tmp_path / "cache").glob("*.part"))


def sum_of_rank(path, folder, connection):
    tempfile.tempdir = str(folder)
    dataset = OMEArrowDataset(path)
    connection.send(float(dataset.get_batch(range(9)).sum()))
    connection.send(os.fstat(dataset._images._cache._pixels.file.fileno()).st_ino)
    connection.recv()


@pytest.mark.multiprocess
def test_ranks_that_build_their_own_datasets_hold_one_copy(path, tmp_path):
    context = multiprocessing.get_context("forkserver")
    pipes = [context.Pipe() for _ in range(2)]
    ranks = [
        context.Process(target=sum_of_rank, args=(path, tmp_path, there)) for _, there in pipes
    ]
    for rank in ranks:
        rank.start()

    sums = [here.recv() for here, _ in pipes]
    inodes = {here.recv() for here, _ in pipes}
    for (here, _), rank in zip(pipes, ranks, strict=True):
        here.send("done")
        rank.join(60)

    assert sums == [float(EXPECTED.sum())] * 2
    assert len(inodes) == 1


KEPT = {
    "plain": {},
    "scaled": {"scale": 1 / 65535},
    "half": {"scale": 1 / 65535, "dtype": torch.float16},
    "native": {"dtype": None},
    "labels and axes": {"label_column": "number", "axes": "YXC"},
    "channels": {"channels": [1]},
}


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
def test_a_device_keeps_images_in_their_own_type_and_makes_the_same_batches(path, options):
    dataset = OMEArrowDataset(path, cache="device", **options)
    indices = [8, 0, 3, 3]

    resident = make_resident(as_batched(dataset), torch.device("cpu"))

    expected, actual = dataset.get_batch(indices), resident.take(indices)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    images = dataset.stored_rows.get_batch(indices)
    images = images[0] if "label_column" in options else images
    assert images.dtype == torch.uint16


def test_pixels_of_several_types_are_kept_in_one_that_holds_them(tmp_path):
    images = [random_image((1, 1, 1, 3, 3), dtype) for dtype in ("uint8", "int16")]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    path = write_images(tmp_path / "a.parquet", values, encoding="bytes")
    dataset = OMEArrowDataset(path, cache="device", dtype=torch.float64, scale=0.1)

    resident = make_resident(as_batched(dataset), torch.device("cpu"))

    assert torch.equal(dataset.get_batch([1, 0]), resident.take([1, 0]))


def test_a_loader_of_a_dataset_that_asks_for_the_device_keeps_it_there(path):
    dataset = Subset(OMEArrowDataset(path, cache="device"), range(6))

    loader = FastLoader(dataset, 3, device="meta")

    assert preferred_residence(dataset) == "device"
    assert loader.settings.resident == "device"
    assert loader.resident is None
    assert FastLoader(dataset, 3).settings.reasons["resident"] == "batches stay on the CPU"
    assert torch.equal(EXPECTED[:6], torch.cat(list(FastLoader(dataset, 3))))


def test_no_dataset_asks_for_a_device_by_itself(path):
    assert preferred_residence(OMEArrowDataset(path)) is None
    assert preferred_residence([1, 2]) is None


@pytest.mark.gpu
@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
def test_an_accelerator_makes_the_same_batches(path, options):
    dataset = OMEArrowDataset(path, cache="device", **options)
    loader = FastLoader(dataset, 3, device="cuda")

    for start, batch in zip((0, 3, 6), loader, strict=True):
        expected = dataset.get_batch(range(start, start + 3))
        torch.testing.assert_close(batch, expected, rtol=0, atol=0, check_device=False)
    assert loader.settings.resident == "device"
