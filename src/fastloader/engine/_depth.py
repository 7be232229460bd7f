"""How far ahead workers must be for none of them to stand idle behind a slow batch."""

__all__ = ["Depth"]

BATCHES_BETWEEN_LOOKS = 16
IDLE_SHARE = 0.04  # of the time of workers at work
CALM_SHARE = 0.02  # that they would be idle with half as many ahead, so that half are enough
CALM_LOOKS = 8  # in a row; twice as many after each time that half were not enough
MOST_TIMES = 4


class Depth:
    """Lets more batches be made ahead, where they take unlike times.

    Batches come in order. While one takes long the others go on with those after it, until as many
    are under way as there may be: then they stand idle, though there is work. Where they would not with half as many,
    for some time, there are half as many again, and their memory is given back. A batch in memory that its
    worker had not written to before takes several times as long as the next one there. That tells
    nothing, for to make more ahead takes more such memory.
    """

    def __init__(self) -> None:
        self.times = 1
        """As many times as many as usual may be ahead."""
        self._num_calm = 0  # looks in a row
        self._calm_looks = CALM_LOOKS
        self._begin_look()

    def note_idle(self, worker_seconds: float, shallower_seconds: float = 0.0) -> None:
        """Note for how long workers had no task, though there were more, while a batch was waited for.

        Args:
            worker_seconds: Of all of them together.
            shallower_seconds: The same, had half as many been ahead.
        """
        self._idle_seconds += worker_seconds
        self._shallower_seconds += shallower_seconds

    def note_batch(self, busy_seconds: float, *, in_new_memory: bool = False) -> None:
        """Note a batch, the time that a worker spent on it, and whether it wrote there for the first time."""
        if in_new_memory:
            self._begin_look()
            return
        self._busy_seconds += busy_seconds
        self._num_batches += 1
        if self._num_batches < BATCHES_BETWEEN_LOOKS:
            return
        self._judge()
        self._begin_look()

    def _judge(self) -> None:
        is_calm = self._shallower_seconds <= CALM_SHARE * self._busy_seconds
        self._num_calm = self._num_calm + 1 if is_calm else 0
        if self._idle_seconds > IDLE_SHARE * self._busy_seconds:
            self.times = min(2 * self.times, MOST_TIMES)
        elif self.times > 1 and self._num_calm >= self._calm_looks:
            self.times //= 2
            self._num_calm = 0
            self._calm_looks *= 2

    def _begin_look(self) -> None:
        self._num_batches = 0
        self._busy_seconds = self._idle_seconds = self._shallower_seconds = 0.0
