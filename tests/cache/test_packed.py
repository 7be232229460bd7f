"""Packed images: one block of bytes, in every kind of child process."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

from fastloader.cache import PackedImages, PixelLayout, PrivatePixels
from fastloader.cache._pixel_bytes import FilePixels
from fastloader.errors import UnpicklableError
from fastloader.shm import MemoryFile, collecting_memory_files, providing_memory_files


def layout_of(arrays):
    dtypes = sorted({array.dtype for array in arrays}, key=str)
    return PixelLayout(
        np.array([array.shape for array in arrays], np.int64).reshape(-1, 5),
        dtypes,
        np.array([dtypes.index(array.dtype) for array in arrays], np.uint8),
    )


def packed(arrays, *, shared=True):
    """Pack arrays with axes T, C, Z, Y, X."""
    layout = layout_of(arrays)
    pixels = PrivatePixels(np.zeros(layout.num_bytes, np.uint8))
    if shared:
        file = MemoryFile.create(8 + layout.num_bytes)
        pixels = FilePixels(file, 8, layout.num_bytes)
    images = PackedImages(layout, pixels)
    for offset, array in zip(layout.offsets, arrays, strict=True):
        images.pixels.writer()(int(offset), array)
    return images


def arrays_of(*shapes_and_types):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 200, shape).astype(dtype) for shape, dtype in shapes_and_types]


RAGGED = [((1, 2, 1, 3, 4), "uint8"), ((2, 1, 2, 2, 2), "float64"), ((1, 1, 1, 5, 1), "uint16")]
UNIFORM = [((1, 2, 1, 3, 4), "uint16")] * 5
LARGE = [((1, 2, 1, 150, 150), "uint16")] * 3


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kinds", [RAGGED, UNIFORM, []], ids=["ragged", "uniform", "none"])
def test_images_come_back_as_they_were(kinds, shared):
    arrays = arrays_of(*kinds)

    images = packed(arrays, shared=shared)

    assert len(images) == len(arrays)
    for position, array in enumerate(arrays):
        torch.testing.assert_close(
            images.image(position), torch.from_numpy(array), rtol=0, atol=0
        )


@pytest.mark.parametrize("kinds", [UNIFORM, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.uint16, torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_a_gathered_batch_has_the_images_asked_for(kinds, dtype, is_contiguous):
    arrays = arrays_of(*kinds)
    positions = [2, 0, 2, 1]
    expected = torch.stack([torch.from_numpy(arrays[i]).to(dtype) for i in positions])
    out = torch.empty_like(expected)
    if not is_contiguous:
        out = out.transpose(-1, -2).contiguous().transpose(-1, -2)

    packed(arrays).gather(positions, out)

    assert torch.equal(expected, out)


def test_more_images_are_gathered_than_fit_the_processors_cache(monkeypatch):
    monkeypatch.setattr("fastloader.cache._packed._GATHER_BYTES", 100)
    arrays = arrays_of(*UNIFORM)
    out = torch.empty(5, *arrays[0].shape)

    packed(arrays).gather(range(5), out)

    np.testing.assert_array_equal(np.stack(arrays), out.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    "stored", ["bool", "uint8", "uint16", "uint32", "int8", "int32", "int64", "float64"]
)
def test_pixels_are_scaled_as_torch_scales_them(stored, dtype):
    array = np.random.default_rng(1).integers(-(2**60), 2**60, (1, 1, 1, 50, 50)).astype(stored)
    out = torch.empty(1, *array.shape, dtype=dtype)

    packed([array]).gather([0], out, scale=1 / 65535)

    assert torch.equal(torch.from_numpy(array).to(dtype).mul_(1 / 65535), out[0])


def test_large_batches_are_shared_out_to_threads(monkeypatch):
    monkeypatch.setattr("fastloader.cache._packed._PART_BYTES", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    arrays = arrays_of(*UNIFORM, *LARGE)
    positions = [5, 6, 7, 6]
    out = torch.empty(4, *arrays[5].shape)

    packed(arrays).gather(positions, out)

    np.testing.assert_array_equal(np.stack([arrays[i] for i in positions]), out.numpy())


def test_scaling_to_half_precision_does_not_overflow_first():
    images = packed([np.full((1, 1, 1, 2, 2), 65535, np.uint16)])
    out = torch.empty(1, 1, 1, 1, 2, 2, dtype=torch.float16)

    images.gather([0], out, scale=1 / 65535)

    assert (out == 1).all()


def test_a_pickle_outside_the_start_of_a_process_is_refused_if_shared():
    images = packed(arrays_of(*UNIFORM))

    with pytest.raises(UnpicklableError):
        pickle.dumps(images)


@pytest.mark.parametrize("kinds", [RAGGED, UNIFORM], ids=["ragged", "uniform"])
def test_a_pickle_with_its_memory_file_maps_the_same_memory(kinds):
    arrays = arrays_of(*kinds)
    images = packed(arrays)

    with collecting_memory_files() as files:
        pickled = pickle.dumps(images)
    with providing_memory_files(files):
        twin = pickle.loads(pickled)

    images.pixels.writer()(0, np.full(arrays[0].shape, 7, arrays[0].dtype))
    assert (twin.image(0) == 7).all()


def test_a_pickle_of_private_images_is_a_copy():
    images = packed(arrays_of(*RAGGED), shared=False)

    twin = pickle.loads(pickle.dumps(images))

    assert torch.equal(twin.image(1), images.image(1))


def test_a_deep_copy_is_the_same_memory():
    images = packed(arrays_of(*UNIFORM))

    assert copy.deepcopy(images) is images


def overwrite(images):
    images.pixels.writer()(0, np.full((1, 2, 1, 3, 4), 9, np.uint16))


@pytest.mark.multiprocess
@pytest.mark.parametrize("start_method", multiprocessing.get_all_start_methods())
def test_a_child_has_the_same_memory(start_method):
    images = packed(arrays_of(*UNIFORM))

    process = multiprocessing.get_context(start_method).Process(
        target=overwrite, args=(images,)
    )
    process.start()
    process.join(60)

    assert process.exitcode == 0
    assert (images.image(0) == 9).all()


def test_the_digest_of_a_layout_tells_sizes_types_and_their_order_apart():
    one, other = UNIFORM[0], ((1, 2, 1, 4, 3), "uint16")
    kinds = [
        [one, other],
        [other, one],
        [one],
        [one, (one[0], "int16")],
        [(one[0], "int16"), one],
    ]

    digests = [layout_of(arrays_of(*some)).digest() for some in kinds]

    assert len(set(digests)) == len(kinds)
    assert digests == [layout_of(arrays_of(*some)).digest() for some in kinds]


def copy_images(images):
    out = torch.empty((2, *images.layout.shapes[0]), dtype=torch.uint16)
    images.gather([1, 0], out)
    np.testing.assert_array_equal(out[0].numpy(), images.image(1).numpy())


@pytest.mark.multiprocess
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(),
    reason="processes are not forked here",
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_by_hand_copies_images_without_torchs_threads():
    """There are none in the child, though torch has seen some: it would wait for ever."""
    images = packed(arrays_of(*[((1, 1, 1, 512, 512), "uint16")] * 2))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).add_(1)
        child = multiprocessing.get_context("fork").Process(target=copy_images, args=(images,))
        child.start()
        child.join(30)
    finally:
        torch.set_num_threads(threads)

    child.kill()
    child.join()
    assert child.exitcode == 0
