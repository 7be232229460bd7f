"""A mixture measures itself as a whole, and tells what each source gave."""

import copy
import itertools

import pytest
from torch.utils.data import DataLoader

from fastloader import FastLoader
from fastloader.mixing import MixedLoader
from fastloader.stats import log_stats
from tests.mixing.sources import Numbers, Stream


def _datasets(**options):
    return MixedLoader({"a": Numbers(0, 11), "b": Numbers(100, 5)}, 3, num_workers=0, **options)


def _loaders(**options):
    loaders = {
        "a": FastLoader(Numbers(0, 11), 3, num_workers=0),
        "b": DataLoader(Numbers(100, 5), 3),
    }
    return MixedLoader(loaders, **options)


def _streams(**options):
    sources = {"a": Numbers(0, 11), "b": Stream(100, 5)}
    return MixedLoader(sources, 4, mix="samples", num_workers=0, **options)


KINDS = {
    "datasets": (_datasets, (4, 2)),
    "mixed": (lambda **options: _datasets(mix="samples", **options), (None, None)),
    "loaders": (_loaders, (4, 2)),
    "streams": (_streams, (None, None)),
}
every_kind = pytest.mark.parametrize(("make", "num_batches"), KINDS.values(), ids=KINDS)


@every_kind
def test_the_whole_and_each_source_are_counted(make, num_batches):
    mixed = make()

    num_all = [len(list(mixed)) for _ in range(2)]
    total, epoch = mixed.stats.snapshot(), mixed.stats.snapshot("epoch")

    assert (total.num_epochs, total.num_batches, total.num_samples) == (2, sum(num_all), 32)
    assert (epoch.num_epochs, epoch.num_batches, epoch.num_samples) == (1, num_all[1], 16)
    assert [(one.name, one.num_samples) for one in total.sources] == [("a", 22), ("b", 10)]
    assert [one.sample_share for one in epoch.sources] == [11 / 16, 5 / 16]
    assert tuple(one.num_batches for one in epoch.sources) == num_batches
    assert total.wait_share is not None


@every_kind
def test_only_what_the_consumer_got_counts(make, num_batches):
    mixed = make(with_names=True)

    got = list(itertools.islice(mixed, 3))
    names = [
        n for name, batch in got for n in (name if type(name) is tuple else [name] * len(batch))
    ]
    left = mixed.stats.snapshot()
    list(mixed)
    after = mixed.stats.snapshot()

    samples = {one.name: one.num_samples for one in left.sources}
    assert samples == {name: names.count(name) for name in "ab"}
    assert {one.name: one.num_samples for one in after.sources} == {
        "a": samples["a"] + 11,
        "b": samples["b"] + 5,
    }


@every_kind
def test_reset_forgets_the_sources_as_well(make, num_batches):
    mixed = make()

    iterator = iter(mixed)
    next(iterator)
    mixed.stats.reset()
    none = mixed.stats.snapshot()
    list(iterator)
    rest = mixed.stats.snapshot()

    assert none.num_samples == sum(one.num_samples for one in none.sources) == 0
    assert rest.num_samples == sum(one.num_samples for one in rest.sources) > 0


@pytest.mark.parametrize("mix", ["batches", "samples"])
def test_a_resumed_epoch_counts_what_came_after(mix):
    mixed = _datasets(mix=mix)
    iterator = iter(mixed)
    next(iterator)
    before = {one.name: one.num_samples for one in mixed.stats.snapshot().sources}
    resumed = _datasets(mix=mix)

    resumed.load_state_dict(mixed.state_dict())
    list(resumed)
    sources = {one.name: one.num_samples for one in resumed.stats.snapshot().sources}

    assert sources == {"a": 11 - before["a"], "b": 5 - before["b"]}


def test_a_state_between_epochs_begins_at_zero():
    mixed = _datasets()
    list(mixed)
    resumed = _datasets()

    resumed.load_state_dict(mixed.state_dict())
    list(resumed)

    assert [one.num_samples for one in resumed.stats.snapshot().sources] == [11, 5]


def test_the_one_loader_tells_of_the_sources_when_a_framework_has_it():
    mixed = _datasets()

    list(mixed.loader)

    assert [one.num_samples for one in mixed.stats.snapshot().sources] == [11, 5]


def test_loaders_tell_how_long_each_was_waited_for_and_what_it_measured():
    mixed = _loaders()

    list(mixed)
    snapshot = mixed.stats.snapshot()
    first, second = snapshot.sources

    assert first.own.num_batches == 4
    assert second.own is None  # a loader of torch's
    assert first.waited_seconds > 0
    assert second.waited_seconds > 0
    assert snapshot.num_queued_batches == first.own.num_queued_batches
    values = snapshot.as_dict("mix/")
    assert values["mix/source_a_num_samples"] == 11
    assert "mix/source_b_waited_seconds" in values


def test_what_loaders_fall_back_to_is_told_by_source():
    loader = FastLoader(Numbers(0, 4), 2, num_workers=0, transport="torch")
    mixed = MixedLoader({"slow": loader, "other": FastLoader(Numbers(0, 4), 2, num_workers=0)})

    list(mixed)

    expected = ("slow: torch's own iterators: transport='torch'",)
    assert mixed.stats.snapshot().fallbacks == expected


@every_kind
def test_it_can_be_logged(make, num_batches):
    mixed = make()
    told = []

    with log_stats(mixed, to=told.append):
        num_batches = len(list(mixed))

    assert told[-1].num_batches == num_batches


def test_a_copy_counts_for_itself():
    mixed = _loaders()

    list(mixed)
    twin = copy.deepcopy(mixed)
    before = twin.stats.snapshot()
    list(twin)

    assert before.num_batches == 0
    assert [one.num_samples for one in twin.stats.snapshot().sources] == [11, 5]
    assert mixed.stats.snapshot().num_epochs == 1
