"""What flows through the package and who takes it: protocols for users' own classes."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

__all__ = ["Batch", "BatchedDataset", "LiveDataset", "Sample", "Stateful"]

Sample: TypeAlias = Any
"""One item of a dataset: a tensor, or any nesting of tensors, arrays, numbers and strings."""

Batch: TypeAlias = Any
"""What the training loop gets: samples collated along a new first axis."""


@runtime_checkable
class BatchedDataset(Protocol):
    """A map-style dataset that can make a whole batch in one call."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Sample:
        """Return one sample."""
        ...

    def get_batch(self, indices: Sequence[int], /) -> Batch:
        """Return the samples at `indices` as one batch.

        The result equals ``default_collate([self[i] for i in indices])`` bit for bit: same
        structure, dtypes, shapes and values. Allocate large outputs with
        `fastloader.datasets.empty_batch`, so that the loader can place them where they are
        needed without a copy.

        A class that makes each batch in memory of its own may say ``makes_new_batches = True``:
        nobody else refers to its tensors, nor do two of them share memory. `Augment` then
        changes images where they lie, which takes less time.

        Args:
            indices: Positions in the dataset, any order, repeats allowed; at least one.
        """
        ...


@runtime_checkable
class LiveDataset(Protocol):
    """A dataset with a small state that may change while workers hold copies of it.

    The loader reads `live_state` in the main process before each batch and, when it has
    changed, sends it to every copy ahead of the batches that follow. Wrappers include the
    state of what they wrap.
    """

    def live_state(self) -> Any:
        """Return the state: small, picklable, comparable with ``==``."""
        ...

    def load_live_state(self, state: Any, /) -> None:
        """Take over a state that `live_state` of another copy returned."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """What can save where it is and go on from there: a sampler, iterable dataset or iterator.

    The names are those of torchdata's protocol.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the state: picklable, and not changed by going on."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on from a state that `state_dict` returned."""
        ...
