"""Images to write, a few rows at a time: from a source, an array or a dataset."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastloader.errors import SettingsError, ShapeError
from fastloader.machine._machine import read_machine
from fastloader.shm import ArrayWriter
from fastloader.sources import (
    ChannelDescription,
    ColumnValues,
    ImageDescription,
    ImageSource,
)
from fastloader.streams._nexts import nexts
from fastloader.writing._given_values import (
    as_array,
    column_names,
    given_column,
    given_names,
    plain_value,
)
from fastloader.writing._image_column import Image, check_pixels

__all__ = ["ImageRows", "RowBlock", "SampleRows", "SourceRows", "default_axes"]

Integers: TypeAlias = npt.NDArray[np.int64]
STORED_AXES = "TCZYX"
_DEFAULT_AXES = {2: "YX", 3: "CYX", 4: "CZYX", 5: "TCZYX"}


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows that follow each other."""

    images: Sequence[Image | None]
    """Pixels with axes T, C, Z, Y, X; None for a row without image."""
    descriptions: Sequence[ImageDescription]
    """What is known of each image beside its pixels."""
    columns: Mapping[str, ColumnValues] = field(default_factory=dict)
    """Values of the other columns."""


class ImageRows(Protocol):
    """Rows with an image each and columns beside it."""

    @property
    def num_rows(self) -> int | None:
        """How many there are; None if nobody knows yet."""
        ...

    @property
    def columns(self) -> Mapping[str, ColumnValues]:
        """Columns beside the images that are known as a whole before any row is made."""
        ...

    def first_size_bytes(self) -> int:
        """Return how large an image is, about; 0 if there is none."""
        ...

    def blocks(self, num_rows: int) -> Iterator[RowBlock]:
        """Yield all rows in order.

        Args:
            num_rows: Rows of each block but the last.
        """
        ...


class SourceRows:
    """The rows of an image source, each block decoded on all cores."""

    def __init__(self, source: ImageSource) -> None:
        """Read what stands beside the images."""
        self._source = source
        self._table = source.read_table()
        self.columns = {name: source.read_column(name) for name in source.column_names}
        """Columns beside the images."""

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return self._source.num_rows

    def first_size_bytes(self) -> int:
        """Return the mean size of an image."""
        sizes = self._table.shapes.prod(axis=1) * self._table.item_sizes
        return int(sizes.mean()) if len(sizes) else 0

    def blocks(self, num_rows: int) -> Iterator[RowBlock]:
        """Yield all rows in order.

        Args:
            num_rows: Rows of each block but the last.
        """
        descriptions = self._source.iterate_descriptions()
        for start in range(0, self.num_rows, num_rows):
            rows = np.arange(start, min(start + num_rows, self.num_rows))
            part = slice(start, start + len(rows))
            columns = {name: values[part] for name, values in self.columns.items()}
            described = list(islice(descriptions, len(rows)))
            yield RowBlock(self._decode(rows), self._fit(rows, described), columns)

    def _fit(
        self, rows: Integers, descriptions: list[ImageDescription]
    ) -> list[ImageDescription]:
        """Leave out channels that are described in another number than there are."""
        numbers = self._table.shapes[rows, 1].tolist()
        return [
            one if len(one.channels) == number else replace(one, channels=())
            for one, number in zip(descriptions, numbers, strict=True)
        ]

    def _decode(self, rows: Integers) -> list[Image | None]:
        table = self._table
        sizes = table.shapes[rows].prod(axis=1) * table.item_sizes_of(rows)
        offsets = np.cumsum(sizes) - sizes
        has_image = table.has_image[rows]
        content = np.empty(int(sizes.sum()), np.uint8)

        self._source.read_images(
            rows[has_image],
            offsets[has_image],
            ArrayWriter(content),
            num_threads=read_machine().rank_cpus,
        )
        images: list[Image | None] = []
        for row, offset, size in zip(
            rows.tolist(), offsets.tolist(), sizes.tolist(), strict=True
        ):
            dtype = table.dtypes[int(table.dtype_codes[row])]
            pixels = content[offset : offset + size]
            shape = table.shapes[row].tolist()
            images.append(np.ndarray(shape, dtype, pixels) if size else None)
        return images


class SampleRows:
    """Samples of a dataset, or images of an array."""

    def __init__(
        self,
        samples: Any,
        axes: Any,
        channel_names: Any,
        columns: Any,
    ) -> None:
        """Take what to write.

        Args:
            samples: Each an image, a tuple of an image and labels, or a dict with ``"image"``.
            axes: Axes of an image, any order of a part of ``"TCZYX"``; by the number of axes
                if None.
            channel_names: Of all images, or None.
            columns: Values beside the images, one each.

        Raises:
            SettingsError: If `samples` are none, `axes` are no axes, `channel_names` no names, or
                a column is none or of another length.
            ShapeError: If the first sample is no image.
        """
        if not isinstance(samples, Iterable) and not hasattr(samples, "__getitem__"):
            raise SettingsError(
                f"images= of type {type(samples).__name__}: expected an array, or a list, "
                f"generator or dataset of images."
            )
        if axes is not None and (
            not isinstance(axes, str)
            or not axes
            or len(set(axes)) != len(axes)
            or not set(axes) <= set(STORED_AXES)
        ):
            raise SettingsError(
                f"axes={axes!r}: expected each letter of 'TCZYX' at most once, as in 'CYX'."
            )
        self._samples = samples
        self._axes: str | None = axes
        self._description = ImageDescription(
            image_type="image",
            channels=tuple(
                ChannelDescription(id=str(number), name=name)
                for number, name in enumerate(given_names(channel_names))
            ),
        )
        self.columns = {
            name: given_column(name, columns[name]) for name in column_names(columns)
        }
        """Columns beside the images, but those that come with samples."""
        self._num_rows = len(samples) if isinstance(samples, Sized) else None
        for name, values in self.columns.items():
            if self._num_rows is not None and len(values) != self._num_rows:
                raise SettingsError(
                    f"columns[{name!r}] has {len(values)} values for {self._num_rows} images."
                )
        self._iterator = nexts(iter(_iterate(samples, self._num_rows)))
        self._num_seen = 0
        self._labels: tuple[str, ...] = ()
        """What samples have beside the image: of all of them, as of the first."""
        self._first = [self._parts(sample) for sample in islice(self._iterator, 1)]

    @property
    def num_rows(self) -> int | None:
        """How many there are; None if nobody knows yet."""
        return self._num_rows

    def first_size_bytes(self) -> int:
        """Return the size of the first image."""
        return self._first[0][0].nbytes if self._first else 0

    def blocks(self, num_rows: int) -> Iterator[RowBlock]:
        """Yield all rows in order, once.

        Args:
            num_rows: Rows of each block but the last.

        Raises:
            SettingsError: If a column has another number of values than there are samples.
        """
        start = 0
        while True:
            samples = self._first
            self._first = []
            samples += [
                self._parts(sample)
                for sample in islice(self._iterator, num_rows - len(samples))
            ]
            self._check_lengths(start + len(samples), is_end=not samples)
            if not samples:
                return
            columns: dict[str, ColumnValues] = {
                name: values[start : start + len(samples)]
                for name, values in self.columns.items()
            }
            for name in self._labels:
                columns[name] = [beside[name] for _, beside in samples]
            images = [image for image, _ in samples]
            yield RowBlock(images, [self._description] * len(images), columns)
            start += len(samples)

    def _check_lengths(self, num_samples: int, *, is_end: bool) -> None:
        """Check the lengths of columns beside samples whose number nobody knew.

        Raises:
            SettingsError: If one is too short, or, at the end, too long.
        """
        for name, values in self.columns.items():
            if len(values) < num_samples or (is_end and len(values) != num_samples):
                raise SettingsError(
                    f"columns[{name!r}] has {len(values)} values for {num_samples} images"
                    f"{'' if is_end else ' or more'}."
                )

    def _parts(self, sample: Any) -> tuple[Image, dict[str, Any]]:
        """Return the image of a sample and what is beside it.

        Raises:
            ShapeError: If it has no image, or one that cannot be written.
            SettingsError: If other things are beside it than beside the first.
        """
        number = self._num_seen
        beside: dict[str, Any] = {}
        if isinstance(sample, Mapping):
            beside = dict(sample)
            if "image" not in beside:
                raise ShapeError(
                    f"Sample {number} has no 'image', but {', '.join(map(repr, beside))}."
                )
            sample = beside.pop("image")
        elif isinstance(sample, tuple | list):
            sample, *labels = sample
            names = (
                ["label"] if len(labels) == 1 else [f"label_{i}" for i in range(len(labels))]
            )
            beside = dict(zip(names, labels, strict=True))
        if both := beside.keys() & self.columns.keys():
            raise SettingsError(
                f"Sample {number} has {_listed(sorted(both))} beside its image, and so does columns=: "
                f"name one of them otherwise."
            )
        if not number:
            self._labels = tuple(beside)
        elif set(beside) != set(self._labels):
            raise SettingsError(
                f"Sample {number} has {_listed(beside)} beside its image, but the first one has "
                f"{_listed(self._labels)}: expected the same of each; None stands for a missing value."
            )
        try:
            image = _as_stored(as_array(sample), self._axes)
            check_pixels(image)
        except ShapeError as error:
            raise ShapeError(f"Sample {number}: {error}") from error
        self._num_seen += 1
        return image, {name: plain_value(value) for name, value in beside.items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def default_axes(num_axes: int) -> str:
    """Return the axes of an image that has this many.

    Raises:
        ShapeError: If that is not 2 to 5.
    """
    if num_axes not in _DEFAULT_AXES:
        raise ShapeError(
            f"Expected images with 2 to 5 axes (YX, CYX, CZYX or TCZYX), or axes= that says "
            f"what they are, but got {num_axes}."
        )
    return _DEFAULT_AXES[num_axes]


def _iterate(samples: Any, num_rows: int | None) -> Iterator[Any]:
    # A map-style dataset without __iter__ would be asked for ever: it need not raise IndexError.
    if num_rows is None or hasattr(samples, "__iter__"):
        yield from samples
        return
    for index in range(num_rows):
        yield samples[index]


def _as_stored(image: npt.NDArray[Any], axes: str | None) -> Image:
    """Return an image with axes T, C, Z, Y, X, in native byte order.

    Raises:
        ShapeError: If it has not as many axes as `axes` says.
    """
    axes = default_axes(image.ndim) if axes is None else axes
    if len(axes) != image.ndim:
        raise ShapeError(f"axes={axes!r}, but an image has the shape {image.shape}.")
    present = [axis for axis in STORED_AXES if axis in axes]
    image = image.transpose([axes.index(axis) for axis in present])
    for place, axis in enumerate(STORED_AXES):
        if axis not in axes:
            image = np.expand_dims(image, place)
    return image.astype(image.dtype.newbyteorder("="), copy=False)
