"""A batch survives the journey through a slot unchanged."""

import numpy as np
import pytest
import torch
from hypothesis import given

from fastloader.engine._packing import pack
from fastloader.engine._slot_writer import SlotWriter
from fastloader.engine._unpacking import unpack
from tests.engine.strategies import batches
from tests.equality import assert_same


def through_slot(batch, size_bytes=1 << 20):
    slot = bytearray(size_bytes)
    writer = SlotWriter(memoryview(slot))
    packed = pack(batch, writer)
    assert writer.fits
    return unpack(packed, slot)


@given(batch=batches)
def test_any_batch_arrives_as_it_was(batch):
    assert_same(batch, through_slot(batch))


def test_a_tensor_made_in_the_slot_is_not_copied():
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))
    tensor = writer.empty((4, 1000), torch.float32)
    tensor.fill_(2.0)
    used_bytes = writer.needed_bytes

    packed = pack({"image": tensor}, writer)

    assert writer.needed_bytes == used_bytes
    assert torch.equal(unpack(packed, slot)["image"], torch.full((4, 1000), 2.0))


def make_and_send(writer, value, shape=(4, 100)):
    tensor = writer.empty(shape, torch.float32)
    tensor.fill_(value)
    pack({"image": tensor}, writer)
    return tensor


def test_the_next_batch_of_a_slot_is_made_in_the_tensors_of_the_last_one():
    writer = SlotWriter(memoryview(bytearray(1 << 16)))
    first = id(make_and_send(writer, 1.0))

    writer.begin()

    assert id(make_and_send(writer, 2.0)) == first


def test_a_tensor_that_somebody_kept_is_not_made_anew():
    writer = SlotWriter(memoryview(bytearray(1 << 16)))
    kept = make_and_send(writer, 1.0)

    writer.begin()

    assert make_and_send(writer, 2.0) is not kept


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t_(),
        lambda tensor: tensor.requires_grad_(),
        lambda tensor: setattr(tensor, "name_of_it", "x"),
        lambda tensor: tensor.resize_(2, 3),
    ],
    ids=["transposed", "differentiable", "with an attribute", "resized"],
)
def test_a_tensor_that_was_changed_is_not_used_again(change):
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))
    tensor = writer.empty((4, 100), torch.float32)
    change(tensor)
    pack(tensor, writer)
    del tensor

    writer.begin()
    following = writer.empty((4, 100), torch.float32)
    following.fill_(3.0)

    assert following.shape == (4, 100)
    assert not following.requires_grad
    assert not vars(following)
    assert_same(unpack(pack(following, writer), slot), torch.full((4, 100), 3.0))


def send_fields(writer, slot, fields, value):
    """Make, pack and unpack a batch of tensors, as the default collate makes them."""
    batch = {}
    for number, (name, shape) in enumerate(fields.items()):
        batch[name] = writer.empty(shape, torch.float32).fill_(value + number)
    expected = {name: tensor.clone() for name, tensor in batch.items()}
    packed = pack(batch, writer, is_as_made=True)
    assert_same(unpack(packed, bytearray(slot)), expected)
    return packed


FIELDS = {"image": (4, 100), "mask": (4, 10)}


def test_a_batch_like_the_last_one_is_packed_at_once():
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))

    bodies = []
    for value in (1.0, 5.0, 9.0):
        bodies.append(send_fields(writer, slot, FIELDS, value))
        writer.begin()

    assert bodies[0] is bodies[1] is bodies[2]


@pytest.mark.parametrize(
    "other",
    [
        {"image": (4, 100), "label": (4, 10)},
        {"mask": (4, 100), "image": (4, 10)},
        {"image": (3, 100), "mask": (3, 10)},
        {"image": (4, 100)},
        {"image": (4, 100), "mask": (4, 10), "more": (4, 1)},
    ],
    ids=["name", "order", "shape", "fewer", "more"],
)
def test_batches_of_other_fields_are_told_from_the_last_one(other):
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))

    for fields in (FIELDS, other, FIELDS, other):
        send_fields(writer, slot, fields, 1.0)
        writer.begin()


def test_a_list_of_tensors_is_told_from_a_dictionary():
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))
    send_fields(writer, slot, FIELDS, 1.0)
    writer.begin()

    batch = [writer.empty(shape, torch.float32).fill_(2.0) for shape in FIELDS.values()]
    batch.reverse()
    expected = [tensor.clone() for tensor in batch]

    assert_same(unpack(pack(batch, writer, is_as_made=True), bytearray(slot)), expected)


def test_a_batch_of_one_tensor_is_packed_at_once_too():
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))

    bodies = set()
    for value in (1.0, 2.0):
        batch = writer.empty((4, 100), torch.float32).fill_(value)
        body = pack(batch, writer, is_as_made=True)
        assert_same(unpack(body, bytearray(slot)), torch.full((4, 100), value))
        bodies.add(id(body))
        del batch
        writer.begin()

    assert len(bodies) == 1


def test_what_does_not_lie_in_the_slot_is_packed_each_time():
    slot = bytearray(1 << 16)
    writer = SlotWriter(memoryview(slot))

    for number in (1, 2):
        image = writer.empty((4, 100), torch.float32).fill_(number)
        batch = {"image": image, "label": number}
        packed = pack(batch, writer, is_as_made=True)
        assert_same(unpack(packed, bytearray(slot)), {**batch, "image": image.clone()})
        writer.begin()


@given(first=batches, second=batches)
def test_a_slot_carries_one_batch_after_the_other(first, second):
    slot = bytearray(1 << 20)
    writer = SlotWriter(memoryview(slot))

    for batch in (first, second):
        assert_same(batch, unpack(pack(batch, writer), bytearray(slot)))
        writer.begin()


def test_a_batch_larger_than_its_slot_is_measured():
    batch = [torch.zeros(5000, dtype=torch.uint8), torch.zeros(300, dtype=torch.uint8)]
    writer = SlotWriter(memoryview(bytearray(4096)))

    pack(batch, writer)
    needed_bytes = writer.needed_bytes

    assert not writer.fits
    assert_same(batch, through_slot(batch, needed_bytes))


def test_a_batch_that_was_to_be_made_in_a_slot_too_small_for_it_is_counted_once():
    writer = SlotWriter(memoryview(bytearray(4096)))
    batch = [writer.empty((count,), torch.float32).fill_(count) for count in (500, 2000, 3000)]

    pack(batch, writer)

    assert not writer.fits
    assert writer.needed_bytes == 2048 + 8000 + 12_000
    assert_same(batch, through_slot(batch, writer.needed_bytes))


def test_views_of_one_tensor_stay_views_of_one_tensor():
    whole = torch.arange(2000.0)

    arrived_whole, arrived_part = through_slot([whole, whole[500:1500]])
    arrived_whole[500] = -1.0

    assert arrived_part[0] == -1.0


@pytest.mark.parametrize("size_bytes", [0, 5])
def test_bare_memory_arrives(size_bytes):
    storage = torch.UntypedStorage(list(range(size_bytes)))

    received = through_slot([storage, torch.ones(3)])

    assert received[0].tolist() == list(range(size_bytes))
    assert received[1].tolist() == [1, 1, 1]


def test_the_same_tensor_twice_stays_one_object():
    tensor = torch.arange(3.0)

    first, second = through_slot((tensor, tensor))

    assert first is second


def test_strides_are_kept():
    images = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)

    arrived = through_slot(images)

    assert arrived.is_contiguous(memory_format=torch.channels_last)
    assert_same(images, arrived)


def test_a_thin_view_of_a_large_tensor_does_not_take_the_rest_along():
    rows = torch.arange(1_000_000.0).reshape(1000, 1000)
    writer = SlotWriter(memoryview(bytearray(1 << 20)))

    pack(rows[:, 3], writer)

    assert writer.needed_bytes < 10_000


def test_copies_made_while_packing_are_not_taken_for_each_other():
    base = torch.arange(4000.0).reshape(2, 2000)

    arrived = through_slot([base[:, column] for column in range(0, 2000, 20)])

    assert [int(part[0]) for part in arrived] == list(range(0, 2000, 20))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, on rebuilding
def test_parameters_gradients_and_sparse_tensors_arrive():
    parameter = torch.nn.Parameter(torch.arange(3.0))
    leaf = torch.ones(700, requires_grad=True)
    sparse = torch.eye(4).to_sparse()

    got_parameter, got_leaf, got_sparse = through_slot([parameter, leaf, sparse])

    assert isinstance(got_parameter, torch.nn.Parameter)
    assert got_leaf.requires_grad
    assert torch.equal(got_sparse.to_dense(), torch.eye(4))


@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")  # no other way
@pytest.mark.filterwarnings("ignore:TypedStorage:UserWarning")  # torch's own, on rebuilding
@pytest.mark.parametrize("size", [3, 5000])
def test_quantized_tensors_keep_their_scales(size):
    values = torch.linspace(0, 9, 2 * size).reshape(2, size)
    whole = torch.quantize_per_tensor(values, 0.5, 1, torch.quint8)
    scales, zeros = torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0, 3])
    by_row = torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8)

    for sent, got in zip((whole, by_row), through_slot([whole, by_row]), strict=True):
        assert sent.dtype == got.dtype
        assert torch.equal(sent.dequantize(), got.dequantize())


@pytest.mark.parametrize("size", [4, 5000])
def test_read_only_arrays_may_be_written_to_where_they_arrive(size):
    array = np.arange(size)
    array.flags.writeable = False

    arrived = through_slot([array])[0]

    np.testing.assert_array_equal(array, arrived)
    arrived += 1


def test_a_generator_arrives_with_its_state():
    generator = torch.Generator().manual_seed(7)

    arrived = through_slot({"generator": generator})["generator"]

    assert torch.rand(1, generator=arrived) == torch.rand(1, generator=generator)


def test_arrays_of_objects_and_structured_arrays_arrive():
    objects = np.array([{"a": 1}, None], dtype=object)
    records = np.zeros(500, dtype=[("x", "f4"), ("n", "i8")])
    records["n"] = np.arange(500)

    got_objects, got_records = through_slot([objects, records])

    assert got_objects.tolist() == [{"a": 1}, None]
    assert got_records["n"].tolist() == list(range(500))


def test_what_cannot_be_pickled_raises():
    with pytest.raises(Exception, match=r"(?i)pickle|local"):
        pack([lambda: None], SlotWriter(memoryview(bytearray(4096))))
