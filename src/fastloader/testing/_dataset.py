"""Check that a dataset keeps the contract that loaders rely on."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, default_collate

from fastloader._loader import FastLoader
from fastloader.datasets._batched import as_batched
from fastloader.datasets._wrapper import makes_new_batches
from fastloader.inspection._lengths import required_length
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent
from fastloader.randomness._seeding import DrawScope, draw_scope, seed_global_generators
from fastloader.testing._apart import run_apart
from fastloader.testing._compare import difference, memory_of, num_bytes
from fastloader.testing._race import NUM_THREADS, race
from fastloader.testing._report import (
    Check,
    DatasetReport,
    FailedError,
    SkippedError,
    run_check,
)
from fastloader.typing import BatchedDataset

__all__ = ["check_dataset", "check_threads"]

_SCOPE = DrawScope(seed=0, epoch=0)
_NUM_EPOCHS = 5
_THREADS_SECONDS = 60.0
_READING_SHARE = 0.2
"""Of the time, for what one thread reads first; several then take about as long at most."""


def check_dataset(
    dataset: Any,
    *,
    num_samples: int = 16,
    deterministic: bool = True,
    start_method: str | None = None,
    max_growth_bytes: int = 1 << 20,
    threads: bool = False,
    raise_on_failure: bool = False,
) -> DatasetReport:
    """Check a dataset, so that what would break in workers breaks here and is named.

    Looked at are:

    - whether it can be pickled, or which attribute cannot;
    - whether a sample is the same when it is read again, and by a copy, from the same seeds;
    - whether batches (`get_batch`, ``__getitems__``) equal the samples bit for bit, and lie in
      memory of their own where the class says so (``makes_new_batches``);
    - whether 0, 1 and 2 workers give the same rows, or, of a stream, no row twice;
    - how much the memory of a worker grows with each epoch;
    - what a sample costs.

    The global random state is left as it was.

    Args:
        dataset: Map-style or iterable dataset, or a sequence.
        num_samples: How many samples to look at, spread over the dataset.
        deterministic: Whether equal seeds should give equal samples; False leaves out what
            follows from that.
        start_method: How workers are started; None: as a loader would.
        max_growth_bytes: How much a worker may grow per epoch, in the median.
        threads: Also read in four threads at once, in a process of its own, as what is not made for
            that may crash.
        raise_on_failure: Raise if a check fails.

    Returns:
        The report; print it.

    Raises:
        DatasetCheckError: If a check fails and `raise_on_failure` is set.
        SettingsError: If it is no dataset.

    Examples:
        >>> check_dataset([torch.zeros(2)] * 4).ok
        True
    """
    subject = _Subject(dataset, num_samples, start_method)
    checks: dict[str, Callable[[], str]] = {"can be pickled": subject.can_be_pickled}
    if deterministic:
        checks["same sample twice"] = subject.gives_the_same_twice
        checks["batch equals samples"] = subject.batch_equals_samples
        checks["same rows for 0, 1, 2 workers"] = subject.same_rows_for_any_workers
    if threads:
        checks["same rows in threads"] = lambda: subject.same_rows_in_threads(_THREADS_SECONDS)
    checks["memory growth of a worker"] = lambda: subject.memory_growth(max_growth_bytes)
    checks["cost of a sample"] = subject.cost
    size = "iterable" if subject.is_stream else f"{len(dataset)} samples"
    with _random_state_kept():
        report = DatasetReport(
            f"{type(dataset).__name__} ({size})",
            tuple(run_check(name, check) for name, check in checks.items()),
        )
    if raise_on_failure:
        report.raise_if_failed()
    return report


def check_threads(dataset: Any, *, seconds: float, num_samples: int = 8) -> Check:
    """Check only whether several threads at once read what one thread reads.

    It is done in a process of its own, as what is not made for that may crash or hang.

    Args:
        dataset: Map-style dataset.
        seconds: How long it may take. Where samples are so slow that it would take longer, fewer are
            looked at.
        num_samples: How many samples to look at, spread over the dataset.
    """
    subject = _Subject(dataset, num_samples, None)
    return run_check("same rows in threads", lambda: subject.same_rows_in_threads(seconds))


class _Subject:
    """A dataset under test; each check returns what was measured, or raises."""

    def __init__(self, dataset: Any, num_samples: int, start_method: str | None) -> None:
        self.dataset = dataset
        self.is_stream = isinstance(dataset, IterableDataset)
        self._num_samples = num_samples
        self._context = "auto" if start_method is None else start_method
        self._indices: list[int] = []
        if not self.is_stream:
            size = required_length(
                dataset,
                "give a map-style dataset or a sequence, or derive an iterable one from torch's "
                "IterableDataset.",
            )
            chosen = np.linspace(0, size - 1, min(size, num_samples)).astype(int)
            self._indices = chosen.tolist()

    def can_be_pickled(self) -> str:
        inherited: list[object] = []
        buffers: list[Any] = []
        data = dumps_for_worker(self.dataset, buffers=buffers, inherited=inherited)
        loads_from_parent(data, buffers=buffers, inherited=inherited)
        apart = sum(buffer.raw().nbytes for buffer in buffers)
        return _size(len(data)) + (f" and {_size(apart)} in large arrays" if apart else "")

    def gives_the_same_twice(self) -> str:
        first = list(self._samples(self.dataset))
        _expect(first, list(self._samples(self.dataset)), "read again")
        try:
            copy = loads_from_parent(dumps_for_worker(self.dataset))
        except TypeError:  # said by another check
            return f"{len(first)} samples"
        _expect(first, list(self._samples(copy)), "in a copy")
        return f"{len(first)} samples, in a copy too"

    def batch_equals_samples(self) -> str:
        self._need_indices()
        # Not in order, and one of them twice.
        indices = [*reversed(self._indices), self._indices[0]]
        samples = list(self._samples(self.dataset, indices))
        batched = as_batched(self.dataset)
        read_many = getattr(self.dataset, "__getitems__", None)
        ways = []
        with draw_scope(_SCOPE):
            if batched is not None:
                _expect(default_collate(samples), batched.get_batch(indices), "in get_batch")
                if makes_new_batches(batched):
                    _expect_new(batched, len(self._indices))
                ways.append("get_batch")
            if read_many is not None:
                _expect(samples, read_many(indices), "in __getitems__")
                ways.append("__getitems__")
        if not ways:
            raise SkippedError("it reads single samples")
        return f"{len(indices)} samples by {' and '.join(ways)}"

    def same_rows_for_any_workers(self) -> str:
        if self.is_stream:
            repeats = _repeats(self._rows(2)) - _repeats(self._rows(0))
            if repeats > 0:
                raise FailedError(
                    f"2 workers give {repeats} of {self._num_samples} rows twice: divide the "
                    "stream by torch.utils.data.get_worker_info()"
                )
            return f"none of {self._num_samples} rows twice"
        expected = self._rows(0)
        for num_workers in (1, 2):
            _expect(expected, self._rows(num_workers), f"with {num_workers} workers")
        return f"{len(expected)} rows"

    def same_rows_in_threads(self, seconds: float) -> str:
        self._need_indices()
        check = partial(self.race_of_threads, _READING_SHARE * seconds)
        return run_apart(check, seconds, self._context)

    def race_of_threads(self, reading_seconds: float) -> str:
        batched = as_batched(self.dataset)

        def read(index: int) -> Any:
            [sample] = self._samples(self.dataset, [index])
            return sample

        num_rows, num_rounds = race(read, self._indices, reading_seconds)
        if batched is not None:
            get_batch = batched.get_batch

            def read_batch(first: int) -> Any:
                with draw_scope(_SCOPE):
                    return get_batch([first, *self._indices])

            num_rounds = min(num_rounds, race(read_batch, self._indices, reading_seconds)[1])
        return f"{num_rows} rows in {NUM_THREADS} threads at once, {num_rounds} times"

    def memory_growth(self, max_growth_bytes: int) -> str:
        self._need_indices()
        loader: FastLoader[int] = FastLoader(
            _Metered(self.dataset, self._indices),
            batch_size=None,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context=self._context,
        )
        used = [max(map(int, loader)) for _ in range(_NUM_EPOCHS)]
        growth = int(statistics.median(b - a for a, b in pairwise(used)))
        told = f"{_size(max(growth, 0))} per epoch of {len(self._indices)} samples"
        if growth > max_growth_bytes:
            raise FailedError(
                f"{told}, more than {_size(max_growth_bytes)}: something keeps what it read, "
                "or Python objects made before the workers are copied as they are looked at"
            )
        return told

    def cost(self) -> str:
        seconds: list[float] = []
        sizes: list[int] = []
        start = time.perf_counter()
        for sample in self._samples(self.dataset):
            seconds.append(time.perf_counter() - start)
            sizes.append(num_bytes(sample))
            start = time.perf_counter()
        if not seconds:
            raise SkippedError("it is empty")
        milliseconds = statistics.median(seconds) * 1e3
        return f"{milliseconds:.3g} ms and {_size(int(statistics.median(sizes)))} in the median"

    def _samples(self, dataset: Any, indices: Sequence[int] | None = None) -> Iterator[Any]:
        """Yield samples, each from the same seeds whenever it is read."""
        if self.is_stream:
            seed_global_generators(_SCOPE.seed)
            with draw_scope(_SCOPE):
                yield from islice(dataset, self._num_samples)
            return
        for index in self._indices if indices is None else indices:
            seed_global_generators(_SCOPE.seed, index)
            with draw_scope(_SCOPE):
                sample = dataset[index]
            yield sample

    def _rows(self, num_workers: int) -> list[Any]:
        """Return the samples that a loader gives."""
        loader: FastLoader[Any] = FastLoader(
            self.dataset if self.is_stream else Subset(self.dataset, self._indices),
            batch_size=4,
            num_workers=num_workers,
            collate_fn=_uncollated,
            multiprocessing_context=self._context if num_workers else None,
            seed=_SCOPE.seed,
        )
        rows = (row for batch in loader for row in batch)
        return list(islice(rows, self._num_samples))

    def _need_indices(self) -> None:
        if not self._indices:
            raise SkippedError("it is iterable" if self.is_stream else "it is empty")


class _Metered(Dataset[int]):
    """Reads a dataset; its items are the private memory of the process that read, in bytes."""

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self._dataset = dataset
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, position: int) -> int:
        self._dataset[self._indices[position]]
        is_last = position == len(self._indices) - 1
        return int(psutil.Process().memory_full_info().uss) if is_last else 0


def _uncollated(samples: list[Any]) -> list[Any]:
    return samples


def _expect(expected: Any, found: Any, where: str) -> None:
    """Compare lists of samples, or batches.

    Raises:
        FailedError: If they differ.
    """
    told = difference(expected, found)
    if told is not None:
        raise FailedError(f"{where}, {told}")


def _expect_new(batched: BatchedDataset, size: int) -> None:
    """Check that batches lie in memory of their own, as their class says.

    Raises:
        FailedError: If they do not.
    """
    # Rows that follow each other, which a view would be enough for; both batches are alive.
    batches = [batched.get_batch(range(size)) for _ in range(2)]
    memory = memory_of(batches)
    if len(set(memory)) < len(memory):
        raise FailedError(
            "get_batch hands out memory that something else refers to, but its class says "
            "makes_new_batches = True"
        )


def _repeats(rows: Sequence[Any]) -> int:
    """Return how many rows equal an earlier one."""
    return sum(
        any(difference(row, earlier) is None for earlier in rows[:position])
        for position, row in enumerate(rows)
    )


@contextmanager
def _random_state_kept() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)


def _size(num: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if num < 1000:
            return f"{num:.3g} {unit}"
        num /= 1000
    return f"{num:.3g} GB"
