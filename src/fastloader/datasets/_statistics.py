"""Mean and standard deviation of the pixels of a dataset, by channel, in one pass."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, Self, TypeAlias, cast

import numpy as np
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset
from tqdm import tqdm

from fastloader.datasets._fields import Field
from fastloader.datasets._fingerprint import fingerprint
from fastloader.datasets._moments import Moments, moments_from_dict
from fastloader.datasets._pixel_chunks import choose_indices, parts_of_map, parts_of_stream
from fastloader.datasets._pixel_reader import (
    ChannelAxis,
    NanPolicy,
    PixelReader,
    as_pixels,
    merged,
    resolve_axis,
)
from fastloader.errors import StatisticsError

__all__ = ["ChannelStatistics"]

_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
_Loader: TypeAlias = Callable[..., Iterable[Any]]

_SCHEMA = "fastloader.channel_statistics"
_VERSION = 1
_SHOWN = ("count", "mean", "std")  # in JSON for readers, who may change them
_PROGRESS_DELAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Mean and standard deviation of the pixels of each channel, or of all together.

    Everything is computed in float64, streaming, and can be merged: over chunks, workers,
    ranks, plates. Images of 8 and 16 bits are summed exactly, so that their statistics are the
    same to the last bit in whatever order and on however many processes they were taken.

    The standard deviation is that of the population, as `numpy.std` gives it. A channel is
    **constant** if its standard deviation is at most 8 units in the last place of its mean,
    which is rounding and no signal; it is then reported as exactly 0.

    Examples:
        >>> images = np.arange(8, dtype=np.uint16).reshape(1, 2, 2, 2)
        >>> statistics = ChannelStatistics.of_images(images)
        >>> statistics.mean
        array([1.5, 5.5])
    """

    moments: Moments
    """Count, mean and squared deviations, and what merging needs."""
    channel_axis: int | None
    """Axis of the channels in the image of one sample; None if all pixels are one channel."""
    fingerprint: str | None = None
    """Names the dataset they were taken from; None if unknown, or from several."""

    @property
    def num_channels(self) -> int:
        """Number of channels; 1 if all pixels were taken together."""
        return len(self.moments.counts)

    @property
    def count(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """Number of pixels of each channel, shape (C,)."""
        return np.array(self.moments.counts, np.int64)

    @property
    def mean(self) -> _Floats:
        """Mean of each channel, shape (C,)."""
        return np.array(self.moments.means)

    @property
    def std(self) -> _Floats:
        """Standard deviation of each channel, shape (C,); 0 if it is constant."""
        std = np.sqrt(np.array(self.moments.squares) / np.maximum(self.count, 1))
        return np.where(std <= 8 * np.finfo(np.float64).eps * np.abs(self.mean), 0.0, std)

    @classmethod
    def of(
        cls,
        dataset: Any,
        *,
        field: Field = None,
        channel_axis: ChannelAxis = "auto",
        mask: Field = None,
        nan_policy: NanPolicy = "raise",
        indices: Sequence[int] | None = None,
        sample_size: int | None = None,
        seed: int = 0,
        loader: _Loader | None = None,
        progress: bool = True,
    ) -> Self:
        """Take the statistics of a dataset's images.

        Datasets that can be are read in batches. Images may differ in size, but not in
        the number of channels.

        Args:
            dataset: Map-style or iterable dataset, or a sequence; without augmentation.
            field: Where the image is in a sample, as for `DatasetWrapper`.
            channel_axis: Axis of the channels in the image of one sample, not negative. None
                takes all pixels together. "auto" is the first axis, unless images have two
                axes, (H, W): these have no channels.
            mask: Where in a sample a mask is: an array of the image's shape, with or without
                the axis of the channels, not 0 for pixels that count.
            nan_policy: "raise" if a pixel is NaN or infinite, or "omit" such pixels.
            indices: Only these samples, for instance those of the training set.
            sample_size: Only so many samples, drawn without repeats (of `indices`, if given).
            seed: Of that draw.
            loader: What to read with, called as ``loader(chunks, batch_size=None)`` with a
                map-style dataset whose items are the statistics of a chunk; so workers send a
                few numbers and no images: ``partial(FastLoader, num_workers=4)``. None reads
                in this process.
            progress: Show a bar if it takes more than two seconds and stderr is a terminal.

        Raises:
            StatisticsError: If there are no pixels, or they cannot be used.
        """
        if isinstance(dataset, DataLoader):
            raise StatisticsError(
                f"Expected a dataset, but got a {type(dataset).__name__}: give its dataset, and "
                "say by loader= what to read with."
            )
        find_reader = partial(
            PixelReader.for_samples_like,
            field=field,
            channel_axis=channel_axis,
            mask=mask,
            nan_policy=nan_policy,
        )
        if isinstance(dataset, IterableDataset):
            if not (indices is None and sample_size is None and loader is None):
                raise StatisticsError(
                    "An iterable dataset is read from start to end in this process: leave out "
                    "indices, sample_size and loader."
                )
            axis, total, parts = parts_of_stream(dataset, find_reader)
            name = None
        else:
            chosen = choose_indices(len(dataset), indices, sample_size, seed)
            axis, total, parts = parts_of_map(dataset, chosen, find_reader, loader)
            name = fingerprint(dataset, field)
        bar = tqdm(
            parts,
            desc="Channel statistics",
            total=total,
            unit="chunk",
            delay=_PROGRESS_DELAY_SECONDS,
            disable=None if progress else True,  # None: quiet unless on a terminal
        )
        return cls(_with_pixels(reduce(merged, bar)), axis, name)

    @classmethod
    def of_images(
        cls,
        images: Any,
        *,
        channel_axis: ChannelAxis = "auto",
        nan_policy: NanPolicy = "raise",
    ) -> Self:
        """Take the statistics of a batch of images, to be merged by hand.

        Args:
            images: Tensor or array of shape (N, ...), not empty.
            channel_axis: As for `of`: an axis of one image, not of the batch.
            nan_policy: As for `of`.

        Raises:
            StatisticsError: If there are no pixels, or they cannot be used.
        """
        pixels = as_pixels(images)
        if pixels.ndim < 2 or pixels.size == 0:
            raise StatisticsError(
                f"Expected images of shape (N, ...), but got shape {pixels.shape}."
            )
        axis = resolve_axis(channel_axis, pixels.ndim - 1)
        reader = PixelReader((), axis, nan_policy=nan_policy)
        return cls(_with_pixels(reader.of_batch(pixels, range(len(pixels)))), axis)

    def merge(self, other: "ChannelStatistics") -> "ChannelStatistics":
        """Return the statistics of both sets of images together.

        The fingerprint is kept if both have the same: then they are parts of one dataset.

        Args:
            other: Statistics of the same channels.

        Raises:
            StatisticsError: If the channels are not the same, or it is something else.
        """
        if not isinstance(other, ChannelStatistics):
            raise StatisticsError(
                f"Expected ChannelStatistics to merge with, but got {other!r}."
            )
        if self.channel_axis != other.channel_axis:
            raise StatisticsError(
                f"Expected statistics with channel_axis={self.channel_axis}, but got "
                f"{other.channel_axis}."
            )
        same = self.fingerprint == other.fingerprint
        return ChannelStatistics(
            merged(self.moments, other.moments),
            self.channel_axis,
            self.fingerprint if same else None,
        )

    def merge_ranks(self, group: Any = None) -> "ChannelStatistics":
        """Return the statistics of the images of all ranks together; the same on each rank.

        Each rank has taken those of its own part, with `indices`. A few numbers are sent.

        Args:
            group: Process group of `torch.distributed`; None is the default one.

        Raises:
            StatisticsError: If no process group has been initialised.
        """
        if not torch.distributed.is_initialized():
            raise StatisticsError(
                "merge_ranks needs a process group: call torch.distributed.init_process_group."
            )
        parts: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(parts, self, group)
        return reduce(ChannelStatistics.merge, cast("list[ChannelStatistics]", parts))

    def check(self, dataset: Any, *, field: Field = None) -> None:
        """Raise unless these are the statistics of `dataset`, or of some of its samples.

        Args:
            dataset: The dataset that they should have been taken from.
            field: Where the image is in a sample, as for `DatasetWrapper`.

        Raises:
            StatisticsError: If the fingerprint is another one, or not known.
        """
        expected = fingerprint(dataset, field)
        if self.fingerprint != expected:
            raise StatisticsError(
                f"Expected statistics of the dataset with fingerprint {expected}, but these "
                f"have {self.fingerprint}: take them anew with ChannelStatistics.of."
            )

    def to_json(self) -> str:
        """Return everything as JSON; `from_json` gives back the same to the last bit."""
        document = {
            "schema": _SCHEMA,
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "channel_axis": self.channel_axis,
            **{key: getattr(self, key).tolist() for key in _SHOWN},
            "moments": asdict(self.moments),
        }
        return json.dumps(document, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Args:
            text: JSON.

        Raises:
            StatisticsError: If it is something else, of a later version, or changed by hand.
        """
        try:
            document = json.loads(text)
            kind = (document["schema"], document["version"])
            axis, name, moments = (
                document[key] for key in ("channel_axis", "fingerprint", "moments")
            )
            shown = [document[key] for key in _SHOWN]
        except (KeyError, TypeError, ValueError) as error:
            raise StatisticsError(
                f"Expected channel statistics in JSON, but they cannot be read: {error!r}."
            ) from error
        if kind != (_SCHEMA, _VERSION):
            raise StatisticsError(f"Expected {(_SCHEMA, _VERSION)}, but the file has {kind}.")
        if not (axis is None or (type(axis) is int and axis >= 0)):
            raise StatisticsError(f"Expected an axis from 0 or null, but got {axis!r}.")
        if not (name is None or isinstance(name, str)):
            raise StatisticsError(f"Expected a fingerprint or null, but got {name!r}.")
        statistics = cls(moments_from_dict(moments), axis, name)
        if not all(map(_is_close, shown, (getattr(statistics, key) for key in _SHOWN))):
            raise StatisticsError(
                f"Expected {', '.join(_SHOWN)} that are those of the moments, but got {shown}: "
                "the file was changed by hand. Take them anew with ChannelStatistics.of."
            )
        return statistics

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file.

        Args:
            path: Where to.
        """
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, dataset: Any = None, field: Field = None) -> Self:
        """Read a file that `save` wrote.

        Args:
            path: Where from.
            dataset: If given, the statistics must be its own; see `check`.
            field: Where the image is in a sample of `dataset`.

        Raises:
            StatisticsError: If the file holds something else, or belongs to another dataset.
        """
        statistics = cls.from_json(Path(path).read_text(encoding="utf-8"))
        if dataset is not None:
            statistics.check(dataset, field=field)
        return statistics


def _is_close(shown: Any, values: "np.ndarray[Any, Any]") -> bool:
    """Return whether numbers in JSON are those values, but for rounding."""
    are_numbers = isinstance(shown, list) and all(type(each) in {int, float} for each in shown)
    if not are_numbers or len(shown) != len(values):
        return False
    return np.allclose(shown, values, rtol=1e-9, atol=0.0)


def _with_pixels(moments: Moments) -> Moments:
    """Return the moments, if every channel has pixels.

    Raises:
        StatisticsError: If one has none.
    """
    empty = [str(channel) for channel, count in enumerate(moments.counts) if count == 0]
    if empty:
        raise StatisticsError(
            f"No pixel of channel {', '.join(empty)} counts: all are masked or not finite."
        )
    return moments
