"""Which worker gets the next task, and under which number."""

__all__ = ["Turns"]


class Turns:
    """Shares tasks out to workers, and counts those that each is at.

    Tasks may go in turn, as in torch: which worker makes which batch is then the same in every
    run. Otherwise they go to the worker with the least to do. With an iterable dataset each
    worker has its own share of the data: they take turns until theirs is at its end.

    Args:
        num_workers: Workers.
        in_turn: Whether each worker gets as many tasks as any other.
        is_iterable: Whether each worker has a share of its own.
        most_each: Tasks that a worker with a share of its own may be at.
        first: Whose turn it is at first.
    """

    def __init__(
        self, num_workers: int, *, in_turn: bool, is_iterable: bool, most_each: int, first: int
    ) -> None:
        self._num_workers = num_workers
        self._in_turn = in_turn
        self.num_open = num_workers
        """Workers that get tasks: the first so many."""
        self._is_iterable = is_iterable
        self._most_each = most_each
        self._next = first
        self._loads = [0] * num_workers
        self._ended: set[int] = set()
        self._stream_numbers = list(range(num_workers))

    def choose(self) -> int | None:
        """Return the worker of the next task, or None if no worker can take one."""
        count = self.num_open
        workers = [(self._next + step) % count for step in range(count)]
        if self._is_iterable:
            workers = [worker for worker in workers if worker not in self._ended]
        if not self._in_turn:
            workers.sort(key=self._loads.__getitem__)
        if not workers:
            return None
        chosen = workers[0]
        if self._is_iterable and self._loads[chosen] >= self._most_each:
            return None
        self._next = (chosen + 1) % count
        return chosen

    def begin(self, worker: int) -> None:
        """Note that a worker got a task."""
        self._loads[worker] += 1

    def finish(self, worker: int) -> None:
        """Note that a worker is done with a task."""
        self._loads[worker] -= 1

    def end(self, worker: int) -> None:
        """Note that the share of a worker is at its end."""
        self._ended.add(worker)

    def is_idle(self, worker: int) -> bool:
        """Return whether a worker has no task."""
        return not self._loads[worker]

    def num_idle(self) -> int:
        """Return how many of those that get tasks have none."""
        return self._loads[: self.num_open].count(0)

    def is_done(self, worker: int) -> bool:
        """Return whether a worker has nothing more to do in this run."""
        return worker in self._ended and not self._loads[worker]

    def number(self, worker: int) -> int:
        """Return the number of a worker's next batch of its own share.

        It counts the batches of this worker alone, so it does not depend on when others came to
        their end, and no two workers have one in common.
        """
        number = self._stream_numbers[worker]
        self._stream_numbers[worker] += self._num_workers
        return number

    def go_on_after(self, worker: int, number: int) -> None:
        """Let the batches of a worker's share be counted from a number on."""
        self._stream_numbers[worker] = number + self._num_workers
