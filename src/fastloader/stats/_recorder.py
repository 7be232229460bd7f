"""The statistics of one loader: of each pass, and of all together."""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sized
from typing import Literal

import torch

from fastloader._extras import import_extra
from fastloader.engine import RunCounters
from fastloader.errors import SettingsError
from fastloader.machine._process_tree import tree_memory_bytes
from fastloader.stats._memory_watch import MemoryWatch
from fastloader.stats._pass_tally import PassTally
from fastloader.stats._snapshot import StatsSnapshot, add_parts, make_snapshot
from fastloader.stats._sources import SourceCount
from fastloader.stats._totals import Totals
from fastloader.streams._queue_state import QueueState, add_up

__all__ = ["LoaderStats"]

MOST_KEPT = 64
"""Passes whose notes are kept until somebody asks for sums."""


class LoaderStats:
    """Measures a loader while it is used, always; costs a fraction of a microsecond a batch.

    Several iterators over one loader may live at once: each counts for itself.

    **Processes:** the one that iterates; a copy of the loader begins at zero.
    **Threads:** any may ask for a snapshot.

    Args:
        skipped: Samples that the loader has left out, to be counted.
        parts: Those of the loaders that a mixture takes its batches from, by name of the source.
    """

    def __init__(
        self, skipped: Sized = (), *, parts: "Mapping[str, LoaderStats] | None" = None
    ) -> None:
        self._skipped = skipped
        self._parts = parts or {}
        self._lock = threading.Lock()
        self._over: Totals | None = None  # until a pass is summed up
        self._passes: list[PassTally] = []  # not part of these sums
        self._latest: PassTally | None = None
        self._fallbacks: dict[str, None] = {}  # in order
        self._measures_memory = self._measures_gpu = self._measures_copies = False
        self._watch = MemoryWatch()

    def snapshot(self, of: Literal["total", "epoch"] = "total") -> StatsSnapshot:
        """Return what was measured.

        Args:
            of: ``"total"`` since the loader was made or `reset` was called, ``"epoch"`` in the
                pass that began last.

        Raises:
            SettingsError: If `of` is another word.
        """
        if of not in {"total", "epoch"}:
            raise SettingsError(f"of should be 'total' or 'epoch', but got {of!r}.")
        with self._lock:
            totals = Totals()
            if of == "total":
                self._sum_up_ended()
                if self._over is not None:
                    totals.merge(self._over)
                counted = self._passes.copy()
            else:
                counted = [] if self._latest is None else [self._latest]
        for tally in counted:
            tally.add_to(totals)
        whole = make_snapshot(
            totals,
            add_up(tally.queue() for tally in counted),
            num_skipped_samples=len(self._skipped),
            fallbacks=tuple(self._fallbacks),
            memory_bytes=tree_memory_bytes(os.getpid()) if self._measures_memory else None,
            gpu_share=torch.cuda.utilization() / 100 if self._measures_gpu else None,
        )
        if not self._parts:
            return whole
        return add_parts(whole, {name: own.snapshot(of) for name, own in self._parts.items()})

    def reset(self) -> None:
        """Forget what was measured; what is under way counts from its next batches on.

        Those of the loaders of a mixture forget it as well.
        """
        for own in self._parts.values():
            own.reset()
        with self._lock:
            self._sum_up_ended()
            self._over = None
            self._fallbacks.clear()
            for tally in self._passes:
                tally.forget()
            if self._latest not in self._passes:
                self._latest = None

    def also_measure(
        self, *, memory: bool = False, gpu: bool = False, copies: bool = False
    ) -> None:
        """Let snapshots tell what takes time to find out.

        Args:
            memory: Of the process and its workers (PSS); milliseconds for each snapshot.
            gpu: How busy the current CUDA device is, as NVML has it; milliseconds for each
                snapshot. Needs the extra ``gpu``.
            copies: How long the copies of batches take on the loader's device, by events
                around each; from the next pass on. Some microseconds for each batch.

        Raises:
            MissingExtraError: If the package for that is not installed.
            SettingsError: If there is no CUDA device to be asked.
        """
        if gpu:
            import_extra("pynvml", "gpu", "Asking how busy a GPU is")
            if not torch.cuda.is_available():
                raise SettingsError(
                    "gpu=True asks a CUDA device, and there is none: leave it out."
                )
        self._measures_memory, self._measures_gpu = memory, gpu
        self._measures_copies = copies

    def copy_seconds_of_pass(self) -> deque[float] | None:
        """Return what takes the times of a pass's copies, or None if nobody wants them."""
        return deque() if self._measures_copies else None

    def note_fallback(self, reason: str) -> None:
        """Note that batches come in a slower way than the loader's own; for loaders.

        Args:
            reason: Which, and why.
        """
        self._fallbacks[reason] = None

    def begin_pass(
        self,
        began: float,
        *,
        num_warm_up: int = 0,
        counters: RunCounters | None = None,
        queue: Callable[[], QueueState] = QueueState,
        copy_seconds: deque[float] | None = None,
        sources: Callable[[], Mapping[str, SourceCount]] = dict,
        batch_size: int | None = None,
        last_indices: Callable[[], Sized | None] = lambda: None,
    ) -> PassTally:
        """Return what takes the notes of a pass, to be closed at its end; for loaders.

        Args:
            began: When the iterator was asked for, by `time.perf_counter`.
            num_warm_up: Batches after the first that are made while it is waited for.
            counters: Of the engine.
            queue: Tells what is under way.
            copy_seconds: From `copy_seconds_of_pass`.
            sources: Tells what each source of a mixture has given in the pass, by name.
            batch_size: Samples in each batch but the last; None where others may differ, too.
            last_indices: Tells those of the latest batch; asked only if there is a `batch_size`.
        """
        with self._lock:
            latest = self._latest
            tally = PassTally(
                began,
                num_warm_up=num_warm_up,
                counters=counters,
                queue=queue,
                previous_end=None if latest is None else latest.end_seconds,
                watch=self._watch,
                copy_seconds=copy_seconds,
                sources=sources,
                batch_size=batch_size,
                last_indices=last_indices,
            )
            if len(self._passes) >= MOST_KEPT:
                self._sum_up_ended()
            self._passes.append(tally)
            self._latest = tally
        return tally

    def _sum_up_ended(self) -> None:
        live = []
        for tally in self._passes:
            if tally.is_over:
                self._over = self._over or Totals()
                tally.add_to(self._over)
            else:
                live.append(tally)
        self._passes = live
