"""Pixels of a source's rows: kept once they are decoded, or read when they are asked for."""

import hashlib
import multiprocessing
import shutil
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastloader._progress_bar import Progress, progress_bar
from fastloader.cache import (
    ImageCache,
    OwnImages,
    PackedImages,
    PixelLayout,
    PrivatePixels,
    choose_units,
    disk_cache_path,
    find_own_images,
    load_own_images,
    open_disk_cache,
    open_shared_cache,
    promised_bytes,
)
from fastloader.datasets._background_fill import BackgroundFill
from fastloader.datasets._batch_writer import batch_writer
from fastloader.datasets._store_options import StoreOptions
from fastloader.errors import SharedMemoryError
from fastloader.inspection._fingerprint import OwnFingerprint
from fastloader.machine._machine import read_machine
from fastloader.shm import ProcessLock, can_send_memory_files, gives_huge_pages
from fastloader.sources import (
    ImageSource,
    ImageTable,
    WritePixels,
    release_memory,
)
from fastloader.threads._fork_gate import ForkGate

__all__ = ["ImageStore"]

Integers: TypeAlias = npt.NDArray[np.int64]

_MIN_SPAN_BYTES = 64 << 20
_UNCHECKED_BYTES = 256 << 20
"""Of a batch: asking how much memory is free takes as long as decoding some images."""


class ImageStore(OwnFingerprint):
    """The images of some rows of a source, by position.

    **Processes:** all that share a cache fill it together (`fastloader.cache.ImageCache`). What a
    process decodes at once and alone is its own until others need it (`fastloader.cache.OwnImages`).
    A pickle that cannot carry memory goes without it, and its receiver looks for the same cache
    on its machine, or makes one.
    """

    def __init__(
        self,
        source: ImageSource,
        table: ImageTable,
        rows: Integers,
        channels: Sequence[int] | None,
        options: StoreOptions,
    ) -> None:
        """Choose the images.

        Args:
            source: Where they are.
            table: Sizes and pixel types of all its images; images of rows that have none in
                the source are zeros.
            rows: Row number of each image, ascending.
            channels: Channels to keep, in this order; all if None.
            options: Where decoded pixels are kept.
        """
        # What else it can do is told by its attributes, one by one: protocols look at all of them.
        self._source = source
        self._rows = rows
        self._is_stored = source.read_table().has_image[rows]
        self._channels = channels
        self._options = options
        self._shapes = table.shapes[rows]
        if channels is not None:
            self._shapes[:, 1] = len(channels)
        is_uniform = len(rows) > 0 and bool((self._shapes == self._shapes[0]).all())
        self.common_shape: Integers | None = self._shapes[0] if is_uniform else None
        """Sizes T, C, Z, Y, X that all images have, if they do."""
        self._dtypes = table.dtypes
        self._dtype_codes = table.dtype_codes[rows]
        self._cache: ImageCache | OwnImages | None = None
        self._opening = ProcessLock()
        self._rank_cpus = read_machine().rank_cpus

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_fill"}
        if not can_send_memory_files():
            state["_cache"] = None
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> "ImageStore":
        return self  # pixels do not change

    def own_fingerprint(self) -> None:
        """Return nothing: pixels stay, whichever are decoded and whatever files are open for that."""

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

    @property
    def keeps_pixels(self) -> bool:
        """Whether images are decoded once, not each time they are asked for."""
        return self._options.cache != "none"

    @property
    def num_ready(self) -> int:
        """Number of images that are decoded and kept."""
        return 0 if self._cache is None else self._cache.num_ready

    def in_memory(self) -> torch.Tensor | None:
        """Return all images, axes N, T, C, Z, Y, X: a view, not to write to.

        Returns:
            None if they are not of one shape and type, or not all decoded and kept by now.
        """
        cache = self._cache
        if cache is None or self.common_shape is None or cache.num_ready < len(self):
            return None
        cache.require(np.empty(0, np.int64), self._decode)  # sees whether others have them, too
        uniform = cache.images.uniform
        return None if uniform is None else uniform.view(-1, *self.common_shape.tolist())

    def open(self) -> ImageCache | OwnImages | None:
        """Return the cache, that of another process if there is one; None without.

        Raises:
            SharedMemoryError: If there is no room for it.
        """
        if self._cache is None and self.keeps_pixels:
            with self._opening:
                if self._cache is None:
                    self._cache = self._open_cache()
        return self._cache

    def load(self, progress: Progress) -> None:
        """Return when all pixels are in the cache, if there is one.

        Args:
            progress: Show a bar when it takes more than two seconds; "auto" in a terminal.
        """
        with self._opening:
            if self._cache is None and self._options.cache == "shared":
                self._cache = self._load_alone(progress)
        cache = self.open()
        if isinstance(cache, ImageCache):
            machine = read_machine()
            span_bytes = cache.images.layout.num_bytes
            if machine.local_world_size > 1:  # each rank takes parts in turn
                span_bytes = max(_MIN_SPAN_BYTES, span_bytes // (4 * machine.local_world_size))
            with progress_bar(len(self), progress) as bar:

                def decode(positions: Integers, write: WritePixels) -> None:
                    self._decode(positions, write, self._num_threads(), bar.advance)

                cache.fill_all(decode, span_bytes, bar.reach)
            self._release()

    def load_behind(self) -> None:
        """Start to decode all pixels in the background, if there is a cache."""
        if self.open() is not None:
            self._fill = BackgroundFill(self)

    def fill_next(self, gate: ForkGate) -> bool:
        """Decode the next images that nobody has decoded or is at; False if there are none.

        Args:
            gate: Held by the calling thread; let go for a moment where it can be.
        """
        cache = self.open()
        if cache is None:
            return False

        def decode(positions: Integers, writer: WritePixels) -> None:
            def write(offset_bytes: int, array: npt.NDArray[Any]) -> None:
                writer(offset_bytes, array)
                gate.pause()

            self._decode(positions, write, num_threads=1)

        has_more = cache.fill(decode, span_bytes=1)
        if not has_more:
            self._release()
        return has_more

    def gather(
        self, positions: Integers | Sequence[int], out: torch.Tensor, scale: float | None
    ) -> None:
        """Copy images into a batch, converting to its dtype.

        Args:
            positions: Which images, any order, repeats allowed.
            out: Batch to write to, shape ``(len(positions), T, C, Z, Y, X)``.
            scale: Factor for each pixel after conversion to a floating type.
        """
        cache = self.open()
        if cache is not None:
            cache.require(positions, self._decode)
            cache.images.gather(positions, out, scale)
            return
        unique = np.asarray(positions)
        first = inverse = np.zeros(1, np.int64)
        if len(unique) != 1:  # one sample must not pay for sorting
            unique, first, inverse = np.unique(unique, return_index=True, return_inverse=True)
        if not self._read_into(unique, first, out, scale):
            self._read(unique).gather(inverse.tolist(), out, scale)
            return
        for at in np.flatnonzero(first[inverse] != np.arange(len(out))).tolist():
            out[at].copy_(out[int(first[inverse[at]])])

    def _read_into(
        self, positions: Integers, places: Integers, out: torch.Tensor, scale: float | None
    ) -> bool:
        """Read the images at ascending positions to places in a batch; False if it cannot be."""
        codes = set(self._dtype_codes[positions].tolist())
        dtype = self._dtypes[codes.pop()]
        write = None if codes else batch_writer(out, dtype, scale)
        if write is None:
            return False
        image_bytes = out[0].numel() * dtype.itemsize
        self._read_to(positions, places * image_bytes, write)
        for place in places[~self._is_stored[positions]].tolist():
            out[place].zero_()
        return True

    def _read(self, positions: Integers) -> PackedImages:
        """Read the images at ascending positions for the moment."""
        layout = self._layout(positions)
        if layout.num_bytes > _UNCHECKED_BYTES:
            free_bytes = read_machine().available_bytes
            self._check_room(positions, layout.num_bytes, free_bytes, "in memory")
        has_gaps = not self._is_stored[positions].all()
        make = np.zeros if has_gaps else np.empty
        images = PackedImages(layout, PrivatePixels(make(layout.num_bytes, np.uint8)))
        self._read_to(positions, layout.offsets, images.pixels.writer())
        return images

    def _decode(
        self,
        positions: Integers,
        write: WritePixels,
        num_threads: int | None = None,
        on_rows: Any = None,
    ) -> None:
        """Decode images into the cache."""
        assert self._cache is not None  # noqa: S101 - it is what calls this
        offsets = self._cache.images.layout.offsets[positions]
        self._read_to(positions, offsets, write, num_threads, on_rows)

    def _read_to(
        self,
        positions: Integers,
        offsets: Integers,
        write: WritePixels,
        num_threads: int | None = None,
        on_rows: Any = None,
    ) -> None:
        is_stored = self._is_stored[positions]
        self._source.read_images(
            self._rows[positions][is_stored],
            offsets[is_stored],
            write,
            channels=self._channels,
            on_rows=on_rows,
            num_threads=num_threads or self._num_threads(),
        )

    def _release(self) -> None:
        """Give back what reading took; DuckDB keeps several times the pixels while it is open."""
        if close := getattr(self._source, "close", None):
            close()
        release_memory()

    def _num_threads(self) -> int:
        return min(self._rank_cpus, torch.get_num_threads())  # 1 in a worker

    def _layout(self, positions: Integers | slice) -> PixelLayout:
        return PixelLayout(self._shapes[positions], self._dtypes, self._dtype_codes[positions])

    def _load_alone(self, progress: Progress) -> OwnImages | None:
        """Decode all pixels into memory of this process, if no other will want the same."""
        layout = self._layout(slice(None))
        machine = read_machine()
        # Until a second process has decoded them, too, there are two copies.
        free_bytes = machine.available_bytes - promised_bytes()
        has_room = 2 * layout.num_bytes <= free_bytes
        is_child = multiprocessing.parent_process() is not None  # so may have brothers
        if is_child or machine.local_world_size > 1 or not has_room:
            return None
        if not gives_huge_pages():
            return None
        name, edges = f"{self._source.fingerprint} {self._choice()}", self._edges(layout)
        if (found := find_own_images(name, layout, edges)) is not None:
            return found
        everything = np.arange(len(self))
        self._check_room(everything, layout.num_bytes, free_bytes, "in memory")
        with progress_bar(len(self), progress) as bar:

            def decode(write: WritePixels) -> None:
                threads = self._num_threads()
                self._read_to(everything, layout.offsets, write, threads, bar.advance)

            own = load_own_images(name, layout, edges, decode)
        self._release()
        return own

    def _open_cache(self) -> ImageCache | OwnImages:
        layout = self._layout(slice(None))
        edges, choice = self._edges(layout), self._choice()
        content = f"{self._source.fingerprint} {choice}"
        if self._options.folder is not None:
            path = disk_cache_path(self._options.folder, self._source.where, choice)

            def check_disk() -> None:
                free_bytes = shutil.disk_usage(path.parent).free
                self._check_room(np.arange(len(self)), layout.num_bytes, free_bytes, "on disk")

            return open_disk_cache(path, content, layout, edges, check_disk)

        def check_memory() -> None:
            self._check_memory(layout.num_bytes)

        found = find_own_images(content, layout, edges)
        return found or open_shared_cache(content, layout, edges, check_memory)

    def _choice(self) -> str:
        """Say which images of the source these are."""
        choice = f"{self._channels} {_digest(self._rows)} {_digest(self._is_stored)}"
        selection = getattr(self._source, "selection", None)
        return choice if selection is None else f"{choice} {selection}"

    def _edges(self, layout: PixelLayout) -> Integers:
        """Return the first image of each unit that is decoded together, and last their number."""
        starts = getattr(self._source, "group_starts", None)
        groups = None if starts is None else np.searchsorted(starts, self._rows, "right") - 1
        return choose_units(layout.sizes_bytes, groups)

    def _check_memory(self, num_bytes: int) -> None:
        promised = promised_bytes()
        free_bytes = max(0, read_machine().available_bytes - promised)
        place = "in memory beside caches that are being filled" if promised else "in memory"
        self._check_room(np.arange(len(self)), num_bytes, free_bytes, place)

    def _check_room(
        self, positions: Integers, num_bytes: int, free_bytes: int, place: str
    ) -> None:
        """Check that pixels fit before the system has to end the program for them.

        Raises:
            SharedMemoryError: If they do not.
        """
        limit = self._options.max_bytes
        if limit is not None and limit < free_bytes:
            free_bytes, place = limit, f"{place} by max_cache_bytes"
        if num_bytes <= free_bytes:
            return
        largest = int(np.argmax(self._shapes[positions].prod(axis=1)))
        advice = "keep them on a disk with cache='disk', "
        if self._options.folder is not None:
            advice = (
                f"choose a folder with more room than {self._options.folder} with cache_dir=, remove "
                f"what is not needed any more (fastloader cache), "
            )
        raise SharedMemoryError(
            f"{self._source.where}: the pixels of {len(positions)} images take "
            f"{num_bytes / 1e6:,.0f} MB, but {free_bytes / 1e6:,.0f} MB are free {place} (the "
            f"largest is row {int(self._rows[positions[largest]])} with T, C, Z, Y, X = "
            f"{self._shapes[positions[largest]].tolist()}): {advice}leave them in the file with "
            f"preload=False, or choose fewer channels."
        )


def _digest(array: npt.NDArray[Any]) -> str:
    return hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
