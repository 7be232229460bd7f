"""Memory is locked while that harms nobody; here CUDA is a stand-in that counts."""

import gc
import os
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from fastloader.direct import _locked_memory as module
from fastloader.direct import locked_memory, unlock_memory
from fastloader.direct._cuda_error import CudaCallError

DEVICE = torch.device("cuda:0")


class Cuda:
    """What is registered, and copies that are under way until somebody waits for them."""

    def __init__(self):
        self.registered = {}
        self.under_way = 0
        self.fails = False
        self.has_no_compiler = False
        self.addresses = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def cudaHostRegister(self, address, size_bytes, _flags):  # noqa: N802 - CUDA's name
        self.may_go_on.wait(10)
        self.registered[address] = size_bytes
        return 0

    def cudaHostUnregister(self, address):  # noqa: N802 - CUDA's name
        assert not self.under_way
        del self.registered[address]

    def read_rows(self, rows, _stride_bytes, _positions, _target, _stream):
        if self.fails:
            raise CudaCallError("no")
        self.addresses.append(rows)
        self.under_way += 1

    def prepare_kernels(self, _device):
        if self.has_no_compiler:
            raise CudaCallError("no compiler")


class Event:
    def __init__(self, cuda):
        self._cuda = cuda

    def record(self, _stream):
        pass

    def synchronize(self):
        self._cuda.under_way = 0


class Stream:
    cuda_stream = 7

    def record_event(self):
        return None

    def wait_event(self, event):
        pass


@pytest.fixture
def cuda(monkeypatch):
    fake = Cuda()
    monkeypatch.setattr(module, "prepare_kernels", fake.prepare_kernels)
    monkeypatch.setattr(module, "read_rows", fake.read_rows)
    monkeypatch.setattr(module, "uncaptured", nullcontext)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: Stream())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda _tensor, _stream: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "check_error", lambda error: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: threading.Lock())
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(fake))
    before = set(threading.enumerate())
    yield fake
    for thread in set(threading.enumerate()) - before:
        thread.join()  # one that locks holds the memory, which is to be unlocked by the stand-in


def data(size_bytes=8 << 20):
    return torch.ones(size_bytes, dtype=torch.uint8)


def copy_from(memory):
    return memory.copy_rows(0, 1, np.zeros(1, np.int64), torch.zeros(1))


def test_memory_is_locked_in_the_background_once_for_all_who_use_it(cuda):
    tensor = data()
    cuda.may_go_on.clear()
    memory = locked_memory(tensor, DEVICE)

    memory.lock_behind()
    assert not memory.is_locked
    cuda.may_go_on.set()
    assert locked_memory(tensor[100:].view(2, -1), DEVICE) is memory
    memory.lock_behind()
    memory.lock()

    assert memory.is_locked
    assert memory.obstacle is None
    assert cuda.registered == {tensor.data_ptr(): tensor.nbytes}
    assert copy_from(memory)


def test_it_is_unlocked_after_its_copies_when_nobody_uses_it(cuda):
    memory = locked_memory(data(), DEVICE)
    memory.lock()
    copy_from(memory)

    del memory
    gc.collect()

    assert cuda.registered == {}


def test_the_memory_stays_while_it_is_locked(cuda):
    tensor = data()
    memory = locked_memory(tensor, DEVICE)
    memory.lock()

    with pytest.raises(RuntimeError, match="resiz"):
        tensor.resize_(100 << 20)
    del tensor

    assert int(memory._bytes.sum()) == 8 << 20


def test_a_fork_finds_it_unlocked_and_later_it_is_locked_again(cuda):
    memory = locked_memory(data(), DEVICE)
    memory.lock()
    copy_from(memory)

    child = os.fork()
    if child == 0:
        os._exit(0 if not cuda.registered and not memory.is_locked else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    assert not memory.is_locked
    assert not copy_from(memory)
    memory.lock()
    assert memory.is_locked


@pytest.mark.parametrize(
    ("seconds_between", "num_locked"), [(1.9, 3), (2.1, 6)], ids=["often", "seldom"]
)
def test_it_is_given_up_only_where_processes_fork_again_and_again(
    cuda, monkeypatch, seconds_between, num_locked
):
    clock, register, sizes = {"now": 0.0}, cuda.cudaHostRegister, []
    monkeypatch.setattr(module.time, "monotonic", lambda: clock["now"])

    def register_slowly(*arguments):
        clock["now"] += 0.1
        sizes.append(arguments[1])
        return register(*arguments)

    monkeypatch.setattr(cuda, "cudaHostRegister", register_slowly)
    memory = locked_memory(data(), DEVICE)

    for _ in range(6):
        memory.lock_behind()
        memory._thread.join()
        clock["now"] += seconds_between
        memory.pause()
        memory.go_on()

    assert len(sizes) == num_locked
    assert not memory.is_locked


def test_what_cannot_be_locked_is_not_tried_for_ever(cuda, monkeypatch):
    tries = []

    def refuse(*_arguments):
        tries.append(None)
        raise module.CudaCallError

    monkeypatch.setattr(cuda, "cudaHostRegister", refuse)
    memory = locked_memory(data(), DEVICE)

    for _ in range(6):
        memory.lock_behind()
        memory._thread.join()

    assert len(tries) == 3


def test_it_is_unlocked_before_its_pages_are_replaced(cuda):
    tensor, other = data(), data()
    memories = [locked_memory(one, DEVICE) for one in (tensor, other)]
    for memory in memories:
        memory.lock()
    copy_from(memories[0])

    unlock_memory(tensor.data_ptr() + 4096, 4096)

    assert [memory.is_locked for memory in memories] == [False, True]
    assert cuda.under_way == 0


def test_shared_memory_stays_locked_through_a_fork(cuda):
    memory = locked_memory(data().share_memory_(), DEVICE)
    memory.lock()

    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

    assert memory.is_locked


def test_memory_of_a_file_is_left_alone(cuda, tmp_path):
    path = tmp_path / "pixels"
    path.write_bytes(bytes(8 << 20))
    tensor = torch.from_file(str(path), size=8 << 20, dtype=torch.uint8)
    memory = locked_memory(tensor, DEVICE)

    memory.lock()

    assert not memory.is_locked
    assert str(path) in memory.obstacle


def test_memory_that_a_child_has_too_is_left_alone(cuda):
    memory = locked_memory(data(64 << 20), DEVICE)
    waiting, ending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ending)
        os.read(waiting, 1)
        os._exit(0)

    memory.lock()
    obstacle = memory.obstacle
    os.close(ending)
    os.waitpid(child, 0)
    os.close(waiting)

    assert "other processes" in obstacle


def test_no_more_is_locked_than_is_free(cuda, monkeypatch):
    machine = type("Small", (), {"available_bytes": 1 << 20, "local_world_size": 2})
    monkeypatch.setattr(module, "read_machine", lambda: machine)
    memory = locked_memory(data(), DEVICE)

    memory.lock()

    assert "free for each rank" in memory.obstacle


def test_a_driver_that_refuses_is_not_asked_again(cuda):
    memory = locked_memory(data(), DEVICE)
    memory.lock()
    cuda.fails = True

    assert not copy_from(memory)
    memory.lock_behind()

    assert memory.obstacle == "no"
    assert cuda.registered == {}
    assert memory._thread is None


def test_without_a_compiler_nothing_is_locked(cuda):
    memory = locked_memory(data(), DEVICE)
    cuda.has_no_compiler = True

    memory.lock()

    assert "no compiler" in memory.obstacle
    assert cuda.registered == {}


def test_what_the_caller_has_locked_is_not_locked_again(cuda, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda _tensor: True)
    memory = locked_memory(data(), DEVICE)

    memory.lock()
    assert copy_from(memory)
    del memory
    gc.collect()

    assert cuda.registered == {}


def test_a_neighbour_in_the_same_page_is_not_mistaken_for_the_caller(cuda, monkeypatch):
    tensor = data()
    first = tensor.data_ptr()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda part: part.data_ptr() == first)
    memory = locked_memory(tensor, DEVICE)

    memory.lock()

    assert cuda.registered == {first: tensor.nbytes}
