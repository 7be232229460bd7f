"""Changes of a dataset that workers would miss are seen."""

import numpy as np
import pytest
import torch

from fastloader._fingerprint import fingerprint


class Inner:
    def __init__(self):
        self.size = 3


class Holder:
    def __init__(self):
        self.epoch = 0
        self.names = ["a", "b"]
        self.options = {"crop": 32}
        self.weights = np.ones(4)
        self.images = torch.zeros(10)
        self.large = list(range(1000))
        self.inner = Inner()
        self.function = len


class LiveHolder(Holder):
    def live_state(self):
        return self.epoch

    def load_live_state(self, state):
        self.epoch = state


class Other(Holder):
    pass


def set_class(holder):
    holder.__class__ = Other


@pytest.mark.parametrize(
    "change",
    [
        lambda h: setattr(h, "epoch", 1),
        lambda h: h.names.append("c"),
        lambda h: h.options.update(crop=64),
        lambda h: h.weights.fill(2.0),
        lambda h: h.images.add_(1),
        lambda h: h.large.pop(),
        lambda h: setattr(h.inner, "size", 5),
        lambda h: setattr(h, "function", max),
        lambda h: setattr(h, "images", torch.zeros(10)),
        set_class,
    ],
    ids=[
        "scalar",
        "list",
        "dict",
        "array",
        "tensor",
        "long",
        "nested",
        "function",
        "new",
        "class",
    ],
)
def test_a_change_is_seen(change):
    holder = Holder()
    before = fingerprint(holder)

    change(holder)

    assert fingerprint(holder) != before


def test_without_a_change_it_is_equal():
    holder = Holder()

    assert fingerprint(holder) == fingerprint(holder)


def test_plain_values_of_a_live_dataset_do_not_count():
    holder = LiveHolder()
    before = fingerprint(holder)

    holder.epoch = 7

    assert fingerprint(holder) == before


def test_cycles_end():
    holder = Holder()
    holder.me = holder

    assert fingerprint(holder) == fingerprint(holder)
