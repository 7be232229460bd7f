"""Microscopy images in an OME-Arrow column, as tensors."""

import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from torch.utils.data import Dataset, default_collate

from fastloader._progress_bar import Progress
from fastloader.cache import default_cache_folder
from fastloader.datasets._axes import as_samples, as_stored, choose_axes, sample_shape
from fastloader.datasets._batched import as_positions
from fastloader.datasets._image_choice import (
    OnNull,
    choose_channels,
    choose_dtype,
    resolve_nulls,
)
from fastloader.datasets._image_store import ImageStore
from fastloader.datasets._join import JoinKeys
from fastloader.datasets._label_choice import choose_labels
from fastloader.datasets._labels import LabelMapping
from fastloader.datasets._sample_columns import SampleColumns
from fastloader.datasets._store_options import StoreOptions
from fastloader.datasets._stored_images import StoredImages, gather_images
from fastloader.errors import SettingsError, ShapeError
from fastloader.sources import (
    ColumnValues,
    SourcePath,
    open_source,
)
from fastloader.tensors._buffers import empty_batch

__all__ = ["OMEArrowDataset"]

CacheKind = Literal["auto", "shared", "disk", "device", "none"]


class OMEArrowDataset(Dataset[Any]):
    """Images of an OME-Arrow column in a Parquet file, with labels and metadata beside them.

    A sample is the image, or the pair (image, label) with `label_column`. Images are float32
    tensors of shape ``(C, H, W)``; pixel values are those of the file unless `scale` is given.

    By default all pixels are decoded once into one block of memory in their own type, which
    all workers and ranks of a machine share, and a batch is one indexed copy. All versions of OME-Arrow are read:
    planes, chunks, chunks of typed bytes, any integer or float type, images of different
    sizes. (``ome_arrow.OMEArrowDataset`` is another class: a reader by image id.)

    **Processes:** workers started by fork, forkserver or spawn map the same pixels and fill the
    cache together. A pickle made at another time leaves the pixels out; whoever unpickles it
    finds those of its machine, or decodes them when first asked for one.

    Examples:
        >>> dataset = OMEArrowDataset("data/nf1_cells.parquet", label_column="label")
        >>> image, label = dataset[0]
        >>> image.shape, image.dtype, dataset.classes[label]
        (torch.Size([3, 80, 80]), torch.float32, 'background')

    References:
        OME-Arrow 0.0.2 to 0.1.0, https://github.com/WayScience/ome-arrow.
    """

    makes_new_batches = True

    def __init__(
        self,
        path: SourcePath | Sequence[SourcePath],
        image_column: str | None = None,
        label_column: str | Sequence[str] | None = None,
        channels: Sequence[int] | Sequence[str] | None = None,
        transform: Callable[[torch.Tensor], Any] | None = None,
        preload: bool | Literal["background"] = True,
        *,
        dtype: torch.dtype | None = torch.float32,
        scale: float | None = None,
        axes: str | None = None,
        on_null: OnNull = "error",
        filter: pc.Expression | None = None,  # noqa: A002 - as pyarrow and polars call it
        join: Any = None,
        join_on: JoinKeys | None = None,
        label_mapping: LabelMapping | Mapping[str, LabelMapping] | None = None,
        cache: CacheKind = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int | None = None,
        progress: Progress = "auto",
        format: str | None = None,  # noqa: A002 - as pyarrow.dataset and polars call it
        **source_options: Any,
    ) -> None:
        """Read sizes, labels and, unless `preload` is off, all pixels.

        Args:
            path: A file or folder of images, or several files that follow one another.
            image_column: Column of the images; found by its fields when there is only one.
            label_column: Column of labels: whole numbers, floats, booleans, lists of numbers of
                one length, or strings, which become positions in `classes`. With several
                columns a label is a dict of them.
            channels: Channels to keep, in this order, by number or by name; all when left out.
            transform: Called with each image; its result takes the image's place.
            preload: When pixels are decoded: all of them now; in the "background" while training
                begins, where an image that is asked for comes first; or, if False, each image
                when it is asked for.
            dtype: Type of the tensors; None keeps the type of the file.
            scale: Factor for all pixels, for instance ``1 / 65535``; needs a floating `dtype`.
            axes: Axes of a sample, any order of a part of ``"TCZYX"``; axes left out must be
                of size 1. ``"CYX"`` when left out.
            on_null: What to do with rows without an image: raise, leave them out, or give
                zeros, where all images are of one size.
            filter: Which rows to show: an expression over the other columns, for instance
                ``pyarrow.compute.field("split") == "train"``. The others are never decoded.
            join: Table whose columns are added to the rows: path or URL of a CSV, TSV or Parquet
                file (one of text may end in ``.gz``), or a table of pyarrow, pandas or polars. The
                option ``storage_options`` is for it, too.
            join_on: Key column of both, or several, or a mapping of names in the images' file to
                names in the joined table. Rows without partner get nulls.
            label_mapping: Number of each label, or the labels in the order of their numbers;
                with several label columns a mapping of their names to these.
            cache: Where decoded pixels are kept: in memory that all processes of the machine
                share; on "disk", in a file that is mapped and found again by the next run; on
                the "device" of the loader, which reads them there once (as its option
                ``resident="device"`` does); or nowhere ("none"). "auto" is "none" with
                ``preload=False``, else "shared".
            cache_dir: Folder of caches on disk; ``FASTLOADER_CACHE_DIR`` or the user's cache
                folder when left out.
            max_cache_bytes: Most bytes that the cache may take; what is free when left out.
            progress: Show a bar if preloading takes more than two seconds; "auto" shows it in
                a terminal only.
            format: What `path` is (`fastloader.sources.FORMATS`); found by its name or contents
                when left out.
            **source_options: Options of the format.

        Raises:
            SourceError: If the file cannot be read or a column is missing.
            ImageDataError: If a row's image, or lack of one, makes no sense.
            ShapeError: If `axes` does not fit the images.
            SettingsError: If other options do not fit the images or each other.
            SharedMemoryError: If the images need more room than there is.
        """
        source = open_source(path, image_column, format=format, **source_options)
        where = source.where
        storage_options = source_options.get("storage_options")
        self._columns = SampleColumns(source, join, join_on, storage_options)
        chosen = np.arange(source.num_rows)
        if filter is not None:
            chosen = self._columns.find_rows(filter)
        table, rows = resolve_nulls(source.read_table(), chosen, on_null, where)
        self._columns.choose(rows)
        self._dtype = choose_dtype(table, dtype, scale, where)
        self._scale = scale
        if transform is not None and not callable(transform):
            raise SettingsError(f"transform={transform!r}: expected a function or None.")
        self._transform = transform
        self._labels = choose_labels(self._columns, label_column, label_mapping, where)
        numbers = choose_channels(source, table.shapes[rows], channels)
        options = _choose_store(cache, preload, cache_dir, max_cache_bytes)
        if cache == "device" and transform is not None:
            raise SettingsError(
                "cache='device' keeps images as they are stored, which transform= would not "
                "be applied to: give the loader device_transform=, or use a wrapper."
            )
        self._prefers_device = cache == "device"
        self._stored_dtypes = table.dtypes
        self._images = ImageStore(source, table, rows, numbers, options)
        self._axes = choose_axes(axes, self._images.shapes, where)
        if preload == "background":
            self._images.load_behind()
        elif preload:
            self._images.load(progress)
        else:
            self._images.open()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        """Return one sample: the image, or the pair (image, label).

        Args:
            index: Position in the dataset; negative ones count from the end.
        """
        position = self._position(index)
        sample = self._sample(position)
        return sample if self._labels is None else (sample, self._labels.sample(position))

    def get_batch(self, indices: Sequence[int]) -> Any:
        """Return samples as one batch: images, or the list [images, labels].

        Args:
            indices: Positions in the dataset, any order, repeats allowed; at least one.

        Raises:
            ShapeError: If the images are of different shapes, or there are none.
            TypeError: If positions are no whole numbers, but a mask, say.
        """
        return self.batch_around(self._gather_transformed(self._positions(indices)), indices)

    def images_in_memory(self) -> torch.Tensor | None:
        """Return all images as batches have them, a view of what is kept; None if that differs."""
        stored = self._images.in_memory()
        is_changed = self._transform is not None or self._scale is not None
        if stored is None or is_changed or stored.dtype != self._dtype:
            return None
        return as_samples(stored, self._axes)

    def batch_around(self, images: Any, indices: Sequence[int]) -> Any:
        """Return the batch of which the images are here already: with labels, if there are any.

        Args:
            images: Of the samples.
            indices: Positions in the dataset.
        """
        if self._labels is None:
            return images
        return [images, self._labels.batch(self._positions(indices))]

    @property
    def labels(self) -> Any:
        """Labels of all samples as one batch; None without `label_column`."""
        return None if self._labels is None else self._labels.values

    @property
    def classes(self) -> Any:
        """What the labels' numbers stand for; empty if for nothing; a dict of several columns."""
        return () if self._labels is None else self._labels.classes or ()

    @property
    def shapes(self) -> npt.NDArray[np.int64]:
        """Sizes T, C, Z, Y, X of each image, shape ``(len(self), 5)``."""
        return self._images.shapes

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """Row number in the file of each sample, shape ``(len(self),)``."""
        return self._images.rows

    @property
    def num_cached(self) -> int:
        """Number of images that are decoded and kept, by whichever process."""
        return self._images.num_ready

    @property
    def preferred_residence(self) -> Literal["device"] | None:
        """Where loaders are to keep the samples, if not as they choose."""
        return "device" if self._prefers_device else None

    @property
    def wants_workers(self) -> bool:
        """Whether images are decoded each time they are asked for: work for loaders' workers."""
        return not self._images.keeps_pixels

    @property
    def is_held(self) -> bool:
        """Whether batches are made of pixels in memory alone, without code of the caller's."""
        return self._transform is None and 0 < len(self) == self.num_cached

    @cached_property
    def stored_rows(self) -> StoredImages:
        """The samples in the type of the file, from which `convert_rows` makes others."""
        if len(self._stored_dtypes) == 1:
            stored = getattr(torch, self._stored_dtypes[0].name)
        else:
            stored = torch.promote_types(self._dtype, torch.float32)
        return StoredImages(self._images, self._labels, self._axes, stored)

    def convert_rows(self, batch: Any) -> Any:
        """Return a batch of this dataset, on the device of a batch of `stored_rows`.

        Args:
            batch: From ``stored_rows.get_batch``.
        """
        images = batch if self._labels is None else batch[0]
        if self._scale is None:
            images = images.to(self._dtype)
        elif self._dtype in {torch.float16, torch.bfloat16}:
            # Large pixel values overflow half precision before they are scaled down.
            images = images.to(torch.float32).mul_(self._scale).to(self._dtype)
        else:
            images = images.to(self._dtype, copy=True).mul_(self._scale)
        return images if self._labels is None else [images, batch[1]]

    @property
    def metadata(self) -> Mapping[str, ColumnValues]:
        """The columns beside the images and joined ones, one value a sample: arrays of numbers, or lists."""
        return self._columns.values

    def _position(self, index: int) -> int:
        position = operator.index(index)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"Sample {index} was asked for, but there are {len(self)}.")
        return position

    def _positions(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        if getattr(indices, "dtype", None) in {torch.bool, np.dtype(np.bool_)}:
            raise TypeError(
                "A mask was given in place of positions: expected whole numbers, as "
                "numpy.flatnonzero(mask) gives them."
            )
        if not len(indices):
            raise ShapeError("A batch has at least one sample, but no index was given.")
        positions = as_positions(indices, len(self))
        if positions is None:
            return np.array([self._position(index) for index in indices], np.int64)
        if positions.min() < 0 or positions.max() >= len(self):
            for index in indices:
                self._position(index)  # raises at the first that is outside
        return positions

    def _sample(self, position: int) -> Any:
        """Return one image, with `transform`."""
        shape = sample_shape(self._images.shapes[position], self._axes)
        image = torch.empty((1, *shape), dtype=self._dtype, device="cpu")
        self._images.gather([position], as_stored(image, self._axes), self._scale)
        return image[0] if self._transform is None else self._transform(image[0])

    def _gather_transformed(self, positions: npt.NDArray[np.int64]) -> Any:
        if self._transform is None:
            return gather_images(self._images, positions, self._axes, self._dtype, self._scale)
        samples = [self._sample(position) for position in positions.tolist()]
        first = samples[0]
        if not isinstance(first, torch.Tensor) or any(
            not isinstance(sample, torch.Tensor)
            or (sample.shape, sample.dtype) != (first.shape, first.dtype)
            for sample in samples
        ):
            return default_collate(samples)
        return torch.stack(samples, out=empty_batch((len(samples), *first.shape), first.dtype))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _choose_store(
    cache: CacheKind,
    preload: bool | Literal["background"],
    folder: str | os.PathLike[str] | None,
    max_bytes: Any,
) -> StoreOptions:
    """Return where pixels are kept.

    Raises:
        SettingsError: If an option has none of its values, or two contradict each other.
    """
    if cache not in ("auto", "shared", "disk", "device", "none"):
        raise SettingsError(
            f"cache={cache!r}: expected 'auto', 'shared', 'disk', 'device' or 'none'."
        )
    is_truth = isinstance(preload, int | np.bool_) and preload in (False, True)
    if not is_truth and not (isinstance(preload, str) and preload == "background"):
        raise SettingsError(f"preload={preload!r}: expected True, False or 'background'.")
    if max_bytes is not None and not (_is_number(max_bytes) and 0 <= max_bytes < math.inf):
        raise SettingsError(
            f"max_cache_bytes={max_bytes!r}: expected a number of bytes, 0 or more, or None for what is "
            f"free."
        )
    if cache in {"none", "device"} and preload == "background":
        raise SettingsError(
            f"preload='background' fills a cache, but cache={cache!r} keeps nothing here: "
            f"choose 'shared' or 'disk', or leave preload out."
        )
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise SettingsError(f"cache_dir={folder!r}: expected the path of a folder.")
    if folder is not None and cache != "disk":
        raise SettingsError(f"cache_dir={os.fspath(folder)!r} is for cache='disk'.")
    chosen: Literal["shared", "disk", "none"] = "shared" if preload else "none"
    if cache != "auto":
        chosen = "none" if cache == "device" else cache
    place = None
    if chosen == "disk":
        place = default_cache_folder() if folder is None else Path(folder)
    return StoreOptions(chosen, place, None if max_bytes is None else int(max_bytes))
