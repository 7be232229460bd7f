"""Loaders for training and evaluation, alone or as a set over one dataset."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from fastloader._loader import FastLoader
from fastloader.datasets._split import split
from fastloader.errors import SettingsError
from fastloader.inspection._live import is_training
from fastloader.transforms import Transform

__all__ = ["Loaders", "create_loaders", "evaluation_loader", "train_loader"]


class Loaders(NamedTuple):
    """Loaders of the parts of one dataset."""

    train: FastLoader[Any]
    validation: FastLoader[Any]
    test: FastLoader[Any] | None
    """None if two fractions were given."""


def train_loader(dataset: Any, batch_size: int = 1, **options: Any) -> FastLoader[Any]:
    """Return a loader that shuffles, unless a sampler or the options say otherwise.

    An incomplete last batch is kept, unless `drop_last` is given.

    Args:
        dataset: Map-style or iterable dataset.
        batch_size: Samples in a batch.
        **options: Any other option of `FastLoader`.
    """
    decided = {"shuffle", "sampler", "batch_sampler"} & {
        name for name in options if options[name] is not None
    }
    if not decided and not isinstance(dataset, IterableDataset):
        options["shuffle"] = True
    return FastLoader(dataset, batch_size, **options)


def evaluation_loader(dataset: Any, batch_size: int = 1, **options: Any) -> FastLoader[Any]:
    """Return a loader that gives every sample once, in order.

    Args:
        dataset: Map-style or iterable dataset, without random changes.
        batch_size: Samples in a batch.
        **options: Any other option of `FastLoader`.

    Raises:
        SettingsError: If the options would shuffle or drop samples.
    """
    for name in ("shuffle", "drop_last"):
        if options.get(name):
            raise SettingsError(
                f"{name}={options[name]!r} has no place in an evaluation, which sees every "
                "sample once, in order: leave it out, or use FastLoader itself."
            )
    if is_training(dataset):
        warnings.warn(
            "The dataset of an evaluation loader is in training mode and changes its images at "
            "random: evaluate another view of it, or call set_training(False). For create_loaders, "
            "give the images alone and put Augment into train_view.",
            stacklevel=2,
        )
    return FastLoader(dataset, batch_size, **options)


def create_loaders(
    dataset: Any,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    batch_size: int = 1,
    seed: int = 0,
    stratify: Any = None,
    groups: Any = None,
    train_view: Callable[[Any], Any] | None = None,
    evaluation_view: Callable[[Any], Any] | None = None,
    drop_last: bool = False,
    train_options: Mapping[str, Any] | None = None,
    evaluation_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Loaders:
    """Split a dataset and return a loader for each part.

    The parts share the dataset, which is read once if it is cached, and each sees it through
    its own view: random changes for training, none for the others. The training loader
    shuffles; the others give every sample once, in order.

    Args:
        dataset: Map-style dataset or sequence, without random changes.
        fractions: Of training and validation, or of training, validation and test; see
            `split`.
        batch_size: Samples in a batch.
        seed: Of the split, and of the order of training and its random changes.
        stratify: Labels whose shares are kept; see `split`.
        groups: What no two parts may share; see `split`.
        train_view: Takes the training part, a `Subset`, and returns a dataset, for instance
            ``lambda part: Augment(part, RandomFlip())``.
        evaluation_view: The same for validation and test.
        drop_last: Whether training leaves out an incomplete last batch.
        train_options: Options of `FastLoader` for training only.
        evaluation_options: Options of `FastLoader` for validation and test only.
        **options: Options of `FastLoader` for all.

    Raises:
        SettingsError: If there are other than two or three fractions, or the split or an
            option is impossible.

    Examples:
        >>> loaders = create_loaders(range(10), (0.8, 0.2), batch_size=4)
        >>> [len(batch) for batch in loaders.train], loaders.validation.dataset.indices
        ([4, 4], [0, 9])
    """
    part, *others = split(dataset, fractions, seed=seed, stratify=stratify, groups=groups)
    if len(others) not in {1, 2}:
        raise SettingsError(
            "fractions are those of training and validation, and perhaps test, but got "
            f"{list(fractions)}."
        )
    options = {"batch_size": batch_size, **options}
    training = train_loader(
        _seen("train_view", train_view, part),
        **{"seed": seed, "drop_last": drop_last, **options, **(train_options or {})},
    )
    evaluations = [
        evaluation_loader(
            _seen("evaluation_view", evaluation_view, part),
            **{**options, **(evaluation_options or {})},
        )
        for part in others
    ]
    return Loaders(training, evaluations[0], evaluations[1] if len(evaluations) > 1 else None)


def _seen(name: str, view: Callable[[Any], Any] | None, part: Any) -> Any:
    """Return a part of the dataset as a loader is to see it.

    Raises:
        SettingsError: If the view takes or returns something else than a dataset.
    """
    if view is None:
        return part
    if isinstance(view, Transform):
        raise SettingsError(
            f"{name} takes a part of the dataset and returns a dataset, but got {view!r}: for "
            "instance lambda part: Augment(part, RandomFlip())."
        )
    seen = view(part)
    if seen is None:
        raise SettingsError(f"{name} must return a dataset, but returned None.")
    return seen
