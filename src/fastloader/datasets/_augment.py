"""Random changes of the images of any dataset, the same for any number of workers."""

import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from fastloader.datasets._fields import (
    Field,
    Path,
    as_path,
    find_image,
    get_field,
    replace_field,
)
from fastloader.datasets._pipeline import Pipeline, as_one
from fastloader.datasets._wrapper import DatasetWrapper
from fastloader.errors import SettingsError
from fastloader.randomness._keyed import Draws
from fastloader.randomness._seeding import current_draw_scope
from fastloader.transforms import Transform
from fastloader.typing import Batch, Sample

__all__ = ["Augment"]

_Numbers: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]


class Augment(DatasetWrapper):
    """A dataset whose images are changed at random while training.

    What happens to a sample is a pure function of (seed, epoch, index). It does not depend on
    the number of workers, the way they are started, the rank, the order, on whether samples
    are read one by one or as a batch, or on where a run was resumed. The index is that in
    the wrapped dataset; of an iterable one see `DatasetWrapper`, or name an `index_field`.

    Transforms of `fastloader.transforms` change a whole batch at once where the dataset reads
    whole batches. Any other callable works too, on one image after the other: it gets what
    the field holds, and must not write to it where the dataset keeps its images. If it owns a generator it is seeded by the key, as MONAI's transforms and
    those of albumentations (in `AlbumentationsTransform`) can be. If it draws from the global
    generators, as torchvision's do, set `global_rng`. Put ours first: from the first foreign
    callable on, images are changed one by one.

    Args:
        dataset: Any map-style or iterable dataset.
        transforms: A callable or several, applied in this order. They are kept as they are:
            nothing is built for a call.
        seed: Base seed; None: that of the loader, and 0 outside of one.
        training: Whether images are changed at all; `training` can be set later, also while
            workers are alive.
        field: Where the image is in a sample; see `DatasetWrapper`.
        labels: Label images that `fastloader.transforms` move along with the image, from the
            same draws: a field, or a list of fields.
        index_field: A field of whole numbers or words that tells samples apart, to use in place
            of the index.
        global_rng: Seed the global generators of Python, NumPy and torch around each call of a foreign
            callable (that of the CPU, and of the device where the image lies), and put their states back.

    Raises:
        SettingsError: If a transform cannot be called with an image, or the seed is no number.

    Examples:
        >>> from fastloader.transforms import RandomFlip
        >>> dataset = Augment([torch.arange(4.0).reshape(1, 2, 2)], RandomFlip(), seed=3)
        >>> bool((dataset[0] == dataset[0]).all())
        True
    """

    def __init__(
        self,
        dataset: Any,
        transforms: Callable[..., Any] | Iterable[Callable[..., Any]],
        *,
        seed: int | None = None,
        training: bool = True,
        field: Field = None,
        labels: Field | list[Field] = None,
        index_field: Field = None,
        global_rng: bool = False,
    ) -> None:
        super().__init__(dataset, field=field)
        self.transforms = _as_callables(transforms)
        self.seed = _as_seed(seed)
        self.training = training
        self.epoch = 0
        self.labels = labels
        self.index_field = index_field
        self.global_rng = global_rng
        self._first_stream = _num_streams(dataset)
        self._gives_arrays: bool | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that draws depend on outside of a loader, here and below.

        Args:
            epoch: Number of the epoch, from 0.
        """
        self.epoch = epoch
        super().set_epoch(epoch)

    def set_training(self, training: bool) -> None:
        """Turn augmentation on or off, here and below.

        Args:
            training: True for training, False for evaluation.
        """
        self.training = training
        super().set_training(training)

    def transform_sample(self, sample: Sample, index: Any) -> Sample:
        """Return the sample with its image changed, and its labels along with it.

        Args:
            sample: A sample of the base.
            index: Its index.
        """
        if not self.training:
            return sample
        draws = self._draws([self._number(sample, index)])
        path = find_image(sample, self.field)
        image = self._pipeline.on_image(get_field(sample, path), draws)
        changed = replace_field(sample, path, image)
        move = partial(self._pipeline.on_labels, draws=draws)
        for path in self._label_paths:
            changed = replace_field(changed, path, as_one(get_field(sample, path), move))
        return changed

    def transform_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:
        """Return the batch with its images changed, and its labels along with them.

        Args:
            batch: A batch of the base.
            indices: Index of each sample.
        """
        return self._transformed(batch, indices, may_overwrite=False)

    def transform_new_batch(self, batch: Batch, indices: Sequence[Any]) -> Batch:
        """Return the batch with its images changed where they lie; see `DatasetWrapper`.

        Args:
            batch: A batch that nobody else refers to.
            indices: Index of each sample.
        """
        if type(self).transform_batch is not Augment.transform_batch:  # somebody's own
            return self.transform_batch(batch, indices)
        return self._transformed(batch, indices, may_overwrite=True)

    @property
    def makes_new_batches(self) -> bool:
        """False: transforms of others may hand out images that they keep."""
        return False

    def _transformed(
        self, batch: Batch, indices: Sequence[Any], *, may_overwrite: bool
    ) -> Batch:
        if not self.training:
            return batch
        path = find_image(batch, self.field, batched=True)
        images = get_field(batch, path)
        if not isinstance(images, torch.Tensor):  # whole samples go to a foreign callable
            samples = [self.transform_sample(self.dataset[index], index) for index in indices]
            return default_collate(samples)
        draws = self._draws(self._numbers(batch, indices))
        are_arrays = partial(self._is_array, indices[0], path)
        images = self._pipeline.on_images(
            images, draws, are_arrays, may_overwrite=may_overwrite
        )
        changed = replace_field(batch, path, images)
        for path in self._label_paths:
            labels = self._pipeline.on_labels(get_field(batch, path), draws)
            changed = replace_field(changed, path, labels)
        return changed

    def __repr__(self) -> str:
        return f"Augment({self.dataset!r}, {list(self.transforms)!r})"

    @property
    def _label_paths(self) -> list[Path]:
        several = self.labels if isinstance(self.labels, list) else [self.labels]
        return [as_path(field) for field in several if field is not None]

    @property
    def _pipeline(self) -> Pipeline:
        return Pipeline(self.transforms, self._first_stream, self.global_rng)

    def _draws(self, numbers: _Numbers) -> Draws:
        scope = current_draw_scope()
        seed, epoch = (0, self.epoch) if scope is None else (scope.seed, scope.epoch)
        return Draws.of(seed if self.seed is None else self.seed, epoch, numbers)

    def _number(self, sample: Sample, index: Any) -> int:
        if self.index_field is not None:
            return _as_identity(get_field(sample, as_path(self.index_field)))
        return self._as_number(index)

    def _numbers(self, batch: Batch, indices: Sequence[Any]) -> _Numbers:
        if self.index_field is not None:
            return [
                _as_identity(value) for value in get_field(batch, as_path(self.index_field))
            ]
        array = np.asarray(indices)
        if array.dtype.kind not in "iu":
            return [self._as_number(index) for index in indices]
        numbers = array.astype(np.int64)
        return np.where(numbers < 0, numbers + len(self), numbers)

    def _as_number(self, index: Any) -> int:
        """Return a whole number from 0 that stands for an index of any kind."""
        try:
            number = operator.index(index)
        except TypeError:
            return _hashed(index)  # a key of a mapping
        return number if number >= 0 else number + len(self)

    def _is_array(self, index: Any, path: Path) -> bool:
        """Return whether the image of a sample is an array, which its batch does not show."""
        if self._gives_arrays is None:
            image = get_field(self.dataset[index], path)
            self._gives_arrays = isinstance(image, np.ndarray)
        return self._gives_arrays


def _as_identity(value: Any) -> int:
    """Return the number that stands for a value of the `index_field`.

    Raises:
        SettingsError: If it is neither a whole number nor a word.
    """
    if isinstance(value, str):
        return _hashed(str(value))
    try:
        return operator.index(value) % 2**64
    except TypeError as error:
        raise SettingsError(
            f"index_field must hold whole numbers or words, but holds {value!r}."
        ) from error


def _hashed(value: Any) -> int:
    # hash() of a string differs between processes.
    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _as_callables(transforms: Any) -> tuple[Callable[..., Any], ...]:
    """Return the transforms as a tuple.

    Raises:
        SettingsError: If one cannot be called with an image.
    """
    if callable(transforms):
        several = (transforms,)
    elif isinstance(transforms, Iterable):
        several = tuple(transforms)
    else:
        raise SettingsError(
            f"transforms must be a callable or several, but got {transforms!r}."
        )
    for transform in several:
        if isinstance(transform, type) and issubclass(transform, Transform):
            raise SettingsError(
                f"transforms holds the class {transform.__name__}, but must hold what it makes: "
                f"write {transform.__name__}()."
            )
        if not callable(transform):
            raise SettingsError(
                f"transforms must be a callable or several, but got {transform!r} among them."
            )
    return several


def _as_seed(seed: Any) -> int | None:
    """Return the seed.

    Raises:
        SettingsError: If it is no whole number.
    """
    if seed is None:
        return None
    try:
        return operator.index(seed)
    except TypeError as error:
        raise SettingsError(
            f"seed must be a whole number or None, but got {seed!r}."
        ) from error


def _num_streams(dataset: Any) -> int:
    """Return how many streams the wrappers below use, so that none is used twice.

    Two wrappers with the same flip would otherwise always undo each other.
    """
    own = len(dataset.transforms) if isinstance(dataset, Augment) else 0
    inner = vars(dataset) if hasattr(dataset, "__dict__") else {}
    below = [inner["dataset"]] if "dataset" in inner else inner.get("datasets", ())
    several = below if isinstance(below, list | tuple) else ()
    return own + max(map(_num_streams, several), default=0)
