"""One pass over a mixture that goes round loaders, timed as a whole and by source."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, TypeAlias

from fastloader.stats import LoaderStats, SourceCount, count_samples

__all__ = ["Named", "timed_pass"]

Named: TypeAlias = str | tuple[str, ...]
"""The source of a batch, or those of its samples."""


class _SourceCounter:
    def __init__(self, names: Sequence[str]) -> None:
        self._counts = dict.fromkeys(names, (0, 0, 0.0))

    def add(self, name: str, num_batches: int, num_samples: int, waited_seconds: float) -> None:
        batches, samples, waited = self._counts[name]
        self._counts[name] = (
            batches + num_batches,
            samples + num_samples,
            waited + waited_seconds,
        )

    def counts(self) -> dict[str, SourceCount]:
        return {name: SourceCount(*count) for name, count in list(self._counts.items())}


def timed_pass(
    batches: Iterator[tuple[Named, Any]],
    stats: LoaderStats,
    names: Sequence[str],
) -> Iterator[tuple[Named, Any]]:
    """Yield the batches of a pass, and note what they took.

    Args:
        batches: Each with the name of its source, or with those of its samples.
        stats: Takes the notes.
        names: Of the sources.
    """
    sources = _SourceCounter(names)
    tally = stats.begin_pass(perf_counter(), sources=sources.counts)
    try:
        while True:
            started = perf_counter()
            try:
                name, batch = next(batches)
            except StopIteration:
                tally.note_end(started)
                return
            if isinstance(name, str):
                num_samples = count_samples(batch, 1)
                sources.add(name, 1, num_samples, perf_counter() - started)
            else:
                num_samples = len(name)
                for one in name:
                    sources.add(one, 0, 1, 0.0)
            tally.note(started, num_samples, batch)
            yield name, batch
    finally:
        tally.close()
