"""The size that is returned has run, and everything is as it was before."""

import errno
import multiprocessing
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastloader import find_batch_size
from fastloader.errors import BatchSizeError, SettingsError
from fastloader.measuring._batch_size import _search
from fastloader.measuring._out_of_memory import is_out_of_memory


class Step:
    """Runs out of memory over a size, and remembers what has run."""

    def __init__(self, most, error=None):
        self.most = most
        self.error = error or torch.OutOfMemoryError("CUDA out of memory.")
        self.runs = []

    def __call__(self, size):
        if size > self.most:
            raise self.error
        self.runs.append(size)


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_search_ends_at_the_largest_size_that_fits(most, low, high):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= most

    found = _search(fits, low, max(low, high))

    assert found == (min(most, max(low, high)) if most >= low else None)
    assert len(set(tried)) == len(tried) <= 2 * (1 + max(low, high).bit_length())


def test_the_largest_size_that_fits_has_run_twice():
    step = Step(45)

    found = find_batch_size(step, largest=64, multiple_of=4)

    assert found == 44
    assert step.runs.count(44) == 2


def test_memory_that_runs_out_in_the_second_run_counts():
    class Growing(Step):
        def __call__(self, size):
            super().__call__(size)
            if self.runs.count(size) == 2 and size > 10:
                raise self.error

    assert find_batch_size(Growing(100), largest=12) == 10


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("MPS backend out of memory (MPS allocated: 17 GB)"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"
        ),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        ),
        RuntimeError(
            "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
        ),
        RuntimeError("Invalid buffer size: 30.00 GiB"),
        RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=[
        "type",
        "python",
        "mps",
        "cpu",
        "cublas",
        "cublas handle",
        "mps buffer",
        "xpu",
        "cudnn",
        "c++",
        "system",
    ],
)
def test_running_out_of_memory_is_recognised_on_any_backend(error):
    assert find_batch_size(Step(7, error), largest=8) == 7


def test_an_error_raised_from_one_of_memory_is_one():
    error = ValueError("the step failed")
    error.__cause__ = MemoryError()

    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_any_other_error_is_raised():
    with pytest.raises(RuntimeError, match="shapes") as caught:
        find_batch_size(Step(3, RuntimeError("shapes do not match")))

    assert caught.value.__notes__ == ["Raised by the step for a batch of 4."]
    with pytest.raises(OSError, match="No such file"):
        find_batch_size(Step(3, OSError(errno.ENOENT, "No such file or directory")))


def test_what_never_fits_is_an_error():
    with pytest.raises(BatchSizeError, match="batch of 4"):
        find_batch_size(Step(3), smallest=4)


def test_bounds_without_a_size_are_refused():
    with pytest.raises(SettingsError, match="multiple of 8"):
        find_batch_size(Step(3), smallest=9, largest=15, multiple_of=8)


@pytest.mark.parametrize(
    "arguments",
    [
        {"smallest": 1.5},
        {"largest": "all"},
        {"multiple_of": 0},
        {"smallest": 0},
        {"keep": torch.nn.Linear(1, 1)},
        {"keep": [3]},
        {"step": 3},
    ],
    ids=["fraction", "text", "multiple", "smallest", "model", "number", "step"],
)
def test_arguments_of_the_wrong_kind_are_refused(arguments):
    with pytest.raises(SettingsError, match=r"should be|must be"):
        find_batch_size(**{"step": Step(3), **arguments})


class Training:
    """A model with everything that a step changes."""

    def __init__(self):
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.model[0].weight.grad = torch.ones(4, 4)

    def step(self, size):
        self.model.train()
        self.model(torch.randn(size + 1, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        random.random()
        np.random.rand()
        if size > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    @property
    def keep(self):
        return [self.model, self.optimizer, self.scheduler]

    def state(self):
        return (
            [tensor.clone() for tensor in (*self.model.parameters(), *self.model.buffers())],
            [parameter.grad is None for parameter in self.model.parameters()],
            self.model[0].weight.grad.clone(),
            [part.training for part in self.model.modules()],
            str(self.optimizer.state_dict()),
            str(self.scheduler.state_dict()),
            torch.get_rng_state().clone(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        )


def check_alike(first, second):
    assert all(map(torch.equal, first[0], second[0]))
    assert torch.equal(first[2], second[2])
    assert torch.equal(first[6], second[6])
    assert first[1] == second[1]
    assert first[3:6] == second[3:6]
    assert first[7:] == second[7:]


@pytest.mark.parametrize("is_used", [False, True], ids=["fresh", "used"])
def test_everything_is_as_it_was_before(is_used):
    training = Training()
    if is_used:
        training.step(2)
        training.model[0].weight.grad = torch.ones(4, 4)
        training.model.eval()
    before = training.state()

    assert find_batch_size(training.step, keep=training.keep, largest=6) == 5

    check_alike(before, training.state())


def test_everything_is_as_it_was_before_an_error():
    training = Training()
    before = training.state()

    def step(size):
        training.step(size)
        raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        find_batch_size(step, keep=training.keep)

    check_alike(before, training.state())


class Counting(torch.nn.Module):
    """Keeps books of what it has seen."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.num_calls = 0
        self.sizes = [0]

    def forward(self, rows):
        self.num_calls += 1
        self.sizes.append(len(rows))
        self.latest = rows
        self.double()
        return self.layer(rows.double())


def test_what_a_model_notes_of_itself_is_as_it_was():
    model = Counting()
    sizes, weight = model.sizes, model.layer.weight
    before = weight.clone()

    find_batch_size(lambda size: model(torch.ones(size, 4)), keep=[model], largest=8)

    assert model.num_calls == 0
    assert model.sizes is sizes == [0]
    assert not hasattr(model, "latest")
    assert model.layer.weight is weight
    assert torch.equal(weight, before)


def test_an_optimizer_has_its_own_groups_again_where_a_step_adds_one():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(size):
        if size == 1 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})

    find_batch_size(step, keep=[model, optimizer], largest=4)

    assert [len(group["params"]) for group in optimizer.param_groups] == [2]


def test_a_lazy_model_that_has_not_run_is_refused():
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))

    with pytest.raises(SettingsError, match="run the model once before"):
        find_batch_size(lambda size: model(torch.ones(size, 4)), keep=[model], largest=4)

    model(torch.ones(1, 4))
    assert (
        find_batch_size(lambda size: model(torch.ones(size, 4)), keep=[model], largest=4) == 4
    )


class Replacing(torch.nn.Module):
    """Has other tensors after each batch."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.shift = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("last", None)

    def forward(self, numbers):
        self.mean = 0.9 * self.mean + numbers.mean(0)
        self.last = numbers.sum()
        self.register_buffer("cache", numbers.clone(), persistent=False)
        self.scale = torch.nn.Parameter(self.scale.detach() * 2)
        self.shift.requires_grad_(False)
        return numbers * self.scale


def test_a_model_has_its_own_tensors_again_where_a_step_gives_it_others():
    model = Replacing()
    scale, mean = model.scale, model.mean

    find_batch_size(lambda size: model(torch.ones(size, 2)), keep=[model], largest=4)

    assert model.scale is scale
    assert model.mean is mean
    assert torch.equal(mean, torch.zeros(2))
    assert list(dict(model.named_buffers())) == ["mean"]
    assert model.last is None
    assert model.shift.requires_grad


@pytest.mark.parametrize("where", ["unscale", "step"])
def test_a_scaled_step_that_memory_has_ended_does_not_end_the_next(where):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    before = scaler.state_dict()

    def step(size):
        scaler.scale(model(torch.ones(size, 4)).sum()).backward()
        scaler.unscale_(optimizer)
        if where == "step":
            scaler.step(optimizer)
        if size > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        if where == "unscale":
            scaler.step(optimizer)
        scaler.update()

    assert find_batch_size(step, keep=[model, optimizer, scaler], largest=6) == 5
    assert scaler.state_dict() == before
    step(1)  # as if nothing had been


def find_as_rank(rank, folder):
    """Find a size where rank 1 has less memory than rank 0, and one where it fails."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    found = find_batch_size(Step(40 if rank == 0 else 11), largest=64 if rank == 0 else 30)
    try:
        find_batch_size(Step(40) if rank == 0 else Step(3, KeyError("label")), largest=64)
    except (KeyError, RuntimeError) as error:
        Path(folder, f"{rank}.txt").write_text(f"{found} {error}", encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ranks_agree_on_what_fits_all_and_none_waits_for_one_that_failed(tmp_path):
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=find_as_rank, args=(n, str(tmp_path))) for n in range(2)]

    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)

    texts = [(tmp_path / f"{n}.txt").read_text() for n in range(2)]
    assert texts[0].startswith("11 The step for a batch of 4 failed on another rank.")
    assert texts[1] == "11 'label'"
