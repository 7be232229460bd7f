"""How many batches workers may be ahead of the consumer."""

import warnings

__all__ = ["Lookahead"]


class Lookahead:
    """Bounds what is under way by the number of workers and by memory.

    Args:
        prefetch_factor: Batches ahead for each worker.
        budget_bytes: Of memory that all of them may take.
    """

    def __init__(self, prefetch_factor: int, budget_bytes: int) -> None:
        self._prefetch_factor = prefetch_factor
        self._budget_bytes = budget_bytes
        self._was_told = False

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
        wanted = self._prefetch_factor * num_workers
        affordable = self.affordable(slot_bytes)
        if affordable >= wanted:
            return wanted
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
