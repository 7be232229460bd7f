"""A function reaches every tensor of a batch, and containers stay what they are."""

import dataclasses
from array import array
from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import pytest
import torch

from fastloader.stages import map_tensors


class Pair(NamedTuple):
    image: Any
    label: Any


@dataclasses.dataclass(frozen=True)
class Item:
    image: Any
    name: str


class Tagged(dict):
    tag = "none"


class Movable:
    def __init__(self, where="host"):
        self.where = where

    def to(self, where):
        return Movable(where)


def add_one(tensor):
    return tensor + 1


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2),
        [torch.zeros(2), "a", 3],
        (torch.zeros(2), (torch.zeros(1),)),
        {"x": torch.zeros(2), "y": {"z": [torch.zeros(1)]}},
        OrderedDict(x=torch.zeros(2)),
        Pair(torch.zeros(2), 3),
        Item(torch.zeros(2), "cell"),
    ],
    ids=["tensor", "list", "tuple", "dict", "ordered", "named", "dataclass"],
)
def test_tensors_change_and_types_stay(batch):
    mapped = map_tensors(batch, add_one)

    assert type(mapped) is type(batch)
    assert repr(mapped) == repr(batch).replace("0.", "1.")


@pytest.mark.parametrize(
    "plain",
    [
        range(3),
        memoryview(b"abc"),
        bytearray(b"abc"),
        array("i", [1, 2]),
        b"abc",
        "abc",
        3,
        None,
    ],
    ids=lambda plain: type(plain).__name__,
)
def test_what_holds_no_tensors_is_passed_on_as_it_is(plain):
    [found] = map_tensors([plain], add_one)

    assert found is plain


def test_mappings_that_add_up_what_they_get_keep_their_values():
    counts = map_tensors(Counter(dogs=2, cats=1), add_one)

    assert counts == Counter(dogs=2, cats=1)
    assert type(counts) is Counter


def test_the_batch_itself_is_left_as_it_was():
    batch = {"x": [torch.zeros(1)]}

    map_tensors(batch, add_one)

    assert batch["x"][0].item() == 0.0


def test_attributes_of_a_mapping_are_kept():
    batch = Tagged(x=torch.zeros(1))
    batch.tag = "left eye"

    assert map_tensors(batch, add_one).tag == "left eye"


def test_objects_with_a_method_of_their_own_use_it():
    def move(part):
        return part.to("device") if hasattr(part, "to") else NotImplemented

    mapped = map_tensors([Movable(), torch.zeros(1)], add_one, move)

    assert mapped[0].where == "device"
    assert mapped[1].item() == 1.0


def test_fields_that_nobody_has_set_stay_so():
    @dataclasses.dataclass
    class Partly:
        images: torch.Tensor
        later: object = dataclasses.field(init=False)

    mapped = map_tensors(Partly(torch.ones(2)), lambda tensor: tensor + 1)

    assert mapped.images.tolist() == [2, 2]
    assert not hasattr(mapped, "later")
