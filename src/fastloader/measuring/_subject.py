"""What is measured: a loader, or a mixture of several."""

from collections.abc import Mapping
from typing import Any

from fastloader.errors import SettingsError
from fastloader.stats import LoaderStats

__all__ = ["Subject", "is_loader"]


class Subject:
    """A loader of any kind, and what has to be known of it to measure it.

    Frameworks' proxies, which show the attributes of a loader, are loaders; a `MixedLoader` is told by
    its `loaders`.

    Args:
        loader: To iterate over.

    Raises:
        SettingsError: If it is something else.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        if not is_loader(loader):
            raise SettingsError(
                f"A loader is measured, but got {type(loader).__name__}. Over a dataset, make one: "
                "FastLoader(dataset, batch_size); of several loaders give a mapping by name."
            )
        parts = [loader] if _is_single(loader) else loader.loaders.values()
        # Where one reads all sources it has all names.
        self._parts = {id(one): one for one in parts if _is_single(one)}.values()

    @property
    def only_loader(self) -> Any:
        """The loader itself, or the one that reads all sources of a mixture.

        Raises:
            SettingsError: If there are several.
        """
        if _is_single(self.loader):
            return self.loader
        if (only := self.loader.loader) is not None:
            return only
        raise SettingsError(
            "This is a mixture of several loaders, which are looked at one by one: give one of them, "
            "mixed.loaders[name]. The sources in mixed.stats.snapshot() tell how long each was "
            "waited for."
        )

    @property
    def num_ahead(self) -> int:
        """Batches that workers make while the first one is waited for."""
        return sum(one.num_workers * (one.prefetch_factor or 1) for one in self._parts)

    @property
    def keeps_workers(self) -> bool:
        """Whether there are workers when a pass is over."""
        return any(one.num_workers and one.persistent_workers for one in self._parts)

    @property
    def has_batches(self) -> bool:
        """Whether several samples come at once."""
        return not _is_single(self.loader) or self.loader.batch_sampler is not None

    @property
    def has_names(self) -> bool:
        """Whether a batch comes with the name of its source."""
        return not _is_single(self.loader) and bool(self.loader.with_names)

    @property
    def stats(self) -> LoaderStats | None:
        """What it measures itself, if it does."""
        stats = getattr(self.loader, "stats", None)
        return stats if isinstance(stats, LoaderStats) else None


def is_loader(subject: object) -> bool:
    """Return whether it is a loader or a mixture of loaders, and no dataset."""
    return _is_single(subject) or isinstance(getattr(subject, "loaders", None), Mapping)


def _is_single(subject: object) -> bool:
    return all(hasattr(subject, name) for name in ("dataset", "num_workers", "batch_sampler"))
