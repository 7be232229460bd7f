"""A walk over what an object holds meets its data, not the methods of libraries."""

import numpy as np
import torch

from fastloader.inspection._attributes import walk_attributes


class Mixed:
    """One of everything that people keep in a dataset."""

    pad = np.zeros(2)

    def __init__(self):
        self.image = torch.zeros(2)
        self.labels = np.zeros(2)
        self.rng = np.random.RandomState(0)
        self.parameter = torch.nn.Parameter(torch.zeros(2))


class Labelled(torch.Tensor):
    names = ("a", "b")


def test_a_walk_meets_each_part():
    mixed = Mixed()

    values = [part.value for part in walk_attributes(mixed, "dataset")]

    for part in (mixed.image, mixed.labels, mixed.rng, mixed.parameter, Mixed.pad):
        assert any(value is part for value in values)


def test_a_walk_does_not_list_what_classes_written_in_c_can_do():
    parts = list(walk_attributes(Mixed(), "dataset"))

    assert len(parts) < 100, [part.path for part in parts]


def test_a_walk_meets_what_a_subclass_of_a_librarys_class_holds():
    labelled = torch.zeros(2).as_subclass(Labelled)

    assert any(part.value is Labelled.names for part in walk_attributes(labelled, "x"))


scale = np.ones(3)
shift = np.zeros(3)


class Scaled:
    def __init__(self):
        self.scale = 2.0

    def __getitem__(self, index):
        return index * self.scale + shift[0]


def test_a_walk_takes_no_attribute_for_a_global_variable_of_its_name():
    values = [part.value for part in walk_attributes(Scaled(), "dataset")]

    assert any(value is shift for value in values)
    assert not any(value is scale for value in values)


def test_a_walk_ends_at_its_depth():
    parts = list(walk_attributes([[[["deep"]]]], "dataset", depth=2))

    assert [part.path for part in parts] == ["dataset", "dataset[0]", "dataset[0][0]"]
