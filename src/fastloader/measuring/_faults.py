"""What is a fault of a loader however long the loop waits for it."""

from fastloader.measuring._evidence import Evidence
from fastloader.measuring._finding import HOLDS_BACK, LARGE_BYTES, Finding

__all__ = ["find_faults"]


def find_faults(evidence: Evidence) -> list[Finding]:
    """Return those that the evidence shows."""
    return [finding for rule in _RULES if (finding := rule(evidence)) is not None]


def _oversubscription(e: Evidence) -> Finding | None:
    wanted = e.num_workers * e.threads_per_worker
    if e.num_workers == 0 or e.threads_per_worker < 1.5 or wanted <= 1.5 * e.cpus:
        return None
    one_thread = (
        "no more than one thread where the dataset sets their number (torch.set_num_threads(1))"
        if e.is_fast
        else "FastLoader, whose workers compute on one thread each"
    )
    # Not so few workers that their threads find room: samples gain less by threads than by workers.
    fewer = f", and num_workers={e.cpus}" if e.num_workers > e.cpus else ""
    return Finding(
        "cpu_oversubscription",
        e.wait_share or 0.0,
        f"{e.num_workers} workers compute on {e.threads_per_worker:.1f} threads each, and there "
        f"are {e.cpus} CPUs.",
        one_thread + fewer,
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


_RULES = (
    _oversubscription,
    _too_many_workers,
    _epoch_gap,
    _pinning,
    _copy,
    _taken_turns,
)
