"""One dataset around another: forwards everything, and a subclass changes one thing."""

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from typing import Any, Self, cast

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from fastloader.datasets._fields import Field, find_image, get_field, replace_field
from fastloader.inspection._live import load_live_state, read_live_state, tell
from fastloader.machine._ranks import read_ranks
from fastloader.tensors._arrays import as_tensor
from fastloader.typing import Batch, Sample

__all__ = ["DatasetWrapper", "batch_through", "makes_new_batches"]

_PLAIN = (bool, int, float, str, type(None))


class DatasetWrapper(Dataset[Any]):
    """A dataset that changes the samples of another one.

    By itself it changes nothing. A subclass overrides **one** of four methods, the first that
    is enough for it:

    ==================  ==========================  ==========================================
    method              gets                        and the others follow
    ==================  ==========================  ==========================================
    `transform_images`  ``(N, ...)`` tensor         a single image becomes a batch of one
    `transform_image`   one image of a sample       each image of a batch, as a tensor
    `transform_batch`   a collated batch            (override `transform_sample` too)
    `transform_sample`  one sample                  (override `transform_batch` too)
    ==================  ==========================  ==========================================

    A wrapper is what its base is: map-style or iterable (an `IterableDataset`), with
    `get_batch`, ``__getitems__`` or ``state_dict`` exactly if the base has them. Public
    attributes of the base are found on the wrapper. It holds nothing of its own that could not
    be pickled.

    The index of a sample of an iterable dataset is ``position * num_shards + shard``: its
    position in the stream of this worker, and the number of the worker among those of all
    ranks. No two workers have an index in common, and
    if shard k of n reads every n-th sample from the k-th, it is the same for any n.

    Args:
        dataset: Any map-style or iterable dataset, or a sequence.
        field: Where the image is in a sample: a key, a position, an attribute name, a path of
            these, or ``()`` for the whole sample. None: the first tensor or array with two
            axes or more, else the only one with one axis.

    Examples:
        >>> class Invert(DatasetWrapper):
        ...     def transform_images(self, images, indices):
        ...         return -images
        >>> Invert([(torch.ones(1, 2, 2), "a")])[0][0].unique()
        tensor([-1.])
    """

    def __new__(cls, dataset: Any, *_args: Any, **_kwargs: Any) -> Self:
        """Make a wrapper of the kind that the base is; see `_specialise`."""
        specialised = _specialise(
            cast("Hashable", cls),
            isinstance(dataset, IterableDataset),
            callable(getattr(dataset, "get_batch", None)),
            callable(getattr(dataset, "__getitems__", None)),
            callable(getattr(dataset, "state_dict", None)),
        )
        return cast("Self", super().__new__(specialised))

    def __init__(self, dataset: Any, *, field: Field = None) -> None:
        self.dataset = dataset
        self.field = field

    # What a subclass changes.

    def transform_images(self, images: torch.Tensor, indices: Sequence[Any]) -> torch.Tensor:
        """Return the changed images of a batch.

        Args:
            images: The images of a batch, shape ``(N, ...)``.
            indices: Index of each in the dataset, length N.
        """
        changed = [
            self.transform_image(image, index)
            for image, index in zip(images, indices, strict=True)
        ]
        return cast("torch.Tensor", default_collate(changed))

    def transform_image(self, image: Any, index: Any) -> Any:
        """Return the changed image of one sample, of the same kind (tensor or array).

        Args:
            image: What stands at `field`.
            index: Its index in the dataset.
        """
        if type(self).transform_images is DatasetWrapper.transform_images:
            return image
        changed = self.transform_images(as_tensor(image)[None], [index])[0]
        return changed.numpy() if isinstance(image, np.ndarray) else changed

    def transform_sample(self, sample: Sample, index: Any) -> Sample:
        """Return the changed sample.

        Args:
            sample: A sample of the base; it is not changed.
            index: Its index in the dataset.
        """
        path = find_image(sample, self.field)
        return replace_field(sample, path, self.transform_image(get_field(sample, path), index))

    def transform_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:
        """Return the changed batch: as if each sample had been changed before collating.

        Args:
            batch: A batch of the base.
            indices: Index of each sample in the dataset, length N.
        """
        path = find_image(batch, self.field, batched=True)
        return replace_field(
            batch, path, self.transform_images(get_field(batch, path), indices)
        )

    def transform_new_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:
        """Return the changed batch, in the same memory where that takes less time.

        Args:
            batch: A batch of a base that `makes_new_batches`: nobody else refers to it.
            indices: Index of each sample in the dataset, length N.
        """
        return self.transform_batch(batch, indices)

    @property
    def makes_new_batches(self) -> bool:
        """Whether nobody else refers to its batches; see `fastloader.typing.BatchedDataset`."""
        is_ours = type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
        return is_ours and makes_new_batches(self.dataset)

    # What is forwarded.

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Sample:
        return self.transform_sample(self.dataset[index], index)

    def __getattr__(self, name: str) -> Any:
        # Private names are never forwarded: pickle and copy probe them before there is a base.
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name.startswith("_") or "dataset" not in self.__dict__:
            raise AttributeError(message)
        try:
            return getattr(self.dataset, name)
        except AttributeError as error:  # may come from within a property of the base
            raise AttributeError(message) from error

    def set_epoch(self, epoch: int) -> None:
        """Tell the base which epoch begins, if it wants to know.

        Args:
            epoch: Number of the epoch, from 0.
        """
        tell(self.dataset, "set_epoch", epoch)

    def set_training(self, training: bool) -> None:
        """Turn augmentation on or off, in this wrapper and all it wraps.

        Args:
            training: True for training, False for evaluation.
        """
        tell(self.dataset, "set_training", training)

    def live_state(self) -> Any:
        """Return what may change while workers are alive; see `LiveDataset`.

        These are the public attributes that are numbers, strings, bool or None, and the live
        state of the base.
        """
        own = {
            name: value
            for name, value in self.__dict__.items()
            if not name.startswith("_") and isinstance(value, _PLAIN)
        }
        return own, read_live_state(self.dataset)

    def load_live_state(self, state: Any) -> None:
        """Take over the state of another copy.

        Args:
            state: What `live_state` returned.
        """
        own, inner = state
        self.__dict__.update(own)
        load_live_state(self.dataset, inner)

    def __reduce__(self) -> Any:
        # By the class the user wrote: the specialised one has no name to be found by.
        kinds = [isinstance(self, kind) for kind in _KINDS]
        return _rebuild, (_written_class(type(self)), *kinds), self.__getstate__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dataset!r})"


class _Iterable(IterableDataset[Any]):
    """Mixed into a wrapper whose base is iterable."""

    dataset: Any
    _num_read = 0
    _resumed_at = 0

    def __iter__(self) -> Iterator[Sample]:
        wrapper = cast("DatasetWrapper", self)
        shard, num_shards = _shard()
        # An epoch that was broken off is not one to go on with: only a loaded state is.
        first, self._resumed_at = self._resumed_at, 0
        self._num_read = first
        for position, sample in enumerate(self.dataset, first):
            self._num_read = position + 1
            yield wrapper.transform_sample(sample, position * num_shards + shard)
        self._num_read = 0


class _Batched:
    """Mixed into a wrapper whose base makes whole batches."""

    dataset: Any

    def get_batch(self, indices: Sequence[Any]) -> Batch:
        """Return the samples at `indices` as one batch; see `BatchedDataset.get_batch`.

        Args:
            indices: Positions in the dataset.
        """
        return batch_through(cast("DatasetWrapper", self), self.dataset, indices)


class _Listed:
    """Mixed into a wrapper whose base reads many samples in one call."""

    dataset: Any

    def __getitems__(self, indices: Sequence[Any]) -> list[Sample]:
        wrapper = cast("DatasetWrapper", self)
        samples = self.dataset.__getitems__(indices)
        return [
            wrapper.transform_sample(sample, index)
            for sample, index in zip(samples, indices, strict=True)
        ]


class _Resumable:
    """Mixed into a wrapper whose base can go on where it left off."""

    dataset: Any
    _num_read = 0
    _resumed_at = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the base, and how far this worker has read."""
        return {"dataset": self.dataset.state_dict(), "num_read": self._num_read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Args:
            state: What `state_dict` returned.
        """
        self.dataset.load_state_dict(state["dataset"])
        self._num_read = self._resumed_at = state["num_read"]


def batch_through(wrapper: DatasetWrapper, base: Any, indices: Sequence[Any]) -> Batch:
    """Return samples of a wrapper as one batch.

    Args:
        wrapper: Whose samples to return.
        base: Makes batches of what it wraps.
        indices: Positions in the dataset.
    """
    batch = base.get_batch(indices)
    if makes_new_batches(base):
        return wrapper.transform_new_batch(batch, indices)
    return wrapper.transform_batch(batch, indices)


def makes_new_batches(base: Any) -> bool:
    """Tell whether the batches of a dataset may be written to, as nobody else refers to them.

    Args:
        base: Any dataset with `get_batch`; it says so itself.
    """
    return getattr(base, "makes_new_batches", False) is True


_KINDS = (_Iterable, _Batched, _Listed, _Resumable)


@cache
def _specialise(
    cls: type[Any], is_iterable: bool, has_get_batch: bool, has_getitems: bool, has_state: bool
) -> type[Any]:
    """Return the subclass of `cls` that has what the base has, and no more.

    torch asks ``isinstance(dataset, IterableDataset)`` and ``hasattr(dataset,
    "__getitems__")``, and protocols look at the class: only a class of its own answers all
    of them rightly.
    """
    cls = _written_class(cls)
    wanted = (is_iterable, has_get_batch, has_getitems, has_state)
    kinds = tuple(kind for kind, is_wanted in zip(_KINDS, wanted, strict=True) if is_wanted)
    if not kinds:
        return cls
    # What the user wrote comes first, so that its own get_batch or __iter__ wins.
    body = {"__module__": cls.__module__, "__doc__": cls.__doc__, "_written_class": cls}
    return type(cls.__name__, (cls, *kinds), body)


def _shard() -> tuple[int, int]:
    """Return the number of this worker among those of all ranks, and how many there are."""
    info = get_worker_info()
    worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
    ranks = read_ranks()
    return ranks.rank * num_workers + worker, ranks.world_size * num_workers


def _written_class(cls: type[Any]) -> type[Any]:
    return cast("type[Any]", cls.__dict__.get("_written_class", cls))


def _rebuild(cls: type[Any], *kinds: bool) -> Any:
    return object.__new__(_specialise(cast("Hashable", cls), *kinds))
