"""Mixtures on several ranks: the same turns, other samples, and no word between them."""

import json
import multiprocessing
from collections import Counter
from pathlib import Path

import pytest
import torch

from fastloader import FastLoader
from fastloader.mixing import MixedLoader
from tests.mixing.sources import Numbers, Stream

_RULES = {"strategy": "weighted", "weights": {"a": 1, "b": 2}, "with_names": True, "seed": 5}


def _mixtures():
    sources = {"a": Numbers(0, 20), "b": Numbers(100, 12)}
    for mix in ("batches", "samples"):
        yield MixedLoader(
            sources, 2, mix=mix, shuffle=True, distributed=True, num_workers=0, **_RULES
        )


def _read(mixed):
    return [(names, batch.tolist()) for _ in range(2) for names, batch in mixed]


def _read_as_rank(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    found = [_read(mixed) for mixed in _mixtures()]
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ranks_of_a_process_group_take_the_same_turns_and_divide_the_samples(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_read_as_rank, args=(rank, str(tmp_path))) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)

    by_rank = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]

    for first, second in zip(*by_rank, strict=True):
        assert [names for names, _ in first] == [names for names, _ in second]
        for name, length in (("a", 20), ("b", 12)):
            passes = [_samples_of(name, batches, length // 2) for batches in (first, second)]
            for one, other in zip(*passes, strict=True):
                assert len({*one, *other}) == len(one) + len(other)


def _samples_of(name, batches, num_samples):
    """Return what one rank read of a source, pass by pass."""
    samples = []
    for names, batch in batches:
        of_each = [names] * len(batch) if isinstance(names, str) else names
        samples += [s for s, n in zip(batch, of_each, strict=True) if n == name]
    half = len(samples) // 2  # of an epoch
    return [
        epoch[start : start + num_samples]
        for epoch in (samples[:half], samples[half:])
        for start in range(0, len(epoch), num_samples)
    ]


def test_ranks_are_those_of_the_launcher_before_there_is_a_process_group(monkeypatch):
    counts = Counter()
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        mixed = MixedLoader(
            {"a": range(9), "b": range(9, 15)}, 2, distributed="auto", shuffle=True
        )
        counts.update(int(sample) for batch in mixed for sample in batch)

    assert counts == dict.fromkeys(range(15), 1)


def test_datasets_beside_loaders_are_divided_too(monkeypatch):
    counts = Counter()
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        sources = {"a": Numbers(0, 8), "stream": Stream(100 + rank, 1)}
        mixed = MixedLoader(sources, 2, distributed=True, num_workers=0)
        counts.update(int(sample) for batch in mixed for sample in batch)

    assert counts == dict.fromkeys([*range(8), 100, 101], 1)


def test_nothing_is_divided_unless_asked_for(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    mixed = MixedLoader({"a": range(4), "b": range(4, 8)}, 4)

    assert sorted(int(sample) for batch in mixed for sample in batch) == list(range(8))


def test_loaders_of_unknown_length_have_the_same_turns_on_all_ranks():
    turns = []
    for rank in range(2):
        loaders = {
            "a": FastLoader(Stream(1000 * rank, 6), 2, num_workers=0),
            "b": FastLoader(Stream(1000 * rank, 9), 2, num_workers=0),
        }
        mixed = MixedLoader(loaders, **_RULES)
        turns.append([name for _ in range(2) for name, _ in mixed])

    assert turns[0] == turns[1]
