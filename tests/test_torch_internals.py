"""What this package relies on in torch's private names."""

import ctypes
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from fastloader._torch_internals import (
    BaseIterator,
    WatchedWorkerInfo,
    batches_under_way,
    collate,
    count_storage_users,
    default_collate_fn_map,
    draws_on_cpu_by_default,
    forget_scaled_step,
    index_sampler,
    not_compiled,
    places_of_draws,
    reads_otherwise,
    registered_tensors,
    reported_length,
    set_worker_info,
    stream_teller,
    worker_info_of_thread,
)


def make_info():
    return WatchedWorkerInfo(id=2, num_workers=4, seed=7, dataset=None)


def test_worker_info_says_what_it_was_given_and_notes_who_asks():
    info = make_info()

    assert not info.was_asked
    assert (info.id, info.num_workers, info.seed) == (2, 4, 7)
    assert info.was_asked


def test_reading_the_seed_is_no_sign_of_splitting():
    info = make_info()

    assert info.seed == 7
    assert not info.was_asked


def test_get_worker_info_gives_what_was_set():
    info = make_info()
    previous = get_worker_info()
    try:
        set_worker_info(info)
        assert get_worker_info() is info
    finally:
        torch.utils.data._utils.worker._worker_info = previous


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (lambda tensor: tensor[1:], 2),
        (lambda tensor: tensor.numpy()[1:], 2),
        (lambda tensor: tensor.data, 2),
        (lambda tensor: tensor.clone(), 1),
    ],
    ids=["view", "array", "data", "copy"],
)
def test_who_looks_at_memory_is_counted(look, expected):
    tensor = torch.arange(4)
    seen = look(tensor)

    assert count_storage_users(tensor) == expected
    del seen
    assert count_storage_users(tensor) == 1


def test_each_thread_may_have_a_worker_info_of_its_own():
    info, seen = make_info(), []

    with worker_info_of_thread(info):
        assert get_worker_info() is info
        thread = threading.Thread(target=lambda: seen.append(get_worker_info()))
        thread.start()
        thread.join()

    assert seen == [None]
    assert get_worker_info() is None


def test_the_info_of_a_worker_process_is_seen_by_all_its_threads():
    info = make_info()
    try:
        with worker_info_of_thread(make_info()):
            set_worker_info_of_process(info)
        assert get_worker_info() is info
    finally:
        set_worker_info_of_process(None)


def set_worker_info_of_process(info):
    torch.utils.data._utils.worker._worker_info = info


def test_the_current_stream_of_any_device_can_be_compared():
    tell = stream_teller(torch.device("cpu"))

    assert tell() == tell()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_streams_of_cuda_are_told_apart():
    tell = stream_teller(torch.device("cuda", 0))
    before = tell()

    with torch.cuda.stream(torch.cuda.Stream()):
        assert tell() != before
    assert tell() == before


def test_collate_takes_its_functions_from_a_table():
    table = {**default_collate_fn_map, int: sum_of}

    assert collate([(1, "a"), (2, "b")], collate_fn_map=table) == [3, ("a", "b")]


def sum_of(batch, *, collate_fn_map):
    return sum(batch)


def test_an_iterator_is_of_torchs_kind():
    assert isinstance(iter(DataLoader([1])), BaseIterator)


def test_the_index_sampler_is_the_batch_sampler_or_the_sampler_without_batches():
    batches, single = DataLoader([1, 2], batch_size=2), DataLoader([1, 2], batch_size=None)

    assert index_sampler(batches) is batches.batch_sampler
    assert index_sampler(single) is single.sampler


def test_what_is_read_is_a_property_that_classes_may_have_of_their_own():
    class Other(DataLoader):
        @property
        def _index_sampler(self):
            return [[1, 0]]

    assert reads_otherwise(Other)
    assert not reads_otherwise(DataLoader)
    assert [batch.tolist() for batch in Other([1, 2])] == [[2, 1]]


class Counted(IterableDataset):
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3


def test_a_length_that_was_asked_for_is_remembered():
    loader = DataLoader(Counted(), batch_size=None)

    assert reported_length(loader) is None
    assert len(loader) == 3
    assert reported_length(loader) == 3


def test_the_tables_of_a_module_are_its_own():
    module = torch.nn.BatchNorm1d(2)
    mean = torch.ones(2)

    parameters, buffers = registered_tensors(module)
    buffers["running_mean"] = mean

    assert list(parameters) == ["weight", "bias"]
    assert module.running_mean is mean


def test_a_scaler_may_begin_a_step_anew():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum()).backward()
    scaler.unscale_(optimizer)

    forget_scaled_step(scaler)

    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)


@pytest.mark.multiprocess
def test_torchs_iterators_tell_what_their_workers_have_under_way():
    iterator = iter(DataLoader(range(40), 2, num_workers=2, prefetch_factor=3))
    next(iterator)
    deadline = time.monotonic() + 5
    while batches_under_way(iterator)[1] < 6 and time.monotonic() < deadline:
        time.sleep(0.01)

    assert batches_under_way(iterator) == (6, 6)
    assert len(list(iterator)) == 19
    assert batches_under_way(iterator) == (0, 0)
    assert batches_under_way(iter(DataLoader(range(4)))) == (0, 0)


def test_the_default_device_is_known_without_asking_torch_for_it():
    assert draws_on_cpu_by_default()
    with torch.device("meta"):
        assert not draws_on_cpu_by_default()
        with torch.device("cpu"):
            assert draws_on_cpu_by_default()
    torch.set_default_device("meta")
    try:
        assert not draws_on_cpu_by_default()
    finally:
        torch.set_default_device(None)
    assert draws_on_cpu_by_default()


@not_compiled
def count_frames():
    return _count_inside()


def _count_inside():
    torch.ones(1).add(1)  # would be compiled
    return 1


def test_a_function_can_be_left_alone_by_the_compiler_with_all_that_it_calls():
    torch._dynamo.reset()
    traced = []

    def backend(graph, _):
        traced.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x * count_frames(), backend=backend)

    assert compiled(torch.tensor(3)) == 3
    calls = {node.name for graph in traced for node in graph.graph.nodes}
    assert not any("add" in name for name in calls)


def test_each_draw_of_a_generator_shows_at_the_places_that_are_known():
    generator = torch.Generator().manual_seed(3)
    places = places_of_draws(generator)

    def look():
        return tuple(ctypes.string_at(*place) for place in places)

    assert places
    marks = [look()]
    for draw in (torch.rand, torch.randn) * 400:
        draw((), generator=generator)
        marks.append(look())
    assert len(set(marks)) == len(marks)
