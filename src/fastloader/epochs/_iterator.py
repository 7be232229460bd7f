"""The iterator of one epoch: what `iter(loader)` returns."""

import sys
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from threading import RLock
from time import perf_counter
from typing import Any

from fastloader._torch_internals import BaseIterator, not_compiled
from fastloader.engine import Deliveries
from fastloader.epochs._position import EpochPosition
from fastloader.errors import WorkerDiedError, WorkerTimeoutError
from fastloader.machine._file_limit import note_file_limit
from fastloader.randomness._seeding import draw_scope
from fastloader.sampling._drawn import DrawnBatches
from fastloader.stages import BatchStream, LostBatchError
from fastloader.stats import PassTally
from fastloader.streams._false_end import false_end
from fastloader.tensors._buffers import allocating_with
from fastloader.threads._crew import working_with
from fastloader.threads._held_interrupts import held_interrupts
from fastloader.typing import Batch

__all__ = ["LoaderIterator"]


class LoaderIterator(BaseIterator):
    """One pass over the data.

    It is one of torch's iterators by type, because frameworks ask for that, and by nothing
    else: torch's own would start a sampler and draw a seed here.

    Args:
        stream: The batches.
        index_sampler: For `len`.
        reported_length: What `len(loader)` said of an iterable dataset, if it was asked.
        processes: The workers, if there are any; more may come while it is read.
        transform: Applied to each batch where it has arrived.
        on_end: Called once at the end, with whether the stream ended in good health.
        deliveries: What became of the tasks behind the batches of the stream, in its order.
        position: Kept up to date with what the consumer has got.
        order: Of the epoch.
        tally: Takes the times and sizes of the batches.
        count: Returns the number of samples, given what was asked for and what came; None where
            all batches but the last have as many.
        renew: Called before the first batch with what closes this iterator. Returns the iterator
            to go on as, having closed this one, where somebody has chosen another epoch since; None
            where nobody can.
    """

    def __init__(
        self,
        stream: BatchStream,
        *,
        dataset: Any,
        index_sampler: Iterable[Any],
        reported_length: int | None,
        processes: list[BaseProcess],
        transform: Callable[[Batch], Batch] | None,
        on_end: Callable[[bool], object],
        deliveries: Deliveries,
        position: EpochPosition,
        order: DrawnBatches,
        tally: PassTally,
        count: Callable[[Any, Batch], int] | None,
        renew: "Callable[[Callable[[], None]], LoaderIterator | None] | None",
    ) -> None:
        self._stream = stream
        self._dataset = dataset
        self._index_sampler = index_sampler
        self._reported_length = reported_length
        self._workers = processes
        self._transform = transform
        self._on_end = on_end
        self._deliveries = deliveries
        self._position = position
        self._order = order
        self._tally = tally
        self._count = count
        self._renew = renew
        self._num_yielded = 0
        self._is_closed = False
        # What was taken from the stream, and what is to be given, if Ctrl-C came in between.
        self._taken: list[Batch] = []
        self._given: list[Batch] = []
        self._taking = RLock()  # a transform may end the pass it is called in

    @not_compiled
    def __next__(self) -> Batch:
        """Return the next batch; several threads may take theirs from one iterator.

        Raises:
            StopIteration: At the end of the epoch.
            KeyboardInterrupt: At Ctrl-C; the next call gives the batch that this one had taken.
            WorkerDiedError: If a worker process ended by itself.
            WorkerTimeoutError: If no batch came within `timeout`.
            OSError: As the dataset raises it, or if no more files can be opened.
        """
        with self._taking:
            held_interrupts.begin()
            try:
                if self._renew is not None:
                    self._renew_once(self._renew)
                if not self._given:
                    self._given.append(self._next())
            except BaseException:
                held_interrupts.end()
                raise
            batch = self._given.pop()
        try:
            held_interrupts.end()
        except BaseException:
            self._given.append(batch)
            raise
        return batch  # after which Python looks for no signal before the caller has it

    def _next(self) -> Batch:
        if self._is_closed:
            raise StopIteration
        started = perf_counter()
        try:
            if self._taken:
                held_interrupts.hold()
            else:
                # Have it lie ready, which does not count as given yet.
                self._taken.append(next(self._stream))
            if held_interrupts.received:
                held_interrupts.let_through()
        except BaseException as error:
            _leave_contexts(error)
            self._note_failure(error, started)
            raise
        batch = self._taken.pop()
        indices = self._advance(to_end=False)
        # As PassTally.note does it, without the call; here and below.
        tally = self._tally
        if self._count is not None:
            num_samples = self._count(indices, batch)
            if num_samples != tally.usual_samples:
                tally.note_unusual(num_samples)
        self._num_yielded += 1
        if self._reported_length is not None:
            self._check_length(self._reported_length)
        if self._transform is not None:
            batch = self._transformed(batch, self._transform)
        ended = tally.last_ended = perf_counter()
        tally.waits.append(ended - started)
        if ended > tally.next_look:
            tally.look(batch)
        return batch

    def _note_failure(self, error: BaseException, started: float) -> None:
        """Do what follows from the end of the stream, or an error of it."""
        if isinstance(error, LostBatchError):
            self._advance(to_end=False)
            raise error.reason from (error.reason.__cause__ or error.reason.__context__)
        if isinstance(error, StopIteration):
            self._advance(to_end=True)
            self._position.finish(self._order.final_state)
            self._tally.note_end(started)
            self.close()
        elif isinstance(error, WorkerDiedError | WorkerTimeoutError):
            self.close(is_healthy=False)
        elif isinstance(error, OSError):
            note_file_limit(error)

    @staticmethod
    def _transformed(batch: Batch, transform: Callable[[Batch], Batch]) -> Batch:
        try:
            return transform(batch)
        except StopIteration as error:
            raise false_end(error, "device_transform") from error

    def _renew_once(
        self, renew: "Callable[[Callable[[], None]], LoaderIterator | None]"
    ) -> None:
        self._renew = None
        fresh = renew(self.close)
        if fresh is not None:
            own = {"_renew": None, "_taking": self._taking, "_given": self._given}
            self.__class__ = fresh.__class__
            self.__dict__.update(fresh.__dict__, **own)  # the last two are in use just now
            fresh.__dict__["_is_closed"] = True  # its stream is ours now

    def _advance(self, *, to_end: bool) -> Any:
        """Go past the tasks up to the next batch, and return the indices of that."""
        # Stages may be ahead of the consumer, but keep the order: the next batch is the next
        # one here.
        while self._deliveries:
            delivery = self._deliveries.popleft()
            self._position.advance(delivery)
            if delivery.has_batch and not to_end:
                return delivery.indices
        return None

    def close(self, *, is_healthy: bool = True) -> None:
        """Cancel what is under way and let go of the workers; harmless when repeated.

        Args:
            is_healthy: False if the workers cannot be used again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._renew = None
        self._taken.clear()
        self._given.clear()
        self._stream.close()
        self._tally.close()
        self._on_end(is_healthy)

    def _shutdown_workers(self) -> None:
        """Do what torch's iterators do under this name: frameworks call it."""
        self.close(is_healthy=False)

    def _check_length(self, length: int) -> None:
        """Warn of more samples than `len` has promised."""
        if self._num_yielded <= length:
            return
        text = (
            f"Length of IterableDataset {self._dataset} was reported to be {length} (when "
            f"accessing len(dataloader)), but {self._num_yielded} samples have been fetched. "
        )
        if self._workers:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly "
                "configuring the IterableDataset replica at each worker: split its samples by "
                "torch.utils.data.get_worker_info()."
            )
        warnings.warn(text, stacklevel=4)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit workers are gone already, and modules may be.
        if not getattr(self, "_is_closed", True) and not is_exiting():
            with held_interrupts.left_alone():
                self.close()


def _leave_contexts(error: BaseException) -> None:
    """Undo what is set for this thread while a batch is made: Ctrl-C within the contexts' own code gets past them."""
    if isinstance(error, KeyboardInterrupt):
        for nothing in (draw_scope(None), allocating_with(None), working_with(None)):
            nothing.__enter__()
