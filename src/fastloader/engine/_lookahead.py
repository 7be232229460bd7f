"""How many batches workers may be ahead of the consumer."""

import warnings

from fastloader.engine._depth import Depth

__all__ = ["Lookahead"]


QUICK_CPU_SECONDS = 1e-3
QUICK_SECONDS = 4e-3  # on a machine where workers wait for a core
TINY_BYTES = 1 << 16
FEWEST_QUICK = 8
MANY = 8
FEWEST_TO_GROUP = 4
DEEP_SHARE = 4  # of the memory that there is; deeper ones take no more than this part of it
DEEP_BYTES = 128 << 20  # for each worker: what large batches gain costs more in new memory


class Lookahead:
    """Bounds what is under way by the number of workers and by memory.

    A message that wakes another process costs more than a tiny batch that is made in microseconds.
    So more of these are asked for at once: when half of them have come, the tasks of as many others
    are sent in one message.

    Args:
        prefetch_factor: Batches ahead for each worker.
        budget_bytes: Of memory that all of them may take.
        depth: How many more there may be where batches take unlike times; None if there may be no
            more, of tiny ones neither.
    """

    def __init__(
        self, prefetch_factor: int, budget_bytes: int, depth: Depth | None = None
    ) -> None:
        self._prefetch_factor = prefetch_factor
        self._budget_bytes = budget_bytes
        self._depth = depth
        self._was_told = False
        self._num_quick = 0  # lately

    def note_batch(
        self,
        busy_seconds: float,
        cpu_seconds: float,
        size_bytes: int,
        *,
        in_new_memory: bool = False,
    ) -> None:
        """Note what a batch has cost, its size, and whether its worker wrote there for the first time."""
        is_quick = (
            cpu_seconds < QUICK_CPU_SECONDS
            and busy_seconds < QUICK_SECONDS
            and size_bytes <= TINY_BYTES
        )
        if self._depth is not None:
            self._depth.note_batch(busy_seconds, in_new_memory=in_new_memory)
        # One that was disturbed changes nothing, two in a row do.
        lately = self._num_quick + 1 if is_quick else self._num_quick // 2
        self._num_quick = min(lately, 2 * FEWEST_QUICK)

    @property
    def is_deepened(self) -> bool:
        """Whether more batches are ahead than usual because they take unlike times."""
        return self._depth is not None and self._depth.times > 1

    def note_idle(self, worker_seconds: float, shallower_seconds: float) -> None:
        """Note for how long workers had no task, though there were more, while a batch was waited for.

        Args:
            worker_seconds: Of all of them together.
            shallower_seconds: The same, had half as many batches been ahead.
        """
        if self._depth is not None:
            self._depth.note_idle(worker_seconds, shallower_seconds)

    def is_due(self, num_under_way: int, limit: int) -> bool:
        """Return whether it is time to ask for more batches.

        Args:
            num_under_way: How many have been asked for and have not been taken.
            limit: How many there may be.
        """
        if self._num_quick >= FEWEST_QUICK and self._ahead() >= FEWEST_TO_GROUP:
            return num_under_way <= limit // 2
        return num_under_way < limit

    def affordable(self, slot_bytes: int) -> int:
        """Return how many batches there is memory for.

        Args:
            slot_bytes: Memory of each batch.
        """
        return self._budget_bytes // slot_bytes

    def limit(self, num_workers: int, slot_bytes: int) -> int:
        """Return how many batches may be under way, one at least.

        Warns once if there is not even one for each worker.

        Args:
            num_workers: That get tasks.
            slot_bytes: Memory of each batch.
        """
        wanted = self._ahead() * num_workers
        affordable = self.affordable(slot_bytes)
        if affordable >= wanted:
            deeper = wanted if self._depth is None else self._depth.times * wanted
            deepest_bytes = min(self._budget_bytes // DEEP_SHARE, DEEP_BYTES * num_workers)
            return max(wanted, min(deeper, deepest_bytes // slot_bytes))
        if affordable < num_workers and not self._was_told:
            self._was_told = True
            warnings.warn(
                f"Batches of {slot_bytes / 1e6:.0f} MB leave room for "
                f"{max(1, affordable)} ahead in {self._budget_bytes / 1e6:.0f} MB of "
                f"memory, so not all of the {num_workers} workers will be busy: lower "
                "batch_size or num_workers.",
                stacklevel=2,
            )
        return max(1, affordable)

    def _ahead(self) -> int:
        deepens = self._depth is not None and self._num_quick >= FEWEST_QUICK
        return max(MANY, self._prefetch_factor) if deepens else self._prefetch_factor
