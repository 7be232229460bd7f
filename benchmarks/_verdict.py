"""Turn the runs of all configurations into a report: medians, ratios, shares of the limit."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from _homes import Configuration
from _measurement import BenchmarkError, Measurement, Summary

__all__ = ["FIRST", "PEAK", "make_report", "ratios_to_fastest", "why_missing"]

FIRST = "the first of each table"
"""A baseline: whatever was added first to a table."""

PEAK = "peak_memory_bytes"
"""A quantity to compare by, which is watched in one run, and then is that of all."""

_IMPOSSIBLE_SHARE = 2.0
"""Of the quickest run of a limit. Below it noise is to blame, above it a clock or a count."""


def make_report(
    configurations: Sequence[Configuration],
    measurements: Mapping[str, Sequence[Measurement]],
    peaks: Mapping[str, int],
    reasons: Mapping[str, str],
    *,
    baseline: str | None,
    compared: str,
    is_chosen_apart: bool = False,
    is_trusted: bool,
) -> dict[str, Any]:
    """Return the results of all configurations, ready for JSON.

    Args:
        configurations: In the order of the report.
        measurements: Of each that ran, round by round.
        peaks: Most memory of each that ran, in bytes.
        reasons: Why others did not run.
        baseline: Group or name that the others of a table are compared with, or `FIRST`.
        compared: Quantity that is compared: a rate if it ends in ``_per_second``.
        is_chosen_apart: Choose the baseline of each round by the other rounds.
        is_trusted: Refuse what is faster than its limit; off for runs too short to tell.

    Raises:
        BenchmarkError: If a configuration was faster than what limits it.
    """
    results: dict[str, Any] = {}
    for one in configurations:
        results[one.name] = {"group": one.group, "table": one.table, "is_limit": one.is_limit}
        if one.name in reasons:
            results[one.name]["cannot_run"] = reasons[one.name]
            if one.may_be_given_up and measurements.get(one.name):
                results[one.name]["is_given_up"] = True
            continue
        runs = [measurement.quantities() for measurement in measurements[one.name]]
        if compared == PEAK:
            runs = [{**run, PEAK: float(peaks[one.name])} for run in runs]
        results[one.name] |= {
            "runs": runs,
            "peak_memory_bytes": peaks[one.name],
            "summary": {key: asdict(Summary.of([run[key] for run in runs])) for key in runs[0]},
        }
    baselines: dict[str, str] = {}
    tables = dict.fromkeys(one.table for one in configurations)
    for table in tables:
        members = {
            name: result
            for name, result in results.items()
            if result["table"] == table and "runs" in result
        }
        rivals = _rivals(members, baseline)
        if rivals:
            baselines[table] = _fastest(rivals, compared)
        for name, result in members.items():
            if rivals and is_chosen_apart:
                ratios = ratios_to_fastest(result, rivals, compared)
                result["times_baseline"] = asdict(Summary.of(ratios))
            elif rivals:
                ratios = _ratios(result["runs"], rivals[baselines[table]]["runs"], compared)
                result["times_baseline"] = asdict(Summary.of(ratios))
            _share_limit(name, result, members, compared, is_trusted=is_trusted)
    named = baselines.get("") if len(tables) == 1 else baseline if baselines else None
    return {
        "baseline": named, "baselines": baselines, "compared": compared, "results": results,
    }  # fmt: skip


def why_missing(result: Mapping[str, Any]) -> str:
    """Say why a configuration has no numbers in a report.

    Args:
        result: Of the configuration, from a report.
    """
    return (
        f"{'given up' if result.get('is_given_up') else 'cannot run'}: {result['cannot_run']}"
    )


def _rivals(members: Mapping[str, Any], baseline: str | None) -> dict[str, Any]:
    """Return the results of which the fastest is the baseline."""
    if baseline == FIRST:
        return dict(list(members.items())[:1])
    return {
        name: result for name, result in members.items() if baseline in {result["group"], name}
    }


def _fastest(rivals: Mapping[str, Any], compared: str, without: int | None = None) -> str:
    """Return the name of the one with the fastest median.

    Args:
        rivals: Results by name.
        compared: Quantity by which they are.
        without: Number of a round that does not count.
    """
    sign = 1 if compared.endswith("_per_second") else -1

    def speed(name: str) -> float:
        values = [run[compared] for run in rivals[name]["runs"]]
        return sign * float(statistics.median(v for n, v in enumerate(values) if n != without))

    return max(rivals, key=speed)


def ratios_to_fastest(
    result: Mapping[str, Any], rivals: Mapping[str, Any], compared: str
) -> list[float]:
    """Compare each run with that of the rival which is the fastest in all other rounds.

    The quickest of many in a round is partly the luckiest: chosen by the runs that it is compared
    in, it looks better than it is.

    Args:
        result: What is compared; one or more runs.
        rivals: Results by name, of as many runs.
        compared: Quantity by which they are.

    Returns:
        A ratio for each round; over 1 where `result` is the better one.
    """
    num_runs = len(result["runs"])
    chosen = [_fastest(rivals, compared, n if num_runs > 1 else None) for n in range(num_runs)]
    others = [rivals[name]["runs"][n] for n, name in enumerate(chosen)]
    return _ratios(result["runs"], others, compared)


def _ratios(
    runs: Sequence[Mapping[str, float]], others: Sequence[Mapping[str, float]], compared: str
) -> list[float]:
    # Round by round, so that what slows the machine for a while slows both.
    pairs = [(run[compared], other[compared]) for run, other in zip(runs, others, strict=True)]
    if compared.endswith("_per_second"):
        return [ours / theirs for ours, theirs in pairs]
    return [theirs / ours for ours, theirs in pairs]


def _share_limit(
    name: str,
    result: dict[str, Any],
    members: Mapping[str, Any],
    compared: str,
    *,
    is_trusted: bool,
) -> None:
    """Add which part of the limit was reached; of several limits the lowest is the one.

    Raises:
        BenchmarkError: If it was more than can be.
    """
    # Runs of the limit may be of another number of samples.
    compared = "samples_per_second" if compared == "wall_seconds" else compared
    limits = [
        other
        for other in members.values()
        if other["is_limit"] and compared in other["summary"] and compared in result["summary"]
    ]
    if not limits or result["is_limit"]:
        return
    is_rate = compared.endswith("_per_second")
    lowest = min if is_rate else max
    limit = lowest(limits, key=lambda one: float(one["summary"][compared]["median"]))
    shares = _ratios(result["runs"], limit["runs"], compared)
    result["share_of_limit"] = asdict(Summary.of(shares))
    of_limit = [run[compared] for run in limit["runs"]]
    median = result["summary"][compared]["median"]
    share = median / max(of_limit) if is_rate else min(of_limit) / median
    if is_trusted and share > _IMPOSSIBLE_SHARE:
        raise BenchmarkError(
            f"{name}: {compared} is {share:.1f} times as good as the best run of its limit; "
            "either that is no limit, or a count or a clock is wrong."
        )
