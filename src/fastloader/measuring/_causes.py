"""Why a loader is slow, and what to write against it: a pure function of the evidence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from fastloader.measuring._evidence import Evidence

__all__ = ["Cause", "Finding", "find_causes"]

Cause: TypeAlias = Literal[
    "too_few_workers",
    "too_many_workers",
    "sample_cost",
    "slow_samples",
    "collate",
    "batch_transform",
    "device_transform",
    "sampler",
    "storage",
    "contention",
    "transport",
    "pinning",
    "copy",
    "epoch_gap",
    "cpu_oversubscription",
    "busy_cpus",
    "unexplained",
]

HOLDS_BACK = 0.3
"""Share of the loop's time spent waiting from which on loading is reported as slow."""
LARGE_BYTES = 1 << 20
ONE_AFTER_THE_OTHER = 1.35
"""So many times the rate of one worker is little more than that of one."""
CROWDED_ONE_AFTER_THE_OTHER = 1.7
ALWAYS_AT_WORK = 0.8
"""Share of the time for which workers make batches, from which on bringing these is not the matter."""
MOST_WAITING_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of slow loading."""

    cause: Cause
    cost_share: float
    """Of the loop's time that it takes, from 0 to 1, as far as that can be told."""
    text: str
    """What was seen."""
    remedy: str
    """The argument to write, or what else to do."""


def find_causes(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what makes a loader slow, the dearest cause first.

    Waiting is only a fault where the loop spends more than 30 % of its time on it; how long
    something takes is never one by itself.
    """
    found = [finding for rule in _ALWAYS if (finding := rule(evidence)) is not None]
    wait_share = evidence.wait_share
    if wait_share is not None and wait_share > HOLDS_BACK:
        waiting = [finding for rule in _WAITING if (finding := rule(evidence)) is not None]
        found += waiting[:1]
        if not found:
            found.append(_crowd(evidence) if evidence.is_crowded else _unexplained(evidence))
    return tuple(sorted(found, key=lambda finding: -finding.cost_share))


# What is a fault however long the loop waits


def _oversubscription(e: Evidence) -> Finding | None:
    wanted = e.num_workers * e.threads_per_worker
    if e.num_workers == 0 or e.threads_per_worker < 1.5 or wanted <= 1.5 * e.cpus:
        return None
    fitting = max(1, int(e.cpus / e.threads_per_worker))
    return Finding(
        "cpu_oversubscription",
        e.wait_share or 0.0,
        f"{e.num_workers} workers compute on {e.threads_per_worker:.1f} threads each, and there "
        f"are {e.cpus} CPUs.",
        f"num_workers={fitting}, or "
        + (
            "no more than one thread where the dataset sets their number (torch.set_num_threads(1))"
            if e.is_fast
            else "FastLoader, whose workers compute on one thread each"
        ),
    )


def _too_many_workers(e: Evidence) -> Finding | None:
    if e.num_workers <= 2 * e.cpus or not e.computes or e.threads_per_worker >= 1.5:
        return None
    return Finding(
        "too_many_workers",
        0.0,
        f"{e.num_workers} workers compute on {e.cpus} CPUs: they slow each other and the "
        "training.",
        f"num_workers={min(e.cpus, e.num_needed)}",
    )


def _epoch_gap(e: Evidence) -> Finding | None:
    gap = e.epoch_gap_seconds
    if gap is None or not e.has_step or gap < 5 * (e.wait_seconds + e.step_seconds):
        return None
    share = gap / (gap + e.epoch_seconds)
    if share < HOLDS_BACK:
        return None
    restarts = e.num_workers > 0 and not e.persistent_workers and not e.uses_threads
    return Finding(
        "epoch_gap",
        share,
        f"Between two epochs {gap * 1e3:.0f} ms pass, as against {e.epoch_seconds * 1e3:.0f} ms "
        "in one.",
        "persistent_workers=True"
        if restarts
        else "longer epochs: samples_per_epoch, or batches_per_epoch",
    )


def _pinning(e: Evidence) -> Finding | None:
    is_cuda = e.accelerator is not None and e.accelerator.startswith("cuda")
    if not is_cuda or e.pins_memory or e.batch_bytes < LARGE_BYTES or e.wait_share is None:
        return None
    return Finding(
        "pinning",
        0.0,
        f"Batches of {e.batch_bytes / 1e6:.0f} MB are copied to the device from ordinary memory, "
        "at a fraction of the speed and while the loop stands still.",
        'device="cuda", or pin_memory=True',
    )


def _copy(e: Evidence) -> Finding | None:
    if e.copy_seconds is None or e.copy_seconds < e.step_seconds:
        return None
    return Finding(
        "copy",
        e.wait_share or 0.0,
        f"Copying a batch to the device takes {e.copy_seconds * 1e3:.1f} ms, longer than the step.",
        'smaller types (uint8, converted by device_transform), or resident="device"',
    )


def _taken_turns(e: Evidence) -> Finding | None:
    # Where the loop waits this is found below, from the rate; where it does not, it may be as slow
    # all the same: threads that compute make the step wait for the interpreter.
    if e.wait_share is None or e.wait_share > HOLDS_BACK or not (e.uses_threads and e.computes):
        return None
    loop_seconds = e.wait_seconds + e.step_seconds
    at_once = max(1.0, (e.num_workers + 1) / e.cpus)  # on a core, the loop among them
    spent = (e.busy_workers or 0.0) * loop_seconds
    if spent < 1.5 * at_once * e.slowed_seconds or e.slowed_seconds < 0.4 * loop_seconds:
        return None
    return Finding(
        "contention",
        min(1.0, e.slowed_seconds / loop_seconds),
        f"Threads are at work on a batch for {spent * 1e3:.1f} ms, and one alone for "
        f"{e.slowed_seconds * 1e3:.1f}: they compute one after the other, since they share the "
        "interpreter, and the training loop is one of them.",
        'workers="processes"',
    )


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
        return f"samples that are arrays, not lists of numbers, or {at_once}"
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
_ALWAYS: tuple[_Rule, ...] = (
    _oversubscription,
    _too_many_workers,
    _epoch_gap,
    _pinning,
    _copy,
    _taken_turns,
)
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
