"""Why a loader is slow, and what to write against it: a pure function of the evidence."""

from collections.abc import Callable
from typing import TypeAlias

from fastloader.measuring._evidence import Evidence
from fastloader.measuring._faults import find_faults
from fastloader.measuring._finding import HOLDS_BACK, LARGE_BYTES, Cause, Finding

__all__ = ["find_causes"]

ONE_AFTER_THE_OTHER = 1.35
"""So many times the rate of one worker is little more than that of one."""
CROWDED_ONE_AFTER_THE_OTHER = 1.7
ALWAYS_AT_WORK = 0.8
"""Share of the time for which workers make batches, from which on bringing these is not the matter."""
MOST_WAITING_WORKERS = 32


def find_causes(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what makes a loader slow, the dearest cause first.

    Waiting is only a fault where the loop spends more than 30 % of its time on it; how long
    something takes is never one by itself.
    """
    found = find_faults(evidence)
    wait_share = evidence.wait_share
    if wait_share is not None and wait_share > HOLDS_BACK:
        waiting = [finding for rule in _WAITING if (finding := rule(evidence)) is not None]
        found += waiting[:1]
        if not found:
            found.append(_crowd(evidence) if evidence.is_crowded else _unexplained(evidence))
    return tuple(sorted(found, key=lambda finding: -finding.cost_share))


# What makes the loop wait: the first that applies


def _busy_cpus(e: Evidence) -> Finding | None:
    wait_seconds = e.uncrowded_wait_seconds
    holds_back = wait_seconds > HOLDS_BACK * (wait_seconds + e.own_step_seconds)
    return None if not e.is_crowded or holds_back else _crowd(e)


def _crowd(e: Evidence) -> Finding:
    return _waiting(
        e,
        "busy_cpus",
        f"Others have the cores: a batch takes {e.slowdown:.1f} times as long to make as by itself, and "
        f"for {e.queued_wait_seconds / e.wait_seconds:.0%} of its waiting the loop has no core.",
        "fewer processes on this machine; the loader is fast enough for cores of its own",
    )


def _transport(e: Evidence) -> Finding | None:
    is_explained = e.expected_wait_seconds > 0.5 * e.wait_seconds
    if e.num_workers == 0 or is_explained or e.batch_bytes < LARGE_BYTES or e.is_fast:
        return None
    return _waiting(
        e,
        "transport",
        f"Workers make a batch in {e.make_seconds * 1e3:.1f} ms, but {e.batch_bytes / 1e6:.0f} MB "
        "for each have to come from them in torch's own way"
        + (f" ({'; '.join(e.fallbacks)})." if e.fallbacks else "."),
        'FastLoader with transport="shared"',
    )


def _dear_workers(e: Evidence) -> Finding | None:
    is_explained = e.expected_wait_seconds > 0.5 * e.wait_seconds
    if e.num_workers == 0 or is_explained or e.slowed_seconds > 0.5 * e.wait_seconds:
        return None
    if e.busy_workers is not None and e.busy_workers > ALWAYS_AT_WORK * e.num_workers:
        return None  # samples took longer than when they were looked at
    return _waiting(
        e,
        "too_many_workers",
        f"Making a batch takes {e.make_seconds * 1e3:.2f} ms, less than bringing it from a worker.",
        "num_workers=0" + ("" if e.batch_bytes else ", or arrays in place of Python objects"),
    )


def _sampler(e: Evidence) -> Finding | None:
    if e.order_seconds <= 0.5 * e.unqueued_wait_seconds:
        return None
    return _waiting(
        e,
        "sampler",
        f"The sampler takes {e.order_seconds * 1e3:.1f} ms for the indices of a batch, which no "
        "worker does for it.",
        "a sampler that knows its order when the epoch begins (fastloader.sampling), or "
        "shuffle=True",
    )


def _device_transform(e: Evidence) -> Finding | None:
    if e.device_transform_seconds <= 0.5 * e.unqueued_wait_seconds:
        return None
    return _waiting(
        e,
        "device_transform",
        f"device_transform takes {e.device_transform_seconds * 1e3:.1f} ms for each batch where the loop "
        "waits for it, as batches stay in host memory.",
        "batch_transform, which workers apply while the loop goes on"
        + ("" if e.num_workers else ", with num_workers=1 or more"),
    )


def _batch_transform(e: Evidence) -> Finding | None:
    if e.transform_seconds < 0.5 * e.make_seconds or not e.is_dear:
        return None
    can_grow = e.num_workers < min(e.cpus, e.num_needed)
    return _waiting(
        e,
        "batch_transform",
        f"batch_transform takes {e.transform_seconds * 1e3:.1f} ms of the "
        f"{e.make_seconds * 1e3:.1f} ms of a batch.",
        (f"num_workers={min(e.cpus, e.num_needed)}, or " if can_grow else "")
        + "device_transform, which works on the device, or a cheaper one",
    )


def _collate(e: Evidence) -> Finding | None:
    if e.collate_seconds < 0.5 * e.make_seconds or not e.is_dear:
        return None
    share = f"{e.collate_seconds / e.make_seconds:.0%} of the time of a batch"
    if e.has_own_collate:
        return _waiting(
            e,
            "collate",
            f"collate_fn takes {share}.",
            "collate_fn=None, or work on whole arrays in it",
        )
    return _waiting(
        e, "collate", f"Putting samples together takes {share}.", _against_collating(e)
    )


def _against_collating(e: Evidence) -> str:
    at_once = "a method get_batch(indices) of the dataset, which reads a whole batch at once"
    if e.batch_bytes < LARGE_BYTES:
        return f"{at_once}, or arrays where samples are lists of numbers"
    if not e.is_fast:
        return "FastLoader, which collates into memory that is used again"
    return (
        f"smaller types (uint8, converted by batch_transform or device_transform), or {at_once}"
    )


def _slow_samples(e: Evidence) -> Finding | None:
    if e.slow_share * e.samples_seconds < 0.3 * e.make_seconds or not e.is_dear:
        return None
    listed = ", ".join(map(str, e.slow_indices[:5]))
    return _waiting(
        e,
        "slow_samples",
        f"Few samples take {e.slow_share:.0%} of the time: look at index {listed}.",
        _against_slow_samples(e),
    )


def _against_slow_samples(e: Evidence) -> str:
    if e.num_needed <= e.num_workers:
        return "in_order=False lets others overtake them"
    count = min(e.cpus if e.computes else MOST_WAITING_WORKERS, e.num_needed)
    if count > e.num_workers:
        return f"num_workers={count}, with in_order=False"
    return "those samples cheaper: decoded once into a cache (cache=), cut, or left out"


def _turns(e: Evidence) -> Finding | None:
    # Where others have the cores, several threads get more of them than one, whoever's turn it is.
    most = CROWDED_ONE_AFTER_THE_OTHER if e.is_crowded else ONE_AFTER_THE_OTHER
    if not (e.uses_threads and e.computes) or not 0 < e.speedup < most or not _are_many(e):
        return None
    return _waiting(
        e,
        "contention",
        f"{e.num_workers} threads make batches {e.speedup:.1f} times as fast as one: they "
        "compute one after the other, since they share the interpreter.",
        'workers="processes"',
    )


def _contention(e: Evidence) -> Finding | None:
    # Of worker processes that compute, one cannot tell it from a step that uses the CPUs as well.
    if e.computes or not 0.5 < e.speedup < ONE_AFTER_THE_OTHER or not _are_many(e):
        return None
    return _waiting(
        e,
        "contention",
        f"Samples wait for {1 - e.computing_share:.0%} of their time, and {e.num_workers} workers "
        f"make batches {e.speedup:.1f} times as fast as one: they wait for each other (a lock, a "
        "file or connection that they share), or for storage that serves one at a time.",
        "num_workers=1 is as fast; to gain, a handle of its own for each worker (opened at the "
        "first read, not in __init__), no lock around reads, or a cache",
    )


def _are_many(e: Evidence) -> bool:
    """Return whether more workers are at it than make batches at once."""
    # Automatic workers that are only starting are not to blame: they are not busy yet.
    at_once = e.num_workers if e.busy_workers is None else e.busy_workers
    return e.num_workers > 1 and at_once > 1.5 * e.speedup


def _storage(e: Evidence) -> Finding | None:
    if e.computes or e.num_needed <= e.num_workers:
        return None
    count = min(MOST_WAITING_WORKERS, e.num_needed)
    return _waiting(
        e,
        "storage",
        f"Samples wait for {1 - e.computing_share:.0%} of their time, for files or a network, "
        f"no more than {max(1, e.num_workers)} of them at once.",
        f'num_workers={count}, workers="threads" if the dataset allows it, or a cache',
    )


def _capacity(e: Evidence) -> Finding | None:
    if e.num_needed <= e.num_workers:
        return None
    if e.num_workers < min(e.cpus, e.num_needed):
        return _waiting(
            e,
            "too_few_workers",
            f"A batch takes {e.make_seconds * 1e3:.1f} ms to make and "
            f"{e.own_step_seconds * 1e3:.1f} ms "
            f"to train on, with {e.num_workers} workers.",
            f"num_workers={min(e.cpus, e.num_needed)}",
        )
    return _waiting(
        e,
        "sample_cost",
        f"A batch takes {e.make_seconds * 1e3:.1f} ms of CPU time to make, more than "
        f"{e.cpus} CPUs can give in time.",
        "cheaper samples: decode once into a cache (cache=), transform whole batches "
        "(batch_transform) or on the device (device_transform)",
    )


def _unexplained(e: Evidence) -> Finding:
    return _waiting(
        e,
        "unexplained",
        "The making of batches does not explain the waiting.",
        "compare settings with fastloader.benchmark",
    )


def _waiting(e: Evidence, cause: Cause, text: str, remedy: str) -> Finding:
    return Finding(cause, e.wait_share or 0.0, text, remedy)


_Rule: TypeAlias = Callable[[Evidence], Finding | None]
_WAITING: tuple[_Rule, ...] = (
    _busy_cpus,
    _sampler,
    _device_transform,
    _transport,
    _dear_workers,  # before what looks at the parts of a batch, which is not what is waited for
    _batch_transform,
    _slow_samples,
    _collate,
    _turns,
    _contention,
    _storage,
    _capacity,
)
