"""What samples and their collating cost, where the loader makes them."""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from fastloader._loader import FastLoader
from fastloader.datasets._batched import as_batched
from fastloader.errors import SettingsError
from fastloader.machine._busy_clock import read_thread, read_threads

__all__ = ["ProbeResult", "probe"]

MOST_SAMPLES = 512
LEAST_TIMED_SECONDS = 0.005
ENOUGH_CPU_SECONDS = 0.1
BEST_PARTS = 4
"""One of so many batches tells how many threads there are."""

T = TypeVar("T")


class _Part(NamedTuple):
    """One batch, piece by piece."""

    indices: list[Any]
    own_seconds: list[float]
    """Of each sample, without the time for which others had the core."""
    wall_seconds: float
    """Of all samples together."""
    later_wall_seconds: float
    """Of what is done with them: to collate and to transform."""
    cpu_seconds: float
    """Of the process in that time."""
    queued_seconds: float
    """For which the thread that reads had no core in that time, and others of the process next."""
    others_queued_seconds: float
    collate_seconds: float
    """Without the time for which others had the core, and so is the next."""
    transform_seconds: float
    device_transform_seconds: float


@dataclass(frozen=True)
class ProbeResult:
    """What samples and their collating cost, apart from what others on the machine do."""

    sample_seconds: dict[Any, float]
    """Of samples, by index; by number, of an iterable dataset."""
    computing_share: float
    """Of the time of a sample, without that for which others had the core, that it computes."""
    collate_seconds: float
    """Of a batch, mean, and so are the next two."""
    transform_seconds: float
    """Of `batch_transform`."""
    device_transform_seconds: float
    """Of `device_transform` where batches stay in host memory; else 0."""
    order_seconds: float
    """To draw the indices, from a sampler of the caller's."""
    num_threads: float
    """Threads that want a core at once for one sample, mean; at least 1."""
    slowdown: float
    """How many times as long a batch takes because others have the cores; at least 1."""

    @property
    def mean_seconds(self) -> float:
        """Of a sample, mean."""
        return float(np.mean(list(self.sample_seconds.values())))

    @property
    def median_seconds(self) -> float:
        """Of a sample, median."""
        return float(np.median(list(self.sample_seconds.values())))


def probe(loader: DataLoader[Any], seconds: float) -> ProbeResult:
    """Read samples in batches as the loader's workers do, one worker at most, and time them.

    The dataset is read in a worker process if the loader has worker processes, so that this
    process gets no handles and threads of it.

    Args:
        loader: Any `DataLoader`.
        seconds: How long to go on, at most `MOST_SAMPLES` samples; up to twice as long where
            little is computed.

    Raises:
        SettingsError: If the dataset gives no sample, as a stream does that can be read only once.
    """
    subject = _ProbedDataset(loader)
    parts = []
    with closing(_parts(loader, subject)) as stream:
        deadline = time.perf_counter() + seconds
        for part in stream:
            if not part.indices:
                break
            parts.append(part)
            now = time.perf_counter()
            # On a busy machine too little may have been computed by then to tell threads.
            is_enough = sum(part.cpu_seconds for part in parts[1:]) > ENOUGH_CPU_SECONDS
            if len(parts) > 1 and now > (deadline if is_enough else deadline + seconds):
                break
    if not parts:
        raise SettingsError(
            "The dataset gave no sample once the loader was measured. One that can be read only once "
            "cannot be looked at: let its __iter__ begin anew each time."
        )
    if len(parts) > 1:
        del parts[0]  # opened files, filled caches, started threads
    return _summed(parts, _order_seconds(loader, seconds / 4))


def _order_seconds(loader: DataLoader[Any], seconds: float) -> float:
    """Return what the indices of a batch cost, past the first; 0 of samplers known to be quick."""
    order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    samplers = (order, loader.sampler)
    if all(type(one).__module__.startswith(("torch.", "fastloader.")) for one in samplers):
        return 0.0
    indices = iter(order)
    next(indices, None)  # an order that is drawn as a whole is drawn here
    times = [time.perf_counter()]
    for _ in islice(indices, MOST_SAMPLES):
        times.append(time.perf_counter())
        if times[-1] - times[0] > seconds:
            break
    return (times[-1] - times[0]) / max(1, len(times) - 1)


def _parts(loader: DataLoader[Any], subject: "_ProbedDataset") -> Generator[_Part, None, None]:
    if loader.num_workers == 0 or getattr(loader, "workers", "processes") == "threads":
        yield from (subject[number] for number in range(len(subject)))
        return
    # Of the loader's own kind: the workers of this package limit threads that torch's leave alone.
    kind: Any = DataLoader
    options: dict[str, Any] = {}
    if isinstance(loader, FastLoader):
        kind, options = FastLoader, {"watchdog_seconds": loader.watchdog_seconds}
    worker: DataLoader[Any] = kind(
        subject,
        batch_size=None,
        num_workers=1,
        prefetch_factor=1,
        collate_fn=_as_it_is,
        worker_init_fn=partial(_begin_worker, loader.worker_init_fn),
        multiprocessing_context=loader.multiprocessing_context,
        **options,
    )
    iterator: Any = iter(worker)
    try:
        yield from iterator
    finally:
        if callable(close := getattr(iterator, "close", None)):
            close()  # torch's own end when nobody holds them


@contextmanager
def _torch_on_one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _as_it_is(part: _Part) -> _Part:
    return part


def _begin_worker(worker_init_fn: Callable[[int], object] | None, number: int) -> None:
    """Let the code of the caller find its own dataset in `get_worker_info`, to split it for instance."""
    threading.setprofile(_note_end)
    info: Any = get_worker_info()
    # Which refuses to be changed otherwise.
    object.__setattr__(info, "dataset", info.dataset.probed)
    if worker_init_fn is not None:
        worker_init_fn(number)


class _ProbedDataset:
    """A dataset whose samples are batches of another one, timed and thrown away.

    **Processes:** travels to a worker.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.probed = loader.dataset
        self._collate_fn = loader.collate_fn
        self._transform = getattr(loader, "batch_transform", None)
        self._device_transform = _host_transform(loader)
        self._has_batches = loader.batch_sampler is not None
        size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size or 1
        self.batch_size = size if self._has_batches else 1
        self._is_iterable = isinstance(self.probed, IterableDataset)
        self._iterator: Iterator[Any] | None = None
        is_fast = isinstance(loader, FastLoader) and loader.collate_fn is default_collate
        self._batched = as_batched(self.probed) if is_fast and self._has_batches else None
        # As in workers. Torch's threads would wait for each other on a busy machine, and spin beside the
        # next samples.
        self._collating = _torch_on_one_thread if is_fast else nullcontext
        dataset: Any = self.probed
        self._length = MOST_SAMPLES if self._is_iterable else min(MOST_SAMPLES, len(dataset))
        # Spread over the dataset, whose parts may differ.
        whole = self._length if self._is_iterable else len(dataset)
        self._indices = np.linspace(0, whole, self._length, endpoint=False).astype(int).tolist()

    def __len__(self) -> int:
        return 1 + -(-(self._length - 1) // self.batch_size)

    def __getitem__(self, number: int) -> _Part:
        # One sample to warm up, then whole batches.
        start = max(0, (number - 1) * self.batch_size + 1)
        wanted = self._indices[start : number * self.batch_size + 1]
        others = _queued_of_others()
        _ended.clear()
        thread, cpu, wall = read_thread(), time.process_time(), time.perf_counter()
        made, seconds, batch = self._read_all(wanted)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        queued = read_thread().since(thread).queued_seconds
        queued_others = sum(_ended) + sum(
            now - others.get(number, 0.0) for number, now in _queued_of_others().items()
        )
        collate_seconds = transform_seconds = device_transform_seconds = 0.0
        later = time.perf_counter()
        if made:
            subject = made if self._has_batches else made[0]
            with self._collating():
                batch, collate_seconds = _own_seconds(lambda: self._collate_fn(subject))
        if (transform := self._transform) is not None and seconds:
            batch, transform_seconds = _own_seconds(lambda: transform(batch))
        later = time.perf_counter() - later
        if (last := self._device_transform) is not None and seconds:
            device_transform_seconds = _own_seconds(lambda: last(batch))[1]
        times = (collate_seconds, transform_seconds, device_transform_seconds)
        waits = (later, cpu, queued, queued_others)
        return _Part(wanted[: len(seconds)], seconds, wall, *waits, *times)

    def _read_all(self, indices: list[int]) -> tuple[list[Any], list[float], Any]:
        """Return samples and the time of each; or no samples, but the batch they come as."""
        if (batched := self._batched) is not None:
            batch, seconds = _own_seconds(lambda: batched.get_batch(indices))
            return [], [seconds / max(1, len(indices))] * len(indices), batch
        samples, times = [], []
        for index in indices:
            try:
                sample, seconds = _own_seconds(partial(self._read, index))
            except StopIteration:
                break
            samples.append(sample)
            times.append(seconds)
        return samples, times, None

    def _read(self, index: int) -> Any:
        dataset: Any = self.probed
        if not self._is_iterable:
            return dataset[index]
        if self._iterator is None:
            self._iterator = iter(dataset)
        return next(self._iterator)


def _host_transform(loader: DataLoader[Any]) -> Callable[[Any], Any] | None:
    """Return what is applied to each batch where the loop takes it, if that is in host memory."""
    device = getattr(loader, "device", None)
    if device is not None and torch.device(device).type != "cpu":
        return None
    return getattr(loader, "device_transform", None)


_ended: list[float] = []
"""How long each thread waited for a core that has ended since a batch was begun."""
_kept = threading.local()


class _End:
    """Notes the end of the thread that keeps it."""

    def __del__(self) -> None:
        _ended.append(read_thread().queued_seconds)


def _note_end(*_call: object) -> None:
    """Let the end of a thread be noted; called by the thread when it begins."""
    sys.setprofile(None)  # the first call is enough
    _kept.end = _End()


def _queued_of_others() -> dict[int, float]:
    """Return how long each other thread of the process has waited for a core so far."""
    own = threading.get_native_id()
    return {
        number: spent.queued_seconds
        for number, spent in read_threads().items()
        if number != own
    }


def _own_seconds(work: Callable[[], T]) -> tuple[T, float]:
    """Return the result of work and its time, without that for which others had the core."""
    before, started = read_thread(), time.perf_counter()
    result = work()
    seconds = time.perf_counter() - started
    return result, max(0.0, seconds - read_thread().since(before).queued_seconds)


def _summed(parts: list[_Part], order_seconds: float) -> ProbeResult:
    seconds = {
        index: spent
        for part in parts
        for index, spent in zip(part.indices, part.own_seconds, strict=True)
    }
    wall_seconds = max(sum(part.wall_seconds for part in parts), 1e-9)
    cpu_seconds = sum(part.cpu_seconds for part in parts)
    num_threads = _num_threads(parts)
    # To stand in line for a core is no part of the work.
    queued_seconds = sum(part.queued_seconds + part.others_queued_seconds for part in parts)
    own_seconds = max(wall_seconds - queued_seconds / num_threads, 1e-9)
    collate_seconds = sum(part.collate_seconds for part in parts)
    transform_seconds = sum(part.transform_seconds for part in parts)
    all_seconds = wall_seconds + sum(part.later_wall_seconds for part in parts)
    all_own_seconds = own_seconds + collate_seconds + transform_seconds
    return ProbeResult(
        seconds,
        min(1.0, cpu_seconds / own_seconds),
        collate_seconds / max(1, len(parts)),
        transform_seconds / max(1, len(parts)),
        sum(part.device_transform_seconds for part in parts) / max(1, len(parts)),
        order_seconds,
        num_threads,
        all_seconds / all_own_seconds if all_own_seconds >= LEAST_TIMED_SECONDS else 1.0,
    )


def _num_threads(parts: list[_Part]) -> float:
    """Return how many threads want a core at once, mean; at least 1.

    Those that take turns, as Python's do, want one in all; those that others keep from their cores want
    them none the less. While others do, who waits for a turn is woken to no end; so what counts is the
    part of the time with most of the cores.
    """
    timed = [part for part in parts if part.cpu_seconds >= LEAST_TIMED_SECONDS / 10]
    best = sorted(timed, key=lambda part: -part.cpu_seconds / part.wall_seconds)
    best = best[: -(-len(best) // BEST_PARTS)]
    if sum(part.cpu_seconds for part in best) < LEAST_TIMED_SECONDS:
        return 1.0
    wanted = sum(
        part.cpu_seconds + part.queued_seconds + part.others_queued_seconds for part in best
    )
    return max(1.0, wanted / sum(part.wall_seconds for part in best))
