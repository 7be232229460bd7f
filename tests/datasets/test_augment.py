import copy
import dataclasses
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from fastloader.datasets import AlbumentationsTransform, Augment, DatasetWrapper
from fastloader.datasets._batched import as_batched
from fastloader.errors import SettingsError, ShapeError
from fastloader.randomness._seeding import DrawScope, draw_scope
from fastloader.tensors._buffers import allocating_with
from fastloader.transforms import (
    GaussianNoise,
    RandomCrop,
    RandomFlip,
    RandomQuarterTurn,
    RandomShift,
)
from fastloader.typing import BatchedDataset, LiveDataset
from tests.start_methods import START_METHODS

NUM_SAMPLES = 12


class Opaque(Dataset):
    """Samples (image, label), one by one."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        if index < 0:
            index += NUM_SAMPLES
        return (torch.arange(32.0).reshape(2, 4, 4) + 100 * index), index

    def get(self, index):
        return self[index]


class Collated(list):
    """Any samples, also as whole batches."""

    def get_batch(self, indices):
        return default_collate([self[index] for index in indices])


class Batched(Opaque):
    """The same samples, also as whole batches."""

    def get_batch(self, indices):
        return default_collate([self[index] for index in indices])


class Arrays(Batched):
    """The same samples as NumPy arrays."""

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image.numpy(), label


class Stream(IterableDataset):
    """The same samples, each worker its share."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([Opaque()[index] for index in range(first, NUM_SAMPLES, step)])


class ResumableStream(Stream):
    position = 0

    def __iter__(self):
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield Opaque()[self.position - 1]
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class InScope(DatasetWrapper):
    """Does what the loader does: makes samples within the scope of an epoch."""

    scope = DrawScope(seed=7, epoch=2)

    def __getitem__(self, index):
        with draw_scope(self.scope):
            return super().__getitem__(index)


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    mask: torch.Tensor


class GlobalNoise:
    """Draws from all three global generators."""

    def __call__(self, image):
        numbers = random.random() + float(np.random.rand()) + float(torch.rand(()))
        return image + numbers


class OwnGenerator:
    """MONAI's way: a generator that can be seeded."""

    def __init__(self):
        self.R = np.random.RandomState()

    def set_random_state(self, seed=None, state=None):
        self.R = np.random.RandomState(seed)
        return self

    def __call__(self, image):
        return image + np.float32(self.R.uniform())


class OwnSeed:
    """The way of albumentations: an image by keyword, channels last, a seed of its own."""

    def __init__(self):
        self.generator = random.Random()

    def set_random_seed(self, seed):
        self.generator = random.Random(seed)

    def __call__(self, *, image):
        assert image.shape == (4, 4, 2)
        return {"image": image + np.float32(self.generator.random())}


def add_one(image):
    return image + 1


NOISE = [RandomFlip(), GaussianNoise(1.0)]


def is_same(first, second):
    if isinstance(first, torch.Tensor | np.ndarray):
        return type(first) is type(second) and np.array_equal(first, second)
    if isinstance(first, dict):
        return all(is_same(first[key], second[key]) for key in second)
    if isinstance(first, tuple | list):
        return all(map(is_same, first, second))
    return first == second


def read(dataset, indices=range(NUM_SAMPLES)):
    return default_collate([dataset[index] for index in indices])


# The law.

PIPELINES = {
    "keyed": {"transforms": [RandomFlip(), RandomCrop(3), GaussianNoise(1.0)]},
    "plain function": {"transforms": [GaussianNoise(1.0), add_one]},
    "global": {"transforms": [GlobalNoise(), RandomFlip()], "global_rng": True},
    "own generator": {"transforms": [OwnGenerator(), RandomShift()]},
    "albumentations": {"transforms": AlbumentationsTransform(OwnSeed())},
}
each_pipeline = pytest.mark.parametrize("options", PIPELINES.values(), ids=PIPELINES.keys())


@each_pipeline
@pytest.mark.parametrize("base", [Batched, Arrays])
@settings(max_examples=10)
@given(
    indices=st.lists(st.integers(-NUM_SAMPLES, NUM_SAMPLES - 1), min_size=1, max_size=6),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 1000),
)
def test_a_batch_equals_its_samples(options, base, indices, seed, epoch):
    dataset = Augment(base(), **options, seed=seed)
    dataset.set_epoch(epoch)

    batch = dataset.get_batch(indices)

    assert is_same(batch, default_collate([dataset[index] for index in indices]))


@each_pipeline
def test_a_sample_is_the_same_each_time_and_another_in_each_epoch(options):
    dataset = Augment(Opaque(), **options, seed=1)
    first, again = dataset[3], dataset[3]

    dataset.set_epoch(1)

    assert is_same(first, again)
    if options is not PIPELINES["plain function"]:
        assert not is_same(read(dataset), read(Augment(Opaque(), **options, seed=1)))


def test_the_last_sample_is_the_same_from_both_ends():
    dataset = Augment(Opaque(), NOISE)

    assert is_same(dataset[-1][0], dataset[NUM_SAMPLES - 1][0])


def test_indices_may_come_as_an_array():
    dataset = Augment(Batched(), NOISE)

    assert is_same(dataset.get_batch(np.array([3, -1])), read(dataset, [3, -1]))


def test_the_seed_of_the_loader_counts_unless_one_is_given():
    with draw_scope(DrawScope(seed=5, epoch=3)):
        by_loader = read(Augment(Opaque(), NOISE))
        given = read(Augment(Opaque(), NOISE, seed=6))

    alone = Augment(Opaque(), NOISE, seed=5)
    alone.set_epoch(3)
    assert is_same(by_loader, read(alone))
    assert not is_same(given, by_loader)


def test_the_epoch_of_the_loader_counts_before_that_of_the_dataset():
    dataset = Augment(Opaque(), NOISE)
    with draw_scope(DrawScope(seed=0, epoch=3)):
        expected = read(dataset)
        dataset.set_epoch(9)

        assert is_same(read(dataset), expected)


def test_outside_of_a_loader_the_seed_is_0():
    assert is_same(read(Augment(Opaque(), NOISE)), read(Augment(Opaque(), NOISE, seed=0)))


def test_a_part_of_the_dataset_looks_as_it_does_in_the_whole():
    dataset = Augment(Opaque(), NOISE)

    assert is_same(Subset(dataset, [7, 3])[1], dataset[3])


def test_a_wrapper_around_a_wrapper_draws_other_numbers():
    dataset = Augment(Augment(Opaque(), RandomFlip(1, 0.5)), RandomFlip(1, 0.5))

    rows = [dataset[index][0][0, 0, 0] - 100 * index for index in range(NUM_SAMPLES)]

    assert len(set(map(float, rows))) > 1  # the same numbers would undo each other


@pytest.mark.parametrize(
    "between",
    [lambda d: Subset(d, range(NUM_SAMPLES)), lambda d: ConcatDataset([d]), DatasetWrapper],
    ids=["subset", "concatenation", "wrapper"],
)
def test_wrappers_find_each_other_through_others(between):
    inner = Augment(Opaque(), RandomShift((0.0, 1.0)))

    outer = Augment(between(inner), RandomShift((0.0, 1.0)))

    shift = (outer[5][0] - inner[5][0])[0, 0, 0]
    assert shift != (inner[5][0] - Opaque()[5][0])[0, 0, 0]


def test_keys_of_a_mapping_can_be_indices():
    pictures = {name: torch.zeros(1, 4, 4) for name in "ab"}

    dataset = Augment(pictures, GaussianNoise(1.0))

    assert is_same(dataset["a"], dataset["a"])
    assert not is_same(dataset["a"], dataset["b"])


def test_a_field_can_tell_samples_apart():
    samples = [{"image": torch.zeros(1, 4, 4), "id": i} for i in (5, 6, 5)]

    dataset = Augment(samples, GaussianNoise(1.0), index_field="id")

    assert is_same(dataset[0], dataset[2])
    assert not is_same(dataset[0], dataset[1])


@pytest.mark.parametrize(
    "ids", [["a", "b", "c"], np.array(["a", "b", "c"]), [-5, 2**63 - 1, 0]], ids=str
)
def test_an_index_field_may_hold_words_and_any_whole_numbers(ids):
    samples = [(torch.zeros(1, 4, 4), each) for each in ids]
    dataset = Augment(samples, NOISE, index_field=1)

    batch = Augment(Collated(samples), NOISE, index_field=1).get_batch([2, 0, 1])

    assert torch.equal(batch[0], torch.stack([dataset[index][0] for index in (2, 0, 1)]))
    again = Augment(samples[::-1], NOISE, index_field=1)
    assert torch.equal(again[2][0], dataset[0][0])
    assert not torch.equal(dataset[0][0], dataset[1][0])


@pytest.mark.parametrize("get", ["__getitem__", "get_batch"])
def test_an_index_field_of_fractions_is_refused(get):
    dataset = Augment(Collated([(torch.zeros(1, 4, 4), 2.5)]), NOISE, index_field=1)

    with pytest.raises(SettingsError, match="index_field must hold whole numbers or words"):
        getattr(dataset, get)([0] if get == "get_batch" else 0)


def test_a_field_tells_samples_of_a_batch_apart():
    dataset = Augment(Batched(), NOISE, index_field=1)

    assert is_same(dataset.get_batch([4, 2]), read(dataset, [4, 2]))


# Structure.


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        ({"label": 1, "image": torch.zeros(1, 3, 3)}, {}),
        ([torch.zeros(1, 3, 3), "name"], {}),
        (Record(torch.zeros(1, 3, 3), torch.zeros(3, 3)), {"field": "image"}),
        ({"a": {"b": torch.zeros(1, 3, 3)}}, {"field": ("a", "b")}),
    ],
    ids=["dict", "list", "dataclass", "path"],
)
def test_the_image_is_changed_wherever_it_is(sample, options):
    changed = Augment([sample], RandomShift(1.0), **options)[0]

    assert type(changed) is type(sample)
    assert repr(changed) == repr(sample).replace("0., 0., 0.", "1., 1., 1.", 3)


def test_labels_move_with_the_image_from_sample_and_batch():
    class Segmented(Batched):
        def __getitem__(self, index):
            image, _ = super().__getitem__(index)
            return {"image": image, "mask": image[0].to(torch.uint16)}

    dataset = Augment(
        Segmented(), [RandomQuarterTurn(), GaussianNoise(0.0), RandomFlip()], labels=["mask"]
    )

    batch = dataset.get_batch(range(NUM_SAMPLES))

    assert is_same(batch, read(dataset))
    assert torch.equal(batch["image"][:, 0], batch["mask"].float())
    assert not is_same(batch["image"], read(Segmented())["image"])


def test_a_foreign_callable_can_take_the_whole_sample():
    def swap(sample):
        image, label = sample
        return image + label, label

    dataset = Augment(Batched(), swap, field=())

    assert is_same(dataset.get_batch([2, 1]), read(dataset, [2, 1]))


def test_arrays_stay_arrays():
    assert isinstance(Augment(Arrays(), NOISE)[0][0], np.ndarray)


def test_foreign_callables_get_arrays_if_samples_hold_arrays():
    seen = []
    dataset = Augment(Arrays(), [RandomFlip(), lambda image: seen.append(type(image)) or image])

    dataset[0]
    dataset.get_batch([1, 2])

    assert seen == [np.ndarray] * 3


def test_what_is_no_image_is_refused_with_advice():
    with pytest.raises(ShapeError, match="tensor or array to transform, but got str: convert"):
        Augment([("text", 1)], RandomFlip(), field=0)[0]


@pytest.mark.parametrize(
    ("transforms", "options", "message"),
    [
        (None, {}, "transforms must be a callable or several, but got None"),
        (RandomFlip, {}, r"the class RandomFlip, .*: write RandomFlip\(\)"),
        ([RandomFlip], {}, r"the class RandomFlip, .*: write RandomFlip\(\)"),
        ([], {"seed": "a"}, "seed must be a whole number or None, but got 'a'"),
        ([], {"seed": 1.5}, "seed must be a whole number or None"),
    ],
    ids=range(5),
)
def test_a_wrong_argument_is_named(transforms, options, message):
    with pytest.raises(SettingsError, match=message):
        Augment(Opaque(), transforms, **options)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(SettingsError, match="got 5 among them"):
        Augment(Opaque(), [RandomFlip(), 5])


def test_batches_are_made_at_once_exactly_if_the_base_can():
    assert isinstance(Augment(Batched(), NOISE), BatchedDataset)
    assert not isinstance(Augment(Opaque(), NOISE), BatchedDataset)


def test_a_batch_is_made_where_the_loader_wants_it_and_nothing_else_is():
    made = []

    def allocate(shape, dtype):
        made.append(torch.empty(tuple(shape), dtype=dtype))
        return made[-1]

    dataset = Augment(Batched(), [RandomFlip(), GaussianNoise(1.0), RandomFlip()])
    with allocating_with(allocate):
        images, _ = dataset.get_batch([3, 4])

    assert [tensor.data_ptr() for tensor in made] == [images.data_ptr()]


class Lent(Collated):
    """Batches that the dataset keeps, or says that it does not."""

    makes_new_batches = False

    def get_batch(self, indices):
        self.batch = super().get_batch(indices)
        return self.batch


class New(Lent):
    makes_new_batches = True


class OwnBatches(Augment):
    """Derived by somebody who changes batches otherwise."""

    def transform_batch(self, batch, indices):
        return batch + 1


def in_memory(count=6):
    return torch.arange(count * 32.0).reshape(count, 2, 4, 4)


@pytest.mark.parametrize("base", [Lent, New])
def test_only_batches_that_nobody_else_has_are_written_to(base):
    dataset = Augment(base(in_memory()), [RandomFlip(), RandomShift(1.0)], seed=1)

    batch = dataset.get_batch([4, 1, 2])

    assert torch.equal(batch, torch.stack([dataset[4], dataset[1], dataset[2]]))
    assert (batch.data_ptr() == dataset.dataset.batch.data_ptr()) == (base is New)


def test_a_batch_that_the_caller_has_is_not_written_to():
    dataset = Augment(New(in_memory()), RandomShift(1.0), seed=1)
    given = in_memory()

    dataset.transform_batch(given, range(6))

    assert torch.equal(given, in_memory())


def test_a_subclass_that_changes_batches_otherwise_is_heard():
    dataset = OwnBatches(New(in_memory()), RandomFlip(1.0, 1.0))

    assert torch.equal(dataset.get_batch([0, 5]), in_memory()[[0, 5]] + 1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batches_of_rows_are_written_to_and_lie_as_collated_samples_do(layout):
    images = in_memory().contiguous(memory_format=layout)
    expected = images.clone()
    dataset = Augment(TensorDataset(images), [RandomFlip(), RandomShift(1.0)], seed=1)

    (batch,) = as_batched(dataset).get_batch([4, 1, 2])

    alone = torch.stack([dataset[index][0] for index in (4, 1, 2)])
    assert torch.equal(batch, alone)
    assert batch.stride() == alone.stride()
    assert torch.equal(images, expected)


def test_the_transforms_of_the_user_are_kept():
    flip = RandomFlip()

    assert Augment(Opaque(), flip).transforms[0] is flip


class Built:
    count = 0

    def __init__(self):
        Built.count += 1

    def __call__(self, image):
        return image


class BuiltFlip(RandomFlip):
    def __post_init__(self):
        Built.count += 1
        super().__post_init__()


@pytest.mark.parametrize("make", [Built, BuiltFlip], ids=["foreign", "ours"])
def test_no_transform_is_built_to_read_a_sample_or_a_batch(make, monkeypatch):
    monkeypatch.setattr(Built, "count", 0)
    dataset = Augment(Batched(), [make(), make()], global_rng=True)

    for epoch in range(2):
        dataset.set_epoch(epoch)
        dataset[3]
        dataset.get_batch([1, 2])

    assert Built.count == 2


# Training mode.


@pytest.mark.parametrize("base", [Opaque, Batched])
def test_evaluation_changes_nothing(base):
    dataset = Augment(base(), NOISE, training=False)

    assert is_same(dataset[3], base()[3])
    if base is Batched:
        assert is_same(dataset.get_batch([3]), base().get_batch([3]))


def test_the_mode_reaches_wrappers_below():
    dataset = DatasetWrapper(Augment(Opaque(), NOISE))

    dataset.set_training(False)

    assert is_same(dataset[3], Opaque()[3])


def test_mode_and_epoch_are_live_state():
    dataset = DatasetWrapper(Augment(Augment(Opaque(), NOISE), NOISE))
    copied = pickle.loads(pickle.dumps(dataset))
    before = dataset.live_state()

    dataset.set_epoch(4)
    changed = dataset.live_state()
    copied.load_live_state(changed)

    assert isinstance(dataset, LiveDataset)
    assert before != changed
    assert is_same(copied[2], dataset[2])
    dataset.set_training(False)
    copied.load_live_state(dataset.live_state())
    assert is_same(copied[2], Opaque()[2])


# Global generators.


def global_states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


@each_pipeline
def test_global_generators_are_left_as_they_were(options):
    before = global_states()

    read(Augment(Opaque(), **options))

    assert global_states() == before


def test_global_generators_are_put_back_after_an_error():
    def fail(image):
        random.random()
        raise KeyError

    before = global_states()
    with pytest.raises(KeyError):
        Augment(Opaque(), fail, global_rng=True)[0]

    assert global_states() == before


def test_without_global_rng_the_generators_of_the_user_count():
    dataset = Augment(Opaque(), GlobalNoise())
    torch.manual_seed(0)

    assert not is_same(dataset[0], dataset[0])


@pytest.mark.parametrize("name", ["global", "own generator"])
def test_threads_do_not_disturb_each_other(name):
    dataset = Augment(Opaque(), **PIPELINES[name])
    expected = read(dataset)
    results = {}

    def work(number):
        results[number] = [read(dataset) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(is_same(result, expected) for many in results.values() for result in many)


# Streams.


def test_a_stream_is_augmented_as_the_dataset_it_reads():
    streamed = default_collate(list(Augment(Stream(), NOISE)))

    assert is_same(streamed, read(Augment(Opaque(), NOISE)))


def test_ranks_of_a_stream_draw_other_numbers(monkeypatch):
    alone = list(Augment(Stream(), NOISE))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    second = list(Augment(Stream(), NOISE))

    assert not any(is_same(a, b) for a, b in zip(alone, second, strict=True))


def test_a_stream_that_was_resumed_goes_on_as_if_it_had_not_stopped():
    whole = list(Augment(ResumableStream(), NOISE))
    first = Augment(ResumableStream(), NOISE)
    iterator = iter(first)
    read_before = [next(iterator) for _ in range(5)]
    second = Augment(ResumableStream(), NOISE)

    second.load_state_dict(first.state_dict())

    assert second.state_dict() == first.state_dict()
    assert is_same([*read_before, *second], whole)
    assert is_same(list(second), whole)


def test_a_stream_that_was_left_begins_again_at_its_start():
    dataset = Augment(Stream(), NOISE)
    next(iter(dataset))

    assert is_same(list(dataset), list(Augment(Stream(), NOISE)))


def test_only_a_stream_with_a_state_has_one():
    assert not hasattr(Augment(Stream(), NOISE), "state_dict")


# Workers.


@pytest.mark.multiprocess
@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(
    "options", [PIPELINES["keyed"], PIPELINES["global"], PIPELINES["own generator"]],
    ids=["keyed", "global", "own generator"],
)  # fmt: skip
def test_workers_make_the_samples_that_the_main_process_makes(method, options):
    dataset = InScope(Augment(Opaque(), **options))

    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)

    expected = DataLoader(dataset, batch_size=2)
    assert is_same(list(loader), list(expected))


@pytest.mark.multiprocess
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stream_read_by_workers_in_turn_is_the_whole(num_workers):
    dataset = Augment(Stream(), NOISE)

    loader = DataLoader(dataset, batch_size=None, num_workers=num_workers)

    assert is_same(list(loader), list(dataset))


@pytest.mark.parametrize(
    "duplicate",
    [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_a_copy_makes_the_same_samples(duplicate):
    dataset = Augment(Batched(), NOISE, seed=3, training=True)
    dataset.set_epoch(2)

    assert is_same(read(duplicate(dataset)), read(dataset))


def test_the_repr_tells_what_is_done_to_what():
    assert repr(Augment([1], RandomFlip())) == (
        "Augment([1], [RandomFlip(horizontal=0.5, vertical=0.5)])"
    )


@pytest.mark.slow
def test_transforms_of_monai_are_seeded_by_the_key():
    monai = pytest.importorskip("monai.transforms")
    compose = monai.Compose([monai.RandFlip(0.5), monai.RandGaussianNoise(1.0)])
    dataset = Augment(Opaque(), compose)

    in_order = [dataset[index][0] for index in range(NUM_SAMPLES)]

    backwards = [dataset[index][0] for index in reversed(range(NUM_SAMPLES))]
    assert all(map(torch.equal, in_order, reversed(backwards)))
    assert not torch.equal(in_order[0], in_order[1] - 100)
