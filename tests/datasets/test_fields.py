import collections
import dataclasses
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from fastloader.datasets._fields import find_image, get_field, replace_field
from fastloader.errors import ShapeError

IMAGE = torch.arange(12.0).reshape(1, 3, 4)


class Named(NamedTuple):
    label: int
    image: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    label: int
    image: Any
    checked: bool = dataclasses.field(init=False, default=True)


@dataclasses.dataclass(slots=True)
class Slotted:
    image: Any
    label: int


SAMPLES = {
    "tensor": (IMAGE, ()),
    "array": (IMAGE.numpy(), ()),
    "tuple": ((IMAGE, 3), (0,)),
    "list": ([3, "a", IMAGE], (2,)),
    "dict": ({"label": 3, "image": IMAGE}, ("image",)),
    "ordered": (collections.OrderedDict(label=3, image=IMAGE), ("image",)),
    "read-only": (types.MappingProxyType({"label": 3, "image": IMAGE}), ("image",)),
    "named": (Named(3, IMAGE), (1,)),
    "frozen": (Frozen(3, IMAGE), ("image",)),
    "slotted": (Slotted(IMAGE, 3), ("image",)),
    "nested": ({"inputs": (torch.zeros(5), {"x": IMAGE}), "label": 3}, ("inputs", 1, "x")),
}


@pytest.fixture(params=SAMPLES, name="case")
def _case(request):
    return SAMPLES[request.param]


def test_the_image_is_found_in_any_structure(case):
    sample, path = case

    assert find_image(sample, None) == path


def test_replacing_the_image_keeps_the_type_and_all_else(case):
    sample, path = case
    other = torch.ones(2, 2)

    changed = replace_field(sample, path, other)

    assert get_field(changed, path) is other
    if path:
        assert type(changed) is type(sample)
        assert np.asarray(get_field(sample, path)).shape == IMAGE.shape  # not changed
        assert replace_field(changed, path, None) == replace_field(sample, path, None)


@pytest.mark.parametrize(
    "sample",
    [
        (torch.zeros(5), IMAGE),
        (torch.zeros(5), 3),
        {"signal": np.zeros(5, np.float32), "label": torch.tensor(3), "weight": 0.5},
    ],
    ids=["vector before the image", "only a vector", "scalars beside a vector"],
)
def test_a_sample_and_its_batch_give_the_same_path(sample):
    batch = default_collate([sample, sample])

    assert find_image(batch, None, batched=True) == find_image(sample, None)


def test_a_field_may_be_an_attribute_of_any_object():
    sample = types.SimpleNamespace(image=IMAGE, label=1)

    changed = replace_field(sample, ("image",), None)

    assert (changed.image, changed.label, sample.image) == (None, 1, IMAGE)


def test_a_named_tuple_can_be_changed_by_name():
    assert replace_field(Named(3, IMAGE), ("image",), None) == Named(3, None)


def test_no_image_is_an_error_that_shows_the_sample():
    with pytest.raises(ShapeError, match=r"tuple with 0: int, 1: str: say where .* field="):
        find_image((3, "a"), None)


def test_two_vectors_are_ambiguous():
    with pytest.raises(ShapeError, match="only one of one axis"):
        find_image((torch.zeros(5), torch.zeros(5)), None)


def test_a_wrong_field_is_named():
    with pytest.raises(
        ShapeError, match="field='picture', but the sample is dict with 'image'"
    ):
        get_field({"image": IMAGE}, ("picture",))
