"""Split a dataset into parts: at random, by label, or by group."""

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import Subset

from fastloader.errors import SettingsError
from fastloader.inspection._lengths import required_length

__all__ = ["split"]

_Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def split(
    dataset: Any,
    fractions: Sequence[float],
    *,
    seed: int,
    stratify: Any = None,
    groups: Any = None,
) -> list[Subset[Any]]:
    """Split a dataset into parts that together are the whole and share no sample.

    Sizes are exact: ``len(dataset) * fraction``, rounded so that they add up (the largest
    remainders are rounded up). With `stratify` each label has its share of each part to
    within one sample. With `groups` sizes, and with both the shares of the labels, are as near
    as whole groups allow: large groups are placed first, each in the part that lacks most.

    Args:
        dataset: Map-style dataset or sequence.
        fractions: Size of each part, above 0, adding up to 1.
        seed: Decides the split, together with the arguments; from 0.
        stratify: A label for each sample, or the name of a column of ``dataset.metadata``.
        groups: What no two parts may share (a plate, a patient) for each sample, such as a word
            or a tuple, or the name of a column of ``dataset.metadata``.

    Returns:
        For each fraction a `Subset`, its indices in ascending order.

    Raises:
        SettingsError: If the fractions make no parts, a part would be empty, labels or groups
            are not as many as the samples, or the dataset has no length.

    Examples:
        >>> train, validation = split(range(10), [0.8, 0.2], seed=0)
        >>> len(train), len(validation), set(train) & set(validation)
        (8, 2, set())
    """
    shares = _as_shares(fractions)
    generator = np.random.default_rng(_as_seed(seed))
    size = required_length(dataset, "give a map-style dataset or a sequence to split.")
    if size < len(shares):
        raise SettingsError(
            f"{size} samples cannot be split into {len(shares)} parts: none may be empty."
        )
    labels = _codes(dataset, stratify, "stratify")
    if groups is None:
        parts = _split_samples(labels, shares, generator)
    else:
        parts = _split_groups(labels, _codes(dataset, groups, "groups"), shares, generator)
    sizes = np.bincount(parts, minlength=len(shares))
    if (sizes == 0).any():
        raise SettingsError(
            f"fractions={list(fractions)} of {size} samples leave a part empty (sizes "
            f"{sizes.tolist()}): use larger fractions or fewer parts."
        )
    return [Subset(dataset, np.flatnonzero(parts == k).tolist()) for k in range(len(shares))]


def _as_shares(fractions: Any) -> _Floats:
    """Return the size of each part.

    Raises:
        SettingsError: If they make no parts.
    """
    try:
        shares = np.array(list(fractions), np.float64)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"fractions must be a list of numbers, but got {fractions!r}."
        ) from error
    if shares.ndim != 1 or not (shares > 0).all() or not np.isclose(shares.sum(), 1, atol=1e-6):
        raise SettingsError(
            f"fractions must be above 0 and add up to 1, but got {fractions!r}."
        )
    return np.asarray(shares / shares.sum())


def _as_seed(seed: Any) -> int:
    """Return the seed.

    Raises:
        SettingsError: If it is no whole number from 0: without one, each call would split anew.
    """
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise SettingsError(f"seed must be a whole number from 0, but got {seed!r}.")
    return number


def _codes(dataset: Any, column: Any, name: str) -> _Ints:
    """Return a number from 0 for each sample: equal for equal values.

    Raises:
        SettingsError: If there is no such column, or a sample has no value.
    """
    size = len(dataset)
    if column is None:
        return np.zeros(size, np.int64)
    if isinstance(column, str):
        column = _column_of(dataset, column, name)
    values = _as_list(column, name)
    if len(values) != size:
        raise SettingsError(
            f"{name} must have one value for each of {size} samples, but has {len(values)}."
        )
    missing = [place for place, value in enumerate(values) if _is_missing(value)]
    if missing:
        raise SettingsError(
            f"{name} has no value for {len(missing)} of {size} samples, the first is sample "
            f"{missing[0]}: give them one, or leave these samples out with Subset."
        )
    codes: dict[Any, int] = {}
    return np.array([codes.setdefault(value, len(codes)) for value in values], np.int64)


def _column_of(dataset: Any, column: str, name: str) -> Any:
    """Return a column of the metadata, of a part or a view that of what lies below.

    Raises:
        SettingsError: If there is none.
    """
    metadata = getattr(dataset, "metadata", None)
    below = getattr(dataset, "dataset", None)
    if metadata is None and below is not None:
        values = _column_of(below, column, name)
        if not isinstance(dataset, Subset):
            return values
        listed = _as_list(values, name)
        return [listed[index] for index in dataset.indices]
    try:
        return metadata[column]  # type: ignore[index]
    except (TypeError, KeyError) as error:
        raise SettingsError(
            f"{name}={column!r} is no column of dataset.metadata: give a value for each "
            "sample instead."
        ) from error


def _as_list(column: Any, name: str) -> list[Any]:
    """Return the values of a column as Python has them, tuples and words among them.

    Raises:
        SettingsError: If it is no row of values, or of such as cannot be told apart.
    """
    # As an array a list of tuples would be a table, and 1 and "1" in a list the same word.
    values = list(column) if isinstance(column, list | tuple) else np.asarray(column)
    if np.ndim(values) != 1 and not isinstance(values, list):
        raise SettingsError(
            f"{name} must be one value for each sample, but has shape {np.shape(values)}."
        )
    try:
        plain = [value.item() if hasattr(value, "item") else value for value in values]
        set(plain)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"{name} must hold words, numbers or tuples of these, but got {values[0]!r}."
        ) from error
    return plain


def _is_missing(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_missing, value))
    try:
        return value is None or bool(value != value)  # noqa: PLR0124 - NaN
    except TypeError:  # of pandas, whose NA is neither equal to itself nor not
        return True


def _split_samples(labels: _Ints, shares: _Floats, generator: np.random.Generator) -> _Ints:
    """Return the part of each sample."""
    counts = np.bincount(labels)
    parts = np.empty(len(labels), np.int64)
    for label, sizes in enumerate(_apportion(counts, shares, generator)):
        members = np.flatnonzero(labels == label)
        parts[members] = generator.permutation(np.repeat(np.arange(len(shares)), sizes))
    return parts


def _apportion(counts: _Ints, shares: _Floats, generator: np.random.Generator) -> _Ints:
    """Return how many samples of each label go to each part, shape (labels, parts).

    Each is the exact share rounded down or up; so that parts have the right size, the samples
    that are left of a label go one each to the parts that lack most (the construction of Gale
    and Ryser, 1957, for a 0-1 matrix with given sums of rows and columns).
    """
    exact = counts[:, None] * shares
    sizes = np.floor(exact + 1e-9).astype(np.int64)  # 0.1 * 30 is 3, not a little less
    lacking = _round_to_sum(counts.sum() * shares, int(counts.sum())) - sizes.sum(axis=0)
    left = counts - sizes.sum(axis=1)
    for label in np.argsort(-left, kind="stable"):
        # Ties go to the larger remainder, then to chance.
        remainder = exact[label] - sizes[label] + 1e-6 * generator.random(len(shares))
        chosen = np.lexsort((-remainder, -lacking))[: left[label]]
        sizes[label, chosen] += 1
        lacking[chosen] -= 1
    return sizes


def _round_to_sum(exact: _Floats, total: int) -> _Ints:
    """Round numbers so that they add up, by largest remainder."""
    rounded = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - rounded), kind="stable")
    rounded[order[: total - rounded.sum()]] += 1
    return rounded


def _split_groups(
    labels: _Ints, groups: _Ints, shares: _Floats, generator: np.random.Generator
) -> _Ints:
    """Return the part of each sample, the same for a whole group.

    Raises:
        SettingsError: If there are fewer groups than parts.
    """
    num_groups, num_labels, num_parts = groups.max() + 1, labels.max() + 1, len(shares)
    if num_groups < num_parts:
        raise SettingsError(
            f"{num_groups} groups cannot be split into {num_parts} parts: none may be empty."
        )
    contents = np.zeros((num_groups, num_labels))
    np.add.at(contents, (groups, labels), 1)
    lacking = shares[:, None] * contents.sum(axis=0)  # shape (parts, labels)
    part_of_group = np.full(num_groups, -1)
    order = generator.permutation(num_groups)
    order = order[np.argsort(-contents[order].sum(axis=1), kind="stable")]
    for place, group in enumerate(order):
        # How much the squared distance from the wanted contents grows in each part.
        growth = contents[group] @ (contents[group] - 2 * lacking).T
        empty = np.setdiff1d(np.arange(num_parts), part_of_group)
        if num_groups - place <= len(empty):
            growth[np.setdiff1d(np.arange(num_parts), empty)] = np.inf
        part_of_group[group] = np.argmin(growth)
        lacking[part_of_group[group]] -= contents[group]
    return part_of_group[groups]
