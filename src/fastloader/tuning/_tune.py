"""Measures which settings suit a dataset, and remembers them."""

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fastloader._progress_bar import Progress, progress_bar
from fastloader.errors import DestinationError, SettingsError
from fastloader.machine._machine import read_machine
from fastloader.sampling._random_states import capture_globals, drawing_from
from fastloader.settings._given import as_count, check_callable, check_seconds
from fastloader.settings._settings import LoaderSettings
from fastloader.settings._tuned_results import check_folder, result_path, save_result
from fastloader.testing._compare import num_bytes
from fastloader.tuning._candidate import SEARCHED, Candidate
from fastloader.tuning._contest import AS_FAST, Contest
from fastloader.tuning._duel import Pace
from fastloader.tuning._limits import find_limits
from fastloader.tuning._report import TuningReport
from fastloader.tuning._search import Search
from fastloader.tuning._subject import Subject
from fastloader.tuning._trial import Step

__all__ = ["measure_settings", "tune"]

_STRETCHES = 120
"""About as many as a search takes: their length follows from the budget."""

_SEARCH_SHARE = 0.75
"""Of the budget: the rest is for the last comparison."""


def tune(
    source: Any,
    *,
    step: Step | None = None,
    budget_seconds: float = 30.0,
    max_workers: int | None = None,
    memory_bytes: int | None = None,
    any_order: bool = False,
    save: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress = "auto",
    **options: Any,
) -> LoaderSettings:
    """Find the settings with which a dataset is loaded fastest, by measuring; print a table.

    Searched are, one after the other: the number of workers (0, 1, 2, 4 and so on, as long as
    each step gains 5 %), threads in place of processes, batches made ahead, transport, pinned
    memory and batches in any order. Candidates take turns with the best so far over the same
    batches, so that what else happens on the machine disturbs both, and neither gets the dearer
    samples; losers are dropped early. Settings that gain less
    than 5 % are left as they are. At the end those that came near the best are measured once more,
    round by round; of those within 3 % of the fastest the one that takes the least memory wins.

    The result is stored for ``FastLoader(..., settings="tuned")``.

    The dataset is read through copies and stays as it is, as do the generators of Python,
    NumPy and torch; large arrays are not copied. Workers are gone afterwards. Threads are only
    tried where the same samples, read by several threads at once in a process of its own, come
    out the same.

    Args:
        source: A dataset, or a loader over one: of a loader every option is kept but those that
            are searched.
        step: What the consumer does with a batch, such as a training step; then the settings
            are the best for the loop as a whole, and no more workers are found than it needs.
            It is called for hundreds of batches.
        budget_seconds: About how long the search may take.
        max_workers: The most to try; by default 32, or twice the CPUs if these are more than
            16, and one for each batch of an epoch; for an iterable dataset as many as it has
            shards, or one. Many are only tried where each doubling gains, as with slow storage.
        memory_bytes: What workers and the batches under way may take by estimate; half of what
            is available by default.
        any_order: Whether batches may come in any order where that gains 10 %.
        save: Whether to store the result.
        cache_dir: Folder to store it in; ``FASTLOADER_CACHE_DIR`` or the user's cache folder by
            default, which is where it is looked for.
        progress: Whether to show a progress bar; "auto" shows it in a terminal.
        **options: Of a `FastLoader` over the dataset, such as ``batch_size=32``. Those that
            would be searched are not where they are given.

    Returns:
        The settings.

    Raises:
        TuningError: If the dataset cannot be read.
        EmptyEpochError: If an epoch has no batches.
        SettingsError: If options cannot work.
        DestinationError: If the folder for the result cannot be written to.

    Examples:
        >>> settings = tune(my_dataset, batch_size=32, step=train_step)  # doctest: +SKIP
        >>> loader = FastLoader(my_dataset, batch_size=32, settings=settings)  # doctest: +SKIP
    """
    report = measure_settings(
        source,
        step=step,
        budget_seconds=budget_seconds,
        max_workers=max_workers,
        memory_bytes=memory_bytes,
        any_order=any_order,
        save=save,
        cache_dir=cache_dir,
        progress=progress,
        **options,
    )
    print(report)  # noqa: T201 - asked for
    return report.settings


def measure_settings(
    source: Any,
    *,
    step: Step | None = None,
    budget_seconds: float = 30.0,
    max_workers: int | None = None,
    memory_bytes: int | None = None,
    any_order: bool = False,
    save: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress = "auto",
    **options: Any,
) -> TuningReport:
    """Do what `tune` does, and return all that was measured instead of printing it.

    Takes the arguments of `tune` and raises what it raises.

    Returns:
        The settings, and a row for each candidate.

    Raises:
        SettingsError: If options cannot work.
    """
    check_callable("step", step)
    check_seconds("budget_seconds", budget_seconds)
    if budget_seconds == 0:
        raise SettingsError(f"budget_seconds must be positive, but got {budget_seconds}.")
    max_workers = _as_bound("max_workers", max_workers)
    memory_bytes = _as_bound("memory_bytes", memory_bytes)
    machine = read_machine()
    started = time.perf_counter()
    stretch_seconds = min(2.0, max(0.02, budget_seconds / _STRETCHES))
    search_pace = Pace(stretch_seconds, started + _SEARCH_SHARE * budget_seconds)
    final_pace = Pace(stretch_seconds, started + budget_seconds)
    with ExitStack() as stack:
        stack.enter_context(_everything_left_as_it_was())
        subject = Subject(source, options)
        path = None
        if save:
            folder = None if cache_dir is None else Path(cache_dir)
            path = result_path(subject.dataset, subject.batch_size, machine, folder)
            check_folder(path)  # before the time is spent
        automatic = Candidate.of(subject.automatic_settings())
        limits, notes = find_limits(
            subject,
            machine,
            max_workers=max_workers,
            memory_bytes=memory_bytes,
            any_order=any_order,
            budget_seconds=budget_seconds,
        )
        bar = stack.enter_context(progress_bar(None, progress, what="Tuning", unit=" settings"))
        contest = Contest(
            subject, step, limits, search_pace, final_pace, lambda: bar.advance(1)
        )
        stack.callback(contest.close)
        contest.begin(_plainest(automatic, subject.fixed), num_bytes)
        Search(contest, subject.fixed, limits).run(automatic)
        settings = _settings_of(subject, contest, automatic)
    report = TuningReport(
        settings=settings,
        rows=tuple(contest.rows),
        best=contest.best,
        notes=notes,
        seconds=time.perf_counter() - started,
    )
    if path is not None:
        try:
            save_result(path, report.settings, report.as_dict())
        except DestinationError as error:  # what was measured is good all the same
            warnings.warn(f"The result is not stored: {error}", stacklevel=3)
    return report


@contextmanager
def _everything_left_as_it_was() -> Iterator[None]:
    """Put the generators back, and keep warnings of settings to ourselves that are tried."""
    has_devices = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = range(torch.cuda.device_count()) if has_devices else ()
    with (
        drawing_from(capture_globals(all_libraries=True)),
        torch.random.fork_rng(devices=devices),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "This DataLoader will create")
        warnings.filterwarnings("ignore", r"num_workers=\d+ is more than the")
        yield


def _as_bound(name: str, value: Any) -> int | None:
    number = None if value == "auto" else as_count(name, value)
    if value is not None and (number is None or number < 0):
        raise SettingsError(f"{name} should be a number from 0 on or None, but got {value!r}.")
    return number


def _plainest(automatic: Candidate, fixed: Mapping[str, Any]) -> Candidate:
    """Return the candidate with the fewest workers."""
    num_workers = fixed.get("num_workers", 0)
    return replace(
        automatic,
        num_workers=num_workers,
        prefetch_factor=fixed.get("prefetch_factor", 2) if num_workers else None,
    )


def _settings_of(subject: Subject, contest: Contest, automatic: Candidate) -> LoaderSettings:
    """Return the settings of the best candidate, with what they gain as the reason."""
    best = contest.best
    settings = subject.settings_of(best.candidate)
    reason = f"tuned: {_describe_gain(contest, automatic)}"
    names = [name for name in SEARCHED if name not in subject.fixed]
    return replace(settings, reasons={**settings.reasons, **dict.fromkeys(names, reason)})


def _describe_gain(contest: Contest, automatic: Candidate) -> str:
    """Say how the best candidate compares with what a loader chooses by itself."""
    best = contest.best
    if best.candidate == automatic:
        return "nothing was faster than the automatic settings"
    rival = {row.candidate: row for row in contest.rows}.get(automatic)
    gain = None if rival is None else best.gain_over(rival)
    if gain is None:
        return "the fastest of those that were measured"
    if gain * AS_FAST < 1:
        return f"as fast as {automatic.label()}, with less memory"
    return f"{gain:.2f} times the rate of {automatic.label()}"
