"""FastLoader: torch's DataLoader that fills in its own settings."""

import dataclasses
import logging
import os
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from fastloader._buffers import BufferPool
from fastloader._choose import GivenOptions, choose_settings
from fastloader._machine import read_machine
from fastloader._seeding import DrawScope, derive_seed
from fastloader._settings import Auto, LoaderSettings, Transport
from fastloader._torch_internals import BaseIterator, index_sampler, view_of
from fastloader._torch_iterators import (
    BatchedIterator,
    SampleIterator,
    SeededWorkerInit,
    WorkersIterator,
)
from fastloader._traits import describe_dataset
from fastloader.datasets._batched import as_batched
from fastloader.errors import EmptyEpochError, SettingsError
from fastloader.sampling._base_seed import draws_on_cpu, peek_seed
from fastloader.sampling._compact import compact_sampler

__all__ = ["FastLoader"]

T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("fastloader")

_ORDER = 1
"""Tells the seed of the order from other seeds made of the same number."""


class FastLoader(DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` that is fast without tuning.

    Takes everything that `DataLoader` takes, in the same order and with the same meaning;
    options that are left out are chosen to fit the machine and the dataset. See `settings`
    and `explain` for what was chosen and why.

    The order of samples is torch's for the same generator or `torch.manual_seed`. A loader
    that does not shuffle leaves the global random state alone.

    Args:
        dataset: Map-style or iterable dataset, or a sequence. One that makes whole batches
            (`fastloader.typing.BatchedDataset`, or torch's `TensorDataset`) needs no workers.
        batch_size: Samples in a batch; None gives single samples.
        shuffle: Whether samples come in another order each epoch.
        sampler: Indices of the samples, instead of `shuffle`.
        batch_sampler: Lists of indices, one for each batch, instead of `batch_size`,
            `shuffle`, `sampler` and `drop_last`.
        num_workers: Worker processes; 0 loads in the calling process.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Whether batches arrive in page-locked memory.
        drop_last: Whether an incomplete last batch is left out.
        timeout: Seconds to wait for a batch from a worker; 0 waits for ever.
        worker_init_fn: Called in each worker with its number, after seeding.
        multiprocessing_context: How workers start; None takes the default of
            `multiprocessing`.
        generator: Random state of the order.
        prefetch_factor: Batches that each worker makes ahead.
        persistent_workers: Whether workers live on between epochs.
        pin_memory_device: Not used any more by torch.
        in_order: Whether batches come in the order of the sampler; False gives them as they
            are ready.
        seed: Makes order and random draws depend on this number and the epoch alone; from 0
            to 2**64 - 1. Not together with `generator`.
        device: Where batches arrive, such as ``"cuda"``; None leaves them as they were made.
        transport: How batches come from workers: ``"shared"`` memory that is used again, or
            as ``"torch"`` sends them.

    Raises:
        SettingsError: If options cannot work, alone or together (a `ValueError`, as in torch).
        EmptyEpochError: If an empty dataset is to be shuffled.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> loader = FastLoader(TensorDataset(torch.arange(6)), 4)
        >>> [batch.tolist() for [batch] in loader]
        [[0, 1, 2, 3], [4, 5]]
        >>> loader.settings.num_workers
        0
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Auto = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | Auto = "auto",
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = "auto",
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | Auto | None = "auto",
        persistent_workers: bool | Auto = "auto",
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        device: torch.device | str | int | None = None,
        transport: Transport | Auto = "auto",
    ) -> None:
        _check_seed(seed, generator)
        traits = describe_dataset(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            collate_fn=collate_fn,
        )
        given = GivenOptions(
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=_start_method(multiprocessing_context),
            timeout=timeout,
            pin_memory=pin_memory,
            transport=transport,
            device=None if device is None else str(torch.device(device)),
            num_workers_override=_read_override(),
        )
        machine = read_machine()
        settings = choose_settings(machine, traits, given)
        if shuffle and sampler is None and batch_sampler is None and not traits.is_iterable:
            _check_not_empty(dataset)
            if seed is not None:
                sampler, shuffle = _seeded_sampler(dataset, seed), None
        super().__init__(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=settings.num_workers,
            collate_fn=collate_fn,
            pin_memory=settings.pin_memory,
            drop_last=drop_last,
            timeout=settings.timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=_context_to_use(
                multiprocessing_context, settings, machine.start_method
            ),
            generator=generator,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        # Public attributes are exactly the options: frameworks make loaders anew from them.
        self.seed = seed
        self.device = device
        self.transport = settings.transport
        self._settings = settings
        self._keeps_workers = persistent_workers is True
        self._num_epochs = 0
        self._pool = BufferPool()
        if settings.ignored and num_workers == 0:
            warnings.warn(
                f"num_workers is 0, so {', '.join(settings.ignored)} has no effect.",
                stacklevel=2,
            )
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Settings of a new FastLoader:\n%s", settings.explain())

    @property
    def settings(self) -> LoaderSettings:
        """What the loader runs with, and the reason for each value."""
        settings = self._settings
        now = {
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "timeout": self.timeout,
            "pin_memory": self.pin_memory,
            "device": None if self.device is None else str(torch.device(self.device)),
        }
        changed = {name: now[name] for name in now if now[name] != getattr(settings, name)}
        if not changed:
            return settings
        reasons = {**settings.reasons, **dict.fromkeys(changed, "set after construction")}
        return dataclasses.replace(settings, **changed, reasons=reasons)  # type: ignore[arg-type]

    def explain(self) -> str:
        """Return `settings` as a table of option, value and reason."""
        return self.settings.explain()

    @property
    def loader(self) -> "FastLoader[T_co]":
        """The loader itself, for code written for wrappers that hold one."""
        return self

    def to(self, device: torch.device | str | int | None) -> "FastLoader[T_co]":
        """Let batches arrive on a device from the next epoch on.

        Args:
            device: Where to; None leaves them as they were made.

        Returns:
            This loader.
        """
        self.device = device
        return self

    def __iter__(self) -> BaseIterator:
        """Start an epoch.

        Raises:
            EmptyEpochError: If `drop_last` leaves no batch.
        """
        self._check_any_batch()
        return self._get_iterator()

    def _get_iterator(self) -> BaseIterator:
        epoch = self._num_epochs
        self._num_epochs += 1
        generator, order = self._epoch_generators(epoch)
        view = view_of(self, compact_sampler(index_sampler(self), order), generator)
        scope = DrawScope(peek_seed(epoch) if self.seed is None else self.seed, epoch)
        device = None if self.device is None else torch.device(self.device)
        if device is not None and device.type == "cpu":
            device = None
        with draws_on_cpu():
            if self.num_workers > 0:
                return self._start_workers(view, device)
            batched = self._settings.batched and as_batched(self.dataset)
            if batched:
                return BatchedIterator(view, batched, self._pool, scope, device)
            return SampleIterator(view, scope, device)

    def _start_workers(
        self, view: DataLoader[Any], device: torch.device | None
    ) -> BaseIterator:
        self.check_worker_number_rationality()
        view.worker_init_fn = SeededWorkerInit(self.worker_init_fn)
        view.__dict__["persistent_workers"] = self._keeps_workers
        if not self._keeps_workers:
            return WorkersIterator(view, device)
        if self._iterator is None:
            self._iterator = WorkersIterator(view, device)
        else:
            self._iterator._reset(view)  # noqa: SLF001
        return self._iterator

    def _epoch_generators(
        self, epoch: int
    ) -> tuple[torch.Generator | None, torch.Generator | None]:
        """Return where this epoch's base seed and order come from; None is as in torch."""
        if self.seed is not None:
            base = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
            order = torch.Generator().manual_seed(derive_seed(self.seed, _ORDER, epoch))
            return base, order if _is_seeded(self._sampler_within(), self.seed) else None
        if self.generator is not None or self._draws_order():
            return self.generator, None
        return torch.Generator().manual_seed(peek_seed(epoch)), None

    def _draws_order(self) -> bool:
        if isinstance(self.dataset, IterableDataset):
            return False
        if self.batch_sampler is not None and type(self.batch_sampler) is not BatchSampler:
            return True
        return type(self._sampler_within()) is not SequentialSampler

    def _sampler_within(self) -> Any:
        """Return what decides the order, below torch's own batches."""
        batches = self.batch_sampler
        return batches.sampler if type(batches) is BatchSampler else self.sampler

    def _check_any_batch(self) -> None:
        """Refuse an epoch without batches, which would pass unnoticed.

        Raises:
            EmptyEpochError: If `drop_last` leaves no batch.
        """
        batches = self.batch_sampler
        if type(batches) is not BatchSampler or not batches.drop_last:
            return
        try:
            num_samples = len(batches.sampler)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return
        if 0 < num_samples < batches.batch_size:
            raise EmptyEpochError(
                f"drop_last=True leaves no batch: {num_samples} samples do not fill one of "
                f"batch_size={batches.batch_size}. Lower batch_size, or set drop_last=False."
            )

    def __getstate__(self) -> dict[str, Any]:
        # Running workers belong to this loader; a copy starts its own.
        return {**self.__dict__, "_iterator": None}


def _check_seed(seed: int | None, generator: torch.Generator | None) -> None:
    if seed is None:
        return
    if generator is not None:
        raise SettingsError(
            "seed and generator both decide the order of samples: give one of them."
        )
    if not 0 <= seed < 2**64:
        raise SettingsError(f"seed must be from 0 to 2**64 - 1, but got {seed}.")


def _check_not_empty(dataset: Any) -> None:
    if len(dataset) == 0:
        raise EmptyEpochError(
            "The dataset is empty (length 0), so there is nothing to shuffle: look at where "
            "its samples should come from."
        )


def _seeded_sampler(dataset: Any, seed: int) -> RandomSampler:
    generator = torch.Generator().manual_seed(derive_seed(seed, _ORDER))
    return RandomSampler(dataset, generator=generator)


def _is_seeded(sampler: Any, seed: int) -> bool:
    """Tell whether the sampler is one that a loader with this seed made.

    Frameworks that make a loader anew give it the first one's sampler.
    """
    if type(sampler) is not RandomSampler or sampler.generator is None:
        return False
    return bool(sampler.generator.initial_seed() == derive_seed(seed, _ORDER))


def _read_override() -> int | None:
    value = os.environ.get("FASTLOADER_NUM_WORKERS", "")
    if not value:
        return None
    if not value.isdecimal():
        raise SettingsError(
            f"FASTLOADER_NUM_WORKERS should be a number of workers, but is {value!r}."
        )
    return int(value)


def _start_method(context: Any) -> str | None:
    """Return the name of a start method; torch refuses what is none."""
    if context is None or isinstance(context, str):
        return context
    if isinstance(context, BaseContext):
        return context.get_start_method()
    return repr(context)


def _context_to_use(given: Any, settings: LoaderSettings, default: str) -> Any:
    chosen = settings.multiprocessing_context
    if given != "auto":
        return given if chosen is not None else None
    # The default is left to multiprocessing: whoever reads the attribute sees None, as ever.
    return None if chosen == default else chosen
