"""Apply anybody's transforms with a random state that comes from the key of the sample."""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Final, cast

import numpy as np
import torch
from torch.utils.data import default_collate

from fastloader._notes import user_block
from fastloader.errors import ShapeError
from fastloader.randomness._keyed import Draws
from fastloader.randomness._seeding import seed_global_generators
from fastloader.tensors._arrays import as_tensor
from fastloader.transforms import Transform
from fastloader.transforms._in_turn import apply_in_turn

__all__ = ["Pipeline", "as_one", "call_keyed", "seeded_global_generators"]

# Global generators, and the generator inside a transform, belong to all threads of a process.
# One lock for each process: a fork may copy a lock that some thread holds for ever.
_locks: Final[dict[int, threading.RLock]] = {}


def call_keyed(function: Any, image: Any, draws: Draws, *, global_rng: bool) -> Any:
    """Call a transform on one image; the same key gives the same random state.

    A transform that owns a generator is seeded first: by ``set_random_state(seed=)``, as
    MONAI's have it, or by ``set_random_seed(seed)``, as those of albumentations.

    Args:
        function: Takes the image and returns the changed one.
        image: What `function` takes.
        draws: Random numbers of this image.
        global_rng: Also seed the global generators of Python, NumPy and torch, that of the CPU and of
            the device where the image lies, while `function` runs, and put their states back.
    """
    word = int(draws.words()[0, 0])
    seed = (
        getattr(function, "set_random_state", None),
        getattr(function, "set_random_seed", None),
    )
    if seed == (None, None) and not global_rng:
        return function(image)
    with _locks.setdefault(os.getpid(), threading.RLock()):
        if seed[0] is not None:
            seed[0](seed=word % 2**32)
        elif seed[1] is not None:
            seed[1](word % 2**32)
        if not global_rng:
            return function(image)
        with seeded_global_generators(word), _seeded_generator_beside(image, word):
            return function(image)


@user_block
def _seeded_generator_beside(image: Any, seed: int) -> Iterator[None]:
    """Seed torch's generator of the accelerator where an image lies, if it does, and put it back after.

    Args:
        image: Any.
        seed: 64 bits.
    """
    if not isinstance(image, torch.Tensor) or image.device.type == "cpu":
        yield
        return
    module: Any = torch.get_device_module(image.device)
    state = module.get_rng_state(image.device)
    with module.device(image.device):
        module.manual_seed(seed >> 1)
    try:
        yield
    finally:
        module.set_rng_state(state, image.device)


@user_block
def seeded_global_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch (CPU), and put them back after.

    Args:
        seed: 64 bits.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002 - users draw from the global generator
    torch_state = torch.get_rng_state()
    seed_global_generators(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)


@dataclass(frozen=True)
class Pipeline:
    """Transforms, ours and foreign, that are applied one after the other."""

    transforms: tuple[Callable[..., Any], ...]
    """What to apply, in this order."""
    first_stream: int
    """Stream of the first; the others follow."""
    global_rng: bool
    """Whether foreign ones draw from the global generators; see `call_keyed`."""

    def on_image(self, image: Any, draws: Draws) -> Any:
        """Return one image changed.

        Args:
            image: Tensor, array, or whatever the first transform takes.
            draws: Random numbers of one sample.
        """
        return self._from(0, image, draws)

    def on_images(
        self,
        images: torch.Tensor,
        draws: Draws,
        are_arrays: Callable[[], bool],
        *,
        may_overwrite: bool = False,
    ) -> Any:
        """Return the images of a batch changed, as if each had been changed before collating.

        Args:
            images: Shape ``(N, ...)``.
            draws: Random numbers of N samples.
            are_arrays: Tells whether the images were NumPy arrays before they were collated;
                asked only if there is a foreign transform.
            may_overwrite: Whether images may be written to, as nobody else refers to them.
        """
        ours = cast("list[Transform]", list(takewhile(_is_ours, self.transforms)))
        num_ours = len(ours)
        streams = [draws.stream(self.first_stream + number) for number in range(num_ours)]
        # Where they are not in order, neither would the changed ones be.
        may_overwrite = may_overwrite and images.is_contiguous()
        images = apply_in_turn(ours, images, streams, may_overwrite=may_overwrite)
        if num_ours == len(self.transforms):
            return images
        singles: Iterable[Any] = images.numpy() if are_arrays() else images
        return default_collate([
            self._from(num_ours, image, draws.take([number]))
            for number, image in enumerate(singles)
        ])

    def on_labels(self, labels: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Return label images moved along with their images.

        Args:
            labels: Shape ``(N, ..., H, W)``.
            draws: Random numbers of N samples, the same that their images get.
        """
        for number, transform in enumerate(self.transforms):
            if isinstance(transform, Transform):
                own = draws.stream(self.first_stream + number)
                labels = transform.batch(labels, own, are_labels=True)
        return labels

    def _from(self, start: int, image: Any, draws: Draws) -> Any:
        for number, transform in enumerate(self.transforms[start:], self.first_stream + start):
            own = draws.stream(number)
            if isinstance(transform, Transform):
                image = as_one(image, partial(transform.batch, draws=own))
            else:
                image = call_keyed(transform, image, own, global_rng=self.global_rng)
        return image


def as_one(image: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return one image changed by a function of batches, as the kind it came.

    Args:
        image: Tensor or array.
        change: Takes and returns a batch.

    Raises:
        ShapeError: If the image is neither.
    """
    if not isinstance(image, torch.Tensor | np.ndarray):
        raise ShapeError(
            f"Expected a tensor or array to transform, but got {type(image).__name__}: convert "
            "it before, or say with field= where the image is."
        )
    changed = change(as_tensor(image)[None])[0]
    return changed.numpy() if isinstance(image, np.ndarray) else changed


def _is_ours(transform: Any) -> bool:
    return isinstance(transform, Transform)
