"""Merged batches come apart as they were put together, and no sooner than they are asked for."""

import numpy as np
import pytest
import torch

from fastloader.stages import CutStream
from fastloader.streams._queue_state import QueueState
from fastloader.tensors._rows import Merged


class Source:
    """Gives merged batches of samples that are their own numbers."""

    def __init__(self, *batches_of_each):
        rng = np.random.default_rng(0)
        self.lengths = [rng.integers(1, 5, count) for count in batches_of_each]
        self.left = list(self.lengths)
        self.start = 0

    def __next__(self):
        if not self.left:
            raise StopIteration
        lengths = self.left.pop(0)
        numbers = torch.arange(self.start, self.start + int(lengths.sum()))
        self.start += len(numbers)
        return Merged({"images": numbers[:, None] * 10, "labels": numbers}, lengths)

    def next_if_ready(self):
        return [next(self)] if self.left else []

    def queue(self):
        return QueueState()

    def close(self):
        self.left.clear()


def all_of(stream, take):
    batches = []
    while batch := take(stream):
        batches += batch
    return batches


@pytest.mark.parametrize(
    "take",
    [lambda stream: [found] if (found := next(stream, None)) else [], CutStream.next_if_ready],
    ids=["asked", "if ready"],
)
@pytest.mark.parametrize("counts", [(1,), (1, 1, 3), (64,), (65,), (150, 1, 70)])
def test_batches_are_those_that_were_merged(counts, take):
    source = Source(*counts)
    batches = all_of(CutStream(source), take)

    lengths = np.concatenate(source.lengths).tolist()
    assert [len(batch["labels"]) for batch in batches] == lengths
    numbers = torch.cat([batch["labels"] for batch in batches])
    assert torch.equal(numbers, torch.arange(sum(lengths)))
    assert torch.equal(torch.cat([batch["images"] for batch in batches])[:, 0], numbers * 10)


def test_what_was_not_cut_yet_is_ready():
    stream = CutStream(Source(100))
    next(stream)

    assert stream.queue().num_ready == 99
    stream.close()
    assert stream.queue().num_ready == 0
    assert next(stream, None) is None


def test_few_batches_are_objects_at_once():
    stream = CutStream(Source(200))
    next(stream)

    assert len(list(stream.ready)) < 130
