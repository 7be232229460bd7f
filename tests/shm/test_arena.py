"""Slots come back when nobody looks at them, and never before."""

import ctypes
import gc
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from fastloader.shm import _arena
from fastloader.shm._arena import Arena, ArenaView


@pytest.fixture
def arena():
    made = Arena()
    yield made
    made.close()


def test_a_slot_is_lent_again_after_it_came_back(arena):
    slot = arena.lend()
    arena.give_back(slot)

    assert arena.lend() is slot


def test_a_slot_that_comes_back_to_a_closed_arena_is_dropped(arena):
    slot = arena.lend()
    arena.close()

    arena.give_back(slot)

    assert arena.num_free == 0


def test_a_closed_arena_has_given_its_descriptor_back(arena):
    arena.lend()

    arena.close()

    assert arena.file.is_closed


def test_a_slot_under_a_batch_is_not_lent_again(arena):
    kept = [arena.lease(arena.lend()) for _ in range(5)]

    places = {arena.lend().place for _ in range(5)}

    assert len(kept) == len(places) == 5
    assert arena.num_slots >= 10


@pytest.mark.parametrize(
    "look",
    [
        lambda lease: torch.frombuffer(lease, dtype=torch.uint8),
        lambda lease: torch.frombuffer(lease, dtype=torch.uint8)[100:200].view(10, 10)[3],
        lambda lease: torch.frombuffer(lease, dtype=torch.uint8).numpy()[5:],
        lambda lease: np.frombuffer(lease, np.uint8)[7:].reshape(-1, 1),
        lambda lease: {"inner": [torch.frombuffer(lease, dtype=torch.float32)]}.copy(),
    ],
    ids=["tensor", "view", "numpy-of-tensor", "numpy", "container"],
)
def test_any_view_keeps_the_slot(arena, look):
    slot = arena.lend()
    view = look(arena.lease(slot))
    gc.collect()

    assert arena.lend() is not slot
    del view
    gc.collect()

    assert arena.lend() is slot


def test_whoever_writes_gets_slots_written_before(arena):
    first, second = arena.lend(user=1), arena.lend(user=2)
    arena.give_back(first)
    arena.give_back(second)

    assert arena.lend(user=1) is first
    assert arena.lend(user=2) is second


def test_a_single_free_slot_is_kept_for_who_wrote_to_it(arena):
    mine = arena.lend(user=1)
    arena.give_back(mine)

    assert arena.lend(user=2) is not mine
    assert arena.lend(user=1) is mine


def test_spare_slots_of_another_user_are_taken_before_new_ones_are_made(arena):
    spare = [arena.lend(user=1) for _ in range(3)]
    for slot in spare:
        arena.give_back(slot)

    taken = [arena.lend(user=2) for _ in range(3)]

    assert taken[:2] == spare[:2]
    assert taken[2] not in spare


def test_of_spare_slots_one_that_was_written_before_is_taken(arena):
    first, known, mine = [arena.lend(user=1) for _ in range(3)]
    for slot in (first, known, mine):
        arena.give_back(slot)
    taken = [arena.lend(user=2) for _ in range(3)]
    fresh = taken[2]
    assert taken == [first, known, fresh]
    arena.give_back(fresh)  # the oldest
    arena.give_back(known)

    assert arena.lend(user=1) is mine
    assert arena.lend(user=1) is known


def test_a_slot_tells_whether_its_user_has_written_to_it_before(arena):
    slots = [arena.lend(user=1) for _ in range(3)]
    assert all(slot.is_new_to_user for slot in slots)
    for slot in slots:
        arena.give_back(slot)

    again, taken = arena.lend(user=1), arena.lend(user=2)

    assert {again, taken} < set(slots)
    assert not again.is_new_to_user
    assert taken.is_new_to_user


def test_small_slots_go_when_larger_ones_are_needed(arena):
    arena.give_back(arena.lend())

    arena.require(5_000_000)
    slot = arena.lend()

    assert slot.place.size_bytes >= 5_000_000
    assert arena.num_slots == 1


def test_slots_that_were_cut_and_never_lent_go_with_the_size(arena):
    for _ in range(3):
        arena.lend()  # the last one is cut from two

    arena.require(3 * arena.slot_bytes)

    assert arena.lend().place.size_bytes >= arena.slot_bytes


def test_batches_of_slightly_uneven_size_settle_on_one_slot_size(arena):
    arena.require(10_000_000)
    settled = arena.slot_bytes

    arena.require(10_500_000)

    assert arena.slot_bytes == settled


def test_trimming_gives_memory_back(arena):
    slots = [arena.lend() for _ in range(4)]
    for slot in slots:
        slot.buffer()[:4] = b"full"
        arena.give_back(slot)

    arena.trim(1)

    assert arena.num_free == 1
    assert slots[0].copy(4) == b"\0\0\0\0"


def test_a_worker_sees_what_is_written_and_writes_what_is_seen(arena):
    slot = arena.lend()
    view = ArenaView(arena.file)

    view.slot(slot.place)[:5] = b"pixel"

    assert slot.copy(5) == b"pixel"


def test_many_kept_slots_need_few_mappings(arena):
    kept = [arena.lease(arena.lend()) for _ in range(2000)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    count = sum("memfd:fastloader" in line for line in maps)

    assert len(kept) == 2000
    assert count < 100


def test_extents_are_locked_while_anybody_looks():
    locked = set()

    def pin(address, size_bytes):
        locked.add(address)
        return lambda: locked.discard(address)

    arena = Arena(pin)
    slot = arena.lend()
    arena.lease(slot)
    assert not locked  # in a short run it would not pay
    assert arena.lend() is slot
    lease = arena.lease(slot)
    arena.close()
    del arena, slot
    gc.collect()
    assert locked == {ctypes.addressof(lease)}

    del lease
    gc.collect()
    assert locked == set()


def test_pages_of_a_slot_are_there_before_it_is_written(arena):
    arena.require(8 << 20)
    slot = arena.lend()
    view = ArenaView(arena.file)
    bytes_of_slot = view.slot(slot.place)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.frombuffer(bytes_of_slot, np.uint8)[::4096] = 1
    num_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    assert num_faults < 200  # of 2,176 pages


def test_pages_of_a_slot_are_asked_for_once(arena, monkeypatch):
    asked = []

    class Watched(_arena.mmap.mmap):
        def madvise(self, option, *place):
            asked.append(place)
            super().madvise(option, *place)

    monkeypatch.setattr(_arena.mmap, "mmap", Watched)
    arena.require(10_000_000)
    place = arena.lend().place
    view = ArenaView(arena.file)

    for _ in range(3):
        view.slot(place)

    assert asked == [(place.offset_bytes, place.size_bytes)]
