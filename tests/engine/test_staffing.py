"""How many workers a pool should have: decided from waiting, on a clock of the test's own."""

from hypothesis import given
from hypothesis import strategies as st

from fastloader.engine._staffing import HOLD_SECONDS, IDLE_SECONDS, Staffing


class Loop:
    """A consumer, and the pool that it reads from."""

    def __init__(self, most, num_workers=1, num_cpus=None):
        self.now = 100.0
        self.num_workers = num_workers
        self.queued = 0.0
        self.staffing = Staffing(
            most, self.now, num_cpus=num_cpus, read_queued=lambda: {1: self.queued}
        )

    def run(
        self, seconds, *, rate, wait_share, busy_share=1.0, cpu_share=1.0, queued_share=0.0
    ):
        """Let time go by with `rate(num_workers)` batches a second.

        `cpu_share` is of the time that workers are busy, `queued_share` of that of all of them.
        """
        until = self.now + seconds
        while self.now < until:
            step = 1 / rate(self.num_workers)
            self.now += step
            busy = busy_share * self.num_workers * step
            self.queued += queued_share * self.num_workers * step
            self.staffing.note_wait(wait_share * step)
            self.staffing.note_batch(busy, cpu_share * busy)
            wanted = self.staffing.wanted(self.num_workers, self.now)
            if wanted > self.num_workers:
                self.staffing.restart(self.now)
            self.num_workers = wanted


def test_workers_double_while_that_helps_a_waiting_consumer():
    loop = Loop(most=12)

    loop.run(5, rate=lambda workers: 100 * workers, wait_share=0.9)

    assert loop.num_workers == 12


def test_a_consumer_that_does_not_wait_gets_no_more_workers():
    loop = Loop(most=12)

    loop.run(20, rate=lambda _: 100, wait_share=0.05)

    assert loop.num_workers == 1


def test_workers_that_make_nothing_faster_are_not_followed_by_others():
    loop = Loop(most=16)

    loop.run(HOLD_SECONDS / 2, rate=lambda workers: 100 * min(workers, 2), wait_share=0.9)

    assert loop.num_workers == 4


def test_workers_that_compute_are_no_more_than_the_cpus():
    loop = Loop(most=32, num_cpus=4)

    loop.run(20, rate=lambda workers: 100 * workers, wait_share=0.9, cpu_share=0.9)

    assert loop.num_workers == 4


def test_workers_that_wait_for_storage_are_as_many_as_there_may_be():
    loop = Loop(most=32, num_cpus=2)

    loop.run(20, rate=lambda workers: 100 * workers, wait_share=0.9, cpu_share=0.02)

    assert loop.num_workers == 32


def test_workers_that_wait_for_half_their_time_fill_the_cpus():
    loop = Loop(most=32, num_cpus=4)

    loop.run(20, rate=lambda workers: 100 * workers, wait_share=0.9, cpu_share=0.5)

    assert loop.num_workers == 8


def test_waiting_for_cpus_that_others_have_is_not_waiting_for_storage():
    loop = Loop(most=32, num_cpus=2)

    loop.run(
        20,
        rate=lambda workers: 100 * workers,
        wait_share=0.9,
        cpu_share=0.1,
        queued_share=0.8,
    )

    assert loop.num_workers == 2


def test_workers_beyond_the_cpus_that_make_nothing_faster_leave():
    loop = Loop(most=32, num_cpus=2)

    loop.run(20, rate=lambda workers: 100 * min(workers, 8), wait_share=0.9, cpu_share=0.02)

    assert loop.num_workers == 8


def test_one_unlucky_moment_does_not_stop_the_growth():
    loop = Loop(most=8)
    loop.run(0.1, rate=lambda workers: 100 * workers, wait_share=0.9)
    assert loop.num_workers == 2

    loop.run(0.06, rate=lambda _: 150, wait_share=0.9)
    loop.run(1, rate=lambda workers: 100 * workers, wait_share=0.9)

    assert loop.num_workers == 8


def test_an_answer_that_may_not_be_more_decides_nothing():
    loop = Loop(most=8)
    loop.now += 1
    loop.staffing.note_wait(1)

    kept = loop.staffing.wanted(1, loop.now, may_grow=False)

    assert kept == 1
    assert loop.staffing.wanted(1, loop.now) == 2


def test_it_is_tried_again_later():
    loop = Loop(most=16)
    loop.run(5, rate=lambda _: 100, wait_share=0.9)

    loop.run(2 * HOLD_SECONDS, rate=lambda workers: 100 * workers, wait_share=0.9)

    assert loop.num_workers == 16


def test_slow_batches_count_before_there_are_many():
    loop = Loop(most=4)
    for _ in range(3):
        loop.now += 0.6
        loop.staffing.note_wait(0.6)
        wanted = loop.staffing.wanted(loop.num_workers, loop.now)
        loop.num_workers = wanted

    assert loop.num_workers == 4


def test_workers_that_are_long_idle_leave():
    loop = Loop(most=8, num_workers=8)

    loop.run(2.5 * IDLE_SECONDS, rate=lambda _: 100, wait_share=0.0, busy_share=0.1)

    assert loop.num_workers == 1


def test_busy_workers_stay_though_nobody_waits_for_them():
    loop = Loop(most=8, num_workers=8)

    loop.run(2.5 * IDLE_SECONDS, rate=lambda _: 100, wait_share=0.0, busy_share=0.55)

    assert loop.num_workers == 8


def test_time_between_runs_makes_nobody_idle():
    loop = Loop(most=8, num_workers=8)
    loop.run(1, rate=lambda _: 100, wait_share=0.0, busy_share=0.9)

    loop.now += 100 * IDLE_SECONDS
    loop.staffing.begin_run(loop.now)
    loop.run(1, rate=lambda _: 100, wait_share=0.0, busy_share=0.9)

    assert loop.num_workers == 8


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.floats(0.001, 60), st.floats(0, 1), st.integers(0, 50)), max_size=60),
)
def test_the_number_is_never_below_one_nor_above_the_most(most, steps):
    loop = Loop(most)
    for seconds, wait_share, num_batches in steps:
        loop.now += seconds
        loop.staffing.note_wait(wait_share * seconds)
        for _ in range(num_batches):
            loop.staffing.note_batch(0.1, 0.05)
        loop.num_workers = loop.staffing.wanted(loop.num_workers, loop.now)

        assert 1 <= loop.num_workers <= most
