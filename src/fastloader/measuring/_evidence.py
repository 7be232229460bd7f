"""Everything that the diagnosis of a loader goes by."""

from dataclasses import dataclass

__all__ = ["Evidence"]

DEAR = 0.1
"""Share of the waiting from which on the making of a batch is looked at for the cause."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Facts about a loader, measured or read from its options; times are means for a batch."""

    cpus: int
    """Cores' worth of time that this process gets."""
    num_workers: int
    busy_workers: float | None = None
    """How many of them were making batches at once, mean; None if nobody tells."""
    uses_threads: bool = False
    """Whether workers are threads."""
    is_fast: bool = True
    """Whether batches come in this package's own way."""
    persistent_workers: bool = True
    has_step: bool = True
    """Whether the loop does something besides waiting."""
    wait_share: float | None
    """Of the loop's time; None if that cannot be judged."""
    wait_seconds: float = 0.0
    step_seconds: float = 0.0
    """What the loop does with a batch."""
    queued_step_seconds: float = 0.0
    """Of that, for which others had the core."""
    samples_seconds: float
    """Of reading all samples of a batch, without the time for which others had the cores."""
    computing_share: float = 1.0
    """Of that time that samples compute."""
    collate_seconds: float = 0.0
    transform_seconds: float = 0.0
    """Of `batch_transform`."""
    device_transform_seconds: float = 0.0
    """Of `device_transform` where batches stay in host memory, and the loop waits for it."""
    order_seconds: float = 0.0
    """Of the caller's sampler, to draw the indices of a batch."""
    has_own_collate: bool = False
    """Whether the caller gave a collate_fn."""
    slow_share: float = 0.0
    """Of the time of all samples that those of over ten times the median take."""
    slow_indices: tuple[object, ...] = ()
    """Of these samples, the slowest first."""
    threads_per_worker: float = 1.0
    slowdown: float = 1.0
    """How many times as long a batch takes to make because others have the cores."""
    queued_wait_seconds: float = 0.0
    """Of the waiting, for which the loop could have gone on, but for a core."""
    batch_bytes: float = 0.0
    epoch_gap_seconds: float | None = None
    epoch_seconds: float = 0.0
    """From the first batch of a pass to the end of the last step, mean."""
    fallbacks: tuple[str, ...] = ()
    accelerator: str | None = None
    pins_memory: bool = False
    """Whether batches arrive in page-locked memory, or on the device by way of it."""
    copy_seconds: float | None = None
    """Of a batch to the device, if that was measured."""

    @property
    def make_seconds(self) -> float:
        """What making a batch takes one worker that has a core to itself."""
        return self.samples_seconds + self.collate_seconds + self.transform_seconds

    @property
    def own_step_seconds(self) -> float:
        """What the loop does with a batch, if nobody else has the cores."""
        return max(0.0, self.step_seconds - self.queued_step_seconds)

    @property
    def slowed_seconds(self) -> float:
        """What making a batch takes one worker as the machine is."""
        return self.make_seconds * (self.slowdown if self.computes else 1.0)

    @property
    def speedup(self) -> float:
        """How many times as fast as one worker all of them make batches."""
        seconds = self.wait_seconds + self.step_seconds
        if not self.computes:
            seconds -= self.queued_wait_seconds + self.queued_step_seconds
        return self.slowed_seconds / max(seconds, 1e-9)

    @property
    def is_dear(self) -> bool:
        """Whether the making of batches has its part in the waiting."""
        return self.slowed_seconds > DEAR * self.wait_seconds

    @property
    def computes(self) -> bool:
        """Whether samples want a core for most of their time."""
        return self.computing_share > 0.5

    @property
    def num_needed(self) -> int:
        """Workers that would make batches as quickly as the loop takes them."""
        step = max(self.own_step_seconds, self.make_seconds / 64)
        return max(1, -int(-self.make_seconds // step)) if step else 1

    @property
    def own_wait_seconds(self) -> float:
        """What the making of a batch keeps the loop waiting, if nobody else has the cores."""
        return self._wait_for(self.make_seconds, self.own_step_seconds)

    @property
    def is_crowded(self) -> bool:
        """Whether others have the cores."""
        return self.slowdown >= 1.5 or self.queued_wait_seconds > 0.5 * self.wait_seconds

    @property
    def unqueued_wait_seconds(self) -> float:
        """The waiting, but for that in which the loop could have gone on, but for a core."""
        return self.wait_seconds - self.queued_wait_seconds

    @property
    def uncrowded_wait_seconds(self) -> float:
        """What would be left of the waiting if nobody else had the cores."""
        if self.is_dear and self.expected_wait_seconds > 0.5 * self.wait_seconds:
            return self.own_wait_seconds
        return max(self.own_wait_seconds, self.unqueued_wait_seconds / self.slowdown)

    @property
    def expected_wait_seconds(self) -> float:
        """What the making of a batch keeps the loop waiting, as the machine is."""
        return self._wait_for(self.slowed_seconds, self.step_seconds)

    def _wait_for(self, make_seconds: float, step_seconds: float) -> float:
        if self.num_workers == 0:
            return make_seconds
        at_once: float = self.num_workers
        if self.computes:
            at_once = min(at_once, max(1.0, self.cpus / self.threads_per_worker))
        return max(0.0, make_seconds / at_once - step_seconds)
