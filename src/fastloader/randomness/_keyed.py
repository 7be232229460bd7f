"""Random numbers that are a pure function of (seed, epoch, index): no state, no order.

The method is counter-based (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011): a number is a hash of where it is used. The hash is the finaliser of
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014, with the constants of D. Stafford's variant 13), a bijection of 64 bits that costs two
multiplications. It is applied once at each step of this path::

    seed -> epoch -> index = key of a sample -> stream = one transform -> (draw, lane) = number

So the numbers under one key differ in every draw and lane, those of two samples, epochs or
seeds are unrelated, and a batch is computed as one array. All steps are exact integer
arithmetic, and a float is made from the upper bits by one exact product: NumPy, torch and any
device give the same bits.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Draws", "mix", "mix_tensor", "sample_keys"]

Keys: TypeAlias = NDArray[np.uint64]

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15  # SplitMix64: 2**64 / golden ratio, odd
_STREAM_STEP = 0xD1342543DE82EF95  # another odd constant: streams never meet draws
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BLOCK_WORDS = 32_768  # 256 kB: what is computed of so many words stays in the cache


def _mix_number(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * _FIRST & _MASK
    value = (value ^ (value >> 27)) * _SECOND & _MASK
    return value ^ (value >> 31)


def mix(values: Keys, scratch: Keys | None = None) -> Keys:
    """Hash each of an array of 64-bit numbers, in place.

    Args:
        values: uint64 array of at least one axis.
        scratch: An array as large, to be written to; None: a new one.

    Returns:
        `values`.
    """
    shifted = np.right_shift(values, np.uint64(30), out=scratch)
    values ^= shifted
    values *= np.uint64(_FIRST)
    np.right_shift(values, np.uint64(27), out=shifted)
    values ^= shifted
    values *= np.uint64(_SECOND)
    np.right_shift(values, np.uint64(31), out=shifted)
    values ^= shifted
    return values


def mix_tensor(values: torch.Tensor) -> torch.Tensor:
    """Hash as `mix` does, on any device.

    Args:
        values: int64 tensor, the bits of which are those of the uint64 numbers.

    Returns:
        int64 tensor with the bits that `mix` gives.
    """
    values = (values ^ _shifted_right(values, 30)) * _as_signed(_FIRST)
    values = (values ^ _shifted_right(values, 27)) * _as_signed(_SECOND)
    return values ^ _shifted_right(values, 31)


def _shifted_right(values: torch.Tensor, num_bits: int) -> torch.Tensor:
    # torch shifts int64 arithmetically: cut off the copies of the sign.
    return torch.bitwise_and(values >> num_bits, 2 ** (64 - num_bits) - 1)


def _as_signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


@lru_cache(maxsize=64)
def _epoch_key(seed: int, epoch: int) -> int:
    return _mix_number(_mix_number(seed + _STEP) + _STEP * (epoch + 1))


def sample_keys(
    seed: int, epoch: int, indices: Sequence[int] | NDArray[np.integer[Any]]
) -> Keys:
    """Return the key of each sample: 64 bits that all its random numbers come from.

    Within one epoch two indices never have the same key.

    Args:
        seed: Base seed, 64 bits.
        epoch: Epoch, from 0.
        indices: Index of each sample, length N, from 0 to 2**64 - 2.

    Returns:
        uint64, shape ``(N,)``.
    """
    start = _epoch_key(seed, epoch)
    if len(indices) == 1:  # plain integers are five times faster than arrays of one
        return np.array([_mix_number(start + _STEP * (int(indices[0]) + 1))], np.uint64)
    keys = np.asarray(indices, np.uint64) + np.uint64(1)
    keys *= np.uint64(_STEP)
    keys += np.uint64(start)
    return mix(keys)


class Draws:
    """The random numbers of N samples: each call is one draw, with a value per sample.

    A draw depends on the key of the sample and on how many draws were made before, not on
    the other samples. So draw in the same order whatever the images hold: never inside an
    ``if`` that looks at a value.

    Args:
        keys: Key of each sample, uint64, shape ``(N,)``.
        num_drawn: How many draws come before the first.

    Examples:
        >>> angles = Draws.of(seed=1, epoch=0, indices=[7, 8]).uniform(-10, 10)
        >>> angles.shape
        (2,)
        >>> alone = Draws.of(seed=1, epoch=0, indices=[8]).uniform(-10, 10)
        >>> bool(alone[0] == angles[1])
        True
    """

    __slots__ = ("_num_drawn", "keys")

    def __init__(self, keys: Keys, num_drawn: int = 0) -> None:
        self.keys = keys
        self._num_drawn = num_drawn

    @classmethod
    def of(
        cls, seed: int, epoch: int, indices: Sequence[int] | NDArray[np.integer[Any]]
    ) -> Self:
        """Return the draws of some samples in an epoch.

        Args:
            seed: Base seed, 64 bits.
            epoch: Epoch, from 0.
            indices: Index of each sample, length N, from 0.
        """
        return cls(sample_keys(seed, epoch, indices))

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Draws({len(self)} samples, {self._num_drawn} drawn)"

    def stream(self, number: int) -> "Draws":
        """Return draws that share no numbers with these or with another stream.

        Args:
            number: Which stream, from 0.
        """
        step = _STREAM_STEP * (number + 1)
        if len(self.keys) == 1:
            return Draws(np.array([_mix_number(int(self.keys[0]) + step)], np.uint64))
        return Draws(mix(self.keys + np.uint64(step & _MASK)))

    def take(self, chosen: Any) -> Self:
        """Return the draws of some of the samples, at the same point.

        Args:
            chosen: Boolean mask or positions, as for a NumPy array.
        """
        return type(self)(self.keys[chosen], self._num_drawn)

    def words(self, num: int = 1) -> Keys:
        """Return random 64-bit words.

        Args:
            num: How many for each sample, below 2**32.

        Returns:
            uint64, shape ``(N, num)``.
        """
        if num == 1 and len(self.keys) == 1:
            return np.array([[self._word()]], np.uint64)
        return _words(self.keys, self._next(), num)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, num: int | None = None) -> Any:
        """Return numbers from `low` to `high`, evenly distributed; `high` itself only by rounding.

        Args:
            low: Lower bound: a number, or an array that broadcasts against the result.
            high: Upper bound, alike.
            num: How many for each sample; None: one, without an axis for it.

        Returns:
            float64, shape ``(N,)`` or ``(N, num)``.
        """
        # 53 bits: the conversion and the product are exact.
        if num is None and len(self.keys) == 1:
            fractions = np.array([(self._word() >> 11) * 2.0**-53])
        else:
            words = self.words(1 if num is None else num)
            fractions = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
            fractions = fractions[:, 0] if num is None else fractions
        return fractions * (high - low) + low

    def integers(self, low: Any, high: Any, num: int | None = None) -> NDArray[np.int64]:
        """Return integers from `low` to `high` - 1, all equally likely.

        Args:
            low: Smallest value: a number, or an array that broadcasts against the result.
            high: One more than the largest value, alike; `high` - `low` below 2**32.
            num: How many for each sample; None: one, without an axis for it.

        Returns:
            int64, shape ``(N,)`` or ``(N, num)``.
        """
        offsets = np.floor(self.uniform(num=num) * (np.asarray(high) - low))
        return np.asarray(offsets.astype(np.int64) + low, np.int64)

    def chance(self, probability: float, num: int | None = None) -> NDArray[np.bool_]:
        """Return True with a probability.

        Args:
            probability: From 0 (never) to 1 (always).
            num: How many for each sample; None: one, without an axis for it.

        Returns:
            bool, shape ``(N,)`` or ``(N, num)``.
        """
        return np.asarray(self.uniform(num=num) < probability)

    def normal_like(self, images: torch.Tensor) -> torch.Tensor:
        """Return standard normal numbers, one for each pixel.

        Each is one of 65,536 quantiles, chosen by 16 random bits: the largest is 4.3, the
        variance is 1, and the bits do not depend on the device or on the number of threads,
        as those of a logarithm would.

        Args:
            images: Tensor of shape ``(N, ...)``; only its shape and device matter.

        Returns:
            float32 tensor of that shape, on that device.
        """
        numbers = torch.empty(images.shape, device=images.device)
        for block, some in self.normal_parts(images):
            numbers[block] = some
        return numbers

    def normal_parts(self, images: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Return the numbers of `normal_like` as parts that stay in the cache, to be used up.

        Args:
            images: Tensor of shape ``(N, ...)``; only its shape and device matter.

        Returns:
            For each part which images it is for, and float32 numbers, which may be written to
            and lie where those of the next part will.
        """
        draw = self._next()
        if images.device.type != "cpu":
            return iter([(slice(None), self._normal_on_device(images, draw))])
        return self._normal_blocks(images, draw)

    def normal_keys(self) -> tuple[Keys, NDArray[np.float32]]:
        """Return what the numbers of `normal_like` are made of, for code that makes them itself.

        Returns:
            For each image the number whose hash chooses its first four quantiles (uint64, shape
            ``(N,)``; those of the next four lie `_STEP` apart), and all 65,536 quantiles.
        """
        return self.keys + _lanes(self._next(), 1), _normal_quantiles()

    def _normal_blocks(
        self, images: torch.Tensor, draw: int
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        num_values = images[:1].numel()
        num_words = -(-num_values // 4)
        rows = max(1, min(_BLOCK_WORDS // max(1, num_words), len(self)))
        # The same memory for all blocks: new memory would cost as much as the hash.
        lanes = _lanes(draw, num_words)
        words, scratch = np.empty((2, rows, num_words), np.uint64)
        places = np.empty((rows, num_values), np.intp)
        numbers = np.empty((rows, num_values), np.float32)
        for row in range(0, len(self), rows):
            block = slice(row, row + rows)
            num = len(self.keys[block])
            np.add(self.keys[block, None], lanes, out=words[:num])
            sixteens = mix(words[:num], scratch[:num]).view(np.uint16)
            np.copyto(places[:num], sixteens[:, :num_values])
            # No place lies outside of the table; to look for one would cost a buffer.
            np.take(_normal_quantiles(), places[:num], out=numbers[:num], mode="wrap")
            yield block, torch.from_numpy(numbers[:num]).view(num, *images.shape[1:])

    def _normal_on_device(self, images: torch.Tensor, draw: int) -> torch.Tensor:
        num_values = images[:1].numel()
        num_words = -(-num_values // 4)
        keys = torch.from_numpy(self.keys.view(np.int64)).to(images.device)
        lanes = torch.arange(num_words, device=images.device) * _as_signed(_STEP)
        first = _as_signed(_STEP * ((draw << 32) + 1) & _MASK)
        words = mix_tensor(keys[:, None] + (lanes + first))
        # Negative indices count from the end, which is what reading the bits unsigned means.
        sixteens = words.view(torch.int16)[:, :num_values].long()
        quantiles = torch.from_numpy(_normal_quantiles()).to(images.device)
        return quantiles[sixteens].reshape(images.shape)

    def _word(self) -> int:
        """Return the word of the only sample: plain integers are faster than arrays of one."""
        return _mix_number(int(self.keys[0]) + _STEP * ((self._next() << 32) + 1))

    def _next(self) -> int:
        draw = self._num_drawn
        self._num_drawn += 1
        return draw


def _words(keys: Keys, draw: int, num: int) -> Keys:
    return mix(keys[:, None] + _lanes(draw, num))


def _lanes(draw: int, num: int) -> Keys:
    first = _STEP * ((draw << 32) + 1) & _MASK
    lanes = np.arange(num, dtype=np.uint64)
    lanes *= np.uint64(_STEP)
    lanes += np.uint64(first)
    return lanes


@lru_cache(maxsize=1)
def _normal_quantiles() -> NDArray[np.float32]:
    """Return the normal quantiles at the middles of 65,536 equal parts, scaled to variance 1."""
    middles = (torch.arange(32768, 65536, dtype=torch.float64, device="cpu") + 0.5) / 65536
    upper = torch.special.ndtri(middles).numpy()
    upper /= np.sqrt(np.mean(upper**2))
    return np.concatenate([-upper[::-1], upper]).astype(np.float32)
