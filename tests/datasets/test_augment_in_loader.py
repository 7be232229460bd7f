"""What `FastLoader` delivers does not depend on how its samples are made."""

import multiprocessing

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

from fastloader import FastLoader
from fastloader.datasets import Augment, DatasetWrapper
from fastloader.transforms import GaussianNoise, RandomCrop, RandomFlip
from tests.datasets.test_augment import GlobalNoise, OwnGenerator
from tests.equality import assert_same

NUM_SAMPLES = 12


class Opaque(Dataset):
    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return {"image": torch.arange(32.0).reshape(2, 4, 4) + 100 * index, "index": index}


class Batched(Opaque):
    def get_batch(self, indices):
        images = [self[index]["image"] for index in indices]
        return {"image": torch.stack(images), "index": torch.tensor(indices)}


class Stream(IterableDataset):
    num_shards = 2

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([Opaque()[index] for index in range(first, NUM_SAMPLES, step)])


PIPELINES = {
    "keyed": {"transforms": [RandomFlip(), RandomCrop(3), GaussianNoise(1.0)]},
    "global": {"transforms": [GlobalNoise(), RandomFlip()], "global_rng": True},
    "own generator": {"transforms": [OwnGenerator()]},
}
each_pipeline = pytest.mark.parametrize("options", PIPELINES.values(), ids=PIPELINES.keys())


def epochs(dataset, num_epochs=2, **options):
    """Return each sample of some epochs by its index."""
    loader = FastLoader(dataset, batch_size=4, seed=3, **options)
    found = []
    for _ in range(num_epochs):
        samples = {}
        for batch in loader:
            images = batch["image"].clone()
            samples |= dict(zip(batch["index"].tolist(), images, strict=True))
        found.append(dict(sorted(samples.items())))
    return found


@each_pipeline
def test_reading_in_batches_or_one_by_one_gives_the_same(options):
    assert_same(
        epochs(Augment(Opaque(), **options), num_workers=0),
        epochs(Augment(Batched(), **options)),
    )


@each_pipeline
def test_the_order_does_not_change_a_sample(options):
    dataset = Augment(Opaque(), **options)

    shuffled = epochs(dataset, num_workers=0, shuffle=True)

    assert_same(epochs(dataset, num_workers=0), shuffled)


@each_pipeline
def test_every_epoch_is_different(options):
    first, second = epochs(Augment(Opaque(), **options), num_workers=0)

    assert not any(torch.equal(first[index], second[index]) for index in first)


def test_a_shard_has_the_samples_of_the_whole():
    dataset = Augment(Opaque(), [GaussianNoise(1.0)])
    whole = epochs(dataset, num_workers=0)[0]

    ranks = range(1, NUM_SAMPLES, 2)  # what a distributed sampler gives the second of two

    loader = FastLoader(dataset, batch_size=4, seed=3, num_workers=0, sampler=ranks)

    shard = [sample for batch in loader for sample in zip(*batch.values(), strict=True)]

    for image, index in shard:
        assert torch.equal(image, whole[int(index)])


# Every start method and both ways to keep workers; spawned ones take seconds to start, and
# go on with a run below.
WORKERS = {
    "one": {"num_workers": 1, "persistent_workers": True},
    "two, fresh each epoch": {"num_workers": 2, "persistent_workers": False},
    "four": {"num_workers": 4, "persistent_workers": True},
}
METHODS = [
    pytest.param(method, name, marks=[pytest.mark.slow] if method == "spawn" else [])
    for method in multiprocessing.get_all_start_methods()
    for name in (WORKERS if method == "fork" else ["one"])
]


many_workers = pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")


@many_workers
@pytest.mark.multiprocess
@pytest.mark.parametrize(("method", "name"), METHODS)
@pytest.mark.parametrize("base", [Opaque, Batched], ids=["samples", "batches"])
def test_workers_change_nothing(base, method, name):
    transforms = [
        RandomFlip(),
        RandomCrop(3),
        GaussianNoise(1.0),
        GlobalNoise(),
        OwnGenerator(),
    ]
    dataset = Augment(base(), transforms, global_rng=True)

    found = epochs(dataset, multiprocessing_context=method, **WORKERS[name])

    assert_same(epochs(Augment(Opaque(), transforms, global_rng=True), num_workers=0), found)


@many_workers
@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name in multiprocessing.get_all_start_methods() if name != "fork"]
)
@pytest.mark.parametrize("base", [Batched, Stream], ids=["batches", "stream"])
def test_four_workers_that_inherit_nothing_change_nothing(base, method):
    by = torch.tensor(2.0)

    def shifted(image):
        return image + by * torch.rand(())

    transforms = [RandomFlip(), GaussianNoise(1.0), shifted, lambda image: image * 2]
    dataset = Augment(base(), transforms, global_rng=True)

    found = epochs(dataset, multiprocessing_context=method, **WORKERS["four"])

    assert_same(epochs(Augment(Opaque(), transforms, global_rng=True), num_workers=0), found)


FORKED = {"multiprocessing_context": "fork"}
RESUMED = [
    *(
        (pipeline, base, options)
        for pipeline in ("keyed", "global")
        for base in (Opaque, Batched)
        for options in (
            {"num_workers": 0},
            {"num_workers": 2, **FORKED},
            {"num_workers": 4, "persistent_workers": False, **FORKED},
        )
    ),
    ("global", Opaque, {"num_workers": 1, "multiprocessing_context": "forkserver"}),
    ("global", Batched, {"num_workers": 1, "multiprocessing_context": "spawn"}),
]


@many_workers
@pytest.mark.multiprocess
@pytest.mark.parametrize(("name", "base", "options"), RESUMED)
def test_a_resumed_run_goes_on_with_the_same_samples(name, base, options):
    dataset = Augment(base(), **PIPELINES[name])
    whole = FastLoader(dataset, batch_size=4, seed=3, shuffle=True, num_workers=0)
    expected = [[batch["image"].clone() for batch in whole] for _ in range(3)]
    stopped = FastLoader(dataset, batch_size=4, seed=3, shuffle=True, num_workers=0)
    list(stopped)
    iterator = iter(stopped)
    next(iterator)
    state = stopped.state_dict()

    resumed = FastLoader(dataset, batch_size=4, seed=3, shuffle=True, **options)
    resumed.load_state_dict(state)

    found = [[batch["image"].clone() for batch in resumed] for _ in range(2)]
    assert_same([expected[1][1:], expected[2]], found)


@pytest.mark.multiprocess
def test_workers_change_nothing_in_a_stream():
    dataset = Augment(Stream(), [GaussianNoise(1.0)])

    assert_same(epochs(dataset, num_workers=0), epochs(dataset, num_workers=2))


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "around",
    [lambda d: d, lambda d: Subset(d, range(NUM_SAMPLES)), DatasetWrapper],
    ids=["alone", "subset", "wrapper"],
)
def test_the_mode_reaches_live_workers(around):
    dataset = Augment(Opaque(), [GaussianNoise(1.0)])
    loader = FastLoader(around(dataset), batch_size=4, num_workers=1, persistent_workers=True)
    training = torch.cat([batch["image"].clone() for batch in loader])

    dataset.training = False
    evaluation = torch.cat([batch["image"].clone() for batch in loader])

    plain = torch.stack([Opaque()[index]["image"] for index in range(NUM_SAMPLES)])
    assert not torch.equal(training, plain)
    assert torch.equal(evaluation, plain)


@pytest.mark.multiprocess
def test_a_part_of_an_augmented_dataset_is_the_same_in_workers():
    dataset = Subset(Augment(Opaque(), [GaussianNoise(1.0)]), [5, 2, 7])

    assert_same(epochs(dataset, num_workers=0), epochs(dataset, num_workers=1))
