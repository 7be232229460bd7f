"""Pixels of a source's rows: all kept in shared memory, or read when they are asked for."""

import sys
import threading
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from fastloader._machine import read_machine
from fastloader.cache import PackedImages
from fastloader.errors import SharedMemoryError
from fastloader.shm import can_send_memory_files
from fastloader.sources import ImageSource, ImageTable

__all__ = ["ImageStore", "Progress"]

Integers: TypeAlias = npt.NDArray[np.int64]
Progress: TypeAlias = bool | Literal["auto"]

_QUIET_SECONDS = 2.0


class ImageStore:
    """The images of some rows of a source, by position.

    **Processes:** see `fastloader.cache.PackedImages`; a pickle that cannot carry the memory
    goes without it, and its receiver reads the source again.
    """

    def __init__(
        self,
        source: ImageSource,
        table: ImageTable,
        rows: Integers,
        channels: Sequence[int] | None,
        *,
        keep: bool,
    ) -> None:
        """Choose the images.

        Args:
            source: Where they are.
            table: Sizes and pixel types of all its images; images of rows that have none in
                the source are zeros.
            rows: Row number of each image, ascending.
            channels: Channels to keep, in this order; all if None.
            keep: Keep the pixels once they are read, all at once.
        """
        self._source = source
        self._rows = rows
        self._is_stored = source.read_table().has_image[rows]
        self._channels = channels
        self._keep = keep
        self._shapes = table.shapes[rows]
        if channels is not None:
            self._shapes[:, 1] = len(channels)
        self._dtypes = table.dtypes
        self._dtype_codes = table.dtype_codes[rows]
        self._images: PackedImages | None = None
        self._loading = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = vars(self).copy()
        del state["_loading"]
        if not can_send_memory_files():
            state["_images"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _loading=threading.Lock())

    def __deepcopy__(self, memo: dict[int, Any]) -> "ImageStore":
        return self  # pixels do not change

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shapes(self) -> Integers:
        """Sizes T, C, Z, Y, X of each image, shape ``(num_images, 5)``."""
        return self._shapes

    @property
    def rows(self) -> Integers:
        """Row number in the source of each image, shape ``(num_images,)``."""
        return self._rows

    def load(self, progress: Progress) -> None:
        """Read all pixels into shared memory, if they are to be kept and not there yet.

        Args:
            progress: Show a bar when it takes more than two seconds; "auto" in a terminal.
        """
        with self._loading:
            if not self._keep or self._images is not None:
                return
            with _bar(len(self), progress) as bar:
                self._images = self._read(np.arange(len(self)), shared=True, bar=bar)

    def gather(self, positions: Sequence[int], out: torch.Tensor, scale: float | None) -> None:
        """Copy images into a batch, converting to its dtype.

        Args:
            positions: Which images, any order, repeats allowed.
            out: Batch to write to, shape ``(len(positions), T, C, Z, Y, X)``.
            scale: Factor for each pixel after conversion to a floating type.
        """
        if self._keep:
            if self._images is None:
                self.load(progress=False)
            images = self._images
        else:
            unique, inverse = np.unique(np.asarray(positions), return_inverse=True)
            images, positions = self._read(unique, shared=False, bar=None), inverse.tolist()
        if images is not None:
            images.gather(positions, out, scale)

    def _read(self, positions: Integers, *, shared: bool, bar: "_Bar | None") -> PackedImages:
        """Read the images at ascending positions."""
        layout = (self._shapes[positions], self._dtypes, self._dtype_codes[positions])
        machine = read_machine()
        self._check_memory(
            positions, PackedImages.count_bytes(*layout), machine.available_bytes
        )
        images = PackedImages(*layout, shared=shared)
        is_stored = self._is_stored[positions]
        self._source.read_images(
            self._rows[positions][is_stored],
            images.offsets[is_stored],
            images.writer,
            channels=self._channels,
            on_rows=None if bar is None else bar.advance,
            num_threads=min(machine.rank_cpus, torch.get_num_threads()),  # 1 in a worker
        )
        return images

    def _check_memory(self, positions: Integers, num_bytes: int, available: int) -> None:
        if num_bytes > available:
            largest = int(np.argmax(self._shapes[positions].prod(axis=1)))
            raise SharedMemoryError(
                f"{self._source.where}: the pixels of {len(positions)} images take "
                f"{num_bytes / 1e9:.1f} GB, but {available / 1e9:.1f} GB of memory are free (the "
                f"largest is row {int(self._rows[positions[largest]])} with T, C, Z, Y, X = "
                f"{self._shapes[positions[largest]].tolist()}): leave them in the file with "
                f"preload=False, or choose fewer channels."
            )


class _Bar(tqdm):  # type: ignore[misc]
    """A progress bar that starts no thread: workers may be forked later."""

    monitor_interval = 0

    def advance(self, count: int) -> None:
        self.update(count)


def _bar(total: int, progress: Progress) -> _Bar:
    is_wanted = sys.stderr.isatty() if progress == "auto" else progress
    return _Bar(
        total=total,
        desc="Preloading",
        unit=" images",
        delay=_QUIET_SECONDS,
        disable=not is_wanted,
    )
