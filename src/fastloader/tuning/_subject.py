"""What is tuned: the options of a loader, copied so that measuring leaves the caller's alone."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from fastloader._loader import FastLoader
from fastloader._pickling import dumps_for_worker, loads_from_parent
from fastloader.errors import SettingsError
from fastloader.tuning._candidate import SEARCHED

__all__ = ["Subject"]

_NAMES = frozenset(inspect.signature(FastLoader.__init__).parameters) - {"self", "settings"}


class Subject:
    """A dataset with the options of its loader.

    Args:
        dataset: A dataset, or a loader over one. Of a loader every option but those that are
            searched is kept as it is.
        options: Of a `FastLoader` over the dataset; those that are searched stay as given.

    Raises:
        SettingsError: If there are options beside a loader.
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any]) -> None:
        if isinstance(dataset, DataLoader):
            if options:
                raise SettingsError(
                    f"A loader has its own options, but {', '.join(options)} came with it: "
                    "give the dataset instead, or make the loader with them."
                )
            self.options = _options_of(dataset)
            self.fixed: dict[str, Any] = {}
        else:
            self.options = {"dataset": dataset, **options}
            self.fixed = {
                name: options[name] for name in SEARCHED if options.get(name, "auto") != "auto"
            }

    def copied_options(self) -> dict[str, Any]:
        """Return the options with copies of dataset, samplers and generators.

        Large arrays are the caller's own, in the same memory. What cannot be copied is passed
        as it is.
        """
        buffers: list[Any] = []
        inherited: list[object] = []
        try:
            data = dumps_for_worker(self.options, buffers=buffers, inherited=inherited)
            copied: dict[str, Any] = loads_from_parent(
                data, buffers=buffers, inherited=inherited
            )
        except Exception:  # noqa: BLE001 - a dataset that cannot be pickled may raise anything
            return dict(self.options)
        return copied


def _options_of(loader: Any) -> dict[str, Any]:
    """Return the options to make a loader anew, as frameworks do, less what is searched."""
    options = {
        name: getattr(loader, name)
        for name in _NAMES
        if name in vars(loader) and name not in SEARCHED
    }
    if loader.multiprocessing_context is not None:
        options["multiprocessing_context"] = loader.multiprocessing_context
    # Whether workers live on says nothing where there were none.
    if loader.num_workers == 0:
        options.pop("persistent_workers", None)
        options.pop("timeout", None)
    if loader.batch_size is None and loader.batch_sampler is not None:
        for name in ("batch_size", "sampler", "drop_last"):
            options.pop(name, None)
    else:
        options.pop("batch_sampler", None)
    if isinstance(loader.dataset, IterableDataset):
        options.pop("sampler", None)
    return options
