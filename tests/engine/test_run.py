"""Batches through worker processes: complete, in order, unchanged, and nothing left behind."""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from asyncio import CancelledError
from collections import deque
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from threadpoolctl import threadpool_info
from torch.utils.data import Dataset, default_collate, get_worker_info

from fastloader.datasets import Augment
from fastloader.engine import (
    BatchMaker,
    FetchPlan,
    PoolOptions,
    PoolRun,
    RunCounters,
    RunOptions,
    StreamPoint,
    WorkerPool,
    _member,
    unpack_point,
)
from fastloader.engine._lookahead import Lookahead
from fastloader.engine._whereabouts import whereabouts
from fastloader.errors import UnpicklableError, WorkerDiedError, WorkerTimeoutError
from fastloader.machine._ranks import Ranks, read_ranks
from fastloader.randomness._seeding import DrawScope
from fastloader.sampling._drawn import DrawnBatches
from fastloader.shm._past_cache import knows_past_cache
from fastloader.tensors._buffers import BufferPool
from tests.engine.datasets import (
    Deadly,
    DeadlyIterator,
    DeadlyStream,
    Draws,
    Faulty,
    Growing,
    Hoarding,
    Images,
    Live,
    NoState,
    Slow,
    Stream,
    Survived,
    Unsendable,
)

ALONE = Ranks(0, 1, "no launcher")


class RanksThere:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        ranks = read_ranks()
        return ranks.rank, ranks.world_size


class WithLock:
    def __init__(self):
        self.fn = threading.Lock()

    def __call__(self, image):
        return image


pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("no_leaks")]


@pytest.fixture
def open_pool():
    pools = []

    def make(
        dataset,
        *,
        method="fork",
        num_workers=2,
        num_first=None,
        worker_init_fn=None,
        ranks=ALONE,
        are_alike=False,
        pin=None,
        **plan,
    ):
        values = {
            "is_iterable": isinstance(dataset, Stream),
            "auto_collation": True,
            "collate_fn": default_collate,
            "drop_last": False,
            "batched": None,
            "on_error": "raise",
        }
        options = PoolOptions(
            multiprocessing.get_context(method),
            num_workers,
            worker_init_fn,
            ranks,
            base_seed=3,
            pin=pin,
            num_first=num_first,
            are_alike=are_alike,
        )
        pool = WorkerPool(FetchPlan(dataset=dataset, **{**values, **plan}), options)
        pools.append(pool)
        return pool

    yield make
    while pools:
        pools.pop().close()
    gc.collect()


def start(pool, order, **options):
    values = {
        "epoch": 0,
        "base_seed": 3,
        "in_order": True,
        "prefetch_factor": 2,
        "may_deepen": False,
        "is_iterable": False,
        "drop_last": False,
        "timeout_seconds": 0,
        "stall_seconds": 60.0,
        "restarts_workers": False,
        "budget_bytes": 1 << 40,
        "num_held": 2,
        "live_state": lambda: None,
        "dataset_epoch": None,
        "stream_points": {},
        "next_worker": 0,
        "skipped": [],
        "counters": RunCounters(),
        "maker": None,
        "may_grow": lambda: True,
        "forecast": lambda: None,
        "deliveries": deque(),
    }
    return PoolRun(pool, DrawnBatches(iter(order)), RunOptions(**{**values, **options}))


def batches_of(run):
    batches = []
    while True:
        try:
            batches.append(next(run))
        except StopIteration:
            return batches


def in_fours(length):
    return [list(range(start, min(start + 4, length))) for start in range(0, length, 4)]


def labels_of(batches):
    return [index for _, labels in batches for index in labels.tolist()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_count_as_part_of_their_rank(open_pool, method):
    # A process group that was made without a launcher's variables leaves nothing to inherit.
    ranks = Ranks(3, 5, "process group")
    pool = open_pool(RanksThere(), method=method, num_workers=1, ranks=ranks)

    [[ranks, world_sizes]] = batches_of(start(pool, in_fours(4)))

    assert ranks.tolist() == [3] * 4
    assert world_sizes.tolist() == [5] * 4


class SlowInOne(Dataset):
    """Samples that tell who has read them, of workers one of which is slow."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        worker = get_worker_info().id
        time.sleep(0.05 if worker == 0 else 0)
        return index, worker


@pytest.mark.parametrize(("are_alike", "gets_its_turn"), [(False, True), (True, False)])
def test_a_slow_worker_holds_up_others_only_where_it_matters_who_makes_a_batch(
    open_pool, are_alike, gets_its_turn
):
    pool = open_pool(SlowInOne(), are_alike=are_alike)

    batches = batches_of(start(pool, in_fours(48)))

    makers = [workers[0].item() for _, workers in batches]
    assert [index for indices, _ in batches for index in indices.tolist()] == list(range(48))
    assert (makers == [0, 1] * 6) is gets_its_turn
    assert (makers.count(0) == 6) is gets_its_turn


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_all_batches_come_in_order_whatever_the_start_method(open_pool, method):
    pool = open_pool(Images(30), method=method)

    batches = batches_of(start(pool, in_fours(30)))

    assert labels_of(batches) == list(range(30))
    assert all(
        bool((images[i] == labels[i]).all())
        for images, labels in batches
        for i in range(len(labels))
    )


def test_kept_batches_are_never_overwritten(open_pool):
    pool = open_pool(Images(160, shape=(3, 64, 64)))

    kept = [b for _ in range(3) for b in batches_of(start(pool, in_fours(160)))]

    assert labels_of(kept) == 3 * list(range(160))
    for images, labels in kept:
        assert torch.equal(images[:, 0, 0, 0], labels.float())
        assert torch.equal(images[:, -1, -1, -1], labels.float())


def test_shares_go_on_though_workers_have_started_before_the_run_begins(open_pool):
    pool = open_pool(Stream(20))
    while len(pool._selector.select(5)) < 2:
        pass  # both have said so, and nobody has listened
    points = {
        worker: StreamPoint(number=worker, num_samples=4, is_ended=False) for worker in range(2)
    }

    batches = batches_of(
        start(pool, [[0, 1, 2, 3]] * 9, is_iterable=True, stream_points=points)
    )

    assert sorted(value for batch in batches for value in batch.tolist()) == list(range(8, 20))


def test_slots_are_used_again_when_batches_are_dropped(open_pool):
    pool = open_pool(Images(400, shape=(3, 64, 64)))

    for _ in range(3):
        batches_of_run = start(pool, in_fours(400))
        for _ in range(100):
            next(batches_of_run)

    assert pool.arena.num_slots <= 8


def test_batches_that_grow_get_larger_slots(open_pool):
    pool = open_pool(Growing(40), num_workers=2)

    sizes = [b.numel() for b in batches_of(start(pool, [[i] for i in range(40)]))]

    assert sizes == [1000 * (i + 1) ** 2 for i in range(40)]


@pytest.mark.parametrize("is_locked", [False, True], ids=["plain", "locked"])
def test_batches_that_nobody_has_looked_at_count_as_made(open_pool, is_locked):
    def pin(_address, _size_bytes):
        return lambda: None

    pool = open_pool(Images(40, shape=(3, 64, 64)), pin=pin if is_locked else None)
    run = start(pool, in_fours(40))

    next(run)
    deadline = time.monotonic() + 5
    while run.queue().num_ready < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    state = run.queue()

    assert (state.num_asked, state.num_ready) == (4, 4)
    assert state.num_pinned == 4 * is_locked
    assert len(batches_of(run)) == 9
    assert run.queue().num_ready == 0


def test_a_broken_run_gives_its_slots_back(open_pool):
    pool = open_pool(Images(400, shape=(3, 64, 64)))

    num_broken = 60

    for _ in range(num_broken):
        run = start(pool, in_fours(400))
        next(run)
        run.close()
    run = start(pool, in_fours(400))
    labels = [next(run)[1].tolist() for _ in range(100)]

    assert [label for batch in labels for label in batch] == list(range(400))
    # Workers that are late with what was cancelled hold some, but not one for each run.
    assert pool.arena.num_slots < num_broken


def test_draws_do_not_depend_on_the_number_of_workers(open_pool):
    draws = [
        torch.cat(batches_of(start(open_pool(Draws(), num_workers=n), in_fours(32))))
        for n in (1, 2, 3)
    ]

    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert len(draws[0].flatten().unique()) == draws[0].numel()


def test_draws_differ_between_epochs(open_pool):
    pool = open_pool(Draws())

    first, second = (
        torch.cat(batches_of(start(pool, in_fours(8), epoch=epoch))) for epoch in (0, 1)
    )

    assert not torch.isin(first, second).any()


def seed_with_12345(worker_id):
    torch.manual_seed(12345)


def test_seeds_of_a_worker_init_fn_are_kept(open_pool):
    pool = open_pool(Draws(), num_workers=1, worker_init_fn=seed_with_12345)

    batch = next(start(pool, in_fours(4)))
    torch.manual_seed(12345)

    assert torch.allclose(batch[:, 0].double(), torch.rand(4).double())


def test_an_error_keeps_type_and_says_where(open_pool):
    run = start(open_pool(Faulty(16, faulty=[5])), in_fours(16))

    next(run)
    with pytest.raises(KeyError, match="label") as caught:
        next(run)

    notes = " ".join(caught.value.__notes__)
    assert "index 5" in notes
    assert "batch 1" in notes
    assert "worker 1" in notes


def test_the_run_goes_on_after_an_error(open_pool):
    run = start(open_pool(Faulty(16, faulty=[5])), in_fours(16))
    labels = []
    for _ in range(5):
        try:
            labels += next(run)[1].tolist()
        except KeyError:
            continue
        except StopIteration:
            break

    assert labels == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]


def test_skipped_samples_are_listed(open_pool):
    skipped = []
    pool = open_pool(Faulty(16, faulty=[5, 8, 9, 10, 11]), on_error="skip")

    labels = labels_of(batches_of(start(pool, in_fours(16), skipped=skipped)))

    assert labels == [0, 1, 2, 3, 4, 6, 7, 12, 13, 14, 15]
    assert {skip.index for skip in skipped} == {5, 8, 9, 10, 11}
    assert "KeyError" in skipped[0].error


def test_a_batch_that_cannot_be_sent_is_an_error_at_once(open_pool):
    pool = open_pool(Unsendable(), collate_fn=list)

    with pytest.raises(UnpicklableError, match="cannot be sent"):
        next(start(pool, in_fours(8)))


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_cannot_be_pickled_is_named_before_a_worker_starts(open_pool, method, monkeypatch):
    started = []
    context = multiprocessing.get_context(method)
    monkeypatch.setattr(type(context).Process, "start", started.append)
    dataset = Augment(Images(8), [abs, abs, WithLock()])

    # A pool that is half made must also vanish without a word.
    with pytest.raises(UnpicklableError, match=r"but dataset\.transforms\[2\]\.fn \(a _thread"):
        open_pool(dataset, method=method)

    gc.collect()
    assert started == []


def test_batches_that_cannot_be_sent_can_be_made_here(open_pool):
    dataset = Unsendable()
    plan = FetchPlan(dataset, False, True, list, False, None)
    scope = DrawScope(seed=3, epoch=0)
    maker = BatchMaker(plan, BufferPool(), read_scope=lambda: scope, skipped=[])
    run = start(open_pool(dataset, collate_fn=list), in_fours(8), maker=maker)

    made = batches_of(run)

    assert [sample() for batch in made for sample in batch] == list(range(8))
    assert run.counters.num_made_here == 2


def test_a_batch_made_here_may_have_all_its_samples_skipped(open_pool):
    plan = FetchPlan(Unsendable(), False, True, list, False, None, on_error="skip")
    unreadable = FetchPlan(
        Faulty(8, faulty=[0, 1, 2, 3]), False, True, list, False, None, on_error="skip"
    )
    scope = DrawScope(seed=3, epoch=0)
    maker = BatchMaker(unreadable, BufferPool(), read_scope=lambda: scope, skipped=[])
    run = start(open_pool(plan.dataset, collate_fn=list), in_fours(8), maker=maker)

    made = batches_of(run)

    assert [label for batch in made for _, label in batch] == [4, 5, 6, 7]


def test_a_killed_worker_is_reported_with_signal_and_samples(open_pool):
    run = start(open_pool(Deadly(deadly_index=9)), in_fours(32))

    with pytest.raises(
        WorkerDiedError, match=r"DataLoader worker \(pid \d+\) is killed"
    ) as caught:
        batches_of(run)

    assert "8, 9, 10, 11" in str(caught.value)
    assert "memory" in str(caught.value)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_killed_worker_is_reported_while_a_process_that_it_has_started_lives(
    open_pool, tmp_path, method
):
    pid_path = tmp_path / "pid"
    run = start(open_pool(Survived(pid_path), method=method, num_workers=1), in_fours(32))

    with pytest.raises(WorkerDiedError, match=r"is killed by signal: Killed"):
        batches_of(run)

    survivor = psutil.Process(int(pid_path.read_text()))
    assert survivor.is_running()
    survivor.kill()


def test_a_killed_worker_is_reported_where_nobody_can_tell_how_it_ended(open_pool):
    run = start(open_pool(Deadly(deadly_index=9)), in_fours(32))

    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(WorkerDiedError, match="How is not known") as caught:
            batches_of(run)
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert "8, 9, 10, 11" in str(caught.value)
    assert "memory" in str(caught.value)


def test_a_killed_worker_is_started_anew_and_nothing_is_lost(open_pool, tmp_path):
    pool = open_pool(Deadly(64, deadly_index=9, once_path=tmp_path / "killed"))

    batches = batches_of(start(pool, in_fours(64), restarts_workers=True))

    assert labels_of(batches) == list(range(64))


@pytest.mark.parametrize("kind", [DeadlyStream, DeadlyIterator])
@pytest.mark.parametrize(
    "deadly",
    [{0}, {9}, {8, 9, 10, 11}, {20}, {20, 21}],
    ids=["first", "middle", "in a row", "end", "both ends"],
)
def test_a_worker_that_is_started_anew_goes_on_with_its_share_of_a_stream(
    open_pool, tmp_path, kind, deadly
):
    pool = open_pool(kind(deadly, tmp_path))
    endless = iter(lambda: [None] * 4, 0)

    run = start(pool, endless, is_iterable=True, restarts_workers=True)

    assert sorted(torch.cat(batches_of(run)).tolist()) == list(range(20))
    assert {int(path.name) for path in tmp_path.iterdir()} == deadly


def test_a_stream_that_is_gone_on_with_is_gone_on_with_by_a_worker_that_is_started_anew(
    open_pool, tmp_path
):
    pool = open_pool(DeadlyStream({9}, tmp_path))
    points = {
        worker: StreamPoint(number=worker, num_samples=4, is_ended=False) for worker in range(2)
    }

    run = start(
        pool,
        iter(lambda: [None] * 4, 0),
        is_iterable=True,
        restarts_workers=True,
        stream_points=points,
    )

    assert sorted(torch.cat(batches_of(run)).tolist()) == list(range(8, 20))


def test_an_error_at_the_end_of_a_stream_arrives(open_pool, tmp_path):
    pool = open_pool(NoState(set(), tmp_path), num_workers=1)

    with pytest.raises(LookupError, match="no place"):
        batches_of(start(pool, iter(lambda: [None] * 4, 0), is_iterable=True))


def test_a_share_that_is_at_its_end_is_not_asked_where_it_is(open_pool, tmp_path):
    pool = open_pool(DeadlyIterator(set(), tmp_path), num_workers=1)
    end = StreamPoint(number=0, num_samples=20, is_ended=True, iterator=20)
    options = {"is_iterable": True, "stream_points": {0: end}, "deliveries": deque()}

    batches = batches_of(start(pool, iter(lambda: [None] * 4, 0), **options))

    assert batches == []
    told = [unpack_point(one.stream_point) for one in options["deliveries"]]
    assert {point._replace(number=0) for point in told} == {end}


def test_a_place_in_a_stream_is_of_no_other_run_than_its_own(open_pool):
    pool = open_pool(Stream(20), num_workers=1)
    point = StreamPoint(number=0, num_samples=4, is_ended=False)
    start(pool, iter([]), is_iterable=True, stream_points={0: point}).close()

    run = start(pool, iter(lambda: [None] * 4, 0), is_iterable=True)

    assert torch.cat(batches_of(run)).tolist() == list(range(20))


def test_a_worker_that_cannot_be_started_anew_takes_nothing_from_other_pools(
    open_pool, monkeypatch
):
    def fail(number):
        raise BlockingIOError(f"no process for {number}")

    pool = open_pool(Deadly(64, deadly_index=9))
    monkeypatch.setattr(pool, "_start", fail)
    with pytest.raises(BlockingIOError):
        batches_of(start(pool, in_fours(64), restarts_workers=True))
    # Some of their descriptors have the numbers that are free now.
    others = [open_pool(Images(64)) for _ in range(3)]

    pool.close()

    for member in (member for other in others for member in other._members):
        for descriptor in (*member.descriptors, member.sentinel):
            os.fstat(descriptor)


def test_a_worker_without_descriptors_tells_so_and_what_to_do(open_pool):
    run = start(open_pool(Hoarding(64), num_workers=1), in_fours(64))

    with pytest.raises(OSError, match="Too many open files") as caught:
        batches_of(run)

    assert any("limit of open files is 40" in note for note in caught.value.__notes__)


def test_a_worker_that_cannot_start_is_not_started_anew(open_pool):
    pool = open_pool(Images(8), num_workers=1, worker_init_fn=lambda worker: os._exit(3))

    with pytest.raises(WorkerDiedError, match=r"code 3\..* had not started") as caught:
        batches_of(start(pool, in_fours(8), restarts_workers=True))

    assert "would not start either" in str(caught.value)


def test_a_worker_that_ends_at_its_start_is_not_said_to_read_samples(open_pool):
    pool = open_pool(Images(8), num_workers=1, worker_init_fn=lambda worker: sys.exit(3))

    with pytest.raises(WorkerDiedError, match=r"code 3\..* in worker_init_fn") as caught:
        batches_of(start(pool, in_fours(8)))

    assert "samples 0" not in str(caught.value)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, CancelledError])
def test_what_is_no_exception_is_raised_from_the_start_of_a_worker_too(kind, open_pool):
    def fail(_worker):
        raise kind

    pool = open_pool(Images(8), num_workers=1, worker_init_fn=fail)

    with pytest.raises(kind) as caught:
        batches_of(start(pool, in_fours(8)))

    assert "did not start" in caught.value.__notes__[-1]


def test_a_sample_that_ends_every_worker_is_given_up(open_pool):
    run = start(open_pool(Deadly(deadly_index=9)), in_fours(32), restarts_workers=True)

    with pytest.raises(WorkerDiedError, match=r"8, 9, 10, 11.* would not help"):
        batches_of(run)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, CancelledError])
def test_an_error_that_is_no_exception_arrives_too(kind, open_pool):
    run = start(open_pool(Faulty(error=kind(), faulty=(1,))), in_fours(8))

    with pytest.raises(kind) as caught:
        batches_of(run)

    assert "samples 0, 1, 2, 3" in caught.value.__notes__[-1]


def test_a_timeout_names_sample_and_line(open_pool):
    run = start(open_pool(Slow(8, slow_index=5)), in_fours(8), timeout_seconds=0.5)

    next(run)
    with pytest.raises(WorkerTimeoutError, match=r"timed out after 0\.5 seconds") as caught:
        next(run)

    assert "samples 4, 5, 6, 7" in str(caught.value)
    assert "__getitem__" in str(caught.value)


@pytest.mark.parametrize("is_at_work", [True, False])
@pytest.mark.parametrize("forks", [True, False])
def test_locks_are_suspected_where_a_forked_worker_is_at_work(forks, is_at_work):
    pool = SimpleNamespace(
        options=SimpleNamespace(forks=forks),
        processes=[SimpleNamespace(pid=1)],
        stack_of=lambda _worker: "a line",
    )
    task = SimpleNamespace(number=0, indices=[0])
    pending = SimpleNamespace(worker=0, task=task, reply=None if is_at_work else "done")

    text = whereabouts(pool, [pending])

    assert ("a line" in text) is is_at_work
    assert ("multiprocessing_context='forkserver'" in text) is (forks and is_at_work)


def test_a_stall_is_logged(open_pool, caplog):
    run = start(open_pool(Slow(8, slow_index=1, seconds=1.0)), in_fours(8), stall_seconds=0.2)

    next(run)

    assert "No batch for" in caplog.text
    assert "samples 0, 1, 2, 3" in caplog.text


def test_workers_that_are_slow_to_start_are_left_in_peace(open_pool, caplog):
    # A signal would end them, as long as they do not listen to it.
    pool = open_pool(Images(8), method="spawn", num_workers=1)
    run = start(pool, in_fours(8), stall_seconds=0.01)

    assert len(batches_of(run)) == 2
    assert "has not started yet" in caplog.text


def test_busy_workers_are_ended_quickly(open_pool):
    pool = open_pool(Slow(64, slow_index=0), num_workers=2)
    start(pool, in_fours(64))
    time.sleep(0.1)

    started = time.monotonic()
    pool.close()

    assert time.monotonic() - started < 2
    assert not any(process.is_alive() for process in pool.processes)


def test_without_order_a_slow_batch_holds_nobody_up(open_pool):
    pool = open_pool(Slow(40, slow_index=0, seconds=0.5), num_workers=2)

    batches = batches_of(start(pool, in_fours(40), in_order=False))

    assert sorted(torch.cat(batches).tolist()) == list(range(40))
    assert 0 not in batches[0]


@pytest.mark.parametrize("may_deepen", [True, False])
def test_more_is_made_ahead_where_workers_stand_idle_behind_slow_batches(open_pool, may_deepen):
    class Uneven(Images):
        def __getitem__(self, index):
            time.sleep(0.03 if index % 32 == 0 else 0)
            return index

    pool = open_pool(Uneven())

    batches_of(start(pool, in_fours(256), may_deepen=may_deepen))

    assert (pool.depth.times > 1) is may_deepen


def test_an_iterable_dataset_is_shared_out(open_pool):
    pool = open_pool(Stream(20))

    for _ in range(2):
        run = start(pool, iter(lambda: [None] * 4, 0), is_iterable=True)
        assert sorted(torch.cat(batches_of(run)).tolist()) == list(range(20))


def test_an_iterable_dataset_that_does_not_split_brings_a_warning(open_pool):
    pool = open_pool(Stream(20, splits=False))

    run = start(pool, iter(lambda: [None] * 4, 0), is_iterable=True)

    with pytest.warns(UserWarning, match="every sample 2 times"):
        batches_of(run)


def test_dropped_ends_of_an_iterable_dataset_bring_a_warning(open_pool):
    pool = open_pool(Stream(14), drop_last=True)

    run = start(pool, iter(lambda: [None] * 8, 0), is_iterable=True, drop_last=True)

    with pytest.warns(UserWarning, match="dropped 14 samples"):
        batches = batches_of(run)

    assert batches == []


def test_a_live_state_reaches_the_workers_before_the_next_batch(open_pool):
    dataset = Live(80)
    run = start(open_pool(dataset), in_fours(80), live_state=dataset.live_state)

    before = next(run)
    dataset.offset = 1000
    later = batches_of(run)

    assert before.tolist() == [0, 1, 2, 3]
    assert all(batch[0] >= 1000 for batch in later[5:])


def test_a_small_budget_lets_fewer_batches_ahead(open_pool):
    pool = open_pool(Images(64))

    with pytest.warns(UserWarning, match="lower batch_size or num_workers"):
        run = start(pool, in_fours(64), budget_bytes=1 << 20)

    assert labels_of(batches_of(run)) == list(range(64))


def test_a_forked_child_leaves_the_workers_alone(open_pool):
    pool = open_pool(Images(16))
    run = start(pool, in_fours(16))
    next(run)

    child = os.fork()
    if child == 0:
        run.close()
        pool.close()
        os._exit(0)
    os.waitpid(child, 0)

    assert labels_of(batches_of(run)) == list(range(4, 16))


def test_a_forked_child_that_goes_on_with_the_run_is_told_whose_it_is(open_pool):
    run = start(open_pool(Images(64)), in_fours(64))
    next(run)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            batches_of(run)
        except RuntimeError as error:
            status = 0 if f"belongs to process {os.getppid()}" in str(error) else 2
        finally:
            os._exit(status)

    assert os.waitpid(child, 0)[1] == 0
    assert labels_of(batches_of(run)) == list(range(4, 64))


def test_a_pool_that_is_collected_while_a_worker_of_another_starts_disturbs_nobody(
    open_pool, monkeypatch
):
    lost = open_pool(Images(64), num_workers=2)
    number = lost.processes[0].pid
    libraries = _member.find_libraries

    def collect():
        lost.close()  # as a garbage collection may, in the midst of this
        return libraries()

    monkeypatch.setattr(_member, "find_libraries", collect)
    pool = open_pool(Images(64), num_workers=2)

    assert labels_of(batches_of(start(pool, in_fours(64)))) == list(range(64))
    assert not psutil.pid_exists(number)


def test_batches_may_be_dropped_by_other_threads(open_pool):
    pool = open_pool(Images(400, shape=(3, 64, 64)))
    run = start(pool, in_fours(400))
    kept = []

    def drop():
        while len(kept) > 3 or not done.is_set():
            if len(kept) > 3:
                images, labels = kept.pop(0)
                assert torch.equal(images[:, 0, 0, 0], labels.float())

    done = threading.Event()
    threads = [threading.Thread(target=drop) for _ in range(1)]
    for thread in threads:
        thread.start()
    kept.extend(next(run) for _ in range(100))
    done.set()
    for thread in threads:
        thread.join()

    assert pool.arena.num_slots < 110


class NumThreads:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        product = np.ones((300, 300)) @ np.ones((300, 300))
        used = [library["num_threads"] for library in threadpool_info()]
        return (
            torch.get_num_threads(),
            max(used),
            psutil.Process().num_threads(),
            product[0, 0],
        )


def count_threads_of_torch_alone():
    """Count those of a forked process that has told torch to use one, and nothing else.

    torch starts its own pool anew there, with as many as this process has ever set first.
    """
    context = multiprocessing.get_context("fork")
    numbers = context.SimpleQueue()

    def count():
        torch.set_num_threads(1)
        numbers.put(psutil.Process().num_threads())

    process = context.Process(target=count)
    process.start()
    process.join()
    number = numbers.get()
    numbers.close()
    process.close()
    return number


def test_a_forked_worker_computes_in_one_thread_and_starts_no_other(open_pool):
    np.ones((300, 300)) @ np.ones((300, 300))  # by threads, which do not live on in a fork

    [[torchs, most, alive, product]] = batches_of(start(open_pool(NumThreads()), in_fours(4)))

    assert torchs.tolist() == most.tolist() == [1] * 4
    assert alive.tolist() == [count_threads_of_torch_alone()] * 4
    assert product.tolist() == [300.0] * 4


def test_a_worker_whose_consumer_is_gone_before_it_has_started_leaves_quietly(
    open_pool, tmp_path
):
    said = tmp_path / "stderr"
    ended, held = os.pipe()

    consumer = os.fork()
    if not consumer:
        sys.stderr = said.open("w")
        open_pool(Images(4), num_workers=1, worker_init_fn=lambda _worker: time.sleep(0.2))
        os._exit(0)
    os.waitpid(consumer, 0)
    os.close(held)
    os.read(ended, 1)  # until the worker, who inherited the other end, has ended too
    os.close(ended)

    assert not said.read_text()


class Large:
    """Batches of as many bytes as go past the cache, whose workers tell whether they did."""

    def __len__(self):
        return 160

    def __getitem__(self, index):
        return torch.full(
            (3, 256, 256), index, dtype=torch.int32
        ), knows_past_cache.cache_info().currsize


def test_large_batches_are_whole(open_pool):
    knows_past_cache.cache_clear()

    pool = open_pool(Large())
    starts = range(0, 160, 40)
    batches = batches_of(start(pool, [list(range(first, first + 40)) for first in starts]))

    for first, (images, _) in zip(starts, batches, strict=True):
        numbers = torch.arange(first, first + 40, dtype=torch.int32)
        assert (images == numbers[:, None, None, None]).all()
    assert batches[-1][1].tolist() == [1] * 40


class LargeSamples:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((1 << 18,), float(index))  # 1 MiB


def test_slots_are_as_large_as_batches_and_each_is_new_to_a_worker_once(open_pool, monkeypatch):
    news = []
    note_batch = Lookahead.note_batch

    def note(self, *costs, in_new_memory):
        news.append(in_new_memory)
        note_batch(self, *costs, in_new_memory=in_new_memory)

    monkeypatch.setattr(Lookahead, "note_batch", note)
    pool = open_pool(LargeSamples(), num_workers=1)

    run = start(pool, in_fours(64))
    for _ in range(16):
        next(run)

    batch_bytes = 4 << 20
    assert batch_bytes <= pool.arena.slot_bytes < 1.1 * batch_bytes
    assert news[0]
    assert not any(news[8:])
