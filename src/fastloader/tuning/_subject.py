"""What is tuned: the options of a loader, copied so that measuring leaves the caller's alone."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch.utils.data import IterableDataset

from fastloader._loader import FastLoader
from fastloader.errors import SettingsError, UnpicklableError
from fastloader.measuring import is_loader
from fastloader.measuring._subject import Subject as Measured
from fastloader.pickling._pickling import dumps_for_worker, loads_from_parent
from fastloader.settings._settings import LoaderSettings
from fastloader.tuning._candidate import SEARCHED, Candidate
from fastloader.tuning._stretches import Tape

__all__ = ["Subject"]

_NAMES = frozenset(inspect.signature(FastLoader.__init__).parameters) - {"self", "settings"}

# Whether workers live on makes no difference to a steady rate.
_LEFT_OUT = frozenset({*SEARCHED, "persistent_workers", "settings"})

_ORDER = frozenset({
    "batch_size",
    "batch_sampler",
    "batches_per_epoch",
    "distributed",
    "drop_last",
    "sampler",
    "samples_per_epoch",
    "shuffle",
})


class Subject:
    """A dataset with its order and the options that are not searched.

    Args:
        source: A dataset, or a loader over one (also that of a `MixedLoader` which has one). Of a
            loader every option is kept but those that are searched.
        options: Of a `FastLoader` over the dataset; those that are searched stay as given.

    Raises:
        SettingsError: If there are options beside a loader, or wrong ones, or it is a mixture of
            several loaders.
    """

    fixed: dict[str, Any]
    """Options that would be searched, had the caller not decided them."""

    def __init__(self, source: Any, options: Mapping[str, Any]) -> None:
        template: Any
        if is_loader(source):
            source = Measured(source).only_loader
            given, template, self.fixed = _options_of(source, options), source, {}
        else:
            given = {"dataset": source, **options}
            template = FastLoader(**{
                n: value for n, value in given.items() if n not in _LEFT_OUT
            })
            self.fixed = {n: options[n] for n in SEARCHED if options.get(n, "auto") != "auto"}
        self.dataset = template.dataset
        self.is_iterable = isinstance(template.dataset, IterableDataset)
        self.batch_size: int | None = template.batch_size
        self.batch_sampler = template.batch_sampler
        self._options = {
            n: value for n, value in given.items() if n not in _LEFT_OUT and n not in _ORDER
        }
        if self.is_iterable:
            self._options |= {n: given[n] for n in ("batch_size", "drop_last") if n in given}
        elif template.batch_sampler is not None:
            self._options["batch_sampler"] = template.batch_sampler
        else:
            self._options |= {"sampler": template.sampler, "batch_size": None}
        self._tape: Tape | None = None
        self._pickled: tuple[bytes, list[Any], list[object]] | None = None
        self._can_be_copied = True

    @property
    def tape(self) -> Tape | None:
        """The order of the batches, drawn from a copy; None for an iterable dataset."""
        if self._tape is None and not self.is_iterable:
            options = self._copied_options()
            batches = options.get("batch_sampler")
            self._tape = Tape(options["sampler"] if batches is None else batches)
        return self._tape

    @property
    def pickled_bytes(self) -> int:
        """Size of what each worker process may get a copy of: all but large arrays."""
        return 0 if self._pickled is None else len(self._pickled[0])

    def automatic_settings(self) -> LoaderSettings:
        """Return what a loader would choose by itself, beside what the caller has decided."""
        return FastLoader(**self._options, **self.fixed).settings

    def settings_of(self, candidate: Candidate) -> LoaderSettings:
        """Return the settings of a loader with the options of a candidate."""
        return FastLoader(**_with(self._options, candidate)).settings

    def loader_options(self, candidate: Candidate) -> dict[str, Any]:
        """Return options of a `FastLoader`, with copies of dataset, samplers and generators.

        Large arrays are the caller's own, in the same memory. What cannot be copied is passed
        as it is.

        Args:
            candidate: Values of the options that are searched.
        """
        return _with(self._copied_options(), candidate)

    def _copied_options(self) -> dict[str, Any]:
        if self._pickled is None and self._can_be_copied:
            buffers: list[Any] = []
            inherited: list[object] = []
            try:
                data = dumps_for_worker(self._options, buffers=buffers, inherited=inherited)
                self._pickled = data, buffers, inherited
            except UnpicklableError:
                self._can_be_copied = False
        if self._pickled is None:
            return dict(self._options)
        data, buffers, inherited = self._pickled
        copied: dict[str, Any] = loads_from_parent(data, buffers=buffers, inherited=inherited)
        return copied


def _with(options: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    has_processes = candidate.num_workers > 0 and candidate.workers == "processes"
    left_out = () if has_processes else ("multiprocessing_context", "timeout")
    kept = {name: value for name, value in options.items() if name not in left_out}
    return {**kept, **candidate.options()}


def _options_of(loader: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to make a loader anew, as frameworks do.

    Raises:
        SettingsError: If there are other options.
    """
    if options:
        raise SettingsError(
            f"A loader has options of its own, but {', '.join(options)} came with it: give its "
            "dataset instead, or make the loader with them."
        )
    given = {name: vars(loader)[name] for name in _NAMES if name in vars(loader)}
    if loader.multiprocessing_context is not None:
        given["multiprocessing_context"] = loader.multiprocessing_context
    return given
