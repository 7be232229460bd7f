"""From the indices of a batch to the batch: reading samples and collating them, anywhere."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress, islice
from typing import Any, Literal, NamedTuple

from torch.utils.data import Subset, default_collate, default_convert

from fastloader._notes import add_note
from fastloader.engine._collate_errors import find_lost_keys, find_misfits
from fastloader.engine._stream_point import (
    PackedPoint,
    StreamPoint,
    StreamTeller,
    end_stream,
    open_stream,
)
from fastloader.engine._wording import name_place
from fastloader.streams._false_end import false_end
from fastloader.streams._nexts import nexts
from fastloader.tensors._arrays import with_sharable_arrays
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch, BatchedDataset, Sample

__all__ = [
    "AllSkippedError",
    "FetchPlan",
    "Fetcher",
    "MapFetcher",
    "SkippedSample",
    "make_fetcher",
]


class FetchPlan(NamedTuple):
    """What reading and collating need; the same in every process.

    **Processes:** made by the loader and sent to each worker once.
    """

    dataset: Any
    is_iterable: bool
    auto_collation: bool
    """True if tasks are lists of indices, False if they are single ones."""
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    batched: BatchedDataset | None
    """Makes whole batches, if the dataset can and collate is torch's default."""
    on_error: Literal["raise", "skip"] = "raise"
    batch_transform: Callable[[Batch], Batch] | None = None
    """Applied to each batch where it was made."""

    @property
    def calls_only_dataset(self) -> bool:
        """Whether no code of the user's runs for a batch but that of the dataset."""
        torchs = default_collate if self.auto_collation else default_convert
        return self.collate_fn is torchs and self.batch_transform is None

    @property
    def drawing_parts(self) -> tuple[Any, ...]:
        """What may own generators of random numbers."""
        return self.dataset, self.collate_fn, self.batch_transform


class SkippedSample(NamedTuple):
    """A sample that was left out because reading it raised an error."""

    index: Any
    error: str
    """Type and message."""


class AllSkippedError(Exception):
    """Every sample of a batch was skipped, so there is no batch; never leaves the package."""


_SKIPPED: Any = object()
"""Stands in a batch for a sample that was left out."""


class Fetcher(ABC):
    """Makes the batches of one epoch from tasks.

    Args:
        plan: What to read and how.
        collate: Stands in for `plan.collate_fn`, with the same result.
    """

    def __init__(self, plan: FetchPlan, collate: Callable[[Any], Any]) -> None:
        self._plan = plan
        self._collate_fn = collate
        self._explains = plan.collate_fn is default_collate
        self._converts = plan.collate_fn is default_convert
        self.skipped: list[SkippedSample] = []
        """Samples left out since this list was last cleared."""
        self.num_dropped = 0
        """Samples at the end of an iterable dataset that did not fill a batch."""
        self._has_warned = False
        self.warn: Callable[[str], None] = partial(warnings.warn, stacklevel=2)
        """Tells the user of something that is no error."""

    def fetch(self, indices: Any) -> Batch:
        """Make one batch: read, collate, transform.

        Args:
            indices: Of the samples, or one index without automatic collation.

        Raises:
            StopIteration: If an iterable dataset has no more samples.
            AllSkippedError: If all samples of the batch were left out.
        """
        batch = self._fetch(indices)
        return batch if self._plan.batch_transform is None else self._transform(batch)

    def _transform(self, batch: Batch) -> Batch:
        transform = self._plan.batch_transform
        try:
            return batch if transform is None else transform(batch)
        except StopIteration as error:
            raise false_end(error, "batch_transform") from error

    def stream_point(self, number: int) -> PackedPoint | None:  # noqa: ARG002 - overridden
        """Return where an iterable dataset is after a task; None for any other."""
        return None

    def pass_over(self, indices: Any) -> None:
        """Read what `fetch` reads, and make nothing of it."""
        self._fetch(indices)

    @abstractmethod
    def _fetch(self, indices: Any) -> Batch: ...

    def _collate(self, samples: Sequence[Sample], indices: Sequence[Any]) -> Batch:
        if not self._explains:
            return self._call_collate(samples)
        if not self._has_warned:
            lost = find_lost_keys(samples, indices)
            if lost is not None:
                self._has_warned = True  # once in an epoch is enough
                self.warn(lost)
        try:
            return self._collate_fn(samples)
        except Exception as error:
            # Samples can be anything: looking at them must not hide what went wrong.
            with suppress(Exception):
                if (misfit := find_misfits(samples, indices)) is not None:
                    add_note(error, f"Default collate failed: {misfit}")
            raise

    def _call_collate(self, samples: Any) -> Batch:
        if self._converts:
            samples = with_sharable_arrays(samples)
        try:
            return self._collate_fn(samples)
        except StopIteration as error:
            raise false_end(error, "collate_fn") from error

    def _skip(self, index: Any, error: Exception) -> Sample:
        """Note that a sample was left out, and return what stands for it, or raise its error."""
        if self._plan.on_error == "raise":
            place = name_place(index, self._plan.dataset)
            add_note(error, f"Raised while reading the sample at {place}.")
            try:
                raise error
            finally:
                del error  # which holds this frame: both would stay until the next collection
        self.skipped.append(SkippedSample(index, f"{type(error).__name__}: {error}"))
        return _SKIPPED


def make_fetcher(
    plan: FetchPlan, collate: Callable[[Any], Any], point: StreamPoint | None = None
) -> Fetcher:
    """Return what fetches the batches of one epoch.

    Args:
        plan: What to read and how.
        collate: Stands in for `plan.collate_fn`, with the same result.
        point: Where an iterable dataset goes on.
    """
    if plan.is_iterable:
        return _IterableFetcher(plan, collate, point)
    if plan.batched is not None:
        return _BatchedFetcher(plan, collate, plan.batched)
    return MapFetcher(plan, collate)


class MapFetcher(Fetcher):
    """Reads samples one by one; several of these can share out one batch."""

    def __init__(self, plan: FetchPlan, collate: Callable[[Any], Any]) -> None:
        super().__init__(plan, collate)
        self._getitems = None
        if plan.on_error != "skip" and not _reads_one_by_one(plan.dataset):
            self._getitems = getattr(plan.dataset, "__getitems__", None)
        self._early_rows = getattr(collate, "early_rows", None)

    def finish(self, samples: Sequence[Sample], indices: Sequence[Any]) -> Batch:
        """Make a batch of samples that were read.

        Args:
            samples: From `read`, those of one call after the other.
            indices: Of all samples of the batch.

        Raises:
            AllSkippedError: If all were left out.
        """
        return self._transform(self._assemble(samples, indices))

    def _fetch(self, indices: Any) -> Batch:
        if not self._plan.auto_collation:
            [sample] = self.read([indices])
            if sample is _SKIPPED:
                raise AllSkippedError
            return self._call_collate(sample)
        early = self._early_rows
        move = early.begin(len(indices)) if early is not None and early.is_worth_it else None
        if self._getitems is None:
            return self._assemble(self.read(indices, move), indices)
        try:
            samples = self._getitems(indices)
        except StopIteration as error:
            raise false_end(error, "__getitems__") from error
        return self._collate(samples, indices)

    def _assemble(self, samples: Sequence[Sample], indices: Sequence[Any]) -> Batch:
        if self._plan.on_error == "raise":
            return self._collate(samples, indices)
        is_read = [sample is not _SKIPPED for sample in samples]
        if samples and not any(is_read):
            raise AllSkippedError
        return self._collate([*compress(samples, is_read)], [*compress(indices, is_read)])

    def read(
        self, indices: Sequence[Any], move: Callable[[Sample], Sample] | None = None
    ) -> list[Sample]:
        """Read samples; an error of one is raised, or noted in `skipped`, and a mark stands for the sample.

        Args:
            indices: Of the samples.
            move: Takes each and returns one that stands for it.

        Returns:
            As many as `indices`, for `finish`.
        """
        dataset, keys = self._plan.dataset, indices
        if type(dataset) is Subset and self._plan.auto_collation:
            with suppress(Exception):  # of an index that it does not have, which is told below
                keys = [*map(dataset.indices.__getitem__, indices)]
                dataset = dataset.dataset
        samples: list[Sample] = []
        for key in keys:
            try:
                # No name for the sample: its memory is that of the next one.
                samples.append(dataset[key] if move is None else move(dataset[key]))
            except StopIteration as error:
                # Would end the epoch as if the data were at an end.
                index = indices[len(samples)]
                samples.append(self._skip(index, false_end(error, f"__getitem__({index!r})")))
            except Exception as error:  # noqa: BLE001 - raised again, or counted
                samples.append(self._skip(indices[len(samples)], error))
        return samples


def _reads_one_by_one(dataset: Any) -> bool:
    """Tell whether ``__getitems__`` is no more than a loop over samples: that of torch's `Subset`."""
    if type(dataset) is not Subset:
        return False
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return not hasattr(dataset, "__getitems__")


class _BatchedFetcher(Fetcher):
    def __init__(
        self, plan: FetchPlan, collate: Callable[[Any], Any], batched: BatchedDataset
    ) -> None:
        super().__init__(plan, collate)
        self._batched = batched

    def _fetch(self, indices: Any) -> Batch:
        try:
            return self._batched.get_batch(indices)
        except StopIteration as error:
            raise false_end(error, "get_batch") from error
        except Exception as error:
            if self._plan.on_error == "raise":
                raise
            return self._fetch_readable(indices, error)

    def _fetch_readable(self, indices: Sequence[Any], error: Exception) -> Batch:
        readable = []
        for index in indices:
            try:
                self._batched.get_batch([index])
            except Exception as single:  # noqa: BLE001 - counted
                self._skip(index, single)
            else:
                readable.append(index)
        if len(readable) == len(indices):
            raise error  # each can be read alone: skipping none would not help
        if not readable:
            raise AllSkippedError from error
        return self._batched.get_batch(readable)


class _IterableFetcher(Fetcher):
    def __init__(
        self, plan: FetchPlan, collate: Callable[[Any], Any], point: StreamPoint | None
    ) -> None:
        super().__init__(plan, collate)
        self._ended_at = point if point is not None and point.is_ended else None
        self._is_ended = self._ended_at is not None
        self._position = 0 if point is None or point.is_read_again else point.num_samples
        if self._ended_at is not None:
            self._samples: Iterator[Sample] = iter(())
            end_stream(plan.dataset, self._ended_at)
        else:
            self._samples = open_stream(plan.dataset, point)
        self._nexts = nexts(self._samples)
        self._teller = StreamTeller(plan.dataset, self._samples)
        self._read: list[Sample] = []  # of the batch at hand: they stay where Ctrl-C comes
        self._is_exhausted = self._is_ended
        self._is_cut_off = False

    def fetch(self, indices: Any) -> Batch:
        try:
            batch = super().fetch(indices)
        except KeyboardInterrupt:
            raise  # whoever asks again gets the batch of these samples
        except BaseException:
            self._go_on()
            raise
        held_interrupts.hold()
        self._go_on()
        return batch

    def stream_point(self, number: int) -> PackedPoint | None:
        if self._ended_at is not None:  # the dataset was not begun, and may have no state
            return self._ended_at._replace(number=number)
        return self._teller.tell(number, self._position, is_ended=self._is_ended)

    def pass_over(self, indices: Any) -> None:
        self._read_up_to(len(indices) if self._plan.auto_collation else 1)
        self._go_on()

    def _fetch(self, indices: Any) -> Batch:
        if self._is_ended:
            raise StopIteration
        wanted = len(indices) if self._plan.auto_collation else 1
        self._read_up_to(wanted)
        samples = self._read
        if not samples or (len(samples) < wanted and self._plan.drop_last):
            self.num_dropped = len(samples)
            raise StopIteration
        if not self._plan.auto_collation:
            return self._call_collate(samples[0])
        return self._collate(samples, range(self._position, self._position + len(samples)))

    def _read_up_to(self, wanted: int) -> None:
        """Read what the batch at hand lacks.

        Raises:
            RuntimeError: If Ctrl-C has ended the generator that gives samples.
            KeyboardInterrupt: At Ctrl-C; what was read stays.
        """
        if self._is_cut_off:
            raise RuntimeError(
                "Ctrl-C has ended the generator of the dataset: begin another epoch, with iter(loader)."
            )
        try:
            # One call of C, which loses no sample to what interrupts it.
            self._read.extend(islice(self._nexts, wanted - len(self._read)))
        except KeyboardInterrupt:
            self._is_cut_off = getattr(self._samples, "gi_frame", self) is None
            raise
        except Exception as error:
            add_note(
                error, f"Raised at sample {self._position + len(self._read)} of the stream."
            )
            if self._plan.on_error == "skip":
                add_note(
                    error,
                    'on_error="skip" is for map-style datasets: catch this in the dataset, whose generator it ends.',
                )
            raise
        self._is_exhausted |= len(self._read) < wanted

    def _go_on(self) -> None:
        """Be past the samples that were read."""
        self._position += len(self._read)
        self._read = []
        self._is_ended = self._is_exhausted
