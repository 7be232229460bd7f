"""FastLoader: torch's DataLoader that fills in its own settings."""

import inspect
import logging
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any, Literal, Never, TypeVar

import torch
from torch.utils.data import Dataset, Sampler

from fastloader._torch_internals import BaseIterator, not_compiled
from fastloader.datasets._resident import preferred_residence
from fastloader.datasets._stream_share import share_stream
from fastloader.engine import SkippedSample
from fastloader.epochs._chosen_loader import ChosenLoader
from fastloader.epochs._epoch import EpochOpener
from fastloader.epochs._epochs import Epochs
from fastloader.epochs._resumable import ResumableLoader
from fastloader.epochs._worker_runs import SPARE_PREFETCH_FACTOR
from fastloader.machine._control_groups import read_limits
from fastloader.machine._machine import read_machine
from fastloader.sampling._epoch_order import check_any_batch
from fastloader.sampling._given_order import Distributed, GivenOrder, resolve_order
from fastloader.settings._choice import Choice
from fastloader.settings._choose import GIVEN
from fastloader.settings._given import (
    as_count,
    as_size,
    check_callables,
    check_current,
    check_known,
    check_seconds,
    check_seed,
    check_words,
    device_name,
    read_override,
    start_method_of,
    warn_of_ignored,
    warn_of_many_workers,
)
from fastloader.settings._inputs import GivenOptions
from fastloader.settings._settings import (
    WITHOUT_WORKERS,
    Auto,
    LoaderSettings,
    Transport,
    Workers,
)
from fastloader.settings._suggestion import find_suggestion
from fastloader.settings._traits import describe_dataset
from fastloader.stats import LoaderStats, queue_of, timed

__all__ = ["FastLoader"]

T_co = TypeVar("T_co", covariant=True)

logger = logging.getLogger("fastloader")

read_limits()  # with the import, which takes seconds, and not within the first epoch


class FastLoader(ChosenLoader[T_co], ResumableLoader[T_co]):
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
        sampler: Indices of the samples, instead of `shuffle`; or a function that takes the
            dataset and returns them.
        batch_sampler: Lists of indices, one for each batch, instead of `batch_size`,
            `shuffle`, `sampler` and `drop_last`.
        num_workers: Worker processes; 0 loads in the calling process.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Whether batches arrive in page-locked memory.
        drop_last: Whether an incomplete last batch is left out.
        timeout: Seconds to wait for a batch from a worker; 0 waits for ever.
        worker_init_fn: Called in each worker with its number, after seeding.
        multiprocessing_context: How workers start; None takes the default of `multiprocessing`.
        generator: Random state of the order.
        prefetch_factor: Batches that each worker makes ahead.
        persistent_workers: Whether workers live on between epochs.
        pin_memory_device: Not used any more by torch.
        in_order: Whether batches come in the order of the sampler, or else as they are ready.
        seed: Makes order and random draws depend on this number and the epoch alone; from 0
            to 2**64 - 1. Not together with `generator`.
        device: Where batches arrive, such as ``"cuda"``; None leaves them as they were made.
        workers: What `num_workers` counts: ``"processes"``, or ``"threads"``, for datasets that leave
            the interpreter free while they read and are safe to use from several threads.
        resident: ``"device"`` keeps the data of a dataset that makes whole batches on `device`
            and gathers batches there; see `explain` for whether it could.
        transport: How batches come from workers: ``"shared"`` memory that is used again, or
            ``"torch"`` for all that torch's own iterators do, and no more.
        batch_transform: Applied to each batch where it was made, in the worker.
        device_transform: Applied to each batch where it arrives, after the copy.
        on_error: What to do when a sample cannot be read: ``"raise"``, or ``"skip"`` it, log
            it and list it in `skipped` (map-style datasets; a stream ends with what it raises).
        on_worker_death: What to do when a worker process ends by itself: ``"raise"``, or
            ``"restart"`` it, with its batches or its place in a stream.
        watchdog_seconds: After this time without a batch a warning is logged that says which
            worker is busy with which samples, and where in the code.
        distributed: Whether to read only this rank's share of the samples, where there are
            several ranks: True, or ``"auto"`` to do so where it can be done. Nothing is shared
            out twice; a shuffled order gives each rank the same number of samples, and
            one from first to last gives each sample to one rank.
        samples_per_epoch: Length of an epoch, of all ranks together, in place of that of the
            order; an epoch goes on where the one before ended.
        batches_per_epoch: The same in full batches of each rank.
        settings: What to take for options that are left out: ``"tuned"`` for the result that
            `fastloader.tune` has stored for this dataset, batch size and machine, or the
            settings that it returned. How processes start is chosen as ever.

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

    @not_compiled
    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | Callable[[Any], Iterable[Any]] | None = None,
        batch_sampler: (
            Sampler[list[Any]] | Iterable[list[Any]] | Callable[[Any], Iterable[Any]] | None
        ) = None,
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
        in_order: bool | Auto = "auto",
        seed: int | None = None,
        device: torch.device | str | int | None = None,
        workers: Workers | Auto = "auto",
        resident: Literal["device"] | None = None,
        transport: Transport | Auto = "auto",
        batch_transform: Callable[[Any], Any] | None = None,
        device_transform: Callable[[Any], Any] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        on_worker_death: Literal["raise", "restart"] = "raise",
        watchdog_seconds: float = 60.0,
        distributed: Distributed = False,
        samples_per_epoch: int | None = None,
        batches_per_epoch: int | None = None,
        settings: LoaderSettings | Literal["tuned"] | Auto = "auto",
        **later: Never,
    ) -> None:
        check_known(later, _signature.parameters)
        batch_size = as_size(batch_size)
        seed = as_count("seed", seed)
        check_seed(seed, generator)
        check_callables(
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            batch_transform=batch_transform,
            device_transform=device_transform,
        )
        check_seconds("watchdog_seconds", watchdog_seconds)
        check_words(resident=resident, on_error=on_error, on_worker_death=on_worker_death)
        order = resolve_order(
            GivenOrder(
                dataset=share_stream(dataset) if distributed else dataset,
                shuffle=shuffle,
                sampler=sampler,
                batch_sampler=batch_sampler,
                batch_size=batch_size,
                drop_last=drop_last,
                generator=generator,
                seed=seed,
                distributed=distributed,
                samples_per_epoch=samples_per_epoch,
                batches_per_epoch=batches_per_epoch,
            )
        )
        machine = read_machine()
        size = batch_size if batch_sampler is None else None
        given = GivenOptions(
            num_workers=as_count("num_workers", num_workers),
            prefetch_factor=as_count("prefetch_factor", prefetch_factor),
            persistent_workers=persistent_workers,
            multiprocessing_context=start_method_of(multiprocessing_context),
            timeout=timeout,
            pin_memory=pin_memory,
            transport=transport,
            device=device_name(device),
            workers=workers,
            in_order=in_order,
            resident=resident or preferred_residence(order.dataset),
            has_other_iterators=self._find_other(transport, order.dataset) is not None,
            num_workers_override=read_override(),
            has_worker_init_fn=worker_init_fn is not None,
            suggested=find_suggestion(settings, order.dataset, size, machine),
        )
        traits = describe_dataset(
            order.dataset,
            batch_size=batch_size,
            sampler=order.sampler,
            batch_sampler=order.batch_sampler,
            drop_last=drop_last,
            collate_fn=collate_fn,
        )
        self._choice = chosen = Choice(machine, traits, given)
        self._init_stock(
            order,
            multiprocessing_context,
            collate_fn=collate_fn,
            worker_init_fn=worker_init_fn,
            pin_memory_device=pin_memory_device,
            **later,
        )
        # Public attributes are exactly the options: frameworks make loaders anew from them.
        self.seed = seed
        self.device = device
        self.workers = chosen.of("workers")
        self.resident = resident
        self.transport = chosen.of("transport")
        self.batch_transform = batch_transform
        self.device_transform = device_transform
        self.on_error = on_error
        self.on_worker_death = on_worker_death
        self.watchdog_seconds = watchdog_seconds
        self.distributed = distributed
        self.samples_per_epoch = samples_per_epoch
        self.batches_per_epoch = batches_per_epoch
        vars(self)["settings"] = settings  # seen there alone: the property has the same name
        self._epochs = Epochs()
        self._skipped: list[SkippedSample] = []
        self._begin_anew()
        if given.num_workers == 0:
            warn_of_ignored(given)
        else:
            warn_of_many_workers(given.num_workers, machine)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Settings of a new FastLoader:\n%s", chosen.settings.explain())

    def _begin_anew(self) -> None:
        """Make what belongs to this object alone, and not to its copies."""
        self._opener = EpochOpener(self._choice, self._skipped)
        self._stats = LoaderStats(self._skipped)

    @property
    def settings(self) -> LoaderSettings:
        """What the loader runs with, and the reason for each value."""
        now: dict[str, object] = {
            "num_workers": self.num_workers,
            "prefetch_factor": self.prefetch_factor,
            "timeout": self.timeout,
            "pin_memory": self.pin_memory,
            "in_order": self.in_order,
            "device": device_name(self.device),
        }
        if self.num_workers == 0:  # whatever else was given: it counts with workers again
            now |= WITHOUT_WORKERS
        elif self.prefetch_factor is None:
            now["prefetch_factor"] = SPARE_PREFETCH_FACTOR
        settings = self._choice.settings.with_values(now, "set after construction")
        if (obstacle := self._opener.residence.obstacle) is not None:
            settings = settings.with_values({"resident": None}, obstacle)
        return settings

    def explain(self) -> str:
        """Return `settings` as a table of option, value and reason."""
        return self.settings.explain()

    @property
    def stats(self) -> LoaderStats:
        """What the loader measures of itself, always: ``loader.stats.snapshot()``."""
        return self._stats

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

        Raises:
            SettingsError: If torch knows no device of that name.
        """
        device_name(device)
        self.device = device
        return self

    @property
    def skipped(self) -> tuple[SkippedSample, ...]:
        """Samples that were left out so far, with ``on_error="skip"``."""
        return tuple(self._skipped)

    @not_compiled
    def __iter__(self) -> BaseIterator:
        """Start an epoch.

        Raises:
            EmptyEpochError: If `drop_last` leaves no batch.
            SettingsError: If an option was set to what cannot work.
        """
        check_current(self)
        if (reason := self._reason_of_other()) is None:
            return self._get_iterator()  # which subclasses of torch's loader override
        check_any_batch(self.batch_sampler)
        began = time.perf_counter()
        self._stats.note_fallback(reason)
        num_ahead = self.num_workers * (self.prefetch_factor or 1)
        iterator = super().__iter__()
        return timed(
            iterator,
            self._stats.begin_pass(
                began, num_warm_up=num_ahead, queue=queue_of(iterator, num_ahead)
            ),
            num_samples=1 if self.batch_sampler is None else None,
        )

    def _get_iterator(self) -> BaseIterator:
        if self._reason_of_other() is not None:
            return super()._get_iterator()
        return self._begin_pass()

    def _begin_pass(self) -> BaseIterator:
        check_any_batch(self.batch_sampler)
        began = time.perf_counter()
        begun = self._epochs.begin(self, self._opener.permutations)
        return self._opener.open(self, begun, began)

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than CPUs, as torch does, unless they were measured to help."""
        choice = self._choice
        if choice.of("workers") == "threads":
            return  # torch's words are of processes
        is_chosen = self.num_workers == choice.of("num_workers")
        if not is_chosen or choice.reason_of("num_workers") == GIVEN:
            super().check_worker_number_rationality()

    def __getstate__(self) -> dict[str, Any]:
        _ = self.settings  # the copy keeps to what is true of this process
        # Running workers belong to this loader; a copy starts its own.
        return {**self.__dict__, "_iterator": None, "_opener": None, "_stats": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin_anew()


# Options that a newer torch adds are passed on. Frameworks take a visible **later for "accepts
# anything", so it is kept out of sight; no type checker lets one through.
_signature = inspect.signature(FastLoader.__init__)
FastLoader.__init__.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=[p for p in _signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
)
