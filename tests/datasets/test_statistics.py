"""Statistics of channels: right, exact where they can be, and the same however they are taken."""

import io
import json
import multiprocessing
from functools import partial, reduce

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fastloader.datasets import ChannelStatistics
from fastloader.errors import StatisticsError

TIGHT = {"rtol": 1e-12, "atol": 0}


class Images(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"name": f"cell {index}", "image": self.images[index]}


class Batched(Images):
    def get_batch(self, indices):
        stacked = torch.from_numpy(self.images[list(indices)])
        return {"name": [f"cell {i}" for i in indices], "image": stacked}


class Stream(IterableDataset):
    def __init__(self, images):
        self.images = images

    def __iter__(self):
        return iter(self.images)


def random_images(shape, dtype, seed=0):
    values = np.random.default_rng(seed).random(shape) * 250
    return (values - 100 if np.dtype(dtype).kind in "if" else values).astype(dtype)


def reference(images, axis=1):
    values = np.moveaxis(images, axis, 1).reshape(len(images), images.shape[axis], -1)
    return values.astype(np.float64).mean((0, 2)), values.astype(np.float64).std((0, 2))


def assert_equals_numpy(statistics, images, axis=1):
    mean, std = reference(images, axis)
    # A mean near zero has lost digits in NumPy too: relative to the spread then.
    np.testing.assert_allclose(statistics.mean, mean, rtol=1e-12, atol=1e-12 * std.max())
    np.testing.assert_allclose(statistics.std, std, **TIGHT)


DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "float16"]


@pytest.mark.parametrize("dtype", [*DTYPES, "float32", "float64"])
@pytest.mark.parametrize(
    "make", [Images, Batched, Stream], ids=["samples", "batches", "stream"]
)
def test_statistics_equal_numpy(dtype, make):
    images = random_images((23, 3, 17, 19), dtype)

    assert_equals_numpy(ChannelStatistics.of(make(images)), images)


@pytest.mark.parametrize("size", [(8, 8), (37, 41), (127, 127)])
@pytest.mark.parametrize(
    ("offset", "spread", "dtype"),
    [
        pytest.param(1e4, 1.0, "float32", id="float32"),
        pytest.param(1e6, 1.0, "float64", id="float64"),
        pytest.param(-1e9, 1.0, "float64", id="below zero"),
        pytest.param(1.0, 1e-8, "float64", id="last digits"),
        pytest.param(1e12, 1e6, "int64", id="int64"),
    ],
)
def test_pixels_that_differ_in_their_last_digits_equal_numpy(offset, spread, dtype, size):
    values = random_images((23, 2, *size), "float64") / 250
    images = (values * spread + offset).astype(dtype)
    several = [ChannelStatistics.of_images(images[n : n + 3]) for n in range(0, 23, 3)]

    assert_equals_numpy(ChannelStatistics.of(list(images)), images)
    assert_equals_numpy(reduce(ChannelStatistics.merge, several), images)


def test_whole_numbers_and_others_are_merged_without_a_loss():
    whole = random_images((9, 2, 21, 21), np.uint16)
    others = random_images((9, 2, 21, 21), "float64") + whole.mean()

    both = ChannelStatistics.of_images(whole).merge(ChannelStatistics.of_images(others))

    assert_equals_numpy(both, np.concatenate([whole.astype(np.float64), others]))


@pytest.mark.parametrize("size", [(1, 1), (257, 1), (64, 64), (255, 255), (1021, 1021)])
def test_statistics_equal_numpy_for_any_size(size):
    """Prime numbers of pixels, and images larger than a chunk."""
    images = random_images((3, 2, *size), np.uint16)

    assert_equals_numpy(ChannelStatistics.of(list(images)), images)


@pytest.mark.parametrize(
    "as_dataset",
    [
        lambda images: images,
        torch.from_numpy,
        lambda images: torch.from_numpy(images).requires_grad_(),
        lambda images: TensorDataset(torch.from_numpy(images), torch.zeros(len(images))),
    ],
    ids=["array", "tensor", "tensor with gradient", "TensorDataset"],
)
@pytest.mark.parametrize(
    "indices",
    [None, range(3, 9), range(8, 2, -1), [5, 5, 6], [-1, 0, 1], [7]],
    ids=["all", "a run", "backwards", "twice", "negative", "one"],
)
def test_arrays_in_memory_are_read_at_any_indices(as_dataset, indices):
    images = random_images((11, 2, 13, 8), np.float32)

    statistics = ChannelStatistics.of(as_dataset(images), indices=indices)

    assert_equals_numpy(statistics, images if indices is None else images[list(indices)])


def test_images_that_lie_in_memory_with_strides_are_read():
    images = random_images((6, 3, 20, 30), np.uint16)

    statistics = ChannelStatistics.of(list(images[:, ::-1, ::2, ::3]))

    assert_equals_numpy(statistics, images[:, ::-1, ::2, ::3])


def test_large_values_do_not_overflow():
    images = np.full((4, 1, 300, 300), 65535, np.uint16)
    images[0, 0, 0, 0] = 65533

    assert_equals_numpy(ChannelStatistics.of(list(images)), images)


def test_a_large_offset_costs_no_digits():
    noise = np.random.default_rng(0).standard_normal((8, 2, 50, 50))

    statistics = ChannelStatistics.of(list(noise + 1e9))

    np.testing.assert_allclose(statistics.std, (noise + 1e9).std((0, 2, 3)), **TIGHT)


def test_bfloat16_images_are_read():
    images = torch.arange(32.0).bfloat16().reshape(2, 1, 4, 4)

    assert ChannelStatistics.of(list(images)).mean == [15.5]


def test_images_may_differ_in_size():
    images = [random_images((2, 5 + i, 9), np.uint8, seed=i) for i in range(7)]

    statistics = ChannelStatistics.of(images)

    pixels = np.concatenate([image.reshape(2, -1) for image in images], axis=1)
    np.testing.assert_allclose(statistics.mean, pixels.mean(1), **TIGHT)
    np.testing.assert_allclose(statistics.std, pixels.std(1), **TIGHT)


def test_images_may_differ_in_dtype_and_kind():
    images = random_images((4, 2, 5, 5), np.uint8)
    kinds = [
        images[0],
        images[1].astype(np.uint16),
        torch.from_numpy(images[2]),
        images[3].astype(np.float32),
    ]

    statistics = ChannelStatistics.of(kinds)

    assert_equals_numpy(statistics, images)


def test_a_dataset_that_reads_several_samples_at_once_is_read_so():
    class Several(Images):
        def __getitems__(self, indices):
            calls.append(list(indices))
            return [self[index] for index in indices]

    calls = []
    images = random_images((9, 2, 5, 5), np.uint16)

    statistics = ChannelStatistics.of(Several(images), indices=[4, 2, 8])

    assert calls == [[4, 2, 8]]
    assert_equals_numpy(statistics, images[[4, 2, 8]])


@pytest.mark.parametrize(
    ("shape", "axis", "num_channels"),
    [
        pytest.param((5, 6, 7), "auto", 1, id="gray images have no channels"),
        pytest.param((5, 3, 6, 7), "auto", 3, id="first axis"),
        pytest.param((5, 9), "auto", 9, id="vectors"),
        pytest.param((5, 6, 7, 4), 2, 4, id="channels last"),
        pytest.param((5, 3, 6, 7), None, 1, id="all together"),
        pytest.param((5, 2, 3, 4, 4), 1, 3, id="stack"),
    ],
)
def test_the_axis_of_the_channels(shape, axis, num_channels):
    images = random_images(shape, np.uint8)

    statistics = ChannelStatistics.of(list(images), channel_axis=axis)

    assert statistics.num_channels == num_channels
    if statistics.channel_axis is None:
        np.testing.assert_allclose(statistics.std, [images.std()], **TIGHT)
    else:
        assert_equals_numpy(statistics, images, statistics.channel_axis + 1)


PIXELS = hnp.arrays(
    st.sampled_from([np.uint8, np.int16, np.uint16]),
    st.tuples(st.integers(2, 12), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
)


@given(images=PIXELS, data=st.data())
def test_parts_merged_in_any_order_are_exactly_the_whole(images, data):
    cuts = data.draw(st.lists(st.integers(1, len(images) - 1), max_size=4, unique=True))
    parts = [ChannelStatistics.of_images(part) for part in np.split(images, sorted(cuts))]
    order = data.draw(st.permutations(parts))

    assert reduce(ChannelStatistics.merge, order) == ChannelStatistics.of_images(images)


FLOATS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(2, 12), st.just(2), st.integers(1, 40)),
    elements=st.floats(-1e6, 1e6),
)


@given(images=FLOATS, cut=st.integers(1, 11))
def test_parts_of_floats_merged_are_the_whole_but_for_rounding(images, cut):
    scale = np.abs(images).max()
    assume(scale == 0 or scale > 1e-140)  # squares of less have few digits, also in numpy.std
    parts = np.split(images, [min(cut, len(images) - 1)])
    first, second = (ChannelStatistics.of_images(part, channel_axis=0) for part in parts)

    merged, whole = first.merge(second), ChannelStatistics.of_images(images, channel_axis=0)

    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-12, atol=1e-14 * scale)
    np.testing.assert_allclose(merged.std, whole.std, rtol=1e-12, atol=1e-14 * scale)


@given(images=PIXELS, seed=st.integers(0, 99))
def test_the_order_of_the_images_changes_nothing(images, seed):
    shuffled = np.random.default_rng(seed).permutation(images)

    assert ChannelStatistics.of_images(shuffled) == ChannelStatistics.of_images(images)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 7])
def test_the_std_of_a_constant_channel_is_exactly_zero(value):
    images = np.full((9, 1, 33, 41), value)

    statistics = ChannelStatistics.of(list(images))

    assert statistics.std.tolist() == [0.0]
    assert statistics.mean == pytest.approx([value], rel=1e-15)


@pytest.mark.parametrize(
    "with_channels", [True, False], ids=["per channel", "for all channels"]
)
@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("batched", [True, False])
def test_masked_pixels_do_not_count(with_channels, dtype, batched):
    images = random_images((6, 2, 8, 9), dtype)
    masks = np.random.default_rng(1).random((6, 2, 8, 9) if with_channels else (6, 8, 9)) < 0.5
    samples = list(zip(images, masks, strict=True))
    dataset = samples
    if batched:
        dataset = torch.utils.data.StackDataset(images, masks)
        dataset.get_batch = lambda indices: (images[indices], masks[indices])

    statistics = ChannelStatistics.of(dataset, field=0, mask=1)

    full = masks if with_channels else np.broadcast_to(masks[:, None], images.shape)
    chosen = [images[:, c][full[:, c]].astype(np.float64) for c in range(2)]
    np.testing.assert_allclose(statistics.mean, [c.mean() for c in chosen], **TIGHT)
    np.testing.assert_allclose(statistics.std, [c.std() for c in chosen], **TIGHT)
    assert statistics.count.tolist() == [len(c) for c in chosen]


def test_a_mask_that_does_not_fit_is_named():
    with pytest.raises(StatisticsError, match=r"sample 0 has .*\(2, 8, 9\).*\(7, 9\)"):
        ChannelStatistics.of([(np.zeros((2, 8, 9)), np.ones((7, 9)))], field=0, mask=1)


def test_a_channel_without_pixels_is_an_error():
    with pytest.raises(StatisticsError, match="channel 0, 1"):
        ChannelStatistics.of([(np.zeros((2, 8, 9)), np.zeros((8, 9)))], field=0, mask=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_finite_raise_and_name_the_sample(bad):
    images = random_images((5, 2, 4, 4), np.float32)
    images[3, 1, 2, 2] = bad

    with pytest.raises(StatisticsError, match=r"1 of sample 3 .*nan_policy=\"omit\""):
        ChannelStatistics.of(list(images))


def test_pixels_that_are_not_finite_can_be_left_out():
    images = random_images((5, 2, 4, 4), np.float32)
    images[3, 1, 2, 2], images[0, 0, 0, 0] = np.nan, np.inf

    statistics = ChannelStatistics.of(list(images), nan_policy="omit")

    kept = np.where(np.isfinite(images), images, np.nan).astype(np.float64)
    np.testing.assert_allclose(statistics.mean, np.nanmean(kept, (0, 2, 3)), **TIGHT)
    np.testing.assert_allclose(statistics.std, np.nanstd(kept, (0, 2, 3)), **TIGHT)
    assert statistics.count.tolist() == [79, 79]


def test_a_masked_nan_is_no_error():
    image, mask = np.ones((1, 2, 2)), np.ones((2, 2))
    image[0, 0, 0], mask[0, 0] = np.nan, 0

    statistics = ChannelStatistics.of([(image, mask)], field=0, mask=1)

    assert statistics.count.tolist() == [3]


@given(
    images=hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
        elements=st.one_of(st.integers(-1000, 1000), st.sampled_from([np.nan, np.inf])),
    ),
    seed=st.integers(0, 99),
)
def test_pixels_count_exactly_if_they_are_finite_and_in_the_mask(images, seed):
    masks = np.random.default_rng(seed).random((len(images), *images.shape[2:])) < 0.8
    keep = np.isfinite(images) & masks[:, None]
    channels = [images[:, c][keep[:, c]].astype(np.float64) for c in range(images.shape[1])]
    assume(all(channel.size for channel in channels))

    statistics = ChannelStatistics.of(
        list(zip(images, masks, strict=True)), field=0, mask=1, nan_policy="omit"
    )

    assert statistics.count.tolist() == [channel.size for channel in channels]
    np.testing.assert_allclose(statistics.mean, [c.mean() for c in channels], atol=1e-9)
    np.testing.assert_allclose(statistics.std, [c.std() for c in channels], atol=1e-9)


@given(
    indices=st.lists(st.integers(-9, 8), min_size=1, max_size=12),
    make=st.sampled_from([list, np.asarray, Images, Batched]),
)
def test_the_samples_named_are_taken_each_as_often_as_named(indices, make):
    images = random_images((9, 2, 3, 4), np.uint16)

    statistics = ChannelStatistics.of(make(images), indices=indices)

    expected = ChannelStatistics.of_images(images[indices])
    assert statistics.moments == expected.moments


@given(size=st.integers(1, 30), data=st.data())
def test_a_drawn_sample_has_its_size_and_no_repeats(size, data):
    wanted = data.draw(st.integers(1, size))
    powers = [np.array([[[2**n]]], np.float64) for n in range(size)]

    statistics = ChannelStatistics.of(
        powers, sample_size=wanted, seed=data.draw(st.integers(0, 9))
    )

    total = round(float(statistics.mean[0]) * wanted)
    assert statistics.count.tolist() == [wanted]
    assert total.bit_count() == wanted  # a power that came twice would carry


def test_squares_beyond_float64_are_an_error():
    with pytest.raises(StatisticsError, match="exceed"):
        ChannelStatistics.of([np.array([[[1e200, -1e200]]])], nan_policy="omit")


def test_only_some_samples():
    images = random_images((9, 2, 4, 4), np.uint16)

    assert_equals_numpy(ChannelStatistics.of(list(images), indices=[1, 5]), images[[1, 5]])


def test_a_sample_of_the_samples_follows_from_the_seed():
    images = list(random_images((40, 1, 4, 4), np.uint16))

    def draw(seed):
        return ChannelStatistics.of(images, sample_size=10, seed=seed)

    assert draw(0).count.tolist() == [160]
    assert draw(0) == draw(0)
    assert draw(0) != draw(1)


def test_a_sample_of_all_is_all():
    images = list(random_images((5, 1, 4, 4), np.uint16))

    assert ChannelStatistics.of(images, sample_size=5) == ChannelStatistics.of(images)


@pytest.mark.multiprocess
def test_workers_change_nothing():
    images = random_images((40, 3, 64, 64), np.uint16)
    loader = partial(DataLoader, num_workers=2)

    statistics = ChannelStatistics.of(Images(images), loader=loader)

    assert statistics == ChannelStatistics.of(Images(images))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"indices": []}, "no samples", id="none"),
        pytest.param({"sample_size": 0}, "no samples", id="sample of none"),
        pytest.param({"nan_policy": "ignore"}, "nan_policy", id="policy"),
        pytest.param({"indices": [0, 3]}, "from 0 to 3, .* 3 samples", id="index too high"),
        pytest.param({"indices": [-4]}, "from -4 to -4", id="index too low"),
        pytest.param({"indices": np.array([True, False, True])}, "flatnonzero", id="mask"),
        pytest.param({"indices": [0.5]}, "whole numbers", id="fraction"),
        pytest.param({"channel_axis": -1}, "from the front", id="negative axis"),
        pytest.param({"channel_axis": 3}, r"axis 3 .* shape \(2, 4, 4\)", id="axis"),
    ],
)
def test_impossible_requests_are_explained(options, message):
    with pytest.raises(StatisticsError, match=message):
        ChannelStatistics.of(list(np.zeros((3, 2, 4, 4))), **options)


def test_an_array_is_not_cut_short_by_indices_beyond_its_end():
    with pytest.raises(StatisticsError, match="4 samples"):
        ChannelStatistics.of(np.zeros((4, 1, 2, 2)), indices=range(2, 6))


def test_a_batch_is_not_taken_with_an_unknown_policy():
    with pytest.raises(StatisticsError, match="nan_policy must be"):
        ChannelStatistics.of_images(np.zeros((1, 1, 2, 2)), nan_policy="skip")


@pytest.mark.parametrize("dataset", [[], Stream([])], ids=["map", "stream"])
def test_an_empty_dataset_is_an_error(dataset):
    with pytest.raises(StatisticsError, match="no samples"):
        ChannelStatistics.of(dataset)


def test_a_stream_cannot_be_indexed():
    with pytest.raises(StatisticsError, match="start to end"):
        ChannelStatistics.of(Stream([np.zeros((1, 2, 2))]), indices=[0])


def test_other_numbers_of_channels_are_an_error():
    with pytest.raises(StatisticsError, match="of 2 channels and of 3"):
        ChannelStatistics.of([np.zeros((2, 4, 4)), np.zeros((3, 4, 4))])


def test_images_that_are_no_numbers_are_an_error():
    with pytest.raises(StatisticsError, match="complex"):
        ChannelStatistics.of([np.zeros((2, 4, 4), complex)])


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
def test_json_gives_back_the_same(dtype, tmp_path):
    images = list(random_images((5, 3, 6, 7), dtype))
    statistics = ChannelStatistics.of(images)

    statistics.save(tmp_path / "statistics.json")

    assert ChannelStatistics.load(tmp_path / "statistics.json", dataset=images) == statistics


@given(
    images=hnp.arrays(
        st.sampled_from([np.uint16, np.int32, np.float32, np.float64]),
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4)),
        elements=st.integers(0, 60_000),
    )
)
def test_json_keeps_every_bit(images):
    statistics = ChannelStatistics.of_images(images / 7 if images.dtype.kind == "f" else images)

    assert ChannelStatistics.from_json(statistics.to_json()) == statistics


@pytest.mark.parametrize("key", ["count", "mean", "std"])
@pytest.mark.parametrize(
    "value", [[1.0, 2.0], [1.0], [], None, "abc", ["a", "b"], [-4, -4], [[1.0, 2.0]]], ids=repr
)
def test_json_that_was_changed_by_hand_is_refused(key, value):
    images = np.arange(16, dtype=np.uint16).reshape(2, 2, 2, 2)
    document = json.loads(ChannelStatistics.of_images(images).to_json())

    with pytest.raises(StatisticsError, match=r"count, mean, std .* changed by hand"):
        ChannelStatistics.from_json(json.dumps({**document, key: value}))


def test_a_loader_is_no_dataset():
    loader = DataLoader(torch.rand(4, 3, 8, 8))

    with pytest.raises(StatisticsError, match="DataLoader: give its dataset"):
        ChannelStatistics.of(loader)


def test_json_says_what_it_is_of():
    images = [np.zeros((2, 3, 4), np.uint8)] * 5

    document = json.loads(ChannelStatistics.of(images).to_json())

    assert (document["schema"], document["version"]) == ("fastloader.channel_statistics", 1)
    assert document["count"] == [60, 60]
    assert document["fingerprint"] == ChannelStatistics.of(images).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda images: images[:-1], id="one less"),
        pytest.param(lambda images: images[::-1], id="another order"),
        pytest.param(lambda images: [image + 1 for image in images], id="other pixels"),
        pytest.param(lambda images: [image.astype(np.int32) for image in images], id="dtype"),
    ],
)
def test_statistics_of_another_dataset_are_refused(change, tmp_path):
    images = list(random_images((30, 3, 6, 7), np.uint16))
    ChannelStatistics.of(images).save(tmp_path / "statistics.json")

    with pytest.raises(StatisticsError, match="fingerprint"):
        ChannelStatistics.load(tmp_path / "statistics.json", dataset=change(images))


def test_merging_statistics_of_two_datasets_forgets_the_fingerprint():
    first, second = ([np.full((1, 2, 2), value)] for value in (1, 2))

    merged = ChannelStatistics.of(first).merge(ChannelStatistics.of(second))

    assert merged.fingerprint is None


def test_statistics_of_other_channels_do_not_merge():
    first = ChannelStatistics.of([np.zeros((3, 4, 4))])
    second = ChannelStatistics.of([np.zeros((3, 4, 4))], channel_axis=None)

    with pytest.raises(StatisticsError, match="channel_axis=0"):
        first.merge(second)
    with pytest.raises(StatisticsError, match="to merge with, but got 3"):
        first.merge(3)


GOOD = json.loads(ChannelStatistics.of_images(np.arange(8.0).reshape(2, 1, 2, 2)).to_json())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="list"),
        pytest.param("{}", id="no keys"),
        pytest.param(json.dumps({**GOOD, "version": 99}), id="later version"),
        pytest.param(json.dumps({**GOOD, "schema": "another"}), id="other schema"),
        pytest.param(json.dumps({**GOOD, "channel_axis": -1}), id="negative axis"),
        pytest.param(json.dumps({**GOOD, "channel_axis": "first"}), id="axis in words"),
        pytest.param(json.dumps({**GOOD, "fingerprint": 3}), id="fingerprint"),
        pytest.param(json.dumps({**GOOD, "moments": 3}), id="no moments"),
        pytest.param(
            json.dumps({**GOOD, "moments": {**GOOD["moments"], "means": [float("nan")]}}),
            id="mean that is no number",
        ),
        pytest.param(
            json.dumps({**GOOD, "moments": {**GOOD["moments"], "squares": [-1.0]}}),
            id="negative variance",
        ),
        pytest.param(
            json.dumps({**GOOD, "moments": {**GOOD["moments"], "counts": [0]}}), id="no pixels"
        ),
        pytest.param(
            json.dumps({**GOOD, "moments": {**GOOD["moments"], "means": [1.0, 2.0]}}),
            id="unequal lists",
        ),
    ],
)
def test_other_json_is_refused(text):
    with pytest.raises(StatisticsError, match="Expected"):
        ChannelStatistics.from_json(text)


def take_own_part(rank, folder, images):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    own = ChannelStatistics.of(images, indices=range(rank, len(images), 2))
    own.merge_ranks().save(f"{folder}/{rank}.json")
    torch.distributed.destroy_process_group()


@pytest.mark.multiprocess
def test_ranks_merge_to_the_whole(tmp_path):
    images = list(random_images((7, 2, 6, 7), np.uint16))
    context = multiprocessing.get_context("forkserver")
    ranks = [
        context.Process(target=take_own_part, args=(rank, str(tmp_path), images))
        for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)

    merged = [ChannelStatistics.load(tmp_path / f"{rank}.json") for rank in range(2)]

    assert merged == [ChannelStatistics.of(images)] * 2


def test_ranks_need_a_process_group():
    with pytest.raises(StatisticsError, match="init_process_group"):
        ChannelStatistics.of([np.zeros((1, 2, 2))]).merge_ranks()


def test_nothing_is_printed_when_piped(capsys):
    ChannelStatistics.of([np.zeros((1, 2, 2))])

    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_shown_on_a_terminal_unless_it_is_switched_off(progress, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("fastloader.datasets._statistics._PROGRESS_DELAY_SECONDS", 0)

    ChannelStatistics.of([np.zeros((1, 2, 2))], progress=progress)

    assert ("Channel statistics: 100%" in terminal.getvalue()) is progress
