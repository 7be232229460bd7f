"""OMEArrowDataset: samples, batches, labels and one copy of the pixels for all processes."""

import copy
import dataclasses
import multiprocessing
import pickle
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from fastloader.datasets import Augment, OMEArrowDataset
from fastloader.errors import (
    ImageDataError,
    SettingsError,
    ShapeError,
    SharedMemoryError,
    SourceError,
)
from fastloader.machine._machine import read_machine
from fastloader.tensors._buffers import allocating_with
from fastloader.transforms import GaussianNoise, RandomCrop
from fastloader.typing import BatchedDataset
from fastloader.writing import write_images as save_images
from tests.equality import assert_same
from tests.ome_arrow_tables import ome_arrow_value, random_image, write_images

CELLS = Path(__file__).parents[2] / "data" / "nf1_cells.parquet"
SIZE = (1, 3, 1, 6, 5)
IMAGES = [random_image(SIZE, seed=seed) for seed in range(7)]


def values_of(images):
    return [None if image is None else ome_arrow_value(image) for image in images]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_images(
        tmp_path_factory.mktemp("images") / "images.parquet",
        values_of(IMAGES),
        name=["b", "a", "c", "a", "b", "a", "c"],
        count=[5, 4, 3, 2, 1, 0, 255],
        area=np.linspace(0, 1, 7, dtype=np.float32),
        is_big=[True, False] * 3 + [True],
        note=["x", None, "y", None, None, None, None],
    )


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    images = [random_image((1, 1, 1, 4, 4)), None, random_image((1, 1, 1, 5, 4))]
    path = tmp_path_factory.mktemp("ragged") / "ragged.parquet"
    return write_images(path, values_of(images), name=["a", None, "b"], n=[1, 2, 3])


def assert_equal(expected, actual):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert type(expected) is type(actual)


def double(image):
    return image * 2


def mean_and_size(image):
    return {"mean": image.mean(), "size": list(image.shape)}


OPTIONS = {
    "plain": {},
    "native": {"dtype": None},
    "double": {"dtype": torch.float64},
    "wider": {"dtype": torch.int32},
    "half": {"dtype": torch.float16, "scale": 1 / 65535},
    "scaled": {"scale": 1 / 65535},
    "channels": {"channels": [2, 0]},
    "channel names": {"channels": ["channel 1"]},
    "axes": {"axes": "YXC"},
    "all axes": {"axes": "TCZYX"},
    "axes and channels": {"axes": "XTCY", "channels": [1]},
    "string labels": {"label_column": "name"},
    "integer labels": {"label_column": "count"},
    "float labels": {"label_column": "area"},
    "boolean labels": {"label_column": "is_big"},
    "transform": {"transform": double, "label_column": "name"},
    "transform to a dict": {"transform": mean_and_size},
}


@pytest.mark.parametrize("way", ["batches", "images", "Augment"])
def test_images_are_read_to_the_cpu_whatever_the_default_device_is(path, way):
    def read():
        images = OMEArrowDataset(path, cache="none", scale=1 / 65535)
        if way == "images":
            return [images[position] for position in range(len(IMAGES))]
        if way == "batches":
            return [images.get_batch([3, 1])]
        changed = Augment(images, [RandomCrop(4, padding=2), GaussianNoise(0.1)], seed=1)
        return [changed.get_batch([3, 1])]

    expected = read()
    with torch.device("meta"):
        actual = read()

    assert_same(expected, actual)


@pytest.mark.parametrize("preload", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_batch_equals_its_collated_samples(path, preload, options):
    dataset = OMEArrowDataset(path, preload=preload, **options)
    indices = [3, 0, 6, 3, -1]

    assert_equal(default_collate([dataset[i] for i in indices]), dataset.get_batch(indices))


@settings(max_examples=30, deadline=None)
@given(
    indices=st.lists(st.integers(-7, 6), min_size=1, max_size=20),
    dtype=st.sampled_from([None, torch.float32, torch.bfloat16]),
    axes=st.sampled_from(["CYX", "XYC", "ZCYX"]),
    preload=st.booleans(),
)
def test_any_batch_equals_its_collated_samples(path, indices, dtype, axes, preload):
    dataset = OMEArrowDataset(path, "image", "count", dtype=dtype, axes=axes, preload=preload)

    assert_equal(default_collate([dataset[i] for i in indices]), dataset.get_batch(indices))


def test_a_sample_is_the_image_as_float32_of_c_h_w(path):
    image = OMEArrowDataset(path)[4]

    assert image.dtype == torch.float32
    np.testing.assert_array_equal(IMAGES[4][0, :, 0].astype(np.float32), image.numpy())


def test_axes_are_those_asked_for(path):
    image = OMEArrowDataset(path, axes="YXTC", channels=[2, 0], dtype=None)[1]

    np.testing.assert_array_equal(IMAGES[1][0, [2, 0], 0].transpose(1, 2, 0)[:, :, None], image)


def test_scale_multiplies_every_pixel_by_the_same_number(path):
    dataset = OMEArrowDataset(path, scale=1 / 65535)

    expected = torch.from_numpy(IMAGES[2][0, :, 0].astype(np.float32)) * (1 / 65535)
    assert_equal(expected, dataset[2])


def test_it_is_a_batched_dataset(path):
    assert isinstance(OMEArrowDataset(path), BatchedDataset)


def test_batches_are_allocated_where_the_loader_says(path):
    allocated = []

    def allocate(shape, dtype):
        allocated.append(torch.empty(shape, dtype=dtype))
        return allocated[-1]

    with allocating_with(allocate):
        images, labels = OMEArrowDataset(path, label_column="name").get_batch([1, 2])

    assert [images.data_ptr(), labels.data_ptr()] == [one.data_ptr() for one in allocated]


def test_a_sample_is_the_callers_to_change(path):
    dataset = OMEArrowDataset(path, dtype=None)

    dataset[0].zero_()

    np.testing.assert_array_equal(IMAGES[0][0, :, 0], dataset[0])


@pytest.mark.parametrize("index", [7, -8])
def test_an_index_out_of_range_is_an_error(path, index):
    dataset = OMEArrowDataset(path)

    with pytest.raises(IndexError, match=f"Sample {index} was asked for, but there are 7"):
        dataset[index]
    with pytest.raises(IndexError, match=f"Sample {index} was asked for, but there are 7"):
        dataset.get_batch([0, index])


def test_strings_become_classes(path):
    dataset = OMEArrowDataset(path, label_column="name")

    assert dataset.classes == ("a", "b", "c")
    assert dataset.labels.tolist() == [1, 0, 2, 0, 1, 0, 2]
    assert dataset[2][1] == 2


def test_float_labels_keep_their_type(path):
    dataset = OMEArrowDataset(path, label_column="area")

    assert dataset.get_batch([0, 6])[1].dtype == torch.float32
    assert dataset.classes == ()


def test_without_a_label_column_there_are_no_labels(path):
    assert OMEArrowDataset(path).labels is None


def test_metadata_has_the_other_columns(path):
    metadata = OMEArrowDataset(path).metadata

    assert list(metadata) == ["name", "count", "area", "is_big", "note"]
    np.testing.assert_array_equal([5, 4, 3, 2, 1, 0, 255], metadata["count"])
    assert metadata["note"] == ["x", None, "y", None, None, None, None]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label_column": "nosuch"}, SourceError, "no column 'nosuch' beside its images"),
        ({"label_column": "image"}, SourceError, "no column 'image' beside its images"),
        ({"label_column": "note"}, SourceError, "label 1 is null"),
        ({"image_column": "name"}, SourceError, "column 'name' is no OME-Arrow image"),
        ({"channels": [3]}, SettingsError, "only channels 0 to 2"),
        ({"channels": [-1]}, SettingsError, "only channels 0 to 2"),
        ({"channels": [0, 0]}, SettingsError, "one or more, each once"),
        ({"channels": []}, SettingsError, "one or more, each once"),
        ({"channels": ["DAPI"]}, SettingsError, r"channels \['channel 0'.*but not \['DAPI'\]"),
        ({"dtype": torch.uint8}, SettingsError, "cannot hold all values of the file's uint16"),
        ({"dtype": "float32"}, SettingsError, "dtype='float32': expected one of torch"),
        ({"channels": "DAPI"}, SettingsError, r"expected a list .* as \['DAPI'\]"),
        ({"channels": 0}, SettingsError, r"expected a list .* as \[0\]"),
        ({"max_cache_bytes": "1 GB"}, SettingsError, "expected a number of bytes"),
        ({"dtype": None, "scale": 0.5}, SettingsError, "scale=0.5 needs a floating dtype"),
        ({"axes": "CYY"}, ShapeError, "each letter of 'TCZYX' at most once"),
        ({"axes": "YX"}, ShapeError, "axis C is left out of axes='YX', but image 0 has size 3"),
        ({"on_null": "ignore"}, SettingsError, "expected 'error', 'skip' or 'zeros'"),
        ({"label_column": 0}, SettingsError, "label_column=0: expected the name of a column"),
        ({"channels": 1.5}, SettingsError, "channels=1.5: expected a list"),
        ({"transform": "flip"}, SettingsError, "transform='flip': expected a function"),
        ({"scale": "max"}, SettingsError, "scale='max': expected a finite number"),
        ({"scale": float("nan")}, SettingsError, "scale=nan: expected a finite number"),
        ({"dtype": torch.float8_e5m2}, SettingsError, "float8_e5m2 is no type of pixels"),
        ({"dtype": torch.quint8}, SettingsError, "quint8 is no type of pixels"),
        ({"axes": 3}, ShapeError, "axes=3: expected each letter"),
        ({"on_null": ["skip"]}, SettingsError, "on_null=.*: expected 'error'"),
        ({"cache": ["disk"]}, SettingsError, "cache=.*: expected 'auto'"),
        ({"preload": []}, SettingsError, "preload=.*: expected True"),
        ({"preload": np.ones(2)}, SettingsError, "preload=.*: expected True"),
        ({"channels": [True, False]}, SettingsError, "but got True"),
        ({"channels": np.array([True, False])}, SettingsError, "expected numbers .* or names"),
        (
            {"channels": torch.tensor([True, False])},
            SettingsError,
            "expected numbers .* or names",
        ),
        ({"channels": [1.0]}, SettingsError, "but got 1.0"),
        ({"max_cache_bytes": float("nan")}, SettingsError, "expected a number of bytes"),
        ({"max_cache_bytes": float("inf")}, SettingsError, "None for what is free"),
        ({"max_cache_bytes": -1}, SettingsError, "expected a number of bytes, 0 or more"),
        ({"max_cache_bytes": True}, SettingsError, "expected a number of bytes"),
        ({"cache": "disk", "cache_dir": 3}, SettingsError, "cache_dir=3: expected the path"),
        ({"storage_options": 3}, SettingsError, "storage_options=3: expected a dict"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_options_that_do_not_fit_are_errors(path, options, error, message):
    with pytest.raises(error, match=message):
        OMEArrowDataset(path, **options)


def test_channels_without_names_are_not_chosen_by_them(tmp_path):
    path = save_images([np.zeros((2, 4, 4), np.uint8)], tmp_path / "a.parquet").path

    with pytest.raises(SettingsError, match=r"\['DAPI'\], but its channels have no names"):
        OMEArrowDataset(path, channels=["DAPI"])


def test_a_stack_needs_a_choice_of_axes(tmp_path):
    path = write_images(tmp_path / "a.parquet", values_of([random_image((2, 1, 3, 4, 4))]))

    with pytest.raises(ShapeError, match=r"axis T is left out .* axes='TCYX' or 'TCZYX'"):
        OMEArrowDataset(path)

    assert OMEArrowDataset(path, axes="TZYX")[0].shape == (2, 3, 4, 4)


def test_several_pixel_types_need_a_choice(tmp_path):
    images = [random_image((1, 1, 1, 3, 3), dtype) for dtype in ("uint8", "int32")]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    path = write_images(tmp_path / "a.parquet", values, encoding="bytes")

    with pytest.raises(SettingsError, match=r"of several \(int32, uint8\): choose one"):
        OMEArrowDataset(path, dtype=None)

    batch = OMEArrowDataset(path, dtype=torch.int64).get_batch([1, 0])
    np.testing.assert_array_equal(np.stack([images[1][0, :, 0], images[0][0, :, 0]]), batch)


def test_a_row_without_image_is_an_error_by_default(ragged):
    with pytest.raises(
        ImageDataError, match=r"ragged.parquet, column 'image', row 1 has no image"
    ):
        OMEArrowDataset(ragged)


@pytest.mark.parametrize("preload", [True, False])
def test_rows_without_image_can_be_left_out(ragged, preload):
    dataset = OMEArrowDataset(ragged, label_column="name", on_null="skip", preload=preload)

    assert len(dataset) == 2
    assert dataset.rows.tolist() == [0, 2]
    assert dataset.metadata["n"].tolist() == [1, 3]
    assert dataset.classes == ("a", "b")
    assert dataset[1][0].shape == (1, 5, 4)


@pytest.mark.parametrize("preload", [True, False])
def test_rows_without_image_can_be_zeros(tmp_path, preload):
    images = [None, IMAGES[0], None, IMAGES[1]]
    path = write_images(tmp_path / "a.parquet", values_of(images))

    batch = OMEArrowDataset(path, on_null="zeros", preload=preload).get_batch([0, 1, 2, 3])

    assert (batch[[0, 2]] == 0).all()
    np.testing.assert_array_equal(IMAGES[1][0, :, 0].astype(np.float32), batch[3])


def test_zeros_need_one_size(ragged):
    with pytest.raises(ImageDataError, match="on_null='zeros' needs images of one size"):
        OMEArrowDataset(ragged, on_null="zeros")


@pytest.mark.parametrize("preload", [True, False])
def test_a_batch_of_nothing_is_refused(path, preload):
    with pytest.raises(ShapeError, match="at least one sample"):
        OMEArrowDataset(path, preload=preload).get_batch([])


@pytest.mark.parametrize("mask", [torch.ones(7, dtype=torch.bool), np.ones(7, np.bool_)])
def test_a_mask_is_not_taken_for_positions(path, mask):
    with pytest.raises(TypeError, match=r"numpy.flatnonzero\(mask\)"):
        OMEArrowDataset(path).get_batch(mask)


@pytest.mark.parametrize("preload", [1, np.True_])
def test_whatever_says_yes_decodes_all_images_at_once(path, preload):
    assert OMEArrowDataset(path, preload=preload).num_cached == len(IMAGES)


def test_a_column_that_python_has_no_values_for_is_named(tmp_path):
    times = pa.array([2**40, 0], pa.timestamp("s"))  # in the year 36,812
    path = write_images(tmp_path / "a.parquet", values_of(IMAGES[:2]), seen=times, n=[1, 2])

    dataset = OMEArrowDataset(path, label_column="n")
    with pytest.raises(
        SourceError, match=r"a\.parquet, column 'seen', of timestamp.* cannot hold"
    ):
        dataset.metadata["seen"]
    with pytest.raises(SourceError, match="column 'seen'"):
        OMEArrowDataset(path, label_column="seen")


def test_images_of_several_sizes_are_samples_but_no_batch(ragged):
    dataset = OMEArrowDataset(ragged, on_null="skip")

    assert dataset[0].shape == (1, 4, 4)
    assert dataset.get_batch([1, 1]).shape == (2, 1, 5, 4)
    with pytest.raises(
        ShapeError, match=r"\(1, 4, 4\) \(image 0\), \(1, 5, 4\) \(image 1\).*transform="
    ):
        dataset.get_batch([0, 1])


def crop(image):
    return image[:, :4, :4]


def test_a_transform_can_bring_them_to_one_size(ragged):
    dataset = OMEArrowDataset(ragged, on_null="skip", transform=crop)

    assert dataset.get_batch([0, 1]).shape == (2, 1, 4, 4)


def test_a_table_without_rows_is_an_empty_dataset(tmp_path):
    assert len(OMEArrowDataset(write_images(tmp_path / "a.parquet", []))) == 0


def test_more_pixels_than_memory_is_an_error_before_anything_is_read(path, monkeypatch):
    machine = dataclasses.replace(read_machine(), available_bytes=100)
    monkeypatch.setattr("fastloader.datasets._image_store.read_machine", lambda: machine)

    with pytest.raises(SharedMemoryError, match=r"7 images take .* preload=False"):
        OMEArrowDataset(path)


def test_preloading_is_silent_when_piped(path, capfd):
    OMEArrowDataset(path)

    assert capfd.readouterr() == ("", "")


def test_preloading_shows_its_progress_when_asked_and_leaves_no_thread(
    path, capfd, monkeypatch
):
    monkeypatch.setattr("fastloader._progress_bar._QUIET_SECONDS", 0)
    OMEArrowDataset(path)  # Arrow keeps threads of its own from the first read on
    num_threads = psutil.Process().num_threads()

    OMEArrowDataset(path, progress=True)

    assert "7/7" in capfd.readouterr().err
    # The system takes a moment to forget a thread that has been joined.
    deadline = time.monotonic() + 3
    while psutil.Process().num_threads() > num_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert psutil.Process().num_threads() <= num_threads


@pytest.mark.parametrize("preload", [True, False])
def test_a_pickle_leaves_pixels_and_arrow_out_and_reads_the_same(path, preload):
    dataset = OMEArrowDataset(path, label_column="name", preload=preload)
    expected = dataset.get_batch([5, 2])

    pickled = pickle.dumps(dataset)

    assert b"pyarrow" not in pickled
    assert_equal(expected, pickle.loads(pickled).get_batch([5, 2]))


def test_a_deep_copy_shares_the_pixels(path):
    dataset = OMEArrowDataset(path)

    twin = copy.deepcopy(dataset)

    assert twin._images is dataset._images
    assert_equal(dataset[3], twin[3])


def test_the_shipped_cells_are_balanced_and_split_without_overlap():
    dataset = OMEArrowDataset(CELLS, label_column="label", preload=False)

    is_test = np.array(dataset.metadata["split"]) == "test"
    x = dataset.metadata["centre_x_px"]
    assert dataset[0][0].shape == (3, 80, 80)
    assert np.bincount(dataset.labels[is_test]).tolist() == [28, 28, 28]
    assert np.bincount(dataset.labels[~is_test]).tolist() == [84, 84, 84]
    assert x[~is_test].max() + 40 <= x[is_test].min() - 40


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("start_method", "preload"),
    [*((method, True) for method in multiprocessing.get_all_start_methods()), ("spawn", False)],
)
def test_workers_of_every_kind_see_the_same_samples(path, start_method, preload):
    dataset = OMEArrowDataset(path, label_column="name", preload=preload)
    loader = DataLoader(dataset, 3, num_workers=1, multiprocessing_context=start_method)

    for actual, indices in zip(loader, ([0, 1, 2], [3, 4, 5], [6]), strict=True):
        assert_equal(dataset.get_batch(indices), actual)


SMAPS = Path("/proc/self/smaps_rollup")


def measure_own_bytes(dataset, queue):
    torch.set_num_threads(1)  # as in a loader's worker: OpenMP's threads do not survive a fork
    dataset[0]
    before = anonymous_bytes()
    total = sum(float(dataset[i].sum()) for i in range(len(dataset)))
    queue.put((anonymous_bytes() - before, total))


def anonymous_bytes():
    """Return the memory that a copy of the pixels would be in: that of no file."""
    lines = dict(line.split(":") for line in SMAPS.read_text().splitlines()[1:])
    return int(lines["Anonymous"].removesuffix("kB")) * 1024


@pytest.fixture(scope="module")
def large_path(tmp_path_factory):
    """A file of 50 MB of pixels."""
    images = [np.full((1, 1, 1, 256, 256), seed, np.uint16) for seed in range(384)]
    values = [ome_arrow_value(image, encoding="bytes") for image in images]
    path = tmp_path_factory.mktemp("large") / "a.parquet"
    return write_images(path, values, encoding="bytes")


@pytest.mark.multiprocess
@pytest.mark.skipif(not SMAPS.exists(), reason="reads memory by its kind from Linux")
@pytest.mark.parametrize("start_method", multiprocessing.get_all_start_methods())
def test_workers_of_every_kind_share_one_copy_of_the_pixels(large_path, start_method):
    dataset = OMEArrowDataset(large_path)
    expected = sum(float(dataset[i].sum()) for i in range(384))
    context = multiprocessing.get_context(start_method)
    queue = context.Queue()

    process = context.Process(target=measure_own_bytes, args=(dataset, queue))
    process.start()
    grown_bytes, total = queue.get(timeout=60)
    process.join(60)

    assert total == expected
    assert grown_bytes < 10e6
