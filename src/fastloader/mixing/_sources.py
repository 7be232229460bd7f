"""From what a caller names as sources to loaders of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from torch.utils.data import DataLoader, IterableDataset

from fastloader._loader import FastLoader
from fastloader.datasets._mixed import source_seed
from fastloader.errors import SettingsError
from fastloader.mixing._worker_shares import share_workers
from fastloader.sampling._given_order import Distributed
from fastloader.settings._traits import describe_dataset

__all__ = ["are_all_datasets", "are_all_map_style", "make_loaders"]

_Kind: TypeAlias = Literal["loader", "map-style", "iterable"]


def _kind_of(source: Any) -> _Kind:
    if isinstance(source, IterableDataset):
        return "iterable"
    if not isinstance(source, DataLoader) and hasattr(source, "__getitem__"):
        return "map-style"
    return "loader"


def are_all_map_style(sources: Mapping[str, Any]) -> bool:
    """Tell whether one loader can read all sources.

    Args:
        sources: Loaders and datasets by name.
    """
    return all(_kind_of(source) == "map-style" for source in sources.values())


def are_all_datasets(sources: Mapping[str, Any]) -> bool:
    """Tell whether no source is a loader.

    Args:
        sources: Loaders and datasets by name.
    """
    return all(_kind_of(source) != "loader" for source in sources.values())


def make_loaders(
    sources: Mapping[str, Any],
    batch_sizes: Mapping[str, int | None],
    *,
    weights: Sequence[float],
    one_at_a_time: bool,
    num_workers: int | Literal["auto"],
    seed: int,
    shuffle: bool,
    distributed: Distributed,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return a loader for each source: itself, or a `FastLoader` over a dataset.

    Args:
        sources: Loaders and datasets by name.
        batch_sizes: For the datasets, by name; None gives single samples.
        weights: Share of each source in the batches.
        one_at_a_time: Whether a source begins when the one before has ended; the workers of
            that one end with it then.
        num_workers: Of all sources together; ``"auto"`` takes as many as the neediest would.
        seed: From which those of the loaders are derived.
        shuffle: Whether samples of map-style datasets come in another order in each pass.
        distributed: Whether each rank reads its share of each dataset; of an iterable one, if
            that declares shards enough.
        options: Further options of the loaders that are made here.

    Raises:
        SettingsError: If there are options for loaders that are not made here.
    """
    datasets = {name: s for name, s in sources.items() if _kind_of(s) != "loader"}
    if not datasets and (options or shuffle):
        given = sorted({*options, *(["shuffle"] if shuffle else [])})
        raise SettingsError(
            f"The options {given} are for loaders that are made of datasets, but all sources "
            "are loaders: give the options to these."
        )
    numbers = {name: number for number, name in enumerate(sources)}

    def make(name: str, workers: int | Literal["auto"], **more: Any) -> FastLoader[Any]:
        is_map_style = _kind_of(datasets[name]) == "map-style"
        return FastLoader(
            datasets[name],
            batch_sizes[name],
            shuffle=True if shuffle and is_map_style else None,
            distributed=distributed if is_map_style else distributed and "auto",
            num_workers=workers,
            seed=source_seed(seed, numbers[name]),
            **{**options, **more},
        )

    needs = [
        _most_workers(datasets[name], options) if name in datasets else 0 for name in sources
    ]
    if num_workers == "auto":
        budget = max((make(name, "auto").num_workers for name in datasets), default=0)
    else:
        own = [getattr(s, "num_workers", 0) for n, s in sources.items() if n not in datasets]
        budget = max(0, num_workers - sum(own))
    if one_at_a_time:
        shares = [budget if need is None else min(budget, need) for need in needs]
        more = {"persistent_workers": False}
    else:
        shares, more = share_workers(budget, needs, weights), {}
    return {
        name: make(name, shares[numbers[name]], **(more if shares[numbers[name]] else {}))
        if name in datasets
        else source
        for name, source in sources.items()
    }


def _most_workers(dataset: Any, options: Mapping[str, Any]) -> int | None:
    """Return how many workers are of use for a dataset, None for any number."""
    traits = describe_dataset(dataset, collate_fn=options.get("collate_fn"))
    if traits.has_ready_samples or traits.tied is not None:
        return 0
    if traits.is_iterable:
        return traits.num_shards or 1
    return None
